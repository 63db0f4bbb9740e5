"""Minimal pairs: reading, scores and accuracies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from elmo.embed.elmo import Elmo
from elmo.errors import DataError
from elmo.predict import MinimalPair, count_right, read_minimal_pairs, score_minimal_pairs, score_sentences

GOOD, BAD = "The author has seen himself.", "The author has seen themselves."
LINE = {"sentence_good": GOOD, "sentence_bad": BAD, "linguistics_term": "anaphor_agreement", "UID": "a_number"}


def test_json_lines_and_columns_give_the_same_pairs(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(LINE) + "\n\n", encoding="utf-8")
    table = f"phenomenon\tsentence_good\tsentence_bad\nanaphor_agreement\t{GOOD}\t{BAD}\n"
    (tmp_path / "a.tsv").write_text(table, encoding="utf-8")
    expected = [MinimalPair(GOOD, BAD, "anaphor_agreement")]
    assert read_minimal_pairs(tmp_path / "a.jsonl") == read_minimal_pairs(tmp_path / "a.tsv") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected minimal pairs; found none"),
        ("a\tb\n", ":1: expected JSON lines, or columns with sentence_good and sentence_bad; found 'a"),
        ('{"sentence_good": "a", "sentence_bad": "b"}\n{"sentence_good\n', ":2: expected a JSON object"),
        ('{"sentence_good": "a", "sentence_bad": " "}\n', ":1: sentence_bad must be a sentence; found ' '"),
        ('{"sentence_good": 3}\n', ":1: sentence_good must be a sentence; found 3"),
        ("sentence_good\tsentence_bad\na\n", ":2: expected 2 columns; found 1"),
    ],
)
def test_wrong_files_are_rejected(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "pairs").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_minimal_pairs(tmp_path / "pairs")


@pytest.mark.slow
def test_the_scores_of_a_pair_are_those_of_its_sentences() -> None:
    elmo = Elmo.from_pretrained("en")
    pairs = [MinimalPair(GOOD, BAD, "x"), MinimalPair(BAD, GOOD, "y"), MinimalPair(GOOD, GOOD, "y")]
    scores = list(score_minimal_pairs(elmo, pairs))
    good, bad = (result.sums for result in score_sentences(elmo, [GOOD, BAD]))
    assert scores[0].good == pytest.approx(good, rel=1e-5)
    assert scores[0].bad == pytest.approx(bad, rel=1e-5)
    (g0, g1), (b0, b1) = good, bad
    assert None not in (g0, g1, b0, b1)
    better = np.array([g0, g1], dtype=float) - np.array([b0, b1], dtype=float)
    is_right = {"forward": better[0] > 0, "backward": better[1] > 0, "both": better.sum() > 0}
    assert scores[0].is_right == is_right
    counts = count_right(scores)
    assert list(counts) == ["x", "y", "all"]
    for name, right in is_right.items():
        assert counts["x"][name] == right
        assert counts["y"][name] == (not right) / 2  # equal scores are not right
    assert [values["pairs"] for values in counts.values()] == [1, 2, 3]
