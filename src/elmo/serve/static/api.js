// Everything the views ask of a model. A backend answers `call(path, body, signal)` with the JSON of the HTTP API;
// the server is one backend, a model that runs in the browser is another. Views use the methods of `Api` only.
// All offsets are in UTF-16 units, so that text.slice(begin, end) gives the token.

/** A request that failed; `message` is a sentence for the reader. */
export class ApiError extends Error {
  constructor(message, { code = "internal", status = 0, param = null, retryAfter = 0 } = {}) {
    super(message);
    Object.assign(this, { name: "ApiError", code, status, param, retryAfter });
  }
}

/** The backend that asks `elmo serve`. */
export class ServerBackend {
  constructor(base = new URL("../", document.baseURI)) {
    this.base = base;
    this.key = sessionKey.get();
  }

  setKey(key) {
    this.key = key;
    sessionKey.set(key);
  }

  async call(path, body, signal) {
    const headers = { "Content-Type": "application/json" };
    if (this.key) headers.Authorization = `Bearer ${this.key}`;
    let reply;
    try {
      reply = await fetch(new URL(path.slice(1), this.base), {
        method: body === null ? "GET" : "POST",
        headers: body === null && !this.key ? {} : headers,
        body: body === null ? undefined : JSON.stringify(body),
        signal,
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("the server does not answer", { code: "unreachable" });
    }
    const content = await reply.json().catch((error) => {
      if (error.name === "AbortError") throw error;
      return null;
    });
    if (reply.ok && content) return content;
    const problem = content?.error ?? {};
    throw new ApiError(problem.message ?? `the server answered with status ${reply.status}`, {
      code: problem.code ?? "internal",
      status: reply.status,
      param: problem.param ?? null,
      retryAfter: Number(reply.headers.get("Retry-After")) || 0,
    });
  }
}

const sessionKey = {
  get() {
    try {
      return sessionStorage.getItem("elmo.key");
    } catch {
      return null;
    }
  },
  set(key) {
    try {
      sessionStorage.setItem("elmo.key", key);
    } catch {
      // the key holds until the page is closed
    }
  },
};

/** The methods that views use. Every method takes an object of fields as in the HTTP API, and `signal`. */
export class Api {
  constructor(backend) {
    this.backend = backend;
  }

  /** {data: [{id, n_layers, width, tokenizer, vocabulary, …}], indexes: […], corpora: {periods} | null} */
  async models(signal) {
    const reply = await this.backend.call("/v1/models", null, signal);
    return { indexes: [], corpora: reply.periods ? { periods: reply.periods } : null, ...reply };
  }

  /**
   * Vectors of words. Each result has tokens, offsets, shape and `vectors`, a Float32Array in C order, or `error`.
   * With layers "all", `layerVector(result, layer, k)` returns one vector.
   */
  async words({ signal, ...fields }) {
    const reply = await this._post("/v1/words", { encoding: "base64", offsets: "utf16", ...fields }, signal);
    for (const result of reply.results) if (!result.error) result.vectors = decodeFloats(result.vectors);
    return reply;
  }

  similarity({ signal, ...fields }) {
    return this._post("/v1/similarity", { offsets: "utf16", ...fields }, signal);
  }

  substitutes({ signal, ...fields }) {
    return this._post("/v1/substitutes", fields, signal);
  }

  score({ signal, ...fields }) {
    return this._post("/v1/score", { offsets: "utf16", ...fields }, signal);
  }

  expectations({ signal, ...fields }) {
    return this._post("/v1/expectations", { offsets: "utf16", ...fields }, signal);
  }

  explain({ signal, ...fields }) {
    return this._post("/v1/explain", { offsets: "utf16", ...fields }, signal);
  }

  inside({ signal, ...fields }) {
    return this._post("/v1/inside", { offsets: "utf16", ...fields }, signal);
  }

  neighbors({ signal, ...fields }) {
    return this._post("/v1/neighbors", fields, signal);
  }

  concordance({ signal, ...fields }) {
    return this._post("/v1/concordance", fields, signal);
  }

  senses({ signal, ...fields }) {
    return this._post("/v1/senses", fields, signal);
  }

  map({ signal, ...fields }) {
    return this._post("/v1/map", fields, signal);
  }

  periods(signal) {
    return this.backend.call("/v1/periods", null, signal);
  }

  change({ signal, ...fields }) {
    return this._post("/v1/change", fields, signal);
  }

  changeWord({ signal, ...fields }) {
    return this._post("/v1/change/word", fields, signal);
  }

  _post(path, fields, signal) {
    return this.backend.call(path, fields, signal);
  }
}

/** The vector of token (or target) k in one layer of a result of `words` with layers "all". */
export function layerVector(result, layer, k) {
  const [, n, width] = result.shape;
  const begin = (layer * n + k) * width;
  return result.vectors.subarray(begin, begin + width);
}

/** A sentence with a mark: text.slice(begin, end) in double brackets. */
export function markSpan(text, [begin, end]) {
  return `${text.slice(0, begin)}[[${text.slice(begin, end)}]]${text.slice(end)}`;
}

function decodeFloats(text) {
  if (text instanceof Float32Array) return text; // a model that runs in the browser
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

/** The Api of this page. A page with <meta name="elmo-backend" content="browser"> runs the models itself. */
export async function createApi() {
  const kind = document.querySelector('meta[name="elmo-backend"]')?.content ?? "server";
  if (kind === "browser") {
    const { createBackend } = await import("./local.js");
    return new Api(await createBackend());
  }
  return new Api(new ServerBackend());
}
