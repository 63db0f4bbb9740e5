"""Measure how fast an index is built, compared with encoding, and how fast it is searched.

usage: usages.py [TEXT] [--model FOLDER] [--tokens 100000 1000000] [--queries 1000] [--approximate]

TEXT has one tokenized sentence per line (.xz is possible); without it, the words are random. For each length,
``elmo index`` indexes all words, and its memory is sampled every 50 ms. The speed is that of the job without
loading the model, compared with ``encode`` of the same text in memory. Then the ten nearest usages of
``--queries`` usages are searched, exactly and, with ``--approximate``, with the approximate index, whose
recall is printed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from embedding import random_model
from embedding_jobs import run, write_text

LENGTHS = (100_000, 1_000_000)
K = 10


def main() -> None:
    """Print one line per length."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path, nargs="?")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--approximate", action="store_true")
    parser.add_argument("--time", nargs=3, metavar=("MODEL", "TEXT", "OUT"), help=argparse.SUPPRESS)
    parser.add_argument("--search", metavar="INDEX", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.time:
        print(json.dumps(time_job(*map(Path, options.time))))
        return
    if options.search:
        print(json.dumps(time_search(Path(options.search), options.queries, has_graph=options.approximate)))
        return
    lengths = options.tokens or (LENGTHS if options.text else (20_000,))
    print(f"{'tokens':>10}{'usages':>10}{'tokens/s':>10}{'encode':>10}{'ratio':>7}{'memory':>10}", end="")
    print(f"{'queries':>9}{'seconds':>9}{'memory':>10}{'approximate':>13}{'recall':>7}")
    with tempfile.TemporaryDirectory(prefix="elmo-") as temporary:
        folder = Path(temporary)
        model = options.model or random_model(folder / "small", "small")
        for length in lengths:
            text = folder / "text.txt"
            n_tokens = write_text(options.text, text, length)
            timing = json.loads(run([__file__, "--time", str(model), str(text), str(folder / "timed")])[0])
            command = ["-m", "elmo", "--quiet", "index", str(text), "--model", str(model)]
            command += ["--format", "tokens", "--out", str(folder / "index"), "--restart"]
            _, memory = run(command)
            rate, encode = n_tokens / timing["job"], n_tokens / timing["encode"]
            line = f"{n_tokens:10,}{timing['usages']:10,}{rate:10,.0f}{encode:10,.0f}{rate / encode:7.0%}"
            print(f"{line}{memory:7,.0f} MB", end="", flush=True)
            command = [__file__, "--search", str(folder / "index"), "--queries", str(options.queries)]
            output, memory = run(command + ["--approximate"] * options.approximate)
            search = json.loads(output)
            line = f"{options.queries:9,}{search['exact']:9.2f}{memory:7,.0f} MB"
            if options.approximate:
                line += f"{search['approximate']:13.2f}{search['recall']:7.1%}"
            print(line, flush=True)


def time_job(model: Path, text: Path, out: Path) -> dict[str, float]:
    """Return the seconds of the job and of ``encode``, and the number of usages."""
    from elmo import Elmo
    from elmo.lexicon import IndexJob, build_index

    elmo = Elmo.from_pretrained(model)
    sentences = [row.split() for row in text.read_text(encoding="utf-8").splitlines() if row.strip()]
    elmo.encode(sentences[:100])  # packs the weights
    elmo.clear_cache()
    begin = time.perf_counter()
    index = build_index(IndexJob((str(text),), out, input_format="tokens", restart=True), elmo)
    job = time.perf_counter() - begin
    n_usages = len(index)
    del index
    elmo.clear_cache()
    begin = time.perf_counter()
    elmo.encode(sentences)
    return {"job": job, "encode": time.perf_counter() - begin, "usages": n_usages}


def time_search(folder: Path, n_queries: int, *, has_graph: bool) -> dict[str, float]:
    """Return the seconds of all queries after a warm-up, so that the files are in the page cache."""
    from elmo.lexicon import ApproximateIndex, Index

    index = Index(folder)
    numbers = np.random.default_rng(0).choice(len(index), min(n_queries, len(index)), replace=False)
    queries = index.vectors(numbers)
    index.nearest(queries[:10], K)
    begin = time.perf_counter()
    exact = index.nearest(queries, K)
    timing = {"exact": time.perf_counter() - begin}
    if has_graph:
        graph = ApproximateIndex.build(index)
        begin = time.perf_counter()
        approximate = graph.nearest(queries, K)
        timing["approximate"] = time.perf_counter() - begin
        recall = [
            len({a.number for a in expected} & {b.number for b in result}) / K
            for expected, result in zip(exact, approximate, strict=True)
        ]
        timing["recall"] = float(np.mean(recall))
    return timing


if __name__ == "__main__":
    main()
