"""The vectors that bilm-tf and AllenNLP published with their code (Apache-2.0), against ours."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmo import Carry, Elmo
from tests.shared import FIXTURES, needs_fixtures

pytestmark = needs_fixtures
SETS = [("bilm-tf", "lm_embeddings_sentences.json"), ("allennlp", "sentences.json")]


def batches(folder: Path, sentences: str) -> list[list[list[str]]]:
    """Batch b is item b of each of the three lists."""
    lists = json.loads((folder / sentences).read_text(encoding="utf-8"))
    return [[rows[b].split() for rows in lists] for b in range(10)]


def load(folder: Path) -> Elmo:
    return Elmo.from_files(folder / "options.json", folder / "lm_weights.hdf5")


def expected(folder: Path, row: int, batch: int) -> np.ndarray:
    """(time, width): the two directions side by side."""
    with h5py.File(folder / f"lm_embeddings_{row}.hdf5") as file:
        return np.concatenate(file[str(batch)][...], axis=-1)


@pytest.mark.parametrize(("name", "sentences"), SETS)
def test_the_top_layer_equals_the_published_one_with_the_state_carried(name: str, sentences: str) -> None:
    elmo, carry = load(FIXTURES / name), Carry()
    worst = 0.0
    for b, batch in enumerate(batches(FIXTURES / name, sentences)):
        for row, encoding in enumerate(elmo.encode(batch, layers="top", start=carry)):
            worst = max(worst, np.abs(encoding.vectors - expected(FIXTURES / name, row, b)).max())
    assert worst < 2e-6


@pytest.mark.parametrize(("name", "sentences"), SETS)
def test_the_first_batch_is_the_same_from_zero_and_later_ones_are_not(name: str, sentences: str) -> None:
    elmo = load(FIXTURES / name)
    first, second = batches(FIXTURES / name, sentences)[:2]
    for row, encoding in enumerate(elmo.encode(first, layers="top")):
        assert np.abs(encoding.vectors - expected(FIXTURES / name, row, 0)).max() < 2e-6
    assert np.abs(elmo.encode(second, layers="top")[0].vectors - expected(FIXTURES / name, 0, 1)).max() > 0.1


def test_token_embeddings_equal_the_published_ones() -> None:
    folder = FIXTURES / "allennlp"
    elmo = load(folder)
    words = (folder / "vocab_test.txt").read_text(encoding="utf-8").split("\n")[:458]
    with h5py.File(folder / "elmo_token_embeddings.hdf5") as file:
        published = file["embedding"][...]
    found = elmo._engine.token_vectors(words).numpy()
    edges = elmo._engine.boundary_vectors().numpy()
    for boundary, row in zip(("<S>", "</S>"), edges, strict=True):
        found[words.index(boundary)] = row
    assert found.shape == published.shape == (458, 16)
    assert np.abs(found - published).max() < 2e-6


def test_the_token_cache_gives_the_vectors_of_the_character_model() -> None:
    folder = FIXTURES / "allennlp"
    cached = Elmo.from_files(
        folder / "options.json",
        folder / "lm_weights.hdf5",
        vocab=folder / "vocab_test.txt",
        embedding=folder / "elmo_token_embeddings.hdf5",
    )
    sentence = batches(folder, "sentences.json")[0][0]
    plain = load(folder).encode([sentence], layers="all")[0].vectors
    assert np.abs(cached.encode([sentence], layers="all")[0].vectors - plain).max() < 5e-6
