"""Is an index made as fast as vectors are computed, and how fast is it searched? A line for each length.

usage: usages.py [TEXT] [--model FOLDER] [--tokens 100000 1000000] [--queries 1000] [--approximate]

TEXT has a tokenised sentence a line (.xz is fine); without it, words are made up. All words of each length
are indexed by the shell command, whose memory is read every 50 ms; speed is that of the job without loading
the model, beside ``encode`` of the same text, in memory. Then the nearest ten usages of so many usages are
sought among all of them, exactly, and, if asked, by the approximate index, with the share that it found.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from embedding import made_up_model
from embedding_jobs import cut, run

LENGTHS = (100_000, 1_000_000)
K = 10


def main() -> None:
    """Print a line for each length."""
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
        print(json.dumps(times(*map(Path, options.time))))
        return
    if options.search:
        print(json.dumps(search(Path(options.search), options.queries, has_graph=options.approximate)))
        return
    lengths = options.tokens or (LENGTHS if options.text else (20_000,))
    print(f"{'tokens':>10}{'usages':>10}{'tokens/s':>10}{'encode':>10}{'ratio':>7}{'memory':>10}", end="")
    print(f"{'queries':>9}{'seconds':>9}{'memory':>10}{'approximate':>13}{'found':>7}")
    with tempfile.TemporaryDirectory(prefix="elmo-") as place:
        folder = Path(place)
        model = options.model or made_up_model(folder / "small", "small")
        for length in lengths:
            text = folder / "text.txt"
            n_tokens = cut(options.text, text, length)
            found = json.loads(run([__file__, "--time", str(model), str(text), str(folder / "timed")])[0])
            command = [
                "-m",
                "elmo",
                "--quiet",
                "index",
                str(text),
                "--model",
                str(model),
                "--format",
                "tokens",
            ]
            _, memory = run([*command, "--out", str(folder / "index"), "--restart"])
            rate, encode = n_tokens / found["job"], n_tokens / found["encode"]
            line = f"{n_tokens:10,}{found['usages']:10,}{rate:10,.0f}{encode:10,.0f}{rate / encode:7.0%}"
            print(f"{line}{memory:7,.0f} MB", end="", flush=True)
            more = ["--approximate"] if options.approximate else []
            arguments = [
                __file__,
                "--search",
                str(folder / "index"),
                "--queries",
                str(options.queries),
                *more,
            ]
            printed, memory = run(arguments)
            sought = json.loads(printed)
            line = f"{options.queries:9,}{sought['exact']:9.2f}{memory:7,.0f} MB"
            if options.approximate:
                line += f"{sought['approximate']:13.2f}{sought['share']:7.1%}"
            print(line, flush=True)


def times(model: Path, text: Path, out: Path) -> dict[str, float]:
    """Seconds of the job and of ``encode``."""
    from elmo import Elmo
    from elmo.lexicon.indexing import IndexJob, build_index

    elmo = Elmo.from_pretrained(model)
    sentences = [row.split() for row in text.read_text(encoding="utf-8").splitlines() if row.strip()]
    elmo.encode(sentences[:100])  # weights are prepared
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


def search(folder: Path, n_queries: int, *, has_graph: bool) -> dict[str, float]:
    """Seconds for all queries, a second time: the files then lie in memory, as for whoever asks again."""
    from elmo.lexicon.index import Index
    from elmo.lexicon.neighbors import ApproximateIndex

    index = Index(folder)
    numbers = np.random.default_rng(0).choice(len(index), min(n_queries, len(index)), replace=False)
    queries = index.vectors(numbers)
    index.nearest(queries[:10], K)
    begin = time.perf_counter()
    exact = index.nearest(queries, K)
    found = {"exact": time.perf_counter() - begin}
    if has_graph:
        graph = ApproximateIndex.build(index)
        begin = time.perf_counter()
        close = graph.nearest(queries, K)
        found["approximate"] = time.perf_counter() - begin
        same = [
            len({a.number for a in one} & {b.number for b in two}) / K
            for one, two in zip(exact, close, strict=True)
        ]
        found["share"] = float(np.mean(same))
    return found


if __name__ == "__main__":
    main()
