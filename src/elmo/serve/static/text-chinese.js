/**
 * Convert Chinese to simplified characters as OpenCC does, and split it into words as jieba does.
 *
 * A text is an array of code points. The tables come from `elmo.serve.export_text`, which takes them from the
 * installed libraries.
 */

/**
 * @typedef {Object} SimplifierData
 * @property {[string, string]} normalization  characters, and the characters that replace them
 * @property {[string, string]} characters     traditional characters, and their simplified forms
 * @property {[string, string]} phrases        the same for phrases, separated by spaces
 * @property {boolean} keeps_descriptions      whether descriptions of characters, such as ⿰長長, stay unchanged
 * @property {boolean} stops_at_nul            whether OpenCC converts a text only up to the first NUL
 */

/**
 * Build a function that converts a text to simplified characters, without changing its length.
 *
 * @param {SimplifierData} data
 * @returns {(points: Int32Array) => Int32Array}
 */
export function makeSimplifier(data) {
  const normalization = pairCharacters(data.normalization);
  const characters = pairCharacters(data.characters);
  const phrases = pairPhrases(data.phrases);

  /** Apply a step from left to right, but not to descriptions of characters. */
  function convert(points, step) {
    const converted = points.slice();
    for (let i = 0; i < points.length; ) {
      const length = data.keeps_descriptions ? findDescription(points, i) : 0;
      i += length || step(points, i, converted);
    }
    return converted;
  }

  function normalizeCharacter(points, i, converted) {
    converted[i] = normalization.get(points[i]) ?? points[i];
    return 1;
  }

  function convertPhrase(points, i, converted) {
    for (const [traditional, simplified] of phrases.get(points[i]) ?? []) {
      if (traditional.every((point, k) => points[i + k] === point)) {
        converted.set(simplified, i);
        return traditional.length;
      }
    }
    converted[i] = characters.get(points[i]) ?? points[i];
    return 1;
  }

  return function simplify(points) {
    if (data.stops_at_nul && points.includes(0)) {
      // elmo then converts each character alone, except in a text with lone surrogates
      if (points.some(isSurrogate)) return points;
      const single = (point) => normalization.get(point) ?? point;
      return points.map((point) => characters.get(single(point)) ?? single(point));
    }
    return convert(convert(points, normalizeCharacter), convertPhrase);
  };
}

/** @returns {Map<number, number>} */
function pairCharacters([from, to]) {
  const targets = toCodePoints(to);
  return new Map(Array.from(toCodePoints(from), (point, k) => [point, targets[k]]));
}

/** Return the phrases that start with each character, the longest first. */
function pairPhrases([from, to]) {
  const targets = to.split(" ");
  /** @type {Map<number, [Int32Array, Int32Array][]>} */
  const phrases = new Map();
  from.split(" ").forEach((phrase, k) => {
    if (!phrase) return;
    const points = toCodePoints(phrase);
    if (!phrases.has(points[0])) phrases.set(points[0], []);
    phrases.get(points[0]).push([points, toCodePoints(targets[k])]);
  });
  for (const list of phrases.values()) list.sort((a, b) => b[0].length - a[0].length);
  return phrases;
}

const MAX_DESCRIPTION_DEPTH = 16;
const MAX_DESCRIPTION_LENGTH = 64;

/** Return the length of the ideographic description sequence at a position, or 0 if there is none. */
function findDescription(points, start) {
  if (countOperands(points[start]) === 0) return 0;
  const limit = Math.min(points.length, start + MAX_DESCRIPTION_LENGTH);
  const end = skipDescription(points, start, limit, MAX_DESCRIPTION_DEPTH);
  return end < 0 ? 0 : end - start;
}

/** Return the end of a character or a description sequence, or -1 if it is incomplete, too long or too deep. */
function skipDescription(points, start, limit, depth) {
  if (start >= limit || depth === 0) return -1;
  let end = start + 1;
  for (let n = countOperands(points[start]); n > 0 && end >= 0; n--) {
    end = skipDescription(points, end, limit, depth - 1);
  }
  return end;
}

/** Return the number of operands of an ideographic description character; 0 for other characters. */
function countOperands(point) {
  if (point < 0x2ff0 || point > 0x2fff) return 0;
  if (point === 0x2ff2 || point === 0x2ff3) return 3;
  return point >= 0x2ffe ? 1 : 2;
}

/**
 * @typedef {Object} SegmenterData
 * @property {string} dictionary_characters
 * @property {Uint8Array} trie_children
 * @property {Uint8Array} trie_labels
 * @property {Uint8Array} trie_weights
 * @property {Float64Array} weights
 * @property {string} hmm_characters
 * @property {Float64Array} hmm_start
 * @property {Float64Array} hmm_transitions
 * @property {Uint16Array} hmm_emissions
 * @property {Float64Array} hmm_values
 */

/**
 * Build a function that splits a text of Han characters, Latin letters and digits into words.
 *
 * @param {SegmenterData} data
 * @returns {(points: Int32Array) => number[]} returns the ends of the words
 */
export function makeSegmenter(data) {
  const dictionary = new Dictionary(data);
  const model = new WordModel(data);

  /** Split a block of characters that words can contain: take the most probable path of words of the dictionary. */
  function splitBlock(points, start, end, ends) {
    const words = dictionary.findPath(points, start, end);
    let single = start; // start of the characters that are words by themselves
    const flush = (upTo) => {
      if (upTo - single > 1 && !dictionary.has(points, single, upTo)) model.split(points, single, upTo, ends);
      else for (let i = single; i < upTo; i++) ends.push(i + 1);
    };
    for (let i = start; i < end; ) {
      const after = words[i - start];
      if (after - i > 1) {
        flush(i);
        ends.push(after);
        single = after;
      }
      i = after;
    }
    flush(end);
  }

  return function segment(points) {
    const ends = [];
    for (let start = 0; start < points.length; ) {
      let end = start;
      while (end < points.length && (isCommonHan(points[end]) || isLatin(points[end]))) end++;
      if (end > start) splitBlock(points, start, end, ends);
      else ends.push(++end);
      start = end;
    }
    return ends;
  };
}

/** The Han characters that jieba combines into words; others are words by themselves. */
function isCommonHan(point) {
  return point >= 0x4e00 && point <= 0x9fd5;
}

function isLatin(point) {
  return (point >= 0x30 && point <= 0x39) || (point >= 0x41 && point <= 0x5a) || (point >= 0x61 && point <= 0x7a);
}

/** The dictionary of jieba: a trie, whose nodes are in level order. */
class Dictionary {
  /** @param {SegmenterData} data */
  constructor(data) {
    this.labelOf = numberCharacters(toCodePoints(data.dictionary_characters));
    this.logWeights = data.weights;
    const nChildren = unpackIntegers(data.trie_children);
    const steps = unpackIntegers(data.trie_labels);
    const n = nChildren.length; // number of nodes; node 0 is the root
    this.labels = new Uint16Array(n);
    this.weights = new Uint16Array(n); // numbers of weights; 0 means that the node is not a word
    this.weights.set(unpackIntegers(data.trie_weights), 1);
    this.firstChild = new Int32Array(n + 1);
    let child = 1;
    for (let node = 0; node < n; node++) {
      this.firstChild[node] = child;
      let label = 0;
      for (let k = 0; k < nChildren[node]; k++, child++) {
        label += steps[child - 1];
        this.labels[child] = label + 1;
      }
    }
    this.firstChild[n] = child;
  }

  /** Return the child of a node for a character, or -1. */
  step(node, point) {
    const label = this.labelOf[point];
    if (label === 0) return -1;
    let low = this.firstChild[node];
    let high = this.firstChild[node + 1] - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (this.labels[middle] < label) low = middle + 1;
      else if (this.labels[middle] > label) high = middle - 1;
      else return middle;
    }
    return -1;
  }

  /** Return whether points[start..end) is a word. */
  has(points, start, end) {
    let node = 0;
    for (let i = start; i < end && node >= 0; i++) node = this.step(node, points[i]);
    return node >= 0 && this.weights[node] > 0;
  }

  /** Return, for each position, the end of the word that starts there on the most probable path to the end. */
  findPath(points, start, end) {
    const scores = new Float64Array(end - start + 1);
    const ends = new Int32Array(end - start);
    for (let i = end - 1; i >= start; i--) {
      let best = -Infinity;
      let node = 0;
      for (let j = i; j < end; j++) {
        node = this.step(node, points[j]);
        if (node < 0) break;
        if (this.weights[node] === 0) continue;
        const score = this.logWeights[this.weights[node]] + scores[j + 1 - start];
        if (score >= best) {
          best = score; // of equally probable paths, take that with the longer word
          ends[i - start] = j + 1;
        }
      }
      if (best === -Infinity) {
        best = this.logWeights[0] + scores[i + 1 - start]; // an unknown character
        ends[i - start] = i + 1;
      }
      scores[i - start] = best;
    }
    return ends;
  }
}

// The states of the hidden Markov model. Of equally probable states, jieba takes the last in this order.
const [BEGIN, END, MIDDLE, SINGLE] = [0, 1, 2, 3];
const PREVIOUS = [
  [END, SINGLE], // before BEGIN
  [BEGIN, MIDDLE], // before END
  [BEGIN, MIDDLE], // before MIDDLE
  [END, SINGLE], // before SINGLE
];

/** The hidden Markov model of jieba, which finds words that are not in the dictionary. */
class WordModel {
  /** @param {SegmenterData} data */
  constructor(data) {
    const characters = toCodePoints(data.hmm_characters);
    this.numberOf = numberCharacters(characters);
    this.nCharacters = characters.length;
    this.data = data;
  }

  /** Append the ends of the words in points[start..end). */
  split(points, start, end, ends) {
    for (let i = start; i < end; ) {
      const isHan = isCommonHan(points[i]);
      let after = i + 1;
      while (after < end && isCommonHan(points[after]) === isHan) after++;
      if (isHan) this.splitHan(points, i, after, ends);
      else ends.push(after);
      i = after;
    }
  }

  splitHan(points, start, end, ends) {
    const states = this.findStates(points, start, end);
    const before = ends.length;
    states.forEach((state, k) => {
      if (state === END || state === SINGLE) ends.push(start + k + 1);
    });
    if (ends.length === before || ends[ends.length - 1] < end) ends.push(end);
  }

  emission(state, point) {
    const number = this.numberOf[point];
    const value = number === 0 ? 0 : this.data.hmm_emissions[state * this.nCharacters + number - 1];
    return this.data.hmm_values[value];
  }

  /** Return the most probable states of the characters (Viterbi). */
  findStates(points, start, end) {
    const { hmm_start: first, hmm_transitions: transitions } = this.data;
    const n = end - start;
    const origins = new Uint8Array(4 * n); // the best previous state of each state
    let scores = Float64Array.from(first, (score, state) => score + this.emission(state, points[start]));
    for (let t = 1; t < n; t++) {
      const updated = new Float64Array(4);
      for (let state = 0; state < 4; state++) {
        const emission = this.emission(state, points[start + t]);
        const [a, b] = PREVIOUS[state];
        const viaA = scores[a] + transitions[4 * a + state] + emission;
        const viaB = scores[b] + transitions[4 * b + state] + emission;
        updated[state] = viaB >= viaA ? viaB : viaA;
        origins[4 * t + state] = viaB >= viaA ? b : a;
      }
      scores = updated;
    }
    const states = new Uint8Array(n);
    states[n - 1] = scores[SINGLE] >= scores[END] ? SINGLE : END;
    for (let t = n - 1; t > 0; t--) states[t - 1] = origins[4 * t + states[t]];
    return states;
  }
}

/** Return a table of the number of each character, starting at 1; 0 for other characters. */
function numberCharacters(characters) {
  const numbers = new Uint16Array(0x110000);
  characters.forEach((point, k) => {
    numbers[point] = k + 1;
  });
  return numbers;
}

/** Decode integers of seven bits per byte, the lowest bits first. */
function unpackIntegers(bytes) {
  const integers = new Int32Array(bytes.length);
  let n = 0;
  let shift = 0;
  let value = 0;
  for (const byte of bytes) {
    value |= (byte & 127) << shift;
    shift += 7;
    if (byte < 128) {
      integers[n++] = value;
      value = shift = 0;
    }
  }
  return integers.slice(0, n);
}

export function isSurrogate(point) {
  return point >= 0xd800 && point <= 0xdfff;
}

/**
 * Return the code points of a string; a lone surrogate is a code point.
 *
 * @param {string} text
 * @returns {Int32Array}
 */
export function toCodePoints(text) {
  const points = new Int32Array(text.length);
  let n = 0;
  for (let i = 0; i < text.length; n++) {
    const point = text.codePointAt(i);
    points[n] = point;
    i += point > 0xffff ? 2 : 1;
  }
  return points.slice(0, n);
}
