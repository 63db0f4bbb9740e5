// The worker of an exported site: runs the models, so that the page stays responsive. Messages from the page are
// {config, base} once, then {id, path, body} for a request, {cancel: id} to stop it. It replies {id, value} or
// {id, error}, and {loaded: model} when the network of a model is ready.
import { Engine } from "./local-engine.js";
import { gunzip } from "./local-network.js";

let engine = null, running = null;
const queue = [];

self.onmessage = ({ data }) => {
  if (data.config) start(data);
  else if (data.cancel !== undefined) {
    if (running?.id === data.cancel) running.isCancelled = true;
    const at = queue.findIndex(({ id }) => id === data.cancel);
    if (at >= 0) queue.splice(at, 1);
  } else {
    queue.push(data);
    if (!running) run();
  }
};

function start({ config, base }) {
  const read = async (path) => {
    let reply;
    try {
      reply = await fetch(new URL(path, base));
    } catch {
      throw new Error(`cannot load ${path}`);
    }
    if (!reply.ok) throw new Error(`cannot load ${path}: status ${reply.status}`);
    return new Uint8Array(await reply.arrayBuffer());
  };
  const ort = async () => {
    const [runtime, binary] = await Promise.all([import(new URL(config.runtime.module, base)), read(config.runtime.binary).then(gunzip)]);
    Object.assign(runtime.env.wasm, { numThreads: 1, wasmBinary: binary });
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
