// Browsers refuse to start workers on pages that were opened from disk. There, run the search worker in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class {
    onmessage = null;
    #frame = document.createElement("iframe");
    #loaded;

    constructor(url) {
      this.#frame.hidden = true;
      this.#frame.title = "search";
      this.#frame.srcdoc = "<!doctype html><html lang=en><title>search</title>";
      this.#loaded = new Promise((resolve) => {
        this.#frame.onload = () => {
          const inside = this.#frame.contentWindow;
          inside.postMessage = (data) => this.onmessage?.({ data });
          const script = inside.document.createElement("script");
          script.src = new URL(url, document.baseURI);
          script.onload = () => resolve(inside);
          script.onerror = () => this.onerror?.(new Event("error"));
          inside.document.head.append(script);
        };
      });
      document.body.append(this.#frame);
    }

    postMessage(data) {
      this.#loaded.then((inside) => inside.onmessage({ data }));
    }

    terminate() {
      this.#frame.remove();
    }
  };
}
