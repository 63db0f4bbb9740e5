"""Killed builds of a corpus leave nothing torn, and nothing behind: a small turn of the benchmark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kill_corpus.py"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="builds are forked")
def test_builds_that_are_killed_end_with_the_same_bytes_and_leave_no_other_file() -> None:
    command = [sys.executable, str(SCRIPT), "--kills", "6"]
    if Path("/dev/shm").is_dir():  # a disk may have other work, and builds wait for it
        command += ["--folder", "/dev/shm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    rows = [line.split() for line in lines[1:3]]
    assert [row[:2] for row in rows] == [["1", "6"], ["2", "6"]]
    assert sum(int(row[2]) for row in rows) >= 4  # not all struck before the work began
    calls = {line[:26].strip(): int(line[26:32]) for line in lines[4:-1]}
    assert calls["empty place"] >= 20
    assert calls["another corpus"] >= calls["empty place"] + 8  # it makes way, and its files are removed
    assert calls["between two renames"] >= 8
    assert calls["old one half removed"] >= 7
