// Uses of a word in a corpus: a map with one point per use, and lines aligned on the word. Both are linked: the use
// under the pointer (`active`) and the chosen one (`selected`) are marked in both. Corpus and Change share these.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { boundsOf, textWidth } from "../charts.js";
import { groupColor, groupShape } from "../colors.js";
import { usePage, useWidth } from "../hooks.js";
import { addTexts } from "../i18n.js";

const MAX_MARKS = 2000; // points that are elements of their own; more are painted as one picture
const MAX_CONTEXT = 240; // characters of context that a line shows on each side
const ROW = 30; // height of a line, in pixels
let lastId = 0;

addTexts({
  "uses.map.keys": ["Arrow keys move between the points, Enter chooses one.", "方向键在点之间移动，回车键选中。"],
  "uses.map.kind": ["map", "地图"],
  "uses.sense": ["Sense {n}", "义项 {n}"],
  "uses.sense.named": ["{n}: {name}", "{n}：{name}"],
  "uses.sense.form": ["{name} (written “{form}”)", "{name}（写作“{form}”）"],
  "uses.empty": ["No line matches.", "没有符合条件的例句。"],
});

/** The name of a sense for readers: its number and its words. */
export function senseName({ sense, name, form }, t) {
  const words = t.list(name);
  const label = words ? t("uses.sense.named", { n: sense, name: words }) : t("uses.sense", { n: sense });
  return form ? t("uses.sense.form", { name: label, form }) : label;
}

export function useId(prefix) {
  const ref = useRef(null);
  ref.current ??= `${prefix}-${++lastId}`;
  return ref.current;
}

/** The sentence of a line. */
export const fullText = ({ before, word, after }) => before + word + after;

/**
 * A map of uses: points [{id, x, y, group, isDim}] keep their proportions; dim points do not match a filter.
 * active, selected: ids or null; onHover(id | null), onSelect(id); describe(id): the text of a use.
 */
export function UseMap({ points, active, selected, onHover, onSelect, describe, height: maxHeight = 400, description }) {
  const { t, theme } = usePage();
  const [box, width] = useWidth();
  const id = useId("use-map");
  const [hasKeys, setKeys] = useState(false);
  const radius = points.length > 1000 ? 3 : points.length > 300 ? 4 : points.length > 80 ? 5 : 6.5;
  const { placed, byId, height } = useMemo(() => {
    const { x: [x0, x1], y: [y0, y1] } = boundsOf(points.map(({ x, y }) => [x, y]));
    const margin = radius + 10;
    const fit = (size, low, high) => (size - 2 * margin) / Math.max(1e-6, high - low);
    const scale = Math.min(fit(width, x0, x1), fit(maxHeight, y0, y1));
    const height = Math.round(Math.max(140, Math.min(maxHeight, (y1 - y0) * scale + 2 * margin)));
    const placed = points.map((point) => ({
      ...point,
      px: width / 2 + (point.x - (x0 + x1) / 2) * scale,
      py: height / 2 + (point.y - (y0 + y1) / 2) * scale,
    }));
    return { placed, byId: new Map(placed.map((point) => [point.id, point])), height };
  }, [points, width, maxHeight, radius]);
  const ordered = useMemo(() => [...placed.filter(({ isDim }) => isDim), ...placed.filter(({ isDim }) => !isDim)], [placed]);
  const isPicture = placed.length > MAX_MARKS;
  const [picture, setPicture] = useState(null);
  useEffect(() => {
    if (!isPicture) return undefined;
    const paint = () => setPicture(paintPoints(ordered, width, height, radius));
    const timer = setTimeout(paint, picture ? 80 : 0); // while someone types, the lines come first
    return () => clearTimeout(timer);
  }, [ordered, theme]);
  const marks = useMemo(() => {
    if (isPicture) return picture && html`<image href=${picture} width=${width} height=${height} />`;
    return html`<g>${ordered.map(({ id, px, py, group, isDim }) => html`<path key=${id} data-mark=${id} class=${isDim ? "is-dim" : ""}
      d=${groupShape(group, radius)} fill=${groupColor(group)} transform=${`translate(${px.toFixed(1)},${py.toFixed(1)})`} />`)}</g>`;
  }, [ordered, picture]);

  const nearest = (event) => {
    const frame = event.currentTarget.getBoundingClientRect();
    const x = ((event.clientX - frame.left) * width) / frame.width, y = ((event.clientY - frame.top) * height) / frame.height;
    let best = null, bestDistance = 16 ** 2;
    for (const { id, px, py, isDim } of placed) {
      const distance = (px - x) ** 2 + (py - y) ** 2 + (isDim ? 60 : 0);
      if (distance < bestDistance) [best, bestDistance] = [id, distance];
    }
    return best;
  };
  const onKeyDown = (event) => {
    const at = byId.get(active) ?? byId.get(selected);
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (at) onSelect(at.id);
      return;
    }
    const next = at ? step(placed, at, event.key) : event.key.startsWith("Arrow") ? placed[0]?.id : undefined;
    if (next === undefined) return;
    event.preventDefault();
    setKeys(true);
    onHover(next);
  };
  const ring = (point, kind) => point && html`<g key=${kind} class=${`ring ${kind}`} transform=${`translate(${point.px.toFixed(1)},${point.py.toFixed(1)})`}>
    <circle r=${radius + 5} /><path d=${groupShape(point.group, radius + 1)} fill=${groupColor(point.group)} /></g>`;
  const shown = byId.get(active) ?? byId.get(selected);
  return html`<div class="use-map">
    <div ref=${box} class="chart-box" role="application" tabindex="0" aria-label=${description} aria-roledescription=${t("uses.map.kind")}
        aria-describedby=${id} onKeyDown=${onKeyDown} onBlur=${() => setKeys(false)}>
      <svg class="chart points" viewBox=${`0 0 ${width} ${height}`} height=${height} role="img" aria-label=${description}
          onPointerMove=${(event) => {
            const next = nearest(event);
            if (next !== (active ?? null)) onHover(next);
          }}
          onPointerLeave=${() => onHover(null)}
          onClick=${(event) => {
            const next = nearest(event);
            if (next !== null) onSelect(next);
          }}>
        <rect class="hit" width=${width} height=${height} data-screen-only />
        ${marks}
        <g data-screen-only>${ring(byId.get(selected), "is-selected")}${active !== selected && ring(byId.get(active), "is-active")}</g>
      </svg>
    </div>
    <p id=${id} class="hidden">${t("uses.map.keys")}</p>
    <p class="readout use-readout" dir="auto" aria-live=${hasKeys ? "polite" : "off"}>${shown ? describe(shown.id) : "\u00a0"}</p>
  </div>`;
}

/** The next point in the direction of a key; undefined for other keys. */
function step(points, from, key) {
  const direction = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[key];
  if (!direction) return { Home: points[0].id, End: points.at(-1).id }[key];
  let best, bestCost = Infinity;
  for (const { id, px, py, isDim } of points) {
    const along = (px - from.px) * direction[0] + (py - from.py) * direction[1];
    const across = Math.abs(px - from.px) * Math.abs(direction[1]) + Math.abs(py - from.py) * Math.abs(direction[0]);
    if (id === from.id || isDim || along <= 0.5) continue;
    const cost = along + 2.5 * across;
    if (cost < bestCost) [best, bestCost] = [id, cost];
  }
  return best ?? from.id;
}

/** All points as one picture: the address of an image. */
function paintPoints(points, width, height, radius) {
  const scale = Math.min(2, Math.max(1, devicePixelRatio)); // a larger picture takes longer to encode
  const canvas = Object.assign(document.createElement("canvas"), { width: width * scale, height: height * scale });
  const context = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const brushes = new Map();
  for (const { group, px, py, isDim } of points) {
    if (!brushes.has(group)) {
      brushes.set(group, [new Path2D(groupShape(group, radius)), style.getPropertyValue(groupColor(group).slice(4, -1)).trim()]);
    }
    const [path, color] = brushes.get(group);
    context.setTransform(scale, 0, 0, scale, px * scale, py * scale);
    context.globalAlpha = isDim ? 0.12 : 0.8;
    context.fillStyle = color;
    context.fill(path);
  }
  return canvas.toDataURL();
}

const tail = (text) => (text.length > MAX_CONTEXT ? text.slice(-MAX_CONTEXT).replace(/^[\udc00-\udfff]/, "") : text);
const head = (text) => (text.length > MAX_CONTEXT ? text.slice(0, MAX_CONTEXT).replace(/[\ud800-\udbff]$/, "") : text);

/**
 * Lines aligned on the word. Only the visible ones are in the document, so that many thousands are no problem.
 *
 * items: [{id, line: {before, word, after}, group, note}] or {heading} between them; active, selected, onHover,
 * onSelect as in UseMap; label: read by screen readers; rows: number of visible lines.
 */
export function Lines({ items, active, selected, onHover, onSelect, label, rows = 14, scrollKey = "" }) {
  const { t } = usePage();
  const id = useId("lines");
  const list = useRef(null);
  const [top, setTop] = useState(0);
  const [cursor, setCursor] = useState(-1);
  const height = Math.min(rows, Math.max(2, items.length)) * ROW;
  const places = useMemo(() => new Map(items.map((item, k) => [item.id, k])), [items]);
  const wordWidth = useMemo(() => {
    const words = new Set();
    for (const item of items) {
      if (item.line) words.add(item.line.word);
      if (words.size > 200) break;
    }
    return Math.min(170, Math.max(36, ...[...words].map((word) => textWidth(word.slice(0, 40), "700 15px system-ui, sans-serif")))) + 16;
  }, [items]);
  const reveal = (k) => {
    const element = list.current;
    if (!element || k < 0) return;
    if (k * ROW < element.scrollTop) element.scrollTop = Math.max(0, (k - 1) * ROW);
    else if ((k + 1) * ROW > element.scrollTop + height) element.scrollTop = (k + 2) * ROW - height;
  };
  useLayoutEffect(() => {
    if (list.current) list.current.scrollTop = 0;
    setCursor(-1);
  }, [scrollKey]);
  useEffect(() => {
    const k = places.get(selected) ?? -1;
    if (k >= 0 && list.current && (k * ROW < list.current.scrollTop || (k + 1) * ROW > list.current.scrollTop + height)) {
      list.current.scrollTop = Math.max(0, k * ROW - height / 2 + ROW / 2);
    }
  }, [selected, places]);

  const move = (from, by) => {
    let k = Math.max(0, Math.min(items.length - 1, from + by));
    while (items[k]?.heading !== undefined) k += by < 0 && k > 0 ? -1 : 1;
    return k < items.length ? k : from;
  };
  const onKeyDown = (event) => {
    const at = cursor >= 0 ? cursor : places.get(selected) ?? -1;
    const page = rows - 1;
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -items.length, End: items.length }[event.key];
    if (by !== undefined) {
      event.preventDefault();
      const next = at < 0 ? move(0, 0) : move(at, by);
      setCursor(next);
      reveal(next);
      onHover?.(items[next].id);
    } else if ((event.key === "Enter" || event.key === " ") && items[at]?.line) {
      event.preventDefault();
      onSelect?.(items[at].id);
    }
  };
  if (!items.length) return html`<p class="note">${t("uses.empty")}</p>`;
  const first = Math.max(0, Math.floor(top / ROW) - 4), last = Math.min(items.length, Math.ceil((top + height) / ROW) + 4);
  const visible = [];
  for (let k = first; k < last; k++) visible.push(k);
  if (cursor >= 0 && cursor < items.length && (cursor < first || cursor >= last)) visible.push(cursor); // for screen readers
  const hasNotes = items.some(({ note }) => note);
  return html`<div ref=${list} class=${`lines ${hasNotes ? "has-notes" : ""}`} role="listbox" tabindex="0" aria-label=${label}
      aria-activedescendant=${cursor >= 0 && items[cursor]?.line ? `${id}-${cursor}` : undefined}
      style=${{ height: `${height + 2}px`, "--word": `${Math.ceil(wordWidth)}px` }} onScroll=${(event) => setTop(event.currentTarget.scrollTop)}
      onKeyDown=${onKeyDown} onBlur=${() => setCursor(-1)} onMouseLeave=${() => onHover?.(null)}>
    <div class="lines-all" role="none" style=${{ height: `${items.length * ROW}px` }}>
      ${visible.map((k) => {
        const { id: use, line, heading, group, note } = items[k];
        const place = { transform: `translateY(${k * ROW}px)` };
        const mark = group === undefined || group === null ? null : html`<svg width="14" height="14" viewBox="-8 -8 16 16" aria-hidden="true"><path d=${groupShape(group, 5)} fill=${groupColor(group)} /></svg>`;
        if (heading !== undefined) return html`<div key=${k} class="line-heading" role="none" style=${place}>${mark}<span role="none">${heading}</span></div>`;
        const state = `${use === selected ? "is-selected" : ""} ${use === active ? "is-active" : ""} ${k === cursor ? "is-cursor" : ""}`;
        return html`<div key=${k} id=${`${id}-${k}`} class=${`line ${state}`} role="option" aria-selected=${String(use === selected)} data-use=${use}
            aria-setsize=${items.length} aria-posinset=${k + 1} style=${place} onMouseEnter=${() => onHover?.(use)} onClick=${() => {
              setCursor(k);
              onSelect?.(use);
            }}>
          <span class="line-mark">${mark}</span>
          <span class="line-before"><bdi>${tail(line.before)}</bdi></span>
          <span class="line-word"><bdi>${line.word}</bdi></span>
          <span class="line-after"><bdi>${head(line.after)}</bdi></span>
          ${hasNotes && html`<span class="line-note"><bdi>${note}</bdi></span>`}
        </div>`;
      })}
    </div>
  </div>`;
}

/** A choice between a few values: radio buttons that look like one control. */
export function Choice({ name, label, values, value, onChange }) {
  return html`<fieldset class="choice"><legend class="hidden">${label}</legend>
    ${values.map(([key, text]) => html`<label key=${key}><input type="radio" name=${name} value=${key} checked=${key === value}
      onChange=${() => onChange(key)} /><span>${text}</span></label>`)}</fieldset>`;
}

/** The chosen use in full, with buttons as children. */
export function ChosenUse({ line, details, children }) {
  return html`<div class="chosen"><p class="chosen-text" dir="auto">${line.before}<strong>${line.word}</strong>${line.after}</p>
    <p class="toolbar"><span class="note"><bdi>${details}</bdi></span>${children}</p></div>`;
}

const PIECES = /\p{Script=Han}|[^\s\p{Script=Han}]+/gu;

/** The order of lines: functions of lists of lines that return sorted copies. */
export const orders = {
  left: (lines) => sortBy(lines, "left"),
  right: (lines) => sortBy(lines, "right"),
};

const texts = new WeakMap(); // texts of lines that are computed once
const KEYS = {
  left: ({ before }) => (tail(before).match(PIECES) ?? []).slice(-20).reverse().join("\u0001").toLowerCase(),
  right: ({ after }) => (head(after).match(PIECES) ?? []).slice(0, 20).join("\u0001").toLowerCase(),
  lower: (line) => fullText(line).toLowerCase(),
};

/** Compute what sorting and filtering need while nothing else happens; returns a function that stops this. */
export function prepareLines(lines, { step = 250 } = {}) {
  let timer = 0, at = 0;
  const run = () => {
    for (const end = Math.min(lines.length, at + step); at < end; at++) for (const name of Object.keys(KEYS)) textOf(lines[at], name);
    if (at < lines.length) timer = setTimeout(run, 15);
  };
  timer = setTimeout(run, 200);
  return () => clearTimeout(timer);
}

function textOf(line, name) {
  let own = texts.get(line);
  if (!own) texts.set(line, (own = {}));
  return (own[name] ??= KEYS[name](line));
}

function sortBy(lines, name) {
  const pairs = lines.map((line, k) => [textOf(line, name), k]);
  pairs.sort((a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : a[1] - b[1]));
  return pairs.map(([, k]) => lines[k]);
}

/** Whether a line contains a text, in any case; `text` is in lower case. */
export function matches(line, text) {
  return !text || textOf(line, "lower").includes(text);
}
