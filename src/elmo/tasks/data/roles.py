"""Read predicates and their semantic roles from PropBank columns, CoNLL-2005 and CoNLL-2012 files.

The target column contains a lemma or roleset in the rows of predicates and ``-`` in the other rows. It is followed by
one column of brackets for each predicate: ``(ARG0*``, ``*``, ``*)``, ``(V*)``. The span V is not a role, and neither is
a C-V that contains the target. Labels are not changed; the prefixes C- and R- are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import Predicate, Span, Words
from elmo.tasks.data.files import (
    Paths,
    TokenRow,
    check_file_format,
    find_files,
    guess_separator,
    is_blank,
    open_lines,
    read_rows,
)

RoleFormat = Literal["auto", "propbank", "conll2005", "conll2012"]
VERB = "V"
_COMMENTS = ("#begin document", "#end document")
_EMPTY = ("", "-", "_")
_BRACKETS = re.compile(r"(?:\(([^()*]+))?\*(\)?)")


@dataclass(frozen=True)
class _RoleColumns:
    """The layout of a file; columns are counted from 0."""

    words: int
    target: int
    first: int  # first column of brackets
    n_after: int  # number of columns after the brackets
    is_paired: bool  # whether there is one column of brackets per target


_PROPBANK = _RoleColumns(words=0, target=3, first=4, n_after=0, is_paired=True)
# document, part, number, word, tag, parse, lemma, frameset, sense, speaker, entity, brackets…, coreference;
# a frameset may have no column of brackets, and a column of brackets may have no frameset
_CONLL2012 = _RoleColumns(words=3, target=7, first=11, n_after=1, is_paired=False)


def read_roles(
    paths: Paths, *, file_format: RoleFormat = "auto", target: int | None = None, is_labeled: bool = True
) -> Iterator[Predicate]:
    """Yield each predicate of each sentence with its roles, in the order of the columns.

    Args:
        paths: Files, folders or globs; "-" is stdin.
        file_format: Format of the files. ``propbank`` has the columns word, tag, lemma, roleset, brackets.
            ``conll2005`` starts with the word; its target column is the column that has as many targets in the first
            sentence as there are columns after it. "auto" selects ``conll2012`` if the file starts with
            ``#begin document``, ``propbank`` if it has tabs, otherwise ``conll2005``.
        target: Number of the target column, from 0, if it differs from the format. If V has several tokens, the
            predicate is the token with a target.
        is_labeled: Whether to read roles. If false, only predicates are read, from the target column, or from the
            last column if no target column is detected.
    """
    check_file_format(file_format, RoleFormat)
    if target is not None and target < 1:
        raise ConfigError(f"target must be a column number of at least 1; found {target}")
    for file in find_files(paths):
        with open_lines(file) as (first, lines):
            row = next(
                (line for line in lines if not is_blank(line.text) and not line.text.startswith(_COMMENTS)), None
            )
            separator = guess_separator(row.text if row else "")
            kind = file_format
            if kind == "auto" and first.text.startswith(_COMMENTS):
                kind = "conll2012"
            elif kind == "auto":
                kind = "propbank" if separator == "\t" else "conll2005"
            columns = None
            for rows in read_rows(chain([row] if row else [], lines), separator=separator, comments=_COMMENTS):
                columns = columns or _find_columns(rows, kind, target, is_labeled=is_labeled)
                yield from _read_sentence(rows, columns, is_labeled=is_labeled)
            if columns is None:
                raise DataError(f"{first.path}: expected sentences; found none")


def _find_columns(rows: Sequence[TokenRow], kind: RoleFormat, target: int | None, *, is_labeled: bool) -> _RoleColumns:
    if kind == "conll2012":
        return _CONLL2012 if target is None else replace(_CONLL2012, target=target)
    if target is None and kind == "propbank":
        return _PROPBANK
    if target is None:
        n_columns = len(rows[0].columns)
        for column in range(n_columns - 1, 0, -1):
            if sum(row.columns[column] not in _EMPTY for row in rows) == n_columns - 1 - column:
                target = column
                break
        else:
            if is_labeled:
                raise DataError(
                    f"{rows[0].location}: expected a target column with as many targets as columns after it; "
                    "found none; set target to its number"
                )
            target = n_columns - 1
    return _RoleColumns(words=0, target=target, first=target + 1, n_after=0, is_paired=True)


def _read_sentence(rows: Sequence[TokenRow], columns: _RoleColumns, *, is_labeled: bool) -> Iterator[Predicate]:
    n_columns, location = len(rows[0].columns), rows[0].location
    n_needed = columns.first + columns.n_after if is_labeled else max(columns.words, columns.target) + 1
    if n_columns < n_needed:
        raise DataError(f"{location}: expected at least {n_needed} columns; found {n_columns}")
    words = tuple(row.get(columns.words, what="word") for row in rows)
    targets = [k for k, row in enumerate(rows) if row.columns[columns.target].strip() not in _EMPTY]
    if not is_labeled:
        yield from (Predicate(words, k, None, location) for k in targets)
        return
    brackets = range(columns.first, n_columns - columns.n_after)
    if columns.is_paired and len(brackets) != len(targets):
        raise DataError(
            f"{location}: expected one column of roles for each of the {len(targets)} predicates in column "
            f"{columns.target + 1}; found {len(brackets)}"
        )
    for number, column in enumerate(brackets):
        yield _read_predicate(rows, words, column, targets, target=targets[number] if columns.is_paired else None)


def _read_predicate(
    rows: Sequence[TokenRow], words: Words, column: int, targets: Sequence[int], *, target: int | None
) -> Predicate:
    """Read a column of brackets; ``target`` is the token of its predicate, or None if it must be detected."""
    spans = _read_spans(rows, column)
    verb = [k for span in spans if span.label == VERB for k in range(span.start, span.end)]
    if not verb:
        raise DataError(f"{rows[0].location}: expected a span (V*) in column {column + 1}; found none")
    predicate = min({*verb} & {*targets}, default=verb[0]) if target is None else target
    # in PropBank, the target may be the second half of the verb, C-V, as in "flip - flopped"
    verb_spans = [span for span in spans if span.label in (VERB, f"C-{VERB}")]
    if not any(span.start <= predicate < span.end for span in verb_spans):
        raise DataError(
            f"{rows[verb[0]].location}: expected the span V of column {column + 1} in the row of its target "
            f"(line {rows[predicate].location.line}); found it in this row"
        )
    roles = (span for span in spans if span.label != VERB and not span.start <= predicate < span.end)
    return Predicate(words, predicate, tuple(roles), rows[0].location)


def _read_spans(rows: Sequence[TokenRow], column: int) -> list[Span]:
    spans: list[Span] = []
    start, label = 0, None  # first token and label of the open span
    for k, row in enumerate(rows):
        text = row.columns[column].strip()
        match = _BRACKETS.fullmatch(text)
        if match is None:
            kind = "nested spans" if text.count("(") > 1 or text.count(")") > 1 else "other text"
            raise DataError(
                f"{row.location}: expected *, (ROLE*, *) or (ROLE*) in column {column + 1}; found {kind}: {text[:40]!r}"
            )
        if match[1] is not None:
            if label is not None:
                raise DataError(
                    f"{row.location}: expected the span {label[:40]} from line {rows[start].location.line} to end "
                    f"before {match[1][:40]} starts in column {column + 1}; found overlapping spans"
                )
            start, label = k, match[1]
        if match[2]:
            if label is None:
                raise DataError(f"{row.location}: expected an open span before ')' in column {column + 1}; found none")
            spans.append(Span(start, k + 1, label))
            label = None
    if label is not None:
        raise DataError(
            f"{rows[start].location}: expected the span {label[:40]} in column {column + 1} to end in its sentence; "
            "found no closing bracket"
        )
    return spans
