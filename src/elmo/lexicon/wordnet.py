"""WordNet's own database files in; senses of a word in order, their glosses, and base forms out."""

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
from elmo.storage.files import format_error, format_path, open_regular

Pos = Literal["noun", "verb", "adj", "adv"]
PARTS_OF_SPEECH: tuple[Pos, ...] = ("noun", "verb", "adj", "adv")
HOW_TO_GET_IT = (
    "get WordNet 3.0 with apt install wordnet-base wordnet-sense-index, "
    "or unpack it from wordnet.princeton.edu and set WNHOME to its folder"
)

_USUAL = (Path("/usr/share/wordnet"), Path("/usr/local/WordNet-3.0/dict"), Path("/usr/local/share/wordnet"))
_INDEX = "index.sense"
_LIMIT = 1 << 27  # bytes of a file that is read whole; the index has 7 million
_LINE_LIMIT = 1 << 20  # bytes of a synset; the longest has 13,000
_TYPES: dict[str, Pos] = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}  # 5: a satellite
_KEY = re.compile(r"[^%\s]+%[1-5]:\d\d:\d\d:[^:\s]*:\d*")
# Rules of detachment, in the order of the manual's morphy(7WN).
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
_MOST_FORMS = 256  # of a phrase, whose words may each have some


@dataclass(frozen=True)
class Sense:
    """One sense of a word."""

    key: str  # such as bank%1:17:01::
    number: int  # 1 is the most frequent of this word and part of speech
    offset: int  # of its synset in the data file
    count: int  # uses that WordNet's authors found in their texts

    @property
    def pos(self) -> Pos:
        """The part of speech."""
        return pos_of(self.key)


def is_key(text: str) -> bool:
    """Whether this is a sense key, such as bank%1:17:01::."""
    return _KEY.fullmatch(text) is not None


def pos_of(key: str) -> Pos:
    """The part of speech that a sense key names."""
    if not is_key(key):
        raise DataError(f"expected a sense key such as bank%1:17:01::, found {key[:80]!r}")
    return _TYPES[key[key.index("%") + 1]]


def as_lemma(word: str) -> str:
    """A word as WordNet's index writes it: small letters, and _ for spaces."""
    return "_".join(word.lower().split())


class WordNet:
    """A folder of WordNet's database, read as far as it is asked for."""

    def __init__(self, folder: str | Path | None = None) -> None:
        """Open ``folder``, or $WNSEARCHDIR, $WNHOME/dict, or where the system keeps it."""
        self.folder = find_wordnet() if folder is None else _with_index(Path(folder), "this folder")
        self._senses = cache(self._read_senses)
        self._exceptions = cache(self._read_exceptions)

    def __repr__(self) -> str:
        return f"WordNet({format_path(self.folder)!r})"

    def senses(self, lemma: str, pos: Pos) -> tuple[Sense, ...]:
        """The senses of a base form, the most frequent first; none for a word that is not there."""
        return self._senses(as_lemma(lemma), pos)

    def first_sense(self, lemma: str, pos: Pos) -> str | None:
        """The key of the most frequent sense."""
        found = self.senses(lemma, pos)
        return found[0].key if found else None

    def sense(self, key: str) -> Sense:
        """The sense of a key; ``DataError`` where WordNet has none."""
        place = bisect_left(self._index.keys, key)
        if place == len(self._index.keys) or self._index.keys[place] != key:
            raise DataError(f"{format_path(self.folder / _INDEX)}: has no sense {key[:80]!r}")
        return self._sense(place)

    def gloss(self, key: str) -> str:
        """What a sense means, with examples of its use as WordNet gives them."""
        sense = self.sense(key)
        path = self.folder / f"data.{sense.pos}"
        with open_regular(path) as file:
            file.seek(sense.offset)
            line = file.readline(_LINE_LIMIT).decode("utf-8", "replace")
        head, bar, gloss = line.partition(" | ")
        if not bar or not head.startswith(f"{sense.offset:08d} "):
            raise DataError(
                f"{format_path(path)}: expected the synset of {key} at byte {sense.offset}, found {line[:40]!r}; "
                "are the files of one version?"
            )
        return gloss.strip()

    def definition(self, key: str) -> str:
        """The gloss of a sense without its examples."""
        return self.gloss(key).partition('; "')[0]

    def base_forms(self, word: str, pos: Pos) -> tuple[str, ...]:
        """The lemmas that a word may be a form of: itself, an exception, or less an ending (Morphy)."""
        form = as_lemma(word)
        found = dict.fromkeys([form, *self._bases(form, pos)])
        if not any(self.senses(lemma, pos) for lemma in found) and "_" in form:
            parts = [(part, *self._bases(part, pos)) for part in form.split("_")]
            spelled = itertools.islice(itertools.product(*parts), _MOST_FORMS)
            found = dict.fromkeys("_".join(each) for each in spelled)
        return tuple(lemma for lemma in found if self.senses(lemma, pos))

    # --- inside -------------------------------------------------------------------------------------

    @cached_property
    def _index(self) -> _Index:
        return _read_index(self.folder / _INDEX)

    def _read_senses(self, lemma: str, pos: Pos) -> tuple[Sense, ...]:
        keys, begin = self._index.keys, f"{lemma}%"
        found: list[Sense] = []
        for place in range(bisect_left(keys, begin), len(keys)):
            if not keys[place].startswith(begin):
                break
            if pos_of(keys[place]) == pos:
                found.append(self._sense(place))
        return tuple(sorted(found, key=lambda sense: sense.number))

    def _sense(self, place: int) -> Sense:
        index = self._index
        numbers = (index.numbers[place], index.offsets[place], index.counts[place])
        return Sense(index.keys[place], *map(int, numbers))

    def _bases(self, form: str, pos: Pos) -> list[str]:
        """What the exceptions say; where they say nothing, what the rules of detachment give."""
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

    def _read_exceptions(self, pos: Pos) -> dict[str, tuple[str, ...]]:
        return _read_exceptions(self.folder / f"{pos}.exc")


def find_wordnet() -> Path:
    """WordNet's folder: $WNSEARCHDIR, $WNHOME/dict, or where systems keep it."""
    for name, below in (("WNSEARCHDIR", ""), ("WNHOME", "dict")):
        if value := os.environ.get(name):
            return _with_index(Path(value) / below, f"${name}")
    for folder in _USUAL:
        if (folder / _INDEX).is_file():
            return folder
    raise DataError(f"WordNet is not on this machine; {HOW_TO_GET_IT}")


def _with_index(folder: Path, what: str) -> Path:
    if not (folder / _INDEX).is_file():
        raise DataError(
            f"{format_path(folder)}: expected WordNet's {_INDEX} in {what}, found none; {HOW_TO_GET_IT}"
        )
    return folder


@dataclass(frozen=True)
class _Index:
    """The columns of index.sense, sorted by key; numbers stay text until they are asked for."""

    keys: list[str]
    offsets: list[str]
    numbers: list[str]
    counts: list[str]


def _read_index(path: Path) -> _Index:
    lines = _read_text(path).splitlines()
    fields = "\n".join(lines).split()
    columns = keys, offsets, numbers, counts = [fields[k::4] for k in range(4)]
    # Whole columns are checked at once, which is ten times as fast as line by line: a line with too few or
    # too many fields moves words into the columns of numbers.
    is_whole = len(fields) == 4 * len(lines) and all(map(_KEY.fullmatch, keys))
    if not is_whole or not all(all(map(str.isdecimal, column)) for column in columns[1:]):
        for number, line in enumerate(lines, 1):
            parts = line.split()
            if len(parts) != 4 or not is_key(parts[0]) or not all(map(str.isdecimal, parts[1:])):
                raise DataError(
                    f"{format_path(path)}:{number}: expected a sense key, an offset, a sense number and a count, "
                    f"found {line[:80]!r}"
                )
    if keys != sorted(keys):
        order = sorted(range(len(keys)), key=keys.__getitem__)
        keys, offsets, numbers, counts = ([column[k] for k in order] for column in columns)
    return _Index(keys, offsets, numbers, counts)


def _read_exceptions(path: Path) -> dict[str, tuple[str, ...]]:
    """Irregular forms and what each is a form of; a form may stand on several lines."""
    found: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(_read_text(path).splitlines(), 1):
        form, *bases = line.split() or [""]
        if not bases:
            raise DataError(
                f"{format_path(path)}:{number}: expected a form and its base forms, found {line[:80]!r}"
            )
        found[form] = (*found.get(form, ()), *bases)
    return found


def _read_text(path: Path) -> str:
    with open_regular(path, _LIMIT) as file:
        raw = file.read(_LIMIT)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(f"{format_path(path)}:{line}: expected UTF-8, found {format_error(error)}") from error
