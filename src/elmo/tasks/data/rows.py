"""Lines of columns in, the rows of each sentence out: a line of white space ends a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from elmo.embed.groups import MAX_TOKENS
from elmo.errors import DataError
from elmo.tasks.data.examples import Place
from elmo.tasks.data.sources import is_blank, place_of
from elmo.text.lines import Line

Separator = Literal["\t", " "]
_SOLID = re.compile(r"[^ \t]+")  # str.split would also cut at U+00A0 and others, which stand inside words


@dataclass(frozen=True)
class Row:
    """The columns of one token."""

    columns: tuple[str, ...]
    place: Place


def separator_of(first: str) -> Separator:
    """What parts the columns of a file, by its first row: tabs, where it has any."""
    return "\t" if "\t" in first else " "


def by(separator: Separator) -> str:
    """The separator's name in a message."""
    return "tabs" if separator == "\t" else "spaces"


def columns_of(text: str, separator: Separator) -> tuple[str, ...]:
    """A tab parts two columns, which may be empty; spaces do however many they are."""
    return tuple(text.split("\t")) if separator == "\t" else tuple(_SOLID.findall(text))


def read_rows(
    lines: Iterable[Line],
    *,
    separator: Separator,
    is_no_row: Callable[[str], bool] = lambda text: False,
    n_columns: int | None = None,
    why: str = "",
) -> Iterator[list[Row]]:
    """The rows of each sentence, at least one, all with as many columns as its first.

    With ``n_columns`` every sentence has that many; ``why``, a message tells.
    """
    rows: list[Row] = []
    for line in lines:
        if is_blank(line.text):
            if rows:
                yield rows
            rows = []
            continue
        if is_no_row(line.text):
            continue
        columns = columns_of(line.text, separator)
        expected = n_columns or (len(rows[0].columns) if rows else len(columns))
        if len(columns) != expected:
            like = why if n_columns else f", as in line {rows[0].place.line}"
            raise DataError(
                f"{line.path}:{line.number}: expected {expected} columns parted by {by(separator)}{like}, "
                f"found {len(columns)}"
            )
        rows.append(Row(columns, place_of(line)))
        if len(rows) > MAX_TOKENS:
            raise DataError(
                f"{rows[0].place}: expected an empty line within {MAX_TOKENS:,} words, found none"
            )
    if rows:
        yield rows


def cell(row: Row, column: int, *, what: str) -> str:
    """What stands in a column, counted from 0; nothing there is an error."""
    found = row.columns[column]
    if is_blank(found):
        raise DataError(f"{row.place}: expected a {what} in column {column + 1}, found nothing")
    return found
