// The worker of an exported site: runs the models, so that the page stays responsive. Messages from the page are
// {config} once, then {id, path, body} for a request, {cancel: id} to stop it. It replies {id, value} or {id, error}, and
// {loaded: model} when the network of a model is ready. It asks the page for files with {read: path}; the page replies
// {file: path, bytes} or {file: path, error}. onnxruntime-web is in the same script, as `elmoRuntime`.
import { Engine } from "./local-engine.js";
import { gunzip } from "./local-network.js";

let engine = null, running = null;
const queue = [], files = new Map(); // requests to answer; functions that wait for a file

self.onmessage = ({ data }) => {
  if (data.config) start(data.config);
  else if (data.file !== undefined) {
    for (const receive of files.get(data.file) ?? []) receive(data);
    files.delete(data.file);
  }
  else if (data.cancel !== undefined) {
    if (running?.id === data.cancel) running.isCancelled = true;
    const at = queue.findIndex(({ id }) => id === data.cancel);
    if (at >= 0) queue.splice(at, 1);
  } else {
    queue.push(data);
    if (!running) run();
  }
};

function read(path) {
  return new Promise((resolve, reject) => {
    const receive = ({ bytes, error }) => (bytes ? resolve(bytes) : reject(new Error(error)));
    if (files.has(path)) files.get(path).push(receive);
    else {
      files.set(path, [receive]);
      self.postMessage({ read: path });
    }
  });
}

function start(config) {
  const ort = async () => {
    const runtime = globalThis.elmoRuntime;
    Object.assign(runtime.env.wasm, { numThreads: 1, wasmBinary: await gunzip(await read(config.runtime.binary)) });
    runtime.env.logLevel = "error";
    return runtime;
  };
  engine = new Engine(config, { ort, read });
  for (const [id, { network }] of engine.models) {
    const { load } = network;
    network.load = () => load().then(() => self.postMessage({ loaded: id }));
  }
}

async function run() {
  while (queue.length) {
    running = queue.shift();
    const current = running;
    const pause = async () => {
      await new Promise((resolve) => setTimeout(resolve)); // lets messages in
      if (current.isCancelled) throw new DOMException("cancelled", "AbortError");
    };
    try {
      await pause();
      self.postMessage({ id: current.id, value: await engine.answer(current.path, current.body, { pause }) });
    } catch (error) {
      const { name, message, code, status, param } = error;
      self.postMessage({ id: current.id, error: { message, ...(name === "LocalError" ? { code, status, param } : {}) } });
    }
  }
  running = null;
}
