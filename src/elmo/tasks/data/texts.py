"""Files of texts with a class each (TSV, CSV, JSON lines, ``label text``, SemEval) in, labelled texts out.

Marks of entities (``<e1>…</e1>``, ``<e2>…</e2>``) become words of their own in every format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import LabelledText
from elmo.tasks.data.relations import MARK, NUMBERED, read_semeval, with_marks
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
from elmo.tasks.data.tables import SUFFIXES, Column, Field, read_table
from elmo.text.lines import Line, Source

TextFormat = Literal["auto", "tsv", "csv", "jsonl", "lines", "semeval"]
_FASTTEXT = "__label__"
_LABEL_AND_TEXT = re.compile(r"[ \t]*([^ \t]+)[ \t]+(.*)", re.DOTALL)


def each_text(
    paths: Paths,
    *,
    text: Column | None = None,
    label: Column | None = None,
    tokenize: Tokenize = WHITESPACE,
    file_format: TextFormat = "auto",
    has_header: bool | None = None,
    is_labelled: bool = True,
) -> Iterator[LabelledText]:
    """Texts and their classes.

    The format goes by the name: ``.tsv``, ``.csv``, ``.jsonl`` and ``.json`` (JSON lines) are tables, whose
    columns are given by name or number from 0 and by default named ``text`` or ``sentence``, and ``label``.
    Other files have lines ``label text`` (fastText's ``__label__x text`` too), or SemEval-2010 Task 8's form,
    told by its first line. ``is_labelled=False`` needs no classes, and gives none: ``lines`` are then text
    from their beginning.
    """
    if file_format not in get_args(TextFormat):
        expected = ", ".join(get_args(TextFormat))
        raise ConfigError(f"file format: expected one of {expected}, found {str(file_format)!r:.40}")
    fields = [Field("text", text, ("text", "sentence"))]
    fields += [Field("label", label, ("label",))] if is_labelled else []
    for file in files_of(paths):
        first, lines = opened(file)
        kind = _kind(file, first.text) if file_format == "auto" else file_format
        if kind == "lines":
            if text is not None or label is not None:
                raise ConfigError(
                    f"{first.path}: lines of `label text` have no columns; give the format, such as tsv"
                )
            found = _of_lines(lines, tokenize, is_labelled=is_labelled)
        elif kind == "semeval":
            found = read_semeval(lines, tokenize, is_labelled=is_labelled)
        else:
            cut = with_marks(tokenize)
            records = read_table(lines, fields, file_format=kind, has_header=has_header)
            found = (
                LabelledText(one.words("text", cut), one.label("label") if is_labelled else None, one.place)
                for one in records
            )
        yield from at_least_one(found, f"{first.path}: expected texts, found none")


read_texts = listed(each_text)


def _kind(file: Source, first: str) -> Literal["tsv", "csv", "jsonl", "lines", "semeval"]:
    if (table := SUFFIXES.get(suffix_of(file))) is not None:
        return table
    return "semeval" if NUMBERED.fullmatch(first) and MARK.search(first) else "lines"


def _of_lines(lines: Iterable[Line], tokenize: Tokenize, *, is_labelled: bool) -> Iterator[LabelledText]:
    cut = with_marks(tokenize)
    for line in lines:
        if is_blank(line.text):
            continue
        place = place_of(line)
        label, text = None, line.text
        if is_labelled:
            match = _LABEL_AND_TEXT.fullmatch(line.text)
            if match is None:
                raise DataError(f"{place}: expected a label, a space and a text, found {line.text[:60]!r}")
            label, text = match[1].removeprefix(_FASTTEXT), match[2]
            if match[1].startswith(_FASTTEXT) and (not label or text.startswith(_FASTTEXT)):
                raise DataError(f"{place}: expected one label, found {line.text[:60]!r}")
        yield LabelledText(words_of(text, cut, what="text", place=place), label, place)
