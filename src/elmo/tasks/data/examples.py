"""What a task learns from and is asked about: one frozen value per example.

Every example tells by ``sentences`` which token sequences it needs vectors of: vectors are made and kept
per sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from elmo.errors import DataError

Words = tuple[str, ...]


@dataclass(frozen=True)
class Location:
    """Where an example stands, for messages: "train.conll:17"."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def at(place: Location | None) -> str:
    """The beginning of a message about an example: its place, where it has one."""
    return "" if place is None else f"{place}: "


@dataclass(frozen=True, order=True)
class Span:
    """Tokens ``start`` to ``end``, the end not included, and what they are."""

    start: int
    end: int
    label: str = ""


class Example(Protocol):
    """What all examples have."""

    @property
    def sentences(self) -> tuple[Words, ...]:
        """The token sequences whose vectors it needs."""
        ...

    @property
    def place(self) -> Location | None:
        """Where it was read; None: given by the caller."""
        ...


@dataclass(frozen=True)
class TaggedSentence:
    """A tag for every word; None: not known, to be predicted."""

    words: Words
    tags: Words | None
    place: Location | None = None

    @property
    def sentences(self) -> tuple[Words, ...]:
        """The words."""
        return (self.words,)


@dataclass(frozen=True)
class LabeledText:
    """One text and its class."""

    words: Words
    label: str | None
    place: Location | None = None

    @property
    def sentences(self) -> tuple[Words, ...]:
        """The words."""
        return (self.words,)


@dataclass(frozen=True)
class TextPair:
    """Two texts with their relation (entailment), how alike they are (similarity), or both."""

    first: Words
    second: Words
    label: str | None
    score: float | None = None
    place: Location | None = None

    @property
    def sentences(self) -> tuple[Words, ...]:
        """Premise and hypothesis."""
        return (self.first, self.second)


@dataclass(frozen=True)
class Question:
    """A question about a passage, and the passage's tokens that answer it."""

    id: str
    question: Words
    passage: Words
    text: str  # the passage as it is written
    offsets: tuple[tuple[int, int], ...]  # of each of the passage's tokens in ``text``
    answers: tuple[str, ...]  # as annotators wrote them; () where none is known
    spans: tuple[Span, ...]  # tokens that cover an answer, of each answer that stands in its place
    place: Location | None = None

    @property
    def sentences(self) -> tuple[Words, ...]:
        """Passage and question."""
        return (self.passage, self.question)


@dataclass(frozen=True)
class Predicate:
    """A sentence, one predicate of it, and that predicate's arguments (its own tokens aside)."""

    words: Words
    predicate: int  # the token
    roles: tuple[Span, ...] | None  # not overlapping, in order; None: not known
    place: Location | None = None

    @property
    def sentences(self) -> tuple[Words, ...]:
        """The words."""
        return (self.words,)


@dataclass(frozen=True)
class Document:
    """Sentences, and which spans of them speak of the same thing.

    Spans count tokens from the document's beginning.
    """

    name: str
    text: tuple[Words, ...]
    clusters: tuple[tuple[Span, ...], ...] | None  # None: not known
    speakers: Words | None = None  # of each token, where the file tells
    place: Location | None = None

    @property
    def sentences(self) -> tuple[Words, ...]:
        """Its sentences."""
        return self.text


def check_words(examples: Sequence[Example]) -> None:
    """Refuse an example with a sentence that has no words, or whose words are no tuple of strings."""
    for number, example in enumerate(examples, start=1):
        where = at(example.place) or f"example {number}: "
        sentences: object = example.sentences
        if not isinstance(sentences, tuple) or not sentences:
            raise DataError(f"{where}expected a tuple of sentences, found {_shown(sentences)}")
        for words in sentences:
            if not isinstance(words, tuple) or not words:
                raise DataError(f"{where}expected a sentence as a tuple of words, found {_shown(words)}")
            for word in words:
                if not isinstance(word, str):
                    raise DataError(f"{where}expected words that are str, found {_shown(word)}")


def _shown(value: object) -> str:
    return "an empty tuple" if value == () else f"{type(value).__name__} {value!r:.40}"
