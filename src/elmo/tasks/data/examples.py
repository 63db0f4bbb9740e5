"""Examples of all tasks: frozen values that a model is trained on or predicts for.

``sentences`` of an example are the token sequences that it needs features for: features are computed and
cached per sentence. In every class, ``location`` is the last field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from elmo.errors import DataError

Words = tuple[str, ...]


@dataclass(frozen=True)
class Location:
    """File and line of an example, for messages: "train.conll:17"."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def format_location(location: Location | None) -> str:
    """Return the start of a message about an example: its location and a colon, or nothing."""
    return "" if location is None else f"{location}: "


@dataclass(frozen=True, order=True)
class Span:
    """Tokens from ``start`` to ``end`` (exclusive) and their label."""

    start: int
    end: int
    label: str = ""


class Example(Protocol):
    """The properties that all examples share."""

    @property
    def sentences(self) -> tuple[Words, ...]:
        """The token sequences that need features."""
        ...

    @property
    def location(self) -> Location | None:
        """File and line; None for an example that was not read from a file."""
        ...


class _SingleSentence:
    """Mixin for an example with one sequence of words."""

    words: Words

    @property
    def sentences(self) -> tuple[Words, ...]:
        """The words of the example."""
        return (self.words,)


@dataclass(frozen=True)
class TaggedSentence(_SingleSentence):
    """A sentence with a tag for each word."""

    words: Words
    tags: Words | None  # None if unknown
    location: Location | None = None


@dataclass(frozen=True)
class LabeledText(_SingleSentence):
    """A text with its class."""

    words: Words
    label: str | None  # None if unknown
    location: Location | None = None


@dataclass(frozen=True)
class TextPair:
    """Two texts with their relation (entailment), a similarity score, or both."""

    first: Words
    second: Words
    label: str | None  # None if unknown
    score: float | None = None
    location: Location | None = None

    @property
    def sentences(self) -> tuple[Words, ...]:
        """The words of both texts."""
        return (self.first, self.second)


@dataclass(frozen=True)
class Question:
    """A question about a passage, and the tokens of the passage that answer it."""

    id: str
    question: Words
    passage: Words
    text: str  # the passage before tokenization
    offsets: tuple[tuple[int, int], ...]  # character offsets of the passage tokens in ``text``
    answers: tuple[str, ...]  # texts of the true answers; () if unknown
    spans: tuple[Span, ...]  # passage tokens that cover an answer; () for answers that were not located
    location: Location | None = None

    @property
    def sentences(self) -> tuple[Words, ...]:
        """The words of the passage and of the question."""
        return (self.passage, self.question)


@dataclass(frozen=True)
class Predicate(_SingleSentence):
    """A sentence, one of its predicates, and the arguments of this predicate."""

    words: Words
    predicate: int  # index of the token
    roles: tuple[Span, ...] | None  # sorted, not overlapping, without the predicate; None if unknown
    location: Location | None = None


@dataclass(frozen=True)
class Document:
    """The sentences of a document, and clusters of spans that refer to the same entity.

    Spans count tokens from the start of the document.
    """

    name: str
    text: tuple[Words, ...]
    clusters: tuple[tuple[Span, ...], ...] | None  # None if unknown
    speakers: Words | None = None  # speaker of each token; None if unknown
    location: Location | None = None

    @property
    def sentences(self) -> tuple[Words, ...]:
        """The words of each sentence."""
        return self.text


def check_words(examples: Sequence[Example]) -> None:
    """Raise ``DataError`` for an empty sentence and for words that are not a tuple of strings."""
    for number, example in enumerate(examples, start=1):
        prefix = format_location(example.location) or f"example {number}: "
        sentences: object = example.sentences
        if not isinstance(sentences, tuple) or not sentences:
            raise DataError(f"{prefix}expected a tuple of sentences, found {_describe(sentences)}")
        for words in sentences:
            if not isinstance(words, tuple) or not words:
                raise DataError(f"{prefix}expected a sentence as a tuple of words, found {_describe(words)}")
            for word in words:
                if not isinstance(word, str):
                    raise DataError(f"{prefix}expected words of type str, found {_describe(word)}")


def _describe(value: object) -> str:
    return "an empty tuple" if value == () else f"{type(value).__name__} {value!r:.40}"
