"""Functions that all readers use: find and open files, split text into words, read rows of columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from elmo.engine.batches import MAX_TOKENS
from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import Location, Words
from elmo.text.lines import Line, Source, expand_paths, format_source, read_lines
from elmo.text.reader import align_words
from elmo.text.tokenizers import Tokens, WhitespaceTokenizer

Paths = str | Path | Sequence[str | Path]
Tokenize = Callable[[str], Tokens | Sequence[str]]
Column = int | str  # a number (from 0; negative numbers count from the end) or a name
ExampleType = TypeVar("ExampleType")

WHITESPACE = WhitespaceTokenizer()  # for files that are already tokenized
_COMPRESSED = re.compile(r"\.(gz|xz|bz2|zst)$", re.IGNORECASE)


class NoFilesError(ConfigError):
    """No path was passed to a reader. Readers check their other options first."""


def check_file_format(file_format: str, formats: Any) -> None:
    """Raise ``ConfigError`` unless ``file_format`` is one of the values of the ``Literal`` type ``formats``."""
    if file_format not in get_args(formats):
        expected = ", ".join(get_args(formats))
        raise ConfigError(f"file_format must be one of {expected}; found {str(file_format)!r:.40}")


def find_files(paths: Paths) -> list[Source]:
    """List the files that match paths, folders and globs, in order; ``-`` is stdin."""
    names = [paths] if isinstance(paths, str | Path) else list(paths)
    if not names:
        raise NoFilesError("paths must contain at least one file; found none")
    return expand_paths([str(name) for name in names])


def get_suffix(file: Source) -> str:
    """Return the suffix before compression, such as ``.tsv`` for ``train.tsv.xz``; an empty string for stdin."""
    return "" if file == "-" else Path(_COMPRESSED.sub("", file.name)).suffix.lower()


@contextmanager
def open_lines(file: Source) -> Iterator[tuple[Line, Iterator[Line]]]:
    """Open a file; return the first line that is not blank, and an iterator that starts with this line."""
    with closing(read_lines(file)) as lines:  # an error in the middle closes the file at once
        for line in lines:
            if not is_blank(line.text):
                yield line, chain([line], lines)
                return
        raise DataError(f"{format_source(file)}: expected examples; found an empty file")


def require_examples(examples: Iterable[ExampleType], message: str) -> Iterator[ExampleType]:
    """Yield all examples; raise ``DataError`` with ``message`` if there are none."""
    is_empty = True
    for example in examples:
        is_empty = False
        yield example
    if is_empty:
        raise DataError(message)


def is_blank(text: str) -> bool:
    """Whether a text has only spaces and tabs; other white space counts as a word in some published corpora."""
    return not text.strip(" \t")


def locate(line: Line) -> Location:
    """Return the file and line number of a line."""
    return Location(line.path, line.number)


def split_tokens(text: str, tokenize: Tokenize) -> Tokens:
    """Tokenize a text; the tokens have character offsets unless the tokenizer changes characters."""
    tokens = _tokenize(text, tokenize)
    if tokens.offsets is not None:
        return tokens
    return Tokens(text, tokens.tokens, align_words(tokens.tokens, text))


def split_words(text: str, tokenize: Tokenize, *, what: str, location: Location) -> Words:
    """Tokenize a text, which must contain words; ``what`` is its name in the error message."""
    words = _tokenize(text, tokenize).tokens
    if not words:
        raise DataError(f"{location}: expected words in the {what}; found {text[:40]!r}")
    return words


def _tokenize(text: str, tokenize: Tokenize) -> Tokens:
    tokens = tokenize(text)
    return tokens if isinstance(tokens, Tokens) else Tokens.from_words(tokens)


Separator = Literal["\t", " "]
SEPARATOR_NAMES = {"\t": "tabs", " ": "spaces"}
_SOLID = re.compile(r"[^ \t]+")  # str.split would also split at U+00A0, which occurs inside words


@dataclass(frozen=True)
class TokenRow:
    """One row of a column file: the columns of a token."""

    columns: tuple[str, ...]
    location: Location

    def get(self, column: int, *, what: str) -> str:
        """Return the column with this number, from 0; raise ``DataError`` if it is blank."""
        if is_blank(self.columns[column]):
            raise DataError(f"{self.location}: expected a {what} in column {column + 1}; found nothing")
        return self.columns[column]


def guess_separator(text: str) -> Separator:
    """Return the separator of a row: a tab if it has one, otherwise a space."""
    return "\t" if "\t" in text else " "


def split_columns(text: str, separator: Separator) -> tuple[str, ...]:
    """Split a row at each tab, so that columns may be empty, or at runs of spaces."""
    return tuple(text.split("\t")) if separator == "\t" else tuple(_SOLID.findall(text))


def read_rows(
    lines: Iterable[Line],
    *,
    separator: Separator,
    n_columns: int | None = None,
    reason: str = "",
    comments: tuple[str, ...] = (),
) -> Iterator[list[TokenRow]]:
    """Yield the rows of each sentence; blank lines separate sentences.

    Args:
        lines: The lines of a file.
        separator: Separator between columns.
        n_columns: Number of columns in every row. None: as many as in the first row of each sentence.
        reason: Why ``n_columns`` columns are expected, for the error message.
        comments: Lines that start with one of these strings are skipped.
    """
    rows: list[TokenRow] = []
    for line in lines:
        if is_blank(line.text):
            if rows:
                yield rows
            rows = []
            continue
        if line.text.startswith(comments):
            continue
        columns = split_columns(line.text, separator)
        expected = n_columns or (len(rows[0].columns) if rows else len(columns))
        if len(columns) != expected:
            because = reason if n_columns else f", as in line {rows[0].location.line}"
            raise DataError(
                f"{locate(line)}: expected {expected} columns separated by {SEPARATOR_NAMES[separator]}"
                f"{because}; found {len(columns)}"
            )
        rows.append(TokenRow(columns, locate(line)))
        if len(rows) > MAX_TOKENS:
            raise DataError(
                f"{rows[0].location}: expected a sentence of at most {MAX_TOKENS:,} words; found more; "
                "separate sentences with empty lines"
            )
    if rows:
        yield rows
