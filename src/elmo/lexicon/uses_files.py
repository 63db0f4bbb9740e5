"""A folder of TSV files of uses in, usages by word and period out.

The files are those of the Diachronic Word Usage Graphs (DWUG, Schlechtweg et al. 2021): ``uses.csv`` or
``WORD.uses.csv``, anywhere below the folder, compressed or not; parted by tabs, without quoting. A use has a
lemma, a period (``grouping``), a tokenised sentence and the place of the word in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from elmo.errors import DataError
from elmo.formats.files import shown
from elmo.lexicon.usages import Usage
from elmo.text.lines import Line, read_lines
from elmo.text.tokens import Tokens

COLUMNS = ("lemma", "grouping", "context_tokenized", "indexes_target_token_tokenized", "identifier")

_NAME = re.compile(r"(.+\.)?uses\.(csv|tsv)(\.(gz|xz|bz2|zst))?")
_PART_OF_SPEECH = re.compile(r"(?<=.)_[a-z]{2}$")
_PLACE = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?")

Uses = dict[str, dict[str, list[Usage]]]  # by word, then by period


def read_uses(folder: str | Path) -> Uses:
    """The usages in all files below ``folder``; words in order, the periods of each in order."""
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"{shown(root)}: expected a folder with files of uses, found none")
    files = sorted(path for path in root.rglob("*uses.*") if _NAME.fullmatch(path.name) and path.is_file())
    if not files:
        raise DataError(f"{shown(root)}: expected files uses.csv or WORD.uses.csv, found none")
    found: Uses = {}
    for path in files:
        for word, periods in read_uses_file(path).items():
            for period, usages in periods.items():
                found.setdefault(word, {}).setdefault(period, []).extend(usages)
    return {word: {period: found[word][period] for period in in_order(found[word])} for word in sorted(found)}


def read_uses_file(path: Path) -> Uses:
    """The usages of one file; an error names its line."""
    lines = read_lines(path)
    first = next(lines, None)
    names = [] if first is None else first.text.removeprefix("\ufeff").split("\t")
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise DataError(
            f"{shown(path)}:1: expected columns {', '.join(COLUMNS)}; missing {', '.join(missing)}"
        )
    places = [names.index(name) for name in COLUMNS]
    found: Uses = {}
    for line in lines:
        if not line.text:
            continue
        fields = line.text.split("\t")
        if len(fields) != len(names):
            raise DataError(f"{_place(line)}: expected {len(names)} columns, found {len(fields)}")
        word, period, text, index, identifier = (fields[place] for place in places)
        if not word or not period:
            raise DataError(f"{_place(line)}: expected a lemma and a grouping, found {word!r} and {period!r}")
        usage = _usage(line, text, index, identifier)
        found.setdefault(word, {}).setdefault(period, []).append(usage)
    return found


def spelling_of(lemma: str) -> str:
    """The word that a lemma stands for: DWUG's English ones name the part of speech, too (``head_nn``)."""
    return _PART_OF_SPEECH.sub("", lemma)


def in_order(periods: Iterable[str]) -> list[str]:
    """Periods by their numbers where all are numbers, else by their names."""
    given = list(periods)
    are_numbers = all(period.isascii() and period.isdigit() for period in given)
    return sorted(given, key=(lambda period: (int(period), period)) if are_numbers else str)


def _usage(line: Line, text: str, index: str, identifier: str) -> Usage:
    tokens = text.split(" ")  # the index counts what single spaces part
    match = _PLACE.fullmatch(index.strip())
    if match is None:
        raise DataError(
            f"{_place(line)}: expected the number of a token, or two like 3:5, found {index!r:.40}"
        )
    begin = int(match[1])
    end = begin + 1 if match[2] is None else int(match[2])
    if not begin < end <= len(tokens):
        raise DataError(f"{_place(line)}: expected a place within {len(tokens)} tokens, found {index!r:.40}")
    return Usage(Tokens.given(tokens), begin, end, identifier or _place(line))


def _place(line: Line) -> str:
    return f"{line.path}:{line.number}"
