/**
 * Split text into tokens and convert tokens to character ids, exactly as the Python package elmo does.
 *
 *   import { readTextData, makeTokenizer, characterIds } from "./text.js";
 *
 *   const reply = await fetch("text-zh.bin.gz");
 *   const data = await readTextData(await reply.arrayBuffer());
 *   const { tokens, offsets } = makeTokenizer("zh", data).tokenize("我坐在河岸上。");
 *   const ids = characterIds(tokens, idsConfig, { data }); // (time, char), with boundary tokens
 *
 * Python writes the data (`elmo.serve.export_text.write_text_data`) and the configuration of the ids
 * (`elmo.serve.export_text.build_ids_config`), a JSON object:
 *
 *   alphabet                 what counts as a character: "bytes" (UTF-8), "simplified" (UTF-8 of the word in simplified
 *                            Chinese) or "unicode"
 *   max_characters           number of ids per token
 *   bos, eos                 ids of the boundary tokens, which start and end a sentence
 *   bow, eow, pad            ids of the start of a word, the end of a word, and padding
 *   characters, oov          only "unicode": the id of each character, and the id of all others
 *
 * A JavaScript string is a sequence of UTF-16 code units, a Python string is a sequence of code points. Offsets are
 * reported in both units. There is one difference: two surrogates that follow each other in a Python string are one
 * character in JavaScript.
 */

import { isSurrogate, makeSegmenter, makeSimplifier, toCodePoints } from "./text-chinese.js";
import { compilePattern } from "./text-pattern.js";

/**
 * @typedef {Object} Tokens
 * @property {string[]} tokens
 * @property {{codepoints: [number, number][], utf16: [number, number][]}} offsets  start and end of each token;
 *     `text.slice(...offsets.utf16[k])` is token k
 *
 * @typedef {Object} Tokenizer
 * @property {string} name
 * @property {(text: string) => Tokens} tokenize
 *
 * @typedef {Object<string, any>} TextData  the contents of a data file
 *
 * @typedef {Object} IdsConfig
 * @property {"bytes" | "simplified" | "unicode"} alphabet
 * @property {number} max_characters
 * @property {number} bos
 * @property {number} eos
 * @property {number} bow
 * @property {number} eow
 * @property {number} pad
 * @property {Object<string, number>} [characters]
 * @property {number} [oov]
 */

const MAGIC = "ELMOTEXT";
const ARRAYS = { uint8: Uint8Array, uint16: Uint16Array, float64: Float64Array };

/**
 * Read a data file, which may be compressed with gzip.
 *
 * @param {ArrayBuffer | Uint8Array} file
 * @returns {Promise<TextData>}
 */
export async function readTextData(file) {
  let bytes = file instanceof Uint8Array ? file : new Uint8Array(file);
  if (bytes[0] === 0x1f && bytes[1] === 0x8b) {
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  }
  const decoder = new TextDecoder();
  if (decoder.decode(bytes.subarray(0, 8)) !== MAGIC) {
    throw new TypeError(`text data must start with ${MAGIC}; found ${bytes.length} bytes of another format`);
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const body = 12 + view.getUint32(8, true);
  const header = JSON.parse(decoder.decode(bytes.subarray(12, body)));
  const data = { ...header.values };
  for (const [name, [type, offset, length]] of Object.entries(header.arrays)) {
    const ArrayType = ARRAYS[type];
    const start = body + offset;
    // a copy, because a typed array must start at a multiple of its element size
    data[name] = new ArrayType(bytes.slice(start, start + length * ArrayType.BYTES_PER_ELEMENT).buffer);
  }
  return data;
}

/**
 * Build a tokenizer.
 *
 * @param {string} name  "en" (or "default"), "zh", "whitespace" or another language, such as "de"
 * @param {TextData} [data]  the data file of this tokenizer; not needed for "whitespace"
 * @returns {Tokenizer}
 */
export function makeTokenizer(name, data) {
  if (name === "whitespace") return { name, tokenize: tokenizeWhitespace };
  const key = name === "default" ? "en" : name;
  if (!/^[a-z]{2}$/.test(key)) {
    throw new RangeError(`tokenizer must be whitespace or a language code, such as en; found ${JSON.stringify(name)}`);
  }
  if (data?.tokenizer !== key) {
    const found = data?.tokenizer ?? "none";
    throw new TypeError(`tokenizer ${key} needs the data of text-${key}.bin.gz; found that of ${found}`);
  }
  const findMatches = compilePattern(data.pattern);
  if (key !== "zh") {
    return {
      name: key,
      tokenize(text) {
        const spans = [];
        findMatches(toCodePoints(text), (start, end) => spans.push([start, end]));
        return cutTokens(text, spans);
      },
    };
  }
  const simplify = getSimplifier(data);
  const segment = makeSegmenter(data);
  return {
    name: key,
    tokenize(text) {
      const points = toCodePoints(text);
      const spans = [];
      const report = (start, end, runEnd) => {
        if (runEnd < 0) {
          spans.push([start, end]);
          return;
        }
        const ends = segment(simplify(points.subarray(start, runEnd))).map((wordEnd) => start + wordEnd);
        ends[ends.length - 1] = end; // marks stay with the character before them
        ends.forEach((wordEnd, k) => spans.push([k ? ends[k - 1] : start, wordEnd]));
      };
      findMatches(points, report, "run");
      return cutTokens(text, spans);
    },
  };
}

/** Split text that is already tokenized: only at space, tab and line ends. */
function tokenizeWhitespace(text) {
  const points = toCodePoints(text);
  const isSpace = (point) => point === 0x20 || point === 0x09 || point === 0x0a || point === 0x0d;
  const spans = [];
  let start = -1;
  for (let i = 0; i <= points.length; i++) {
    const isInside = i < points.length && !isSpace(points[i]);
    if (isInside && start < 0) start = i;
    if (!isInside && start >= 0) {
      spans.push([start, i]);
      start = -1;
    }
  }
  return cutTokens(text, spans);
}

/**
 * Return the tokens of a text.
 *
 * @param {string} text
 * @param {[number, number][]} codepoints  the spans of the tokens, in order, in code points
 * @returns {Tokens}
 */
function cutTokens(text, codepoints) {
  let point = 0;
  let unit = 0;
  const advance = (target) => {
    for (; point < target; point++) unit += text.codePointAt(unit) > 0xffff ? 2 : 1;
    return unit;
  };
  /** @type {[number, number][]} */
  const utf16 = codepoints.map(([start, end]) => [advance(start), advance(end)]);
  return { tokens: utf16.map(([start, end]) => text.slice(start, end)), offsets: { codepoints, utf16 } };
}

/** @type {WeakMap<TextData, (points: Int32Array) => Int32Array>} */
const simplifiers = new WeakMap();

function getSimplifier(data) {
  if (!data?.simplifier) throw new TypeError("alphabet simplified needs the data of text-zh.bin.gz; pass it as data");
  if (!simplifiers.has(data)) simplifiers.set(data, makeSimplifier(data.simplifier));
  return simplifiers.get(data);
}

/**
 * Return the character ids of the tokens of a sentence: rows of [bow, characters…, eow, pad…].
 *
 * @param {string[]} tokens
 * @param {IdsConfig} config
 * @param {Object} [options]
 * @param {TextData} [options.data]  the data of the tokenizer zh, for the alphabet "simplified"
 * @param {boolean} [options.hasBoundaries]  whether to add the boundary tokens, which start and end a sentence
 * @param {"int32" | "int64"} [options.type]
 * @returns {Int32Array | BigInt64Array}  shape (time, char); time is the number of tokens, plus 2 with boundary tokens
 */
export function characterIds(tokens, config, { data, hasBoundaries = true, type = "int32" } = {}) {
  const findIds = makeAlphabet(config, data);
  const rows = tokens.map(findIds);
  if (hasBoundaries) {
    rows.unshift([config.bos]);
    rows.push([config.eos]);
  }
  const width = config.max_characters;
  const ids = new Int32Array(rows.length * width).fill(config.pad);
  rows.forEach((row, k) => {
    ids.set([config.bow, ...row, config.eow], k * width);
  });
  return type === "int64" ? BigInt64Array.from(ids, BigInt) : ids;
}

/**
 * Return the form of a token to look up in the vocabulary of the model.
 *
 * @param {string} token
 * @param {IdsConfig} config
 * @param {TextData} [data]  the data of the tokenizer zh, for the alphabet "simplified"
 * @returns {string}
 */
export function lookupForm(token, config, data) {
  if (config.alphabet === "bytes") return token;
  const points = toCodePoints(token);
  if (config.alphabet === "unicode") return toText(points.subarray(0, config.max_characters - 2));
  return toText(getSimplifier(data)(points));
}

function toText(points) {
  return Array.from(points, (point) => String.fromCodePoint(point)).join("");
}

/** Return a function that returns the ids of the characters of a token, without those of the word boundaries. */
function makeAlphabet(config, data) {
  const limit = config.max_characters - 2;
  switch (config.alphabet) {
    case "bytes":
      return (token) => byteIds(toCodePoints(token), limit);
    case "simplified": {
      const simplify = getSimplifier(data);
      return (token) => byteIds(simplify(toCodePoints(token)), limit);
    }
    case "unicode": {
      const ids = new Map(Object.entries(config.characters));
      const findId = (point) => ids.get(String.fromCodePoint(point)) ?? config.oov;
      return (token) => Array.from(toCodePoints(token).subarray(0, limit), findId);
    }
    default:
      throw new RangeError(`alphabet must be bytes, simplified or unicode; found ${JSON.stringify(config.alphabet)}`);
  }
}

/** Return the first UTF-8 bytes of a token, plus 1. Lone surrogates have no bytes. */
function byteIds(points, limit) {
  const ids = [];
  for (let i = 0; i < points.length && ids.length < limit; i++) {
    const point = points[i];
    if (isSurrogate(point)) continue;
    if (point < 0x80) ids.push(point + 1);
    else {
      const nMore = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3; // number of bytes after the first
      const lead = [0, 0xc0, 0xe0, 0xf0][nMore];
      ids.push((lead | (point >> (6 * nMore))) + 1);
      for (let k = nMore - 1; k >= 0; k--) ids.push((0x80 | ((point >> (6 * k)) & 0x3f)) + 1);
    }
  }
  return ids.slice(0, limit);
}
