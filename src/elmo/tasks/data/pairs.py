"""Files of pairs of texts (SNLI's JSON lines, SICK's TSV, any TSV, CSV or JSON lines) in, text pairs out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Literal, get_args

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import TextPair
from elmo.tasks.data.sources import WHITESPACE, Paths, Tokenize, files_of, listed, opened, suffix_of
from elmo.tasks.data.tables import SUFFIXES, Column, Field, Record, TableFormat, read_table

PairFormat = Literal["auto", "tsv", "csv", "jsonl"]
NO_GOLD = "-"  # SNLI and MultiNLI: the annotators did not agree
WITHOUT_GOLD = "pairs without a gold label"
# SNLI and GLUE, SICK, other names in use; a file's own first match counts
_FIRST = ("sentence1", "sentence_A", "premise", "question1", "text1", "first")
_SECOND = ("sentence2", "sentence_B", "hypothesis", "question2", "text2", "second")
_LABEL = ("gold_label", "entailment_judgment", "entailment_label", "label", "is_duplicate")
_SCORE = ("relatedness_score", "score", "similarity")


def each_pair(
    paths: Paths,
    *,
    first: Column | None = None,
    second: Column | None = None,
    label: Column | None = None,
    score: Column | None = None,
    tokenize: Tokenize = WHITESPACE,
    file_format: PairFormat = "auto",
    has_header: bool | None = None,
    is_labelled: bool = True,
    left_out: Counter[str] | None = None,
) -> Iterator[TextPair]:
    """Pairs with a label, a score, or both, whichever the file has.

    Columns are given by name or number from 0; those of SNLI, MultiNLI, GLUE and SICK are found by their
    names. Files are TSV, CSV or JSON lines by their name; others by their first line. Pairs whose label is
    ``-`` are left out and counted in ``left_out``. ``is_labelled=False`` keeps them; no pair has labels then.
    """
    if file_format not in get_args(PairFormat):
        expected = ", ".join(get_args(PairFormat))
        raise ConfigError(f"file format: expected one of {expected}, found {str(file_format)!r:.40}")
    fields = [Field("first text", first, _FIRST), Field("second text", second, _SECOND)]
    if is_labelled:
        fields += [Field("label", label, _LABEL, is_needed=False)]
        fields += [Field("score", score, _SCORE, is_needed=False)]
    counts = Counter() if left_out is None else left_out
    for file in files_of(paths):
        start, lines = opened(file)
        kind: TableFormat
        if file_format == "auto":
            kind = SUFFIXES.get(suffix_of(file)) or (
                "jsonl" if start.text.lstrip().startswith("{") else "tsv"
            )
        else:
            kind = file_format
        n_read = 0
        for record in read_table(lines, fields, file_format=kind, has_header=has_header):
            n_read += 1
            if is_labelled and not {"label", "score"} & record.cells.keys():
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


read_pairs = listed(each_pair)


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
