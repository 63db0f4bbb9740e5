"""Measure speed and memory of building a corpus, compared with the tokenizer alone on the same text.

usage: corpus.py [--mb N] [--text FILE …] [--processes N] [--folder FOLDER]

A text of N megabytes is made by repeating FILEs (default: the guides of this project) with changes: every
repetition has new words. A corpus is built from the raw text, in one process and in several, and from the
tokenized text; the tokenizer alone (with sentence splitting) reads a part of it. Every measurement runs in
its own process. Rates are in words per second of wall-clock time and of CPU time, which depends less on other
work on the machine. Memory is RssAnon, summed over processes; growth is the increase of its peak in the
second half of the text.
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
from elmo.train import BuildProgress, CorpusOptions, build_corpus  # noqa: E402

ALONE_MB = 20  # text for the tokenizer alone
CHANGED = 0.02  # share of the words that each repetition changes
BARS = {"building / tokenizer": 0.8, "tokenized words per second": 1_000_000}


@dataclass(frozen=True)
class Measured:
    """One measurement."""

    words: int
    seconds: float
    cpu_seconds: float  # all processes
    peak_mb: float  # RssAnon, all processes
    growth_mb: float  # growth of the peak in the second half
    types: int = 0

    def row(self, name: str) -> str:
        """Format a line of the table."""
        rates = f"{self.words / self.seconds:>14,.0f}{self.words / self.cpu_seconds:>14,.0f}"
        return f"{name:<32}{rates}{self.types:>12,}{self.peak_mb:>9.0f}{self.growth_mb:>9.0f}"


def main() -> int:
    """Print the table; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=200)
    parser.add_argument("--text", nargs="+", type=Path, default=sorted((ROOT / "docs").glob("*.md")))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", help="folder for text and corpora; default: a temporary one")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)  # one measurement, in its own process
    options = parser.parse_args()
    if options.measure:
        way, text, folder, processes = options.measure
        print(json.dumps(vars(measure(way, Path(text), Path(folder), int(processes)))))
        return 0
    with tempfile.TemporaryDirectory(prefix="elmo-corpus-", dir=options.folder) as name:
        return compare(Path(name), options.text, int(options.mb * 1e6), options.processes)


def compare(folder: Path, sources: list[Path], n_bytes: int, processes: int) -> int:
    """Write the texts, measure, print ratios."""
    raw, part, tokens = (folder / name for name in ("raw.txt", "part.txt", "tokens.txt"))
    lines = [line.text for source in sources for line in read_lines(source) if line.text.strip()]
    write_repeated(raw, lines, n_bytes)
    write_repeated(part, lines, min(n_bytes, ALONE_MB * 1_000_000))
    tokenize = load_tokenizer("en")
    cut = [" ".join(tokenize(line[a:b]).tokens) for line in lines for a, b in split_sentences(line)]
    write_repeated(tokens, cut, n_bytes)
    print(f"{n_bytes / 1e6:,.0f} MB of text, {len(lines):,} lines, repeated with changes")
    print(f"{'':32}{'words/s':>14}{'CPU words/s':>14}{'types':>12}{'peak MB':>9}{'growth':>9}")
    ways = {
        "tokenizer alone": ("alone", part, 1),
        "raw text, 1 process": ("text", raw, 1),
        f"raw text, {processes} processes": ("text", raw, processes),
        "tokenized text": ("tokens", tokens, 1),
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
        "building / tokenizer, wall clock": by_clock / (alone.words / alone.seconds),
        "building / tokenizer, CPU time": by_cpu / (alone.words / alone.cpu_seconds),
        f"{processes} processes / 1, wall clock": one.seconds / many.seconds,
    }
    for name, ratio in ratios.items():
        print(f"{name:<40}{ratio:>6.2f}")
    rate = ready.words / ready.cpu_seconds
    is_met = (
        ratios["building / tokenizer, CPU time"] >= BARS["building / tokenizer"]
        and rate >= BARS["tokenized words per second"]
    )
    print(f"bars {BARS}: {'met' if is_met else 'missed'}")
    return 0 if is_met else 1


def write_repeated(path: Path, lines: list[str], n_bytes: int) -> None:
    """Repeat the lines, each time in another order and with some words changed."""
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
                written += file.write(changed + "\n")  # nearly all ASCII


def measure(way: str, text: Path, folder: Path, processes: int) -> Measured:
    """Measure in this process."""
    peaks = [0.0, 0.0]  # first and second half
    half = [0]

    def on_progress(progress: BuildProgress) -> None:
        half[0] = int(progress.step == "write" or 2 * progress.done > (progress.total or 0))

    done = threading.Event()
    watcher = threading.Thread(target=watch, args=(peaks, half, done))
    watcher.start()
    before = time.perf_counter()
    try:
        if way == "alone":
            words, types = sum(len(tokens) for tokens in tokenize_text(text)), 0
        else:
            form = "text" if way == "text" else "tokens"
            options = CorpusOptions(input_format=form, processes=processes, tokenizer="en")
            corpus = build_corpus(text, folder, options, on_progress=on_progress)
            words, types = corpus.n_tokens + corpus.manifest.sizes.heldout_words, len(corpus.types)
    finally:
        seconds = time.perf_counter() - before
        done.set()
        watcher.join()
    times = os.times()
    cpu = times.user + times.system + times.children_user + times.children_system
    growth = max(0.0, peaks[1] - peaks[0]) if peaks[0] else 0.0
    return Measured(words, seconds, cpu, max(peaks) / 1024, growth / 1024, types)


def tokenize_text(text: Path) -> Iterator[tuple[str, ...]]:
    """Yield the tokenized sentences of a text."""
    tokenize = load_tokenizer("en")
    for line in read_lines(text):
        for start, end in split_sentences(line.text):
            yield tokenize(line.text[start:end]).tokens


def watch(peaks: list[float], half: list[int], done: threading.Event) -> None:
    """Sample the memory of this process and its children twenty times per second."""
    while not done.wait(0.05):
        now = sum(anonymous_kb(pid) for pid in (os.getpid(), *children()))
        peaks[half[0]] = max(peaks[half[0]], now)


def children() -> list[int]:
    """Return the child processes."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def anonymous_kb(pid: int) -> int:
    """Return RssAnon of a process; 0 if it has ended or is unknown."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    match = re.search(r"RssAnon:\s+(\d+)", status)
    return int(match[1]) if match else 0


if __name__ == "__main__":
    raise SystemExit(main())
