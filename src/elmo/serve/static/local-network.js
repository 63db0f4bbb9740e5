// A model that runs in the browser: tokens -> ids -> model.onnx -> layers and states -> softmax.onnx -> probabilities.
// `ort` is onnxruntime-web; `read(path)` returns the bytes of a file of the exported site.
import { characterIds, lookupForm, makeTokenizer, readTextData } from "./text.js";

const BATCH_TOKENS = 1024; // tokens that the network reads at once, padding included
const BATCH_ROWS = 32; // states for which the softmax is computed at once
const CACHE_TOKENS = 6000; // tokens whose layers and states are kept

/** A request that cannot be answered; has the fields of an error of the HTTP API. */
export class LocalError extends Error {
  constructor(message, { code = "invalid_request", status = 400, param = null } = {}) {
    super(message);
    Object.assign(this, { name: "LocalError", code, status, param });
  }
}

/** Decompress a file if it is a gzip file; some hosts have decompressed it already. */
export async function gunzip(bytes) {
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return bytes;
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Read a JSON file, which may be compressed. */
export async function readJson(read, path) {
  return JSON.parse(new TextDecoder().decode(await gunzip(await read(path))));
}

/** Keep the promise of a function without arguments; a promise that fails is not kept. */
export function once(load) {
  let promise = null;
  return () => {
    promise ??= load().catch((error) => {
      promise = null;
      throw error;
    });
    return promise;
  };
}

/**
 * The layers and the states of one sentence.
 *
 * @typedef {Object} Encoded
 * @property {number} n  number of tokens
 * @property {Float32Array} layers  (layer, time, width)
 * @property {Float32Array} states  (direction, position, width / 2): state [d, p] predicts the token at position p of
 *     `<S> tokens </S>`; direction 0 has read what is before it, direction 1 what is after it
 */
export class Network {
  /** `settings` is the entry of the model in config.json. */
  constructor(settings, { ort, read }) {
    this.settings = settings;
    this.id = settings.entry.id;
    this.nLayers = settings.entry.n_layers;
    this.width = settings.entry.width;
    this.directions = settings.directions;
    this._read = read;
    this._ort = ort;
    this._cache = new Map();
    this.loadText = once(() => this._loadText());
    this.load = once(() => this._load());
    this.words = once(() => this._loadWords());
    this._softmax = once(async () => this._session(await read(settings.softmax)));
  }

  async _loadText() {
    const { tokenizer, text } = this.settings;
    const data = text ? await readTextData(await this._read(text)) : undefined;
    this.data = data;
    this.tokenizer = makeTokenizer(tokenizer, tokenizer === data?.tokenizer ? data : undefined);
  }

  async _load() {
    const [bytes] = await Promise.all([this._read(this.settings.network), this.loadText(), this._ort()]);
    this.weights = readWeights(bytes, (name) => name.startsWith("token_layer.cnn."));
    this._network = await this._session(bytes);
    if (this.settings.config.words) await this.words();
    this.isLoaded = true;
  }

  async _session(bytes) {
    return (await this._ort()).InferenceSession.create(bytes, { executionProviders: ["wasm"] });
  }

  /** The vocabulary: {words, rows: Map from word to row, bos, eos, unknown, …}; see `words.json.gz` in export.py. */
  async _loadWords() {
    if (!this.settings.words) throw new LocalError("this model has no vocabulary", { code: "no_softmax" });
    const table = await readJson(this._read, this.settings.words);
    table.rows = new Map(table.words.map((word, row) => [word, row]));
    return table;
  }

  /** The form of a token in the vocabulary. */
  lookupForm(token) {
    return this.settings.ids ? lookupForm(token, this.settings.ids, this.data) : token;
  }

  /** The row of character ids that the network reads for a token. */
  characterIds(token) {
    return characterIds([token], this.settings.ids, { data: this.data, hasBoundaries: false });
  }

  /** The row of a token in the vocabulary; that of <UNK> if it has none. */
  rowOf(token, table) {
    const row = table.rows.get(this.lookupForm(token)) ?? table.unknown;
    return row === table.bos || row === table.eos ? table.unknown : row; // text cannot contain boundary tokens
  }

  /** Tokens of a sentence: a text, or a list of tokens. Offsets are in UTF-16 units; null for a list. */
  tokenize(sentence) {
    if (typeof sentence !== "string") return { text: null, tokens: sentence, offsets: null };
    const { tokens, offsets } = this.tokenizer.tokenize(sentence);
    return { text: sentence, tokens, offsets: offsets.utf16 };
  }

  /**
   * Encode sentences, given as lists of tokens; each distinct sentence is computed once.
   *
   * @param {string[][]} sentences
   * @param {{pause?: () => Promise<void>}} [options]  `pause` is awaited between batches; it may throw to stop
   * @returns {Promise<Encoded[]>}
   */
  async encode(sentences, { pause = async () => {} } = {}) {
    await this.load();
    const results = new Map();
    const missing = [];
    for (const tokens of sentences) {
      const key = tokens.join("\u0000");
      if (results.has(key)) continue;
      const known = this._cache.get(key);
      results.set(key, known);
      if (known) {
        this._cache.delete(key); // move it to the end
        this._cache.set(key, known);
      } else missing.push({ key, tokens });
    }
    missing.sort((a, b) => b.tokens.length - a.tokens.length);
    for (let begin = 0; begin < missing.length;) {
      const n = Math.max(1, Math.floor(BATCH_TOKENS / (missing[begin].tokens.length + 2)));
      const batch = missing.slice(begin, begin + n);
      if (begin) await pause();
      const encoded = await this._run(batch.map(({ tokens }) => tokens));
      batch.forEach(({ key }, k) => {
        results.set(key, encoded[k]);
        this._cache.set(key, encoded[k]);
      });
      begin += n;
    }
    let total = 0;
    for (const { n } of this._cache.values()) total += n + 2;
    for (const [key, { n }] of this._cache) {
      if (total <= CACHE_TOKENS) break;
      this._cache.delete(key);
      total -= n + 2;
    }
    return sentences.map((tokens) => results.get(tokens.join("\u0000")));
  }

  async _run(batch) {
    const { Tensor } = await this._ort();
    const { config, ids } = this.settings;
    const time = Math.max(1, ...batch.map((tokens) => tokens.length));
    const feeds = { lengths: new Tensor("int32", Int32Array.from(batch, (tokens) => tokens.length), [batch.length]) };
    if (config.chars) {
      const char = ids.max_characters;
      const rows = new Int32Array(batch.length * time * char);
      batch.forEach((tokens, k) => {
        rows.set(characterIds(tokens, ids, { data: this.data, hasBoundaries: false }), k * time * char);
      });
      feeds.char_ids = new Tensor("int32", rows, [batch.length, time, char]);
    }
    if (config.words) {
      const table = await this.words();
      const rows = new Int32Array(batch.length * time);
      batch.forEach((tokens, k) => rows.set(tokens.map((token) => this.rowOf(token, table) + 1), k * time));
      feeds.word_ids = new Tensor("int32", rows, [batch.length, time]);
    }
    const output = await this._network.run(feeds);
    const layers = output.layers.data, states = output.prediction_states.data;
    const { nLayers, width } = this;
    const half = width / 2;
    return batch.map(({ length: n }, k) => {
      const kept = { n, layers: new Float32Array(nLayers * n * width), states: new Float32Array(2 * (n + 2) * half) };
      for (let layer = 0; layer < nLayers; layer++) {
        const from = (k * nLayers + layer) * time * width;
        kept.layers.set(layers.subarray(from, from + n * width), layer * n * width);
      }
      for (let direction = 0; direction < 2; direction++) {
        const from = (2 * k + direction) * (time + 2) * half;
        kept.states.set(states.subarray(from, from + (n + 2) * half), direction * (n + 2) * half);
      }
      return kept;
    });
  }

  /** The state of an encoded sentence that predicts the token at a position of `<S> tokens </S>`. */
  stateAt({ n, states }, direction, position) {
    const half = this.width / 2;
    const begin = (direction * (n + 2) + position) * half;
    return states.subarray(begin, begin + half);
  }

  /** Call `use(k, logs)` with the log-probabilities of all words, (word,), for each of some states. */
  async predict(states, use, { pause = async () => {} } = {}) {
    const { Tensor } = await this._ort();
    const softmax = await this._softmax();
    const half = this.width / 2;
    for (let begin = 0; begin < states.length; begin += BATCH_ROWS) {
      if (begin) await pause();
      const batch = states.slice(begin, begin + BATCH_ROWS);
      const rows = new Float32Array(batch.length * half);
      batch.forEach((state, k) => rows.set(state, k * half));
      const feeds = { states: new Tensor("float32", rows, [batch.length, half]) };
      const { log_probabilities: output } = await softmax.run(feeds, ["log_probabilities"]);
      const nWords = output.dims[1];
      batch.forEach((_, k) => use(begin + k, output.data.subarray(k * nWords, (k + 1) * nWords)));
      output.dispose();
    }
  }

  /** The weights of the softmax, (word, width / 2). */
  async wordVectors() {
    const { Tensor } = await this._ort();
    const softmax = await this._softmax();
    const half = this.width / 2;
    const feeds = { states: new Tensor("float32", new Float32Array(half), [1, half]) };
    const { word_vectors: output } = await softmax.run(feeds, ["word_vectors"]);
    const vectors = output.data.slice();
    output.dispose();
    return vectors;
  }
}

// --- Weights of an ONNX file ----------------------------------------------------------------------------

const FLOAT = 1, INT8 = 3, FLOAT16 = 10; // data types of onnx.TensorProto

/**
 * Read some weights of an ONNX file, which is a message of Protocol Buffers: ModelProto.graph (7), GraphProto.initializer
 * (5), and of a TensorProto: dims (1), data_type (2), name (8), raw_data (9). Weights in float16 have the suffix
 * ".float16", which is removed; weights in int8 have the suffix ".int8", and a scale for each row in ".scale".
 *
 * @returns {Object<string, {shape: number[], values: Float32Array}>}
 */
export function readWeights(bytes, isNeeded) {
  const weights = {};
  const decoder = new TextDecoder();
  for (const [field, graph] of fieldsOf(bytes)) {
    if (field !== 7) continue;
    for (const [field, tensor] of fieldsOf(graph)) {
      if (field !== 5) continue;
      const shape = [];
      let type = 0, name = "", data = null;
      for (const [field, value] of fieldsOf(tensor)) {
        if (field === 1) shape.push(...(typeof value === "number" ? [value] : varintsOf(value)));
        else if (field === 2) type = value;
        else if (field === 8) name = decoder.decode(value);
        else if (field === 9) data = value;
      }
      if (!isNeeded(name) || !data) continue;
      const content = data.slice().buffer; // a copy: typed arrays must be aligned
      if (type === FLOAT) weights[name] = { shape, values: new Float32Array(content) };
      else if (type === FLOAT16) {
        weights[name.replace(/\.float16$/, "")] = { shape, values: Float32Array.from(new Uint16Array(content), fromHalf) };
      } else if (type === INT8) weights[name] = { shape, values: new Int8Array(content) };
    }
  }
  for (const [name, { shape, values }] of Object.entries(weights)) {
    if (!(values instanceof Int8Array)) continue;
    const whole = name.replace(/\.int8$/, ""), scales = weights[`${whole}.scale`].values;
    const columns = values.length / scales.length;
    weights[whole] = { shape, values: Float32Array.from(values, (value, k) => value * scales[Math.floor(k / columns)]) };
    delete weights[name];
    delete weights[`${whole}.scale`];
  }
  return weights;
}

function* fieldsOf(bytes) {
  const at = { position: 0 };
  while (at.position < bytes.length) {
    const tag = readVarint(bytes, at);
    const field = Math.floor(tag / 8);
    if (tag % 8 === 0) yield [field, readVarint(bytes, at)];
    else if (tag % 8 === 2) {
      const end = readVarint(bytes, at) + at.position;
      yield [field, bytes.subarray(at.position, end)];
      at.position = end;
    } else at.position += tag % 8 === 1 ? 8 : 4;
  }
}

function varintsOf(bytes) {
  const at = { position: 0 }, values = [];
  while (at.position < bytes.length) values.push(readVarint(bytes, at));
  return values;
}

function readVarint(bytes, at) {
  let value = 0;
  for (let scale = 1; ; scale *= 128) {
    const byte = bytes[at.position++];
    value += (byte & 0x7f) * scale;
    if (byte < 0x80) return value;
  }
}

/** The value of a number in IEEE 754 half precision. */
function fromHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = (bits & 0x3ff) / 1024;
  if (exponent === 0) return sign * fraction * 2 ** -14;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction) * 2 ** (exponent - 15);
}
