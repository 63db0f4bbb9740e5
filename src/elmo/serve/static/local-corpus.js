// The answers of the HTTP API about a corpus, from files that were written when the site was exported: some usages of
// frequent words with their vectors in 8 bits, and the change of words between periods.
import { LocalError, once, readJson } from "./local-network.js";
import { findUsage } from "./local-usages.js";

/** The usages of an index that were exported. */
export class LocalIndex {
  constructor(settings, { model, read }) {
    this.settings = settings;
    this.id = settings.entry.id;
    this.model = model;
    this._read = read;
    this._maps = new Map();
    this._words = once(async () => new Map((await readJson(read, `${settings.folder}/words.json.gz`)).map((item) => [item.word, item])));
    this._vectors = once(async () => new Int8Array((await read(`${settings.folder}/vectors.bin`)).slice().buffer));
  }

  async answer(name, body) {
    if (name === "map") return this.map(body);
    if (name === "concordance") return this.concordance(body);
    if (name === "neighbors") return this.neighbors(body);
    throw new LocalError("this page has no list of senses; use the map of a word", { status: 404, code: "not_found" });
  }

  /** The exported usages of a word: the answer to /v1/map, and the number of the first in the file of vectors. */
  async _find(word) {
    await this.model.network.loadText();
    const words = await this._words();
    const item = words.get(this._entry(word));
    if (!item) {
      const some = [...words.keys()].slice(0, 5).join(", ");
      throw new LocalError(
        `'${word.slice(0, 40)}' is not among the ${words.size} words of this exported page; it has, for example: ${some}`,
        { code: "invalid_input" },
      );
    }
    if (!this._maps.has(item.file)) this._maps.set(item.file, once(() => readJson(this._read, `${this.settings.folder}/${item.file}`)));
    return { item, map: await this._maps.get(item.file)() };
  }

  /** The dictionary entry of a word or phrase. */
  _entry(word) {
    const { keep_case: keepCase, is_simplified: isSimplified } = this.settings;
    const key = (token) => {
      const spelling = isSimplified ? this.model.network.lookupForm(token) : token;
      return keepCase ? spelling : spelling.toLowerCase();
    };
    return word.trim().split(/[ \t\r\n]+/).map(key).join(" ");
  }

  async map({ word, limit = 1000, n_clusters: nClusters = null, to = null }) {
    const { item, map } = await this._find(word);
    if (nClusters !== null && nClusters !== map.senses.length) {
      throw new LocalError(`the number of senses of '${item.word}' is ${map.senses.length} in this exported page`, { param: "n_clusters" });
    }
    const similarities = to === null ? null : await this._similarities(item, map, to, word);
    const lines = map.lines.map((line, k) => ({ ...line, similarity: similarities && similarities[k] }));
    return { ...map, index: this.id, word, lines: thin(lines, limit) };
  }

  async concordance({ word, limit = 1000, sort = "corpus", to = null }) {
    const { item, map } = await this._find(word);
    if (sort === "similarity" && to === null) throw new LocalError("to must be a usage or a marked sentence if lines are sorted by similarity", { param: "to" });
    const similarities = to === null ? null : await this._similarities(item, map, to, word);
    let lines = thin(map.lines.map(({ x, y, typical, sense, ...line }, k) => ({
      line: { ...line, similarity: similarities && similarities[k], sense: sort === "meaning" ? sense : null }, sense, typical, k,
    })), limit);
    const { tokenizer } = this.model.network;
    const context = ({ line }) => {
      const tokens = sort === "left" ? tokenizer.tokenize(line.before).tokens.reverse() : tokenizer.tokenize(line.after).tokens;
      return tokens.slice(0, 20).map((token) => token.toLowerCase());
    };
    if (sort === "left" || sort === "right") {
      const keys = new Map(lines.map((item) => [item, context(item)]));
      lines = lines.sort((a, b) => compareLists(keys.get(a), keys.get(b)) || a.k - b.k);
    } else if (sort === "similarity") lines = lines.sort((a, b) => b.line.similarity - a.line.similarity || a.k - b.k);
    else if (sort === "meaning") lines = lines.sort((a, b) => a.sense - b.sense || b.typical - a.typical || a.k - b.k);
    return { object: "concordance", index: this.id, word, total: map.total, lines: lines.map(({ line }) => line) };
  }

  async neighbors({ inputs, word = null, k = 10, among = "all" }) {
    const sentences = typeof inputs === "string" ? [inputs] : inputs;
    const results = [];
    for (const [number, sentence] of sentences.entries()) {
      try {
        results.push(await this._neighbors(sentence, { word, k, among, number: number + 1 }));
      } catch (error) {
        if (!(error instanceof LocalError) || error.code !== "invalid_input") throw error;
        results.push({ error: { message: error.message, type: "DataError", code: "invalid_input", param: null } });
      }
    }
    return { object: "neighbors", index: this.id, results, usage: { inputs: sentences.length } };
  }

  async _neighbors(sentence, { word, k, among, number }) {
    await this.model.network.load();
    const usage = findUsage(this.model.network, sentence, word, number);
    const query = await this._embed(usage);
    const own = this._entry(usage.tokens.slice(usage.begin, usage.end).join(" "));
    const candidates = [];
    for (const item of (await this._words()).values()) {
      if (among === "all" || (among === "same") === (item.word === own)) {
        const cosines = await this._cosines(item, query);
        cosines.forEach((similarity, i) => candidates.push({ item, i, similarity }));
      }
    }
    candidates.sort((a, b) => b.similarity - a.similarity);
    const seen = new Set([usage.text.trim()]), neighbors = [];
    for (const { item, i, similarity } of candidates) {
      if (neighbors.length === k) break;
      const { map } = await this._find(item.word);
      const { number, before, word, after, place } = map.lines[i];
      const text = (before + word + after).trim();
      if (seen.has(text)) continue; // the same sentence again
      seen.add(text);
      neighbors.push({ similarity, word, place, parts: [before, word, after], number });
    }
    return { word: usage.tokens.slice(usage.begin, usage.end).join(" "), sentence: usage.text, neighbors };
  }

  /** The cosine of each exported usage of a word with a usage (its number) or with a marked sentence. */
  async _similarities(item, map, to, word) {
    if (typeof to !== "number") {
      await this.model.network.load();
      return this._cosines(item, await this._embed(findUsage(this.model.network, to, word)));
    }
    const row = map.lines.findIndex(({ number }) => number === to);
    if (row < 0) throw new LocalError(`usage ${to} of '${item.word}' is not in this exported page`, { param: "to" });
    const vectors = await this._vectors();
    const { width } = this.settings;
    return this._cosines(item, vectors.subarray((item.first + row) * width, (item.first + row + 1) * width));
  }

  _embed(usage) {
    if (this.settings.start !== "zero") throw new LocalError("sentences cannot be compared with an index of warm vectors in this page", { code: "invalid_input" });
    return this.model.embed(usage, this.settings.entry.layers);
  }

  async _cosines(item, query) {
    const vectors = await this._vectors();
    const { width } = this.settings;
    const norm = Math.hypot(...query) || 1;
    return Array.from({ length: item.n }, (_, k) => {
      const begin = (item.first + k) * width;
      let dot = 0, square = 0;
      for (let i = 0; i < width; i++) {
        const value = vectors[begin + i];
        dot += value * query[i];
        square += value * value;
      }
      return Number((dot / norm / (Math.sqrt(square) || 1)).toFixed(4));
    });
  }
}

/** At most n items, evenly spread. */
function thin(items, n) {
  if (items.length <= n) return items;
  return Array.from({ length: n }, (_, k) => items[Math.floor((k * items.length) / n)]);
}

function compareLists(a, b) {
  for (let k = 0; k < Math.min(a.length, b.length); k++) if (a[k] !== b[k]) return a[k] < b[k] ? -1 : 1;
  return a.length - b.length;
}

/** The change of words between periods. */
export class LocalPeriods {
  constructor(settings, { read }) {
    this.settings = settings;
    this._read = read;
    this._changes = once(() => readJson(read, `${settings.folder}/words.json.gz`));
  }

  async answer(name, body) {
    const changes = await this._changes();
    if (name === "periods") return { object: "periods", periods: changes.periods, words: changes.words.length };
    if (name === "change") {
      const { n = 50, offset = 0, query = null } = body;
      const words = changes.words.filter(({ word }) => word.toLowerCase().startsWith((query ?? "").toLowerCase()));
      return { ...changes, words: words.slice(offset, offset + n), total: words.length };
    }
    const number = changes.words.findIndex(({ word }) => word === body.word);
    if (number < 0) throw new LocalError(`'${body.word.slice(0, 40)}' was not measured; it is too rare, or it does not occur in every period`, { code: "invalid_input" });
    return readJson(this._read, `${this.settings.folder}/${number}.json.gz`);
  }
}
