from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kill_embed.py"


pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="jobs are forked")


def rows_of(*arguments: str) -> list[list[str]]:
    """Return the table of a run in which all bytes were equal."""
    command = [sys.executable, str(SCRIPT), *arguments]
    if Path("/dev/shm").is_dir():  # faster than a busy disk: every shard is synced
        command += ["--folder", "/dev/shm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()[1:-1]]


@pytest.mark.slow
def test_jobs_killed_at_fifty_random_instants_end_with_the_same_bytes() -> None:
    rows = rows_of("--kills", "10")
    assert [row[0] for row in rows] == [".hdf5", ".jsonl", ".npz", ".parquet", ".safetensors"]
    assert sum(int(row[1]) for row in rows) >= 50
    assert sum(int(row[3]) for row in rows) >= 10  # some came after the first shard


@pytest.mark.slow
def test_killed_jobs_with_workers_end_with_the_same_bytes() -> None:
    (row,) = rows_of("--kills", "4", "--workers", "2", "--suffixes", ".safetensors")
    assert int(row[1]) >= 4
