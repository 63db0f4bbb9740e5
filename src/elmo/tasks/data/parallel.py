"""Read parallel texts: two files with one sentence per line, or tables with a source and a target column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Literal, cast

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import SourceText
from elmo.tasks.data.files import (
    WHITESPACE,
    Column,
    Paths,
    Tokenize,
    check_file_format,
    find_files,
    get_suffix,
    locate,
    open_lines,
    require_examples,
    split_tokens,
)
from elmo.tasks.data.tables import SUFFIXES, Field, Record, TableFormat, read_table
from elmo.text.lines import Source, format_source, read_lines

ParallelFormat = Literal["auto", "tsv", "csv", "jsonl", "lines"]
WITH_BLANK = "pairs with a blank side"
_SOURCE = ("source", "src")
_TARGET = ("target", "tgt", "translation")


def read_parallel(
    paths: Paths,
    *,
    source: Column | None = None,
    target: Column | None = None,
    tokenize: Tokenize = WHITESPACE,
    file_format: ParallelFormat = "auto",
    has_header: bool | None = None,
    is_labeled: bool = True,
    left_out: Counter[str] | None = None,
) -> Iterator[SourceText]:
    """Yield the texts of files with their translations.

    Files of lines come in pairs: a file of texts, then the file of their translations, line by line. A table
    (``.tsv``, ``.csv``, ``.jsonl``) contains both.

    Args:
        paths: Files; "-" is stdin.
        source: Column of the text in a table: a name, or a number from 0. Default: "source" or "src".
        target: Column of the translation. Default: "target", "tgt" or "translation".
        tokenize: Function that splits a text into words.
        file_format: Format of the files. "auto" selects a table by the name of the first file, otherwise lines.
        has_header: Whether tables have a header. None: detected from the first row.
        is_labeled: Whether to read translations. If false, each file of lines contains texts, and a blank line
            is an example without words. If true, a pair with a blank side is skipped.
        left_out: Counter to which the number of skipped pairs is added.
    """
    check_file_format(file_format, ParallelFormat)
    fields = [Field("source", source, _SOURCE)]
    fields += [Field("target", target, _TARGET)] if is_labeled else []
    files = find_files(paths)
    kinds = [SUFFIXES.get(get_suffix(file), "lines") if file_format == "auto" else file_format for file in files]
    if "lines" not in kinds:
        tables = (
            example
            for file, kind in zip(files, cast("list[TableFormat]", kinds), strict=True)
            for example in _read_table(file, kind, fields, tokenize, has_header=has_header)
        )
        yield from _skip_blank(tables, left_out, is_labeled=is_labeled, name=format_source(files[0]))
        return
    _check_lines(files, kinds, paths, has_columns=source is not None or target is not None, is_labeled=is_labeled)
    if is_labeled:
        for first, second in zip(files[::2], files[1::2], strict=True):
            pairs = _read_aligned(first, second, tokenize)
            yield from _skip_blank(pairs, left_out, is_labeled=True, name=format_source(first))
        return
    for file in files:
        for line in read_lines(file):
            yield SourceText(split_tokens(line.text, tokenize).tokens, None, locate(line))


def read_translations(path: str | Path, *, n: int) -> list[str]:
    """Read a file with one translation per line; raise ``DataError`` unless it has ``n`` lines."""
    file, *others = find_files(path)
    if others:
        raise ConfigError(f"{format_source(str(path))}: translations must be one file; found {1 + len(others)} files")
    lines = [line.text.strip() for line in read_lines(file)]
    if len(lines) != n:
        raise DataError(
            f"{format_source(file)}: expected {n:,} lines, one for each pair that is scored; found {len(lines):,}"
        )
    return lines


def _check_lines(
    files: Sequence[Source], kinds: Sequence[str], paths: Paths, *, has_columns: bool, is_labeled: bool
) -> None:
    """Raise ``ConfigError`` unless the files of lines are complete pairs in a known order."""
    if set(kinds) != {"lines"}:
        table = format_source(files[next(k for k, kind in enumerate(kinds) if kind != "lines")])
        raise ConfigError(f"{table}: tables and files of lines cannot be read together; use one format")
    if has_columns:
        raise ConfigError(
            f"{format_source(files[0])}: cannot choose columns in files of lines; set file_format to tsv or csv"
        )
    if not is_labeled:
        return
    n_paths = 1 if isinstance(paths, str) or not isinstance(paths, Sequence) else len(paths)
    if len(files) != n_paths:
        raise ConfigError(
            "files of lines for translation must be passed one by one, because folders and patterns do not say "
            "which file is the source and which is the target"
        )
    if len(files) % 2:
        raise ConfigError(
            "files of lines for translation must come in pairs, such as train.en train.de: the source, then the "
            f"target; found {len(files)} file{'s' * (len(files) > 1)}"
        )


def _read_table(
    file: Source, kind: TableFormat, fields: Sequence[Field], tokenize: Tokenize, *, has_header: bool | None
) -> Iterator[SourceText]:
    with open_lines(file) as (start, lines):
        records = read_table(lines, fields, file_format=kind, has_header=has_header)
        for record in require_examples(records, f"{start.path}: expected texts; found none"):
            source = record.cells["source"]
            is_text = isinstance(source, str)
            words = split_tokens(source, tokenize).tokens if is_text else record.get_words("source", tokenize)
            yield SourceText(words, _get_target(record) if len(fields) > 1 else None, record.location)


def _get_target(record: Record) -> str:
    target = record.cells["target"]
    if not isinstance(target, str):
        raise DataError(f"{record.location}: expected a text as target; found {str(target)[:40]!r}")
    return target


def _read_aligned(first: Source, second: Source, tokenize: Tokenize) -> Iterator[SourceText]:
    """Read the lines of two files in parallel; raise ``DataError`` if one has more lines than the other."""
    n_first = n_second = 0
    with closing(read_lines(first)) as sources, closing(read_lines(second)) as targets:
        for source, target in zip_longest(sources, targets):
            n_first += source is not None
            n_second += target is not None
            if source is not None and target is not None:
                yield SourceText(split_tokens(source.text, tokenize).tokens, target.text.strip(), locate(source))
    if n_first != n_second:
        raise DataError(
            f"{format_source(second)}: expected {n_first:,} lines, as in {format_source(first)}; found {n_second:,}"
        )
    if not n_first:
        raise DataError(f"{format_source(first)}: expected texts; found an empty file")


def _skip_blank(
    examples: Iterator[SourceText], left_out: Counter[str] | None, *, is_labeled: bool, name: str
) -> Iterator[SourceText]:
    """Yield the examples; if they have translations, count and skip those with a blank side."""
    counts = Counter() if left_out is None else left_out
    n_blank, is_kept = 0, False
    for example in examples:
        if is_labeled and not (example.source and example.target and example.target.strip()):
            n_blank += 1
        else:
            is_kept = True
            yield example
    if n_blank and not is_kept:
        raise DataError(f"{name}: expected texts with translations; found {n_blank:,} pairs with a blank side")
    if n_blank:
        counts[WITH_BLANK] += n_blank
