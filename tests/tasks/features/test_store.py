"""The feature cache: the same layers as computed, shared, limited in size, and robust to damage."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from elmo import ConfigError
from elmo.errors import OutputError
from elmo.tasks.features import store as layer_cache
from elmo.tasks.features.store import FeatureCache, sentence_key

Words = tuple[str, ...]


class Counting:
    """Vectors that depend on words and positions; counts the computed sentences."""

    n_layers, width = 2, 3

    def __init__(self, key: str = "counting", scale: float = 1.0) -> None:
        self.key, self.scale = key, scale
        self.n_computed = 0

    def layers(self, sentences: Sequence[Words]) -> list[NDArray[Any]]:
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


def test_each_sentence_is_computed_once_for_all_data_sets(tmp_path: Path) -> None:
    encoder = Counting()
    first = FeatureCache(tmp_path).lookup(encoder, [*SENTENCES, *SENTENCES])
    assert encoder.n_computed == len(SENTENCES)
    assert_same(first(SENTENCES[::-1]), encoder, SENTENCES[::-1])
    more = [*SENTENCES[1:3], ("new",)]
    second = FeatureCache(tmp_path).lookup(encoder, more)
    assert encoder.n_computed == len(SENTENCES) + 1
    assert_same(second(more), encoder, more)


def test_each_encoder_has_its_own_folder(tmp_path: Path) -> None:
    one, two = Counting("one"), Counting("two", scale=2.0)
    FeatureCache(tmp_path).lookup(one, SENTENCES)
    assert_same(FeatureCache(tmp_path).lookup(two, SENTENCES)(SENTENCES), two, SENTENCES)


def test_without_a_folder_layers_are_computed_on_each_lookup() -> None:
    encoder = Counting()
    unread = iter(SENTENCES)
    found = FeatureCache(None).lookup(encoder, unread)
    assert (encoder.n_computed, len(list(unread))) == (0, len(SENTENCES))
    np.testing.assert_array_equal(found(SENTENCES)[1], encoder.of(SENTENCES[1]))
    found(SENTENCES[:1])
    assert encoder.n_computed == len(SENTENCES) + 1


def test_least_recently_used_blocks_are_removed_but_none_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_cache, "BLOCK_TOKENS", 1)  # no block is too small to stay
    encoder = Counting()
    paths: list[Path] = []
    for age, words in enumerate(SENTENCES):
        FeatureCache(tmp_path).lookup(encoder, [words])
        (new,) = set(tmp_path.glob("*/*.block")) - set(paths)
        os.utime(new, ns=(10**18 + age, 10**18 + age))
        paths.append(new)
    room = paths[0].stat().st_size + paths[3].stat().st_size
    found = FeatureCache(tmp_path, limit=room).lookup(encoder, SENTENCES[:1])  # the oldest is in use now
    assert set(tmp_path.glob("*/*.block")) == {paths[0], paths[3]}
    assert_same(found(SENTENCES[:1]), encoder, SENTENCES[:1])


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_the_folder_never_grows_beyond_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, share: float
) -> None:
    monkeypatch.setattr(layer_cache, "BLOCK_TOKENS", 60)
    encoder, sizes = Counting(), list[int]()
    compute = encoder.layers

    def watched(sentences: Sequence[Words]) -> list[NDArray[Any]]:
        sizes.append(sum(path.stat().st_size for path in tmp_path.rglob("*.block*")))
        return compute(sentences)

    monkeypatch.setattr(encoder, "layers", watched)
    sentences = [(f"{k}",) * 10 for k in range(50)]
    FeatureCache(tmp_path).lookup(encoder, sentences)
    whole = sum(path.stat().st_size for path in tmp_path.rglob("*.block"))
    limit = int(share * whole)
    others = [(f"new {k}",) * 10 for k in range(50)]
    for wanted in (others, others, sentences):  # new ones; what fits of them is there; the limit once more
        sizes.clear()
        caplog.clear()
        found = FeatureCache(tmp_path, limit=limit).lookup(encoder, wanted)
        sizes.append(sum(path.stat().st_size for path in tmp_path.rglob("*.block*")))
        assert max(sizes[1:], default=0) <= limit
        assert sizes[-1] >= limit - whole // 4 or share == 0.0
        (record,) = caplog.records
        assert re.search(r"is limited to 0 MB \(--cache-limit\): the layers of \d+ of 50 sentences", record.message)
        for states, words in zip(found(wanted), wanted, strict=True):
            np.testing.assert_allclose(states, encoder.of(words), rtol=1e-3)


def test_a_smaller_limit_removes_even_blocks_in_use(tmp_path: Path) -> None:
    encoder = Counting()
    FeatureCache(tmp_path).lookup(encoder, SENTENCES)
    found = FeatureCache(tmp_path, limit=0).lookup(encoder, SENTENCES)
    assert not list(tmp_path.rglob("*.block"))
    np.testing.assert_array_equal(found(SENTENCES)[2], encoder.of(SENTENCES[2]))


def test_a_file_that_cannot_be_removed_still_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FeatureCache(tmp_path).lookup(Counting("one"), SENTENCES)
    (old,) = tmp_path.rglob("*.block")

    def refuse(_: Path, missing_ok: bool = False) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "unlink", refuse)
    other = Counting("two")
    FeatureCache(tmp_path, limit=old.stat().st_size).lookup(other, SENTENCES)
    assert list(tmp_path.rglob("*.block")) == [old]


def test_small_blocks_are_merged(tmp_path: Path) -> None:
    encoder = Counting()
    sentences = [("w",) * k for k in range(1, 8)]
    early = [FeatureCache(tmp_path).lookup(encoder, [sentences[0], words]) for words in sentences]
    assert len(list(tmp_path.rglob("*.block"))) == 1
    assert encoder.n_computed == len(sentences)
    found = FeatureCache(tmp_path).lookup(encoder, sentences)
    FeatureCache(tmp_path).lookup(encoder, [("another",)])  # merges what ``found`` has mapped
    assert_same(found(sentences), encoder, sentences)
    for one in early:
        assert_same(one(sentences[:1]), encoder, sentences[:1])
    assert encoder.n_computed == len(sentences) + 1


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of descriptors there")
def test_many_blocks_need_no_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(layer_cache, "BLOCK_TOKENS", 1)
    monkeypatch.setattr("elmo.storage.atomic.sync", lambda _: None)
    encoder = Counting()
    sentences = [(f"{k}",) for k in range(100)]
    FeatureCache(tmp_path).lookup(encoder, sentences)
    assert len(list(tmp_path.rglob("*.block"))) == len(sentences)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/dev/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, before[1]))
    try:
        found = FeatureCache(tmp_path).lookup(encoder, sentences)
        assert_same(found(sentences), encoder, sentences)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert encoder.n_computed == len(sentences)


@pytest.mark.parametrize("kind", ["descriptors", "memory"])
def test_an_intact_block_that_is_temporarily_unreadable_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    encoder = Counting()
    FeatureCache(tmp_path).lookup(encoder, SENTENCES)
    error = {"descriptors": OSError(errno.EMFILE, "Too many open files"), "memory": MemoryError()}[kind]

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(layer_cache, "read_arrays", refuse)
        with pytest.raises(OutputError, match=r"cannot read the cache block .*: (Too many|MemoryError)"):
            FeatureCache(tmp_path).lookup(encoder, SENTENCES)
    FeatureCache(tmp_path).lookup(encoder, SENTENCES)
    assert encoder.n_computed == len(SENTENCES)


def test_a_block_that_another_process_removed_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Counting()
    FeatureCache(tmp_path).lookup(encoder, SENTENCES)
    (path,) = tmp_path.rglob("*.block")
    listed = Path.glob

    def late(folder: Path, pattern: str) -> list[Path]:
        found = list(listed(folder, pattern))
        path.unlink(missing_ok=True)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Path, "glob", late)
        found = FeatureCache(tmp_path).lookup(encoder, SENTENCES)
    assert_same(found(SENTENCES), encoder, SENTENCES)


@pytest.mark.parametrize("damage", ["cut", "longer", "overwritten", "empty"])
def test_a_damaged_block_is_computed_again(tmp_path: Path, damage: str) -> None:
    encoder = Counting()
    FeatureCache(tmp_path).lookup(encoder, SENTENCES)
    (path,) = tmp_path.glob("*/*.block")
    raw = path.read_bytes()
    damaged = {"cut": raw[:-5], "longer": raw + b"\0", "overwritten": b"\xff" * len(raw), "empty": b""}
    path.write_bytes(damaged[damage])
    found = FeatureCache(tmp_path).lookup(encoder, SENTENCES)
    assert encoder.n_computed == 2 * len(SENTENCES)
    assert_same(found(SENTENCES), encoder, SENTENCES)


def test_layers_beyond_half_precision_are_refused_not_rounded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="they exceed the range of half precision; use --no-cache"):
        FeatureCache(tmp_path).lookup(Counting(scale=1e6), SENTENCES)
    assert not list(tmp_path.glob("*/*.block"))


def test_different_sentences_have_different_keys() -> None:
    names = [("ab",), ("a", "b"), ("a b",), ("a", "b", ""), ("", "a", "b"), ("A", "b"), ("\ud800",)]
    assert len({sentence_key(words) for words in names}) == len(names)
