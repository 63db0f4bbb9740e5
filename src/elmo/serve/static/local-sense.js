// Vectors for comparing usages of words, as in elmo.embed.sense (layers "sense"): the words that are expected in the place
// of a word, the states that predict it, the words nearby, and the word itself.
import { logPriors } from "./local-lexicon.js";

const STATES_WEIGHT = 0.5, NEARBY_WEIGHT = 0.5, TOKEN_WEIGHT = 0.6;
const N_CANDIDATES = 4000; // number of most frequent words that can be expected
const DECAY = 8, REACH = 40; // of the weights of nearby words, in tokens
const FREQUENCY = 1e-4; // a word with this probability counts half

/** Computes the vectors of a model. */
export class SenseView {
  /**
   * @param {import("./local-network.js").Network} network
   * @param {Object | null} table  the vocabulary; null if the model has no softmax
   * @param {Float32Array | null} weight  the softmax, (word, width / 2)
   */
  constructor(network, table, weight) {
    this.network = network;
    this.table = table;
    this.weight = weight;
    if (!table) return;
    const special = new Set([table.bos, table.eos, table.unknown]);
    this.priors = logPriors(table.words.length);
    this.wordWeights = Float32Array.from(this.priors, (prior, row) => (special.has(row) ? 0 : FREQUENCY / (FREQUENCY + Math.exp(prior))));
    this.candidates = Array.from({ length: Math.min(N_CANDIDATES, table.words.length) }, (_, row) => row).filter((row) => !special.has(row));
  }

  /** The vectors of some tokens of an encoded sentence, (token, width). */
  async vectors(tokens, encoded, [begin, end]) {
    const { width } = this.network, half = width / 2;
    const result = new Float32Array((end - begin) * width);
    for (let k = begin; k < end; k++) {
      const pair = this._states(encoded, k);
      const states = pair[0].map((value, i) => value + pair[1][i]);
      let context = states;
      if (this.table) {
        context = unit(await this._expected(pair));
        add(context, unit(states), STATES_WEIGHT);
        add(context, unit(this._nearby(tokens, k)), NEARBY_WEIGHT);
      }
      const own = encoded.layers.slice(k * width, k * width + half); // of layer 0
      const scale = Math.sqrt(1 + TOKEN_WEIGHT ** 2), at = (k - begin) * width;
      result.set(unit(context).map((value) => value / scale), at);
      result.set(unit(own).map((value) => (TOKEN_WEIGHT * value) / scale), at + half);
    }
    return result;
  }

  /** The two states that predict a token; at an edge of the sentence, the state that has read words counts twice. */
  _states(encoded, k) {
    const [forward, backward] = [0, 1].map((direction) => this.network.stateAt(encoded, direction, k + 1));
    if (encoded.n === 1) return [forward, backward];
    return [k === 0 ? backward : forward, k === encoded.n - 1 ? forward : backward];
  }

  /** The mean of the rows of the softmax, weighted by how much better the words fit here than elsewhere. */
  async _expected(pair) {
    const { candidates, priors, weight } = this;
    const half = this.network.width / 2;
    const scores = Float64Array.from(candidates, (row) => -2 * priors[row]);
    await this.network.predict(pair, (_, logs) => candidates.forEach((row, k) => (scores[k] += logs[row])));
    const highest = scores.reduce((a, b) => Math.max(a, b), -Infinity);
    const expected = new Float32Array(half);
    candidates.forEach((row, k) => add(expected, unit(weight.slice(row * half, (row + 1) * half)), Math.exp(scores[k] - highest)));
    return expected;
  }

  /** The sum of the rows of the words around a token. */
  _nearby(tokens, k) {
    const half = this.network.width / 2, sum = new Float32Array(half);
    for (let j = Math.max(0, k - REACH); j <= Math.min(tokens.length - 1, k + REACH); j++) {
      const row = j === k ? undefined : this._find(tokens[j]);
      if (row === undefined) continue;
      add(sum, unit(this.weight.slice(row * half, (row + 1) * half)), this.wordWeights[row] * Math.exp(-Math.abs(j - k) / DECAY));
    }
    return sum;
  }

  _find(token) {
    const form = this.network.lookupForm(token);
    return this.table.rows.get(form) ?? this.table.rows.get(form.toLowerCase());
  }
}

/** Scale a vector to unit length, in place; zeros stay zero. */
function unit(vector) {
  let sum = 0;
  for (const value of vector) sum += value * value;
  const norm = Math.sqrt(sum) || 1;
  for (let i = 0; i < vector.length; i++) vector[i] /= norm;
  return vector;
}

function add(sum, vector, weight) {
  for (let i = 0; i < sum.length; i++) sum[i] += weight * vector[i];
}
