"""Similarity statistics: what they measure, how they are stored, and how they rank a cosine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elmo import DataError, Elmo, FormatError, OutputError, similarities
from elmo.embed.calibration import MIN_USAGES, N_USAGES, calibrate_model, compute_similarity_statistics
from elmo.embed.comparison import compare, rank_similarity
from elmo.formats import native
from elmo.formats.similarity import LEVELS, SimilarityStatistics, format_statistics, parse_statistics
from elmo.text.tokenizers import Tokens
from tests.formats.tiny import tiny_model

TEXT = [f"the Bank of river {k} is here" for k in range(N_USAGES)] + ["a bank", "we sat by a river once"]


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(tiny_model(softmax=True))


@pytest.fixture(scope="module")
def statistics(elmo: Elmo) -> SimilarityStatistics:
    return compute_similarity_statistics(elmo, [Tokens.from_words(line.split()) for line in TEXT])


def test_quantiles_are_those_of_all_pairs_of_usages(elmo: Elmo, statistics: SimilarityStatistics) -> None:
    vectors = np.stack([found.word("Bank") for found in elmo.encode([x.split() for x in TEXT[:-2]], layers="sense")])
    cosines = similarities(vectors, vectors)[np.triu_indices(N_USAGES, 1)]
    np.testing.assert_allclose(statistics.words["bank"], np.quantile(cosines, LEVELS), atol=2e-3)
    assert set(statistics.words) == {"the", "bank", "of", "river", "is", "here"}  # the words of MIN_USAGES sentences
    assert statistics.all_words[0] == min(values[0] for values in statistics.words.values())


def test_a_repeated_sentence_and_too_few_usages_do_not_count(elmo: Elmo) -> None:
    for lines in (["the bank of the river"] * 50, TEXT[: MIN_USAGES - 1]):
        with pytest.raises(DataError, match="expected a text in which some words occur in 12 sentences"):
            compute_similarity_statistics(elmo, [Tokens.from_words(line.split()) for line in lines])


def test_a_rank_is_the_share_of_pairs_below_and_unknown_words_use_all() -> None:
    ramp = tuple(level / 2 for level in LEVELS)  # cosines spread evenly from 0 to 0.5
    found = SimilarityStatistics(tuple(LEVELS), {"bank": ramp})
    assert [found.rank("bank", x).share for x in (-1.0, 0.0, 0.25, 0.4, 0.5, 1.0)] == pytest.approx(
        [0, 0, 0.5, 0.8, 1, 1]
    )
    assert found.rank("river", 0.25).share == pytest.approx(0.25)
    assert str(found.rank("bank", 0.4)) == "more alike than 80% of pairs of uses of 'bank'"
    assert str(found.rank("river", 0.4)) == "more alike than 40% of pairs of uses of the same word"
    flat = SimilarityStatistics((0.3,) * len(LEVELS), {})
    assert [flat.rank("x", x).share for x in (0.29, 0.31)] == [0.0, 1.0]


def test_statistics_are_stored_with_a_model_and_survive_conversion(
    tmp_path: Path, elmo: Elmo, statistics: SimilarityStatistics
) -> None:
    (tmp_path / "text.txt").write_text("\n".join(TEXT), encoding="utf-8")
    elmo.save_pretrained(tmp_path / "model")
    folder, found = calibrate_model(tmp_path / "model", str(tmp_path / "text.txt"), tokenizer="whitespace")
    assert (folder, found) == (tmp_path / "model", statistics)
    before = (folder / "SHA256SUMS").read_text()
    assert "similarity.json" in before
    calibrate_model(folder, str(tmp_path / "text.txt"), tokenizer="whitespace")
    assert (folder / "SHA256SUMS").read_text() == before
    native.write(native.read(folder), tmp_path / "copy", dtype="float16")
    stored = native.read(tmp_path / "copy").similarity
    assert stored is not None
    assert stored.words.keys() == statistics.words.keys()
    np.testing.assert_allclose(stored.words["bank"], statistics.words["bank"], atol=5e-4)
    with pytest.raises(OutputError, match="already exists"):
        calibrate_model(folder, str(tmp_path / "text.txt"), out=tmp_path / "copy")


def test_a_comparison_ranks_its_similarities(elmo: Elmo, statistics: SimilarityStatistics) -> None:
    calibrated = Elmo(replace(elmo.pretrained, similarity=statistics))
    result = compare(calibrated, "bank", ["the bank of the river", "a bank", "by the [[Bank]]"])
    assert list(result.ranks) == [(0, 1), (0, 2), (1, 2)]
    assert result.ranks[0, 1] == statistics.rank("bank", float(result.matrices["sense"][0, 1]))
    assert result.to_json()["ranks"][0] == {"uses": [0, 1], "share": result.ranks[0, 1].share, "word": "bank"}
    assert compare(calibrated, "bank", ["a bank", "the bank"], layers="all").ranks == {}
    assert rank_similarity(calibrated, "BANK", 1.0) is not None
    marked = compare(calibrated, "bank", ["a Bank", "the bank", "the [[river]]"]).ranks
    assert [marked[pair].word for pair in ((0, 1), (0, 2), (1, 2))] == ["bank", None, None]
    assert rank_similarity(elmo, "bank", 0.5) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.update(version=2),
        lambda v: v.update(levels=[0, 1]),
        lambda v: v.update(all=None),
        lambda v: v["words"].update(bank=[0.5] * len(LEVELS)),
        lambda v: v["words"].update(bank=[1001] * len(LEVELS)),
        lambda v: v["words"].update(bank=list(range(len(LEVELS)))[::-1]),
        lambda v: v.update(words={str(k): v["all"] for k in range(6001)}),
        lambda v: v.clear(),
    ],
)
def test_a_damaged_file_is_an_error(statistics: SimilarityStatistics, change: object) -> None:
    values = json.loads(format_statistics(statistics))
    assert parse_statistics(json.loads(json.dumps(values)), "x").words.keys() == statistics.words.keys()
    change(values)  # type: ignore[operator]
    with pytest.raises(FormatError, match=r"^x"):
        parse_statistics(values, "x")
