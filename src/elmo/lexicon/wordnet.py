"""Read the database of WordNet: the senses of a word by frequency, their glosses, and base forms of words."""

from __future__ import annotations

import itertools
import os
import re
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

from elmo.errors import DataError
from elmo.storage.files import format_path, open_regular

Pos = Literal["noun", "verb", "adj", "adv"]
PARTS_OF_SPEECH: tuple[Pos, ...] = ("noun", "verb", "adj", "adv")
HOW_TO_INSTALL = (
    "install WordNet 3.0 with apt install wordnet-base wordnet-sense-index, "
    "or unpack it from wordnet.princeton.edu and name its folder dict with --wordnet, or set WNHOME to its folder"
)

_SYSTEM_FOLDERS = (Path("/usr/share/wordnet"), Path("/usr/local/WordNet-3.0/dict"), Path("/usr/local/share/wordnet"))
_INDEX = "index.sense"
_MAX_BYTES = 1 << 27  # maximum size of a file that is read at once; the index has 7 million bytes
_MAX_LINE_BYTES = 1 << 20  # maximum size of a synset; the longest has 13,000 bytes
_TYPES: dict[str, Pos] = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}  # 5: adjective satellite
_KEY = re.compile(r"[^%\s]+%[1-5]:\d\d:\d\d:[^:\s]*:\d*")
# Rules of detachment, in the order of the manual page morphy(7WN).
_RULES: dict[Pos, tuple[tuple[str, str], ...]] = {
    "noun": (
        ("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"),
        ("men", "man"), ("ies", "y"),
    ),
    "verb": (
        ("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", ""),
    ),
    "adj": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "adv": (),
}  # fmt: skip
_MAX_FORMS = 256  # maximum number of combinations of the base forms of the words of a phrase


@dataclass(frozen=True)
class WordNetSense:
    """One sense of a word in WordNet."""

    key: str  # sense key, such as bank%1:17:01::
    number: int  # rank by frequency among the senses of this word and part of speech, from 1
    offset: int  # position of the synset in the data file, in bytes
    count: int  # number of occurrences in the corpora that WordNet's authors tagged


def is_key(text: str) -> bool:
    """Return whether the text is a sense key, such as bank%1:17:01::."""
    return _KEY.fullmatch(text) is not None


def key_pos(key: str) -> Pos:
    """Return the part of speech of a sense key."""
    if not is_key(key):
        raise DataError(f"expected a sense key such as bank%1:17:01::, found {key[:80]!r}")
    return _TYPES[key[key.index("%") + 1]]


def as_lemma(word: str) -> str:
    """Return the spelling of a word in WordNet's index: in lower case, with _ for spaces."""
    return "_".join(word.lower().split())


class WordNet:
    """The WordNet database in a folder; its files are read when they are needed.

    Example:
        >>> wordnet = WordNet("path/to/wordnet/dict")  # doctest: +SKIP
        >>> wordnet.senses("bank", "NOUN")  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        """Open ``folder``; by default, $WNSEARCHDIR, $WNHOME/dict or a system folder."""
        self.folder = find_wordnet() if folder is None else _with_index(Path(folder), "this folder")
        self._senses = cache(self._read_senses)
        self._exceptions = cache(lambda pos: _read_exceptions(self.folder / f"{pos}.exc"))

    def __repr__(self) -> str:
        return f"WordNet({format_path(self.folder)!r})"

    def senses(self, lemma: str, pos: Pos) -> tuple[WordNetSense, ...]:
        """Return the senses of a base form, the most frequent first; empty for unknown words."""
        return self._senses(as_lemma(lemma), pos)

    def first_sense(self, lemma: str, pos: Pos) -> str | None:
        """Return the key of the most frequent sense of a base form; None for unknown words."""
        senses = self.senses(lemma, pos)
        return senses[0].key if senses else None

    def sense(self, key: str) -> WordNetSense:
        """Return the sense of a key; raise ``DataError`` if WordNet does not have it."""
        row = bisect_left(self._index.keys, key)
        if row == len(self._index.keys) or self._index.keys[row] != key:
            raise DataError(
                f"{format_path(self.folder / _INDEX)}: unknown sense {key[:80]!r}; check the version of WordNet"
            )
        return self._sense(row)

    def gloss(self, key: str) -> str:
        """Return the gloss of a sense: its definition and examples."""
        sense = self.sense(key)
        path = self.folder / f"data.{key_pos(key)}"
        with open_regular(path) as file:
            file.seek(sense.offset)
            line = file.readline(_MAX_LINE_BYTES).decode("utf-8", "replace")
        head, bar, gloss = line.partition(" | ")
        if not bar or not head.startswith(f"{sense.offset:08d} "):
            raise DataError(
                f"{format_path(path)}: expected the synset of {key} at byte {sense.offset}, "
                f"found {line[:40]!r}; the files may be from different versions"
            )
        return gloss.strip()

    def definition(self, key: str) -> str:
        """Return the definition of a sense, without examples."""
        return self.gloss(key).partition('; "')[0]

    def base_forms(self, word: str, pos: Pos) -> tuple[str, ...]:
        """Return the base forms of a word that are in WordNet, by the rules of its Morphy algorithm."""
        form = as_lemma(word)
        lemmas = dict.fromkeys([form, *self._bases(form, pos)])
        if not any(self.senses(lemma, pos) for lemma in lemmas) and "_" in form:
            parts = [(part, *self._bases(part, pos)) for part in form.split("_")]
            combinations = itertools.islice(itertools.product(*parts), _MAX_FORMS)
            lemmas = dict.fromkeys(map("_".join, combinations))
        return tuple(lemma for lemma in lemmas if self.senses(lemma, pos))

    @cached_property
    def _index(self) -> _SenseIndex:
        return _read_index(self.folder / _INDEX)

    def _read_senses(self, lemma: str, pos: Pos) -> tuple[WordNetSense, ...]:
        keys = self._index.keys
        rows = range(bisect_left(keys, f"{lemma}%"), bisect_left(keys, f"{lemma}&"))  # & is the character after %
        senses = [self._sense(row) for row in rows if key_pos(keys[row]) == pos]
        return tuple(sorted(senses, key=lambda sense: sense.number))

    def _sense(self, row: int) -> WordNetSense:
        index = self._index
        numbers = (index.numbers[row], index.offsets[row], index.counts[row])
        return WordNetSense(index.keys[row], *map(int, numbers))

    def _bases(self, form: str, pos: Pos) -> list[str]:
        """Return the base forms from the list of exceptions or, without an entry there, from the rules."""
        if exceptions := self._exceptions(pos).get(form):
            return list(exceptions)
        ending = ""
        if pos == "noun":
            if form.endswith("ful"):  # boxesful
                form, ending = form[:-3], "ful"
            elif form.endswith("ss") or len(form) <= 2:
                return []
        return [
            form[: len(form) - len(suffix)] + new + ending
            for suffix, new in _RULES[pos]
            if form.endswith(suffix) and len(form) > len(suffix)
        ]


def find_wordnet() -> Path:
    """Return the folder of WordNet: $WNSEARCHDIR, $WNHOME/dict or a system folder."""
    for name, below in (("WNSEARCHDIR", ""), ("WNHOME", "dict")):
        if value := os.environ.get(name):
            return _with_index(Path(value) / below, f"${name}")
    for folder in _SYSTEM_FOLDERS:
        if (folder / _INDEX).is_file():
            return folder
    raise DataError(f"WordNet is not installed; {HOW_TO_INSTALL}")


def _with_index(folder: Path, what: str) -> Path:
    if not (folder / _INDEX).is_file():
        raise DataError(f"{format_path(folder)}: {what} does not contain the WordNet file {_INDEX}; {HOW_TO_INSTALL}")
    return folder


@dataclass(frozen=True)
class _SenseIndex:
    """The columns of index.sense, sorted by key; numbers are parsed only when they are needed."""

    keys: list[str]
    offsets: list[str]
    numbers: list[str]
    counts: list[str]


def _read_index(path: Path) -> _SenseIndex:
    lines = _read_text(path).splitlines()
    fields = "\n".join(lines).split()
    columns = keys, offsets, numbers, counts = [fields[k::4] for k in range(4)]
    # Checking whole columns is ten times as fast as checking each line. A line with a wrong number of fields
    # moves words into the columns of numbers, so it is detected as well.
    is_whole = len(fields) == 4 * len(lines) and all(map(_KEY.fullmatch, keys))
    if not is_whole or not all(all(map(str.isdecimal, column)) for column in columns[1:]):
        for number, line in enumerate(lines, 1):
            parts = line.split()
            if len(parts) != 4 or not is_key(parts[0]) or not all(map(str.isdecimal, parts[1:])):
                raise DataError(
                    f"{format_path(path)}:{number}: expected a sense key, offset, sense number and count, "
                    f"found {line[:80]!r}"
                )
    if keys != sorted(keys):
        order = sorted(range(len(keys)), key=keys.__getitem__)
        keys, offsets, numbers, counts = ([column[k] for k in order] for column in columns)
    return _SenseIndex(keys, offsets, numbers, counts)


def _read_exceptions(path: Path) -> dict[str, tuple[str, ...]]:
    """Read irregular forms and their base forms; a form may occur on several lines."""
    exceptions: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(_read_text(path).splitlines(), 1):
        form, *bases = line.split() or [""]
        if not bases:
            raise DataError(f"{format_path(path)}:{number}: expected a form and its base forms, found {line[:80]!r}")
        exceptions[form] = (*exceptions.get(form, ()), *bases)
    return exceptions


def _read_text(path: Path) -> str:
    with open_regular(path, _MAX_BYTES) as file:
        raw = file.read(_MAX_BYTES)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{format_path(path)}:{line}: expected UTF-8, found the byte 0x{raw[error.start]:02x}"
        ) from error
