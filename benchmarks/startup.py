"""Measure how long a user waits: for ``import elmo``, for shell commands, and for the first sentence.

usage: startup.py [RUNS] [--before SRC] [--after SRC] [--model MODEL]

Each command runs in a new process, RUNS times. SRC is a folder with the package, such as ``src`` of another
checkout: with ``--before``, the two take turns, and the ratio is the median of their ratios in the same turn.
``imports`` is the share of the time that Python spends in import statements. Files are in the disk cache, because
each command runs once before it is measured.

The last lines split the time in Python: importing torch and elmo, loading the bundled English model, the first
sentence (which packs the weights), the same sentence again, and the softmax, which is read on first use. With
``--model``, only these lines are printed, for this model.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from product_rates import warn_if_busy

SRC = Path(__file__).resolve().parents[1] / "src"
BANK = ("I sat by the [[bank]] of the river .", "She took the money to the [[bank]] .")
CASES: tuple[tuple[str, list[str], float | None], ...] = (  # name, arguments of python, limit in seconds
    ("python -c pass", ["-c", "pass"], None),
    ("import elmo", ["-c", "import elmo"], 0.15),
    ("elmo --help", ["-m", "elmo", "--help"], 0.3),
    ("elmo embed --help", ["-m", "elmo", "embed", "--help"], 0.3),
    ("elmo compare --help", ["-m", "elmo", "compare", "--help"], 0.3),
    ("elmo info", ["-m", "elmo", "info"], None),
    ("elmo embed", ["-m", "elmo", "--quiet", "embed", "-"], None),
    ("elmo compare", ["-m", "elmo", "compare", "bank", *BANK], None),
    ("elmo substitutes", ["-m", "elmo", "substitutes", BANK[0]], None),
)
STEPS = ("import", "load", "first sentence", "second sentence", "softmax")
SCRIPT = """
import json, sys, time
times = [time.perf_counter()]
import torch, elmo
elmo.Elmo
times.append(time.perf_counter())
model = elmo.Elmo.from_pretrained(sys.argv[1])
times.append(time.perf_counter())
for _ in range(2):
    model.encode("I sat by the bank of the river.")
    times.append(time.perf_counter())
model.pretrained.softmax and model.pretrained.softmax.weight
times.append(time.perf_counter())
print(json.dumps([after - before for before, after in zip(times, times[1:])]))
"""


def main() -> int:
    """Print the tables; return 1 if a median is over its limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", type=int, nargs="?", default=10, help="number of measurements of each command")
    parser.add_argument("--before", type=Path, metavar="SRC", help="package to compare with")
    parser.add_argument("--after", type=Path, metavar="SRC", default=SRC, help="package to measure")
    parser.add_argument("--model", help="measure only how long this model takes to load and use")
    options = parser.parse_args()
    warn_if_busy()
    folders = [folder.resolve() for folder in (options.before, options.after) if folder is not None]
    for folder in folders:
        if not (folder / "elmo" / "__init__.py").is_file():
            parser.error(f"{folder} has no package elmo")
    before = f"{'before':>9}{'ratio':>8}" if options.before else ""
    model = "en" if options.model is None else options.model
    print(f"{'':20}{'median':>9}{'fastest':>9}{'imports':>9}{before}{'limit':>9}")
    is_slow = False
    for name, arguments, limit in CASES if options.model is None else ():
        for folder in folders:
            measure(arguments, folder)  # warm-up: the first start compiles and reads from disk
        times = [[measure(arguments, folder) for folder in folders] for _ in range(options.runs)]
        after = [row[-1] for row in times]
        median = statistics.median(after)
        share = statistics.median(import_share(arguments, folders[-1]) for _ in range(min(3, options.runs)))
        line = f"{name:20}{median:8.3f}s{min(after):8.3f}s{share:9.0%}"
        if options.before:
            ratio = statistics.median(row[-1] / row[0] for row in times)
            line += f"{statistics.median(row[0] for row in times):8.3f}s{ratio:8.2f}"
        is_slow |= limit is not None and median > limit
        print(line if limit is None else f"{line}{limit:8.2f}s", flush=True)
    for folder in folders:
        measure_steps(folder, model)  # warm-up
    steps = [[measure_steps(folder, model) for folder in folders] for _ in range(options.runs)]
    for number, name in enumerate(STEPS):
        seconds = [statistics.median(row[k][number] for row in steps) for k in range(len(folders))]
        fastest = min(row[-1][number] for row in steps)
        line = f"{name:20}{seconds[-1]:8.3f}s{fastest:8.3f}s{'':9}"
        if options.before:
            ratio = statistics.median(row[-1][number] / row[0][number] for row in steps)
            line += f"{seconds[0]:8.3f}s{ratio:8.2f}"
        print(line)
    return int(is_slow)


def measure(arguments: list[str], folder: Path) -> float:
    """Measure the time of one Python process in seconds."""
    begin = time.perf_counter()
    run(arguments, folder)
    return time.perf_counter() - begin


def import_share(arguments: list[str], folder: Path) -> float:
    """Measure the share of a process's time that imports take, all of its modules together."""
    begin = time.perf_counter()
    log = run(["-X", "importtime", *arguments], folder).stderr
    seconds = time.perf_counter() - begin
    return sum(int(own) for own in re.findall(r"^import time:\s+(\d+) \|", log, re.MULTILINE)) / 1e6 / seconds


def measure_steps(folder: Path, model: str) -> list[float]:
    """Measure the seconds of each of ``STEPS`` in a new process."""
    return json.loads(run(["-c", SCRIPT, model], folder).stdout)


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with the package in ``folder``; a sentence is on standard input."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *arguments], check=True, env=environment, text=True, input="I sat by the bank of the river.\n",
        capture_output=True,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
