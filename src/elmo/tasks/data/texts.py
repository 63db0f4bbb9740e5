"""Read labeled texts and pairs of texts from tables and other formats.

Texts may contain entity markers (``<e1>…</e1>``, ``<e2>…</e2>``), as in SemEval-2010 Task 8. In all formats, each
marker becomes a separate word.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import LabeledText, TextPair, Words
from elmo.tasks.data.files import (
    WHITESPACE,
    Column,
    Paths,
    Tokenize,
    check_file_format,
    find_files,
    get_suffix,
    is_blank,
    locate,
    open_lines,
    require_examples,
    split_tokens,
    split_words,
)
from elmo.tasks.data.tables import SUFFIXES, Field, Record, TableFormat, read_table
from elmo.text.lines import Line

TextFormat = Literal["auto", "tsv", "csv", "jsonl", "lines", "semeval"]
MARKER = re.compile(r"</?e[12]>")
_NUMBERED = re.compile(r"\s*[0-9]+\t\s*\"?(.*?)\"?\s*")  # 8001<tab>"The <e1>audits</e1> were …"
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
    """Yield the texts of files with their labels.

    Args:
        paths: Files, folders or globs; "-" is stdin.
        text: Column of the text in a table: a name, or a number from 0. Default: "text" or "sentence".
        label: Column of the label. Default: "label".
        tokenize: Function that splits texts into words.
        file_format: Format of the files. "auto" selects a table if the name ends in ``.tsv``, ``.csv``, ``.jsonl``,
            ``.ndjson`` or ``.json`` (JSON lines); otherwise ``semeval`` (SemEval-2010 Task 8) if the first line has
            this format; otherwise ``lines``, with a label, a space and a text (also ``__label__x text`` of fastText).
        has_header: Whether tables have a header. None: detected from the first row.
        is_labeled: Whether to read labels. If false, the format ``lines`` contains only texts.
    """
    check_file_format(file_format, TextFormat)
    fields = [Field("text", text, ("text", "sentence"))]
    fields += [Field("label", label, ("label",))] if is_labeled else []
    split = keep_markers(tokenize)
    for file in find_files(paths):
        with open_lines(file) as (first, lines):
            kind = file_format
            if kind == "auto":
                is_semeval = _NUMBERED.fullmatch(first.text) and MARKER.search(first.text)
                kind = SUFFIXES.get(get_suffix(file)) or ("semeval" if is_semeval else "lines")
            if kind == "lines":
                if text is not None or label is not None:
                    raise ConfigError(
                        f"{first.path}: cannot choose columns in lines with a label and a text; "
                        "set file_format to tsv or csv"
                    )
                examples = _read_lines(lines, split, is_labeled=is_labeled)
            elif kind == "semeval":
                examples = _read_semeval(lines, split, is_labeled=is_labeled)
            else:
                examples = (
                    LabeledText(
                        record.get_words("text", split),
                        record.get_label("label") if is_labeled else None,
                        record.location,
                    )
                    for record in read_table(lines, fields, file_format=kind, has_header=has_header)
                )
            yield from require_examples(examples, f"{first.path}: expected texts; found none")


def _read_lines(lines: Iterable[Line], split: Tokenize, *, is_labeled: bool) -> Iterator[LabeledText]:
    for line in lines:
        if is_blank(line.text):
            continue
        location = locate(line)
        label, text = None, line.text
        if is_labeled:
            match = _LABEL_AND_TEXT.fullmatch(line.text)
            if match is None:
                raise DataError(f"{location}: expected a label, a space and a text; found {line.text[:60]!r}")
            label, text = match[1].removeprefix(_FASTTEXT), match[2]
            if match[1].startswith(_FASTTEXT) and (not label or text.startswith(_FASTTEXT)):
                raise DataError(f"{location}: expected one label and a text; found {line.text[:60]!r}")
        yield LabeledText(split_words(text, split, what="text", location=location), label, location)


def _read_semeval(lines: Iterable[Line], split: Callable[[str], Words], *, is_labeled: bool) -> Iterator[LabeledText]:
    """Read numbered sentences in quotes, each followed by its relation and a comment, which is skipped.

    If ``is_labeled`` is false, relations are skipped and may be missing.
    """
    sentence: Line | None = None  # the sentence whose relation is in the next line
    for line in lines:
        text = line.text.strip()
        if is_blank(text) or text.startswith("Comment:"):
            continue
        is_sentence = _NUMBERED.fullmatch(line.text) is not None
        if sentence is not None:
            if is_sentence:
                break
            yield _label_semeval(sentence, text, split)
            sentence = None
        elif is_sentence and is_labeled:
            sentence = line
        elif is_sentence:
            yield _label_semeval(line, None, split)
        elif is_labeled:
            raise DataError(f"{locate(line)}: expected a number, a tab and a sentence in quotes; found {text[:60]!r}")
    if sentence is not None:
        raise DataError(
            f"{locate(sentence)}: expected a relation such as Other in the next line; found none; "
            "set is_labeled to False for files without relations"
        )


def _label_semeval(line: Line, label: str | None, split: Callable[[str], Words]) -> LabeledText:
    match = _NUMBERED.fullmatch(line.text)
    words = split(match[1] if match else line.text)
    markers = [word for word in words if MARKER.fullmatch(word)]
    if sorted(markers) != ["</e1>", "</e2>", "<e1>", "<e2>"]:
        raise DataError(
            f"{locate(line)}: expected <e1>, </e1>, <e2> and </e2> once each; found {' '.join(markers)[:60] or 'none'}"
        )
    return LabeledText(words, label, locate(line))


def keep_markers(tokenize: Tokenize) -> Callable[[str], Words]:
    """Return a tokenizer that keeps entity markers whole and tokenizes the rest as if there were no markers.

    The text is tokenized without its markers, because a full stop before a marker looks like the end of a sentence.
    """

    def split(text: str) -> Words:
        parts = re.split(f"({MARKER.pattern})", text)  # texts and markers alternate
        plain = "".join(parts[::2])
        tokens = split_tokens(plain, tokenize)
        if len(parts) == 1:
            return tokens.tokens
        if tokens.offsets is None:  # the tokenizer changes characters: tokenize each part separately
            return tuple(
                word
                for part in parts
                for word in ([part] if MARKER.fullmatch(part) else split_tokens(part, tokenize).tokens)
            )
        markers: list[tuple[int, str]] = []  # with their offsets in the plain text
        offset = 0
        for part, marker in zip(parts[::2], parts[1::2], strict=False):
            offset += len(part)
            markers.append((offset, marker))
        return tuple(_insert_markers(plain, tokens.offsets, markers))

    return split


def _insert_markers(text: str, offsets: Sequence[tuple[int, int]], markers: list[tuple[int, str]]) -> Iterator[str]:
    """Yield tokens and markers in their order; a marker inside a token splits the token."""
    for start, end in offsets:
        while markers and markers[0][0] < end:
            offset, marker = markers.pop(0)
            if start < offset:
                yield text[start:offset]
                start = offset  # noqa: PLW2901
            yield marker
        yield text[start:end]
    yield from (marker for _, marker in markers)


PairFormat = Literal["auto", "tsv", "csv", "jsonl"]
NO_GOLD = "-"  # the label in SNLI and MultiNLI if the annotators did not agree
WITHOUT_GOLD = "pairs without a gold label"
# column names in SNLI and GLUE, in SICK, and elsewhere; the first one that a file has is used
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
    """Yield the text pairs of tables, with a label, a score, or both, depending on the columns.

    Args:
        paths: Files, folders or globs; "-" is stdin.
        first: Column of the first text: a name, or a number from 0. Default of this
            and the other columns: the name in SNLI, MultiNLI, GLUE or SICK.
        second: Column of the second text.
        label: Column of the label.
        score: Column of the score.
        tokenize: Function that splits texts into words.
        file_format: Format of the files. "auto" detects it from the file name or from the first line.
        has_header: Whether tables have a header. None: detected from the first row.
        is_labeled: Whether to read labels and scores. If true, pairs with the label ``-`` are skipped.
        left_out: Counter to which the numbers of skipped examples are added, by reason.
    """
    check_file_format(file_format, PairFormat)
    fields = [Field("first text", first, _FIRST), Field("second text", second, _SECOND)]
    if is_labeled:
        fields += [Field("label", label, _LABEL, is_required=False)]
        fields += [Field("score", score, _SCORE, is_required=False)]
    counts = Counter() if left_out is None else left_out
    for file in find_files(paths):
        with open_lines(file) as (start, lines):
            kind: TableFormat
            if file_format == "auto":
                is_json = start.text.lstrip().startswith("{")
                kind = SUFFIXES.get(get_suffix(file)) or ("jsonl" if is_json else "tsv")
            else:
                kind = file_format
            records = read_table(lines, fields, file_format=kind, has_header=has_header)
            for record in require_examples(records, f"{start.path}: expected pairs; found none"):
                if is_labeled and not {"label", "score"} & record.cells.keys():
                    raise DataError(
                        f"{locate(start)}: expected a label ({', '.join(_LABEL)}) or a score "
                        f"({', '.join(_SCORE)}); found neither; choose the column by name"
                    )
                if record.cells.get("label") == NO_GOLD:
                    counts[WITHOUT_GOLD] += 1
                else:
                    yield TextPair(
                        record.get_words("first text", tokenize),
                        record.get_words("second text", tokenize),
                        record.get_label("label") if "label" in record.cells else None,
                        _get_score(record) if "score" in record.cells else None,
                        record.location,
                    )


def _get_score(record: Record) -> float:
    cell = record.cells["score"]
    try:
        score = float(cell)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not math.isfinite(score) or isinstance(cell, bool):
        raise DataError(f"{record.location}: expected a number as score; found {str(cell)[:40]!r}")
    return score
