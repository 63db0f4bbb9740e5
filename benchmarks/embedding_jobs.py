"""Does ``elmo embed`` keep its speed and its memory, however long the text? A line for each length.

usage: embedding_jobs.py [TEXT] [--model FOLDER] [--tokens 10000 100000 1000000] [--workers N …]

TEXT has a tokenised sentence a line (.xz is fine); without it, words are made up. Each length is embedded to
Parquet by the shell command, whose memory is read every 50 ms (that of its workers included); speed is that
of the job without loading the model. Beside it stands ``encode`` of the same text, in memory, in turns.
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

from embedding import made_up_model, made_up_text

LENGTHS = (10_000, 100_000, 1_000_000)


def main() -> None:
    """Print a line for each length."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path, nargs="?")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+")
    parser.add_argument("--workers", type=int, nargs="+", default=[1])
    parser.add_argument("--time", nargs=2, metavar=("MODEL", "TEXT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.time:
        times(*map(Path, options.time))
        return
    lengths = options.tokens or (LENGTHS if options.text else LENGTHS[:2])
    with tempfile.TemporaryDirectory(prefix="elmo-") as place:
        folder = Path(place)
        model = options.model or made_up_model(folder / "small", "small")
        print(f"{'tokens':>10}{'workers':>9}{'tokens/s':>10}{'encode':>10}{'ratio':>7}{'memory':>10}")
        for length in lengths:
            text = folder / "text.txt"
            n_tokens = cut(options.text, text, length)
            found = json.loads(run([__file__, "--time", str(model), str(text)])[0])
            memory = 0.0
            for workers in options.workers:
                command = ["-m", "elmo", "--quiet", "embed", str(text), "--model", str(model)]
                command += ["--out", str(folder / "vectors.parquet"), "--format", "tokens", "--restart"]
                _, memory = run([*command, "--workers", str(workers)])
                rate, encode = n_tokens / found["job"], n_tokens / found["encode"]
                line = f"{n_tokens:10,}{workers:9}{rate:10,.0f}{encode:10,.0f}{rate / encode:7.0%}"
                print(f"{line}{memory:7,.0f} MB", flush=True)


def times(model: Path, text: Path) -> None:
    """Seconds of a job and of ``encode``, medians of turns, as JSON."""
    from elmo import Elmo
    from elmo.jobs.plan import EmbedJob
    from elmo.jobs.run import embed_corpus

    elmo = Elmo.from_pretrained(model)
    sentences = [row.split() for row in text.read_text(encoding="utf-8").splitlines() if row.strip()]
    elmo.encode(sentences[:100])  # weights are prepared
    found: dict[str, list[float]] = {"job": [], "encode": []}
    with tempfile.TemporaryDirectory(prefix="elmo-", dir=text.parent) as place:
        for turn in range(3 if len(sentences) < 10_000 else 1):
            job = EmbedJob(inputs=(str(text),), out=Path(place) / f"{turn}.parquet", input_format="tokens")
            elmo.clear_cache()
            begin = time.perf_counter()
            run_job(job, elmo)
            found["job"].append(time.perf_counter() - begin)
            elmo.clear_cache()
            begin = time.perf_counter()
            elmo.encode(sentences)
            found["encode"].append(time.perf_counter() - begin)
    print(json.dumps({name: sorted(values)[len(values) // 2] for name, values in found.items()}))


def run(arguments: list[str]) -> tuple[str, float]:
    """What a command of Python's prints, and the most memory in MB that it and its children had at a time."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
    highest, is_over = 0.0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not is_over.wait(0.05):
            highest = max(highest, resident(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    printed = process.communicate()[0]
    is_over.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)}: ended with {process.returncode}")
    return printed, highest


def resident(pid: int) -> float:
    """Resident memory in MB of a process and its children; 0 where there is no /proc."""
    total = 0.0
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        total = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += sum(resident(int(child)) for child in (task / "children").read_text().split())
    except (OSError, ValueError):
        pass
    return total


def cut(source: Path | None, target: Path, n_tokens: int) -> int:
    """About so many tokens, in whole sentences; made-up text begins again when it ends."""
    found = 0
    opened = lzma.open if source is not None and source.suffix == ".xz" else open
    rows = cycle(made_up_text()) if source is None else opened(source, "rt", encoding="utf-8")
    with target.open("w", encoding="utf-8") as file:
        for row in rows:
            words = row.split()
            if words:
                file.write(" ".join(words) + "\n")
                found += len(words)
            if found >= n_tokens:
                break
    return found


if __name__ == "__main__":
    main()
