"""Rows of sentences."""

from __future__ import annotations

import pytest

from elmo.engine.batches import MAX_TOKENS
from elmo.errors import DataError
from elmo.tasks.data.examples import Location
from elmo.tasks.data.files import Row, cell, split_columns, read_rows
from elmo.text.lines import Line


def lines(*texts: str) -> list[Line]:
    return [Line(text, number, "f") for number, text in enumerate(texts, start=1)]


def test_tabs_part_empty_columns_and_spaces_do_not() -> None:
    assert split_columns("a\t\tb c\t", "\t") == ("a", "", "b c", "")
    assert split_columns(" a  b\u3000c ", " ") == ("a", "b\u3000c")


def test_sentences_have_rows_and_their_own_numbers_of_columns() -> None:
    found = list(read_rows(lines("", "a b", "c d", " ", "", "e"), separator=" "))
    assert [[row.columns for row in rows] for rows in found] == [[("a", "b"), ("c", "d")], [("e",)]]
    assert found[1][0].place == Location("f", 6)


def test_a_row_unlike_the_first_is_refused() -> None:
    with pytest.raises(DataError, match=r"^f:3: expected 2 columns separated by tabs, as in line 2, found 1$"):
        list(read_rows(lines("#", "a\tb", "c"), separator="\t", is_no_row=lambda text: text == "#"))
    with pytest.raises(
        DataError, match=r"^f:1: expected 3 columns parted by spaces, says the header, found 1$"
    ):
        list(read_rows(lines("a"), separator=" ", n_columns=3, why=", says the header"))


def test_a_sentence_without_an_end_is_refused() -> None:
    with pytest.raises(DataError, match=r"^f:1: expected an empty line within 100,000 words, found none$"):
        list(read_rows(lines(*["a"] * (MAX_TOKENS + 1)), separator=" "))


def test_an_empty_cell_is_named() -> None:
    with pytest.raises(DataError, match=r"^f:1: expected a word in column 2, found nothing$"):
        cell(Row(("a", " "), Location("f", 1)), 1, what="word")
