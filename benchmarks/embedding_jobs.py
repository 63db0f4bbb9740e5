"""Measure the speed and memory of ``elmo embed`` for texts of several lengths, compared with ``encode``.

usage: embedding_jobs.py [TEXT] [--model FOLDER] [--tokens 10000 100000 1000000] [--workers N …]

TEXT has one tokenized sentence per line (.xz is supported); without it, the text is random. Each length is
embedded to Parquet with the shell command; its memory, including its workers, is read every 50 ms. The speed
is that of the job without loading the model. The last column compares it with ``encode`` of the same text in
memory, run alternately.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
import threading
import time
from itertools import cycle
from pathlib import Path

from embedding import random_model, random_text

LENGTHS = (10_000, 100_000, 1_000_000)


def main() -> None:
    """Print a line for each length and number of workers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path, nargs="?")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+")
    parser.add_argument("--workers", type=int, nargs="+", default=[1])
    parser.add_argument("--time", nargs=2, metavar=("MODEL", "TEXT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.time:
        print_times(*map(Path, options.time))
        return
    lengths = options.tokens or (LENGTHS if options.text else LENGTHS[:2])
    with tempfile.TemporaryDirectory(prefix="elmo-") as name:
        folder = Path(name)
        model = options.model or random_model(folder / "small", "small")
        print(f"{'tokens':>10}{'workers':>9}{'tokens/s':>10}{'encode':>10}{'ratio':>7}{'memory':>10}")
        for length in lengths:
            text = folder / "text.txt"
            n_tokens = write_text(options.text, text, length)
            seconds = json.loads(run([__file__, "--time", str(model), str(text)])[0])
            memory = 0.0
            for workers in options.workers:
                command = ["-m", "elmo", "--quiet", "embed", str(text), "--model", str(model)]
                command += ["--out", str(folder / "vectors.parquet"), "--format", "tokens", "--restart"]
                _, memory = run([*command, "--workers", str(workers)])
                rate, encode = n_tokens / seconds["job"], n_tokens / seconds["encode"]
                line = f"{n_tokens:10,}{workers:9}{rate:10,.0f}{encode:10,.0f}{rate / encode:7.0%}"
                print(f"{line}{memory:7,.0f} MB", flush=True)


def print_times(model: Path, text: Path) -> None:
    """Print the median seconds of a job and of ``encode``, as JSON."""
    from elmo import Elmo
    from elmo.jobs.plan import EmbedJob
    from elmo.jobs.run import embed_corpus

    elmo = Elmo.from_pretrained(model)
    sentences = [row.split() for row in text.read_text(encoding="utf-8").splitlines() if row.strip()]
    elmo.encode(sentences[:100])  # prepares the weights
    seconds: dict[str, list[float]] = {"job": [], "encode": []}
    with tempfile.TemporaryDirectory(prefix="elmo-", dir=text.parent) as name:
        for repeat in range(3 if len(sentences) < 10_000 else 1):
            job = EmbedJob(inputs=(str(text),), out=Path(name) / f"{repeat}.parquet", input_format="tokens")
            elmo.clear_cache()
            begin = time.perf_counter()
            embed_corpus(job, elmo)
            seconds["job"].append(time.perf_counter() - begin)
            elmo.clear_cache()
            begin = time.perf_counter()
            elmo.encode(sentences)
            seconds["encode"].append(time.perf_counter() - begin)
    print(json.dumps({name: sorted(values)[len(values) // 2] for name, values in seconds.items()}))


def run(arguments: list[str]) -> tuple[str, float]:
    """Run a Python command; return its output and the peak memory in MB of it and its children."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
    peak, is_done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_done.wait(0.05):
            peak = max(peak, read_memory(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    printed = process.communicate()[0]
    is_done.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)}: exited with code {process.returncode}")
    return printed, peak


def read_memory(pid: int) -> float:
    """Return the resident memory in MB of a process and its children; 0 without /proc."""
    total = 0.0
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        total = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += sum(read_memory(int(child)) for child in (task / "children").read_text().split())
    except (OSError, ValueError):
        pass
    return total


def write_text(source: Path | None, target: Path, n_tokens: int) -> int:
    """Write sentences of about ``n_tokens`` tokens, random without ``source``; return the exact number."""
    n_written = 0
    opened = lzma.open if source is not None and source.suffix == ".xz" else open
    rows = cycle(random_text()) if source is None else opened(source, "rt", encoding="utf-8")
    with target.open("w", encoding="utf-8") as file:
        for row in rows:
            words = row.split()
            if words:
                file.write(" ".join(words) + "\n")
                n_written += len(words)
            if n_written >= n_tokens:
                break
    return n_written


if __name__ == "__main__":
    main()
