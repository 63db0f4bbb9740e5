"""The examples of all tasks, for training and prediction.

The property ``sentences`` of an example lists its token sequences; features are computed and cached per sentence. In
every class, the last field is ``location``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from elmo.errors import DataError

Words = tuple[str, ...]


@dataclass(frozen=True)
class Location:
    """File and line of an example, shown in messages as "train.conll:17"."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def format_location(location: Location | None) -> str:
    """Return the location of an example and a colon, as the start of a message; an empty string for None."""
    return "" if location is None else f"{location}: "


@dataclass(frozen=True, order=True)
class Span:
    """The tokens from ``start`` up to, but not including, ``end``, and their label."""

    start: int
    end: int
    label: str = ""


class Example(Protocol):
    """The properties that all example classes have."""

    @property
    def sentences(self) -> tuple[Words, ...]:
        """The token sequences of the example."""
        ...

    @property
    def location(self) -> Location | None:
        """File and line of the example; None if it was not read from a file."""
        ...


class _SingleSentence:
    """Mixin for examples with one sequence of words."""

    words: Words

    @property
    def sentences(self) -> tuple[Words, ...]:
        """The words of the example, as the only sentence."""
        return (self.words,)


@dataclass(frozen=True)
class TaggedSentence(_SingleSentence):
    """A sentence with a tag for each word."""

    words: Words
    tags: Words | None  # None if unknown
    location: Location | None = None


@dataclass(frozen=True)
class LabeledText(_SingleSentence):
    """A text with its label."""

    words: Words
    label: str | None  # None if unknown
    location: Location | None = None


@dataclass(frozen=True)
class TextPair:
    """Two texts with a label for their relation, a similarity score, or both."""

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
class SourceText:
    """A text to translate, with its translation; the text has no words if its line in a file is blank."""

    source: Words
    target: str | None  # None if unknown
    location: Location | None = None

    @property
    def sentences(self) -> tuple[Words, ...]:
        """The words of the text, as the only sentence; nothing for a blank line, whose translation is blank."""
        return (self.source,) if self.source else ()


@dataclass(frozen=True)
class Question:
    """A question about a passage, with the answers and their positions in the passage."""

    id: str
    question: Words
    passage: Words
    text: str  # the passage before tokenization
    offsets: tuple[tuple[int, int], ...]  # character offsets of the passage tokens in ``text``
    answers: tuple[str, ...]  # texts of the correct answers; empty if unknown
    spans: tuple[Span, ...]  # tokens of the passage for each answer that was found in it
    location: Location | None = None

    @property
    def sentences(self) -> tuple[Words, ...]:
        """The words of the passage, and the words of the question."""
        return (self.passage, self.question)


@dataclass(frozen=True)
class Predicate(_SingleSentence):
    """A sentence, one of its predicates, and the semantic roles of this predicate."""

    words: Words
    predicate: int  # index of its token
    roles: tuple[Span, ...] | None  # sorted, without overlaps, without the predicate itself; None if unknown
    location: Location | None = None


@dataclass(frozen=True)
class Document:
    """A document with coreference clusters: sets of spans that refer to the same entity.

    The tokens of a span are counted from the start of the document.
    """

    name: str
    text: tuple[Words, ...]
    clusters: tuple[tuple[Span, ...], ...] | None  # None if unknown
    speakers: Words | None = None  # the speaker of each token; None if unknown
    location: Location | None = None

    @property
    def sentences(self) -> tuple[Words, ...]:
        """The words of each sentence of the document."""
        return self.text


def check_words(examples: Sequence[Example]) -> None:
    """Raise ``DataError`` if a sentence of an example is empty or is not a tuple of strings."""
    for number, example in enumerate(examples, start=1):
        prefix = format_location(example.location) or f"example {number}: "
        sentences: object = example.sentences
        if isinstance(example, SourceText) and example.source == ():
            continue  # a blank line
        if not isinstance(sentences, tuple) or not sentences:
            raise DataError(f"{prefix}expected a tuple of sentences; found {_describe(sentences)}")
        for words in sentences:
            if not isinstance(words, tuple) or not words:
                raise DataError(f"{prefix}expected a sentence as a tuple of words; found {_describe(words)}")
            for word in words:
                if not isinstance(word, str):
                    raise DataError(f"{prefix}expected words of type str; found {_describe(word)}")


def _describe(value: object) -> str:
    return "an empty tuple" if value == () else f"{type(value).__name__} {value!r:.40}"
