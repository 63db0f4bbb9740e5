// Inside: the network step by step, with the numbers of a typed sentence: characters, convolutions, highways, the
// vector of a word, the states of both LSTMs, and the mix of the layers.
import { html, useMemo, useRef, useState } from "../vendor/preact.js";
import { layerVector } from "../api.js";
import { BarChart, Figure, HeatMap, ScaleLegend } from "../charts.js";
import { colorScale, textOn } from "../colors.js";
import { usePage, useRequest } from "../hooks.js";
import { addTexts, describeError } from "../i18n.js";
import { cosine, meanVector } from "../math.js";
import { Choice } from "./uses.js";

const MAX_CHARACTERS = 1000;
const MAX_TOKENS = 60; // rows of a heat map
const N_FILTERS = 10;
const STEPS = ["characters", "filters", "highway", "vector", "states", "mix"];
const EXAMPLES = {
  zh: { text: "苹果发布了新手机。", token: 0, other: "他每天早上吃一个苹果。" },
  other: { text: "I sat by the bank of the river.", token: 4, other: "She opened an account at the bank." },
};

addTexts({
  "inside.intro": [
    "Follow one word through the network, from its letters to its vector in context. All numbers are those of your sentence.",
    "跟随一个词走完整个网络：从字符到带有语境的向量。所有数字都来自你输入的句子。",
  ],
  "inside.label": ["Sentence", "句子"],
  "inside.example": ["Example", "示例"],
  "inside.choose": ["Follow the word", "跟随的词"],
  "inside.word": ["{token}, word {n}", "{token}，第 {n} 个词"],
  "inside.empty": ["Type a sentence.", "请输入一个句子。"],
  "inside.too.long": ["The text has {n} characters; this view reads one sentence of up to {max}.", "文本有 {n} 个字符；此视图只处理不超过 {max} 个字符的一个句子。"],
  "inside.too.many": ["The sentence has {n} words; the first {max} are shown.", "句子有 {n} 个词，只显示前 {max} 个。"],
  "inside.steps": ["Steps of the network", "网络的各个步骤"],
  "inside.step.characters": ["Characters", "字符"],
  "inside.step.filters": ["Convolutions", "卷积"],
  "inside.step.highway": ["Highway", "高速层"],
  "inside.step.vector": ["Word vector", "词向量"],
  "inside.step.states": ["LSTM states", "LSTM 状态"],
  "inside.step.mix": ["Mix", "加权"],
  "inside.size.characters": ["{n} ids", "{n} 个编号"],
  "inside.size.filters": ["{n} filters", "{n} 个卷积核"],
  "inside.size.highway": ["layers: {n}", "{n} 层"],
  "inside.size.vector": ["{n} numbers", "{n} 个数"],
  "inside.size.states": ["{n} layers × 2 directions", "{n} 层 × 2 个方向"],
  "inside.size.mix": ["{n} numbers", "{n} 个数"],
  "inside.none": ["This model has no character network: it looks up the vector of each word in a table.", "此模型没有字符网络，而是从词表中直接查出每个词的向量。"],
  "inside.characters.text": [
    "ELMo spells every word, so no word is unknown to it. The word becomes a row of ids with a mark at its start and its end, filled up to a fixed length. A letter of English is one byte and has one id; a Chinese character has three.",
    "ELMo 把每个词拆成字符，因此没有“未登录词”。一个词变成一行编号，首尾各加一个标记，再补齐到固定长度。英文字母占一个字节，对应一个编号；汉字占三个字节，对应三个编号。",
  ],
  "inside.characters.title": ["The characters of “{token}”", "“{token}”的字符"],
  "inside.start": ["start", "词首"],
  "inside.end": ["end", "词尾"],
  "inside.padding": ["filler × {n}", "补齐 × {n}"],
  "inside.filters.text": [
    "A filter looks for a pattern in a window of a few ids and slides over the word. Only its strongest response is kept, wherever it was found: the maximum. Short windows see letters, long windows see prefixes, endings and whole words.",
    "卷积核在几个编号宽的窗口里寻找某种模式，并沿着词滑动。只保留响应最强的一处，即最大值，与位置无关。窄窗口看到单个字符，宽窗口看到前缀、词尾乃至整个词。",
  ],
  "inside.filters.width": ["Width of the window", "窗口宽度"],
  "inside.filters.where": ["Where filters of width {n} respond most", "宽度为 {n} 的卷积核在哪里响应最强"],
  "inside.filters.where.note": ["The stronger the color, the more filters have their maximum there. The outline shows the window of one filter.", "颜色越深，在此处取得最大值的卷积核越多；线框是某一个卷积核的窗口。"],
  "inside.filters.title": ["Strongest filters of width {n}", "宽度为 {n} 的卷积核中响应最强的"],
  "inside.filters.note": ["Point at a bar, or choose it, to see its window in the word.", "指向或选中一条，可以看到它在词中的窗口。"],
  "inside.filters.summary": ["{n} filters", "共 {n} 个卷积核"],
  "inside.filter": ["{window} · no. {n}", "{window} · {n} 号"],
  "inside.highway.text": [
    "A highway layer changes some of these numbers and lets others pass as they are; a gate decides for each of them. It can combine patterns, such as a stem and an ending. The rows show the same numbers before and after.",
    "高速层（highway）会改变其中一部分数，另一部分原样通过，由“门”逐个决定。它可以把几种模式组合起来，例如词干和词尾。各行是处理前后的同一组数。",
  ],
  "inside.highway.title": ["Before and after the highway layers", "经过高速层前后"],
  "inside.highway.before": ["before", "之前"],
  "inside.highway.after": ["after {n}", "第 {n} 层之后"],
  "inside.highway.passed": ["{share} of the numbers changed by less than 0.1 in highway layer {n}.", "第 {n} 个高速层中，{share} 的数变化小于 0.1。"],
  "inside.vector.text": [
    "A projection makes the result smaller: this is layer 0, the vector of the word alone. It has not seen the sentence yet, so “{token}” has the same vector in every sentence. Both language models start from it.",
    "再经过一次投影，向量变短：这就是第 0 层，只代表词本身。它还没有看到句子，所以“{token}”在任何句子里都是同一个向量。两个语言模型都从它开始。",
  ],
  "inside.vector.title": ["The vector of “{token}” without context", "“{token}”不含语境的向量"],
  "inside.states.text": [
    "The forward LSTM reads from the left and carries what it has read from word to word; the backward LSTM reads from the right. Each row is a word, so the left half of a row knows everything before the word, and the right half everything after it. The second layer reads the states of the first.",
    "正向 LSTM 从左往右读，把读过的内容一词一词地传下去；反向 LSTM 从右往左读。每行是一个词：左半部分包含该词之前的内容，右半部分包含之后的内容。第二层读取第一层的状态。",
  ],
  "inside.layer": ["Layer {n}", "第 {n} 层"],
  "inside.forward": ["forward →", "正向 →"],
  "inside.backward": ["← backward", "← 反向"],
  "inside.mix.text": [
    "A task does not have to choose a layer: it learns how much of each to take. The weights s are made positive and add up to 1 (softmax), and γ scales the result. Move the sliders and watch the similarity to another word change; γ changes the length of the vector, but no similarity.",
    "下游任务不必只选一层，而是学习各层各取多少。权重 s 经 softmax 变为正数且总和为 1，γ 调整整体大小。移动滑块，观察与另一个词的相似度如何变化；γ 只改变向量长度，不改变相似度。",
  ],
  "inside.mix.weights": ["Weights", "权重"],
  "inside.mix.weight": ["s{n}: layer {n}", "s{n}：第 {n} 层"],
  "inside.mix.gamma": ["γ: scale", "γ：缩放"],
  "inside.mix.share": ["{share} (slider {value})", "{share}（滑块 {value}）"],
  "inside.mix.reset": ["Reset", "重置"],
  "inside.mix.title": ["Layers of “{token}” and their mix", "“{token}”的各层与加权结果"],
  "inside.mix.row": ["mix", "加权"],
  "inside.mix.length": ["Length of the mixed vector: {value}", "加权向量的长度：{value}"],
  "inside.mix.other": ["Compare with a word of", "与下面句子中的词比较"],
  "inside.mix.other.words": ["Words to compare with", "可比较的词"],
  "inside.mix.cosines": ["Similarity of “{a}” and “{b}”", "“{a}”与“{b}”的相似度"],
  "inside.mix.sentences": ["mix, whole sentences", "加权，整句"],
  "inside.cell": ["{row}, number {n}: {value}", "{row}，第 {n} 个数：{value}"],
  "inside.column.character": ["character", "字符"],
  "inside.column.ids": ["ids", "编号"],
  "inside.column.bytes": ["bytes", "字节"],
  "inside.column.filter": ["filter", "卷积核"],
  "inside.column.width": ["width", "宽度"],
  "inside.column.maximum": ["maximum", "最大值"],
  "inside.column.position": ["position", "位置"],
  "inside.column.window": ["window", "窗口"],
  "inside.column.share": ["filters", "卷积核数"],
  "inside.column.number": ["number", "序号"],
  "inside.column.value": ["value", "值"],
  "inside.column.word": ["word", "词"],
  "inside.column.length": ["length", "长度"],
  "inside.column.length.forward": ["length, forward half", "正向部分长度"],
  "inside.column.length.backward": ["length, backward half", "反向部分长度"],
  "inside.column.cosine": ["cosine", "余弦"],
});

const count = (n) => n.toLocaleString("en-US");
const norm = (vector) => Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
const signed = (value) => value.toFixed(2).replace("-", "−");
const toHex = (character) => [...new TextEncoder().encode(character)].map((byte) => byte.toString(16).padStart(2, "0").toUpperCase());

/** The value that is larger than almost all others, for the ends of a color scale. */
function limitOf(values) {
  const sorted = Float32Array.from(values, Math.abs).sort();
  return Math.max(1e-6, sorted[Math.floor((sorted.length - 1) * 0.98)]);
}

function softmax(weights) {
  const high = Math.max(...weights);
  const values = weights.map((weight) => Math.exp(weight - high));
  const sum = values.reduce((a, b) => a + b, 0);
  return values.map((value) => value / sum);
}

function View({ state, update, api, model, t }) {
  const text = state.text.replace(/[\r\n]+/g, " ");
  const isTooLong = text.length > MAX_CHARACTERS;
  const first = useRef(true);
  const delay = first.current ? 0 : 40;
  const key = text.trim() && !isTooLong ? JSON.stringify([model.id, text, Math.round(state.token)]) : null;
  first.current = key === null;
  const request = useRequest(key, async (signal) => {
    try {
      return await api.inside({ model: model.id, input: text, token: Math.max(0, Math.round(state.token)), signal });
    } catch (error) {
      if (error.status === 400 && state.token > 0) return api.inside({ model: model.id, input: text, token: 0, signal }); // the sentence became shorter
      throw error;
    }
  }, { delay });
  const inside = request.value;
  const example = EXAMPLES[model.tokenizer === "zh" ? "zh" : "other"];
  return html`<div class="inside stack" data-state=${request.isStale ? "busy" : "ready"}>
    <p class="intro">${t("inside.intro")}</p>
    <div class="card editor">
      <div class="editor-head"><label for="sentence">${t("inside.label")}</label>
        <span class="examples"><button type="button" class="quiet" onClick=${() => update(example)}>${t("inside.example")}</button></span></div>
      <textarea id="sentence" rows="1" dir="auto" spellcheck="false" value=${state.text} onInput=${(event) => update({ text: event.target.value })}></textarea>
      ${inside && html`<div class="follow"><span class="note" id="follow">${t("inside.choose")}</span>
        <${Words} tokens=${inside.tokens} token=${inside.token} labelledby="follow" onSelect=${(token) => update({ token })} t=${t} /></div>`}
    </div>
    ${isTooLong && html`<p class="message" role="status">${t("inside.too.long", { n: count(text.length), max: count(MAX_CHARACTERS) })}</p>`}
    ${!text.trim() && html`<p class="message">${t("inside.empty")}</p>`}
    ${request.error && html`<p class="message error" role="alert">${describeError(request.error, t)}</p>`}
    ${inside?.tokens.length > MAX_TOKENS && html`<p class="message" role="status">${t("inside.too.many", { n: inside.tokens.length, max: MAX_TOKENS })}</p>`}
    ${inside && html`<${Network} ...${{ inside, state, update, api, model, t }} />`}
  </div>`;
}

/** Words as buttons with one tab stop. */
function Words({ tokens, token, onSelect, labelledby, label, t }) {
  const onKeyDown = (event) => {
    const at = Number(event.target.dataset.token); // not `token`, which can wait for the network
    const last = Math.min(tokens.length, MAX_TOKENS) - 1;
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last }[event.key];
    if (next === undefined || next < 0 || next > last) return;
    event.preventDefault();
    onSelect(next);
    event.currentTarget.querySelector(`[data-token="${next}"]`).focus();
  };
  return html`<div class="inside-words" role="group" dir="auto" aria-labelledby=${labelledby} aria-label=${label} onKeyDown=${onKeyDown}>
    ${tokens.slice(0, MAX_TOKENS).map((name, k) => html`<button key=${k} type="button" class=${`word ${k === token ? "is-target" : ""}`} data-token=${k}
      aria-label=${t("inside.word", { token: name, n: k + 1 })} aria-pressed=${String(k === token)} tabindex=${k === token ? 0 : -1} onClick=${() => onSelect(k)}><bdi>${name}</bdi></button>${" "}`)}</div>`;
}

/** All steps, with an overview that leads to each of them. */
function Network({ inside, state, update, api, model, t }) {
  const name = inside.tokens[inside.token];
  const hasCharacters = inside.filters.length > 0;
  const nLayers = inside.layers.length, width = inside.layers[0][0].length;
  const sizes = {
    characters: inside.characters.reduce((sum, { ids }) => sum + ids.length, 0),
    filters: count(inside.filters.reduce((sum, { values }) => sum + values.length, 0)),
    highway: Math.max(0, inside.highways.length - 1), vector: inside.token_vector.length, states: nLayers - 1, mix: width,
  };
  const steps = hasCharacters ? STEPS : STEPS.slice(3);
  const step = (id, content) => html`<section class="card step" aria-labelledby=${`step-${id}`}>
    <h2 id=${`step-${id}`} tabindex="-1"><span class="step-number">${steps.indexOf(id) + 1}</span>${t(`inside.step.${id}`)}</h2>
    <p class="step-text">${t(`inside.${id}.text`, { token: name })}</p>${content}</section>`;
  return html`
    <nav class="pipeline" aria-label=${t("inside.steps")}><ol>${steps.map((id, k) => html`<li key=${id}><button type="button" data-step=${id} onClick=${() => {
      const heading = document.getElementById(`step-${id}`);
      heading.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
      heading.focus({ preventScroll: true });
    }}><b>${k + 1} ${t(`inside.step.${id}`)}</b><small>${t(`inside.size.${id}`, { n: sizes[id] })}</small></button></li>`)}</ol></nav>
    ${!hasCharacters && html`<p class="message">${t("inside.none")}</p>`}
    ${hasCharacters && step("characters", html`<${Characters} ...${{ inside, name, t }} />`)}
    ${hasCharacters && step("filters", html`<${Filters} ...${{ inside, state, update, t }} />`)}
    ${hasCharacters && step("highway", html`<${Highway} ...${{ inside, t }} />`)}
    ${step("vector", html`<${WordVector} ...${{ inside, name, t }} />`)}
    ${step("states", html`<${States} ...${{ inside, update, t }} />`)}
    ${step("mix", html`<${Mix} ...${{ inside, state, update, api, model, name, t }} />`)}`;
}

// --- Characters and convolutions ---------------------------------------------------------------------

/** How a character is written: special ones have names. */
function characterName({ character, ids }, t) {
  if (character === "<bow>") return t("inside.start");
  if (character === "<eow>") return t("inside.end");
  if (character === "<pad>") return t("inside.padding", { n: ids.length });
  return character === " " ? "␣" : character;
}

const isSpecial = ({ character }) => character.length > 2 && character.startsWith("<");

function bytesOf({ character, ids }) {
  const bytes = toHex(character);
  return bytes.length === ids.length ? bytes.join(" ") : "";
}

function Characters({ inside, name, t }) {
  const table = () => ({
    columns: ["character", "ids", "bytes"].map((column) => t(`inside.column.${column}`)),
    rows: inside.characters.map((item) => [characterName(item, t), item.character === "<pad>" ? `${item.ids[0]} …` : item.ids.join(" "), isSpecial(item) ? "" : bytesOf(item)]),
  });
  return html`<${Figure} name="inside-characters" level=${3} title=${t("inside.characters.title", { token: name })} hasPicture=${false} table=${table}>
    <ol class="characters">${inside.characters.map((item, k) => html`<li key=${k} class=${isSpecial(item) ? "is-special" : ""}>
      <span class="character"><bdi>${characterName(item, t)}</bdi></span>
      <span class="ids">${item.character === "<pad>" ? item.ids[0] : item.ids.join(" ")}</span>
      ${!isSpecial(item) && bytesOf(item) && html`<span class="bytes">${bytesOf(item)}</span>`}</li>`)}</ol>
  </${Figure}>`;
}

function Filters({ inside, state, update, t }) {
  const { theme } = usePage();
  const [hovered, setHovered] = useState(null);
  const { filters, characters } = inside;
  const group = filters.find(({ width }) => width === state.width) ?? filters[Math.min(2, filters.length - 1)];
  const { width, values, positions } = group;
  const owner = useMemo(() => characters.flatMap(({ ids }, k) => ids.map(() => k)), [characters]); // the character of each id
  const windowOf = (filter) => [...new Set(owner.slice(positions[filter], positions[filter] + width))];
  const windowText = (filter) => windowOf(filter).map((k) => ({ "<bow>": "⟨", "<eow>": "⟩", "<pad>": "·" })[characters[k].character] ?? characterName(characters[k], t)).join("");
  const order = useMemo(() => values.map((_, k) => k).sort((a, b) => values[b] - values[a] || a - b), [values]);
  const shares = useMemo(() => {
    const totals = characters.map(() => 0);
    values.forEach((_, filter) => windowOf(filter).forEach((k) => totals[k]++));
    return totals;
  }, [group]);
  const top = order.slice(0, N_FILTERS);
  const shown = hovered ?? (state.filter >= 0 && state.filter < values.length ? state.filter : top[0]);
  const isInside = new Set(windowOf(shown));
  const scale = colorScale("amount", theme);
  const most = Math.max(1, ...shares);
  const find = (event) => {
    const mark = event.target.closest?.("[data-mark]");
    setHovered(mark ? top[Number(mark.dataset.mark)] : null);
  };
  return html`<div class="stack">
    <div class="toolbar"><${Choice} name="width" label=${t("inside.filters.width")} value=${String(width)} values=${filters.map((item) => [String(item.width), String(item.width)])}
      onChange=${(value) => update({ width: Number(value), filter: -1 })} /><span class="note">${t("inside.filters.width")} · ${t("inside.filters.summary", { n: values.length })}</span></div>
    <div class="filter-columns">
      <${Figure} name="inside-windows" level=${3} title=${t("inside.filters.where", { n: width })} note=${t("inside.filters.where.note")} hasPicture=${false}
        table=${() => ({ columns: ["character", "share"].map((column) => t(`inside.column.${column}`)), rows: characters.map((item, k) => [characterName(item, t), shares[k]]) })}>
        <ol class="characters windows">${characters.map((item, k) => {
          const background = scale((0.85 * shares[k]) / most);
          return html`<li key=${k} class=${`${isSpecial(item) ? "is-special" : ""} ${isInside.has(k) ? "is-window" : ""}`} style=${{ background, color: textOn(background) }}>
            <span class="character"><bdi>${characterName(item, t)}</bdi></span><span class="ids">${shares[k]}</span></li>`;
        })}</ol>
      </${Figure}>
      <${Figure} name="inside-filters" level=${3} title=${t("inside.filters.title", { n: width })} note=${t("inside.filters.note")}
        table=${() => ({
          columns: ["filter", "width", "maximum", "position", "window"].map((column) => t(`inside.column.${column}`)),
          rows: order.map((k) => [k, width, values[k], positions[k], windowText(k)]),
          csv: { columns: ["filter", "width", "maximum", "position"].map((column) => t(`inside.column.${column}`)), rows: filters.flatMap((item) => item.values.map((value, k) => [k, item.width, value, item.positions[k]])) },
        })}>
        <div onMouseOver=${find} onMouseLeave=${() => setHovered(null)} onFocusIn=${find} onFocusOut=${() => setHovered(null)}>
          <${BarChart} items=${top.map((k) => ({ label: t("inside.filter", { window: windowText(k), n: k }), value: values[k], isActual: k === shown }))} max=${Math.max(1e-6, values[order[0]])}
            format=${(value) => value.toFixed(2)} description=${t("inside.filters.title", { n: width })} onSelect=${(k) => update({ filter: top[k] })} />
        </div>
      </${Figure}>
    </div>
  </div>`;
}

// --- Highways and vectors -----------------------------------------------------------------------------

/** Rows of numbers as a heat map, with their numbers as a table. */
function Numbers({ name, title, rows, labels, selected, emphasis, t, rowHeight = 26 }) {
  const columns = rows[0].length;
  const values = useMemo(() => Float32Array.from(rows.flatMap((row) => [...row])), [rows]);
  const limit = useMemo(() => limitOf(values), [values]);
  return html`<${Figure} name=${name} level=${3} title=${title}
    table=${() => ({ columns: [t("inside.column.number"), ...labels], rows: Array.from({ length: columns }, (_, k) => [k, ...rows.map((row) => row[k])]) })}
    legend=${html`<${ScaleLegend} scale="diverging" low=${`−${limit.toFixed(2)}`} high=${limit.toFixed(2)} />`}>
    <${HeatMap} rows=${labels.map((label, k) => ({ id: k, label }))} columns=${columns} values=${values} limit=${limit} rowHeight=${rowHeight} selected=${selected} splits=${emphasis ?? []}
      describeCell=${(row, column, value) => t("inside.cell", { row: labels[row], n: column, value: signed(value) })} description=${title} />
  </${Figure}>`;
}

function Highway({ inside, t }) {
  const { highways } = inside;
  const labels = highways.map((_, k) => (k ? t("inside.highway.after", { n: k }) : t("inside.highway.before")));
  const passed = highways.slice(1).map((row, k) => row.filter((value, j) => Math.abs(value - highways[k][j]) < 0.1).length / row.length);
  return html`<div><${Numbers} name="inside-highway" title=${t("inside.highway.title")} rows=${highways} labels=${labels} t=${t} />
    <p class="note">${passed.map((share, k) => t("inside.highway.passed", { share: `${Math.round(100 * share)}%`, n: k + 1 })).join(" ")}</p></div>`;
}

function WordVector({ inside, name, t }) {
  const rows = useMemo(() => [inside.token_vector], [inside]);
  return html`<${Numbers} name="inside-vector" title=${t("inside.vector.title", { token: name })} rows=${rows} labels=${[name]} rowHeight=${30} t=${t} />`;
}

function States({ inside, update, t }) {
  const { layers, tokens, token } = inside;
  const shown = Math.min(tokens.length, MAX_TOKENS), width = layers[0][0].length, half = width / 2;
  const maps = useMemo(() => layers.slice(1).map((rows) => {
    const values = Float32Array.from(rows.slice(0, shown).flat());
    return { values, limit: limitOf(values) };
  }), [layers]);
  return html`<div class="stack">${maps.map(({ values, limit }, k) => {
    const row = (n) => layers[k + 1][n];
    return html`<${Figure} key=${k} name=${`inside-layer-${k + 1}`} level=${3} title=${t("inside.layer", { n: k + 1 })}
      table=${() => ({
        columns: ["word", "length", "length.forward", "length.backward"].map((column) => t(`inside.column.${column}`)),
        rows: tokens.slice(0, shown).map((name, n) => [name, norm(row(n)), norm(row(n).slice(0, half)), norm(row(n).slice(half))]),
        csv: { columns: [t("inside.column.word"), ...Array.from({ length: width }, (_, n) => n)], rows: tokens.map((name, n) => [name, ...row(n)]) },
      })}
      legend=${html`<${ScaleLegend} scale="diverging" low=${`−${limit.toFixed(2)}`} high=${limit.toFixed(2)} />`}>
      <${HeatMap} rows=${tokens.slice(0, shown).map((label, id) => ({ id, label }))} columns=${width} values=${values} limit=${limit} selected=${token} onSelect=${(token) => update({ token })}
        splits=${[{ at: 0, label: t("inside.forward") }, { at: half, label: t("inside.backward") }]}
        describeCell=${(n, column, value) => t("inside.cell", { row: tokens[n], n: column, value: signed(value) })} description=${t("inside.layer", { n: k + 1 })} />
    </${Figure}>`;
  })}</div>`;
}

// --- Mix ------------------------------------------------------------------------------------------------

function mixLayers(vectors, shares, gamma) {
  return Float32Array.from(vectors[0], (_, k) => gamma * vectors.reduce((sum, vector, layer) => sum + shares[layer] * vector[k], 0));
}

function Mix({ inside, state, update, api, model, name, t }) {
  const { layers, token, tokens } = inside;
  const n = layers.length;
  const weights = Array.from({ length: n }, (_, k) => Math.max(-5, Math.min(5, Number(state.s[k]) || 0)));
  const gamma = Math.max(0, Math.min(3, state.gamma));
  const shares = softmax(weights);
  const formula = shares.map((share, k) => `${share.toFixed(2)}·h${"₀₁₂₃₄₅₆₇₈₉"[k] ?? k}`).join(" + ");
  const vectors = layers.map((rows) => rows[token]);
  const mixed = useMemo(() => mixLayers(vectors, shares, gamma), [inside, state.s.join(), gamma]);
  const rows = useMemo(() => [...vectors, mixed], [mixed]);
  const labels = [...layers.map((_, k) => t("inside.layer", { n: k })), t("inside.mix.row")];
  const setWeight = (k, value) => update({ s: weights.map((weight, j) => String(j === k ? value : weight)) });
  return html`<div class="mix">
    <fieldset class="sliders"><legend class="hidden">${t("inside.mix.weights")}</legend>
      ${weights.map((weight, k) => html`<label key=${k}><span>${t("inside.mix.weight", { n: k })}</span>
        <input type="range" min="-5" max="5" step="0.5" data-weight=${k} value=${weight} aria-valuetext=${t("inside.mix.share", { share: shares[k].toFixed(2), value: weight })} onInput=${(event) => setWeight(k, Number(event.target.value))} />
        <output>${shares[k].toFixed(2)}</output></label>`)}
      <label><span>${t("inside.mix.gamma")}</span>
        <input type="range" min="0.1" max="3" step="0.1" data-gamma value=${gamma} onInput=${(event) => update({ gamma: Number(event.target.value) })} /><output>${gamma.toFixed(1)}</output></label>
      <p class="formula" aria-live="polite">ELMo = ${gamma.toFixed(1)} · (${formula})</p>
      <p><button type="button" class="quiet" onClick=${() => update({ s: weights.map(() => "0"), gamma: 1 })}>${t("inside.mix.reset")}</button></p>
    </fieldset>
    <div class="stack mix-result">
      <div><${Numbers} name="inside-mix" title=${t("inside.mix.title", { token: name })} rows=${rows} labels=${labels} t=${t}
        emphasis=${[{ at: 0, label: t("inside.forward") }, { at: mixed.length / 2, label: t("inside.backward") }]} selected=${n} />
        <p class="note" data-length>${t("inside.mix.length", { value: norm(mixed).toFixed(2) })}</p></div>
    </div>
    <${Comparison} ...${{ inside, state, update, api, model, name, mixed, shares, gamma, t }} />
  </div>`;
}

/** The similarity of the mixed vector to a word of another sentence. */
function Comparison({ inside, state, update, api, model, name, mixed, shares, gamma, t }) {
  const other = state.other.replace(/[\r\n]+/g, " ").slice(0, MAX_CHARACTERS);
  const request = useRequest(other.trim() ? JSON.stringify([model.id, other]) : null, async (signal) => {
    const reply = await api.words({ model: model.id, inputs: [other], layers: "all", signal });
    return reply.results[0];
  }, { delay: 60 });
  const words = request.value && !request.value.error && request.value.shape?.[0] === inside.layers.length ? request.value : null;
  const found = words ? words.tokens.findIndex((word) => word.toLowerCase() === name.toLowerCase()) : -1;
  const target = words ? (state.against >= 0 && state.against < words.tokens.length ? state.against : Math.max(0, found)) : 0;
  const items = useMemo(() => {
    if (!words) return [];
    const vectors = inside.layers.map((_, layer) => layerVector(words, layer, target));
    const sentence = (get, n) => mixLayers(inside.layers.map((_, layer) => meanVector(Array.from({ length: n }, (_, k) => get(layer, k)))), shares, gamma);
    const mine = sentence((layer, k) => inside.layers[layer][k], inside.tokens.length);
    const theirs = sentence((layer, k) => layerVector(words, layer, k), words.tokens.length);
    return [
      ...vectors.map((vector, layer) => ({ label: t("inside.layer", { n: layer }), value: cosine(inside.layers[layer][inside.token], vector) })),
      { label: t("inside.mix.row"), value: cosine(mixed, mixLayers(vectors, shares, gamma)), isActual: true },
      { label: t("inside.mix.sentences"), value: cosine(mine, theirs), gap: true },
    ];
  }, [words, target, mixed, t]);
  const problem = request.error ?? request.value?.error;
  return html`<div class="stack comparison" data-compare=${request.isStale && other.trim() ? "busy" : "ready"}>
    <label class="field"><span>${t("inside.mix.other")}</span>
      <input id="other" type="text" dir="auto" spellcheck="false" autocomplete="off" value=${state.other} onInput=${(event) => update({ other: event.target.value, against: -1 })} /></label>
    ${problem && html`<p class="message error" role="alert">${problem.status ? describeError(problem, t) : t("error.prefix", { message: problem.message })}</p>`}
    ${words && html`<${Words} tokens=${words.tokens} token=${target} label=${t("inside.mix.other.words")} onSelect=${(against) => update({ against })} t=${t} />
      <${Figure} name="inside-cosines" level=${3} title=${t("inside.mix.cosines", { a: name, b: words.tokens[target] })}
        table=${() => ({ columns: ["", t("inside.column.cosine")], rows: items.map(({ label, value }) => [label, value]) })}>
        <${BarChart} items=${items} max=${1} format=${signed} description=${t("inside.mix.cosines", { a: name, b: words.tokens[target] })} />
      </${Figure}>`}
  </div>`;
}

export default {
  id: "inside",
  requires: null,
  defaults: ({ model }) => {
    const example = EXAMPLES[model.tokenizer === "zh" ? "zh" : "other"];
    return { ...example, width: 3, filter: -1, s: Array.from({ length: model.n_layers }, () => "0"), gamma: 1, against: -1 };
  },
  View,
};
