// The answers of the HTTP API about sentences, computed in the browser; each is the JSON of `elmo serve`, but vectors are
// Float32Arrays and offsets are always in UTF-16 units. `Engine` runs in a worker or in Node.
import { LocalIndex, LocalPeriods } from "./local-corpus.js";
import { COMBINE, LemmaTable, selectTop } from "./local-lexicon.js";
import { LocalError, Network, once } from "./local-network.js";
import { SenseView } from "./local-sense.js";
import { findUsage, findWord, parseMark, tokensAt } from "./local-usages.js";

const MAX_REACH = 150, MAX_WORDS = 100; // as in elmo.lexicon.explain
const yes = async () => {};

/** All models and corpora of an exported site. */
export class Engine {
  /**
   * @param {Object} config  the contents of config.json
   * @param {Object} options
   * @param {() => Promise<Object>} options.ort  loads onnxruntime-web
   * @param {(path: string) => Promise<Uint8Array>} options.read  reads a file of the site
   */
  constructor(config, { ort, read }) {
    this.config = config;
    const runtime = once(ort);
    this.models = new Map(config.models.map((settings) => [settings.entry.id, new LocalModel(settings, { ort: runtime, read })]));
    this.indexes = new Map(config.indexes.map((settings) => (
      [settings.entry.id, new LocalIndex(settings, { model: this.models.get(settings.entry.model), read })]
    )));
    this.periods = config.periods && new LocalPeriods(config.periods, { read });
  }

  /** Answer a request; `pause` is awaited from time to time and may throw to stop. */
  async answer(path, body, { pause = yes } = {}) {
    const name = path.replace("/v1/", "");
    if (name === "models") return this.config.catalog;
    if (["periods", "change", "change/word"].includes(name)) {
      if (!this.periods) throw new LocalError("this site has no periods", { status: 404, code: "periods_not_found" });
      return this.periods.answer(name, body);
    }
    if (["neighbors", "concordance", "map", "senses"].includes(name)) {
      return choose(this.indexes, body.index, "index").answer(name, body);
    }
    const model = choose(this.models, body.model, "model");
    if (!(name in ANSWERS)) throw new LocalError(`no such path: ${path}`, { status: 404, code: "not_found" });
    if ((body.start ?? "zero") !== "zero") throw new LocalError("start must be zero in this page", { param: "start" });
    await model.network.load();
    return ANSWERS[name](model, body, pause);
  }
}

function choose(items, id, kind) {
  const item = id == null ? items.values().next().value : items.get(id);
  if (!item) {
    const known = [...items.keys()].join(", ") || "none";
    throw new LocalError(`unknown ${kind} '${String(id).slice(0, 60)}'; this site has: ${known}`, { status: 404, code: `${kind}_not_found` });
  }
  return item;
}

/** A model that answers requests. */
class LocalModel {
  constructor(settings, { ort, read }) {
    this.network = new Network(settings, { ort, read });
    this.id = this.network.id;
    this.lexicon = once(async () => (
      new LemmaTable(this.network, await this.network.words(), await this.network.wordVectors())
    ));
    this.senses = once(async () => {
      const hasSoftmax = settings.softmax && settings.words;
      return new SenseView(this.network, hasSoftmax ? await this.network.words() : null, hasSoftmax ? await this.network.wordVectors() : null);
    });
  }

  /** The directions that were trained: [forward, backward] as booleans. */
  get has() {
    const { directions } = this.network;
    return [directions !== "backward", directions !== "forward"];
  }

  tokenize(sentences) {
    const tokenized = sentences.map((sentence) => this.network.tokenize(sentence));
    checkTokens(this, tokenized.reduce((sum, { tokens }) => sum + tokens.length, 0));
    return tokenized;
  }

  /** The vector of a target in one choice of layers, as in `Elmo.encode`, but not "all". */
  vector(encoded, layers, [begin, end]) {
    const { shape, values } = chooseLayers(this.network, encoded, layers);
    const width = shape.at(-1);
    return meanRows(values, width, begin, end);
  }

  /** The vectors of marked usages, for an index. */
  async embed(usage, layers) {
    const [encoded] = await this.network.encode([usage.tokens]);
    if (layers !== "sense") return this.vector(encoded, layers, [usage.begin, usage.end]);
    const vectors = await (await this.senses()).vectors(usage.tokens, encoded, [usage.begin, usage.end]);
    return meanRows(vectors, this.network.width, 0, usage.end - usage.begin);
  }
}

function checkTokens(model, n) {
  const limit = model.network.settings.entry.max_tokens;
  if (n > limit) {
    throw new LocalError(`a request may have up to ${limit} tokens in this page; found ${n}`, { status: 413, code: "too_large" });
  }
}

const asList = (inputs) => (typeof inputs === "string" ? [inputs] : inputs);

/** Answer each input; an input that fails has an error in place of its result. */
async function answerEach(inputs, answer) {
  const results = [];
  for (const [k, input] of inputs.entries()) {
    try {
      results.push(await answer(input, k));
    } catch (error) {
      if (!(error instanceof LocalError) || error.code !== "invalid_input") throw error;
      results.push({ error: { message: error.message, type: "DataError", code: "invalid_input", param: null } });
    }
  }
  return results;
}

// --- Layers ---------------------------------------------------------------------------------------------

/** Layers of a sentence: {shape: [time, width] or [layer, time, width], values}. */
function chooseLayers({ nLayers, width }, { n, layers }, choice) {
  const size = n * width;
  const layer = (k) => {
    if (!(Number.isInteger(k) && k >= 0 && k < nLayers)) throw new LocalError(`layers must be in 0..${nLayers - 1}; found ${k}`, { param: "layers" });
    return layers.subarray(k * size, (k + 1) * size);
  };
  const mix = (weights) => Float32Array.from({ length: size }, (_, i) => weights.reduce((sum, weight, k) => sum + weight * layers[k * size + i], 0));
  if (choice === "sense") throw new LocalError("layers must not be sense in this page", { param: "layers" });
  if (choice === "all") return { shape: [nLayers, n, width], values: layers };
  if (choice === "top") return { shape: [n, width], values: layer(nLayers - 1) };
  if (choice === "average") return { shape: [n, width], values: mix(Array(nLayers).fill(1 / nLayers)) };
  if (choice === "concat") {
    const values = new Float32Array(nLayers * size);
    for (let k = 0; k < nLayers; k++) {
      for (let token = 0; token < n; token++) values.set(layers.subarray(k * size + token * width, k * size + (token + 1) * width), (token * nLayers + k) * width);
    }
    return { shape: [n, nLayers * width], values };
  }
  if (Array.isArray(choice)) {
    const values = new Float32Array(choice.length * size);
    choice.forEach((k, i) => values.set(layer(k), i * size));
    return { shape: [choice.length, n, width], values };
  }
  if (typeof choice === "object") {
    if (choice.weights.length !== nLayers) throw new LocalError(`layers.weights must have ${nLayers} values; found ${choice.weights.length}`, { param: "layers.weights" });
    const odds = choice.weights.map((weight) => Math.exp(weight - Math.max(...choice.weights)));
    const total = odds.reduce((sum, value) => sum + value, 0);
    return { shape: [n, width], values: mix(odds.map((value) => ((choice.gamma ?? 1) * value) / total)) };
  }
  return { shape: [n, width], values: layer(choice) };
}

/** The mean of rows begin to end (exclusive) of a matrix. */
function meanRows(values, width, begin, end) {
  const mean = new Float32Array(width);
  for (let i = 0; i < width; i++) {
    let sum = 0;
    for (let row = begin; row < end; row++) sum += values[row * width + i];
    mean[i] = sum / (end - begin);
  }
  return mean;
}

export function cosine(a, b) {
  let dot = 0, aa = 0, bb = 0;
  for (let i = 0; i < a.length; i++) {
    dot += a[i] * b[i];
    aa += a[i] ** 2;
    bb += b[i] ** 2;
  }
  return aa && bb ? Math.max(-1, Math.min(1, dot / Math.sqrt(aa * bb))) : 0;
}

// --- Words and similarity -------------------------------------------------------------------------------

async function words(model, { inputs, layers = "average", targets = null }, pause) {
  const tokenized = model.tokenize(asList(inputs));
  const encoded = await model.network.encode(tokenized.map(({ tokens }) => tokens), { pause });
  const results = await answerEach(tokenized, (sentence, k) => {
    const { shape, values } = chooseLayers(model.network, encoded[k], layers);
    const result = { tokens: sentence.tokens, offsets: sentence.offsets, shape, vectors: values };
    return targets?.[k] ? withTargets(result, sentence, targets[k]) : result;
  });
  const nTokens = tokenized.reduce((sum, { tokens }) => sum + tokens.length, 0);
  return { object: "words", model: model.id, layers, dtype: "float32", encoding: "array", results, usage: { inputs: tokenized.length, tokens: nTokens } };
}

function withTargets(result, { text, tokens, offsets }, targets) {
  const spans = targets.map((target) => {
    const span = typeof target === "string" ? findWord(target, text, offsets) : target;
    const inside = span && tokensAt(offsets, span);
    if (!inside) throw new LocalError(`targets: no token of the sentence is at ${JSON.stringify(target).slice(0, 60)}`, { code: "invalid_input" });
    return inside;
  });
  const [n, width] = result.shape.slice(-2);
  const nParts = result.shape.length === 3 ? result.shape[0] : 1;
  const vectors = new Float32Array(nParts * spans.length * width);
  for (let part = 0; part < nParts; part++) {
    const values = result.vectors.subarray(part * n * width, (part + 1) * n * width);
    spans.forEach(([begin, end], k) => vectors.set(meanRows(values, width, begin, end), (part * spans.length + k) * width));
  }
  const described = spans.map(([begin, end]) => {
    const span = [offsets[begin][0], offsets[end - 1][1]];
    return { text: text.slice(...span), tokens: [begin, end], span };
  });
  const shape = result.shape.length === 3 ? [nParts, spans.length, width] : [spans.length, width];
  return { tokens, offsets, shape, vectors, targets: described };
}

async function similarity(model, { sentences, word = null, layers = "all" }, pause) {
  const target = word ?? markedWord(sentences);
  const usages = sentences.map((sentence, k) => findUsage(model.network, sentence, target, k + 1));
  checkTokens(model, usages.reduce((sum, { tokens }) => sum + tokens.length, 0));
  const encoded = await model.network.encode(usages.map(({ tokens }) => tokens), { pause });
  const choices = layers === "all" ? [...Array(model.network.nLayers).keys(), "average"] : [layers];
  const similarities = Object.fromEntries(choices.map((choice) => {
    const vectors = usages.map(({ begin, end }, k) => model.vector(encoded[k], choice, [begin, end]));
    return [choice, vectors.map((a) => vectors.map((b) => cosine(a, b)))];
  }));
  const uses = usages.map(({ text, tokens, begin, end, marked }) => ({ text, word: text.slice(...marked), span: marked, tokens: tokens.slice(begin, end) }));
  return { object: "similarity", model: model.id, word: target, uses, similarities };
}

function markedWord(sentences) {
  for (const [k, sentence] of sentences.entries()) {
    const { text, span } = typeof sentence === "string" ? parseMark(sentence, k + 1) : {};
    if (span) return text.slice(...span);
  }
  throw new LocalError("word is required if no sentence has a mark like [[this]]", { param: "word" });
}

// --- Predictions ----------------------------------------------------------------------------------------

async function substitutes(model, { inputs, word = null, n = 10, combine = "inject", candidates = null }, pause) {
  if (candidates) throw new LocalError("candidates cannot be ranked in this page", { param: "candidates" });
  if (!COMBINE.includes(combine)) throw new LocalError(`combine must be one of ${COMBINE.join(", ")}`, { param: "combine" });
  const { network } = model;
  const lexicon = await model.lexicon();
  let nTokens = 0;
  const results = await answerEach(asList(inputs), async (input, k) => {
    const { tokens, text, begin, end, span } = findUsage(network, input, word, k + 1);
    nTokens += tokens.length;
    checkTokens(model, nTokens);
    await pause();
    const [encoded] = await network.encode([tokens], { pause });
    const logs = [null, null];
    const directions = [0, 1].filter((direction) => model.has[direction]);
    const states = directions.map((direction) => network.stateAt(encoded, direction, direction === 0 ? begin + 1 : end));
    await network.predict(states, (i, row) => (logs[directions[i]] = row.slice()));
    const items = lexicon.substitutes(tokens.slice(begin, end), { forward: logs[0], backward: logs[1], n, combine });
    return { before: text.slice(0, span[0]), word: text.slice(...span), after: text.slice(span[1]), substitutes: items };
  });
  return { object: "substitutes", model: model.id, results, usage: { inputs: results.length, tokens: nTokens } };
}

/** Call `use(direction, place, logs)` for both directions; `places(n)` are positions of `<S> tokens </S>`. */
async function predictPlaces(model, encoded, places, use, pause) {
  for (const direction of [0, 1]) {
    if (!model.has[direction]) continue;
    const positions = places(direction);
    const states = positions.map((position) => model.network.stateAt(encoded, direction, position));
    await model.network.predict(states, (k, logs) => use(direction, positions[k], logs), { pause });
    await pause();
  }
}

async function score(model, { inputs }, pause) {
  const { network } = model;
  const table = await network.words();
  const tokenized = model.tokenize(asList(inputs));
  const results = [];
  for (const { tokens, offsets } of tokenized) {
    const [encoded] = await network.encode([tokens], { pause });
    const rows = [table.bos, ...tokens.map((token) => network.rowOf(token, table)), table.eos];
    const n = tokens.length;
    const logs = [0, 1].map((direction) => (model.has[direction] ? new Array(n + 1) : null));
    const places = (direction) => Array.from({ length: n + 1 }, (_, k) => k + 1 - direction);
    await predictPlaces(model, encoded, places, (direction, place, row) => (logs[direction][place - 1 + direction] = row[rows[place]]), pause);
    const sums = logs.filter(Boolean).map((row) => row.reduce((sum, value) => sum + value, 0));
    results.push({
      tokens, offsets, forward: logs[0], backward: logs[1], is_unknown: rows.slice(1, -1).map((row) => row === table.unknown),
      perplexity: Math.exp(-sums.reduce((sum, value) => sum + value, 0) / sums.length / (n + 1)),
    });
  }
  return { object: "score", model: model.id, results, usage: usageOf(tokenized) };
}

async function expectations(model, { inputs, n = 10 }, pause) {
  const { network } = model;
  const table = await network.words();
  const tokenized = model.tokenize(asList(inputs));
  const results = [];
  for (const { tokens, offsets } of tokenized) {
    const [encoded] = await network.encode([tokens], { pause });
    const rows = tokens.map((token) => network.rowOf(token, table));
    const expected = model.has.map((has) => (has ? [] : null));
    const own = model.has.map((has) => (has ? [] : null));
    const places = () => tokens.map((_, k) => k + 1);
    await predictPlaces(model, encoded, places, (direction, place, logs) => {
      own[direction].push(logs[rows[place - 1]]);
      expected[direction].push(selectTop(logs, n).map((row) => ({ word: table.words[row], probability: Math.exp(logs[row]) })));
    }, pause);
    results.push({
      tokens, offsets, is_unknown: rows.map((row) => row === table.unknown), forward: expected[0], backward: expected[1],
      forward_log_probability: own[0], backward_log_probability: own[1],
    });
  }
  return { object: "expectations", model: model.id, results, usage: usageOf(tokenized) };
}

function usageOf(tokenized) {
  return { inputs: tokenized.length, tokens: tokenized.reduce((sum, { tokens }) => sum + tokens.length, 0) };
}

// --- Explanations ---------------------------------------------------------------------------------------

/** Explain by leaving out each context word, as in elmo.lexicon.explain. */
async function explain(model, { input, word = null, other = null, method = "leave-out", layers = "average" }, pause) {
  if (method !== "leave-out") throw new LocalError("method must be leave-out in this page", { param: "method" });
  if (layers === "all") throw new LocalError("layers must not be all", { param: "layers" });
  const usages = [input, other].filter((sentence) => sentence !== null).map((sentence, k) => findUsage(model.network, sentence, word, k + 1));
  checkTokens(model, usages.reduce((sum, { tokens }) => sum + tokens.length, 0));
  const clipped = usages.map(({ tokens, begin, end }) => {
    const first = Math.max(0, begin - MAX_REACH);
    return { first, tokens: tokens.slice(first, end + MAX_REACH), begin: begin - first, end: end - first };
  });
  const own = await model.network.encode(clipped.map(({ tokens }) => tokens), { pause });
  const vectors = own.map((encoded, k) => model.vector(encoded, layers, [clipped[k].begin, clipped[k].end]));
  const pair = vectors.length > 1 ? cosine(vectors[0], vectors[1]) : null;
  const parts = [];
  for (const [k, usage] of clipped.entries()) {
    const scope = findScope(usage, MAX_WORDS);
    const reference = vectors[vectors.length - 1 - k];
    const scores = new Array(usages[k].tokens.length).fill(0);
    await leaveOutEach(model, usage, { scope, layers, encoded: own[k], pause }, (position, vector) => {
      const change = (pair ?? 1) - cosine(vector, reference);
      scores[usage.first + position] = pair === null ? Math.max(0, change) : change;
    });
    const { tokens, offsets, begin, end } = usages[k];
    parts.push({
      tokens, offsets, target: [begin, end], scope: scope.map((position) => position + usage.first), method, scores,
      similarity: pair, other: null,
    });
  }
  return { object: "explanation", model: model.id, ...parts[0], other: parts[1] ?? null };
}

/** The target and the `maxWords` context words nearest to it, as [begin, end]. */
function findScope({ tokens, begin, end }, maxWords) {
  const nAfter = tokens.length - end;
  const before = Math.min(begin, Math.max(maxWords - Math.floor(maxWords / 2), maxWords - nAfter));
  return [begin - before, end + Math.min(nAfter, maxWords - before)];
}

/**
 * Compute the vector of a target without each context word. A word before the target changes only the forward half of
 * its vector, and a word after it only the backward half, so the network reads only that side of the sentence.
 */
async function leaveOutEach(model, { tokens, begin, end }, { scope, layers, encoded, pause }, use) {
  const { network } = model;
  const size = end - begin;
  const positions = [];
  for (let k = scope[0]; k < scope[1]; k++) if (k < begin || k >= end) positions.push(k);
  const variants = positions.map((k) => (k < begin
    ? [...tokens.slice(0, k), ...tokens.slice(k + 1, end)]
    : [...tokens.slice(begin, k), ...tokens.slice(k + 1)]));
  const results = await network.encode(variants, { pause });
  positions.forEach((k, i) => {
    const isBefore = k < begin;
    const target = joinHalves(network, {
      forward: isBefore ? [results[i], begin - 1] : [encoded, begin],
      backward: isBefore ? [encoded, begin] : [results[i], 0],
      size,
    });
    use(k, model.vector(target, layers, [0, size]));
  });
}

/** Layers of `size` tokens, with the forward half of one sentence and the backward half of another. */
function joinHalves({ nLayers, width }, { forward, backward, size }) {
  const half = width / 2;
  const layers = new Float32Array(nLayers * size * width);
  [forward, backward].forEach(([source, begin], direction) => {
    for (let layer = 0; layer < nLayers; layer++) {
      for (let k = 0; k < size; k++) {
        const from = (layer * source.n + begin + k) * width + direction * half;
        layers.set(source.layers.subarray(from, from + half), (layer * size + k) * width + direction * half);
      }
    }
  });
  return { n: size, layers };
}

// --- Inside ---------------------------------------------------------------------------------------------

/** The intermediate values of one token, as in elmo.embed.inside; the character CNN is computed here. */
async function inside(model, { input, token = 0 }, pause) {
  const { network } = model;
  const [{ tokens, offsets }] = model.tokenize([input]);
  if (!(token >= 0 && token < tokens.length)) throw new LocalError(`token must be in 0..${tokens.length - 1}; found ${token}`, { param: "token" });
  const [encoded] = await network.encode([tokens], { pause });
  const { width, nLayers } = network;
  const { chars } = network.settings.config;
  const steps = chars ? readCharacters(network, tokens[token], chars) : { characters: [], filters: [], highways: [] };
  const row = (layer, k) => Array.from(encoded.layers.subarray((layer * encoded.n + k) * width, (layer * encoded.n + k + 1) * width));
  const layers = Array.from({ length: nLayers }, (_, layer) => tokens.map((_, k) => row(layer, k)));
  return { object: "inside", model: model.id, tokens, offsets, token, ...steps, token_vector: layers[0][token].slice(0, width / 2), layers };
}

function readCharacters(network, token, { filters: shapes, activation, n_highway: nHighways }) {
  const { weights } = network;
  const weight = (name) => weights[`token_layer.cnn.${name}`];
  const ids = network.characterIds(token);
  const table = weight("char_embed.weight");
  const width = table.shape[1];
  const activate = activation === "relu" ? (x) => Math.max(0, x) : Math.tanh;
  const filters = shapes.map(([size, n], i) => {
    const kernel = weight(`convolutions.${i}.weight`).values, bias = weight(`convolutions.${i}.bias`).values; // (filter, width, size)
    const values = [], positions = [];
    for (let filter = 0; filter < n; filter++) {
      let best = -Infinity, where = 0;
      for (let begin = 0; begin + size <= ids.length; begin++) {
        let sum = bias[filter];
        for (let c = 0; c < width; c++) {
          for (let k = 0; k < size; k++) sum += kernel[(filter * width + c) * size + k] * table.values[ids[begin + k] * width + c];
        }
        sum = Math.fround(sum);
        if (sum > best) [best, where] = [sum, begin];
      }
      values.push(Math.fround(activate(best)));
      positions.push(where);
    }
    return { width: size, n, values, positions };
  });
  const highways = [filters.flatMap(({ values }) => values)];
  for (let i = 0; i < nHighways; i++) {
    const x = highways[i];
    const gates = linear(x, weight(`highways.${i}.gate.weight`), weight(`highways.${i}.gate.bias`));
    const changed = linear(x, weight(`highways.${i}.transform.weight`), weight(`highways.${i}.transform.bias`));
    highways.push(x.map((value, k) => {
      const gate = 1 / (1 + Math.exp(-gates[k]));
      return Math.fround(gate * Math.max(0, changed[k]) + (1 - gate) * value);
    }));
  }
  return { characters: describeCharacters(network, token, Array.from(ids)), filters, highways };
}

function linear(x, { shape: [rows, columns], values }, { values: bias }) {
  return Array.from({ length: rows }, (_, row) => {
    let sum = bias[row];
    for (let k = 0; k < columns; k++) sum += values[row * columns + k] * x[k];
    return sum;
  });
}

/** Assign the ids of a row to the characters of a token. */
function describeCharacters(network, token, ids) {
  const { alphabet, pad } = network.settings.ids;
  const isBytes = alphabet !== "unicode";
  const [first, last] = isBytes ? ["<bow>", "<eow>"] : ["<eow>", "<bow>"]; // ELMoForManyLangs swaps the boundaries
  const items = [{ character: first, ids: [ids[0]] }];
  let position = 1;
  for (const character of network.lookupForm(token)) {
    const isSurrogate = /^\p{Cs}$/u.test(character);
    const size = isSurrogate ? 0 : isBytes ? new TextEncoder().encode(character).length : 1;
    if (!size || position + size >= ids.length) break;
    items.push({ character, ids: ids.slice(position, position + size) });
    position += size;
  }
  if (position < ids.length) items.push({ character: last, ids: [ids[position]] });
  const padding = ids.slice(position + 1).filter((id) => id === pad);
  if (padding.length) items.push({ character: "<pad>", ids: padding });
  return items;
}

const ANSWERS = { words, similarity, substitutes, score, expectations, explain, inside };
