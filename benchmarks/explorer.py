"""Measure how fast the page of the explorer reacts, in a real Chromium.

usage: explorer.py INDEX [--model en] [--words 20] [--seed 0]

INDEX is a folder written by ``elmo index`` with the model; use one of about a million tokens:

    xz -dc $DATA/lm-en/train-39.txt.xz | head -39000 > text.txt
    elmo index text.txt --format tokens --out usages
    python benchmarks/explorer.py usages

``elmo explore`` and the browser share this machine. The script prints

- first view: from the request of the page until the first picture of Compare is there
- typing: from a key until the view shows the new text, with five sentences
- map: from Enter until the map of 1,000 uses of a word is drawn; words with at least 1,000 uses, each asked for once
- neighbors and concordance: both requests for the uses nearest to a sentence, and 1,000 lines of its word
- sort and filter: from the change until 10,000 lines are shown in the new order, or only those that match; the map
  follows a moment later, and the next change comes after it

Each line has the median, the 95th percentile, the longest time, and the number of measurements.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elmo.lexicon.index import Index

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
READY = "() => document.querySelector('[data-state]')?.dataset.state === 'ready'"
N_USES, N_LINES = 1000, 10_000
TYPED = " and lent money to a very old friend of mine who had lost his house in the flood"
TYPE = """async (typed) => {
  const area = document.querySelector("#sentences"), times = [];
  for (const letter of typed) {
    const begin = performance.now();
    area.value += letter;
    area.dispatchEvent(new Event("input", { bubbles: true }));
    const text = area.value.split("\\n")[4].trim();
    const shown = () => document.querySelector("[data-use=E] .text")?.textContent === text;
    while (!(shown() && document.querySelector("[data-state]").dataset.state === "ready")) {
      await new Promise(requestAnimationFrame);
    }
    times.push(performance.now() - begin);
    await new Promise((resolve) => setTimeout(resolve, 60));
  }
  return times;
}"""
MAP = """async (word) => {
  const begin = performance.now();
  document.querySelector("#word").value = word;
  document.querySelector("form.search button.primary").click();
  const title = () => document.querySelector("[data-figure=corpus-map] h2")?.textContent ?? "";
  const isReady = () => title().includes(`“${word}”`) && document.querySelector("[data-figure=corpus-map] [data-mark]")
    && document.querySelector("[data-state]").dataset.state === "ready";
  do await new Promise(requestAnimationFrame); while (!isReady());
  return performance.now() - begin;
}"""
SEARCH = """async ([sentence, word, limit]) => {
  const ask = async (path, body) => {
    const headers = { "Content-Type": "application/json" };
    const reply = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
    if (!reply.ok) throw new Error(await reply.text());
    return reply.json();
  };
  const begin = performance.now();
  const neighbors = ask("/v1/neighbors", { inputs: [sentence], k: 20, among: "all" });
  await Promise.all([neighbors, ask("/v1/concordance", { word, limit })]);
  return performance.now() - begin;
}"""
CHANGE = """async ([selector, value, event]) => {
  const lines = () => document.querySelector("[data-figure=corpus-lines] [role=listbox]");
  const look = () => `${document.querySelector("[data-figure=corpus-lines] [data-count]").textContent}|`
    + (lines()?.querySelector("[data-use]")?.textContent ?? "");
  const before = look(), element = document.querySelector(selector);
  const begin = performance.now();
  element.value = value;
  element.dispatchEvent(new Event(event, { bubbles: true }));
  do await new Promise(requestAnimationFrame); while (look() === before);
  return performance.now() - begin;
}"""


def main() -> None:
    """Print one line per measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("index", type=Path)
    parser.add_argument("--model", default="en")
    parser.add_argument("--words", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    index = Index(options.index)
    generator = np.random.default_rng(options.seed)
    counts = {word: n for word, (n, _) in index.words.items() if any(map(str.isalpha, word))}
    frequent = sorted(word for word, n in counts.items() if n >= N_USES)
    words = [frequent[k] for k in generator.permutation(len(frequent))[: options.words]]
    largest = max(counts, key=lambda word: counts[word])
    print(
        f"{len(index):,} usages, {len(frequent)} words with {N_USES:,} uses or more; {largest!r}: {counts[largest]:,}"
    )
    sentences = [mark(index, int(generator.choice(index.numbers(word)))) for word in words]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "elmo", "--quiet", "explore", options.model, "--index", str(options.index)]
    server = subprocess.Popen([*command, "--port", str(port), "--no-browser"])
    try:
        wait_until_ready(port)
        measure(f"http://127.0.0.1:{port}/explore/", words, sentences, largest)
    finally:
        server.terminate()
        server.wait()


def mark(index: Index, number: int) -> str:
    """Return a usage as a sentence with a mark."""
    before, word, after = index.usage(number).parts()
    return f"{before}[[{word}]]{after}"


def wait_until_ready(port: int) -> None:
    """Wait until the server answers."""
    stop = time.monotonic() + 120
    while time.monotonic() < stop:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as reply:
                json.load(reply)
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.05)
    raise TimeoutError("the server is not ready")


def measure(address: str, words: Sequence[str], sentences: Sequence[str], largest: str) -> None:
    """Open the page and print all measurements."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)

        def open_page(where: str) -> Any:
            page = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-US").new_page()
            page.set_default_timeout(120_000)
            page.goto(address + where)
            page.wait_for_function(READY)
            return page

        times = []
        for _ in range(5):
            begin = time.perf_counter()
            page = open_page("")
            page.wait_for_selector("[data-figure=compare-map] [data-mark]")
            times.append(1000 * (time.perf_counter() - begin))
            page.context.close()
        report("first view", times, 1000)
        page = open_page("")
        page.fill("#sentences", page.locator("#sentences").input_value() + "\nThe bank raised its rates")
        page.wait_for_timeout(1000)
        report("typing", page.evaluate(TYPE, TYPED), 150)
        page.context.close()
        page = open_page("#/corpus?lang=en&word=bank")
        report("neighbors and concordance", [
            page.evaluate(SEARCH, [sentence, word, N_USES]) for word, sentence in zip(words, sentences, strict=True)
        ], 300)  # fmt: skip
        report(f"map of {N_USES:,} uses", [page.evaluate(MAP, word) for word in words], 2000)
        page.context.close()
        page = open_page(f"#/corpus?lang=en&limit={N_LINES}&word={largest}")
        page.wait_for_selector("[data-figure=corpus-map] svg")
        page.wait_for_timeout(2000)

        def change(*arguments: str) -> float:
            page.wait_for_timeout(400)
            return page.evaluate(CHANGE, list(arguments))

        sorts = ["left", "right", "corpus", "meaning"] * 3
        report(f"sort {N_LINES:,} lines", [change("#sort", name, "change") for name in sorts], 100)
        filters = ["ri", "riv", "", "an", "and ", "", "war", "", "water", ""]
        report(f"filter {N_LINES:,} lines", [change("#filter", text, "input") for text in filters], 100)
        browser.close()


def report(name: str, times: Sequence[float], aim: float) -> None:
    """Print the median, the 95th percentile and the maximum of times in milliseconds."""
    median, high = np.percentile(times, [50, 95])
    line = f"{name:26}{median:8.0f}{high:8.0f}{max(times):8.0f} ms of {len(times)}"
    print(f"{line}; aim {aim:,.0f} ms", flush=True)


if __name__ == "__main__":
    main()
