// The charts of all views. Each chart is an SVG inside a Figure, which gives it a title, a table with the same
// content, and downloads (CSV, SVG, PNG). Marks that can be chosen are buttons for keyboard and screen reader: one
// of them is in the tab order, arrow keys move between them.
import { html, useMemo, useRef, useState } from "./vendor/preact.js";
import { colorScale, groupColor, groupShape, textOn } from "./colors.js";
import { saveFile, toCsv, toPng, toSvg } from "./export.js";
import { useMoving, usePage, useWidth } from "./hooks.js";

const TABLE_ROWS = 300;
const MAX_LABELS = 6; // a map with more points writes only the label of the selected one
let lastId = 0;

function useId(prefix) {
  const ref = useRef(null);
  ref.current ??= `${prefix}-${++lastId}`;
  return ref.current;
}

/**
 * A chart with its title, table and downloads.
 *
 * name: used in file names; title; note: a sentence under the title; table: () => {columns, rows, csv?}, where
 * columns are names, rows lists of cells in the displayed order, and csv an optional larger table for the file;
 * hasPicture: false if the children contain no <svg class="chart">; legend: shown under the chart.
 */
export function Figure({ name, title, note, table, hasPicture = true, legend, level = 2, children }) {
  const { t } = usePage();
  const [isTable, setTable] = useState(false);
  const [problem, setProblem] = useState("");
  const body = useRef(null);
  const id = useId("figure");
  const svg = () => body.current.querySelector("svg.chart");
  const save = (kind) => async () => {
    const content = table();
    setProblem("");
    if (kind === "csv") saveFile(`elmo-${name}.csv`, toCsv(content.csv ?? content), "text/csv");
    if (kind === "svg") saveFile(`elmo-${name}.svg`, toSvg(svg()), "image/svg+xml");
    if (kind === "png") {
      try {
        saveFile(`elmo-${name}.png`, await toPng(svg()), "image/png");
      } catch {
        setProblem(t("figure.failed"));
      }
    }
  };
  const tool = (kind) => html`<button type="button" class="tool" data-save=${kind}
    aria-label=${t(`figure.${kind}.of`, { title })} title=${t(`figure.${kind}.of`, { title })} onClick=${save(kind)}>${kind.toUpperCase()}</button>`;
  return html`<section class="figure" aria-labelledby=${id} data-figure=${name}>
    <div class="figure-head">
      <${`h${level}`} id=${id}>${title}</${`h${level}`}>
      <div class="tools" role="group" aria-label=${t("figure.tools", { title })}>
        <button type="button" class="tool" aria-pressed=${String(isTable)} data-table
          aria-label=${t("figure.table.of", { title })} onClick=${() => setTable(!isTable)}>${t("figure.table")}</button>
        ${tool("csv")}
        ${hasPicture && [tool("svg"), tool("png")]}
      </div>
    </div>
    ${note && html`<p class="note">${note}</p>`}
    ${problem && html`<p class="note" role="alert">${problem}</p>`}
    <div ref=${body} class="figure-body" hidden=${isTable}>${children}${legend}</div>
    ${isTable && html`<${Table} title=${title} ...${table()} />`}
  </section>`;
}

/** A table: columns (names) and rows (lists of text or numbers). */
export function Table({ title, columns, rows }) {
  const { t } = usePage();
  const isNumber = columns.map((_, k) => rows.length > 0 && rows.every((row) => typeof row[k] === "number" || row[k] === null));
  const cell = (value) => (typeof value === "number" && !Number.isInteger(value) ? Number(value.toPrecision(4)) : value);
  return html`<div class="table-scroll" tabindex="0" role="region" aria-label=${title}>
    <table>
      <caption class="hidden">${title}</caption>
      <thead><tr>${columns.map((name, k) => html`<th key=${k} scope="col" class=${isNumber[k] ? "number" : ""}>${name}</th>`)}</tr></thead>
      <tbody>${rows.slice(0, TABLE_ROWS).map((row, i) => html`<tr key=${i}>${row.map((value, k) => (k === 0
        ? html`<th key=${k} scope="row" dir="auto">${cell(value)}</th>`
        : html`<td key=${k} dir="auto" class=${isNumber[k] ? "number" : ""}>${cell(value)}</td>`))}</tr>`)}</tbody>
    </table>
    ${rows.length > TABLE_ROWS && html`<p class="note">${t("figure.more", { shown: TABLE_ROWS, total: rows.length })}</p>`}
  </div>`;
}

/** Keyboard and pointer behavior of marks in a chart: the props of mark k. */
function useMarks(ids, { selected, onSelect, step }) {
  const group = useRef(null);
  const [focused, setFocused] = useState(null);
  const entry = ids.includes(focused) ? focused : ids.includes(selected) ? selected : ids[0];
  const onKeyDown = (event, id) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      onSelect?.(id);
      return;
    }
    const next = step(id, event.key);
    if (next === null || next === undefined) return;
    event.preventDefault();
    setFocused(next);
    group.current?.querySelector(`[data-mark="${CSS.escape(String(next))}"]`)?.focus();
  };
  const markProps = (id) => ({
    "data-mark": id,
    role: "button",
    tabindex: id === entry ? 0 : -1,
    "aria-pressed": String(id === selected),
    onClick: () => onSelect?.(id),
    onKeyDown: (event) => onKeyDown(event, id),
    onFocus: () => setFocused(id),
  });
  return [group, markProps];
}

/** The mark that is nearest in the direction of an arrow key. */
function nearestInDirection(points, from, key) {
  const direction = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[key];
  if (!direction) return { Home: points[0]?.id, End: points.at(-1)?.id }[key] ?? null;
  let best = null, bestCost = Infinity;
  for (const point of points) {
    const dx = point.px - from.px, dy = point.py - from.py;
    const along = dx * direction[0] + dy * direction[1];
    const across = Math.abs(dx * direction[1]) + Math.abs(dy * direction[0]);
    if (point.id === from.id || along <= 0.5) continue;
    const cost = along + 2.5 * across;
    if (cost < bestCost) [best, bestCost] = [point.id, cost];
  }
  if (best !== null) return best;
  const at = points.findIndex(({ id }) => id === from.id); // points in one place: take the next one in order
  const step = direction[0] + direction[1];
  return points[(at + step + points.length) % points.length]?.id ?? null;
}

/**
 * A map: one mark per item. Positions keep their proportions.
 *
 * points: [{id, x, y, group, short, label, title}]: `short` is written on the mark, `label` next to it (if there is room),
 * `title` is read by screen readers; links: [[id, id]]; bounds: {x: [low, high], y: [low, high]} of the positions to
 * make room for (default: of the points); selected, onSelect(id), onHover(id | null); radius; height: the largest
 * height (a flat map is lower); description: what the map shows.
 */
export function ScatterMap({ points, links = [], bounds, selected, onSelect, onHover, radius = 11, height: maxHeight = 340, description }) {
  const [box, width] = useWidth();
  const id = useId("map");
  const { x: [x0, x1], y: [y0, y1] } = bounds ?? boundsOf(points.map(({ x, y }) => [x, y]));
  const hasLabels = width >= 420 && points.length <= MAX_LABELS && points.some(({ label }) => label);
  const marginX = hasLabels ? Math.min(150, width * 0.26) : radius + 12, marginY = radius + 14;
  const fit = (size, margin, low, high) => (size - 2 * margin) / Math.max(1e-9, high - low);
  const scale = Math.min(fit(width, marginX, x0, x1), fit(maxHeight, marginY, y0, y1));
  const height = Math.round(Math.min(maxHeight, Math.max(150, (y1 - y0) * scale + 2 * marginY)));
  const place = ([x, y]) => [width / 2 + (x - (x0 + x1) / 2) * scale, height / 2 + (y - (y0 + y1) / 2) * scale];
  const targets = points.map(({ x, y }) => place([x, y]));
  const places = useMoving(targets, `${width}|${points.map(({ id }) => id).join("|")}`);
  const placed = points.map((point, k) => ({ ...point, px: places[k][0], py: places[k][1] }));
  const byId = new Map(placed.map((point) => [point.id, point]));
  const [group, markProps] = useMarks(points.map(({ id }) => id), {
    selected, onSelect, step: (id, key) => nearestInDirection(placed, byId.get(id), key),
  });
  const labels = placeLabels(hasLabels ? placed : placed.filter(({ id }) => id === selected), width, height, radius);
  return html`<div ref=${box} class="chart-box">
    <svg class="chart map" viewBox=${`0 0 ${width} ${height}`} height=${height} role="group" aria-labelledby=${id}>
      <title id=${id}>${description}</title>
      <g class="links">${links.map(([a, b]) => html`<line key=${`${a}-${b}`} x1=${byId.get(a).px} y1=${byId.get(a).py} x2=${byId.get(b).px} y2=${byId.get(b).py} />`)}</g>
      <g class="labels" aria-hidden="true">${labels.map((label) => html`<text key=${label.id} x=${label.x} y=${label.y} text-anchor=${label.anchor}>${label.text}</text>`)}</g>
      <g ref=${group}>${placed.map((point) => html`<g key=${point.id} class=${`mark ${point.id === selected ? "is-selected" : ""}`}
          transform=${`translate(${point.px.toFixed(2)},${point.py.toFixed(2)})`} aria-label=${point.title}
          onMouseEnter=${() => onHover?.(point.id)} onMouseLeave=${() => onHover?.(null)} ...${markProps(point.id)}>
        <circle class="halo" r=${radius + 5} data-screen-only />
        <path d=${groupShape(point.group ?? 0, radius)} fill=${groupColor(point.group ?? 0)} class="dot" />
        ${point.short && html`<text class="short" text-anchor="middle" dy="0.35em">${point.short}</text>`}
      </g>`)}</g>
    </svg>
  </div>`;
}

/** The smallest and the largest x and y of positions [[x, y], …]. */
export function boundsOf(positions) {
  const range = (k) => positions.reduce(([low, high], position) => [Math.min(low, position[k]), Math.max(high, position[k])], [Infinity, -Infinity]);
  return positions.length ? { x: range(0), y: range(1) } : { x: [0, 0], y: [0, 0] };
}

/** Labels next to their marks, moved up or down where they would overlap; one label for marks in the same place. */
function placeLabels(points, width, height, radius) {
  const labels = [];
  for (const point of points) {
    if (!point.label) continue;
    const same = labels.find(({ px, py }) => Math.hypot(px - point.px, py - point.py) < 2);
    if (same) {
      same.ids.push(point.short ?? point.id);
      same.text = same.ids.join(" · ");
      continue;
    }
    const isRight = point.px >= width / 2 - 1;
    const room = (isRight ? width - point.px : point.px) - radius - 10;
    const text = shorten(point.label, room);
    labels.push({ id: point.id, ids: [point.short ?? point.id], px: point.px, py: point.py, text, anchor: isRight ? "start" : "end",
      x: point.px + (isRight ? radius + 6 : -radius - 6), y: point.py + 4, width: textWidth(text) });
  }
  labels.sort((a, b) => a.y - b.y || a.x - b.x);
  for (let k = 0; k < labels.length; k++) {
    for (let j = 0; j < k; j++) {
      const a = labels[j], b = labels[k];
      const left = ({ anchor, x, width }) => (anchor === "start" ? x : x - width);
      const overlaps = left(a) < left(b) + b.width && left(b) < left(a) + a.width;
      if (overlaps && Math.abs(b.y - a.y) < 15) b.y = Math.min(height - 4, a.y + 15);
    }
  }
  return labels;
}

const measure = document.createElement("canvas").getContext("2d");

/** The width of a text in a chart, in pixels. */
export function textWidth(text, font = "13px system-ui, sans-serif") {
  measure.font = font;
  return measure.measureText(text).width;
}

/** A text that fits into a width, with … at the end. */
export function shorten(text, room, font) {
  if (textWidth(text, font) <= room) return text;
  const characters = [...text];
  while (characters.length && textWidth(`${characters.join("")}…`, font) > room) characters.pop();
  return characters.length ? `${characters.join("").trimEnd()}…` : "";
}

/**
 * A square matrix of values with labels.
 *
 * labels: [{short, title}]; values: rows of numbers; range: [low, high] of the colors; selected: [i, j] or null;
 * onSelect([i, j]); format(value); cellTitle(i, j): read by screen readers.
 */
export function MatrixChart({ labels, values, range, selected, onSelect, format, cellTitle, description }) {
  const { theme } = usePage();
  const [box, width] = useWidth();
  const id = useId("matrix");
  const n = labels.length;
  const margin = 30;
  const size = Math.max(14, Math.min(64, (width - margin - 4) / n));
  const height = margin + size * n + 4;
  const color = colorScale("amount", theme);
  const share = (value) => (range[1] > range[0] ? (value - range[0]) / (range[1] - range[0]) : 1);
  const ids = [];
  for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) if (i !== j) ids.push(`${i}-${j}`);
  const step = (id, key) => {
    const [i, j] = id.split("-").map(Number);
    const [di, dj] = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[key] ?? [0, 0];
    if (!di && !dj) return { Home: ids[0], End: ids.at(-1) }[key] ?? null;
    let [a, b] = [i + di, j + dj];
    if (a === b) [a, b] = [a + di, b + dj];
    return a >= 0 && b >= 0 && a < n && b < n ? `${a}-${b}` : null;
  };
  const [group, markProps] = useMarks(ids, {
    selected: selected ? `${selected[0]}-${selected[1]}` : null,
    onSelect: (id) => onSelect?.(id.split("-").map(Number)), step,
  });
  return html`<div ref=${box} class="chart-box">
    <svg class="chart matrix" viewBox=${`0 0 ${width} ${height}`} height=${height} role="group" aria-labelledby=${id}>
      <title id=${id}>${description}</title>
      <g class="axis" aria-hidden="true">
        ${labels.map(({ short }, k) => html`<text key=${`c${k}`} x=${margin + size * (k + 0.5)} y=${margin - 9} text-anchor="middle">${short}</text>`)}
        ${labels.map(({ short }, k) => html`<text key=${`r${k}`} x=${margin - 9} y=${margin + size * (k + 0.5)} dy="0.35em" text-anchor="end">${short}</text>`)}
      </g>
      <g ref=${group}>${values.map((row, i) => row.map((value, j) => {
        const fill = color(share(value));
        const x = margin + size * j, y = margin + size * i;
        const isSelected = selected && ((selected[0] === i && selected[1] === j) || (selected[0] === j && selected[1] === i));
        if (i === j) return html`<rect key=${`${i}-${j}`} class="self" x=${x + 1} y=${y + 1} width=${size - 2} height=${size - 2} rx="3" />`;
        return html`<g key=${`${i}-${j}`} class=${`mark cell ${isSelected ? "is-selected" : ""}`} aria-label=${cellTitle(i, j)} ...${markProps(`${i}-${j}`)}>
          <rect x=${x + 1} y=${y + 1} width=${size - 2} height=${size - 2} rx="3" fill=${fill} />
          ${size >= 30 && html`<text x=${x + size / 2} y=${y + size / 2} dy="0.35em" text-anchor="middle" fill=${textOn(fill)}>${format(value)}</text>`}
        </g>`;
      }))}</g>
    </svg>
  </div>`;
}

/**
 * Horizontal bars.
 *
 * items: [{label, value, note, isActual, gap}]: `note` is written after the bar (default: format(value)), an actual
 * word is emphasized, `gap` leaves space above; max: the value of a full bar; onSelect(k) makes the bars buttons.
 */
export function BarChart({ items, max, format, description, onSelect, rowHeight = 24 }) {
  const [box, width] = useWidth(320);
  const id = useId("bars");
  const font = "14px system-ui, sans-serif";
  const labelWidth = Math.min(width * 0.42, Math.max(48, ...items.map(({ label }) => textWidth(label, font) + 14)));
  const room = Math.max(20, width - labelWidth - 62);
  let y = 0;
  const rows = items.map((item) => {
    y += item.gap ? 12 : 0;
    const row = { ...item, y };
    y += rowHeight;
    return row;
  });
  const [group, markProps] = useMarks(items.map((_, k) => k), {
    onSelect, step: (k, key) => ({ ArrowDown: Math.min(items.length - 1, k + 1), ArrowUp: Math.max(0, k - 1), Home: 0, End: items.length - 1 })[key] ?? null,
  });
  return html`<div ref=${box} class="chart-box">
    <svg class="chart bars" viewBox=${`0 0 ${width} ${y + 2}`} height=${y + 2} role=${onSelect ? "group" : "img"} aria-labelledby=${id}>
      <title id=${id}>${description}</title>
      <g ref=${group}>${rows.map((row, k) => html`<g key=${k} class=${`bar ${row.isActual ? "is-actual" : ""} ${onSelect ? "mark" : ""}`}
          ...${onSelect ? { ...markProps(k), "aria-label": `${row.label} ${row.note ?? format(row.value)}` } : {}}>
        ${onSelect && html`<rect class="hit" x="0" y=${row.y} width=${width} height=${rowHeight} data-screen-only />`}
        ${row.gap && html`<line class="rule" x1="0" x2=${width} y1=${row.y - 6} y2=${row.y - 6} />`}
        <text class="bar-label" x="0" y=${row.y + rowHeight / 2} dy="0.35em">${shorten(row.label, labelWidth - 10, font)}</text>
        <rect class="fill" x=${labelWidth} y=${row.y + 4} height=${rowHeight - 8} rx="2" width=${Math.max(1, (room * Math.min(row.value, max)) / max)} />
        <text class="bar-note" x=${labelWidth + Math.max(1, (room * Math.min(row.value, max)) / max) + 6} y=${row.y + rowHeight / 2} dy="0.35em">${row.note ?? format(row.value)}</text>
      </g>`)}</g>
    </svg>
  </div>`;
}

/**
 * A heat map: one row per label, one column per number.
 *
 * rows: [{id, label}]; values: Float32Array (or list) in row order with `columns` numbers per row; scale: "diverging"
 * (−limit..limit) or "amount" (0..limit); splits: [{at, label}] are headings over groups of columns; selected,
 * onSelect(id); describeCell(row, column, value): shown for the cell under the pointer.
 */
export function HeatMap({ rows, columns, values, limit, scale = "diverging", splits = [], selected, onSelect, describeCell, description, rowHeight = 18 }) {
  const { theme } = usePage();
  const [box, width] = useWidth();
  const [readout, setReadout] = useState("");
  const id = useId("heat");
  const font = "13px system-ui, sans-serif";
  const labelWidth = Math.min(width * 0.3, Math.max(40, ...rows.map(({ label }) => textWidth(label, font) + 14)));
  const top = splits.length ? 20 : 2, plot = width - labelWidth;
  const height = top + rows.length * rowHeight + 2;
  const picture = useMemo(() => paint(values, rows.length, columns, limit, colorScale(scale, theme)), [values, columns, limit, theme]);
  const [group, markProps] = useMarks(rows.map(({ id }) => id), {
    selected, onSelect,
    step: (id, key) => {
      const at = rows.findIndex((row) => row.id === id);
      const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[key];
      return rows[next]?.id ?? null;
    },
  });
  const onMove = (event) => {
    const frame = event.currentTarget.getBoundingClientRect();
    const column = Math.floor(((event.clientX - frame.left - labelWidth) / plot) * columns);
    const row = Math.floor((event.clientY - frame.top - top) / rowHeight);
    const inside = column >= 0 && column < columns && row >= 0 && row < rows.length;
    setReadout(inside ? describeCell(row, column, values[row * columns + column]) : "");
  };
  return html`<div ref=${box} class="chart-box">
    <svg class="chart heat" viewBox=${`0 0 ${width} ${height}`} height=${height} role="group" aria-labelledby=${id}
        onMouseMove=${describeCell && onMove} onMouseLeave=${() => setReadout("")}>
      <title id=${id}>${description}</title>
      ${splits.map(({ at, label }) => html`<text key=${at} class="split" x=${labelWidth + (plot * at) / columns} y="13" aria-hidden="true">${label}</text>`)}
      <image href=${picture} x=${labelWidth} y=${top} width=${plot} height=${rows.length * rowHeight} preserveAspectRatio="none" class="pixels" />
      ${splits.filter(({ at }) => at > 0).map(({ at }) => html`<line key=${at} class="split-line" x1=${labelWidth + (plot * at) / columns} x2=${labelWidth + (plot * at) / columns} y1=${top} y2=${height - 2} />`)}
      <g ref=${group}>${rows.map((row, k) => html`<g key=${row.id} class=${`mark row ${row.id === selected ? "is-selected" : ""}`} aria-label=${row.title ?? row.label} ...${onSelect ? markProps(row.id) : { role: "img" }}>
        <rect class="hit" x="0.5" y=${top + k * rowHeight + 0.5} width=${width - 1} height=${rowHeight - 1} />
        <text x="4" y=${top + (k + 0.5) * rowHeight} dy="0.35em">${shorten(row.label, labelWidth - 10, font)}</text>
      </g>`)}</g>
    </svg>
    ${describeCell && html`<p class="readout" aria-hidden="true">${readout || "\u00a0"}</p>`}
  </div>`;
}

/** One pixel per number, as the address of an image. */
function paint(values, height, width, limit, color) {
  const canvas = Object.assign(document.createElement("canvas"), { width: Math.max(1, width), height: Math.max(1, height) });
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const steps = Array.from({ length: 257 }, (_, k) => color((k - 128) / 128).match(/\d+/g).map(Number));
  for (let k = 0; k < width * height; k++) {
    const share = Math.max(-1, Math.min(1, values[k] / limit)) || 0;
    const [r, g, b] = steps[Math.round(share * 128) + 128];
    image.data.set([r, g, b, 255], 4 * k);
  }
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

/** The legend of a color scale; low and high are texts at its ends. */
export function ScaleLegend({ scale, low, high, middle }) {
  const { theme } = usePage();
  const color = colorScale(scale, theme);
  const shares = Array.from({ length: 13 }, (_, k) => (scale === "diverging" ? k / 6 - 1 : k / 12));
  return html`<p class="scale-legend"><span>${low}</span>
    <span class="ramp" aria-hidden="true">${shares.map((share, k) => html`<i key=${k} style=${{ background: color(share) }}></i>`)}</span>
    ${middle && html`<span class="middle">${middle}</span>`}<span>${high}</span></p>`;
}

/** A legend of categories: [{group, label}]. */
export function GroupLegend({ items }) {
  return html`<ul class="group-legend">${items.map(({ group, label }) => html`<li key=${group}>
    <svg width="16" height="16" viewBox="-8 -8 16 16" aria-hidden="true"><path d=${groupShape(group, 5.5)} fill=${groupColor(group)} /></svg>${label}</li>`)}</ul>`;
}

/** The slider over layers: "0", "1", …, "average". */
export function LayerSlider({ nLayers, value, onChange }) {
  const { t } = usePage();
  const names = [...Array.from({ length: nLayers }, (_, k) => String(k)), "average"];
  const at = Math.max(0, names.indexOf(value));
  const describe = (name) => (name === "average" ? t("layer.average") : name === "0" ? t("layer.0") : t("layer.name", { n: name }));
  const id = useId("layer");
  return html`<div class="layer-slider">
    <label for=${id}>${t("layer.label")}</label>
    <input id=${id} type="range" min="0" max=${names.length - 1} step="1" value=${at} aria-valuetext=${describe(names[at])}
      onInput=${(event) => onChange(names[Number(event.target.value)])} />
    <output for=${id}>${describe(names[at])}</output>
  </div>`;
}
