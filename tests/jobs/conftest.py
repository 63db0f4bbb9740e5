"""Fixtures of the job tests: a tiny model, a text, an output and a job."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from elmo.embed.elmo import Elmo
from elmo.jobs.plan import EmbedJob
from tests.embed.sentences import tiny_elmo
from tests.jobs.jobs import LINES


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return tiny_elmo(warm=True)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory if possible: every shard is synced, and a busy disk is slow."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="elmo-") as name:
        yield Path(name)


@pytest.fixture
def text(folder: Path) -> Path:
    path = folder / "text.txt"
    path.write_text("".join(line + "\n" for line in LINES))
    return path


@pytest.fixture
def out(folder: Path) -> Path:
    return folder / "out" / "v.npz"


@pytest.fixture
def job(text: Path, out: Path) -> EmbedJob:
    return EmbedJob((str(text),), out, shard_tokens=6, batch_size=2)
