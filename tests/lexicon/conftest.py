"""A tiny model, a small corpus, and an index of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from elmo.embed.elmo import Elmo
from elmo.lexicon.index import Index
from elmo.lexicon.indexing import IndexJob, build_index
from tests.embed.sentences import tiny_elmo

LINES = (
    "I sat by the bank of the river .",
    "The bank lent me money , said New York .",
    "",
    "Bank after bank failed in new york !",
    "The river  rose and the bank broke .",
    "café 河岸 😀 the RIVER",
)


@pytest.fixture(scope="session")
def elmo() -> Elmo:
    return tiny_elmo(warm=True)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


@pytest.fixture
def job(corpus: Path, tmp_path: Path) -> IndexJob:
    return IndexJob((str(corpus),), tmp_path / "usages", shard_tokens=12, dtype="float32")


@pytest.fixture
def index(job: IndexJob, elmo: Elmo) -> Index:
    return build_index(job, elmo)
