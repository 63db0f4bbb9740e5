// The texts of the page in English and Chinese. A view adds its own texts with addTexts({key: [English, 中文]}).
// Placeholders have the form {name}.

const texts = {
  "app.title": ["ELMo explorer", "ELMo 词义浏览器"],
  "app.skip": ["Skip to content", "跳到正文"],
  "app.views": ["Views", "视图"],
  "app.model": ["Model", "模型"],
  "app.language": ["Language", "界面语言"],
  "app.theme": ["Colors", "配色"],
  "app.theme.auto": ["Auto", "自动"],
  "app.theme.light": ["Light", "浅色"],
  "app.theme.dark": ["Dark", "深色"],
  "app.share": ["Copy link", "复制链接"],
  "app.share.done": ["Link copied", "已复制"],
  "app.share.long": ["The text is too long for a link", "文本太长，无法放进链接"],
  "app.share.failed": ["Copy the link from the address bar", "请从地址栏复制链接"],
  "app.loading": ["Loading…", "正在加载……"],
  "app.loading.models": ["The models are being loaded. This takes a few seconds.", "正在加载模型，需要几秒钟。"],
  "app.broken": ["This view stopped because of an error: {message}", "此视图出错：{message}"],
  "app.retry": ["Try again", "重试"],
  "app.unreachable": [
    "The server does not answer. Check that it is still running, then try again.",
    "服务器没有响应。请确认它仍在运行，然后重试。",
  ],
  "app.key": ["This server requires an API key", "此服务器需要 API 密钥"],
  "app.key.label": ["API key", "API 密钥"],
  "app.key.use": ["Continue", "继续"],
  "app.needs.index": [
    "This view shows a corpus. Start the page with one: elmo explore --index FOLDER",
    "此视图用于浏览语料库。请在启动时指定索引：elmo explore --index FOLDER",
  ],
  "app.needs.periods": [
    "This view compares periods. Start the page with at least two: elmo explore --corpus 1850s=a.txt --corpus 1950s=b.txt",
    "此视图用于比较不同时期。请在启动时至少指定两个：elmo explore --corpus 1850s=a.txt --corpus 1950s=b.txt",
  ],
  "app.soon": ["This view is not available yet.", "此视图尚未提供。"],
  "tab.compare": ["Compare", "比较"],
  "tab.sentence": ["Sentence", "句子"],
  "tab.inside": ["Inside", "原理"],
  "tab.corpus": ["Corpus", "语料库"],
  "tab.change": ["Change", "历时变化"],
  "error.prefix": ["The model cannot read this: {message}", "模型无法处理：{message}"],
  "error.overloaded": ["The server is busy. The page tries again in a moment.", "服务器繁忙，稍后自动重试。"],
  "error.deadline": ["This took too long. Try a shorter text.", "处理超时。请缩短文本。"],
  "error.periods": ["The periods cannot be compared: {message}", "无法比较这些时期：{message}"],
  "error.internal": ["The server failed: {message}", "服务器出错：{message}"],
  "figure.table": ["Table", "表格"],
  "figure.tools": ["{title}: table and downloads", "{title}：表格与下载"],
  "figure.table.of": ["Show the table: {title}", "以表格显示：{title}"],
  "figure.csv.of": ["Download as CSV: {title}", "下载 CSV：{title}"],
  "figure.svg.of": ["Download as SVG: {title}", "下载 SVG：{title}"],
  "figure.png.of": ["Download as PNG: {title}", "下载 PNG：{title}"],
  "figure.more": ["The table shows {shown} of {total} rows; the CSV file has all.", "共 {total} 行，表格显示前 {shown} 行；CSV 文件包含全部。"],
  "figure.failed": ["The picture could not be made in this browser; the SVG file has the same content.", "此浏览器无法生成图片；SVG 文件内容相同。"],
  "layer.label": ["Layer", "层"],
  "layer.average": ["average", "平均"],
  "layer.name": ["layer {n}", "第 {n} 层"],
  "layer.0": ["0: word alone", "0：词本身"],
};

export const languages = [["en", "English"], ["zh", "中文"]];

/** Add the texts of a view. */
export function addTexts(more) {
  for (const [key, pair] of Object.entries(more)) {
    if (texts[key] && String(texts[key]) !== String(pair)) throw new Error(`text ${key} is defined twice`);
    texts[key] = pair;
  }
}

const HAN = /\p{Script=Han}/u;
const LATIN = /[\p{Script=Latin}\p{Nd}]/u;

/**
 * The function t(key, values) of a language. In Chinese, a value in Latin letters or digits gets a space next to a
 * Chinese character. t.list joins words, t.clauses parts of a sentence, t.sentences sentences; t.gap separates sentences.
 */
export function translator(lang) {
  const column = lang === "zh" ? 1 : 0;
  const space = (a, b) => (column === 1 && ((HAN.test(a) && LATIN.test(b)) || (LATIN.test(a) && HAN.test(b))) ? " " : "");
  const t = (key, values = {}) => {
    const pair = texts[key];
    if (!pair) throw new Error(`text ${key} is missing`);
    return pair[column].replace(/\{(\w+)\}/g, (whole, name, at, text) => {
      if (!(name in values)) return whole;
      const value = String(values[name]);
      return space(text[at - 1] ?? "", value[0] ?? "") + value + space(value.at(-1) ?? "", text[at + whole.length] ?? "");
    });
  };
  const gap = column ? "" : " ";
  return Object.assign(t, {
    gap,
    list: (words) => words.join(column ? "、" : ", "),
    clauses: (parts) => parts.join(column ? "，" : ", "),
    sentences: (parts) => parts.filter(Boolean).join(gap),
  });
}

/** A sentence that explains a failed request to the reader. */
export function describeError(error, t) {
  if (error.code === "unreachable") return t("app.unreachable");
  if (error.code === "loading" || error.code === "draining") return t("app.loading.models");
  if (error.code === "overloaded") return t("error.overloaded");
  if (error.code === "deadline_exceeded") return t("error.deadline");
  if (error.code === "periods_failed") return t("error.periods", { message: error.message.replace(/^the periods[^:]*: /, "") });
  if (error.status >= 500 || !error.status) return t("error.internal", { message: error.message });
  return t("error.prefix", { message: error.message });
}

/** A word for use in a sentence of the page: long ones are cut. */
export function brief(word, n = 40) {
  const characters = [...word];
  return characters.length > n ? `${characters.slice(0, n - 1).join("")}…` : word;
}

/** "3", "0.93", "12%": numbers for readers. */
export const format = {
  similarity: (value) => value.toFixed(2),
  percent: (value) => {
    const share = 100 * value;
    if (share >= 10) return `${share.toFixed(0)}%`;
    if (share >= 0.1) return `${share.toFixed(1)}%`;
    if (share >= 0.001) return `${share.toFixed(3)}%`;
    return "<0.001%";
  },
  whole: (value) => `${Math.floor(100 * value)}%`,
  bits: (value) => value.toFixed(1),
};
