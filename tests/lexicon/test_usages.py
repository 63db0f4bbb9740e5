from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from elmo import ConfigError, DataError, ShapeError
from elmo.embed.elmo import Elmo
from elmo.lexicon.usages import Usage, Usages, embed_usages, entry_key, find_usages, respell
from elmo.text.reader import Sentence
from elmo.text.tokenizers import Tokens, WhitespaceTokenizer
from tests.lexicon.conftest import LINES

SENTENCES = [Sentence(WhitespaceTokenizer()(line), "text", k) for k, line in enumerate(LINES, start=1)]


def test_words_and_phrases_are_found_in_any_case_with_their_places(elmo: Elmo) -> None:
    found = find_usages(SENTENCES, ["bank", "New York", "sea"], key=entry_key(elmo))
    assert [(one.word, one.place, one.begin) for one in found["bank"]] == [
        ("bank", "text:1", 4),
        ("bank", "text:2", 1),
        ("Bank", "text:4", 0),
        ("bank", "text:4", 2),
        ("bank", "text:5", 5),
    ]
    assert [one.word for one in found["New York"]] == ["New York", "new york"]
    assert found["sea"] == []


def test_case_may_count(elmo: Elmo) -> None:
    found = find_usages(SENTENCES, ["Bank", "RIVER"], key=entry_key(elmo, keep_case=True))
    assert [len(usages) for usages in found.values()] == [1, 1]


def test_a_sample_is_fair_in_order_and_the_same_whatever_else_is_sought(elmo: Elmo) -> None:
    sentences = [Sentence(Tokens.given(["x", "y"]), "text", k) for k in range(1, 101)]
    one = find_usages(sentences, ["x"], key=entry_key(elmo), limit=10, seed=3)["x"]
    both = find_usages(sentences, ["y", "x"], key=entry_key(elmo), limit=10, seed=3)
    assert one == both["x"]
    lines = [int(usage.place.split(":")[1]) for usage in one]
    assert lines == sorted(lines)
    assert len(set(lines)) == 10
    assert max(lines) > 30  # not just the first ones
    chosen = np.zeros(100)
    for seed in range(300):
        for usage in find_usages(sentences, ["x"], key=entry_key(elmo), limit=10, seed=seed)["x"]:
            chosen[int(usage.place.split(":")[1]) - 1] += 1
    assert chosen.min() > 10
    assert chosen.max() < 60  # 30 expected of each


def test_a_usage_shows_its_sentence_as_it_was_written(elmo: Elmo) -> None:
    usage = Usage(WhitespaceTokenizer()("The river  rose ."), 1, 2)
    assert usage.parts() == ("The ", "river", "  rose .")
    assert Usage(Tokens.given(["New", "York", "rose"]), 0, 2).parts() == ("", "New York", " rose")


def test_vectors_are_those_of_encode_and_of_a_phrase_the_mean(elmo: Elmo) -> None:
    found = find_usages(SENTENCES, ["bank", "New York"], key=entry_key(elmo))
    usages = [usage for group in found.values() for usage in group]
    vectors = embed_usages(elmo, usages, layers="top").vectors
    for usage, vector in zip(usages, vectors, strict=True):
        whole = np.asarray(elmo.encode([usage.sentence], layers="top")[0].vectors)
        assert np.array_equal(vector, whole[usage.begin : usage.end].mean(axis=0))
    assert embed_usages(elmo, []).vectors.shape == (0, elmo.width)


def test_a_usage_may_be_read_with_another_spelling_of_its_word() -> None:
    usage = Usage(WhitespaceTokenizer()("The Banks failed ."), 1, 2, "here")
    found = respell(usage, "bank")
    assert (found.sentence.tokens, found.word, found.place) == (
        ("The", "bank", "failed", "."),
        "bank",
        "here",
    )
    longer = respell(usage, "New York")
    assert (longer.word, longer.parts()[2]) == ("New York", " failed .")
    assert respell(usage, "Banks") is usage


def test_what_makes_no_sense_is_refused(elmo: Elmo) -> None:
    with pytest.raises(DataError, match=r"expected a place within 1 tokens, found 1\.\.2"):
        Usage(Tokens.given(["a"]), 1, 2)
    with pytest.raises(ShapeError, match=r"expected vectors \(usage, width\) of 0 usages"):
        Usages((), np.zeros((1, 2)))
    with pytest.raises(DataError, match="found white space only"):
        find_usages(SENTENCES, [" "], key=entry_key(elmo))
    with pytest.raises(ConfigError, match="limit must be at least 1"):
        find_usages(SENTENCES, ["a"], key=entry_key(elmo), limit=0)
    with pytest.raises(ConfigError, match="a usage has one vector"):
        embed_usages(elmo, [], layers="all")


def test_lengths_of_a_shard_are_exact_and_need_no_wide_copy_of_its_vectors() -> None:
    from elmo.lexicon.index import _lengths

    vectors = np.random.default_rng(0).normal(size=(100_000, 64)).astype(np.float16)
    vectors[0] = 0
    _lengths(vectors[:1])
    tracemalloc.start()
    try:
        found = _lengths(vectors)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < vectors.nbytes  # in float64 they have four times as many bytes
    assert np.array_equal(found, np.linalg.norm(vectors.astype(np.float64), axis=1).astype(np.float32))
