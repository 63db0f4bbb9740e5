"""Sentences in, the same with the places of those words that are wanted, out."""

from __future__ import annotations

import random
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from elmo.errors import ConfigError, DataError
from elmo.text.simplified import simplified_word
from elmo.text.source import Sentence
from elmo.text.tokens import WhitespaceTokenizer

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

Key = Callable[[str], str]  # a token to the entry that it is a use of
Span = tuple[int, int]
T = TypeVar("T")
_INSIDE = frozenset("-'’.·\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}")  # a word, beside its letters


def entry_key(elmo: Elmo, *, keep_case: bool = False) -> Key:
    """Which tokens are one word to this model's reader: Bank and bank, and 蘋果 and 苹果 if it reads both."""
    return entry_key_of(is_simplified=elmo.config.alphabet == "simplified", keep_case=keep_case)


def entry_key_of(*, is_simplified: bool, keep_case: bool) -> Key:
    """The same without a model."""

    def key(token: str) -> str:
        spelled = simplified_word(token) if is_simplified else token
        return spelled if keep_case else spelled.lower()

    return key


def entry_of(word: str, key: Key) -> str:
    """The entry of a word, or of a phrase, whose parts stand between spaces."""
    return " ".join(map(key, parts_of(word)))


def parts_of(word: str) -> tuple[str, ...]:
    """The tokens of a phrase, cut as ``WhitespaceTokenizer`` cuts: other spaces stand inside tokens."""
    parts = WhitespaceTokenizer()(word).tokens
    if not parts:
        raise DataError("expected a word, found white space only")
    return parts


def is_word(token: str) -> bool:
    """Whether a token is spelled with letters: vowel signs (हिन्दी) belong to them, as do hyphens inside."""
    if token.isalpha():
        return True
    return token[:1].isalpha() and all(
        c.isalpha() or c in _INSIDE or unicodedata.category(c)[0] == "M" for c in token
    )


class Choice:
    """All words, or those of a list; a word may be a phrase, whose tokens follow each other.

    What is no word (without a letter or digit) is taken only if the list has it.
    """

    def __init__(self, words: Iterable[str] | None, *, key: Key) -> None:
        self._key = key
        self._phrases: dict[str, list[tuple[str, ...]]] | None = None
        if words is not None:
            self._phrases = {}
            for entry in dict.fromkeys(entry_of(word, key) for word in words):
                parts = tuple(entry.split(" "))
                self._phrases.setdefault(parts[0], []).append(parts)

    def found(self, tokens: Sequence[str]) -> list[tuple[Span, str]]:
        """The places of the words in a sentence, each with its entry."""
        keys = [self._key(token) for token in tokens]
        if self._phrases is None:
            return [
                ((k, k + 1), entry)
                for k, entry in enumerate(keys)
                if entry.isalnum() or any(map(str.isalnum, entry))
            ]
        places: list[tuple[Span, str]] = []
        for begin, first in enumerate(keys):
            for parts in self._phrases.get(first, ()):
                end = begin + len(parts)
                if len(parts) == 1 or tuple(keys[begin:end]) == parts:
                    places.append(((begin, end), " ".join(parts)))
        return places


class Reservoir(Generic[T]):
    """Of all that is added, ``limit`` are kept, each with the same chance (Vitter 1985).

    The chance is the entry's own: what is kept of a word does not depend on other words.
    """

    def __init__(self, limit: int | None, *, seed: int, entry: str) -> None:
        if limit is not None and limit < 1:
            raise ConfigError(f"limit must be at least 1, found {limit}")
        self._limit, self._chance = limit, None
        self._name = f"{seed} {entry}".encode("utf-8", "surrogatepass")
        self._kept: list[tuple[int, T]] = []
        self.n = 0  # added so far

    def add(self, item: T) -> None:
        """Keep it, perhaps in the place of another."""
        self.n += 1
        if self._limit is None or len(self._kept) < self._limit:
            self._kept.append((self.n, item))
            return
        self._chance = self._chance or random.Random(self._name)
        place = self._chance.randrange(self.n)
        if place < self._limit:
            self._kept[place] = (self.n, item)

    def kept(self) -> list[T]:
        """In the order in which they were added."""
        return [item for _, item in sorted(self._kept, key=lambda pair: pair[0])]


class Sample:
    """Of each entry at most ``limit`` places of a text, known by a running number."""

    def __init__(self, sentences: Iterable[Sentence], choice: Choice, *, limit: int, seed: int) -> None:
        """Read the text once."""
        reservoirs: dict[str, Reservoir[int]] = {}
        number = 0
        for sentence in sentences:
            for _, entry in choice.found(sentence.tokens.tokens):
                if entry not in reservoirs:
                    reservoirs[entry] = Reservoir(limit, seed=seed, entry=entry)
                reservoirs[entry].add(number)
                number += 1
        self.counts = Counter({entry: found.n for entry, found in reservoirs.items()})
        self.places = frozenset(number for found in reservoirs.values() for number in found.kept())


@dataclass(frozen=True)
class UsedSentence(Sentence):
    """A sentence and the places of those of its words whose vectors are wanted."""

    spans: tuple[Span, ...] = ()
    entries: tuple[str, ...] = ()  # what each is a use of


class Reader:
    """Gives the sentences that have something to index, and counts what it read."""

    def __init__(self, choice: Choice, sample: Sample | None = None) -> None:
        self.choice, self.sample = choice, sample
        self.n_sentences = self.n_tokens = 0

    def used(self, sentences: Iterable[Sentence]) -> Iterator[UsedSentence]:
        """Those with a word that is wanted, in their order."""
        number = 0
        for sentence in sentences:
            self.n_sentences += 1
            self.n_tokens += len(sentence)
            found = self.choice.found(sentence.tokens.tokens)
            if self.sample is not None:
                first, number = number, number + len(found)
                found = [one for k, one in enumerate(found, start=first) if k in self.sample.places]
            if found:
                yield UsedSentence(
                    sentence.tokens, sentence.path, sentence.line, sentence.start,
                    spans=tuple(span for span, _ in found), entries=tuple(entry for _, entry in found),
                )  # fmt: skip

    @property
    def counts(self) -> Mapping[str, int] | None:
        """How often each entry stands in the text, where the index has fewer usages of it."""
        return None if self.sample is None else self.sample.counts
