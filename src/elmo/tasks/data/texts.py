"""Files of TSV, CSV or JSON lines in, the fields that a reader asks for out.

TSV cells are taken as they are, as in GLUE's files: no quotes, no escapes. CSV has quotes, and line ends
within them. A line of JSON lines is an object; a text in it may be a list of words.

Texts with two marked entities in, their words and marks out; SemEval-2010 Task 8's lines in, texts out.

The marks ``<e1>``, ``</e1>``, ``<e2>`` and ``</e2>`` become words of their own, wherever they stand.

Files of texts with a class each (TSV, CSV, JSON lines, ``label text``, SemEval) in, labelled texts out.

Marks of entities (``<e1>…</e1>``, ``<e2>…</e2>``) become words of their own in every format.

Files of pairs of texts (SNLI's JSON lines, SICK's TSV, any TSV, CSV or JSON lines) in, text pairs out.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import LabeledText, Location, TextPair, Words
from elmo.tasks.data.files import (
    WHITESPACE,
    Paths,
    Tokenize,
    require_examples,
    find_files,
    is_blank,
    listed,
    opened,
    locate,
    get_suffix,
    split_tokens,
    split_words,
)
from elmo.text.lines import Line, Source

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
    place: Location

    def words(self, field: str, tokenize: Tokenize) -> Words:
        """A text's words; a list of words stays as it is."""
        cell = self.cells[field]
        if isinstance(cell, list) and cell and all(isinstance(word, str) and word for word in cell):
            return tuple(cell)
        if not isinstance(cell, str):
            raise DataError(
                f"{self.place}: expected a text or a list of words as {field}, found {_cell_kind(cell)}"
            )
        return split_words(cell, tokenize, what=field, place=self.place)

    def label(self, field: str) -> str:
        """A class's name; numbers and truths of JSON are names, too."""
        cell = self.cells[field]
        label = str(cell).strip() if isinstance(cell, str | int | float) else ""
        if not label:
            raise DataError(f"{self.place}: expected a {field}, found {_cell_kind(cell)}")
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
        place = locate(line)
        row = _object(line.text, place)
        if keys is None:
            found = {field.name: _named(field, list(row), place) for field in fields}
            keys = {name: key for name, key in found.items() if key is not None}
        if missing := next((key for key in keys.values() if key not in row), None):
            raise DataError(f"{place}: expected {missing!r}, found {_names(list(row))}")
        yield Record({name: row[key] for name, key in keys.items()}, place)


def _of_rows(
    rows: Iterator[tuple[list[str], Location]], fields: Sequence[Field], *, has_header: bool | None
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
    fields: Sequence[Field], names: Sequence[str] | None, n_columns: int, place: Location
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


def _named(field: Field, names: Sequence[str], place: Location) -> str | None:
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


def _tsv_rows(lines: Iterable[Line]) -> Iterator[tuple[list[str], Location]]:
    return ((line.text.split("\t"), locate(line)) for line in lines if not is_blank(line.text))


def _csv_rows(lines: Iterable[Line]) -> Iterator[tuple[list[str], Location]]:
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
            where = locate(first) if first else last
            raise DataError(f"{where}: expected a row of CSV, found {error}") from error
        if row is None:
            return
        if first is not None and any(not is_blank(one) for one in row):
            yield row, locate(first)
        first = None


def _object(text: str, place: Location) -> dict[str, Any]:
    if text.lstrip().startswith("["):
        raise DataError(f"{place}: expected a JSON object, found a list; write one object a line")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: expected a JSON object, found no JSON: {str(error)[:120]}") from error
    if not isinstance(found, dict):
        raise DataError(f"{place}: expected a JSON object, found {_cell_kind(found)}")
    return found


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(ascii, names[:12]))[:160] or "nothing"


def _cell_kind(cell: Any) -> str:
    if cell is None or cell in ("", []):
        return "nothing"
    return {str: "a string", list: "a list", dict: "an object"}.get(type(cell), type(cell).__name__)


MARK = re.compile(r"</?e[12]>")
NUMBERED = re.compile(r"\s*[0-9]+\t\s*\"?(.*?)\"?\s*")  # 8001<tab>"The <e1>audits</e1> were …"


def keep_markers(tokenize: Tokenize) -> Callable[[str], Words]:
    """A tokeniser that keeps marks whole, and cuts the rest as if there were none.

    Without its marks a text is cut as it would be in any other place: a full stop before a mark does not
    look like the end of a text.
    """

    def cut(text: str) -> Words:
        if MARK.search(text) is None:
            return split_tokens(text, tokenize).tokens
        marks: list[tuple[int, str]] = []  # where each stands in the text without marks
        pieces: list[str] = []
        at = length = 0
        for match in MARK.finditer(text):
            pieces.append(text[at : match.start()])
            length += len(pieces[-1])
            marks.append((length, match[0]))
            at = match.end()
        plain = "".join([*pieces, text[at:]])
        tokens = split_tokens(plain, tokenize)
        if tokens.offsets is None:  # a tokeniser that changes characters: piece by piece, then
            parts = re.split(f"({MARK.pattern})", text)
            return tuple(
                word
                for part in parts
                for word in ([part] if MARK.fullmatch(part) else split_tokens(part, tokenize).tokens)
            )
        return tuple(_merged(plain, tokens.offsets, marks))

    return cut


def read_semeval(lines: Iterable[Line], tokenize: Tokenize, *, is_labeled: bool) -> Iterator[LabeledText]:
    """The sentences of the task's files: a number and a quoted sentence, its relation, a comment.

    Files without relations are read with ``is_labeled=False``, and those of others are then passed over.
    """
    cut = keep_markers(tokenize)
    sentence: Line | None = None  # that awaits its relation
    for line in lines:
        text = line.text.strip()
        if is_blank(text) or text.startswith("Comment:"):
            continue
        if sentence is not None:
            if NUMBERED.fullmatch(line.text):
                break
            yield _labelled(sentence, text, cut)
            sentence = None
        elif NUMBERED.fullmatch(line.text):
            if is_labeled:
                sentence = line
            else:
                yield _labelled(line, None, cut)
        elif is_labeled:
            raise DataError(
                f"{locate(line)}: expected a number, a tab and a sentence in quotes, found {text[:60]!r}"
            )
    if sentence is not None:
        raise DataError(
            f"{locate(sentence)}: expected a relation in the next line, such as Other, found none; "
            "read files without relations with is_labeled=False"
        )


def _labelled(line: Line, label: str | None, cut: Callable[[str], Words]) -> LabeledText:
    match = NUMBERED.fullmatch(line.text)
    text = match[1] if match else line.text
    words = cut(text)
    found = [word for word in words if MARK.fullmatch(word)]
    if sorted(found) != ["</e1>", "</e2>", "<e1>", "<e2>"]:
        raise DataError(
            f"{locate(line)}: expected <e1>, </e1>, <e2> and </e2> once each, found "
            f"{' '.join(found)[:60] or 'none'}"
        )
    return LabeledText(words, label, locate(line))


def _merged(text: str, offsets: Iterable[tuple[int, int]], marks: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Tokens and marks in their order; a token that a mark stands in is cut there."""
    waiting = list(marks)
    for start, end in offsets:
        at = start
        while waiting and waiting[0][0] < end:
            place, mark = waiting.pop(0)
            if at < place:
                yield text[at:place]
                at = place
            yield mark
        yield text[at:end]
    yield from (mark for _, mark in waiting)


TextFormat = Literal["auto", "tsv", "csv", "jsonl", "lines", "semeval"]
_FASTTEXT = "__label__"
_LABEL_AND_TEXT = re.compile(r"[ \t]*([^ \t]+)[ \t]+(.*)", re.DOTALL)


def read_texts(
    paths: Paths,
    *,
    text: Column | None = None,
    label: Column | None = None,
    tokenize: Tokenize = WHITESPACE,
    file_format: TextFormat = "auto",
    has_header: bool | None = None,
    is_labeled: bool = True,
) -> Iterator[LabeledText]:
    """Texts and their classes.

    The format goes by the name: ``.tsv``, ``.csv``, ``.jsonl`` and ``.json`` (JSON lines) are tables, whose
    columns are given by name or number from 0 and by default named ``text`` or ``sentence``, and ``label``.
    Other files have lines ``label text`` (fastText's ``__label__x text`` too), or SemEval-2010 Task 8's form,
    told by its first line. ``is_labeled=False`` needs no classes, and gives none: ``lines`` are then text
    from their beginning.
    """
    if file_format not in get_args(TextFormat):
        expected = ", ".join(get_args(TextFormat))
        raise ConfigError(f"file format: expected one of {expected}, found {str(file_format)!r:.40}")
    fields = [Field("text", text, ("text", "sentence"))]
    fields += [Field("label", label, ("label",))] if is_labeled else []
    for file in find_files(paths):
        first, lines = opened(file)
        kind = _file_kind(file, first.text) if file_format == "auto" else file_format
        if kind == "lines":
            if text is not None or label is not None:
                raise ConfigError(
                    f"{first.path}: lines of `label text` have no columns; give the format, such as tsv"
                )
            found = _of_lines(lines, tokenize, is_labeled=is_labeled)
        elif kind == "semeval":
            found = read_semeval(lines, tokenize, is_labeled=is_labeled)
        else:
            cut = keep_markers(tokenize)
            records = read_table(lines, fields, file_format=kind, has_header=has_header)
            found = (
                LabeledText(one.words("text", cut), one.label("label") if is_labeled else None, one.place)
                for one in records
            )
        yield from require_examples(found, f"{first.path}: expected texts, found none")


read_texts = listed(read_texts)


def _file_kind(file: Source, first: str) -> Literal["tsv", "csv", "jsonl", "lines", "semeval"]:
    if (table := SUFFIXES.get(get_suffix(file))) is not None:
        return table
    return "semeval" if NUMBERED.fullmatch(first) and MARK.search(first) else "lines"


def _of_lines(lines: Iterable[Line], tokenize: Tokenize, *, is_labeled: bool) -> Iterator[LabeledText]:
    cut = keep_markers(tokenize)
    for line in lines:
        if is_blank(line.text):
            continue
        place = locate(line)
        label, text = None, line.text
        if is_labeled:
            match = _LABEL_AND_TEXT.fullmatch(line.text)
            if match is None:
                raise DataError(f"{place}: expected a label, a space and a text, found {line.text[:60]!r}")
            label, text = match[1].removeprefix(_FASTTEXT), match[2]
            if match[1].startswith(_FASTTEXT) and (not label or text.startswith(_FASTTEXT)):
                raise DataError(f"{place}: expected one label, found {line.text[:60]!r}")
        yield LabeledText(split_words(text, cut, what="text", place=place), label, place)


PairFormat = Literal["auto", "tsv", "csv", "jsonl"]
NO_GOLD = "-"  # SNLI and MultiNLI: the annotators did not agree
WITHOUT_GOLD = "pairs without a gold label"
# SNLI and GLUE, SICK, other names in use; a file's own first match counts
_FIRST = ("sentence1", "sentence_A", "premise", "question1", "text1", "first")
_SECOND = ("sentence2", "sentence_B", "hypothesis", "question2", "text2", "second")
_LABEL = ("gold_label", "entailment_judgment", "entailment_label", "label", "is_duplicate")
_SCORE = ("relatedness_score", "score", "similarity")


def read_pairs(
    paths: Paths,
    *,
    first: Column | None = None,
    second: Column | None = None,
    label: Column | None = None,
    score: Column | None = None,
    tokenize: Tokenize = WHITESPACE,
    file_format: PairFormat = "auto",
    has_header: bool | None = None,
    is_labeled: bool = True,
    left_out: Counter[str] | None = None,
) -> Iterator[TextPair]:
    """Pairs with a label, a score, or both, whichever the file has.

    Columns are given by name or number from 0; those of SNLI, MultiNLI, GLUE and SICK are found by their
    names. Files are TSV, CSV or JSON lines by their name; others by their first line. Pairs whose label is
    ``-`` are left out and counted in ``left_out``. ``is_labeled=False`` keeps them; no pair has labels then.
    """
    if file_format not in get_args(PairFormat):
        expected = ", ".join(get_args(PairFormat))
        raise ConfigError(f"file format: expected one of {expected}, found {str(file_format)!r:.40}")
    fields = [Field("first text", first, _FIRST), Field("second text", second, _SECOND)]
    if is_labeled:
        fields += [Field("label", label, _LABEL, is_needed=False)]
        fields += [Field("score", score, _SCORE, is_needed=False)]
    counts = Counter() if left_out is None else left_out
    for file in find_files(paths):
        start, lines = opened(file)
        kind: TableFormat
        if file_format == "auto":
            kind = SUFFIXES.get(get_suffix(file)) or (
                "jsonl" if start.text.lstrip().startswith("{") else "tsv"
            )
        else:
            kind = file_format
        n_read = 0
        for record in read_table(lines, fields, file_format=kind, has_header=has_header):
            n_read += 1
            if is_labeled and not {"label", "score"} & record.cells.keys():
                raise DataError(
                    f"{start.path}:{start.number}: expected a label ({', '.join(_LABEL)}) or a score "
                    f"({', '.join(_SCORE)}), found neither; name its column"
                )
            if record.cells.get("label") == NO_GOLD:
                counts[WITHOUT_GOLD] += 1
            else:
                yield _pair(record, tokenize)
        if not n_read:
            raise DataError(f"{start.path}: expected pairs, found none")


read_pairs = listed(read_pairs)


def _pair(record: Record, tokenize: Tokenize) -> TextPair:
    return TextPair(
        record.words("first text", tokenize),
        record.words("second text", tokenize),
        record.label("label") if "label" in record.cells else None,
        _score(record) if "score" in record.cells else None,
        record.place,
    )


def _score(record: Record) -> float:
    cell = record.cells["score"]
    try:
        score = float(cell)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not math.isfinite(score) or isinstance(cell, bool):
        raise DataError(f"{record.place}: expected a number as score, found {str(cell)[:40]!r}")
    return score
