"""Training that is killed, or whose disk is full, ends with the same bytes: a small turn of the benchmark."""

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
def struck() -> Counter[tuple[str, str]]:
    """How often each kind of harm was done at each place, in runs that all ended as they should."""
    command = [sys.executable, str(SCRIPT), "--kills", "10", "--full-disks", "4"]
    command += [] if can_trace() else ["--no-strace"]
    if Path("/dev/shm").is_dir():  # a disk may have other work, and runs wait for it with every checkpoint
        command += ["--folder", "/dev/shm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "every byte equal"
    counts: Counter[tuple[str, str]] = Counter()
    for line in lines[5:-2]:
        kind, place, times = line[:11].strip(), line[11:23].strip(), line[37:43]
        counts[kind, place] += int(times)
    return counts


def test_a_run_killed_at_random_instants_ends_with_the_same_bytes(struck: Counter[tuple[str, str]]) -> None:
    assert struck["kill", "any"] >= 5


@pytest.mark.skipif(not can_trace(), reason="strace strikes single system calls, and cannot be used here")
def test_a_run_killed_at_its_system_calls_or_out_of_space_ends_with_the_same_bytes(
    struck: Counter[tuple[str, str]],
) -> None:
    assert struck["kill", "checkpoint"] >= 3
    assert struck["kill", "resumption"] >= 1
    assert struck["full disk", "checkpoint"] >= 2
    assert sum(struck.values()) == 14
