"""Frozen layers on disk: the same as computed, shared, bounded, and proof against damage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from elmo import ConfigError
from elmo.tasks.vectors.layer_cache import LayerCache, key_of

Words = tuple[str, ...]


class Counting:
    """Vectors that follow from words and places, and how many sentences were asked for."""

    n_layers, width = 2, 3

    def __init__(self, key: str = "counting", scale: float = 1.0) -> None:
        self.key, self.scale = key, scale
        self.n_computed = 0

    def layers(self, sentences: list[Words]) -> list[NDArray[Any]]:
        self.n_computed += len(sentences)
        return [self.of(words) for words in sentences]

    def of(self, words: Words) -> NDArray[Any]:
        grid = np.arange(2 * len(words) * 3, dtype=np.float32).reshape(2, len(words), 3)
        return self.scale * (grid / 64 + sum(map(len, words)))


SENTENCES = [("a",), ("a", "bb"), ("a", "bb", "c c"), ("苹果", "好")]


def assert_same(found: list[NDArray[Any]], encoder: Counting, sentences: list[Words]) -> None:
    for states, words in zip(found, sentences, strict=True):
        assert states.dtype == np.float16
        np.testing.assert_array_equal(states, encoder.of(words).astype(np.float16))


def test_each_sentence_is_computed_once_whatever_data_set_it_is_in(tmp_path: Path) -> None:
    encoder = Counting()
    first = LayerCache(tmp_path).layers(encoder, [*SENTENCES, *SENTENCES])
    assert encoder.n_computed == len(SENTENCES)
    assert_same(first.of(SENTENCES[::-1]), encoder, SENTENCES[::-1])
    more = [*SENTENCES[1:3], ("new",)]
    second = LayerCache(tmp_path).layers(encoder, more)
    assert encoder.n_computed == len(SENTENCES) + 1
    assert_same(second.of(more), encoder, more)


def test_another_encoder_has_a_place_of_its_own(tmp_path: Path) -> None:
    one, two = Counting("one"), Counting("two", scale=2.0)
    LayerCache(tmp_path).layers(one, SENTENCES)
    assert_same(LayerCache(tmp_path).layers(two, SENTENCES).of(SENTENCES), two, SENTENCES)


def test_without_a_folder_layers_are_computed_when_they_are_asked_for() -> None:
    encoder = Counting()
    found = LayerCache(None).layers(encoder, SENTENCES)
    assert encoder.n_computed == 0
    np.testing.assert_array_equal(found.of(SENTENCES)[1], encoder.of(SENTENCES[1]))
    found.of(SENTENCES[:1])
    assert encoder.n_computed == len(SENTENCES) + 1


def test_what_was_used_longest_ago_goes_first_but_nothing_in_use(tmp_path: Path) -> None:
    encoder = Counting()
    paths: list[Path] = []
    for age, words in enumerate(SENTENCES):
        LayerCache(tmp_path).layers(encoder, [words])
        (new,) = set(tmp_path.glob("*/*.block")) - set(paths)
        os.utime(new, ns=(10**18 + age, 10**18 + age))
        paths.append(new)
    room = paths[0].stat().st_size + paths[3].stat().st_size
    found = LayerCache(tmp_path, limit=room).layers(encoder, SENTENCES[:1])  # the oldest is in use now
    assert set(tmp_path.glob("*/*.block")) == {paths[0], paths[3]}
    assert_same(found.of(SENTENCES[:1]), encoder, SENTENCES[:1])
    LayerCache(tmp_path, limit=0).layers(encoder, SENTENCES[3:])
    assert set(tmp_path.glob("*/*.block")) == {paths[3]}


@pytest.mark.parametrize("damage", ["cut", "overwritten", "empty"])
def test_a_damaged_block_is_computed_again(tmp_path: Path, damage: str) -> None:
    encoder = Counting()
    LayerCache(tmp_path).layers(encoder, SENTENCES)
    (path,) = tmp_path.glob("*/*.block")
    raw = path.read_bytes()
    path.write_bytes({"cut": raw[:-5], "overwritten": b"\xff" * len(raw), "empty": b""}[damage])
    found = LayerCache(tmp_path).layers(encoder, SENTENCES)
    assert encoder.n_computed == 2 * len(SENTENCES)
    assert_same(found.of(SENTENCES), encoder, SENTENCES)


def test_layers_beyond_half_precision_are_refused_not_rounded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="do not fit into half precision; run without a cache"):
        LayerCache(tmp_path).layers(Counting(scale=1e6), SENTENCES)
    assert not list(tmp_path.glob("*/*.block"))


def test_no_two_sentences_share_a_name() -> None:
    names = [("ab",), ("a", "b"), ("a b",), ("a", "b", ""), ("", "a", "b"), ("A", "b"), ("\ud800",)]
    assert len({key_of(words) for words in names}) == len(names)
