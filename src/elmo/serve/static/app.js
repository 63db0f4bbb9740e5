// The shell of the page: header, tabs, model, language, colors, address. Each tab is a view module; see views/.
import { html, render, useCallback, useEffect, useErrorBoundary, useMemo, useRef, useState } from "./vendor/preact.js";
import { createApi } from "./api.js";
import { PageContext } from "./hooks.js";
import { describeError, languages, translator } from "./i18n.js";
import { changedValues, preferences, readAddress, typedValues, writeAddress } from "./state.js";
import change from "./views/change.js";
import compare from "./views/compare.js";
import corpus from "./views/corpus.js";
import inside from "./views/inside.js";
import sentence from "./views/sentence.js";

const icon = document.querySelector("link[rel=icon]").href;
export const views = [compare, sentence, inside, corpus, change];

/** The model that a language starts with: the first one for this language, or the first. */
function firstModel(models, lang) {
  return models.find((model) => (model.tokenizer === "zh") === (lang === "zh")) ?? models[0];
}

function firstLanguage() {
  const known = (lang) => languages.some(([code]) => code === lang);
  const candidates = [readAddress().lang, preferences.get("lang"), navigator.language?.slice(0, 2)];
  return candidates.find(known) ?? "en";
}

/** The state of the page from its address. */
function stateFromAddress(previous, models) {
  const address = readAddress();
  const view = views.find(({ id }) => id === address.view) ?? views[0];
  const lang = languages.some(([code]) => code === address.lang) ? address.lang : previous.lang;
  const model = models.find(({ id }) => id === address.model) ?? firstModel(models, lang);
  const changed = changedValues(typedValues(address.values, view.defaults({ lang, model })), view.defaults({ lang, model }));
  return { ...previous, view: view.id, lang, model: model.id, changed: { ...previous.changed, [view.id]: changed } };
}

function addressOf(state, models) {
  const view = views.find(({ id }) => id === state.view);
  return writeAddress({ ...state, values: state.changed[view.id] ?? {} });
}

function Page({ api, catalog }) {
  const models = catalog.data;
  const [state, setState] = useState(() => stateFromAddress({ lang: firstLanguage(), changed: {} }, models));
  const [theme, setTheme] = useTheme();
  const t = useMemo(() => translator(state.lang), [state.lang]);
  const model = models.find(({ id }) => id === state.model);
  const view = views.find(({ id }) => id === state.view);
  const pushNext = useRef(false);

  useEffect(() => {
    document.documentElement.lang = state.lang === "zh" ? "zh-CN" : "en";
    document.title = `${t(`tab.${view.id}`)} – ${t("app.title")}`;
  }, [state.lang, view.id]);

  useEffect(() => {
    const address = addressOf(state, models);
    const write = () => {
      if (address === null || address === location.hash) return;
      if (pushNext.current) history.pushState(null, "", address);
      else history.replaceState(null, "", address);
      pushNext.current = false;
    };
    if (pushNext.current) write();
    const timer = setTimeout(write, 250); // browsers limit how often an address may change
    return () => clearTimeout(timer);
  }, [state]);

  useEffect(() => {
    if (catalog.corpora) api.periods().catch(() => null); // the server starts to compare the periods
  }, []);

  useEffect(() => {
    const follow = () => setState((previous) => stateFromAddress(previous, models));
    addEventListener("popstate", follow);
    return () => removeEventListener("popstate", follow);
  }, []);

  const go = useCallback((id, values = {}) => {
    pushNext.current = true;
    setState((previous) => {
      const target = views.find((view) => view.id === id);
      const defaults = target.defaults({ lang: previous.lang, model: models.find((m) => m.id === previous.model) });
      const changed = Object.keys(values).length ? changedValues(values, defaults) : previous.changed[id] ?? {};
      return { ...previous, view: id, changed: { ...previous.changed, [id]: changed } };
    });
  }, []);

  const update = useCallback((patch) => setState((previous) => {
    const target = views.find((view) => view.id === previous.view);
    const defaults = target.defaults({ lang: previous.lang, model: models.find((m) => m.id === previous.model) });
    const before = previous.changed[previous.view] ?? {};
    const values = typeof patch === "function" ? patch({ ...defaults, ...before }) : patch;
    return { ...previous, changed: { ...previous.changed, [previous.view]: changedValues({ ...before, ...values }, defaults) } };
  }), []);

  const setModel = (id) => setState((previous) => ({ ...previous, model: id, changed: withoutExamples(previous.changed) }));
  const setLang = (lang) => {
    preferences.set("lang", lang);
    setState((previous) => {
      const isFirst = previous.model === firstModel(models, previous.lang).id;
      const hasText = Object.values(previous.changed).some((values) => "text" in values);
      const next = isFirst && !hasText ? firstModel(models, lang).id : previous.model;
      return { ...previous, lang, model: next, changed: next === previous.model ? previous.changed : withoutExamples(previous.changed) };
    });
  };

  const page = useMemo(() => ({ t, lang: state.lang, theme }), [t, theme]);
  const values = { ...view.defaults({ lang: state.lang, model }), ...state.changed[view.id] };
  const missing = (view.requires === "index" && !catalog.indexes?.length && "app.needs.index")
    || (view.requires === "periods" && !catalog.corpora && "app.needs.periods");

  return html`<${PageContext.Provider} value=${page}>
    <a class="skip" href="#content" onClick=${(event) => {
      event.preventDefault();
      document.getElementById("content").focus();
    }}>${t("app.skip")}</a>
    <header class="top">
      <div class="bar">
        <h1 class="brand"><img src=${icon} alt="" width="26" height="26" />${t("app.title")}</h1>
        <${Settings} ...${{ models, state, setModel, setLang, theme, setTheme, t, address: () => addressOf(state, models) }} />
      </div>
      <${Tabs} active=${view.id} go=${go} t=${t} />
    </header>
    <main id="content" tabindex="-1">
      <div id="panel" role="tabpanel" aria-labelledby=${`tab-${view.id}`} class=${`view view-${view.id}`}>
        ${missing
          ? html`<p class="message">${t(missing)}</p>`
          : html`<${Guard} key=${view.id} t=${t}>
              <${view.View} ...${{ state: values, update, go, api, model, models, catalog, lang: state.lang, t }} />
            </${Guard}>`}
      </div>
    </main>
  </${PageContext.Provider}>`;
}

/** Views keep the texts that a person has typed; what belongs to an example goes away with it. */
function withoutExamples(changed) {
  return Object.fromEntries(Object.entries(changed).filter(([, values]) => "text" in values));
}

function Guard({ children, t }) {
  const [error, reset] = useErrorBoundary((error) => console.error(error));
  if (!error) return children;
  return html`<div class="message error" role="alert">
    <p>${t("app.broken", { message: error.message })}</p>
    <button type="button" onClick=${reset}>${t("app.retry")}</button>
  </div>`;
}

function Tabs({ active, go, t }) {
  const onKeyDown = (event) => {
    const at = views.findIndex(({ id }) => id === active);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: views.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const { id } = views[(next + views.length) % views.length];
    go(id);
    document.getElementById(`tab-${id}`).focus();
  };
  return html`<nav class="tabs" aria-label=${t("app.views")}>
    <div role="tablist" aria-label=${t("app.views")} onKeyDown=${onKeyDown}>
      ${views.map(({ id }) => html`<button key=${id} type="button" role="tab" id=${`tab-${id}`}
        aria-selected=${String(id === active)} aria-controls="panel" tabindex=${id === active ? 0 : -1}
        onClick=${() => id !== active && go(id)}>${t(`tab.${id}`)}</button>`)}
    </div>
  </nav>`;
}

function Settings({ models, state, setModel, setLang, theme, setTheme, t, address }) {
  const [note, setNote] = useState("");
  const share = async () => {
    const hash = address();
    let result = "app.share.long";
    if (hash !== null) {
      history.replaceState(null, "", hash);
      try {
        await navigator.clipboard.writeText(location.href);
        result = "app.share.done";
      } catch {
        result = "app.share.failed";
      }
    }
    setNote(t(result));
    setTimeout(() => setNote(""), 2500);
  };
  return html`<div class="settings">
    ${models.length > 1 && html`<label class="pick"><span>${t("app.model")}</span>
      <select id="model" value=${state.model} onChange=${(event) => setModel(event.target.value)}>
        ${models.map(({ id }) => html`<option key=${id} value=${id} selected=${id === state.model}>${id}</option>`)}
      </select></label>`}
    <label class="pick"><span class="hidden">${t("app.language")}</span>
      <select id="language" value=${state.lang} onChange=${(event) => setLang(event.target.value)}>
        ${languages.map(([code, name]) => html`<option key=${code} value=${code} lang=${code} selected=${code === state.lang}>${name}</option>`)}
      </select></label>
    <${ThemePicker} t=${t} setTheme=${setTheme} />
    <button type="button" class="quiet" id="share" onClick=${share}>${t("app.share")}</button>
    <span class="toast" role="status">${note}</span>
  </div>`;
}

function ThemePicker({ t, setTheme }) {
  const [choice, setChoice] = useState(preferences.get("theme") ?? "auto");
  return html`<label class="pick"><span class="hidden">${t("app.theme")}</span>
    <select id="theme" value=${choice} onChange=${(event) => {
      setChoice(event.target.value);
      setTheme(event.target.value);
    }}>
      ${["auto", "light", "dark"].map((name) => html`<option key=${name} value=${name} selected=${name === choice}>${t(`app.theme.${name}`)}</option>`)}
    </select></label>`;
}

/** The colors in use ("light" or "dark"), and a function that sets the choice ("auto", "light" or "dark"). */
function useTheme() {
  const query = useMemo(() => matchMedia("(prefers-color-scheme: dark)"), []);
  const resolve = (choice) => (choice === "light" || choice === "dark" ? choice : query.matches ? "dark" : "light");
  const [choice, setChoice] = useState(preferences.get("theme") ?? "auto");
  const [theme, setTheme] = useState(() => resolve(choice));
  useEffect(() => {
    const apply = () => {
      setTheme(resolve(choice));
      document.documentElement.dataset.theme = resolve(choice);
    };
    apply();
    query.addEventListener("change", apply);
    return () => query.removeEventListener("change", apply);
  }, [choice]);
  return [theme, (next) => {
    preferences.set("theme", next);
    setChoice(next);
  }];
}

/** Ask which models there are; wait while they are being loaded, ask for a key if the server requires one. */
function Start({ api }) {
  const [catalog, setCatalog] = useState(null);
  const [error, setError] = useState(null);
  const [attempt, setAttempt] = useState(0);
  const t = useMemo(() => translator(firstLanguage()), []);
  useEffect(() => {
    let timer = 0;
    api.models().then((reply) => {
      setError(null);
      setCatalog(reply);
    }, (error) => {
      setError(error);
      if (error.code === "loading") timer = setTimeout(() => setAttempt((n) => n + 1), 400);
    });
    return () => clearTimeout(timer);
  }, [attempt]);
  if (catalog?.data.length) return html`<${Page} api=${api} catalog=${catalog} />`;
  const retry = () => setAttempt((n) => n + 1);
  return html`<main class="notice-page">
    <h1>${t("app.title")}</h1>
    ${!error && html`<p role="status">${t("app.loading")}</p>`}
    ${error?.code === "unauthorized" && html`<${KeyForm} api=${api} t=${t} retry=${retry} />`}
    ${error && error.code !== "unauthorized" && html`<p role="status">${describeError(error, t)}</p>`}
    ${error && !["unauthorized", "loading"].includes(error.code)
      && html`<button type="button" onClick=${retry}>${t("app.retry")}</button>`}
  </main>`;
}

function KeyForm({ api, t, retry }) {
  const onSubmit = (event) => {
    event.preventDefault();
    api.backend.setKey(new FormData(event.target).get("key"));
    retry();
  };
  return html`<form class="key" onSubmit=${onSubmit}>
    <p>${t("app.key")}</p>
    <label>${t("app.key.label")} <input name="key" type="password" autocomplete="off" required /></label>
    <button>${t("app.key.use")}</button>
  </form>`;
}

const root = document.getElementById("app");
createApi().then((api) => {
  root.replaceChildren();
  render(html`<${Start} api=${api} />`, root);
}, (error) => {
  root.replaceChildren(Object.assign(document.createElement("p"), { className: "message error", textContent: error.message }));
});
