"""How fast does text become a corpus, and in how much memory? Against the tokeniser alone, on the same text.

usage: corpus.py [--mb N] [--text FILE …] [--processes N] [--folder FOLDER]

A text of N megabytes is made of FILEs (this project's guides, unless given) by repetition with changes: every
repetition has words of its own. It is made into a corpus raw, in one process and in several, and once more
tokenised beforehand; the tokeniser alone (with the splitting into sentences) reads a part of it. Every
measurement is a process of its own. Rates are in words a second, by the clock and by the processors' time,
which other work on the machine changes less. Memory is RssAnon, summed over processes; the growth is that
after the first half of the text.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from elmo.text.lines import read_lines  # noqa: E402
from elmo.text.sentences import split_sentences  # noqa: E402
from elmo.text.tokenizers import load_tokenizer  # noqa: E402
from elmo.train.build_corpus import BuildProgress, build  # noqa: E402

ALONE_MB = 20  # of text that the tokeniser alone reads
CHANGED = 0.02  # of the words of each repetition
BARS = {"sharding / tokeniser": 0.8, "tokenised words a second": 1_000_000}


@dataclass(frozen=True)
class Measured:
    """One way through the text."""

    words: int
    seconds: float
    cpu_seconds: float  # of all processes
    peak_mb: float  # RssAnon of all processes
    growth_mb: float  # of the peak, in the second half of reading
    types: int = 0

    def row(self, name: str) -> str:
        """A line of the table."""
        rates = f"{self.words / self.seconds:>14,.0f}{self.words / self.cpu_seconds:>14,.0f}"
        return f"{name:<32}{rates}{self.types:>12,}{self.peak_mb:>9.0f}{self.growth_mb:>9.0f}"


def main() -> int:
    """Print the table; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=200)
    parser.add_argument("--text", nargs="+", type=Path, default=sorted((ROOT / "docs").glob("*.md")))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", help="where text and corpora are written; a temporary one, unless given")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)  # what a process of its own does
    options = parser.parse_args()
    if options.measure:
        way, text, folder, processes = options.measure
        print(json.dumps(vars(measure(way, Path(text), Path(folder), int(processes)))))
        return 0
    with tempfile.TemporaryDirectory(prefix="elmo-corpus-", dir=options.folder) as name:
        return compare(Path(name), options.text, int(options.mb * 1e6), options.processes)


def compare(folder: Path, sources: list[Path], n_bytes: int, processes: int) -> int:
    """Make the texts, measure each way, print ratios."""
    raw, part, tokens = (folder / name for name in ("raw.txt", "part.txt", "tokens.txt"))
    lines = [line.text for source in sources for line in read_lines(source) if line.text.strip()]
    write_repeated(raw, lines, n_bytes)
    write_repeated(part, lines, min(n_bytes, ALONE_MB * 1_000_000))
    tokenize = load_tokenizer("en")
    cut = [" ".join(tokenize(line[a:b]).tokens) for line in lines for a, b in split_sentences(line)]
    write_repeated(tokens, cut, n_bytes)
    print(f"{n_bytes / 1e6:,.0f} MB of text, {len(lines):,} lines repeated with changes")
    print(f"{'':32}{'words/s':>14}{'by processor':>14}{'types':>12}{'peak MB':>9}{'growth':>9}")
    ways = {
        "tokeniser alone": ("alone", part, 1),
        "raw text, 1 process": ("text", raw, 1),
        f"raw text, {processes} processes": ("text", raw, processes),
        "tokenised text": ("tokens", tokens, 1),
    }
    found: dict[str, Measured] = {}
    for name, (way, text, n) in ways.items():
        arguments = [way, str(text), str(folder / f"corpus-{way}-{n}"), str(n)]
        command = [sys.executable, __file__, "--measure", *arguments]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        found[name] = Measured(**json.loads(done.stdout))
        print(found[name].row(name), flush=True)
    alone, one, many, ready = found.values()
    by_clock, by_cpu = ((m.words / t) for m, t in ((one, one.seconds), (one, one.cpu_seconds)))
    ratios = {
        "sharding / tokeniser, by the clock": by_clock / (alone.words / alone.seconds),
        "sharding / tokeniser, by processor": by_cpu / (alone.words / alone.cpu_seconds),
        f"{processes} processes / 1, by the clock": one.seconds / many.seconds,
    }
    for name, ratio in ratios.items():
        print(f"{name:<40}{ratio:>6.2f}")
    rate = ready.words / ready.cpu_seconds
    is_met = (
        ratios["sharding / tokeniser, by processor"] >= BARS["sharding / tokeniser"]
        and rate >= BARS["tokenised words a second"]
    )
    print(f"bars {BARS}: {'met' if is_met else 'missed'}")
    return 0 if is_met else 1


def write_repeated(path: Path, lines: list[str], n_bytes: int) -> None:
    """The lines over and over, in another order and with some words changed each time."""
    chance = random.Random(0)
    word = re.compile(r"[A-Za-z]{4,}")
    written = turn = 0
    with path.open("w", encoding="utf-8") as file:
        while written < n_bytes:
            turn += 1
            for line in chance.sample(lines, len(lines)):
                mark = f"{turn:x}"
                changed = word.sub(
                    lambda found: found[0] + mark if chance.random() < CHANGED else found[0],  # noqa: B023
                    line,
                )
                written += file.write(changed + "\n")  # nearly all of it ASCII


def measure(way: str, text: Path, folder: Path, processes: int) -> Measured:
    """Go one way through the text, in this process."""
    peaks = [0.0, 0.0]  # of the first and the second half
    half = [0]

    def on_progress(progress: BuildProgress) -> None:
        half[0] = int(progress.step == "write" or 2 * progress.done > (progress.total or 0))

    done = threading.Event()
    watcher = threading.Thread(target=watch, args=(peaks, half, done))
    watcher.start()
    before = time.perf_counter()
    try:
        if way == "alone":
            words, types = sum(len(tokens) for tokens in tokens_of(text)), 0
        else:
            form = "text" if way == "text" else "tokens"
            corpus = build(
                text, folder, input_format=form, processes=processes, tokenizer="en", on_progress=on_progress
            )
            words, types = corpus.n_tokens + corpus.manifest.sizes.heldout_words, len(corpus.types)
    finally:
        seconds = time.perf_counter() - before
        done.set()
        watcher.join()
    times = os.times()
    cpu = times.user + times.system + times.children_user + times.children_system
    growth = max(0.0, peaks[1] - peaks[0]) if peaks[0] else 0.0
    return Measured(words, seconds, cpu, max(peaks) / 1024, growth / 1024, types)


def tokens_of(text: Path) -> Iterator[tuple[str, ...]]:
    """The sentences of a text, as the tokeniser alone gives them."""
    tokenize = load_tokenizer("en")
    for line in read_lines(text):
        for start, end in split_sentences(line.text):
            yield tokenize(line.text[start:end]).tokens


def watch(peaks: list[float], half: list[int], done: threading.Event) -> None:
    """Look at the memory of this process and its children twenty times a second."""
    while not done.wait(0.05):
        now = sum(anonymous_kb(pid) for pid in (os.getpid(), *children()))
        peaks[half[0]] = max(peaks[half[0]], now)


def children() -> list[int]:
    """The processes that this one has started."""
    found = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in found.read_text().split()] if found.exists() else []


def anonymous_kb(pid: int) -> int:
    """RssAnon of a process, 0 where it has ended or nobody counts it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"RssAnon:\s+(\d+)", status)
    return int(found[1]) if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
