"""Finding files, splitting text, and reading rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from elmo.engine.batches import MAX_TOKENS
from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import Location
from elmo.tasks.data.files import (
    WHITESPACE,
    NoFilesError,
    TokenRow,
    find_files,
    get_suffix,
    is_blank,
    open_lines,
    read_rows,
    split_columns,
    split_tokens,
    split_words,
)
from elmo.text.lines import Line


def test_paths_can_be_files_or_folders(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).touch()
    assert find_files(tmp_path / "a.txt") == find_files([str(tmp_path / "a.txt")]) == [tmp_path / "a.txt"]
    assert find_files(tmp_path) == [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert find_files("-") == ["-"]
    with pytest.raises(NoFilesError, match="paths must contain at least one file"):
        find_files([])
    assert issubclass(NoFilesError, ConfigError)


def test_the_suffix_is_found_before_that_of_the_compression() -> None:
    assert [get_suffix(Path(name)) for name in ("a.TSV.xz", "a.csv", "a.gz")] == [".tsv", ".csv", ""]
    assert get_suffix("-") == ""


def test_blank_lines_at_the_start_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n \t\nx\n\n", encoding="utf-8")
    with open_lines(path) as (first, lines):
        assert (first.text, first.number) == ("x", 3)
        assert [line.number for line in lines] == [3, 4]
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a.txt: expected examples; found an empty file"), open_lines(path):
        pass


def test_an_error_closes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x\ny\n", encoding="utf-8")
    with pytest.raises(ValueError, match="stop"), open_lines(path) as (_, lines):
        raise ValueError("stop")
    assert [line.text for line in lines] == ["x"]  # read before; the file itself is closed


def test_only_spaces_and_tabs_are_blank() -> None:
    assert is_blank(" \t")
    assert not is_blank("\u00a0")


def test_tokens_of_any_tokenizer_are_aligned_with_the_text() -> None:
    assert split_tokens("a bc", lambda text: ["a", "b", "c"]).offsets == ((0, 1), (2, 3), (3, 4))
    assert split_tokens("A", lambda text: ["a"]).offsets is None
    assert split_tokens("a b", WHITESPACE).offsets == ((0, 1), (2, 3))


def test_a_text_without_words_raises_an_error() -> None:
    with pytest.raises(DataError, match=r"^f:3: expected words in the text; found ' '$"):
        split_words(" ", WHITESPACE, what="text", location=Location("f", 3))
    with pytest.raises(DataError, match="expected a list of strings, found one string"):
        split_words("a b", lambda text: text, what="text", location=Location("f", 3))


def lines(*texts: str) -> list[Line]:
    return [Line(text, number, "f") for number, text in enumerate(texts, start=1)]


def test_tabs_separate_empty_columns_and_spaces_do_not() -> None:
    assert split_columns("a\t\tb c\t", "\t") == ("a", "", "b c", "")
    assert split_columns(" a  b\u3000c ", " ") == ("a", "b\u3000c")


def test_sentences_may_differ_in_their_number_of_columns() -> None:
    found = list(read_rows(lines("", "a b", "c d", " ", "", "e"), separator=" "))
    assert [[row.columns for row in rows] for rows in found] == [[("a", "b"), ("c", "d")], [("e",)]]
    assert found[1][0].location == Location("f", 6)


def test_a_row_with_another_number_of_columns_raises_an_error() -> None:
    message = r"^f:3: expected 2 columns separated by tabs, as in line 2; found 1$"
    with pytest.raises(DataError, match=message):
        list(read_rows(lines("#", "a\tb", "c"), separator="\t", comments=("#",)))
    with pytest.raises(DataError, match=r"^f:1: expected 3 columns separated by spaces, says the header; found 1$"):
        list(read_rows(lines("a"), separator=" ", n_columns=3, reason=", says the header"))


@pytest.mark.slow
def test_a_sentence_that_is_too_long_raises_an_error() -> None:
    with pytest.raises(DataError, match=r"^f:1: expected a sentence of at most 100,000 words; found more; separate"):
        list(read_rows(lines(*["a"] * (MAX_TOKENS + 1)), separator=" "))


def test_an_empty_cell_raises_an_error() -> None:
    with pytest.raises(DataError, match=r"^f:1: expected a word in column 2; found nothing$"):
        TokenRow(("a", " "), Location("f", 1)).get(1, what="word")
