// Change: words ranked by how much their use differs between periods; for one word the shares of its senses, a map of
// its uses, and the sentences behind every number.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { Figure, GroupLegend, shorten, textWidth } from "../charts.js";
import { groupColor, groupShape } from "../colors.js";
import { useRequest, useWidth } from "../hooks.js";
import { addTexts, brief, describeError, format } from "../i18n.js";
import { Choice, ChosenUse, fullText, Lines, matches, senseName, useId, UseMap } from "./uses.js";

const N_WORDS = 1000;
const FEW = 50; // uses in a period; with fewer, scores and shares are uncertain
const SORTS = ["low", "score", "p", "q", "word", "frequency"];

addTexts({
  "change.intro": [
    "Which words are used differently in {last} than in {first}? Choose a word to see its senses and the sentences behind its score.",
    "与{first}相比，哪些词在{last}的用法变了？选择一个词，查看它的义项以及分数背后的例句。",
  ],
  "change.loading": ["Loading the words…", "正在加载词表……"],
  "change.progress.read": ["Reading the texts of {periods}…", "正在读取文本：{periods}……"],
  "change.progress.measure": ["Comparing the uses of words: {share}", "正在比较词的用法：{share}"],
  "change.progress.note": [
    "This can take some minutes for large texts. The other views can be used meanwhile.",
    "文本较大时可能需要几分钟，期间可以使用其他视图。",
  ],
  "change.progress.label": ["Progress of the comparison", "比较进度"],
  "change.words": ["Words by change", "按变化程度排列的词"],
  "change.words.note": [
    "Score: how much less similar uses of different periods are than uses of the same period; about 0 means no change.",
    "分数：不同时期之间的用法差异比同一时期内大多少，约为 0 表示没有变化。",
  ],
  "change.words.interval": ["The line is its 95% interval; “surest change” sorts by its lower end.", "横线表示 95% 区间，“最可靠的变化”按区间下限排序。"],
  "change.words.omitted": ["Function words, names and rare words are left out.", "虚词、专名和罕见词不计入。"],
  "change.search": ["Search", "检索"],
  "change.sort": ["Sort by", "排序"],
  "change.sort.low": ["surest change", "最可靠的变化"],
  "change.sort.score": ["score", "分数"],
  "change.sort.p": ["p value", "p 值"],
  "change.sort.q": ["q value", "q 值"],
  "change.sort.word": ["word", "词"],
  "change.sort.frequency": ["frequency", "词频"],
  "change.count": ["{n} words", "{n} 个词"],
  "change.none": ["No word matches. Only words that are frequent enough in every period were measured.", "没有匹配的词。只计算了在各时期都足够常见的词。"],
  "change.none.corpus": ["Search for “{query}” in the Corpus view", "在“语料库”视图中检索“{query}”"],
  "change.computing": ["Computing…", "正在计算……"],
  "change.about": ["What p and q mean", "p 值与 q 值的含义"],
  "change.about.p": [
    "p is how often mixing the sentences of the periods at random gives a score at least this high. A small p means that chance is a poor explanation.",
    "p 值：把各时期的句子随机打乱后，得到同样高或更高分数的比例。p 值越小，越难用偶然来解释。",
  ],
  "change.about.q": [
    "Of many words, some have a small p by chance. q corrects for this: among all words with q up to 0.05, about 5% are expected to be false alarms.",
    "词很多时，总有一些词碰巧 p 值很小。q 值对此作了校正：在 q 值不超过 0.05 的词中，预计约有 5% 是误报。",
  ],
  "change.about.size": [
    "A difference between corpora is not always a change of meaning: topics, genres and names differ, too. With few sentences the score is uncertain; read the sentences before you conclude.",
    "语料之间的差异不一定是词义变化，题材、文体和专名也会造成差异。例句较少时分数并不可靠，下结论之前请先读例句。",
  ],
  "change.summary": ["Score {score} (95% interval {low} to {high}), p {p}, q {q}.", "分数 {score}（95% 区间 {low} 至 {high}），p {p}，q {q}。"],
  "change.summary.short": ["Score {score}, p {p}, q {q}.", "分数 {score}，p {p}，q {q}。"],
  "change.summary.sure": ["Chance alone rarely gives a difference this large.", "仅凭偶然很难出现这么大的差异。"],
  "change.summary.unsure": ["Chance alone can explain this difference.", "这一差异可能只是偶然。"],
  "change.summary.within": ["One sense was found; the change is within it.", "只发现一个义项，变化发生在这个义项内部。"],
  "change.few": ["Few uses ({n}): the score and the shares are uncertain.", "用法较少（{n}），分数和比例仅供参考。"],
  "change.few.part": ["{n} in {period}", "{period}：{n} 处"],
  "change.shares": ["Senses by period", "各时期的义项比例"],
  "change.shares.note": ["Click a part of a bar to see its sentences.", "点击条形中的一段，查看对应的例句。"],
  "change.shares.part": ["{period}, {sense}: {share}, {n} uses", "{period}，{sense}：{share}，{n} 处用法"],
  "change.uses": ["{period} ({n} uses)", "{period}（{n} 处）"],
  "change.map": ["Map of the uses of “{word}”", "“{word}”的用法地图"],
  "change.map.note": ["Close points are similar uses. Click a point to read its sentence.", "距离越近，用法越相似。点击一个点可以阅读例句。"],
  "change.point": ["{period}: {text}", "{period}：{text}"],
  "change.color": ["Color", "颜色"],
  "change.color.period": ["by period", "按时期"],
  "change.color.sense": ["by sense", "按义项"],
  "change.typical": ["Typical of each period", "各时期的典型例句"],
  "change.typical.note": ["Sentences that are close to the uses of their period and far from the others.", "这些例句接近本时期的用法，与其他时期差别较大。"],
  "change.lines": ["Sentences", "例句"],
  "change.lines.label": ["{n} sentences with “{word}”", "含“{word}”的 {n} 条例句"],
  "change.filter": ["Only lines with", "只看包含"],
  "change.period": ["Period", "时期"],
  "change.all": ["all periods", "所有时期"],
  "change.sense": ["Sense", "义项"],
  "change.all.senses": ["all senses", "所有义项"],
  "change.shown": ["{shown} of {n} sentences", "共 {n} 条，显示 {shown} 条"],
  "change.shown.all": ["{n} sentences", "共 {n} 条"],
  "change.open": ["Open in Sentence", "在“句子”中打开"],
  "change.close": ["Close", "关闭"],
  "change.column.word": ["word", "词"],
  "change.column.score": ["score", "分数"],
  "change.column.low": ["low", "下限"],
  "change.column.high": ["high", "上限"],
  "change.column.per": ["per million, {period}", "每百万词，{period}"],
  "change.column.uses": ["uses, {period}", "用法数，{period}"],
  "change.column.frequency": ["Frequency per million", "每百万词频率"],
  "change.frequency.note": ["{periods}: frequency per million", "{periods}：每百万词频率"],
  "change.column.sense": ["sense", "义项"],
  "change.column.name": ["name", "名称"],
  "change.column.period": ["period", "时期"],
  "change.column.before": ["before", "左侧"],
  "change.column.use": ["word", "词"],
  "change.column.after": ["after", "右侧"],
  "change.column.place": ["place", "出处"],
});

const count = (n) => n.toLocaleString("en-US");
const perMillion = (value) => (value >= 10 ? count(Math.round(value)) : value.toPrecision(2));
const score = (value) => value.toFixed(3);

/** A p or q value for readers. */
function chance(value) {
  if (value === null || value === undefined) return "–";
  return value < 0.001 ? "<0.001" : value.toFixed(value < 0.1 ? 3 : 2);
}

/** "= 0.02" or "< 0.001". */
function relation(value) {
  const text = chance(value);
  return text.startsWith("<") ? `< ${text.slice(1)}` : `= ${text}`;
}

const WAIT_MILLISECONDS = 500; // between questions about progress

function View({ state, update, go, api, catalog, t }) {
  const [attempt, setAttempt] = useState(0);
  const progress = useRequest(`periods|${attempt}`, (signal) => api.periods(signal));
  const isMeasuring = progress.value?.status === "measuring";
  useEffect(() => {
    if (!isMeasuring) return undefined;
    const timer = setTimeout(() => setAttempt((n) => n + 1), WAIT_MILLISECONDS);
    return () => clearTimeout(timer);
  }, [progress.value]);
  const request = useRequest(progress.value && !isMeasuring ? "words" : null, (signal) => api.change({ n: N_WORDS, signal }));
  const list = request.value;
  const fallback = list?.words[0]?.word ?? null;
  const word = state.word || fallback;
  const detail = useRequest(word ? `word|${word}` : null, (signal) => api.changeWord({ word, signal }));
  const isChosen = useRef(false); // whether someone has chosen the word in the list
  useEffect(() => {
    const title = isChosen.current && document.querySelector(".change .word-title");
    isChosen.current = false;
    if (title && title.getBoundingClientRect().top > innerHeight * 0.8) reveal(title); // below the list, on a phone
  });
  const choose = (patch) => {
    isChosen.current = "word" in patch;
    update(patch);
  };
  const error = progress.error ?? request.error;
  return html`<div class="change stack" data-state=${(!list && !error) || request.isStale || (word && detail.isStale) ? "busy" : "ready"}>
    ${!list && !error && !isMeasuring && html`<p class="note" role="status">${t("change.loading")}</p>`}
    ${isMeasuring && !error && html`<${Progress} ...${progress.value} t=${t} />`}
    ${error && html`<p class="message error" role="alert">${describeError(error, t)}</p>`}
    ${list && html`<p class="intro">${t("change.intro", { first: list.periods[0], last: list.periods.at(-1) })}</p>
      <div class="change-columns">
        <${Ranking} ...${{ list, word, state, update: choose, go, hasCorpus: catalog.indexes.length > 0, t }} />
        <div class="stack">
          ${detail.error && (!detail.isStale || detail.error.retryAfter) && html`<p class="message error" role="alert">${describeError(detail.error, t)}</p>`}
          ${word && detail.isStale && html`<div class="card" data-waiting><h2 class="word-title" dir="auto">${word}</h2><p class="note" role="status">${t("change.computing")}</p></div>`}
          ${detail.value && !detail.isStale && html`<${Word} key=${detail.value.word} ...${{ detail: detail.value, state, update, go, t }} />`}
        </div>
      </div>`}
  </div>`;
}

/** Scroll to an element, without motion if this is preferred. */
function reveal(element) {
  const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
  element.scrollIntoView({ behavior: isStill ? "auto" : "smooth", block: "start" });
}

/** How far the comparison of the periods is; `progress` is null while the texts are read. */
function Progress({ stage, progress, periods, t }) {
  const share = progress === null ? null : format.whole(progress);
  return html`<div class="card stack" data-progress>
    <p role="status">${t(`change.progress.${stage}`, { periods: t.list(periods), share })}</p>
    <progress aria-label=${t("change.progress.label")} max="1" value=${progress ?? undefined}></progress>
    <p class="note">${t("change.progress.note")}</p>
  </div>`;
}

/** The words in a table, with a picture of score and interval in each row. */
function Ranking({ list, word, state, update, go, hasCorpus, t }) {
  const { periods } = list;
  const body = useRef(null);
  const sort = SORTS.includes(state.sort) ? state.sort : "low";
  const hasFrequency = list.words.some(({ frequency }) => frequency);
  const query = state.query.trim().toLowerCase();
  const rows = useMemo(() => {
    const found = list.words.filter((item) => item.word.toLowerCase().includes(query));
    const total = ({ frequency, usages }) => (frequency ?? usages).reduce((sum, value) => sum + value, 0);
    const compare = {
      low: (a, b) => (b.low ?? b.score) - (a.low ?? a.score),
      score: (a, b) => b.score - a.score,
      p: (a, b) => (a.p ?? 1) - (b.p ?? 1) || b.score - a.score,
      q: (a, b) => (a.q ?? 1) - (b.q ?? 1) || b.score - a.score,
      word: (a, b) => (a.word < b.word ? -1 : 1),
      frequency: (a, b) => total(b) - total(a),
    }[sort];
    return found.sort(compare);
  }, [list, query, sort]);
  const high = Math.max(1e-9, ...list.words.map((item) => item.high ?? item.score));
  const low = Math.min(...list.words.map((item) => item.low ?? item.score));
  const choose = (name) => update({ word: name, period: -1, sense: 0, use: -1, filter: "" });
  useEffect(() => {
    const row = body.current?.querySelector("[aria-current=true]")?.closest("tr"), frame = body.current;
    if (row && (row.offsetTop < frame.scrollTop || row.offsetTop > frame.scrollTop + frame.clientHeight - 40)) frame.scrollTop = row.offsetTop - 80;
  }, [rows.length === 0]);
  const onKeyDown = (event) => {
    const buttons = [...body.current.querySelectorAll("button.change-word")];
    const at = buttons.indexOf(document.activeElement);
    const next = at < 0 ? undefined : { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (!buttons[next]) return;
    event.preventDefault();
    buttons[next].focus();
  };
  const columns = [t("change.column.word"), t("change.column.score"), t("change.column.low"), t("change.column.high"), "p", "q",
    ...(hasFrequency ? periods.map((period) => t("change.column.per", { period })) : []), ...periods.map((period) => t("change.column.uses", { period }))];
  const entry = rows.some((item) => item.word === word) ? word : rows[0]?.word;
  const hasIntervals = list.words.some((item) => item.low !== null);
  const note = html`${t("change.words.note")}${hasIntervals && html`<span class="interval-note">${t.gap}${t("change.words.interval")}</span>`}${t.gap}${t("change.words.omitted")}`;
  return html`<div class="card ranking">
    <${Figure} name="change-words" title=${t("change.words")} note=${note} hasPicture=${false}
      table=${() => ({ columns, rows: rows.map((item) => [item.word, item.score, item.low, item.high, item.p, item.q, ...(hasFrequency ? item.frequency ?? periods.map(() => null) : []), ...item.usages]) })}>
      <div class="toolbar lines-tools">
        <label class="pick-inline grow"><span>${t("change.search")}</span>
          <input id="query" type="search" dir="auto" autocomplete="off" spellcheck="false" value=${state.query} onInput=${(event) => update({ query: event.target.value })} /></label>
        <label class="pick-inline"><span>${t("change.sort")}</span>
          <select id="sort" value=${sort} onChange=${(event) => update({ sort: event.target.value })}>
            ${SORTS.map((name) => html`<option key=${name} value=${name} selected=${name === sort}>${t(`change.sort.${name}`)}</option>`)}</select></label>
        <span class="note" role="status" data-count>${t("change.count", { n: count(rows.length) })}</span>
      </div>
      ${!rows.length && html`<p class="note">${t("change.none")}${t.gap}
        ${query && hasCorpus && html`<button type="button" class="link" data-corpus onClick=${() => go("corpus", { word: state.query.trim().slice(0, 200) })}>
          ${t("change.none.corpus", { query: brief(state.query.trim()) })}</button>`}</p>`}
      ${rows.length > 0 && html`<div class="table-scroll ranking-scroll" ref=${body} onKeyDown=${onKeyDown}><table>
        <caption class="hidden">${t("change.words")}</caption>
        <thead><tr><th scope="col">${t("change.column.word")}</th><th scope="col" class="number">${t("change.column.score")}</th><td class="interval-cell"></td>
          <th scope="col" class="number">p</th><th scope="col" class="number">q</th>
          ${periods.map((period) => html`<th key=${period} scope="col" class="number frequency" title=${hasFrequency ? t("change.column.frequency") : ""}>${period}</th>`)}</tr></thead>
        <tbody>${rows.map((item) => html`<tr key=${item.word} class=${item.word === word ? "is-chosen" : ""} onClick=${() => choose(item.word)}>
          <th scope="row"><button type="button" class="link change-word" data-word=${item.word} aria-current=${String(item.word === word)} tabindex=${item.word === entry ? 0 : -1}><bdi>${item.word}</bdi></button></th>
          <td class="number">${score(item.score)}</td>
          <td class="interval-cell"><${Interval} item=${item} low=${low} high=${high} /></td>
          <td class="number">${chance(item.p)}</td><td class="number">${chance(item.q)}</td>
          ${periods.map((period, k) => html`<td key=${period} class="number frequency">${item.frequency ? perMillion(item.frequency[k]) : count(item.usages[k])}</td>`)}
        </tr>`)}</tbody>
      </table></div>`}
      ${hasFrequency && rows.length > 0 && html`<p class="note frequency">${t("change.frequency.note", { periods: t.list(periods) })}</p>`}
      <details class="about"><summary>${t("change.about")}</summary>
        <p>${t("change.about.p")}</p><p>${t("change.about.q")}</p><p>${t("change.about.size")}</p></details>
    </${Figure}>
  </div>`;
}

function Interval({ item, low, high }) {
  const x = (value) => 4 + (62 * (value - low)) / Math.max(1e-9, high - low);
  return html`<svg class="interval" width="70" height="16" viewBox="0 0 70 16" aria-hidden="true">
    ${item.low !== null && item.high !== null && html`<line class="range" x1=${x(item.low)} x2=${x(item.high)} y1="8" y2="8" />`}
    <circle cx=${x(item.score)} cy="8" r="3.5" /></svg>`;
}

/** One word: senses by period, map, typical sentences, all sentences. */
function Word({ detail, state, update, go, t }) {
  const { word, periods, senses, lines, typical, usages } = detail;
  const [active, setActive] = useState(null);
  const period = state.period >= 0 && state.period < periods.length ? state.period : -1;
  const sense = senses.some((item) => item.sense === state.sense) ? state.sense : 0;
  const use = state.use >= 0 && state.use < lines.length ? state.use : null;
  const color = state.color === "sense" ? "sense" : "period";
  const filter = state.filter.toLowerCase();
  const names = useMemo(() => new Map(senses.map((item) => [item.sense, senseName(item, t)])), [senses, t]);
  const groupOf = (line) => (color === "sense" ? line.sense - 1 : line.period);
  const isShown = (line) => (period < 0 || line.period === period) && (!sense || line.sense === sense) && matches(line, filter);
  const shown = useMemo(() => lines.map((_, k) => k).filter((k) => isShown(lines[k])), [lines, period, sense, filter]);
  const items = useMemo(() => shown.map((k) => ({ id: k, line: lines[k], group: groupOf(lines[k]), note: periods[lines[k].period] })), [shown, color]);
  const points = useMemo(() => {
    const set = new Set(shown);
    return lines.map((line, k) => ({ id: k, x: line.x, y: line.y, group: groupOf(line), isDim: !set.has(k) }));
  }, [shown, color]);
  const select = (k) => update((state) => ({ use: state.use === k ? -1 : k }));
  const list = useRef(null); // the card of the sentences
  const selectPart = (k, number) => {
    if (k === period && number === sense) return update({ period: -1, sense: 0 });
    update({ period: k, sense: number });
    return requestAnimationFrame(() => list.current && reveal(list.current)); // the list is far below the bars
  };
  const isSure = detail.q !== null && detail.q !== undefined && detail.q <= 0.05;
  const chosen = use === null ? null : lines[use];
  const few = usages.map((n, k) => [n, periods[k]]).filter(([n]) => n < FEW);
  const values = { score: score(detail.score), low: detail.low === null ? "" : score(detail.low), high: detail.high === null ? "" : score(detail.high), p: relation(detail.p), q: relation(detail.q) };
  const row = (line) => [periods[line.period], line.sense, senses[line.sense - 1].name.join(", "), line.before, line.word, line.after, line.place];
  const columns = ["period", "sense", "name", "before", "use", "after", "place"].map((name) => t(`change.column.${name}`));
  const legend = color === "sense" ? senses.map((item) => ({ group: item.sense - 1, label: names.get(item.sense) })) : periods.map((label, k) => ({ group: k, label }));
  return html`
    <div class="card stack">
      <div><h2 class="word-title" dir="auto">${word}</h2>
        <p class="note" data-summary>${t.sentences([
          t(detail.low === null ? "change.summary.short" : "change.summary", values),
          detail.q !== null && detail.q !== undefined && t(isSure ? "change.summary.sure" : "change.summary.unsure"),
          isSure && senses.length === 1 && t("change.summary.within"),
        ])}</p>
        ${few.length > 0 && html`<p class="note" data-few>${t("change.few", { n: t.clauses(few.map(([n, name]) => t("change.few.part", { n, period: name }))) })}</p>`}</div>
      <${Figure} name="change-shares" level=${3} title=${t("change.shares")} note=${t("change.shares.note")}
        table=${() => ({ columns: [t("change.column.sense"), t("change.column.name"), ...periods], rows: senses.map((item) => [item.sense, item.name.join(", "), ...item.shares]) })}
        legend=${html`<${GroupLegend} items=${senses.map((item) => ({ group: item.sense - 1, label: names.get(item.sense) }))} />`}>
        <${Shares} ...${{ senses, periods, usages, names, period, sense, t }} onSelect=${selectPart} />
      </${Figure}>
    </div>
    <div class="card">
      <${Figure} name="change-map" level=${3} title=${t("change.map", { word })} note=${t("change.map.note")}
        table=${() => ({ columns: [...columns, "x", "y"], rows: lines.map((line) => [...row(line), line.x, line.y]) })}
        legend=${html`<${GroupLegend} items=${legend} />`}>
        <${Choice} name="color" label=${t("change.color")} value=${color} onChange=${(value) => update({ color: value })} values=${["period", "sense"].map((name) => [name, t(`change.color.${name}`)])} />
        <${UseMap} points=${points} active=${active} selected=${use} onHover=${setActive} onSelect=${select} height=${320}
          describe=${(k) => t("change.point", { period: periods[lines[k].period], text: fullText(lines[k]) })} description=${t("change.map", { word })} />
      </${Figure}>
    </div>
    <div class="card">
      <${Figure} name="change-typical" level=${3} title=${t("change.typical")} note=${t("change.typical.note")} hasPicture=${false}
        table=${() => ({ columns, rows: typical.flat().map((k) => row(lines[k])) })}>
        <div class="typical">${periods.map((name, k) => html`<section key=${name} aria-label=${name}>
          <h4><svg width="14" height="14" viewBox="-8 -8 16 16" aria-hidden="true"><path d=${groupShape(k, 5.5)} fill=${groupColor(k)} /></svg><bdi>${name}</bdi></h4>
          <ul>${typical[k].map((number) => html`<li key=${number}><button type="button" class="typical-line" dir="auto" aria-pressed=${String(number === use)}
            onMouseEnter=${() => setActive(number)} onMouseLeave=${() => setActive(null)} onFocus=${() => setActive(number)} onBlur=${() => setActive(null)}
            onClick=${() => select(number)}>${nearby(lines[number])}</button></li>`)}</ul></section>`)}</div>
      </${Figure}>
    </div>
    <div class="card change-list" ref=${list}>
      <${Figure} name="change-lines" level=${3} title=${t("change.lines")} hasPicture=${false} table=${() => ({ columns, rows: shown.map((k) => row(lines[k])) })}>
        <div class="toolbar lines-tools">
          <label class="pick-inline"><span>${t("change.period")}</span><select id="period" value=${period} onChange=${(event) => update({ period: Number(event.target.value) })}>
            <option value="-1" selected=${period < 0}>${t("change.all")}</option>${periods.map((name, k) => html`<option key=${k} value=${k} selected=${k === period}>${name}</option>`)}</select></label>
          <label class="pick-inline"><span>${t("change.sense")}</span><select id="sense" value=${sense} onChange=${(event) => update({ sense: Number(event.target.value) })}>
            <option value="0" selected=${!sense}>${t("change.all.senses")}</option>${senses.map((item) => html`<option key=${item.sense} value=${item.sense} selected=${item.sense === sense}>${names.get(item.sense)}</option>`)}</select></label>
          <label class="pick-inline grow"><span>${t("change.filter")}</span><input id="filter" type="search" dir="auto" autocomplete="off" spellcheck="false" value=${state.filter} onInput=${(event) => update({ filter: event.target.value })} /></label>
          <span class="note" role="status">${shown.length < lines.length
            ? t("change.shown", { shown: count(shown.length), n: count(lines.length) }) : t("change.shown.all", { n: count(lines.length) })}</span>
        </div>
        ${chosen && html`<${ChosenUse} line=${chosen} details=${`${periods[chosen.period]} · ${chosen.place} · ${names.get(chosen.sense)}`}>
          <button type="button" class="quiet" onClick=${() => go("sentence", { text: fullText(chosen).slice(0, 2000) })}>${t("change.open")}</button>
          <button type="button" class="quiet" onClick=${() => update({ use: -1 })}>${t("change.close")}</button>
        </${ChosenUse}>`}
        <${Lines} items=${items} active=${active} selected=${use} onHover=${setActive} onSelect=${select} rows=${12} scrollKey=${`${word}|${period}|${sense}|${filter}`}
          label=${t("change.lines.label", { n: count(shown.length), word })} />
      </${Figure}>
    </div>`;
}

/** A sentence around its word. */
function nearby({ before, word, after }) {
  const left = before.length > 110 ? `…${before.slice(-100).replace(/^\S*\s?/, "")}` : before;
  const right = after.length > 110 ? `${after.slice(0, 100).replace(/\s?\S*$/, "")}…` : after;
  return html`${left}<strong>${word}</strong>${right}`;
}

/** One bar per period, divided by senses; its parts are buttons. */
function Shares({ senses, periods, usages, names, period, sense, onSelect, t }) {
  const [box, width] = useWidth();
  const id = useId("shares");
  const group = useRef(null);
  const [focused, setFocused] = useState("0-0");
  const BAR = 30, STEP = 60;
  const parts = periods.flatMap((_, k) => {
    let at = 0;
    return senses.map((item, j) => {
      const part = { key: `${k}-${j}`, k, j, item, share: item.shares[k], x: at * width };
      at += item.shares[k];
      return part;
    });
  });
  const real = parts.filter(({ share }) => share > 0);
  const entry = real.some(({ key }) => key === focused) ? focused : real[0]?.key;
  const onKeyDown = (event, part) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      onSelect(part.k, part.item.sense);
      return;
    }
    const same = real.filter(({ k }) => k === part.k), at = same.indexOf(part);
    const row = { ArrowDown: part.k + 1, ArrowUp: part.k - 1 }[event.key];
    const next = row !== undefined ? real.find(({ k, j }) => k === row && j === part.j) ?? real.find(({ k }) => k === row)
      : { ArrowRight: same[at + 1], ArrowLeft: same[at - 1], Home: same[0], End: same.at(-1) }[event.key];
    if (!next) return;
    event.preventDefault();
    setFocused(next.key);
    group.current.querySelector(`[data-mark="${next.key}"]`).focus();
  };
  const height = periods.length * STEP;
  return html`<div ref=${box} class="chart-box">
    <svg class="chart shares" viewBox=${`0 0 ${width} ${height}`} height=${height} role="group" aria-labelledby=${id}>
      <title id=${id}>${t("change.shares")}</title>
      ${periods.map((name, k) => html`<text key=${k} class="share-period" x="0" y=${k * STEP + 14}>${shorten(t("change.uses", { period: name, n: count(usages[k]) }), width)}</text>`)}
      <g ref=${group}>${real.map((part) => {
        const size = Math.max(1, part.share * width - 2), label = format.percent(part.share);
        const isChosen = part.k === period && part.item.sense === sense;
        const isDim = (period >= 0 || sense > 0) && !((period < 0 || part.k === period) && (!sense || part.item.sense === sense));
        return html`<g key=${part.key} class=${`mark share ${isChosen ? "is-selected" : ""} ${isDim ? "is-dim" : ""}`} data-mark=${part.key} role="button" tabindex=${part.key === entry ? 0 : -1} aria-pressed=${String(isChosen)}
            aria-label=${t("change.shares.part", { period: periods[part.k], sense: names.get(part.item.sense), share: label, n: count(Math.round(part.share * usages[part.k])) })}
            onClick=${() => onSelect(part.k, part.item.sense)} onKeyDown=${(event) => onKeyDown(event, part)} onFocus=${() => setFocused(part.key)}>
          <rect x=${part.x} y=${part.k * STEP + 21} width=${size} height=${BAR} rx="3" fill=${groupColor(part.j)} />
          ${size > textWidth(label) + 10 && html`<text class="share-label" x=${part.x + size / 2} y=${part.k * STEP + 21 + BAR / 2} dy="0.35em" text-anchor="middle">${label}</text>`}
        </g>`;
      })}</g>
    </svg>
  </div>`;
}

export default {
  id: "change",
  requires: "periods",
  defaults: () => ({ word: "", query: "", sort: "low", period: -1, sense: 0, use: -1, color: "period", filter: "" }),
  View,
};
