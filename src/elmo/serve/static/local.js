// The backend of an exported site: the models run in a worker of this page; there is no server. The site also works when
// it is opened from disk, where a page may only load scripts. So each file of the site is either a script, which calls
// elmoFile(path, number of bytes, text), or an element of the page, <script type="…" data-file=path data-bytes=…>.
// bundle.py describes the text.
import { ApiError } from "./api.js";

const LOADING_MILLISECONDS = 1500; // after which a request for a model that is still loading says so
const RETRY_SECONDS = 0.3;
const ESCAPE = 0x7e, FLIP = 0x8000; // as in bundle.py

const received = new Map(); // files whose scripts are being loaded
globalThis.elmoFile = (path, nBytes, text) => received.set(path, decodeText(text, nBytes));

/** Read a file of the site as bytes. */
export async function readFile(path) {
  const element = document.querySelector(`script[data-file="${CSS.escape(path)}"]`);
  if (element) return decodeText(element.textContent, Number(element.dataset.bytes));
  const script = document.createElement("script");
  const source = `${path.split("/").map(encodeURIComponent).join("/")}.js`;
  try {
    await new Promise((resolve, reject) => {
      Object.assign(script, { src: source, onload: resolve, onerror: reject });
      document.head.append(script);
    });
  } catch {
    // explained below
  }
  script.remove();
  const bytes = received.get(path);
  received.delete(path);
  if (!bytes) throw new ApiError(`the file ${path}.js of this page cannot be loaded; copy the whole folder, or export it again`);
  return bytes;
}

/** The bytes of a text by `encode_text` in bundle.py. */
export function decodeText(text, nBytes) {
  const units = new Uint16Array((nBytes + 1) >> 1);
  let at = 0;
  for (let k = 0; k < units.length; k++) {
    const unit = text.charCodeAt(at++);
    units[k] = unit === ESCAPE ? text.charCodeAt(at++) ^ FLIP : unit;
  }
  if (at !== text.length) throw new ApiError("a file of this page is damaged; export it again");
  return new Uint8Array(units.buffer, 0, nBytes);
}

export async function createBackend() {
  const read = async (path) => new TextDecoder().decode(await readFile(path));
  const [config, worker] = await Promise.all([read("config.json"), read("runtime/ort.worker")]);
  return new LocalBackend(JSON.parse(config), worker);
}

/** Answers requests with the models of an exported site. */
export class LocalBackend {
  /** `worker` is the text of the worker. */
  constructor(config, worker) {
    this.config = config;
    this._waiting = new Map();
    this._failure = null; // why the worker cannot start
    this._loaded = new Set();
    this._nRequests = 0;
    const address = URL.createObjectURL(new Blob([worker], { type: "text/javascript" }));
    this._worker = new Worker(address);
    this._worker.onmessage = ({ data }) => this._receive(data);
    this._worker.onerror = (event) => this._fail(event.message || "the worker of this page cannot start");
    this._worker.postMessage({ config });
  }

  async call(path, body, signal) {
    if (path === "/v1/models") return this.config.catalog;
    if (this._failure) throw this._failure;
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

  _receive({ id, value, error, loaded, read }) {
    if (read !== undefined) this._send(read);
    if (loaded !== undefined) this._loaded.add(loaded);
    const request = this._waiting.get(id);
    if (error) request?.reject(new ApiError(error.message, error));
    else if (id !== undefined) request?.resolve(value);
  }

  /** Send a file to the worker. */
  async _send(path) {
    try {
      const bytes = await readFile(path);
      this._worker.postMessage({ file: path, bytes }, [bytes.buffer]);
    } catch (error) {
      this._worker.postMessage({ file: path, error: error.message });
    }
  }

  _fail(message) {
    this._failure = new ApiError(message);
    for (const { reject } of [...this._waiting.values()]) reject(this._failure);
  }
}
