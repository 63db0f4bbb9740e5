from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kill_corpus.py"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="builds are forked")
def test_builds_killed_at_random_instants_end_with_the_same_bytes() -> None:
    command = [sys.executable, str(SCRIPT), "--kills", "6"]
    if Path("/dev/shm").is_dir():  # a disk may have other work, and builds wait for it
        command += ["--folder", "/dev/shm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:-1]]
    assert [row[:2] for row in rows] == [["1", "6"], ["2", "6"]]
    assert sum(int(row[2]) for row in rows) >= 4  # not all struck before the work began
