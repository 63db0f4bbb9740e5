"""Measure the start-up time of ``import elmo`` and ``elmo --help`` against their limits.

usage: startup.py [RUNS]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

CASES = (  # name, arguments of python, limit in seconds
    ("python -c pass", ["-c", "pass"], None),
    ("import elmo", ["-c", "import elmo"], 0.15),
    ("elmo --help", ["-m", "elmo", "--help"], 0.3),
    ("elmo embed --help", ["-m", "elmo", "embed", "--help"], 0.3),
    ("elmo compare --help", ["-m", "elmo", "compare", "--help"], 0.3),
)


def measure(arguments: list[str]) -> float:
    """Measure the time of one Python process in seconds."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> int:
    """Print the table; return 1 if a median is over its limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", type=int, nargs="?", default=10, help="number of measurements of each command")
    n_runs = parser.parse_args().runs
    is_slow = False
    print(f"{'':20}{'median':>9}{'fastest':>9}{'limit':>9}{'of limit':>10}")
    for name, arguments, limit in CASES:
        measure(arguments)  # warm-up: the first start compiles and reads from disk
        times = [measure(arguments) for _ in range(n_runs)]
        median = statistics.median(times)
        comparison = "" if limit is None else f"{limit:8.2f}s{median / limit:10.0%}"
        is_slow |= limit is not None and median > limit
        print(f"{name:20}{median:8.3f}s{min(times):8.3f}s{comparison}")
    return int(is_slow)


if __name__ == "__main__":
    sys.exit(main())
