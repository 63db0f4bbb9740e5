"""Files of semantic roles (PropBank columns, CoNLL-2005, CoNLL-2012) in, one example per predicate out.

A target column has a lemma or roleset in the rows of predicates and ``-`` in others; after it comes a column
of brackets per predicate: ``(ARG0*``, ``*``, ``*)``, ``(V*)``. V, and a C-V that is the target itself, are no
roles. Labels stay as they are, C- and R- included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, get_args

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import Predicate, Span
from elmo.tasks.data.files import (
    Paths,
    Row,
    Separator,
    cell,
    find_files,
    is_blank,
    listed,
    opened,
    read_rows,
    guess_separator,
)
from elmo.text.lines import Line

RoleFormat = Literal["auto", "propbank", "conll2005", "conll2012"]
VERB = "V"
_NONE = ("", "-", "_")
_BRACKETS = re.compile(r"(?:\(([^()*]+))?\*(\)?)")


@dataclass(frozen=True)
class _Layout:
    """Where things stand in a row, counted from 0."""

    words: int
    target: int
    first: int  # of the brackets
    n_after: int  # columns after the brackets
    is_paired: bool  # as many brackets as targets


_PROPBANK = _Layout(words=0, target=3, first=4, n_after=0, is_paired=True)
# document, part, number, word, tag, parse, lemma, frameset, sense, speaker, entity, brackets…, coreference;
# a frameset may have no brackets there, and brackets no frameset
_CONLL2012 = _Layout(words=3, target=7, first=11, n_after=1, is_paired=False)


def read_roles(
    paths: Paths, *, file_format: RoleFormat = "auto", target: int | None = None, is_labeled: bool = True
) -> Iterator[Predicate]:
    """Every predicate of every sentence with its roles, in the order of their columns.

    ``propbank`` has columns word, tag, lemma, roleset, brackets; ``conll2005`` a word first, and a target
    column that the first sentence shows: as many columns come after it as it has targets. By default a file
    that begins with ``#begin document`` is ``conll2012``, one with tabs ``propbank``, others ``conll2005``.
    ``target`` names another target column, counted from 0. ``is_labeled=False`` takes predicates from the
    target column (the last, where conll2005 shows none), and gives no roles. Of a V of several tokens, the
    predicate is the one with a target.
    """
    if file_format not in get_args(RoleFormat):
        expected = ", ".join(get_args(RoleFormat))
        raise ConfigError(f"file format: expected one of {expected}, found {str(file_format)!r:.40}")
    if target is not None and target < 1:
        raise ConfigError(f"target: expected the number of a column after the word's, found {target}")
    for file in find_files(paths):
        first, lines = opened(file)
        separator, lines = _after_comments(lines)
        kind = file_format
        if kind == "auto" and _is_comment(first.text):
            kind = "conll2012"
        elif kind == "auto":
            kind = "propbank" if separator == "\t" else "conll2005"
        layout = None
        for rows in read_rows(lines, separator=separator, is_no_row=_is_comment):
            layout = layout or _layout(rows, kind, target, is_labeled=is_labeled)
            yield from _of_sentence(rows, layout, is_labeled=is_labeled)
        if layout is None:
            raise DataError(f"{first.path}: expected sentences, found none")


read_roles = listed(read_roles)


def _after_comments(lines: Iterator[Line]) -> tuple[Separator, Iterator[Line]]:
    """What parts columns in the first line that has any, and the lines from it on."""
    for line in lines:
        if not is_blank(line.text) and not _is_comment(line.text):
            return guess_separator(line.text), chain([line], lines)
    return " ", iter(())


def _of_sentence(rows: Sequence[Row], layout: _Layout, *, is_labeled: bool) -> Iterator[Predicate]:
    n_columns = len(rows[0].columns)
    n_needed = layout.first + layout.n_after if is_labeled else max(layout.words, layout.target) + 1
    if n_columns < n_needed:
        raise DataError(f"{rows[0].place}: expected {n_needed} columns or more, found {n_columns}")
    words = tuple(cell(row, layout.words, what="word") for row in rows)
    targets = [k for k, row in enumerate(rows) if row.columns[layout.target].strip() not in _NONE]
    if not is_labeled:
        yield from (Predicate(words, k, None, rows[0].place) for k in targets)
        return
    columns = range(layout.first, n_columns - layout.n_after)
    if layout.is_paired and len(columns) != len(targets):
        raise DataError(
            f"{rows[0].place}: expected a column of roles for each of {len(targets)} predicates in column "
            f"{layout.target + 1}, found {len(columns)}"
        )
    for nth, column in enumerate(columns):
        yield _predicate(rows, words, column, targets, nth=nth if layout.is_paired else None)


def _layout(rows: Sequence[Row], kind: RoleFormat, target: int | None, *, is_labeled: bool) -> _Layout:
    if kind == "conll2012":
        return _CONLL2012 if target is None else replace(_CONLL2012, target=target)
    if target is None and kind == "propbank":
        return _PROPBANK
    n_columns = len(rows[0].columns)
    if target is None:
        for column in range(n_columns - 1, 0, -1):
            n_targets = sum(row.columns[column] not in _NONE for row in rows)
            if n_targets == n_columns - 1 - column:
                target = column
                break
        else:
            if is_labeled:
                raise DataError(
                    f"{rows[0].place}: expected a column with a target for each column after it, "
                    "found none; give the number of the target column"
                )
            target = n_columns - 1
    return _Layout(words=0, target=target, first=target + 1, n_after=0, is_paired=True)


def _predicate(
    rows: Sequence[Row], words: tuple[str, ...], column: int, targets: Sequence[int], *, nth: int | None
) -> Predicate:
    spans = _spans(rows, column)
    verb = [k for span in spans if span.label == VERB for k in range(span.start, span.end)]
    if not verb:
        raise DataError(f"{rows[0].place}: expected a span (V*) in column {column + 1}, found none")
    if nth is None:
        predicate = min({*verb} & {*targets}, default=verb[0])
    else:
        predicate = targets[nth]
        # "flip - flopped": PropBank's target may be the second half, C-V
        parts = [span for span in spans if span.label in (VERB, f"C-{VERB}")]
        if not any(span.start <= predicate < span.end for span in parts):
            raise DataError(
                f"{rows[verb[0]].place}: expected V of column {column + 1} in the row of its target, line "
                f"{rows[predicate].place.line}, found it here"
            )
    roles = (span for span in spans if span.label != VERB and not span.start <= predicate < span.end)
    return Predicate(words, predicate, tuple(roles), rows[0].place)


def _spans(rows: Sequence[Row], column: int) -> list[Span]:
    """The spans of a column of brackets."""
    spans: list[Span] = []
    start, label = 0, None  # of the span that is open
    for k, row in enumerate(rows):
        text = row.columns[column].strip()
        match = _BRACKETS.fullmatch(text)
        if match is None:
            what = "nested spans" if text.count("(") > 1 or text.count(")") > 1 else "something else"
            raise DataError(
                f"{row.place}: expected *, (ROLE*, *) or (ROLE*) in column {column + 1}, found "
                f"{what}: {text[:40]!r}"
            )
        if match[1] is not None:
            if label is not None:
                raise DataError(
                    f"{row.place}: expected {label[:40]} of line {rows[start].place.line} to end before "
                    f"{match[1][:40]} begins in column {column + 1}, found one within the other"
                )
            start, label = k, match[1]
        if match[2]:
            if label is None:
                raise DataError(
                    f"{row.place}: expected a span to end in column {column + 1}, found none open"
                )
            spans.append(Span(start, k + 1, label))
            label = None
    if label is not None:
        raise DataError(
            f"{rows[start].place}: expected {label[:40]} to end within its sentence in column {column + 1}, "
            "found no bracket that ends it"
        )
    return spans


def _is_comment(text: str) -> bool:
    return text.startswith(("#begin document", "#end document"))
