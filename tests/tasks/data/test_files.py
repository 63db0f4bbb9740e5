"""Finding files, splitting text, and reading rows."""

from __future__ import annotations

from pathlib import Path
import pytest
from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import Location
from elmo.tasks.data.files import (
    WHITESPACE,
    NoFilesError,
    find_files,
    is_blank,
    open_lines,
    get_suffix,
    split_tokens,
    split_words,
)
from elmo.engine.batches import MAX_TOKENS
from elmo.errors import DataError
from elmo.tasks.data.files import TokenRow, split_columns, read_rows
from elmo.text.lines import Line

def test_paths_may_be_one_several_or_a_folder(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).touch()
    assert find_files(tmp_path / "a.txt") == find_files([str(tmp_path / "a.txt")]) == [tmp_path / "a.txt"]
    assert find_files(tmp_path) == [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert find_files("-") == ["-"]
    with pytest.raises(NoFilesError, match="at least one file"):
        find_files([])
    assert issubclass(NoFilesError, ConfigError)


def test_compression_does_not_hide_a_suffix() -> None:
    assert [get_suffix(Path(name)) for name in ("a.TSV.xz", "a.csv", "a.gz")] == [".tsv", ".csv", ""]
    assert get_suffix("-") == ""


def test_a_file_is_given_from_its_first_line_that_says_something(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n \t\nx\n\n", encoding="utf-8")
    first, lines = open_lines(path)
    assert (first.text, first.number) == ("x", 3)
    assert [line.number for line in lines] == [3, 4]
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a.txt: expected examples, found an empty file"):
        open_lines(path)


def test_a_space_of_another_kind_may_be_a_word() -> None:
    assert is_blank(" \t")
    assert not is_blank("\u00a0")


def test_words_of_any_tokeniser_are_placed_where_they_spell_the_text() -> None:
    assert split_tokens("a bc", lambda text: ["a", "b", "c"]).offsets == ((0, 1), (2, 3), (3, 4))
    assert split_tokens("A", lambda text: ["a"]).offsets is None
    assert split_tokens("a b", WHITESPACE).offsets == ((0, 1), (2, 3))


def test_a_text_without_words_is_refused() -> None:
    with pytest.raises(DataError, match=r"^f:3: expected words in the text, found ' '$"):
        split_words(" ", WHITESPACE, what="text", location=Location("f", 3))
    with pytest.raises(DataError, match="expected a list of strings, found one string"):
        split_words("a b", lambda text: text, what="text", location=Location("f", 3))


def lines(*texts: str) -> list[Line]:
    return [Line(text, number, "f") for number, text in enumerate(texts, start=1)]


def test_tabs_part_empty_columns_and_spaces_do_not() -> None:
    assert split_columns("a\t\tb c\t", "\t") == ("a", "", "b c", "")
    assert split_columns(" a  b\u3000c ", " ") == ("a", "b\u3000c")


def test_sentences_have_rows_and_their_own_numbers_of_columns() -> None:
    found = list(read_rows(lines("", "a b", "c d", " ", "", "e"), separator=" "))
    assert [[row.columns for row in rows] for rows in found] == [[("a", "b"), ("c", "d")], [("e",)]]
    assert found[1][0].location == Location("f", 6)


def test_a_row_unlike_the_first_is_refused() -> None:
    with pytest.raises(DataError, match=r"^f:3: expected 2 columns separated by tabs, as in line 2, found 1$"):
        list(read_rows(lines("#", "a\tb", "c"), separator="\t", is_comment=lambda text: text == "#"))
    with pytest.raises(
        DataError, match=r"^f:1: expected 3 columns separated by spaces, says the header, found 1$"
    ):
        list(read_rows(lines("a"), separator=" ", n_columns=3, reason=", says the header"))


def test_a_sentence_without_an_end_is_refused() -> None:
    with pytest.raises(DataError, match=r"^f:1: expected an empty line within 100,000 words, found none$"):
        list(read_rows(lines(*["a"] * (MAX_TOKENS + 1)), separator=" "))


def test_an_empty_cell_is_named() -> None:
    with pytest.raises(DataError, match=r"^f:1: expected a word in column 2, found nothing$"):
        TokenRow(("a", " "), Location("f", 1)).get(1, what=\"word\")
