"""Files with a word and its labels a line in, sentences with one label per word out.

CoNLL-U columns go by their names: ``upos``, ``xpos``, ``deprel``, ``feats:Number`` for one feature. Other
files have columns parted by tabs or, where there are none, by spaces, known by number from 1 or by the name
in a header. A line of white space ends a sentence. A word without the feature, or with CoNLL-U's ``_``, has
no label.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, get_args

from elmo.embed.groups import MAX_TOKENS
from elmo.errors import ConfigError, DataError
from elmo.formats.files import shown
from elmo.text.lines import ErrorPolicy, Line, Source, expand, read_lines

FileFormat = Literal["auto", "conllu", "columns"]
CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_CONLLU_NAME = re.compile(r"\.conllu(\.(gz|xz|bz2|zst))?$", re.IGNORECASE)
_FIRST_ID = re.compile(r"1|1-[0-9]+|0\.1")
_NO_WORD = re.compile(r"[0-9]+-[0-9]+|[0-9]+\.[0-9]+")  # a range that words spell out, or an empty node
Row = tuple[str, str | None]  # a word and its label
Split = Callable[[str, str], Row]  # a line and its place to its row


@dataclass(frozen=True)
class LabelledSentence:
    """The words of a sentence, each with its label or None."""

    tokens: tuple[str, ...]
    labels: tuple[str | None, ...]
    place: str  # file:line of its first word

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class LabelledText:
    """Sentences that have labels; those without any are left out."""

    sentences: tuple[LabelledSentence, ...]
    n_labels: int  # words with a label
    n_without: int  # words without one
    is_cut: bool  # there was more than was asked for

    @classmethod
    def of(cls, sentences: Iterable[LabelledSentence], *, max_tokens: int | None = None) -> LabelledText:
        """Whole sentences, at least one, as long as they have no more than ``max_tokens`` labels together."""
        kept: list[LabelledSentence] = []
        n_labels = n_without = 0
        for sentence in sentences:
            n = sum(label is not None for label in sentence.labels)
            if n and kept and max_tokens is not None and n_labels + n > max_tokens:
                return cls(tuple(kept), n_labels, n_without, is_cut=True)
            n_labels, n_without = n_labels + n, n_without + len(sentence) - n
            if n:
                kept.append(sentence)
        return cls(tuple(kept), n_labels, n_without, is_cut=False)

    @property
    def labels(self) -> list[str]:
        """All labels, in the order of the text."""
        return [label for one in self.sentences for label in one.labels if label is not None]

    @property
    def words(self) -> list[str]:
        """The words that have these labels."""
        return [
            word
            for one in self.sentences
            for word, label in zip(one.tokens, one.labels, strict=True)
            if label is not None
        ]


def read_labelled(
    path: str | Path,
    column: str | int,
    *,
    tokens_column: str | int | None = None,
    file_format: FileFormat = "auto",
    has_header: bool = False,
    max_tokens: int | None = None,
    errors: ErrorPolicy = "strict",
) -> LabelledText:
    """The labels in a column of a file, a glob or a folder, compressed or not; ``-`` is stdin.

    A header is read where a column is given by name, or with ``has_header``. Words stand in the column
    ``tokens_column``: by default ``form`` of CoNLL-U, the first of other files.
    """
    if file_format not in get_args(FileFormat):
        raise ConfigError(f"file format must be auto, conllu or columns, not {str(file_format)!r:.40}")
    if max_tokens is not None and max_tokens < 1:
        raise ConfigError(f"max_tokens must be at least 1, found {max_tokens}")
    files = expand([str(path)])
    sentences = chain.from_iterable(
        _of_file(
            file,
            read_lines(file, errors=errors),
            column=str(column),
            tokens_column=None if tokens_column is None else str(tokens_column),
            file_format=file_format,
            has_header=has_header,
        )
        for file in files
    )
    found = LabelledText.of(sentences, max_tokens=max_tokens)
    if not found.n_labels:
        what = f"{found.n_without:,} words without one" if found.n_without else "no words"
        name = ", ".join(map(shown, files[:3]))
        raise DataError(f"{name}: expected labels in column {str(column)[:40]}, found {what}")
    return found


def _of_file(
    file: Source,
    lines: Iterator[Line],
    *,
    column: str,
    tokens_column: str | None,
    file_format: FileFormat,
    has_header: bool,
) -> Iterator[LabelledSentence]:
    start: list[Line] = []  # up to the first line with columns
    for line in lines:
        start.append(line)
        if line.text.strip() and not _is_comment(line.text):
            break
    if not any(line.text.strip() for line in start):
        return iter(())  # no words, and no header to look for a column in
    first = start[-1].text
    is_tabbed = "\t" in first
    split: Split
    if is_conllu := file_format == "conllu" or (file_format == "auto" and _seems_conllu(file, first)):
        split = _conllu_rows(column, tokens_column or "form")
    else:
        has_name = any(name is not None and not _is_number(name) for name in (column, tokens_column))
        header = start.pop() if has_header or has_name else None
        split = _column_rows(column, tokens_column or "1", header=header, is_tabbed=is_tabbed)
    return _sentences(chain(start, lines), split, is_conllu=is_conllu, is_tabbed=is_tabbed)


def _seems_conllu(file: Source, first: str) -> bool:
    """Whether a file's name, or the first of its lines with columns, says so."""
    columns = first.split("\t")
    is_first_word = len(columns) == len(CONLLU) and _FIRST_ID.fullmatch(columns[0]) is not None
    return is_first_word or _CONLLU_NAME.search(str(file)) is not None


def _sentences(
    lines: Iterable[Line], split: Split, *, is_conllu: bool, is_tabbed: bool
) -> Iterator[LabelledSentence]:
    rows: list[Row] = []
    place, n_columns = "", 0
    for line in lines:
        here = f"{line.path}:{line.number}"
        if not line.text.strip():
            if rows:
                yield _sentence(rows, place)
            rows, n_columns = [], 0
            continue
        columns = _cut(line.text, is_tabbed=is_tabbed)
        if _is_comment(line.text) and (is_conllu or is_tabbed or columns[0] in ("#begin", "#end")):
            continue
        if columns[0] == "-DOCSTART-" or (is_conllu and _NO_WORD.fullmatch(columns[0])):
            continue
        # files with a column per predicate have more of them in some sentences than in others
        n_columns = n_columns or len(columns)
        if len(columns) != n_columns:
            raise DataError(
                f"{here}: expected {n_columns} columns parted by {_by(is_tabbed)}, as in the line before, "
                f"found {len(columns)}"
            )
        place = place if rows else here
        rows.append(split(line.text, here))
        if len(rows) > MAX_TOKENS:
            raise DataError(f"{place}: expected an empty line within {MAX_TOKENS:,} words, found none")
    if rows:
        yield _sentence(rows, place)


def _sentence(rows: Sequence[Row], place: str) -> LabelledSentence:
    return LabelledSentence(tuple(word for word, _ in rows), tuple(label for _, label in rows), place)


def _conllu_rows(column: str, tokens_column: str) -> Split:
    name, _, part = column.partition(":")
    label_at, word_at = _conllu_column(name), _conllu_column(tokens_column)
    if part and CONLLU[label_at] not in ("feats", "misc"):
        raise ConfigError(f"column {column[:40]!r}: only feats and misc have parts, such as feats:Number")

    def row(text: str, place: str) -> Row:
        columns = text.split("\t")
        if len(columns) != len(CONLLU):
            raise DataError(f"{place}: expected {len(CONLLU)} columns parted by tabs, found {len(columns)}")
        word, label = columns[word_at], columns[label_at].strip()
        if not word:
            raise DataError(f"{place}: expected a word in column {CONLLU[word_at]}, found nothing")
        if not label:
            raise DataError(f"{place}: expected a label or _ in column {CONLLU[label_at]}, found nothing")
        if part:
            parts = dict(one.split("=", 1) for one in label.split("|") if "=" in one)
            return word, parts.get(part)
        return word, None if label == "_" else label

    return row


def _conllu_column(name: str) -> int:
    if _is_number(name) and 1 <= int(name) <= len(CONLLU):
        return int(name) - 1
    if name.lower() not in CONLLU:
        raise ConfigError(f"column: CoNLL-U has {', '.join(CONLLU)} and 1..10, not {name[:40]!r}")
    return CONLLU.index(name.lower())


def _column_rows(column: str, tokens_column: str, *, header: Line | None, is_tabbed: bool) -> Split:
    label_at, word_at = (_place_of(name, header, is_tabbed=is_tabbed) for name in (column, tokens_column))
    if label_at == word_at:
        raise ConfigError(f"column {column[:40]!r} holds the words: name another, or another for the words")
    n_names = len(_cut(header.text, is_tabbed=is_tabbed)) if header else 0

    def row(text: str, place: str) -> Row:
        columns = _cut(text, is_tabbed=is_tabbed)
        n_needed = max(label_at, word_at) + 1
        if len(columns) < n_needed or (n_names and len(columns) != n_names):
            expected = f"{n_names} columns, as in the header," if n_names else f"{n_needed} columns or more"
            raise DataError(f"{place}: expected {expected} parted by {_by(is_tabbed)}, found {len(columns)}")
        word, label = columns[word_at], columns[label_at].strip()
        if not word:
            raise DataError(f"{place}: expected a word in column {word_at + 1}, found nothing")
        if not label:
            raise DataError(f"{place}: expected a label in column {label_at + 1}, found nothing")
        return word, label

    return row


def _place_of(name: str, header: Line | None, *, is_tabbed: bool) -> int:
    if _is_number(name):
        if int(name) < 1:
            raise ConfigError("column: numbers count from 1, found 0")
        return int(name) - 1
    names = [one.strip() for one in _cut(header.text, is_tabbed=is_tabbed)] if header else []
    if name not in names:
        found = ", ".join(names[:12])[:120] or "nothing"
        where = f"{header.path}:{header.number}: " if header else ""
        raise DataError(f"{where}expected a header with {name[:40]!r}, found {found}; or give a number")
    return names.index(name)


def _cut(text: str, *, is_tabbed: bool) -> list[str]:
    return text.split("\t") if is_tabbed else [part for part in text.split(" ") if part]


def _by(is_tabbed: bool) -> str:
    return "tabs" if is_tabbed else "spaces"


def _is_comment(text: str) -> bool:
    """Whether a line may be one: # is a word, too, where more columns follow."""
    return text.startswith("#") and "\t" not in text


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 6
