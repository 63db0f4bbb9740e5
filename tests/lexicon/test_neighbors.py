from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elmo import ConfigError, DataError, MissingExtraError
from elmo.embed.elmo import Elmo
from elmo.lexicon.index import Index
from elmo.lexicon.indexing import IndexJob, build_index
from elmo.lexicon.neighbors import ApproximateIndex, find_neighbors
from tests.embed.sentences import tiny_elmo

QUERY = "he sat by the [[bank]] of a river ."


def test_neighbors_have_decreasing_cosines_and_different_sentences(job: IndexJob, elmo: Elmo) -> None:
    text = Path(job.inputs[0])
    text.write_text(text.read_text("utf-8") * 3, encoding="utf-8")  # every sentence three times
    (found,) = find_neighbors(elmo, build_index(job, elmo), [QUERY], k=8)
    assert found.usage.parts() == ("he sat by the ", "bank", " of a river .")
    cosines = [one.similarity for one in found.items]
    assert len(cosines) == 8
    assert cosines == sorted(cosines, reverse=True)
    shown = [(one.usage.sentence.tokens, one.usage.begin) for one in found.items]
    assert len(set(shown)) == 8


def test_a_sentence_is_not_a_neighbor_of_itself(index: Index, elmo: Elmo) -> None:
    (found,) = find_neighbors(elmo, index, ["I sat by the [[bank]] of the river ."], k=50)
    assert all(one.usage.sentence.tokens[0] != "I" or one.usage.begin != 4 for one in found.items)
    assert found.items[0].similarity < 0.9999


def test_a_sentence_repeated_a_thousand_times_hides_no_other(job: IndexJob, elmo: Elmo) -> None:
    text = Path(job.inputs[0])
    text.write_text("the bank\n" * 1000 + text.read_text("utf-8"), encoding="utf-8")
    index = build_index(replace(job, shard_tokens=500), elmo)
    for among in ("all", "same"):
        (found,) = find_neighbors(elmo, index, ["a [[bank]]"], k=5, among=among)
        assert len(found.items) == 5


def test_the_search_can_be_limited_to_the_same_word_or_to_others(index: Index, elmo: Elmo) -> None:
    (same,) = find_neighbors(elmo, index, [QUERY], among="same")
    assert {one.usage.word.lower() for one in same.items} == {"bank"}
    assert len(same.items) == 5
    (others,) = find_neighbors(elmo, index, [QUERY], among="others", k=100)
    assert "bank" not in {one.usage.word.lower() for one in others.items}
    (missing,) = find_neighbors(elmo, index, ["the [[sea]]"], among="same")
    assert missing.items == ()


def test_several_sentences_give_the_same_as_one_by_one(index: Index, elmo: Elmo) -> None:
    sentences = [QUERY, "the [[river]] rose", "[[money]]"]
    together = find_neighbors(elmo, index, sentences, k=3)
    for sentence, found in zip(sentences, together, strict=True):
        (alone,) = find_neighbors(elmo, index, [sentence], k=3)
        assert alone.to_json() == found.to_json()


def test_an_approximate_index_finds_nearly_all_with_exact_cosines(tmp_path: Path, job: IndexJob, elmo: Elmo) -> None:
    pytest.importorskip("usearch")
    random = np.random.default_rng(0)
    words = ["w" + "".join(random.choice(list("abcdef"), 3)) for _ in range(40)]
    lines = [" ".join(random.choice(words, 9)) for _ in range(200)]
    (tmp_path / "many.txt").write_text("\n".join(lines))
    index = build_index(replace(job, inputs=(str(tmp_path / "many.txt"),), shard_tokens=500), elmo)
    ApproximateIndex.build(index)
    queries = index.vectors(range(0, len(index), 50))
    exact, close = index.nearest(queries, 10), ApproximateIndex.open(index).nearest(queries, 10)
    pairs = list(zip(exact, close, strict=True))
    hits = [len({a.number for a in one} & {b.number for b in two}) for one, two in pairs]
    assert np.mean(hits) > 8
    for one, two in pairs:
        cosines = {near.number: near.similarity for near in one}
        assert all(cosines.get(near.number, near.similarity) == near.similarity for near in two)
    found = find_neighbors(elmo, index, [f"{words[0]} [[{words[1]}]] {words[2]}"], k=3, approximate=True)
    assert len(found[0].items) == 3


def test_a_missing_or_damaged_approximate_index_is_reported(
    index: Index, elmo: Elmo, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("usearch")
    with pytest.raises(
        DataError, match=r"expected an approximate index, found none; build one with: elmo index … --approximate"
    ):
        find_neighbors(elmo, index, [QUERY], approximate=True)
    ApproximateIndex.build(index)
    (index.folder / "approximate.usearch").write_bytes(b"no graph" * 100)
    with pytest.raises(
        DataError, match=r"cannot read .*approximate\.usearch: |approximate\.usearch: it belongs to another"
    ):
        find_neighbors(elmo, index, [QUERY], approximate=True)
    monkeypatch.setitem(__import__("sys").modules, "usearch.index", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pyelmo\[approximate\]'"):
        ApproximateIndex.build(index)


def test_an_approximate_index_of_an_older_index_is_rejected(job: IndexJob, elmo: Elmo) -> None:
    pytest.importorskip("usearch")
    ApproximateIndex.build(build_index(job, elmo))
    rebuilt = build_index(replace(job, layers="top", restart=True), elmo)
    with pytest.raises(DataError, match="it was built for an older index"):
        ApproximateIndex.open(rebuilt)


def test_invalid_arguments_are_rejected(index: Index, elmo: Elmo) -> None:
    with pytest.raises(ConfigError, match="among must be all, same or others; found 'none'"):
        find_neighbors(elmo, index, [QUERY], among="none")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="k must be at least 1"):
        find_neighbors(elmo, index, [QUERY], k=0)
    with pytest.raises(ConfigError, match="built with another model"):
        find_neighbors(tiny_elmo(seed=1), index, [QUERY])
    with pytest.raises(DataError, match="sentence 2: no word is marked"):
        find_neighbors(elmo, index, [QUERY, "no mark"])
