"""Files of TSV, CSV or JSON lines in, the fields that a reader asks for out.

TSV cells are taken as they are, as in GLUE's files: no quotes, no escapes. CSV has quotes, and line ends
within them. A line of JSON lines is an object; a text in it may be a list of words.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import Place, Words
from elmo.tasks.data.sources import Tokenize, is_blank, place_of, words_of
from elmo.text.lines import Line

TableFormat = Literal["tsv", "csv", "jsonl"]
Column = int | str  # a number counts from 0, or from the end with -1
SUFFIXES: Mapping[str, TableFormat] = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}


@dataclass(frozen=True)
class Field:
    """What a reader asks for."""

    name: str  # to the reader
    column: Column | None  # as the caller gave it
    usual: tuple[str, ...]  # names of columns to look for where the caller gave none
    is_needed: bool = True


@dataclass(frozen=True)
class Record:
    """The fields that a table has, and where they stand."""

    cells: Mapping[str, Any]
    place: Place

    def words(self, field: str, tokenize: Tokenize) -> Words:
        """A text's words; a list of words stays as it is."""
        cell = self.cells[field]
        if isinstance(cell, list) and cell and all(isinstance(word, str) and word for word in cell):
            return tuple(cell)
        if not isinstance(cell, str):
            raise DataError(
                f"{self.place}: expected a text or a list of words as {field}, found {_kind(cell)}"
            )
        return words_of(cell, tokenize, what=field, place=self.place)

    def label(self, field: str) -> str:
        """A class's name; numbers and truths of JSON are names, too."""
        cell = self.cells[field]
        label = str(cell).strip() if isinstance(cell, str | int | float) else ""
        if not label:
            raise DataError(f"{self.place}: expected a {field}, found {_kind(cell)}")
        return label


def read_table(
    lines: Iterable[Line],
    fields: Sequence[Field],
    *,
    file_format: TableFormat,
    has_header: bool | None = None,
) -> Iterator[Record]:
    """The fields of each row.

    A header is expected where a column is given by name, or the first row has usual names of all fields that
    are needed; ``has_header`` says it outright.
    """
    if file_format == "jsonl":
        return _of_objects(lines, fields)
    rows = _csv_rows(lines) if file_format == "csv" else _tsv_rows(lines)
    return _of_rows(rows, fields, has_header=has_header)


def _of_objects(lines: Iterable[Line], fields: Sequence[Field]) -> Iterator[Record]:
    if number := next((field for field in fields if isinstance(field.column, int)), None):
        raise ConfigError(f"{number.name}: JSON lines have names, found column {number.column}; give a name")
    keys: dict[str, str] | None = None
    for line in lines:
        if is_blank(line.text):
            continue
        place = place_of(line)
        row = _object(line.text, place)
        if keys is None:
            found = {field.name: _named(field, list(row), place) for field in fields}
            keys = {name: key for name, key in found.items() if key is not None}
        if missing := next((key for key in keys.values() if key not in row), None):
            raise DataError(f"{place}: expected {missing!r}, found {_names(list(row))}")
        yield Record({name: row[key] for name, key in keys.items()}, place)


def _of_rows(
    rows: Iterator[tuple[list[str], Place]], fields: Sequence[Field], *, has_header: bool | None
) -> Iterator[Record]:
    at: dict[str, int] | None = None
    n_names: int | None = None
    for row, place in rows:
        if at is None:
            names = [name.strip() for name in row] if _is_header(row, fields, has_header) else None
            n_names = None if names is None else len(names)
            at = _places(fields, names, len(row), place)
            if names is not None:
                continue
        n_needed = max((k + 1 if k >= 0 else -k for k in at.values()), default=0)
        if len(row) != (n_names or len(row)) or len(row) < n_needed:
            expected = f"{n_names} columns, as in the header" if n_names else f"{n_needed} columns or more"
            raise DataError(f"{place}: expected {expected}, found {len(row)}")
        yield Record({name: row[k] for name, k in at.items()}, place)


def _is_header(row: Sequence[str], fields: Sequence[Field], has_header: bool | None) -> bool:
    has_name = any(isinstance(field.column, str) for field in fields)
    if has_header is not None:
        if has_name and not has_header:
            raise ConfigError("columns: names need a header; give numbers where there is none")
        return has_header
    names = {name.strip().lower() for name in row}
    needed = [field for field in fields if field.is_needed and field.column is None]
    return has_name or (bool(needed) and all(names & {*map(str.lower, one.usual)} for one in needed))


def _places(
    fields: Sequence[Field], names: Sequence[str] | None, n_columns: int, place: Place
) -> dict[str, int]:
    """Where each field stands in a row; a field that is not needed may be missing."""
    at: dict[str, int] = {}
    for field in fields:
        if isinstance(field.column, int):
            if not -n_columns <= field.column < n_columns:
                raise DataError(
                    f"{place}: expected a column {field.column}, counted from 0, as {field.name}, found "
                    f"{n_columns} columns"
                )
            at[field.name] = field.column
        elif names is not None and (name := _named(field, names, place)) is not None:
            at[field.name] = names.index(name)
        elif names is None and field.is_needed:
            usual = " or ".join(map(repr, field.usual))
            raise DataError(
                f"{place}: expected a header with {usual}, found none; give the {field.name}'s number"
            )
    return at


def _named(field: Field, names: Sequence[str], place: Place) -> str | None:
    """The name that a field has among ``names``: as the caller wrote it, or a usual one in any case."""
    if field.column is not None:
        if field.column in names:
            return str(field.column)
        raise DataError(f"{place}: expected a column {str(field.column)[:40]!r}, found {_names(names)}")
    by_lower = {name.lower(): name for name in reversed(names)}
    for usual in field.usual:
        if usual.lower() in by_lower:
            return by_lower[usual.lower()]
    if field.is_needed:
        usual = " or ".join(map(repr, field.usual))
        raise DataError(f"{place}: expected {usual} as {field.name}, found {_names(names)}; name its column")
    return None


def _tsv_rows(lines: Iterable[Line]) -> Iterator[tuple[list[str], Place]]:
    return ((line.text.split("\t"), place_of(line)) for line in lines if not is_blank(line.text))


def _csv_rows(lines: Iterable[Line]) -> Iterator[tuple[list[str], Place]]:
    first: Line | None = None  # of the row that is being read
    last: Line | None = None

    def texts() -> Iterator[str]:
        nonlocal first, last
        for line in lines:
            first, last = first or line, line
            yield line.text + "\n"

    reader = csv.reader(texts(), strict=True)
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            where = place_of(first) if first else last
            raise DataError(f"{where}: expected a row of CSV, found {error}") from error
        if row is None:
            return
        if first is not None and any(not is_blank(one) for one in row):
            yield row, place_of(first)
        first = None


def _object(text: str, place: Place) -> dict[str, Any]:
    if text.lstrip().startswith("["):
        raise DataError(f"{place}: expected a JSON object, found a list; write one object a line")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: expected a JSON object, found no JSON: {str(error)[:120]}") from error
    if not isinstance(found, dict):
        raise DataError(f"{place}: expected a JSON object, found {_kind(found)}")
    return found


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(ascii, names[:12]))[:160] or "nothing"


def _kind(cell: Any) -> str:
    if cell is None or cell in ("", []):
        return "nothing"
    return {str: "a string", list: "a list", dict: "an object"}.get(type(cell), type(cell).__name__)
