"""Files of scores: exact numbers, escaped words, atomic writes."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo.errors import DataError, OutputError
from elmo.formats.pretrained import Pretrained
from elmo.predict.evaluate import perplexity
from elmo.predict.scores import SentenceScores, score_sentences
from tests.formats.tiny import tiny_model

TEXT = [["the", "dog"], ["a\tb", "c\\d", "\n", "\ud800", "", "河岸"], ["</S>"]]
ESCAPED = [["the", "dog"], ["a\\tb", "c\\\\d", "\\n", "\\ud800", "", "河岸"], ["</S>"]]


@pytest.fixture(scope="module")
def model() -> Pretrained:
    return tiny_model(softmax=True)


@pytest.fixture(scope="module")
def known(model: Pretrained) -> list[SentenceScores]:
    return list(score_sentences(model, TEXT, start="carry"))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="\n") as file:
        return list(csv.DictReader(file, dialect="excel-tab", quoting=csv.QUOTE_NONE))


def write(model: Pretrained, path: Path, **options: Any) -> None:
    perplexity(model, TEXT, out=path, **options)
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_by_sentence_there_is_one_line_per_sentence(
    model: Pretrained, known: list[SentenceScores], tmp_path: Path
) -> None:
    write(model, tmp_path / "scores.tsv", start="carry")
    result = rows(tmp_path / "scores.tsv")
    assert [row["text"] for row in result] == [" ".join(tokens) for tokens in ESCAPED]
    assert [row["sentence"] for row in result] == ["1", "2", "3"]
    assert [(row["tokens"], row["unknown"]) for row in result] == [("2", "1"), ("6", "5"), ("1", "1")]
    write(model, tmp_path / "scores.tsv", start="carry")  # again: replaces the file
    write_json = tmp_path / "json" / "scores.jsonl"  # in a new folder
    write(model, write_json, start="carry")
    lines = [json.loads(line) for line in write_json.read_text().splitlines()]
    assert [line["text"] for line in lines] == [" ".join(tokens) for tokens in TEXT]
    for row, line, scored in zip(result, lines, known, strict=True):
        for name in ("forward", "backward"):
            expected = float(np.sum(getattr(scored, name), dtype=np.float64))
            assert math.isclose(float(row[name]), expected, rel_tol=1e-8)
            assert float(row[name]) == line[name]


def test_by_token_a_tsv_file_has_one_line_per_token(
    model: Pretrained, known: list[SentenceScores], tmp_path: Path
) -> None:
    write(model, tmp_path / "scores.tsv", start="carry", by="token")
    result = rows(tmp_path / "scores.tsv")
    assert [row["token"] for row in result] == [token for tokens in ESCAPED for token in ("<S>", *tokens, "</S>")]
    ahead = np.array([row["forward"] for row in result if row["forward"]], dtype=np.float32)
    behind = np.array([row["backward"] for row in result if row["backward"]], dtype=np.float32)
    np.testing.assert_array_equal(ahead, np.concatenate([scored.forward for scored in known]))  # pyright: ignore
    np.testing.assert_array_equal(behind, np.concatenate([scored.backward for scored in known]))  # pyright: ignore
    for row in result:
        is_first, is_last = row["position"] == "0", not row["backward"]
        assert (row["forward"] == "") == is_first
        assert is_last == (row["token"] == "</S>" and row["unknown"] == "0")


def test_by_token_a_json_line_has_lists(model: Pretrained, known: list[SentenceScores], tmp_path: Path) -> None:
    write(model, tmp_path / "scores.jsonl", start="carry", by="token", directions="forward")
    lines = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [line["tokens"] for line in lines] == TEXT
    for line, scored in zip(lines, known, strict=True):
        np.testing.assert_array_equal(np.array(line["forward"], dtype=np.float32), scored.forward)
        assert line["backward"] is None
        assert line["unknown"] == scored.is_unknown.tolist()


def test_each_sentence_has_one_line_per_start_state(model: Pretrained, tmp_path: Path) -> None:
    write(model, tmp_path / "scores.tsv", start="all")
    result = [(row["sentence"], row["start"]) for row in rows(tmp_path / "scores.tsv")]
    assert result == [(str(k), start) for k in (1, 2, 3) for start in ("zero", "carry")]


def test_a_line_has_the_path_and_line_of_its_sentence(model: Pretrained, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the bank\n\nthe river\n", encoding="utf-8")
    perplexity(model, tmp_path / "text.txt", start="zero", out=tmp_path / "scores.tsv")
    result = [(row["path"], row["line"]) for row in rows(tmp_path / "scores.tsv")]
    assert result == [(str(tmp_path / "text.txt"), "1"), (str(tmp_path / "text.txt"), "3")]


def test_after_an_error_the_old_file_is_unchanged(model: Pretrained, tmp_path: Path) -> None:
    def text() -> Any:
        yield ["the"]
        raise DataError("no more")

    path = tmp_path / "scores.tsv"
    for before in (None, b"old"):
        if before is not None:
            path.write_bytes(before)
        with pytest.raises(DataError, match="no more"):
            perplexity(model, text(), out=path)
        assert [one.read_bytes() for one in tmp_path.iterdir()] == ([] if before is None else [before])


def test_score_sentences_writes_the_same_file_as_perplexity(model: Pretrained, tmp_path: Path) -> None:
    perplexity(model, TEXT, start="carry", out=tmp_path / "expected.tsv", by="token")
    results = list(score_sentences(model, TEXT, start="carry", out=tmp_path / "scores.tsv", by="token"))
    assert [scores.tokens for scores in results] == [tuple(tokens) for tokens in TEXT]
    assert (tmp_path / "scores.tsv").read_bytes() == (tmp_path / "expected.tsv").read_bytes()
    with pytest.raises(DataError, match="no sentence with a word"):
        list(score_sentences(model, [], out=tmp_path / "empty.tsv"))
    assert not (tmp_path / "empty.tsv").exists()


def test_the_output_never_replaces_the_input(model: Pretrained, tmp_path: Path) -> None:
    (tmp_path / "text.tsv").write_text("the bank\n")
    for text in (tmp_path / "text.tsv", [tmp_path], tmp_path / "*.tsv"):
        with pytest.raises(OutputError, match="one of the inputs"):
            perplexity(model, text, out=tmp_path / "text.tsv")
    assert (tmp_path / "text.tsv").read_text() == "the bank\n"
