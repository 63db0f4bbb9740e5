// Sentence: what the forward and the backward language model expect at each place of a sentence, how surprising each
// word is, what could stand in its place, and the vectors of all layers.
import { html, useMemo, useRef } from "../vendor/preact.js";
import { layerVector, markSpan } from "../api.js";
import { BarChart, Figure, HeatMap, ScaleLegend } from "../charts.js";
import { colorScale, textOn } from "../colors.js";
import { usePage, useRequest } from "../hooks.js";
import { addTexts, brief, describeError, format } from "../i18n.js";

const MAX_CHARACTERS = 2000;
const MAX_TOKENS = 200;
const MAX_ROWS = 60; // words in a heat map
const N_EXPECTED = 8;
const MAX_BITS = 14; // the surprise with the strongest color
const UNKNOWN = "<UNK>"; // stands for all words that are not in the vocabulary
const DIRECTIONS = ["both", "forward", "backward"];

const EXAMPLES = {
  other: ["I sat by the bank of the river and watched the boats.", "The old man the boat.", "She poured milk into her cup of cement."],
  zh: ["北京是中国的首都。", "他在北京大学学习历史。", "他喝了一杯石头。"],
};

addTexts({
  "sentence.intro": [
    "ELMo reads a sentence twice: from the left and from the right. Click a word to see what both language models expect in its place, and what else could stand there.",
    "ELMo 把句子读两遍：从左到右，再从右到左。点击一个词，看两个语言模型在该位置的预测，以及这里还能用哪些词。",
  ],
  "sentence.label": ["Sentence", "句子"],
  "sentence.example": ["Example {n}", "示例 {n}"],
  "sentence.empty": ["Type a sentence, or take an example.", "请输入一个句子，或使用示例。"],
  "sentence.too.long": [
    "The text has {n} characters; this view reads one sentence of up to {max}.",
    "文本有 {n} 个字符；此视图只处理不超过 {max} 个字符的一个句子。",
  ],
  "sentence.too.many": [
    "The sentence has {n} words; the first {max} are shown.",
    "句子有 {n} 个词，只显示前 {max} 个。",
  ],
  "sentence.surprise": ["How surprising is each word?", "每个词有多出人意料？"],
  "sentence.surprise.note": [
    "Surprise in bits: 1 bit more means half the probability. Choose a word to see what was expected there.",
    "以比特计：每多 1 比特，概率减半。点击一个词，查看该位置的预测。",
  ],
  "sentence.direction": ["Read", "方向"],
  "sentence.direction.both": ["both ways", "双向平均"],
  "sentence.direction.forward": ["from the left", "从左读"],
  "sentence.direction.backward": ["from the right", "从右读"],
  "sentence.expected": ["0 bits: expected", "0 比特：意料之中"],
  "sentence.surprising": ["{n}+ bits: surprising", "{n} 比特以上：出人意料"],
  "sentence.unknown": ["not in the vocabulary", "不在词表中"],
  "sentence.rare": ["(a rare word)", "（生僻词）"],
  "sentence.word": ["{token}, {bits} bits", "{token}，{bits} 比特"],
  "sentence.word.unknown": ["{token}, {bits} bits, not in the vocabulary", "{token}，{bits} 比特，不在词表中"],
  "sentence.forward": ["The forward model", "正向模型"],
  "sentence.backward": ["The backward model", "反向模型"],
  "sentence.forward.read": ["has read", "已读"],
  "sentence.backward.read": ["has read, from the end,", "从句尾已读"],
  "sentence.nothing": ["has read nothing yet and expects", "还没有读到任何词，直接预测第一个词"],
  "sentence.nothing.end": ["has read nothing yet and expects", "还没有读到任何词，直接预测最后一个词"],
  "sentence.expects": ["and expects", "预测下一个词"],
  "sentence.expects.back": ["and expects before that", "预测前一个词"],
  "sentence.forward.title": ["What the forward model expects in place of “{token}”", "正向模型在“{token}”处的预测"],
  "sentence.backward.title": ["What the backward model expects in place of “{token}”", "反向模型在“{token}”处的预测"],
  "sentence.place": ["The place of “{token}”", "“{token}”处可以用哪些词"],
  "sentence.substitutes": ["What could replace “{token}”", "能替换“{token}”的词"],
  "sentence.substitutes.note": ["Both models together: words that fit both sides and resemble “{token}”. Click one to use it.", "两个模型结合：符合左右语境、且与“{token}”相近的词。点击即可替换。"],
  "sentence.waiting": ["Computing…", "正在计算……"],
  "sentence.substitutes.title": ["Substitutes for {token}", "“{token}”的替换词"],
  "sentence.substitutes.none": ["No word of the vocabulary fits here.", "词表中没有合适的词。"],
  "sentence.layers": ["The vectors of all layers", "各层的向量"],
  "sentence.layers.note": [
    "One row per word, one column per number. Layer 0 sees the word alone; from layer 1, the left half has read the words before, the right half the words after.",
    "每行一个词，每列一个数。第 0 层只看词本身；从第 1 层起，左半部分读过前文，右半部分读过后文。",
  ],
  "sentence.layers.cut": ["The first {n} of {total} words are shown; CSV files have all.", "只显示 {total} 个词中的前 {n} 个；CSV 文件包含全部。"],
  "sentence.layers.title": ["Vectors of layer {n}", "第 {n} 层的向量"],
  "sentence.layer": ["Layer {n}", "第 {n} 层"],
  "sentence.layer.0": ["Layer 0: the word alone", "第 0 层：词本身"],
  "sentence.half.forward": ["forward", "正向"],
  "sentence.half.backward": ["backward", "反向"],
  "sentence.cell": ["{token}, number {n}: {value}", "{token}，第 {n} 个数：{value}"],
  "sentence.row": ["{token}: length of the vector {value}", "{token}：向量长度 {value}"],
  "sentence.column.word": ["word", "词"],
  "sentence.column.probability": ["probability", "概率"],
  "sentence.column.actual": ["in the sentence", "句中的词"],
  "sentence.column.forward": ["forward (bits)", "正向（比特）"],
  "sentence.column.backward": ["backward (bits)", "反向（比特）"],
  "sentence.column.expected.forward": ["expected from the left", "从左预测"],
  "sentence.column.expected.backward": ["expected from the right", "从右预测"],
  "sentence.column.known": ["in the vocabulary", "在词表中"],
  "sentence.column.similarity": ["similarity", "相似度"],
  "sentence.column.norm": ["length", "长度"],
  "sentence.column.norm.forward": ["length, forward half", "正向部分长度"],
  "sentence.column.norm.backward": ["length, backward half", "反向部分长度"],
  "sentence.yes": ["yes", "是"],
  "sentence.no": ["no", "否"],
});

const toBits = (logProbability) => -logProbability / Math.LN2;

function View({ state, update, api, model, t }) {
  const text = state.text.replace(/[\r\n]+/g, " ");
  const isTooLong = text.length > MAX_CHARACTERS;
  const key = text.trim() && !isTooLong ? JSON.stringify([model.id, text]) : null;
  const first = useRef(true);
  const delay = first.current ? 0 : 30;
  first.current = key === null;
  const request = useRequest(key, async (signal) => {
    const reply = await api.expectations({ model: model.id, inputs: [text], n: N_EXPECTED, signal });
    return { text, result: reply.results[0] };
  }, { delay });
  const vectors = useRequest(key, async (signal) => {
    const reply = await api.words({ model: model.id, inputs: [text], layers: "all", signal });
    return reply.results[0];
  }, { delay: 120 });

  const result = request.value?.result;
  const shownText = request.value?.text;
  const n = result?.tokens?.length ?? 0;
  const token = Math.max(0, Math.min((n || Infinity) - 1, Math.round(state.token)));
  const examples = EXAMPLES[model.tokenizer === "zh" ? "zh" : "other"];
  return html`<div class="sentence" data-state=${request.isStale ? "busy" : "ready"}>
    <p class="intro">${t("sentence.intro")}</p>
    <div class="card editor">
      <div class="editor-head"><label for="sentence">${t("sentence.label")}</label>
        <span class="examples">${examples.map((example, k) => html`<button key=${k} type="button" class="quiet" title=${example}
          onClick=${() => update({ text: example, token: 0 })}>${t("sentence.example", { n: k + 1 })}</button>`)}</span></div>
      <textarea id="sentence" rows="2" dir="auto" spellcheck="false" value=${state.text} onInput=${(event) => update({ text: event.target.value })}></textarea>
    </div>
    ${isTooLong && html`<p class="message" role="status">${t("sentence.too.long", { n: text.length, max: MAX_CHARACTERS })}</p>`}
    ${!text.trim() && html`<p class="message">${t("sentence.empty")}</p>`}
    ${request.error && html`<p class="message error" role="alert">${describeError(request.error, t)}</p>`}
    ${result?.error && html`<p class="message error" role="alert">${t("error.prefix", { message: result.error.message })}</p>`}
    ${n > MAX_TOKENS && html`<p class="message" role="status">${t("sentence.too.many", { n, max: MAX_TOKENS })}</p>`}
    ${key && !request.value && !request.error && html`<p class="card note" role="status">${t("sentence.waiting")}</p>`}
    ${n > 0 && html`
      <div class="card"><${Surprise} ...${{ text: shownText, result, token, direction: state.direction, update, t }} /></div>
      <${Place} ...${{ text: shownText, result, token, update, api, model, t }} />`}
    ${vectors.value && !vectors.value.error && html`<div class="card"><${Layers} ...${{ words: vectors.value, token, update, t }} /></div>`}
  </div>`;
}

/** The words of the sentence, colored by surprise. */
function Surprise({ text, result, token, direction, update, t }) {
  const { theme } = usePage();
  const buttons = useRef(null);
  const { tokens, offsets, is_unknown: isUnknown } = result;
  const forward = result.forward_log_probability.map(toBits), backward = result.backward_log_probability.map(toBits);
  const bits = { forward, backward, both: forward.map((value, k) => (value + backward[k]) / 2) }[direction] ?? forward;
  const scale = colorScale("surprise", theme);
  const onKeyDown = (event) => {
    const next = { ArrowRight: token + 1, ArrowLeft: token - 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (next === undefined || next < 0 || next >= Math.min(tokens.length, MAX_TOKENS)) return;
    event.preventDefault();
    update({ token: next });
    buttons.current.querySelector(`[data-token="${next}"]`).focus();
  };
  const pieces = [];
  let end = 0;
  tokens.slice(0, MAX_TOKENS).forEach((name, k) => {
    const [begin, stop] = offsets[k];
    if (begin > end) pieces.push(html`<span class="between">${text.slice(end, begin)}</span>`);
    end = stop;
    const isKnown = !isUnknown?.[k];
    const background = isKnown ? scale(bits[k] / MAX_BITS) : ""; // the bits of a rare word are those of all rare words together
    pieces.push(html`<button key=${k} type="button" class=${`surprise-word ${k === token ? "is-target" : ""} ${isKnown ? "" : "is-unknown"}`} data-token=${k} aria-pressed=${String(k === token)}
      tabindex=${k === token ? 0 : -1} aria-label=${t(isKnown ? "sentence.word" : "sentence.word.unknown", { token: name, bits: format.bits(bits[k]) })}
      style=${{ background, color: isKnown ? textOn(background) : "" }}
      onClick=${() => update({ token: k })}><bdi>${name}</bdi><small>${format.bits(bits[k])}${isKnown ? "" : "*"}</small></button>`);
  });
  const top = (list) => list.map(({ word }) => word).join(", ");
  const table = () => ({
    columns: ["word", "forward", "backward", "known", "expected.forward", "expected.backward"].map((name) => t(`sentence.column.${name}`)),
    rows: tokens.map((name, k) => [name, forward[k], backward[k], t(isUnknown?.[k] ? "sentence.no" : "sentence.yes"), top(result.forward[k]), top(result.backward[k])]),
  });
  return html`<${Figure} name="sentence-surprise" title=${t("sentence.surprise")} note=${t("sentence.surprise.note")} hasPicture=${false} table=${table}
    legend=${html`<div class="legend-row"><${ScaleLegend} scale="surprise" low=${t("sentence.expected")} high=${t("sentence.surprising", { n: MAX_BITS })} />
      ${isUnknown?.some(Boolean) && html`<p class="note"><span class="chip is-unknown">*</span> ${t("sentence.unknown")}</p>`}</div>`}>
    <fieldset class="choice"><legend class="hidden">${t("sentence.direction")}</legend>
      ${DIRECTIONS.map((name) => html`<label key=${name}><input type="radio" name="direction" value=${name} checked=${name === direction}
        onChange=${() => update({ direction: name })} /><span>${t(`sentence.direction.${name}`)}</span></label>`)}</fieldset>
    <p class="surprise" dir="auto" ref=${buttons} onKeyDown=${onKeyDown}>${pieces}</p>
  </${Figure}>`;
}

/** What both models expect at one place, and the substitutes. */
function Place({ text, result, token, update, api, model, t }) {
  const { tokens, offsets } = result;
  const [begin, end] = offsets[token];
  const name = tokens[token];
  const marked = markSpan(text, offsets[token]);
  const request = useRequest(`${model.id}|${marked}`, async (signal) => {
    const reply = await api.substitutes({ model: model.id, inputs: [marked], n: N_EXPECTED, signal });
    return reply.results[0];
  }, { delay: 150 });
  const max = Math.max(0.05, ...result.forward[token].concat(result.backward[token]).map(({ probability }) => probability));
  const expected = (direction) => {
    const probability = Math.exp(result[`${direction}_log_probability`][token]);
    const items = result[direction][token].map(({ word, probability }) => ({
      label: word === UNKNOWN ? t("sentence.rare") : word, value: probability, isActual: word === name,
    }));
    if (!items.some(({ isActual }) => isActual)) items.push({ label: name, value: probability, isActual: true, gap: true });
    const isFirst = direction === "forward" ? token === 0 : token === tokens.length - 1;
    const context = direction === "forward" ? text.slice(0, begin).trim() : text.slice(end).trim();
    return html`<div class="card expectation">
      <${Figure} name=${`sentence-${direction}`} title=${t(`sentence.${direction}`)} level=${3}
        table=${() => ({ columns: ["word", "probability", "actual"].map((column) => t(`sentence.column.${column}`)),
          rows: items.map(({ label, value, isActual }) => [label, value, isActual ? t("sentence.yes") : ""]) })}>
        <p class="context">${isFirst
          ? html`<span class="note">${t(direction === "forward" ? "sentence.nothing" : "sentence.nothing.end")}</span>`
          : html`<span class="note">${t(`sentence.${direction}.read`)}</span> <bdi class="read">${context}</bdi>
            ${" "}<span class="note">${t(direction === "forward" ? "sentence.expects" : "sentence.expects.back")}</span>`}</p>
        <${BarChart} items=${items} max=${max} format=${format.percent} description=${t(`sentence.${direction}.title`, { token: brief(name) })} />
      </${Figure}>
    </div>`;
  };
  const substitutes = request.value?.substitutes ?? [];
  const problem = request.error ?? request.value?.error;
  return html`<section class="place" aria-labelledby="place-title">
    <h2 id="place-title">${t("sentence.place", { token: brief(name) })}</h2>
    <div class="three">
      <div class="card" data-busy=${String(request.isStale)}>
        <${Figure} name="sentence-substitutes" title=${t("sentence.substitutes", { token: brief(name) })} level=${3} note=${t("sentence.substitutes.note", { token: brief(name) })}
          table=${() => ({ columns: ["word", "probability", "similarity"].map((column) => t(`sentence.column.${column}`)), rows: substitutes.map((item) => [item.word, item.probability, item.similarity]) })}>
          ${problem && html`<p class="note" role="status">${problem.status ? describeError(problem, t) : problem.message}</p>`}
          ${!request.value && !problem && html`<p class="note" role="status">${t("sentence.waiting")}</p>`}
          ${request.value && !problem && !substitutes.length && html`<p class="note">${t("sentence.substitutes.none")}</p>`}
          ${substitutes.length > 0 && html`<${BarChart} items=${substitutes.map(({ word, probability }) => ({ label: word, value: probability }))} max=${Math.max(0.05, ...substitutes.map(({ probability }) => probability))}
            format=${format.percent} description=${t("sentence.substitutes.title", { token: brief(name) })}
            onSelect=${(k) => update({ text: text.slice(0, begin) + substitutes[k].word + text.slice(end), token })} />`}
        </${Figure}>
      </div>
      ${expected("forward")}
      ${expected("backward")}
    </div>
  </section>`;
}

/** The vectors of the sentence as one heat map per layer. */
function Layers({ words, token, update, t }) {
  const [nLayers, nTokens, width] = words.shape;
  const shown = Math.min(nTokens, MAX_ROWS);
  const maps = useMemo(() => Array.from({ length: nLayers }, (_, layer) => {
    const values = words.vectors.subarray(layer * nTokens * width, (layer * nTokens + shown) * width);
    const sorted = Float32Array.from(values, Math.abs).sort();
    return { values, limit: Math.max(1e-6, sorted[Math.floor(sorted.length * 0.98)]) };
  }), [words]);
  const norm = (vector) => Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
  return html`<section aria-labelledby="layers-title"><h2 id="layers-title">${t("sentence.layers")}</h2>
    <p class="note">${t.sentences([t("sentence.layers.note"), nTokens > shown && t("sentence.layers.cut", { n: shown, total: nTokens })])}</p>
    ${maps.map(({ values, limit }, layer) => {
      const row = (k) => layerVector(words, layer, k);
      return html`<${Figure} key=${layer} level=${3} name=${`sentence-layer-${layer}`} title=${layer ? t("sentence.layer", { n: layer }) : t("sentence.layer.0")}
        table=${() => ({
          columns: ["word", "norm", "norm.forward", "norm.backward"].map((name) => t(`sentence.column.${name}`)),
          rows: words.tokens.slice(0, shown).map((name, k) => [name, norm(row(k)), norm(row(k).subarray(0, width / 2)), norm(row(k).subarray(width / 2))]),
          csv: { columns: [t("sentence.column.word"), ...Array.from({ length: width }, (_, k) => k)], rows: words.tokens.map((name, k) => [name, ...row(k)]) },
        })}
        legend=${html`<${ScaleLegend} scale="diverging" low=${`−${limit.toFixed(2)}`} high=${limit.toFixed(2)} />`}>
        <${HeatMap} rows=${words.tokens.slice(0, shown).map((label, k) => ({ id: k, label, title: t("sentence.row", { token: label, value: norm(row(k)).toFixed(2) }) }))}
          columns=${width} values=${values} limit=${limit} selected=${token} onSelect=${(k) => update({ token: k })}
          splits=${layer ? [{ at: 0, label: t("sentence.half.forward") }, { at: width / 2, label: t("sentence.half.backward") }] : []}
          describeCell=${(k, column, value) => t("sentence.cell", { token: words.tokens[k], n: column, value: value.toFixed(3) })}
          description=${t("sentence.layers.title", { n: layer })} />
      </${Figure}>`;
    })}</section>`;
}

export default {
  id: "sentence",
  requires: null,
  defaults: ({ model }) => (model.tokenizer === "zh"
    ? { text: EXAMPLES.zh[0], token: 2, direction: "both" }
    : { text: EXAMPLES.other[0], token: 4, direction: "both" }),
  View,
};
