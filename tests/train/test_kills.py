"""Runs that are killed or find a full disk end with the same bytes: a short run of the benchmark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kill_train.py"

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="runs are forked")


def can_trace() -> bool:
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def injected() -> Counter[tuple[str, str]]:
    """Number of injections by kind and part, after which all runs ended with the same bytes."""
    command = [sys.executable, str(SCRIPT), "--kills", "10", "--full-disks", "4"]
    command += [] if can_trace() else ["--no-strace"]
    if Path("/dev/shm").is_dir():  # a busy disk slows down every checkpoint
        command += ["--folder", "/dev/shm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "all bytes equal"
    counts: Counter[tuple[str, str]] = Counter()
    for line in lines[5:-2]:
        kind, part, times = line[:11].strip(), line[11:23].strip(), line[37:43]
        counts[kind, part] += int(times)
    return counts


@pytest.mark.slow
def test_a_run_killed_at_random_times_ends_with_the_same_bytes(injected: Counter[tuple[str, str]]) -> None:
    assert injected["kill", "any"] >= 5


@pytest.mark.skipif(not can_trace(), reason="needs strace")
def test_a_run_killed_at_its_system_calls_or_out_of_space_ends_with_the_same_bytes(
    injected: Counter[tuple[str, str]],
) -> None:
    assert injected["kill", "checkpoint"] >= 3
    assert injected["kill", "resume"] >= 1
    assert injected["full disk", "checkpoint"] >= 2
    assert sum(injected.values()) == 14
