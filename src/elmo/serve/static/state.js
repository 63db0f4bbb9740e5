// The state of the page and its address. An address has the form  #/view?lang=en&model=en&name=value…  and contains
// everything that is needed to show the same view again; values equal to the defaults of a view are left out.

const MAX_ADDRESS = 30000; // characters; longer texts are not written to the address

/** Read an address: {view, lang, model, values}; missing parts are null. `values` maps names to lists of strings. */
export function readAddress(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const values = {};
  let lang = null, model = null;
  for (const [name, value] of new URLSearchParams(query)) {
    if (name === "lang") lang = value;
    else if (name === "model") model = value;
    else (values[name] ??= []).push(value);
  }
  return { view: path || null, lang, model, values };
}

/** Write an address; `values` maps names to strings, numbers, booleans or lists of strings. */
export function writeAddress({ view, lang, model, values }) {
  const query = new URLSearchParams();
  query.append("lang", lang);
  if (model) query.append("model", model);
  for (const [name, value] of Object.entries(values)) {
    for (const item of Array.isArray(value) ? value : [value]) query.append(name, toText(item));
    if (Array.isArray(value) && !value.length) query.append(name, "");
  }
  const address = `#/${view}?${query}`;
  return address.length <= MAX_ADDRESS ? address : null;
}

function toText(value) {
  return value === true ? "1" : value === false ? "0" : String(value);
}

/** Convert values of an address to the types of the defaults; names that are not in the defaults are dropped. */
export function typedValues(values, defaults) {
  const typed = {};
  for (const [name, texts] of Object.entries(values)) {
    if (!Object.hasOwn(defaults, name)) continue;
    const fallback = defaults[name];
    if (Array.isArray(fallback)) typed[name] = texts.length === 1 && texts[0] === "" ? [] : texts;
    else if (typeof fallback === "number") typed[name] = Number.isFinite(+texts[0]) ? +texts[0] : fallback;
    else if (typeof fallback === "boolean") typed[name] = texts[0] === "1";
    else typed[name] = texts[0];
  }
  return typed;
}

/** Values of a patched view state that differ from the defaults. */
export function changedValues(values, defaults) {
  return Object.fromEntries(Object.entries(values).filter(([name, value]) => !isEqual(value, defaults[name])));
}

function isEqual(a, b) {
  return Array.isArray(a) && Array.isArray(b) ? a.length === b.length && a.every((x, k) => x === b[k]) : a === b;
}

/** A preference that is kept by the browser, where it allows this (pages opened from disk may not). */
export const preferences = {
  get(name) {
    try {
      return localStorage.getItem(`elmo.${name}`);
    } catch {
      return null;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(`elmo.${name}`, value);
    } catch {
      // nothing is lost: the preference holds until the page is closed
    }
  },
};
