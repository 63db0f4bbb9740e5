"""Example text of the job tests, and how to interrupt a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from elmo.embed.elmo import Elmo
from elmo.jobs.plan import EmbedJob, Progress
from elmo.jobs.run import embed_corpus

LINES = ["The river bank .", "", "A/b c", "The river bank .", "café 河岸 \x00 x", "one two three four five six", ""]
SUFFIXES = [".hdf5", ".jsonl", ".npz", ".parquet", ".safetensors"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stop_after(n: int) -> Callable[[Progress], None]:
    """Return a progress callback that raises Ctrl-C after n reports."""
    reports = iter(range(n))

    def stop(_: Progress) -> None:
        if next(reports, None) is None:
            raise KeyboardInterrupt

    return stop


def begin(job: EmbedJob, elmo: Elmo, *, reports: int = 3) -> None:
    with pytest.raises(KeyboardInterrupt):
        embed_corpus(job, elmo, on_progress=stop_after(reports))
