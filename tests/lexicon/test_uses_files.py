"""DWUG's files of uses: read as they are, and refused with file and line where they are damaged."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from elmo import DataError
from elmo.lexicon.usages import sort_periods, read_uses, strip_part_of_speech

HEAD = "lemma\tpos\tdate\tgrouping\tidentifier\tcontext_tokenized\tindexes_target_token_tokenized\n"


def row(lemma: str, period: str, text: str, index: str = "1", identifier: str = "") -> str:
    return f"{lemma}\tnn\t1850\t{period}\t{identifier}\t{text}\t{index}\n"


def test_words_periods_sentences_and_places_are_read(tmp_path: Path) -> None:
    first = HEAD + row("bank", "10", 'the " bank', "2", "a-1") + row("bank", "2", "a bank ,", "1", "a-2")
    (tmp_path / "bank.uses.csv").write_text(first, encoding="utf-8")
    (tmp_path / "data" / "tree").mkdir(parents=True)
    with lzma.open(tmp_path / "data" / "tree" / "uses.csv.xz", "wt", encoding="utf-8") as file:
        file.write(HEAD + row("tree", "2", "old trees and 树 here", "1:3") + "\n")
    (tmp_path / "bank.clusters.csv").write_text("identifier\tcluster\n", encoding="utf-8")
    found = read_uses(tmp_path)
    assert {word: list(periods) for word, periods in found.items()} == {"bank": ["2", "10"], "tree": ["2"]}
    usage = found["bank"]["10"][0]
    assert (usage.sentence.tokens, usage.word, usage.place) == (("the", '"', "bank"), "bank", "a-1")
    assert found["tree"]["2"][0].word == "trees and"
    assert found["tree"]["2"][0].place.endswith("uses.csv.xz:2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"x\.uses\.csv:1: expected columns lemma, .*; missing lemma, grouping"),
        (HEAD.replace("grouping", "period"), r":1: expected columns .*; missing grouping$"),
        (HEAD + "bank\tnn\n", r":2: expected 7 columns, found 2"),
        (
            HEAD + row("bank", "1", "a bank") + row("bank", "1", "a bank", "2"),
            r":3: .* within 2 tokens, found '2'",
        ),
        (HEAD + row("bank", "1", "a bank", "x"), r":2: expected the number of a token, .* found 'x'"),
        (HEAD + row("bank", "1", "a bank", "1:1"), r":2: expected a place within 2 tokens, found '1:1'"),
        (HEAD + row("", "1", "a bank"), r":2: expected a lemma and a grouping, found '' and '1'"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.uses.csv").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message) as error:
        read_uses(tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_without_uses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected files uses\.csv or WORD\.uses\.csv, found none"):
        read_uses(tmp_path)
    with pytest.raises(DataError, match="expected a folder with files of uses"):
        read_uses(tmp_path / "none")


def test_periods_are_in_order_of_their_numbers_if_they_are_numbers() -> None:
    assert sort_periods(["10", "9", "1"]) == ["1", "9", "10"]
    assert sort_periods(["late", "10", "9"]) == ["10", "9", "late"]


def test_a_lemma_may_name_its_part_of_speech() -> None:
    assert [strip_part_of_speech(lemma) for lemma in ("head_nn", "pin_vb", "Schwarz", "_nn")] == [
        "head", "pin", "Schwarz", "_nn",
    ]  # fmt: skip
