"""Paths in, their files and lines out; a text and a tokeniser in, its words out: what all readers share.

Lines of columns in, the rows of each sentence out: a line of white space ends a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

from elmo.engine.batches import MAX_TOKENS
from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import Location, Words
from elmo.text.lines import Line, Source, expand_paths, format_source, read_lines
from elmo.text.reader import align_words
from elmo.text.tokenizers import Tokens, WhitespaceTokenizer

Paths = str | Path | Sequence[str | Path]
Tokenize = Callable[[str], Tokens | Sequence[str]]

WHITESPACE = WhitespaceTokenizer()  # for data that is tokenised already
P = ParamSpec("P")
E = TypeVar("E")
_COMPRESSED = re.compile(r"\.(gz|xz|bz2|zst)$", re.IGNORECASE)


class NoFilesError(ConfigError):
    """No path was given; a reader looks at its options first."""


def listed(each: Callable[P, Iterator[E]]) -> Callable[P, list[E]]:
    """A reader that gives one example at a time, as one that gives them all."""

    @wraps(each)
    def read(*given: P.args, **named: P.kwargs) -> list[E]:
        return list(each(*given, **named))

    return read


def require_examples(examples: Iterable[E], message: str) -> Iterator[E]:
    """The examples; ``DataError`` with this message where there are none."""
    is_none = True
    for example in examples:
        is_none = False
        yield example
    if is_none:
        raise DataError(message)


def find_files(paths: Paths) -> list[Source]:
    """The files that paths, folders and globs name, in order; ``-`` is stdin."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise NoFilesError("paths: expected at least one file, found none")
    return expand_paths([str(path) for path in given])


def get_suffix(file: Source) -> str:
    """``.tsv`` of ``train.tsv.xz``; nothing for stdin."""
    return "" if file == "-" else Path(_COMPRESSED.sub("", file.name)).suffix.lower()


def opened(file: Source) -> tuple[Line, Iterator[Line]]:
    """The first line that is more than white space, and all lines from it on; an empty file is refused."""
    lines = read_lines(file)
    for line in lines:
        if not is_blank(line.text):
            return line, chain([line], lines)
    raise DataError(f"{format_source(file)}: expected examples, found an empty file")


def is_blank(text: str) -> bool:
    """Spaces and tabs only; other white space may be a word of a published corpus."""
    return not text.strip(" \t")


def locate(line: Line) -> Location:
    """Where a line stands."""
    return Location(line.path, line.number)


def split_tokens(text: str, tokenize: Tokenize) -> Tokens:
    """The tokens of a text, with their places in it where they spell it."""
    found = tokenize(text)
    tokens = found if isinstance(found, Tokens) else Tokens.from_words(found)
    if tokens.offsets is not None:
        return tokens
    return Tokens(text, tokens.tokens, align_words(tokens.tokens, text))


def split_words(text: str, tokenize: Tokenize, *, what: str, place: Location) -> Words:
    """The words of a text, at least one; ``what`` it is tells a message."""
    found = tokenize(text)
    words = (found if isinstance(found, Tokens) else Tokens.from_words(found)).tokens
    if not words:
        raise DataError(f"{place}: expected words in the {what}, found {text[:40]!r}")
    return words


Separator = Literal["\t", " "]
_SOLID = re.compile(r"[^ \t]+")  # str.split would also cut at U+00A0 and others, which stand inside words


@dataclass(frozen=True)
class Row:
    """The columns of one token."""

    columns: tuple[str, ...]
    place: Location


def guess_separator(first: str) -> Separator:
    """What parts the columns of a file, by its first row: tabs, where it has any."""
    return "\t" if "\t" in first else " "


def by(separator: Separator) -> str:
    """The separator's name in a message."""
    return "tabs" if separator == "\t" else "spaces"


def split_columns(text: str, separator: Separator) -> tuple[str, ...]:
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
        columns = split_columns(line.text, separator)
        expected = n_columns or (len(rows[0].columns) if rows else len(columns))
        if len(columns) != expected:
            like = why if n_columns else f", as in line {rows[0].place.line}"
            raise DataError(
                f"{line.path}:{line.number}: expected {expected} columns parted by {by(separator)}{like}, "
                f"found {len(columns)}"
            )
        rows.append(Row(columns, locate(line)))
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
