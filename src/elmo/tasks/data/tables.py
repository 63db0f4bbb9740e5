"""Read columns of TSV, CSV and JSON lines files.

TSV cells have no quotes or escapes, as in the files of GLUE. CSV cells may be quoted and may contain line breaks. Each
line of a JSON lines file is an object; its texts may be lists of words.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import Location, Words
from elmo.tasks.data.files import Column, Tokenize, is_blank, locate, split_words
from elmo.text.lines import Line

TableFormat = Literal["tsv", "csv", "jsonl"]
SUFFIXES: Mapping[str, TableFormat] = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}


@dataclass(frozen=True)
class Field:
    """A field that a reader takes from a table.

    Attributes:
        name: Name of the field in records and messages.
        column: Column chosen by the caller; None uses the first of ``defaults`` that the table has.
        defaults: Usual names of the column.
        is_required: Whether it is an error if the table does not have the field.
    """

    name: str
    column: Column | None
    defaults: tuple[str, ...]
    is_required: bool = True


@dataclass(frozen=True)
class Record:
    """The fields of one row, and the location of the row."""

    cells: Mapping[str, Any]
    location: Location

    def get_words(self, field: str, tokenize: Tokenize) -> Words:
        """Return the words of a text field; a list of words is returned unchanged."""
        cell = self.cells[field]
        if isinstance(cell, list) and cell and all(isinstance(word, str) and word for word in cell):
            return tuple(cell)
        if not isinstance(cell, str):
            raise DataError(f"{self.location}: expected a text or a list of words as {field}; found {_describe(cell)}")
        return split_words(cell, tokenize, what=field, location=self.location)

    def get_label(self, field: str) -> str:
        """Return a label; numbers and booleans from JSON are converted to strings."""
        cell = self.cells[field]
        label = str(cell).strip() if isinstance(cell, str | int | float) else ""
        if not label:
            raise DataError(f"{self.location}: expected a {field}; found {_describe(cell)}")
        return label


def read_table(
    lines: Iterable[Line], fields: Sequence[Field], *, file_format: TableFormat, has_header: bool | None = None
) -> Iterator[Record]:
    """Yield a record for each row.

    If ``has_header`` is None, the first row is a header if a column is chosen by name, or if the row has default names
    for all required fields.
    """
    if file_format == "jsonl":
        return _read_objects(lines, fields)
    rows = _read_csv(lines) if file_format == "csv" else _read_tsv(lines)
    return _read_rows(rows, fields, has_header=has_header)


def _read_objects(lines: Iterable[Line], fields: Sequence[Field]) -> Iterator[Record]:
    if field := next((field for field in fields if isinstance(field.column, int)), None):
        raise ConfigError(f"column of {field.name} must be a name in JSON lines; found {field.column}")
    keys: dict[str, str] | None = None
    for line in lines:
        if is_blank(line.text):
            continue
        location = locate(line)
        row = _parse_object(line.text, location)
        if keys is None:
            names = {field.name: _find_name(field, list(row), location) for field in fields}
            keys = {name: key for name, key in names.items() if key is not None}
        if missing := next((key for key in keys.values() if key not in row), None):
            raise DataError(f"{location}: expected the key {missing!r}; found {_list_names(list(row))}")
        yield Record({name: row[key] for name, key in keys.items()}, location)


def _parse_object(text: str, location: Location) -> dict[str, Any]:
    if text.lstrip().startswith("["):
        raise DataError(f"{location}: expected a JSON object; found a list; write one object per line")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{location}: expected a JSON object; found invalid JSON: {str(error)[:120]}") from error
    if not isinstance(value, dict):
        raise DataError(f"{location}: expected a JSON object; found {_describe(value)}")
    return value


def _read_tsv(lines: Iterable[Line]) -> Iterator[tuple[list[str], Location]]:
    return ((line.text.split("\t"), locate(line)) for line in lines if not is_blank(line.text))


def _read_csv(lines: Iterable[Line]) -> Iterator[tuple[list[str], Location]]:
    first: Line | None = None  # first line of the current row
    last: Line | None = None

    def read_texts() -> Iterator[str]:
        nonlocal first, last
        for line in lines:
            first, last = first or line, line
            yield line.text + "\n"

    reader = csv.reader(read_texts(), strict=True)
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            location = locate(first) if first else last
            raise DataError(f"{location}: cannot parse CSV: {error}") from error
        if row is None:
            return
        if first is not None and not all(map(is_blank, row)):
            yield row, locate(first)
        first = None


def _read_rows(
    rows: Iterator[tuple[list[str], Location]], fields: Sequence[Field], *, has_header: bool | None
) -> Iterator[Record]:
    columns: dict[str, int] | None = None
    n_names: int | None = None
    for row, location in rows:
        if columns is None:
            names = [name.strip() for name in row] if _is_header(row, fields, has_header) else None
            n_names = None if names is None else len(names)
            columns = _find_columns(fields, names, len(row), location)
            if names is not None:
                continue
        n_needed = max((k + 1 if k >= 0 else -k for k in columns.values()), default=0)
        if len(row) != (n_names or len(row)) or len(row) < n_needed:
            expected = f"{n_names} columns, as in the header" if n_names else f"at least {n_needed} columns"
            raise DataError(f"{location}: expected {expected}; found {len(row)}")
        yield Record({name: row[k] for name, k in columns.items()}, location)


def _is_header(row: Sequence[str], fields: Sequence[Field], has_header: bool | None) -> bool:
    has_name = any(isinstance(field.column, str) for field in fields)
    if has_header is not None:
        if has_name and not has_header:
            raise ConfigError("cannot choose columns by name in a table without a header; use column numbers")
        return has_header
    names = {name.strip().lower() for name in row}
    required = [field for field in fields if field.is_required and field.column is None]
    has_defaults = all(names & {*map(str.lower, field.defaults)} for field in required)
    return has_name or (bool(required) and has_defaults)


def _find_columns(
    fields: Sequence[Field], names: Sequence[str] | None, n_columns: int, location: Location
) -> dict[str, int]:
    """Return the column number of each field; optional fields may be missing. ``names`` is the header, if any."""
    columns: dict[str, int] = {}
    for field in fields:
        if isinstance(field.column, int):
            if not -n_columns <= field.column < n_columns:
                raise DataError(
                    f"{location}: expected {field.name} in column {field.column} (from 0); found {n_columns} columns"
                )
            columns[field.name] = field.column
        elif names is not None and (name := _find_name(field, names, location)) is not None:
            columns[field.name] = names.index(name)
        elif names is None and field.is_required:
            raise DataError(
                f"{location}: expected a header with {_list_defaults(field)}; found none; choose the column of "
                f"{field.name} by number"
            )
    return columns


def _find_name(field: Field, names: Sequence[str], location: Location) -> str | None:
    """Return the column name of a field: the name that the caller chose, or a default name in any letter case."""
    if field.column is not None:
        if field.column in names:
            return str(field.column)
        raise DataError(f"{location}: expected a column {str(field.column)[:40]!r}; found {_list_names(names)}")
    by_lower = {name.lower(): name for name in reversed(names)}
    for default in field.defaults:
        if default.lower() in by_lower:
            return by_lower[default.lower()]
    if field.is_required:
        raise DataError(
            f"{location}: expected a column {_list_defaults(field)} for {field.name}; found {_list_names(names)}; "
            "choose the column by name"
        )
    return None


def _list_defaults(field: Field) -> str:
    return " or ".join(map(repr, field.defaults))


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(map(ascii, names[:12]))[:160] or "nothing"


def _describe(cell: Any) -> str:
    if cell is None or cell in ("", []):
        return "nothing"
    return {str: "a string", list: "a list", dict: "an object"}.get(type(cell), type(cell).__name__)
