// Compare: the uses of a word in typed sentences, as a map and a matrix, with substitutes and the words that explain
// each use. The text of the view is one sentence per line; `word` is marked where it occurs first in a line, and
// [[double brackets]] mark another word or another place.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { layerVector, markSpan } from "../api.js";
import { boundsOf, Figure, GroupLegend, LayerSlider, MatrixChart, ScaleLegend, ScatterMap } from "../charts.js";
import { colorScale, textOn } from "../colors.js";
import { usePage, useRequest } from "../hooks.js";
import { addTexts, brief, describeError, format } from "../i18n.js";
import { alignPositions, findGroups, mapPositions, meanVector, similarityMatrix } from "../math.js";

const MAX_SENTENCES = 26; // uses are named A to Z
const MAX_CHARACTERS = 1000; // of one sentence
const N_SUBSTITUTES = 6;

const EXAMPLES = {
  bank: [
    "I went to the bank to deposit money.", "She opened an account at the bank.",
    "I sat by the bank of the river.", "They walked along the bank of the stream.",
  ],
  cell: [
    "The cell divides into two.", "Each cell has a nucleus.",
    "He spent the night in a prison cell.", "The prisoner was locked in his cell.",
  ],
  苹果: ["他每天早上吃一个苹果。", "妈妈买了香蕉和苹果。", "苹果发布了新手机。", "昨天苹果宣布推出新产品。"],
  学习: ["他去年在北京大学学习。", "她正在学习英语。", "机器学习是一门新的学科。", "深度学习的模型很大。"],
};
const EXAMPLE_WORDS = { zh: ["苹果", "学习"], other: ["bank", "cell"] };

addTexts({
  "compare.intro": [
    "See how a word changes with its context. Each use of the word is one point; uses with a similar meaning are close.",
    "观察同一个词在不同语境中的变化。每次出现是一个点；意思相近的用法彼此靠近。",
  ],
  "compare.sentences": ["Sentences, one per line", "句子（每行一句）"],
  "compare.hint": ["Click a word below to compare its uses.", "点击下面句子中的词，比较它的各种用法。"],
  "compare.example": ["Example: {word}", "示例：{word}"],
  "compare.uses": ["Uses of “{word}”", "“{word}”的用法"],
  "compare.uses.none": ["Your sentences", "你的句子"],
  "compare.empty": [
    "Type at least two sentences with the same word, one per line, or take an example.",
    "请输入至少两个含有同一个词的句子，每行一句，也可以使用示例。",
  ],
  "compare.one": [
    "One use is marked. Add a sentence with “{word}”, or click a word that occurs in several sentences, to compare.",
    "目前只标出一处用法。请再写一个含有“{word}”的句子，或点击在多个句子中出现的词。",
  ],
  "compare.none": ["No word is marked yet. Click a word in a sentence.", "还没有选中词。请点击句子中的一个词。"],
  "compare.unmarked": ["“{word}” is not in this sentence. Click a word to include it.", "这句话里没有“{word}”。点击任意一个词即可加入比较。"],
  "compare.unmarked.none": ["No word of this sentence is marked. Click a word to include it.", "这句话里还没有选中词。点击任意一个词即可加入比较。"],
  "compare.part": ["“{word}” is part of the token “{token}”", "“{word}”只是词语“{token}”的一部分"],
  "compare.too.many": [
    "The page compares up to {max} sentences; the other {more} are left out.",
    "最多比较 {max} 个句子，其余 {more} 个未计入。",
  ],
  "compare.too.long": [
    "Line {line} has {n} characters. The page reads sentences of up to {max} characters; this one is left out.",
    "第 {line} 行有 {n} 个字符。页面最多处理 {max} 个字符的句子，这一行未计入。",
  ],
  "compare.nearest": ["nearest: {use} ({value})", "最接近：{use}（{value}）"],
  "compare.open": ["Open {use} in the Sentence view", "在“句子”视图中打开 {use}"],
  "compare.open.short": ["Details", "详情"],
  "compare.substitutes": ["Could also be", "可替换为"],
  "compare.substitutes.none": ["No substitutes", "没有可替换的词"],
  "compare.waiting": ["…", "……"],
  "compare.map": ["Map of the uses", "用法地图"],
  "compare.map.note": [
    "Distance shows how different two uses are. Lines join each use to its nearest. Colors and shapes show groups.",
    "距离表示用法的差异，连线指向最接近的用法，颜色和形状表示分组。",
  ],
  "compare.map.same": ["In layer 0 the model sees only the word, not its context: all uses are the same.", "第 0 层只看词本身、不看语境，所以各处用法完全相同。"],
  "compare.matrix": ["Similarity of the uses", "用法的相似度"],
  "compare.matrix.note": ["Cosine of the word vectors. Click a cell to see why two uses are similar.", "词向量的余弦相似度。点击格子查看两处用法为何相似。"],
  "compare.map.title": ["Map of {n} uses of {word}, {layer}", "“{word}”的 {n} 处用法的地图，{layer}"],
  "compare.matrix.title": ["Similarity of {n} uses of {word}, {layer}", "“{word}”的 {n} 处用法的相似度，{layer}"],
  "compare.point": ["Use {use}: {text}", "用法 {use}：{text}"],
  "compare.cell": ["{a} and {b}: {value}", "{a} 和 {b}：{value}"],
  "compare.most": ["Most similar", "最相似"],
  "compare.least": ["Least similar", "最不相似"],
  "compare.summary": ["The model finds similar: {groups}", "模型认为相近：{groups}"],
  "compare.summary.one": ["The model finds no clear groups.", "模型没有发现明显的分组。"],
  "compare.next": [
    "Similarities have no fixed scale: compare the pairs with each other. {a} and {b} are most alike ({value}). Then compare the words under “Could also be”: do they mean the same in both sentences?",
    "相似度没有固定的标准，请把各对互相比较：{a} 和 {b} 最接近（{value}）。再比较两句中“可替换为”的词：它们的意思相同吗？",
  ],
  "compare.next.two": [
    "Similarities have no fixed scale, so one pair ({value}) says little: add a sentence to see which two are most alike. Then compare the words under “Could also be”: do they mean the same in both sentences?",
    "相似度没有固定的标准，只看一对（{value}）说明不了什么：请再加一个句子，看哪两句最接近。再比较两句中“可替换为”的词：它们的意思相同吗？",
  ],
  "compare.group": ["Group {n}: {uses}", "第 {n} 组：{uses}"],
  "compare.why": ["The stronger its color, the more a word shapes the meaning of the marked word here, measured by its effect on the vector.", "颜色越深的词，对所选词在此处的意思影响越大（以对词向量的影响衡量）。"],
  "compare.why.pair": [
    "Why {a} and {b} have a similarity of {value}: blue words bring them together, orange words set them apart.",
    "{a} 与 {b} 的相似度为什么是 {value}：蓝色的词使二者更接近，橙色的词使二者更不同。",
  ],
  "compare.why.stop": ["Show each use alone", "返回单独查看"],
  "compare.why.less": ["little effect", "影响小"],
  "compare.why.more": ["large effect", "影响大"],
  "compare.why.apart": ["apart", "疏远"],
  "compare.why.together": ["together", "接近"],
  "compare.effect": ["Effect on the similarity: {value}", "对相似度的影响：{value}"],
  "compare.word": ["{token}, word {n} of {use}", "{token}，{use} 的第 {n} 个词"],
  "compare.column.use": ["use", "用法"],
  "compare.column.sentence": ["sentence", "句子"],
  "compare.column.word": ["word", "词"],
  "compare.column.group": ["group", "组"],
  "compare.column.nearest": ["nearest use", "最接近的用法"],
  "compare.column.similarity": ["similarity", "相似度"],
});

/** Parse the text: the sentences with their marks, and notes about lines that are left out. */
export function readSentences(text, word) {
  const sentences = [], problems = [];
  let more = 0;
  text.split(/\r\n|\r|\n/).forEach((line, number) => {
    if (!line.trim()) return;
    if (line.length > MAX_CHARACTERS) problems.push({ key: "compare.too.long", values: { line: number + 1, n: line.length, max: MAX_CHARACTERS } });
    else if (sentences.length === MAX_SENTENCES) more++;
    else sentences.push(readSentence(line.trim(), number, word));
  });
  if (more) problems.push({ key: "compare.too.many", values: { max: MAX_SENTENCES, more } });
  sentences.forEach((sentence, k) => (sentence.name = String.fromCharCode(65 + k)));
  return { sentences, problems };
}

function readSentence(line, number, word) {
  const explicit = /\[\[([^[\]]+)\]\]/.exec(line);
  if (!explicit) return { line: number, text: line, span: findWord(line, word), isExplicit: false };
  const text = line.slice(0, explicit.index) + explicit[1] + line.slice(explicit.index + explicit[0].length);
  return { line: number, text, span: [explicit.index, explicit.index + explicit[1].length], isExplicit: true };
}

const IS_PUNCTUATION = /^[\p{P}\p{S}]{1,3}$/u;
const IS_JOINED = /[\p{L}\p{N}\p{M}_]/u;
const IS_UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]/u;

/** The first place of a word in a text as [begin, end], in any case; null if there is none. */
export function findWord(text, word) {
  if (!word) return null;
  const lower = text.toLowerCase(), target = word.toLowerCase();
  if (lower.length !== text.length) return null; // rare letters change their length
  for (let at = lower.indexOf(target); at >= 0; at = lower.indexOf(target, at + 1)) {
    const before = text.slice(0, at).match(/.$/su)?.[0] ?? "", after = text.slice(at + word.length).match(/^./su)?.[0] ?? "";
    const joins = (a, b) => IS_JOINED.test(a) && IS_JOINED.test(b) && !IS_UNSPACED.test(a) && !IS_UNSPACED.test(b);
    if (!joins(before, word[0]) && !joins(word.at(-1), after)) return [at, at + word.length];
  }
  return null;
}

const FREQUENT = new Set(("about after also because been before both could does from have here into just made make more most much only other over "
  + "said same some such than that their them then there these they this those very want went were what when where which while will with would your "
  + "all and any are but can did for get got had has her him his how its may nor not now off one our out own see she the too two was who why yet you "
  + "的 了 是 在 和 与 也 都 就 很 不 没 没有 有 我 你 他 她 它 我们 你们 他们 她们 这 那 这个 那个 一 一个 个 把 被 着 过 上 到 从 对 向 给 用 又 还 再 吗 呢 吧 啊 "
  + "地 得 之 而 及 或 要 会 能 可以 已经 正在 什么 自己 非常 因为 所以 但是 如果").split(" "));
const IS_WORD = /^[\p{L}\p{M}'’-]+$/u;

/**
 * The word to compare in sentences that do not contain the chosen one: the token that most of the sentences have, in
 * any case; of several, the one that most of them contain at least as a part, then the longest; "" if no two share one.
 *
 * tokens: the tokens of each sentence; of a sentence with a mark, only the marked word counts.
 */
export function chooseWord(sentences, tokens) {
  const counts = new Map();
  sentences.forEach(({ text, span, isExplicit }, k) => {
    const names = (isExplicit ? [text.slice(...span)] : tokens[k]).map((name) => name.toLowerCase())
      .filter((name) => IS_WORD.test(name) && !FREQUENT.has(name) && (name.length > 2 || IS_UNSPACED.test(name)));
    for (const name of new Set(names)) counts.set(name, (counts.get(name) ?? 0) + 1);
  });
  const ranked = [...counts].map(([name, n]) => [n, sentences.filter(({ text }) => findWord(text, name)).length, name.length, name]);
  const shared = ranked.filter(([, n]) => n > 1).sort((a, b) => b[0] - a[0] || b[1] - a[1] || b[2] - a[2]);
  return shared[0]?.[3] ?? "";
}

/** The names of a pair "A-C" after an edit of the text; "" if one of the two sentences was replaced. */
export function followPair(pair, before, after) {
  const lines = (text) => readSentences(text, "").sentences.map(({ name, text }) => ({ name, text }));
  const old = lines(before), now = lines(after);
  let head = 0, tail = 0;
  while (head < Math.min(old.length, now.length) && old[head].text === now[head].text) head++;
  while (tail < Math.min(old.length, now.length) - head && old.at(-1 - tail).text === now.at(-1 - tail).text) tail++;
  const follow = (name) => {
    const k = old.findIndex((sentence) => sentence.name === name);
    if (k < 0) return null;
    if (k < head) return now[k].name;
    if (k >= old.length - tail) return now[k + now.length - old.length].name;
    return old.length === now.length && isEdited(old[k].text, now[k].text) ? now[k].name : null;
  };
  const names = pair.split("-").map(follow);
  return names.every(Boolean) ? names.join("-") : "";
}

/** Whether a text is another one after an edit in one place that leaves most of it. */
function isEdited(before, after) {
  const shorter = Math.min(before.length, after.length);
  let head = 0, tail = 0;
  while (head < shorter && before[head] === after[head]) head++;
  while (tail < shorter - head && before.at(-1 - tail) === after.at(-1 - tail)) tail++;
  return head + tail > before.length / 2;
}

/** The text and word after a click on the token with a span in sentence k. */
function markWord(sentences, k, span, state) {
  const word = sentences[k].text.slice(...span);
  const others = sentences.filter((sentence, j) => j !== k && findWord(sentence.text, word));
  const isLonely = !others.length && sentences.some((sentence, j) => j !== k && sentence.span);
  const global = isLonely ? state.word : word;
  const lines = state.text.split(/\r\n|\r|\n/);
  sentences.forEach((sentence, j) => {
    const target = j === k ? span : !isLonely && findWord(sentence.text, word) ? findWord(sentence.text, word) : sentence.span;
    const found = findWord(sentence.text, global);
    const isImplied = !target || (found && found[0] === target[0] && found[1] === target[1]);
    lines[sentence.line] = isImplied ? sentence.text : markSpan(sentence.text, target);
  });
  return { text: lines.join("\n"), word: global, pair: "" };
}

/** Similarities, positions and groups of the uses in every layer, from the reply of `words`. */
function compareUses(uses, nLayers) {
  const layers = {};
  for (let layer = 0; layer < nLayers; layer++) layers[layer] = uses.map(({ result }) => layerVector(result, layer, 0));
  layers.average = uses.map((_, k) => meanVector(Array.from({ length: nLayers }, (_, layer) => layers[layer][k])));
  const similarities = Object.fromEntries(Object.entries(layers).map(([name, vectors]) => [name, similarityMatrix(vectors)]));
  const reference = mapPositions(similarities.average);
  const positions = Object.fromEntries(Object.entries(similarities).map(([name, matrix]) => [
    name, name === "average" ? reference : alignPositions(mapPositions(matrix), reference),
  ]));
  const groups = Object.fromEntries(Object.entries(similarities).map(([name, matrix]) => [name, findGroups(matrix)]));
  const inContext = boundsOf(Object.entries(positions).flatMap(([name, places]) => (name === "0" ? [] : places)));
  const bounds = (name) => (name === "0" ? boundsOf([...positions[0], [inContext.x[0], inContext.y[0]], [inContext.x[1], inContext.y[1]]]) : inContext);
  const low = Math.min(1, ...Object.values(similarities).flat(2));
  return { similarities, positions, groups, bounds, low };
}

function View({ state, update, go, api, model, t }) {
  const { text, layer, pair } = state;
  const { sentences, problems } = useMemo(() => readSentences(text, state.word), [text, state.word]);
  const key = sentences.length ? JSON.stringify([model.id, sentences.map(({ text, span }) => [text, span])]) : null;
  const asked = useRef(null);
  const request = useRequest(key, async (signal) => {
    let snapshot = sentences, word = state.word;
    const inputs = snapshot.map(({ text }) => text);
    if (snapshot.every(({ span, isExplicit }) => !span || isExplicit) && !snapshot.every(({ span }) => span)) {
      const reply = await api.words({ model: model.id, layers: 0, inputs, signal });
      word = chooseWord(snapshot, reply.results.map(({ tokens }) => tokens ?? []));
      snapshot = readSentences(text, word).sentences;
    }
    const reply = await api.words({ model: model.id, layers: "all", inputs, targets: snapshot.map(({ span }) => (span ? [span] : [])), signal });
    return { word, sentences: snapshot.map((sentence, k) => ({ ...sentence, result: reply.results[k] })) };
  }, { delay: asked.current === null ? 0 : 20 });
  asked.current = key;

  const word = request.value?.word ?? state.word;
  const shown = request.value?.sentences ?? [];
  const uses = useMemo(() => shown.filter(({ span, result }) => span && !result.error && result.targets?.length), [request.value]);
  const compared = useMemo(() => (uses.length > 1 ? compareUses(uses, model.n_layers) : null), [uses]);
  const layerName = compared?.similarities[layer] ? layer : "average";
  const chosen = pairOf(pair, uses);
  const [pointed, setPointed] = useState(null); // the use under the pointer, with its text: names move to other sentences
  const active = shown.some(({ name, text }) => name === pointed?.name && text === pointed.text) ? pointed.name : null;
  const setActive = (name) => setPointed(name && { name, text: shown.find((sentence) => sentence.name === name).text });

  // What explains a use and could stand in its place comes later, and only for sentences that changed.
  const ready = request.isStale ? null : request.key;
  const explained = chosen ? [uses[chosen[0]]] : uses;
  const layers = layerName === "average" ? "average" : Number(layerName);
  const other = chosen ? markSpan(uses[chosen[1]].text, uses[chosen[1]].span) : null;
  const details = useDetails(ready, [
    ...explained.map((use) => ({
      key: `explain|${model.id}|${layers}|${markSpan(use.text, use.span)}|${other}`,
      slot: `explain|${model.id}|${markSpan(use.text, use.span)}|${other}`,
      load: (signal) => api.explain({ model: model.id, input: markSpan(use.text, use.span), other, layers, signal }),
    })),
    ...uses.map((use) => ({
      key: `substitutes|${model.id}|${markSpan(use.text, use.span)}`,
      load: async (signal) => (await api.substitutes({ model: model.id, inputs: [markSpan(use.text, use.span)], n: N_SUBSTITUTES, signal })).results[0],
    })),
  ]);
  // While new sentences are being encoded, what is known about the old ones does not fit.
  const isCurrent = (use) => !request.isStale
    || sentences.some(({ text, span }) => text === use.text && (span ? String(span) === String(use.span) : word !== state.word));
  const substitutes = details.slice(explained.length);
  const explanationOf = (k) => {
    if (!chosen) return details[k];
    const { value, error } = details[0];
    if (k === chosen[0]) return { value, error };
    return k === chosen[1] ? { value: value?.other, error } : null;
  };

  const isWaiting = uses.some((use, k) => {
    const explanation = explanationOf(k);
    return explanation && (!isCurrent(use) || (!explanation.value && !explanation.error));
  });

  const words = [...new Set(uses.map(({ text, span }) => text.slice(...span)))];
  const title = brief(words.length ? words.join(" / ") : word);
  return html`<div class="compare" data-state=${request.isStale ? "busy" : "ready"}>
    <p class="intro">${t("compare.intro")}</p>
    <div class="columns">
      <div class="stack">
        <${Editor} ...${{ text, word, update, model, t }} />
        ${problems.map(({ key, values }) => html`<p class="message" key=${key + values.line} role="status">${t(key, values)}</p>`)}
        ${request.error && html`<p class="message error" role="alert">${describeError(request.error, t)}</p>`}
        ${!sentences.length && html`<p class="message">${t("compare.empty")}</p>`}
        ${shown.length > 0 && html`<section class="uses" aria-labelledby="uses-title">
          <h2 id="uses-title">${words.length ? t("compare.uses", { word: title }) : t("compare.uses.none")}</h2>
          ${compared && html`<${Summary} groups=${compared.groups[layerName]} matrix=${compared.similarities[layerName]} ...${{ uses, layerName, t }} />`}
          <${WhyLegend} ...${{ chosen, uses, compared, layerName, isWaiting, update, t }} />
          <ol>${shown.map((sentence, k) => {
            const at = uses.indexOf(sentence);
            return html`<${Use} key=${sentence.name} ...${{
              sentence, word, t, go, layerName, isPair: Boolean(chosen), isChosen: chosen?.includes(at) ?? false,
              isActive: active === sentence.name, onHover: setActive,
              group: at >= 0 && compared ? compared.groups[layerName][at] : null,
              nearest: at >= 0 && compared ? nearestUse(compared.similarities[layerName], at) : null, uses,
              substitutes: at >= 0 && isCurrent(sentence) ? substitutes[at] : null, explanation: at >= 0 && isCurrent(sentence) ? explanationOf(at) : null,
              onMark: (span) => update((state) => markWord(shown, k, span, { ...state, word })),
            }} />`;
          })}</ol>
        </section>`}
      </div>
      <div class="stack charts">
        ${compared
          ? html`<${Charts} ...${{ compared, uses, layerName, chosen, update, model, t, title, active, setActive }} />`
          : shown.length > 0 && html`<p class="message">${uses.length ? t("compare.one", { word: title }) : t("compare.none")}</p>`}
      </div>
    </div>
  </div>`;
}

/** Which uses belong together, in words; if there are no clear groups, what to look at instead. */
function Summary({ groups, matrix, uses, layerName, t }) {
  const n = Math.max(...groups) + 1;
  if (n > 1) {
    const names = (group) => t.list(uses.filter((_, k) => groups[k] === group).map(({ name }) => name));
    return html`<p class="summary" data-summary role="status">${t("compare.summary", { groups: Array.from({ length: n }, (_, k) => names(k)).join(" · ") })}</p>`;
  }
  const [i, j] = extremePairs(matrix).most;
  const isSame = matrix.every((row) => row.every((value) => value > 0.99995));
  const next = isSame ? layerName === "0" && t("compare.map.same")
    : t(uses.length > 2 ? "compare.next" : "compare.next.two", { a: uses[i].name, b: uses[j].name, value: format.similarity(matrix[i][j]) });
  return html`<div data-summary role="status"><p class="summary">${t("compare.summary.one")}</p>${next && html`<p class="note">${next}</p>`}</div>`;
}

/** The two uses of a pair "A-C" as indices; null if they are not both there. */
function pairOf(pair, uses) {
  const indices = pair.split("-").map((name) => uses.findIndex((use) => use.name === name));
  return indices.length === 2 && indices[0] >= 0 && indices[1] >= 0 && indices[0] !== indices[1] ? indices : null;
}

function nearestUse(matrix, k) {
  if (matrix[k].every((value) => value > 0.99995)) return null; // all are the same
  let best = null;
  matrix[k].forEach((value, j) => {
    if (j !== k && (best === null || value > matrix[k][best] + 1e-9)) best = j;
  });
  return [best, matrix[k][best]];
}

function Editor({ text, word, update, model, t }) {
  const names = EXAMPLE_WORDS[model.tokenizer === "zh" ? "zh" : "other"];
  const lines = Math.max(4, Math.min(9, text.split("\n").length + 1));
  return html`<div class="card editor">
    <div class="editor-head">
      <label for="sentences">${t("compare.sentences")}</label>
      <span class="examples">${names.map((name) => html`<button key=${name} type="button" class="quiet" data-example=${name}
        onClick=${() => update({ text: EXAMPLES[name].join("\n"), word: name, pair: "" })}>${t("compare.example", { word: name })}</button>`)}</span>
    </div>
    <textarea id="sentences" rows=${lines} dir="auto" spellcheck="false" value=${text}
      onInput=${({ target }) => update((state) => ({ text: target.value, pair: followPair(state.pair, state.text, target.value) }))}></textarea>
  </div>`;
}

function WhyLegend({ chosen, uses, compared, layerName, isWaiting, update, t }) {
  if (!uses.length) return null;
  const waiting = isWaiting && html`<span class="note" data-waiting>${t("compare.waiting")}</span>`;
  if (!chosen) {
    return html`<div class="why"><p class="note">${t.sentences([t("compare.hint"), t("compare.why")])}</p>
      <div class="legend-row"><${ScaleLegend} scale="surprise" low=${t("compare.why.less")} high=${t("compare.why.more")} />${waiting}</div></div>`;
  }
  const [a, b] = chosen;
  const value = format.similarity(compared.similarities[layerName][a][b]);
  return html`<div class="why"><p class="note" role="status">${t("compare.why.pair", { a: uses[a].name, b: uses[b].name, value })}
      ${t.gap}<button type="button" class="link" onClick=${() => update({ pair: "" })}>${t("compare.why.stop")}</button></p>
    <div class="legend-row"><${ScaleLegend} scale="diverging" low=${t("compare.why.apart")} high=${t("compare.why.together")} />${waiting}</div></div>`;
}

/** One sentence: its words as buttons, the words that explain the use, its substitutes. */
function Use({ sentence, word, t, go, isPair, isChosen, isActive, onHover, group, nearest, uses, substitutes, explanation, onMark }) {
  const { theme } = usePage();
  const { name, text, span, result } = sentence;
  const buttons = useRef(null);
  if (result.error) {
    return html`<li class="use"><span class="badge">${name}</span><div class="use-body">
      <p class="text" dir="auto">${text}</p><p class="message error">${t("error.prefix", { message: result.error.message })}</p></div></li>`;
  }
  const { tokens, offsets } = result;
  const target = result.targets[0]?.tokens ?? null;
  const isTarget = (k) => target !== null && k >= target[0] && k < target[1];
  const tokenText = target && text.slice(offsets[target[0]][0], offsets[target[1] - 1][1]);
  const own = span && text.slice(...span);
  const scores = explanation?.value?.tokens.length === tokens.length ? explanation.value.scores : null;
  const limit = scores ? Math.max(isPair ? 0.02 : 0.04, ...scores.map(Math.abs)) : 1;
  const scale = colorScale(isPair ? "diverging" : "surprise", theme);
  const onKeyDown = (event) => {
    const all = [...buttons.current.querySelectorAll("button")];
    const at = all.indexOf(document.activeElement);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (next === undefined || !all[next]) return;
    event.preventDefault();
    all[next].focus();
  };
  const pieces = [];
  let end = 0;
  offsets.forEach(([begin, stop], k) => {
    if (begin > end) pieces.push(text.slice(end, begin));
    const share = scores && !isTarget(k) ? scores[k] / limit : 0;
    const isShaded = Math.abs(share) > 0.02 && (isPair || share > 0);
    const background = isShaded ? scale(isPair ? share : share * 0.8) : "";
    const button = html`<button key=${k} type="button" class=${`word ${isTarget(k) ? "is-target" : ""}`} aria-pressed=${String(isTarget(k))}
      aria-label=${t("compare.word", { token: tokens[k], n: k + 1, use: name })} data-token=${k}
      tabindex=${k === (target ? target[0] : 0) ? 0 : -1}
      style=${{ background, color: background ? textOn(background) : "" }} title=${scores && !isTarget(k) ? t("compare.effect", { value: scores[k].toFixed(3) }) : null}
      onClick=${() => onMark([begin, stop])}><bdi>${text.slice(begin, stop)}</bdi></button>`;
    const isJoined = begin === end && k > 0 && IS_PUNCTUATION.test(tokens[k]) && tokens[k - 1].length < 30;
    if (isJoined) pieces.push(html`<span class="together">${pieces.pop()}${button}</span>`); // no line break before it
    else pieces.push(button);
    end = stop;
  });
  pieces.push(text.slice(end));
  return html`<li class=${`use ${isPair && !isChosen ? "is-quiet" : ""} ${isActive ? "is-active" : ""}`} data-use=${name}
      onMouseEnter=${() => onHover(name)} onMouseLeave=${() => onHover(null)}>
    <span class=${`badge ${group === null ? "" : `group-${group}`}`}>${name}</span>
    <div class="use-body">
      <p class="text" dir="auto" ref=${buttons} onKeyDown=${onKeyDown}>${pieces}</p>
      ${!span && html`<p class="note">${word ? t("compare.unmarked", { word: brief(word) }) : t("compare.unmarked.none")}</p>`}
      ${span && tokenText && tokenText.length > own.length && html`<p class="note">${t("compare.part", { word: brief(own), token: brief(tokenText) })}</p>`}
      ${span && html`<p class="details">
        <span class="detail-name">${t("compare.substitutes")}</span>
        <${Substitutes} ...${{ substitutes, t }} />
      </p>`}
      ${explanation?.error && html`<p class="note">${describeError(explanation.error, t)}</p>`}
      <p class="details">${nearest && html`<span class="nearest">${t("compare.nearest", { use: uses[nearest[0]].name, value: format.similarity(nearest[1]) })}</span>`}
        <button type="button" class="link" aria-label=${t("compare.open", { use: name })} onClick=${() => go("sentence", { text, token: target ? target[0] : 0 })}>${t("compare.open.short")} ›</button></p>
    </div>
  </li>`;
}

function Substitutes({ substitutes, t }) {
  const { value, error } = substitutes ?? {};
  if (error ?? value?.error) return html`<span class="note">${(error ?? value.error).message}</span>`;
  if (!value) return html`<span class="note">${t("compare.waiting")}</span>`;
  if (!value.substitutes.length) return html`<span class="note">${t("compare.substitutes.none")}</span>`;
  return value.substitutes.map((item, k) => html`<span key=${k} class="substitute" title=${format.percent(item.probability)}><bdi>${item.word}</bdi></span>`);
}

function Charts({ compared, uses, layerName, chosen, update, model, t, title, active, setActive }) {
  const matrix = compared.similarities[layerName], groups = compared.groups[layerName], positions = compared.positions[layerName];
  const layerText = layerName === "average" ? t("layer.average") : t("layer.name", { n: layerName });
  const nearest = uses.map((_, k) => nearestUse(matrix, k));
  const isFlat = positions.every(([x, y]) => Math.hypot(x, y) < 1e-4);
  const links = dedupe(nearest.flatMap((near, k) => (near ? [[Math.min(near[0], k), Math.max(near[0], k)]] : []))).map(([a, b]) => [uses[a].name, uses[b].name]);
  const nGroups = Math.max(...groups) + 1;
  const points = uses.map((use, k) => ({
    id: use.name, short: use.name, x: positions[k][0], y: positions[k][1], group: groups[k],
    label: contextLabel(use), title: t("compare.point", { use: use.name, text: use.text }),
  }));
  const select = (name) => {
    setActive(name);
    document.querySelector(`[data-use="${name}"] .is-target`)?.focus();
  };
  const table = () => ({
    columns: ["use", "sentence", "word", "group", "nearest", "similarity"].map((name) => t(`compare.column.${name}`)).concat(["x", "y"]),
    rows: uses.map((use, k) => [use.name, use.text, use.text.slice(...use.span), groups[k] + 1, nearest[k] ? uses[nearest[k][0]].name : null, nearest[k]?.[1] ?? null, ...positions[k]]),
  });
  const names = (group) => uses.filter((_, k) => groups[k] === group).map(({ name }) => name);
  return html`
    <div class="card">
      <${LayerSlider} nLayers=${model.n_layers} value=${layerName} onChange=${(layer) => update({ layer })} />
      <${Figure} name="compare-map" title=${t("compare.map")} note=${isFlat && layerName === "0" ? t("compare.map.same") : t("compare.map.note")} table=${table}
        legend=${nGroups > 1 && html`<${GroupLegend} items=${Array.from({ length: nGroups }, (_, k) => ({ group: k, label: t("compare.group", { n: k + 1, uses: t.list(names(k)) }) }))} />`}>
        <${ScatterMap} points=${points} links=${links} bounds=${compared.bounds(layerName)} selected=${active} onSelect=${select} onHover=${setActive} height=${uses.length > 8 ? 400 : 300} radius=${uses.length > 8 ? 9 : 11}
          description=${t("compare.map.title", { n: uses.length, word: title, layer: layerText })} />
      </${Figure}>
    </div>
    <div class="card">
      <${Figure} name="compare-matrix" title=${t("compare.matrix")} note=${t("compare.matrix.note")}
        table=${() => ({ columns: ["", ...uses.map(({ name }) => name)], rows: uses.map(({ name }, i) => [name, ...matrix[i]]) })}
        legend=${html`<${ScaleLegend} scale="amount" low=${format.similarity(compared.low)} high="1.00" />`}>
        <div class="matrix-row"><div style=${{ width: `${34 + 64 * uses.length}px`, maxWidth: "100%" }}><${MatrixChart} labels=${uses.map(({ name, text }) => ({ short: name, title: text }))} values=${matrix} range=${[compared.low, 1]}
          selected=${chosen} format=${format.similarity}
          onSelect=${([i, j]) => update({ pair: chosen && chosen[0] === i && chosen[1] === j ? "" : `${uses[i].name}-${uses[j].name}` })}
          cellTitle=${(i, j) => t("compare.cell", { a: uses[i].name, b: uses[j].name, value: format.similarity(matrix[i][j]) })}
          description=${t("compare.matrix.title", { n: uses.length, word: title, layer: layerText })} /></div>
          ${uses.length > 2 && uses.length < 6 && !isFlat && html`<${Extremes} ...${{ matrix, uses, t }} />`}</div>
      </${Figure}>
    </div>`;
}

/** The most and the least similar pair of a matrix: {most: [i, j], least: [i, j]}. */
function extremePairs(matrix) {
  let most = [0, 1], least = [0, 1];
  for (let i = 0; i < matrix.length; i++) {
    for (let j = i + 1; j < matrix.length; j++) {
      if (matrix[i][j] > matrix[most[0]][most[1]]) most = [i, j];
      if (matrix[i][j] < matrix[least[0]][least[1]]) least = [i, j];
    }
  }
  return { most, least };
}

/** The most and the least similar pair, in words. */
function Extremes({ matrix, uses, t }) {
  const { most, least } = extremePairs(matrix);
  const pair = ([i, j], key) => html`<div><dt>${t(key)}</dt><dd>${t("compare.cell", { a: uses[i].name, b: uses[j].name, value: format.similarity(matrix[i][j]) })}</dd></div>`;
  return html`<dl class="extremes">${pair(most, "compare.most")}${pair(least, "compare.least")}</dl>`;
}

function dedupe(pairs) {
  return [...new Map(pairs.map((pair) => [pair.join("-"), pair])).values()];
}

/** A few words around the marked one. */
function contextLabel({ text, span, result }) {
  const [begin, end] = result.targets[0].tokens;
  const from = result.offsets[Math.max(0, begin - 2)][0], to = result.offsets[Math.min(result.tokens.length, end + 2) - 1][1];
  return `${from > 0 ? "…" : ""}${text.slice(from, to)}${to < text.length ? "…" : ""}`;
}

/**
 * Load details [{key, slot, load}], one request after the other, when `ready` is not null, after a short pause;
 * answers are kept. Returns [{value, error}]; while a new answer is on its way, the last one of the same slot is kept.
 */
function useDetails(ready, items) {
  const cache = useRef(new Map()).current;
  const last = useRef(new Map());
  const [, redraw] = useState(0);
  const keys = items.map(({ key }) => key);
  useEffect(() => {
    if (ready === null) return undefined;
    const controller = new AbortController();
    const run = async () => {
      for (const { key, load } of items) {
        if (controller.signal.aborted) return;
        if (cache.has(key)) continue;
        let entry;
        try {
          entry = { value: await load(controller.signal) };
        } catch (error) {
          if (controller.signal.aborted) return;
          entry = { error };
        }
        if (cache.size > 500) cache.delete(cache.keys().next().value);
        cache.set(key, entry);
        if (!controller.signal.aborted) redraw((n) => n + 1);
      }
    };
    const timer = setTimeout(run, keys.every((key) => cache.has(key)) ? 0 : 200);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [ready, keys.join("\n")]);
  const results = items.map(({ key, slot = key }) => cache.get(key) ?? last.current.get(slot) ?? {});
  last.current = new Map(items.map(({ key, slot = key }, k) => [slot, results[k]]));
  return results;
}

export default {
  id: "compare",
  requires: null,
  defaults: ({ model }) => {
    const name = model.tokenizer === "zh" ? "苹果" : "bank";
    return { text: EXAMPLES[name].join("\n"), word: name, layer: "average", pair: "" };
  },
  View,
};
