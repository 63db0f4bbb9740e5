// Corpus: the uses of a word in an index as a map of senses and as lines aligned on the word, and the uses that are
// nearest to a typed sentence.
import { html, useEffect, useMemo, useState } from "../vendor/preact.js";
import { markSpan } from "../api.js";
import { Figure } from "../charts.js";
import { groupColor, groupShape } from "../colors.js";
import { useRequest } from "../hooks.js";
import { addTexts, describeError, format } from "../i18n.js";
import { findWord } from "./compare.js";
import { Choice, ChosenUse, fullText, Lines, matches, orders, prepareLines, senseName, UseMap } from "./uses.js";

const LIMITS = [200, 1000, 10000];
const FEW = 30; // with fewer uses, groups and shares mean little
const CLUSTERED = 500; // uses that the server clusters; it assigns the others to these senses
const N_NEIGHBORS = 20;
const SORTS = ["corpus", "left", "right", "similarity", "meaning"];
const AMONG = ["all", "same", "others"];

addTexts({
  "corpus.intro": [
    "Look up a word in the corpus. Each point is one use; uses with a similar meaning are close and share a color.",
    "在语料库中检索一个词。每个点是一处用法；意思相近的用法彼此靠近，颜色相同。",
  ],
  "corpus.word": ["Word or phrase", "词或短语"],
  "corpus.find": ["Find", "检索"],
  "corpus.index": ["Corpus", "语料库"],
  "corpus.index.name": ["{name} ({n} uses)", "{name}（{n} 处用法）"],
  "corpus.limit": ["Show up to", "最多显示"],
  "corpus.limit.n": ["{n} uses", "{n} 处用法"],
  "corpus.examples": ["For example", "例如"],
  "corpus.empty": ["Type a word and press Enter.", "请输入一个词，然后按回车键。"],
  "corpus.none": [
    "“{word}” does not occur in this corpus. Check the spelling, or try the form in which it would be written.",
    "语料库中没有“{word}”。请检查写法，或换一个词形再试。",
  ],
  "corpus.loading": ["Arranging and grouping the uses of “{word}”…", "正在排列“{word}”的用法并分组……"],
  "corpus.few": [
    "Only {n} uses: groups and shares are uncertain with a sample this small.",
    "只有 {n} 处用法。样本太小，分组和比例仅供参考。",
  ],
  "corpus.sample": [
    "These are {shown} of {total} uses, chosen at random.",
    "共有 {total} 处用法，这里显示随机抽取的 {shown} 处。",
  ],
  "corpus.clustered": [
    "Senses were found in a sample of {n} uses; each of the other uses belongs to the nearest sense.",
    "义项由其中抽取的 {n} 处用法得出，其余用法归入最接近的义项。",
  ],
  "corpus.map": ["Map of {n} uses of “{word}”", "“{word}”的 {n} 处用法"],
  "corpus.map.note": [
    "Close points are similar uses. Point at a use to read it, click to choose it.",
    "距离越近，用法越相似。指向一个点可以读到例句，点击即选中。",
  ],
  "corpus.senses": ["Senses", "义项"],
  "corpus.senses.note": [
    "Groups of similar uses, each named by words that could stand in its place. Click one to see only its lines.",
    "相似的用法归为一组，并以可替换的词命名。点击可只看这一组。",
  ],
  "corpus.senses.one": ["The uses form one group.", "这些用法属于同一组。"],
  "corpus.sense.share": ["{share}, {n} uses", "{share}，{n} 处"],
  "corpus.lines": ["Lines", "例句"],
  "corpus.lines.label": ["{n} lines with “{word}”", "含“{word}”的 {n} 行例句"],
  "corpus.sort": ["Sort by", "排序"],
  "corpus.sort.corpus": ["order in the corpus", "语料库顺序"],
  "corpus.sort.left": ["left context", "左侧语境"],
  "corpus.sort.right": ["right context", "右侧语境"],
  "corpus.sort.similarity": ["similarity to a chosen use", "与所选用法的相似度"],
  "corpus.sort.meaning": ["meaning", "词义"],
  "corpus.sort.choose": ["Choose a line or a point first; then lines are sorted by their similarity to it.", "请先选中一行或一个点，例句将按与它的相似度排列。"],
  "corpus.filter": ["Only lines with", "只看包含"],
  "corpus.count": ["{shown} of {n} lines", "共 {n} 行，显示 {shown} 行"],
  "corpus.count.all": ["{n} lines", "共 {n} 行"],
  "corpus.clear": ["Show all", "显示全部"],
  "corpus.similar": ["Sort by similarity to this use", "按与此用法的相似度排序"],
  "corpus.open": ["Open in Sentence", "在“句子”中打开"],
  "corpus.near.this": ["Nearest uses", "最接近的用法"],
  "corpus.deselect": ["Close", "关闭"],
  "corpus.near": ["Nearest uses of a typed sentence", "与输入的句子最接近的用法"],
  "corpus.near.note": [
    "Type a sentence and click a word in it. The corpus is searched for the uses that are most similar to this one.",
    "输入一个句子并点击其中的词，即可在语料库中查找与它最相似的用法。",
  ],
  "corpus.near.label": ["Sentence", "句子"],
  "corpus.near.words": ["Words of the sentence", "句中的词"],
  "corpus.near.results": ["Uses nearest to “{word}”", "与“{word}”最接近的用法"],
  "corpus.among": ["Search", "范围"],
  "corpus.among.all": ["all words", "所有词"],
  "corpus.among.same": ["the same word", "同一个词"],
  "corpus.among.others": ["other words", "其他词"],
  "corpus.column.use": ["use", "编号"],
  "corpus.column.sense": ["sense", "义项"],
  "corpus.column.name": ["name of the sense", "义项名称"],
  "corpus.column.similarity": ["similarity", "相似度"],
  "corpus.column.before": ["before", "左侧"],
  "corpus.column.word": ["word", "词"],
  "corpus.column.after": ["after", "右侧"],
  "corpus.column.place": ["place", "出处"],
  "corpus.column.share": ["share", "比例"],
  "corpus.column.uses": ["uses", "用法数"],
});

const count = (n) => n.toLocaleString("en-US");

function View({ state, update, go, api, model, catalog, t }) {
  const { indexes } = catalog;
  const index = indexes.find(({ id }) => id === state.index) ?? indexes.find((item) => item.model === model.id) ?? indexes[0];
  const limit = LIMITS.includes(state.limit) ? state.limit : 1000;
  const word = state.word.trim();
  const [active, setActive] = useState(null);
  useEffect(() => {
    if (!word && index.examples?.length) update({ word: index.examples[0] });
  }, [index.id]);

  const key = word ? JSON.stringify([index.id, word, limit]) : null;
  const quick = useRequest(key, (signal) => api.concordance({ index: index.id, word, limit, signal })); // lines come first
  const request = useRequest(key, (signal) => api.map({ index: index.id, word, limit, signal }));
  const lines = request.isStale && !quick.isStale ? quick.value : null;
  const map = useMemo(() => (lines ? { ...lines, senses: [] } : request.value), [lines, request.value]);
  const use = map?.lines.some(({ number }) => number === state.use) ? state.use : null;
  const ranking = useRequest(state.sort === "similarity" && use !== null ? JSON.stringify([index.id, map.word, limit, use]) : null, async (signal) => {
    const reply = await api.concordance({ index: index.id, word: map.word, limit, sort: "similarity", to: use, signal });
    return new Map(reply.lines.map(({ number, similarity }) => [number, similarity]));
  });
  return html`<div class="corpus stack" data-state=${request.isStale || (ranking.isStale && state.sort === "similarity" && use !== null) ? "busy" : "ready"}>
    <p class="intro">${t("corpus.intro")}</p>
    <${Search} ...${{ state, update, index, indexes, limit, t }} />
    ${!word && html`<p class="message">${t("corpus.empty")}</p>`}
    ${request.error && html`<p class="message" role="alert">${/does not occur/.test(request.error.message) ? t("corpus.none", { word }) : describeError(request.error, t)}</p>`}
    ${request.isStale && !map && word && html`<p class="note" role="status">${t("corpus.loading", { word })}</p>`}
    ${map && html`<${Uses} ...${{ map, similarities: ranking.value, state, use, update, go, active, setActive, t }} />`}
    <${Nearest} ...${{ state, update, api, index, word: map?.word ?? word, active, setActive, t }} />
  </div>`;
}

function Search({ state, update, index, indexes, limit, t }) {
  // What is typed is kept apart from the word that is shown, so that a reply that arrives meanwhile does not undo it.
  const [draft, setDraft] = useState({ word: state.word, text: state.word });
  if (draft.word !== state.word) setDraft({ word: state.word, text: state.word });
  const onSubmit = (event) => {
    event.preventDefault();
    const word = new FormData(event.target).get("word").trim();
    if (word) update({ word, use: -1, sense: 0, filter: "" });
  };
  return html`<form class="card search" role="search" onSubmit=${onSubmit}>
    <div class="search-row">
      <label class="field search-word"><span>${t("corpus.word")}</span>
        <input type="search" name="word" id="word" dir="auto" autocomplete="off" spellcheck="false" maxlength="200"
          value=${draft.text} onInput=${(event) => setDraft({ word: state.word, text: event.target.value })} /></label>
      <button class="primary">${t("corpus.find")}</button>
      <label class="field"><span>${t("corpus.limit")}</span>
        <select id="limit" value=${limit} onChange=${(event) => update({ limit: Number(event.target.value), use: -1 })}>
          ${LIMITS.map((n) => html`<option key=${n} value=${n} selected=${n === limit}>${t("corpus.limit.n", { n: count(n) })}</option>`)}</select></label>
      ${indexes.length > 1 && html`<label class="field"><span>${t("corpus.index")}</span>
        <select id="index" value=${index.id} onChange=${(event) => update({ index: event.target.value, word: "", use: -1, sense: 0, filter: "" })}>
          ${indexes.map(({ id, usages }) => html`<option key=${id} value=${id} selected=${id === index.id}>${t("corpus.index.name", { name: id, n: count(usages) })}</option>`)}</select></label>`}
    </div>
    ${index.examples?.length > 0 && html`<p class="search-examples"><span class="note">${t("corpus.examples")}</span>
      ${index.examples.map((word) => html`<button key=${word} type="button" class="quiet" aria-pressed=${String(word === state.word)}
        onClick=${() => update({ word, use: -1, sense: 0, filter: "" })}><bdi>${word}</bdi></button>`)}</p>`}
  </form>`;
}

/** The map, the senses and the lines of a word. */
function Uses({ map, similarities, state, use, update, go, active, setActive, t }) {
  const { lines, senses, total } = map;
  useEffect(() => prepareLines(lines), [lines]);
  const byNumber = useMemo(() => new Map(lines.map((line) => [line.number, line])), [lines]);
  const sense = senses.some((item) => item.sense === state.sense) ? state.sense : 0;
  const filter = state.filter.toLowerCase();
  const sort = SORTS.includes(state.sort) ? state.sort : "corpus";
  const shown = useMemo(() => lines.filter((line) => (!sense || line.sense === sense) && matches(line, filter)), [lines, sense, filter]);
  const sorted = useMemo(() => {
    if (sort === "left" || sort === "right") return orders[sort](shown);
    if (sort === "meaning" && senses.length) return [...shown].sort((a, b) => a.sense - b.sense || b.typical - a.typical);
    if (sort === "similarity" && similarities) return [...shown].sort((a, b) => similarities.get(b.number) - similarities.get(a.number));
    return shown;
  }, [shown, sort, similarities]);
  const names = useMemo(() => new Map(senses.map((item) => [item.sense, senseName(item, t)])), [senses, t]);
  const hasSenses = senses.length > 1;
  const items = useMemo(() => {
    const list = [];
    sorted.forEach((line, k) => {
      if (sort === "meaning" && hasSenses && line.sense !== sorted[k - 1]?.sense) list.push({ heading: names.get(line.sense), group: line.sense - 1 });
      const note = sort === "similarity" && similarities ? format.similarity(similarities.get(line.number)) : line.place;
      list.push({ id: line.number, line, group: hasSenses ? line.sense - 1 : null, note });
    });
    return list;
  }, [sorted, names]);
  const isPartial = !senses.length; // the map is not there yet
  const points = useMemo(() => {
    if (isPartial) return [];
    const isShown = shown.length < lines.length ? new Set(shown) : null;
    return lines.map((line) => ({ id: line.number, x: line.x, y: line.y, group: line.sense - 1, isDim: isShown !== null && !isShown.has(line) }));
  }, [lines, shown]);
  const select = (number) => update((state) => ({ use: state.use === number ? -1 : number }));
  const chosen = byNumber.get(use);
  const columns = ["use", "sense", "name", "similarity", "before", "word", "after", "place"].map((name) => t(`corpus.column.${name}`));
  const row = (line) => [line.number, line.sense ?? null, senses[line.sense - 1]?.name.join(", ") ?? null, similarities?.get(line.number) ?? null, line.before, line.word, line.after, line.place];
  const notes = [
    total < FEW && t("corpus.few", { n: total }),
    total > lines.length && t("corpus.sample", { shown: count(lines.length), total: count(total) }),
    lines.length > CLUSTERED && t("corpus.clustered", { n: count(CLUSTERED) }),
  ].filter(Boolean);
  return html`
    ${notes.length > 0 && html`<p class="message" role="status" data-notes>${t.sentences(notes)}</p>`}
    ${isPartial && html`<p class="card note" role="status">${t("corpus.loading", { word: map.word })}</p>`}
    ${!isPartial && html`<div class="uses-columns">
      <div class="card">
        <${Figure} name="corpus-map" title=${t("corpus.map", { n: count(lines.length), word: map.word })} note=${t("corpus.map.note")}
          table=${() => ({ columns: [...columns, "x", "y"], rows: lines.map((line) => [...row(line), line.x, line.y]) })}>
          <${UseMap} points=${points} active=${active} selected=${use} onHover=${setActive} onSelect=${select}
            describe=${(number) => fullText(byNumber.get(number))} description=${t("corpus.map", { n: count(lines.length), word: map.word })} />
        </${Figure}>
      </div>
      <div class="card">
        <${Figure} name="corpus-senses" title=${t("corpus.senses")} note=${hasSenses ? t("corpus.senses.note") : t("corpus.senses.one")} hasPicture=${false}
          table=${() => ({ columns: ["sense", "name", "share", "uses"].map((name) => t(`corpus.column.${name}`)), rows: senses.map((item) => [item.sense, item.name.join(", "), item.share, item.usages]) })}>
          <ul class="senses">${senses.map((item) => html`<li key=${item.sense}>
            <button type="button" class="sense" data-sense=${item.sense} aria-pressed=${String(item.sense === sense)} disabled=${!hasSenses}
              onClick=${() => update({ sense: item.sense === sense ? 0 : item.sense })}>
              <svg width="18" height="18" viewBox="-9 -9 18 18" aria-hidden="true"><path d=${groupShape(item.sense - 1, 6)} fill=${groupColor(item.sense - 1)} /></svg>
              <span class="sense-name"><bdi>${senseName(item, t)}</bdi></span>
              <span class="sense-share">${t("corpus.sense.share", { share: format.percent(item.share), n: count(item.usages) })}</span>
            </button></li>`)}</ul>
        </${Figure}>
      </div>
    </div>`}
    <div class="card">
      <${Figure} name="corpus-lines" title=${t("corpus.lines")} hasPicture=${false} table=${() => ({ columns, rows: sorted.map(row) })}>
        <div class="toolbar lines-tools">
          <label class="pick-inline"><span>${t("corpus.sort")}</span>
            <select id="sort" value=${sort} onChange=${(event) => update({ sort: event.target.value })}>
              ${SORTS.map((name) => html`<option key=${name} value=${name} selected=${name === sort}>${t(`corpus.sort.${name}`)}</option>`)}</select></label>
          <label class="pick-inline grow"><span>${t("corpus.filter")}</span>
            <input id="filter" type="search" dir="auto" autocomplete="off" spellcheck="false" value=${state.filter} onInput=${(event) => update({ filter: event.target.value })} /></label>
          <span class="note" role="status" data-count>${shown.length < lines.length
            ? t("corpus.count", { shown: count(shown.length), n: count(lines.length) }) : t("corpus.count.all", { n: count(lines.length) })}</span>
          ${(sense > 0 || filter) && html`<button type="button" class="quiet" onClick=${() => update({ sense: 0, filter: "" })}>${t("corpus.clear")}</button>`}
        </div>
        ${sort === "similarity" && use === null && html`<p class="message">${t("corpus.sort.choose")}</p>`}
        ${chosen && html`<${ChosenUse} line=${chosen} details=${[chosen.place, names.get(chosen.sense)].filter(Boolean).join(" · ")}>
          ${sort !== "similarity" && html`<button type="button" class="quiet" data-similar onClick=${() => update({ sort: "similarity" })}>${t("corpus.similar")}</button>`}
          <button type="button" class="quiet" data-near onClick=${() => update({ near: markUse(chosen), mark: -1 })}>${t("corpus.near.this")}</button>
          <button type="button" class="quiet" onClick=${() => go("sentence", { text: fullText(chosen).slice(0, 2000) })}>${t("corpus.open")}</button>
          <button type="button" class="quiet" onClick=${() => update({ use: -1 })}>${t("corpus.deselect")}</button>
        </${ChosenUse}>`}
        <${Lines} items=${items} active=${active} selected=${use} onHover=${setActive} onSelect=${select} scrollKey=${`${map.word}|${sort}|${sense}|${filter}`}
          label=${t("corpus.lines.label", { n: count(shown.length), word: map.word })} />
      </${Figure}>
    </div>`;
}

/** A use as a typed sentence with a mark. */
function markUse({ before, word, after }) {
  return `${before.slice(-400)}[[${word}]]${after.slice(0, 400)}`.replace(/\s+/g, " ").trim();
}

/** The text of a sentence without its mark, and the marked span or null. */
function readMark(sentence) {
  const mark = /\[\[([^[\]]+)\]\]/.exec(sentence);
  if (!mark) return { text: sentence, span: null };
  return { text: sentence.slice(0, mark.index) + mark[1] + sentence.slice(mark.index + mark[0].length), span: [mark.index, mark.index + mark[1].length] };
}

/** The uses that are nearest to a word of a typed sentence. */
function Nearest({ state, update, api, index, word, active, setActive, t }) {
  const { text, span } = readMark(state.near.replace(/[\r\n]+/g, " ").slice(0, 1000));
  const tokens = useRequest(text.trim() ? JSON.stringify([index.model, text]) : null, async (signal) => {
    const reply = await api.words({ model: index.model, inputs: [text], layers: 0, signal });
    return { text, ...reply.results[0] };
  }, { delay: 60 });
  const offsets = tokens.value && !tokens.value.error && tokens.value.text === text ? tokens.value.offsets : null;
  const target = offsets?.length ? state.mark >= 0 && state.mark < offsets.length ? state.mark : guessToken(text, offsets, span, word) : -1;
  const among = AMONG.includes(state.among) ? state.among : "all";
  const marked = target >= 0 ? markSpan(text, offsets[target]) : null;
  const request = useRequest(marked && JSON.stringify([index.id, marked, among]), async (signal) => {
    const reply = await api.neighbors({ index: index.id, inputs: [marked], k: N_NEIGHBORS, among, signal });
    return reply.results[0];
  });
  const neighbors = request.value?.neighbors ?? [];
  const problem = tokens.error ?? request.error ?? tokens.value?.error ?? request.value?.error;
  const items = useMemo(() => neighbors.map(({ number, parts: [before, word, after], similarity }) => ({
    id: number, line: { before, word, after }, note: format.similarity(similarity),
  })), [request.value]);
  const onKeyDown = (event) => {
    const next = { ArrowRight: target + 1, ArrowLeft: target - 1, Home: 0, End: offsets.length - 1 }[event.key];
    if (next === undefined || next < 0 || next >= offsets.length) return;
    event.preventDefault();
    update({ mark: next });
    event.currentTarget.querySelector(`[data-token="${next}"]`).focus();
  };
  return html`<div class="card" data-near-state=${marked && request.isStale ? "busy" : "ready"}>
    <${Figure} name="corpus-near" title=${t("corpus.near")} note=${t("corpus.near.note")} hasPicture=${false}
      table=${() => ({ columns: ["use", "similarity", "before", "word", "after", "place"].map((name) => t(`corpus.column.${name}`)),
        rows: neighbors.map(({ number, similarity, parts, place }) => [number, similarity, ...parts, place]) })}>
      <div class="stack near">
        <label class="field"><span class="hidden">${t("corpus.near.label")}</span>
          <input id="near" type="text" dir="auto" autocomplete="off" spellcheck="false" maxlength="1000" placeholder=${t("corpus.near.label")}
            value=${state.near} onInput=${(event) => update({ near: event.target.value, mark: -1 })} /></label>
        ${offsets?.length > 0 && html`
          <div class="near-words" role="group" dir="auto" aria-label=${t("corpus.near.words")} onKeyDown=${onKeyDown}>
            ${offsets.map(([begin, end], k) => html`<button key=${k} type="button" class=${`word ${k === target ? "is-target" : ""}`} data-token=${k}
              aria-pressed=${String(k === target)} tabindex=${k === target ? 0 : -1} onClick=${() => update({ mark: k })}><bdi>${text.slice(begin, end)}</bdi></button>${" "}`)}</div>
          <${Choice} name="among" label=${t("corpus.among")} value=${among} onChange=${(value) => update({ among: value })} values=${AMONG.map((name) => [name, t(`corpus.among.${name}`)])} />`}
        ${problem && html`<p class="message" role="alert">${problem.status ? describeError(problem, t) : t("error.prefix", { message: problem.message })}</p>`}
        ${items.length > 0 && html`<${Lines} items=${items} active=${active} selected=${null} onHover=${setActive} rows=${10} scrollKey=${marked}
          label=${t("corpus.near.results", { word: text.slice(...offsets?.[target] ?? [0, 0]) })} onSelect=${() => undefined} />`}
      </div>
    </${Figure}>
  </div>`;
}

/** The token to start with: the marked one, the word of the search, or the longest. */
function guessToken(text, offsets, span, word) {
  const place = span ?? findWord(text, word);
  const at = place ? offsets.findIndex(([begin, end]) => begin < place[1] && end > place[0]) : -1;
  if (at >= 0) return at;
  return offsets.reduce((best, [begin, end], k) => (end - begin > offsets[best][1] - offsets[best][0] ? k : best), 0);
}

export default {
  id: "corpus",
  requires: "index",
  defaults: () => ({ word: "", index: "", limit: 1000, sort: "corpus", use: -1, sense: 0, filter: "", near: "", mark: -1, among: "all" }),
  View,
};
