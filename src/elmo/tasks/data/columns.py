"""Files with a word and its tag a line (CoNLL columns, CoNLL-U) in, tagged sentences out.

Columns are parted by tabs where the first row has any, else by spaces, and every row of a file has as many
as the first. CoNLL-U columns go by their names; its ranges and empty nodes are no words, and its ``_`` is a
tag as any other. ``-DOCSTART-`` rows are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal, get_args

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import Place, TaggedSentence
from elmo.tasks.data.rows import Row, Separator, by, cell, columns_of, read_rows, separator_of
from elmo.tasks.data.sources import (
    WHITESPACE,
    Paths,
    Tokenize,
    at_least_one,
    files_of,
    is_blank,
    listed,
    opened,
    place_of,
    suffix_of,
    words_of,
)
from elmo.text.lines import Line, Source

TaggedFormat = Literal["auto", "columns", "conllu", "text"]
Column = int | str
CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_FIRST_ID = re.compile(r"1|1-[0-9]+|0\.1")
_NO_WORD = re.compile(r"[0-9]+-[0-9]+|[0-9]+\.[0-9]+")  # a range that words spell out, or an empty node
_DOCSTART = "-DOCSTART-"


def each_tagged(
    paths: Paths,
    *,
    words: Column | None = None,
    tags: Column | None = None,
    separator: Separator | None = None,
    file_format: TaggedFormat = "auto",
    is_labelled: bool = True,
    tokenize: Tokenize = WHITESPACE,
) -> Iterator[TaggedSentence]:
    """The sentences of column files with the tags of one column.

    Columns count from 0, or from the end with -1; in CoNLL-U they have names (``upos``, ``xpos``,
    ``feats``, ``lemma``, ``deprel``, …). By default words stand in the first column and tags in the last,
    in CoNLL-U in ``form`` and ``upos``. A file is CoNLL-U if its name ends in ``.conllu`` or its first row
    has ten columns of which the first is the number 1.

    ``is_labelled=False`` needs no tags, and gives none. A file is then text with a sentence a line, cut by
    ``tokenize``, unless it is CoNLL-U, its name ends in ``.conll`` or the like, its first line has a tab or
    is ``-DOCSTART-``, ``separator`` or ``words`` is given, or ``file_format`` says otherwise.
    """
    if file_format not in get_args(TaggedFormat):
        expected = ", ".join(get_args(TaggedFormat))
        raise ConfigError(f"file format: expected one of {expected}, found {str(file_format)!r:.40}")
    if file_format == "text" and is_labelled:
        raise ConfigError("file format: text has no tags; read it with is_labelled=False, or give columns")
    if separator not in (None, "\t", " "):
        raise ConfigError(f"separator: expected a tab, a space or None, found {separator!r:.40}")
    for file in files_of(paths):
        first, lines = opened(file)
        kind = file_format
        if kind == "auto":
            has_columns = is_labelled or words is not None or separator is not None
            start = _up_to_a_row(lines)
            kind = _kind(file, start[-1].text, may_be_text=not has_columns)
            lines = chain(start, lines)
        if kind == "text":
            sentences = _of_text(lines, tokenize)
        elif kind == "conllu":
            wanted = _conllu_column(tags, "upos") if is_labelled else None
            sentences = _of_conllu(lines, _conllu_column(words, "form"), wanted)
        else:
            sentences = _of_columns(lines, words, tags, separator=separator, is_labelled=is_labelled)
        has_tags = False
        for sentence in at_least_one(sentences, f"{first.path}: expected sentences, found none"):
            has_tags = has_tags or set(sentence.tags or "?") != {"_"}
            yield sentence
        if kind == "conllu" and not has_tags:
            raise DataError(f"{first.path}: expected tags in column {tags or 'upos'}, found only _")


read_tagged = listed(each_tagged)


def _up_to_a_row(lines: Iterator[Line]) -> list[Line]:
    """The lines that may be comments of CoNLL-U, and the one after them."""
    start: list[Line] = []
    for line in lines:
        start.append(line)
        if not is_blank(line.text) and ("\t" in line.text or not line.text.startswith("#")):
            break
    return start


def _kind(file: Source, first: str, *, may_be_text: bool) -> TaggedFormat:
    columns = first.split("\t")
    is_first_word = len(columns) == len(CONLLU) and _FIRST_ID.fullmatch(columns[0]) is not None
    if suffix_of(file) == ".conllu" or is_first_word:
        return "conllu"
    is_named = suffix_of(file) in (".conll", ".bio", ".iob", ".iob2", ".col")
    is_text = may_be_text and len(columns) == 1 and not first.startswith(_DOCSTART) and not is_named
    return "text" if is_text else "columns"


def _of_text(lines: Iterable[Line], tokenize: Tokenize) -> Iterator[TaggedSentence]:
    for line in lines:
        if not is_blank(line.text):
            place = place_of(line)
            yield TaggedSentence(words_of(line.text, tokenize, what="line", place=place), None, place)


def _of_conllu(lines: Iterable[Line], words: int, tags: int | None) -> Iterator[TaggedSentence]:
    sentences = read_rows(
        lines, separator="\t", is_no_row=lambda text: text.startswith("#"), n_columns=len(CONLLU)
    )
    for all_rows in sentences:
        rows = [row for row in all_rows if not _NO_WORD.fullmatch(row.columns[0])]
        for number, row in enumerate(rows, start=1):
            if row.columns[0] != str(number):
                raise DataError(f"{row.place}: expected word {number}, found id {row.columns[0][:20]!r}")
        if rows:
            yield _sentence(rows, words, tags)


def _of_columns(
    lines: Iterator[Line],
    words: Column | None,
    tags: Column | None,
    *,
    separator: Separator | None,
    is_labelled: bool,
) -> Iterator[TaggedSentence]:
    first = next((line for line in lines if not _is_no_row(line.text)), None)
    if first is None:
        return
    separator = separator or separator_of(first.text)
    n_columns = len(columns_of(first.text, separator))
    word_at = _column(0 if words is None else words, n_columns, what="words", place=place_of(first))
    tag_at = None
    if is_labelled:
        tag_at = _column(-1 if tags is None else tags, n_columns, what="tags", place=place_of(first))
    if word_at == tag_at:
        raise DataError(
            f"{place_of(first)}: expected words and tags in two columns parted by {by(separator)}, found "
            f"both in column {word_at} of {n_columns}, counted from 0"
        )
    sentences = read_rows(
        chain([first], lines),
        separator=separator,
        is_no_row=_is_no_row,
        n_columns=n_columns,
        why=f", as in the file's first row (line {first.number})",
    )
    for rows in sentences:
        yield _sentence(rows, word_at, tag_at)


def _is_no_row(text: str) -> bool:
    return is_blank(text) or text.startswith(_DOCSTART)


def _column(column: Column, n: int, *, what: str, place: Place) -> int:
    if isinstance(column, str):
        raise DataError(
            f"{place}: expected CoNLL-U, whose columns have names, for {what} in {column[:40]!r}, found {n} "
            "columns; give a number"
        )
    if not -n <= column < n:
        raise DataError(f"{place}: expected a column {column}, counted from 0, of {what}, found {n} columns")
    return column % n


def _conllu_column(column: Column | None, usual: str) -> int:
    name = usual if column is None else column
    if isinstance(name, int) and -len(CONLLU) <= name < len(CONLLU):
        return name % len(CONLLU)
    if str(name).lower() not in CONLLU:
        raise ConfigError(f"column: CoNLL-U has {', '.join(CONLLU)} and 0..9, not {str(name)[:40]!r}")
    return CONLLU.index(str(name).lower())


def _sentence(rows: Sequence[Row], words: int, tags: int | None) -> TaggedSentence:
    return TaggedSentence(
        tuple(cell(row, words, what="word") for row in rows),
        None if tags is None else tuple(cell(row, tags, what="tag").strip() for row in rows),
        rows[0].place,
    )
