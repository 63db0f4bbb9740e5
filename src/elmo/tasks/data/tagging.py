"""Read tagged sentences from files with one word per line: CoNLL columns and CoNLL-U.

In column files, all rows must have the same number of columns, and ``-DOCSTART-`` rows are skipped. In CoNLL-U,
columns have names, ``_`` is an ordinary tag, and the rows of word ranges and empty nodes are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import Location, TaggedSentence
from elmo.tasks.data.files import (
    SEPARATOR_NAMES,
    WHITESPACE,
    Column,
    Paths,
    Separator,
    Tokenize,
    TokenRow,
    check_file_format,
    find_files,
    get_suffix,
    guess_separator,
    is_blank,
    locate,
    open_lines,
    read_rows,
    require_examples,
    split_columns,
    split_words,
)
from elmo.text.lines import Line, Source

TaggedFormat = Literal["auto", "columns", "conllu", "text"]
CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_FIRST_ID = re.compile(r"1|1-[0-9]+|0\.1")
_NOT_A_WORD = re.compile(r"[0-9]+-[0-9]+|[0-9]+\.[0-9]+")  # ID of a word range or of an empty node
_DOCSTART = "-DOCSTART-"
_COLUMN_SUFFIXES = (".conll", ".bio", ".iob", ".iob2", ".col")


def read_tagged(
    paths: Paths,
    *,
    words: Column | None = None,
    tags: Column | None = None,
    separator: Separator | None = None,
    file_format: TaggedFormat = "auto",
    is_labeled: bool = True,
    tokenize: Tokenize = WHITESPACE,
) -> Iterator[TaggedSentence]:
    """Yield the tagged sentences of files.

    Args:
        paths: Files, folders or globs; "-" is stdin.
        words: Column of the words: a number from 0, or a name in CoNLL-U. Default: the first column, or "form".
        tags: Column of the tags: a number from 0 (negative numbers count from the end), or a name in CoNLL-U ("upos",
            "xpos", "feats", "lemma", "deprel", …). Default: the last column, or "upos".
        separator: Separator between columns. None: tabs if the first row has any, otherwise spaces.
        file_format: Format of the files. "auto" detects CoNLL-U by the suffix ``.conllu``, or by a first row with ten
            columns and the ID 1. If ``is_labeled`` is false, other files are read as text, unless the suffix is
            ``.conll`` or similar, the first line has a tab or is ``-DOCSTART-``, or ``separator`` or ``words`` is
            set.
        is_labeled: Whether to read tags. If false, files may be text with one sentence per line.
        tokenize: Function that splits the lines of a text into words.
    """
    check_file_format(file_format, TaggedFormat)
    if file_format == "text" and is_labeled:
        raise ConfigError("cannot read tags from text files; set file_format to columns, or is_labeled to False")
    if separator not in (None, "\t", " "):
        raise ConfigError(f"separator must be a tab, a space or None; found {separator!r:.40}")
    for file in find_files(paths):
        with open_lines(file) as (first, rest):
            kind, lines = file_format, rest
            if kind == "auto":
                start = _read_first_row(rest)
                may_be_text = not (is_labeled or words is not None or separator is not None)
                kind = _detect_format(file, start[-1].text, may_be_text=may_be_text)
                lines = chain(start, rest)
            if kind == "text":
                sentences = _read_text(lines, tokenize)
            elif kind == "conllu":
                tag_column = _find_conllu_column(tags, "upos") if is_labeled else None
                sentences = _read_conllu(lines, _find_conllu_column(words, "form"), tag_column)
            else:
                sentences = _read_columns(lines, words, tags, separator=separator, is_labeled=is_labeled)
            has_tags = False
            for sentence in require_examples(sentences, f"{first.path}: expected sentences; found none"):
                has_tags = has_tags or set(sentence.tags or "?") != {"_"}
                yield sentence
            if kind == "conllu" and not has_tags:
                raise DataError(f"{first.path}: expected tags in column {tags or 'upos'}; found only _")


def _read_first_row(lines: Iterator[Line]) -> list[Line]:
    """Return the lines up to and including the first row, which follows the comments of CoNLL-U."""
    start: list[Line] = []
    for line in lines:
        start.append(line)
        if not is_blank(line.text) and ("\t" in line.text or not line.text.startswith("#")):
            break
    return start


def _detect_format(file: Source, first: str, *, may_be_text: bool) -> TaggedFormat:
    columns = first.split("\t")
    is_first_word = len(columns) == len(CONLLU) and _FIRST_ID.fullmatch(columns[0]) is not None
    if get_suffix(file) == ".conllu" or is_first_word:
        return "conllu"
    has_columns = len(columns) > 1 or first.startswith(_DOCSTART) or get_suffix(file) in _COLUMN_SUFFIXES
    return "text" if may_be_text and not has_columns else "columns"


def _read_text(lines: Iterable[Line], tokenize: Tokenize) -> Iterator[TaggedSentence]:
    for line in lines:
        if not is_blank(line.text):
            words = split_words(line.text, tokenize, what="line", location=locate(line))
            yield TaggedSentence(words, None, locate(line))


def _read_conllu(lines: Iterable[Line], words: int, tags: int | None) -> Iterator[TaggedSentence]:
    for all_rows in read_rows(lines, separator="\t", n_columns=len(CONLLU), comments=("#",)):
        rows = [row for row in all_rows if not _NOT_A_WORD.fullmatch(row.columns[0])]
        for number, row in enumerate(rows, start=1):
            if row.columns[0] != str(number):
                raise DataError(f"{row.location}: expected the ID {number}; found {row.columns[0][:20]!r}")
        if rows:
            yield _build_sentence(rows, words, tags)


def _read_columns(
    lines: Iterator[Line], words: Column | None, tags: Column | None, *, separator: Separator | None, is_labeled: bool
) -> Iterator[TaggedSentence]:
    first = next((line for line in lines if not (is_blank(line.text) or line.text.startswith(_DOCSTART))), None)
    if first is None:
        return
    separator = separator or guess_separator(first.text)
    n_columns = len(split_columns(first.text, separator))
    word_column = _find_column(0 if words is None else words, n_columns, what="words", location=locate(first))
    tag_column = None
    if is_labeled:
        tag_column = _find_column(-1 if tags is None else tags, n_columns, what="tags", location=locate(first))
    if word_column == tag_column:
        raise DataError(
            f"{locate(first)}: expected words and tags in different columns separated by "
            f"{SEPARATOR_NAMES[separator]}; found both in column {word_column} (from 0) of {n_columns} columns"
        )
    for rows in read_rows(
        chain([first], lines),
        separator=separator,
        n_columns=n_columns,
        reason=f", as in the first row of the file (line {first.number})",
        comments=(_DOCSTART,),
    ):
        yield _build_sentence(rows, word_column, tag_column)


def _find_column(column: Column, n_columns: int, *, what: str, location: Location) -> int:
    if isinstance(column, str):
        raise DataError(
            f"{location}: expected a column number for {what}, because only CoNLL-U has column names; "
            f"found {column[:40]!r}"
        )
    if not -n_columns <= column < n_columns:
        raise DataError(f"{location}: expected {what} in column {column} (from 0); found {n_columns} columns")
    return column % n_columns


def _find_conllu_column(column: Column | None, default: str) -> int:
    name = default if column is None else column
    if isinstance(name, int) and -len(CONLLU) <= name < len(CONLLU):
        return name % len(CONLLU)
    if str(name).lower() not in CONLLU:
        raise ConfigError(f"column must be one of {', '.join(CONLLU)} or 0 to 9 in CoNLL-U; found {str(name)[:40]!r}")
    return CONLLU.index(str(name).lower())


def _build_sentence(rows: Sequence[TokenRow], words: int, tags: int | None) -> TaggedSentence:
    return TaggedSentence(
        tuple(row.get(words, what="word") for row in rows),
        None if tags is None else tuple(row.get(tags, what="tag").strip() for row in rows),
        rows[0].location,
    )
