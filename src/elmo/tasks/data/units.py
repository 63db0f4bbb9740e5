"""Split target texts into units: words, or pieces of words from byte-pair encoding (Sennrich et al. 2016).

A text is first split into words, numbers, punctuation marks and Chinese characters. A part that follows a space
starts with ``▁``, so that joining the units restores the text. Byte-pair encoding then splits rare words into
frequent pieces; a part that is already frequent remains one unit.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

from elmo.errors import DataError, importing_extra
from elmo.tasks.data.examples import Words
from elmo.text.english import HAN, build_extenders

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_log = logging.getLogger(__name__)

UnitKind = Literal["bpe", "words"]
SPACE = "▁"  # U+2581, as in SentencePiece
# The first units. A copy is a source word; the second one follows a space.
PADDING, UNKNOWN, BEGIN, END, COPY, SPACED_COPY = range(6)
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<copy>", f"{SPACE}<copy>")
_MIN_COUNT = 2  # rarer words and pieces are not units


@dataclass(frozen=True)
class Unit:
    """A unit of a target text, by its id; a copy also has the source word."""

    id: int
    word: str = ""


@dataclass(frozen=True)
class TargetUnits:
    """The units of the target language.

    Attributes:
        names: Name of each unit; the first ones are ``SPECIAL``.
        merges: Pairs of units that byte-pair encoding joins, in order; None if the units are words.
    """

    names: tuple[str, ...]
    merges: tuple[tuple[str, str], ...] | None

    @classmethod
    def learn(cls, texts: Iterable[str], *, kind: UnitKind, n_units: int) -> Self:
        """Learn at most ``n_units`` units from the target texts of the training data."""
        counts = Counter(part for text in texts for part in split_parts(text))
        counts = Counter({part: n for part, n in counts.items() if part not in SPECIAL})
        ordered = sorted(counts, key=lambda part: (-counts[part], part))  # ties do not depend on the order of texts
        if kind == "words":
            kept = [part for part in ordered if counts[part] >= _MIN_COUNT][: max(0, n_units - len(SPECIAL))]
            units = cls((*SPECIAL, *kept), None)
        else:
            units = cls(*_learn_pieces(ordered, counts, n_units))
        if len(units.names) == len(SPECIAL):
            raise DataError(f"no word of the target texts occurs {_MIN_COUNT} times; more training data is needed")
        return units

    def encode(self, text: str, source: Words = ()) -> list[Unit]:
        """Split a text into units; a word that is not a unit is copied if it is one of the ``source`` words."""
        available = set(source)
        units: list[Unit] = []
        for part in split_parts(text):
            ids = self._encode_part(part)
            word = part.removeprefix(SPACE)
            if word in available and (len(ids) > 1 or ids == (UNKNOWN,)):
                units.append(Unit(SPACED_COPY if part.startswith(SPACE) else COPY, word))
            else:
                units += map(Unit, ids)
        return units

    def decode(self, units: Iterable[Unit]) -> str:
        """Join units to a text."""
        text = "".join(map(self.format, units))
        return " ".join(text.replace(SPACE, " ").split())

    def format(self, unit: Unit) -> str:
        """Return the text of a unit, with ``▁`` for a space."""
        if unit.id in (COPY, SPACED_COPY):
            return f"{SPACE if unit.id == SPACED_COPY else ''}{unit.word}"
        return self.names[unit.id]

    def to_json(self) -> dict[str, Any]:
        """Return the units as JSON values."""
        return {"names": list(self.names), "merges": self.merges and [list(pair) for pair in self.merges]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create units from the values that ``to_json`` returned; raise ``ValueError`` if they are inconsistent."""
        names, merges = tuple(map(str, values["names"])), values["merges"]
        if names[: len(SPECIAL)] != SPECIAL or len(set(names)) != len(names):
            raise ValueError("units must start with the special units and must be different")
        if merges is None:
            return cls(names, None)
        pairs = tuple((str(left), str(right)) for left, right in merges)
        known = set(names)
        if not all({left, right, left + right} <= known for left, right in pairs):
            raise ValueError("every part of a merge must be a unit")
        return cls(names, pairs)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    @cached_property
    def _parts(self) -> dict[str, tuple[int, ...]]:
        return {}

    @cached_property
    def _pieces(self) -> Tokenizer:
        with importing_extra("byte-pair encoding", extra="translation"):
            from tokenizers import Tokenizer, models
        vocabulary = {name: index for name, index in self._ids.items() if index not in (COPY, SPACED_COPY)}
        return Tokenizer(models.BPE(vocabulary, list(self.merges or ()), unk_token=SPECIAL[UNKNOWN]))

    def _encode_part(self, part: str) -> tuple[int, ...]:
        if part not in self._parts:
            if self.merges is None:
                ids = (UNKNOWN,) if part in SPECIAL else (self._ids.get(part, UNKNOWN),)
            else:
                ids = tuple(self._pieces.encode(part).ids)
                ids = (UNKNOWN,) if UNKNOWN in ids else ids
            self._parts[part] = ids
        return self._parts[part]


def split_parts(text: str) -> Iterator[str]:
    """Yield the words, numbers and marks of a text; joined and with ``▁`` as a space, they restore it."""
    plain = " ".join(text.replace(SPACE, " ").split())
    if plain:
        yield from _part_pattern().findall(SPACE + plain.replace(" ", SPACE))


@cache
def _part_pattern() -> re.Pattern[str]:
    """Return the pattern of a part of a text, with the space before it."""
    letters = rf"[^\W\d_{HAN}](?:[^\W\d_{HAN}]|[{build_extenders()}])*"  # with marks, such as the vowels of Hindi
    # a Chinese character; a number with its separators; a word with inner hyphens and apostrophes; any other character
    part = rf"[{HAN}]|\d+(?:[.,:]\d+)*|{letters}(?:[-'’]{letters})*|[^{SPACE}]"
    return re.compile(f"{SPACE}?(?:{part})|{SPACE}")


def _learn_pieces(
    ordered: Sequence[str], counts: Mapping[str, int], n_units: int
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Learn byte-pair encoding from words and their counts."""
    with importing_extra("byte-pair encoding", extra="translation"):
        from tokenizers import Tokenizer, models, trainers

    characters = Counter(c for part in ordered for c in part for _ in range(counts[part]))
    # at most half of the units, because Chinese has thousands of characters; the others are for merges
    alphabet = sorted((c for c, n in characters.items() if n >= _MIN_COUNT), key=lambda c: (-characters[c], c))
    alphabet = alphabet[: n_units // 2]
    learned = Tokenizer(models.BPE(unk_token=SPECIAL[UNKNOWN]))
    trainer = trainers.BpeTrainer(
        vocab_size=n_units,
        min_frequency=_MIN_COUNT,
        initial_alphabet=alphabet,  # the trainer would choose at random between equally frequent characters
        limit_alphabet=len(alphabet),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    learned.train_from_iterator((part for part in ordered for _ in range(counts[part])), trainer)
    model = json.loads(learned.to_str())["model"]
    names = sorted(model["vocab"], key=model["vocab"].__getitem__)
    pairs = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model["merges"]]
    if not pairs:
        _log.warning(
            "byte-pair encoding joined no characters of the target texts: each unit is one character; use more text or "
            "more units"
        )
    return tuple(names), tuple((left, right) for left, right in pairs)
