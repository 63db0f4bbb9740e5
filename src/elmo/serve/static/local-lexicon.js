// Substitutes for a word in context, as in elmo.lexicon.substitutes: both language models, a prior by Zipf's law, and
// the similarity of word vectors; summed over the forms of each lemma.
import { LocalError } from "./local-network.js";

const BETA = 1.0, TEMPERATURE = 0.05;
const WORD = 0, NUMBER = 1, PUNCTUATION = 2, SPECIAL = 3; // kinds of tokens
export const COMBINE = ["inject", "bcomb", "product", "mean", "forward", "backward"];

/** The vocabulary of a model, grouped by lemma; each word is a row, and a lemma has one or more rows. */
export class LemmaTable {
  /**
   * @param {import("./local-network.js").Network} network
   * @param {Object} table  the vocabulary with lemmas; see export.py
   * @param {Float32Array} weight  (row, width)
   */
  constructor(network, table, weight) {
    const n = table.words.length;
    this.network = network;
    this.table = table;
    this.weight = weight;
    this.width = weight.length / n;
    this.kinds = Uint8Array.from(table.words, tokenKind);
    for (const row of [table.bos, table.eos, table.unknown]) if (row !== null) this.kinds[row] = SPECIAL;
    this.lemmaOf = Uint32Array.from(table.lemma_of_row);
    this.logPrior = logPriors(n);
    this._groupForms();
    this._numberOfKey = new Map(); // from the dictionary entry of a form to its lemma
    table.words.forEach((word, row) => this._numberOfKey.set(this._key(word), this.lemmaOf[row]));
    Object.entries(table.forms ?? {}).forEach(([form, lemma]) => this._numberOfKey.set(form, lemma));
    this._numberOfLemma = new Map(table.lemmas.map((lemma, k) => [lemma, k]));
    this._computeVectors();
  }

  _groupForms() {
    const n = this.lemmaOf.length, nLemmas = this.table.lemmas.length;
    this.begins = new Uint32Array(nLemmas + 1);
    this.isWordLemma = new Uint8Array(nLemmas);
    for (let row = 0; row < n; row++) {
      this.begins[this.lemmaOf[row] + 1]++;
      if (this.kinds[row] !== SPECIAL) this.isWordLemma[this.lemmaOf[row]] = 1;
    }
    for (let k = 0; k < nLemmas; k++) this.begins[k + 1] += this.begins[k];
    const next = this.begins.slice();
    this.order = new Uint32Array(n);
    for (let row = 0; row < n; row++) this.order[next[this.lemmaOf[row]]++] = row;
  }

  /** Compute the lengths of the rows, the vectors of the lemmas, and the lengths of (unit row + lemma vector). */
  _computeVectors() {
    const { weight, width, lemmaOf } = this;
    const n = lemmaOf.length, nLemmas = this.table.lemmas.length;
    this.norms = new Float32Array(n);
    this.lemmaVectors = new Float32Array(nLemmas * width);
    for (let row = 0; row < n; row++) {
      const at = row * width, to = lemmaOf[row] * width;
      let sum = 0;
      for (let i = 0; i < width; i++) sum += weight[at + i] ** 2;
      const norm = this.norms[row] = Math.max(Math.sqrt(sum), 1e-9);
      for (let i = 0; i < width; i++) this.lemmaVectors[to + i] += weight[at + i] / norm;
    }
    for (let k = 0; k < nLemmas; k++) scaleToUnit(this.lemmaVectors.subarray(k * width, (k + 1) * width));
    this.sumNorms = new Float32Array(n);
    for (let row = 0; row < n; row++) {
      const at = row * width, to = lemmaOf[row] * width, norm = this.norms[row];
      let sum = 0;
      for (let i = 0; i < width; i++) sum += (weight[at + i] / norm + this.lemmaVectors[to + i]) ** 2;
      this.sumNorms[row] = Math.max(Math.sqrt(sum), 1e-9);
    }
  }

  /** The dictionary entry of a token. */
  _key(token) {
    const { ids } = this.network.settings;
    return (ids?.alphabet === "simplified" ? this.network.lookupForm(token) : token).toLowerCase();
  }

  /** The number of a word's lemma; null if no form of the lemma is in the vocabulary. */
  find(word) {
    const key = this._key(word);
    const lemma = this._numberOfKey.get(key) ?? this._numberOfLemma.get(key);
    return lemma !== undefined && this.isWordLemma[lemma] ? lemma : null;
  }

  forms(lemma) {
    return this.order.subarray(this.begins[lemma], this.begins[lemma + 1]);
  }

  /** Whether each row can replace a target: words and tokens of its kind, but not forms of it. */
  isAllowed(tokens) {
    const kinds = new Set([WORD, ...tokens.map(tokenKind)]);
    const allowed = Uint8Array.from(this.kinds, (kind) => (kinds.has(kind) ? 1 : 0));
    const lemma = tokens.length === 1 ? this.find(tokens[0]) : null;
    if (lemma !== null) for (const row of this.forms(lemma)) allowed[row] = 0;
    return allowed;
  }

  /** The cosine of each word with a target, (row,); null if no token of the target is known. */
  similarities(tokens) {
    const vectors = tokens.map((token) => this._vector(token)).filter(Boolean);
    if (!vectors.length) return null;
    const { weight, width, lemmaOf } = this;
    const target = new Float32Array(width);
    for (const vector of vectors) for (let i = 0; i < width; i++) target[i] += vector[i] / vectors.length;
    scaleToUnit(target);
    const byLemma = Float32Array.from(this.table.lemmas, (_, k) => dot(this.lemmaVectors, k * width, target));
    return Float32Array.from(lemmaOf, (lemma, row) => (
      (dot(weight, row * width, target) / this.norms[row] + byLemma[lemma]) / this.sumNorms[row]
    ));
  }

  /** The vector of a form or, if the form is unknown, of its lemma. */
  _vector(token) {
    const { weight, width } = this;
    const row = this.table.rows.get(this.network.lookupForm(token)) ?? this.table.rows.get(token.toLowerCase());
    if (row !== undefined && this.kinds[row] !== SPECIAL) {
      const lemma = this.lemmaOf[row] * width;
      return Float32Array.from({ length: width }, (_, i) => (
        (weight[row * width + i] / this.norms[row] + this.lemmaVectors[lemma + i]) / this.sumNorms[row]
      ));
    }
    const lemma = this.find(token);
    return lemma === null ? null : this.lemmaVectors.subarray(lemma * width, (lemma + 1) * width);
  }

  /**
   * The n best lemmas in the place of some tokens.
   *
   * @param {string[]} tokens  the target
   * @param {Float32Array | null} forward  log-probabilities of all words given the text before the target, (row,)
   * @param {Float32Array | null} backward  the same for the text after it
   */
  substitutes(tokens, { forward, backward, n, combine }) {
    const similarity = this.similarities(tokens);
    const allowed = this.isAllowed(tokens);
    const score = scorer(combine, { forward, backward, similarity, logPrior: this.logPrior });
    const scores = Float64Array.from(allowed, (isAllowed, row) => (isAllowed ? score(row) : -Infinity));
    const nLemmas = this.table.lemmas.length;
    const byLemma = new Float64Array(nLemmas);
    for (let k = 0; k < nLemmas; k++) byLemma[k] = logSum(this.forms(k), scores);
    const total = logSum(null, byLemma);
    return selectTop(byLemma, n).filter((k) => byLemma[k] > -Infinity).map((k) => {
      let best = this.begins[k];
      for (let i = best; i < this.begins[k + 1]; i++) if (scores[this.order[i]] > scores[this.order[best]]) best = i;
      const row = this.order[best];
      return {
        word: this.table.words[row], lemma: this.table.lemmas[k], probability: Math.exp(byLemma[k] - total),
        forward: forward && Math.exp(forward[row]), backward: backward && Math.exp(backward[row]),
        similarity: similarity && similarity[row], candidate: null, is_known: true,
      };
    });
  }
}

/** The function that computes the log-score of a row. */
function scorer(combine, { forward, backward, similarity, logPrior }) {
  const both = [forward, backward].filter(Boolean);
  const sum = (row) => both.reduce((total, logs) => total + logs[row], 0);
  switch (combine) {
    case "forward":
    case "backward": {
      const logs = combine === "forward" ? forward : backward;
      if (!logs) throw new LocalError(`cannot use combine='${combine}': this model has only the other direction`);
      return (row) => logs[row];
    }
    case "mean":
      return (row) => Math.log(both.reduce((total, logs) => total + Math.exp(logs[row]), 0));
    case "product":
      return sum;
    case "bcomb":
      return (row) => sum(row) - BETA * logPrior[row];
    default:
      return (row) => sum(row) / both.length - BETA * logPrior[row] + (similarity ? similarity[row] / TEMPERATURE : 0);
  }
}

/** The log-probability of each word of a vocabulary by Zipf's law. */
export function logPriors(n) {
  let total = 0;
  for (let rank = 1; rank <= n; rank++) total += 1 / rank;
  return Float32Array.from({ length: n }, (_, row) => Math.log(1 / (row + 1) / total));
}

/** The log of the sum of exponentials of some rows, or of all values. */
function logSum(rows, values) {
  const n = rows ? rows.length : values.length;
  let highest = -Infinity, sum = 0;
  for (let i = 0; i < n; i++) highest = Math.max(highest, values[rows ? rows[i] : i]);
  if (highest === -Infinity) return -Infinity;
  for (let i = 0; i < n; i++) sum += Math.exp(values[rows ? rows[i] : i] - highest);
  return highest + Math.log(sum);
}

/** The indices of the n largest values, the largest first; of equal values, the first comes first. */
export function selectTop(values, n) {
  const best = [];
  for (let k = 0; k < values.length; k++) {
    const value = values[k];
    if (best.length === n && !(value > values[best[n - 1]])) continue;
    let at = best.length;
    while (at > 0 && value > values[best[at - 1]]) at--;
    best.splice(at, 0, k);
    if (best.length > n) best.pop();
  }
  return best;
}

function dot(values, begin, vector) {
  let sum = 0;
  for (let i = 0; i < vector.length; i++) sum += values[begin + i] * vector[i];
  return sum;
}

function scaleToUnit(vector) {
  const norm = Math.sqrt(dot(vector, 0, vector)) || 1;
  for (let i = 0; i < vector.length; i++) vector[i] /= norm;
}

/** Classify a token as a number if it has a digit, as a word if it is spelled with letters, else as punctuation. */
export function tokenKind(token) {
  if (/^\p{L}+$/u.test(token)) return WORD;
  if (/[\p{Nd}\u00b2\u00b3\u00b9\u2070\u2074-\u2079\u2080-\u2089\u2460-\u2468\u2474-\u247c\u2488-\u2490]/u.test(token)) return NUMBER;
  return /^\p{L}[\p{L}\p{M}\-'’.·\u200c\u200d]*$/u.test(token) ? WORD : PUNCTUATION;
}
