// The backend of an exported site: the models run in a worker of this page; there is no server. config.json says which
// models and corpora the site has.
import { ApiError } from "./api.js";

const LOADING_MILLISECONDS = 1500; // after which a request for a model that is still loading says so
const RETRY_SECONDS = 0.3;

export async function createBackend() {
  const base = new URL("./", document.baseURI);
  const reply = await fetch(new URL("config.json", base)).catch(() => null);
  if (!reply?.ok) throw new ApiError("config.json cannot be loaded; serve the exported folder with a web server, for example: python -m http.server");
  return new LocalBackend(await reply.json(), base);
}

/** Answers requests with the models of an exported site. */
export class LocalBackend {
  constructor(config, base) {
    this.config = config;
    this._waiting = new Map();
    this._loaded = new Set();
    this._nRequests = 0;
    this._worker = new Worker(new URL("local-worker.js", base), { type: "module" });
    this._worker.onmessage = ({ data }) => this._receive(data);
    this._worker.onerror = (event) => this._fail(event.message || "the worker of this page cannot start");
    this._worker.postMessage({ config, base: base.href });
  }

  async call(path, body, signal) {
    if (path === "/v1/models") return this.config.catalog;
    if (signal?.aborted) throw new DOMException("aborted", "AbortError");
    const id = this._nRequests++;
    const isWaiting = "inputs input".split(" ").some((name) => name in (body ?? {})) && !this._loaded.has(this._modelOf(body));
    return new Promise((resolve, reject) => {
      let timer = 0;
      const stop = (error) => {
        if (!this._waiting.has(id)) return;
        this._worker.postMessage({ cancel: id });
        finish();
        reject(error);
      };
      const onAbort = () => stop(new DOMException("aborted", "AbortError"));
      const finish = () => {
        clearTimeout(timer);
        this._waiting.delete(id);
        signal?.removeEventListener("abort", onAbort);
      };
      signal?.addEventListener("abort", onAbort);
      if (isWaiting) {
        timer = setTimeout(() => {
          if (this._loaded.has(this._modelOf(body))) return;
          stop(new ApiError("the model is being loaded", { code: "loading", status: 503, retryAfter: RETRY_SECONDS }));
        }, LOADING_MILLISECONDS);
      }
      this._waiting.set(id, { resolve: (value) => { finish(); resolve(value); }, reject: (error) => { finish(); reject(error); } });
      this._worker.postMessage({ id, path, body });
    });
  }

  _modelOf({ model, index }) {
    const { models, indexes } = this.config;
    if (index != null) return indexes.find(({ entry }) => entry.id === index)?.entry.model;
    return model ?? models[0].entry.id;
  }

  _receive({ id, value, error, loaded }) {
    if (loaded !== undefined) this._loaded.add(loaded);
    const request = this._waiting.get(id);
    if (error) request?.reject(new ApiError(error.message, error));
    else if (id !== undefined) request?.resolve(value);
  }

  _fail(message) {
    for (const { reject } of [...this._waiting.values()]) reject(new ApiError(message));
  }
}
