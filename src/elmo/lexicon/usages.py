"""Sentences and words in, the uses of these words out: where each stands, and its vector there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from elmo.embed.pieces import pieces
from elmo.errors import ConfigError, DataError, ShapeError
from elmo.lexicon.choice import Choice, Key, Reservoir, entry_key, entry_of, parts_of
from elmo.text.source import Sentence
from elmo.text.tokens import Tokens

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.result import LayerChoice
    from elmo.model.mix import LayerMix

Vectors = NDArray[np.floating[Any]]

__all__ = ["Usage", "Usages", "embed_usages", "entry_key", "find_usages", "respelled"]


@dataclass(frozen=True)
class Usage:
    """A word, or a phrase of several tokens, in a sentence."""

    sentence: Tokens
    begin: int  # the word's first token
    end: int  # one after its last
    place: str = ""  # file:line, or what else the sentence is known by

    def __post_init__(self) -> None:
        if not 0 <= self.begin < self.end <= len(self.sentence):
            raise DataError(
                f"{self.place or 'a usage'}: expected a place within {len(self.sentence)} tokens, "
                f"found {self.begin}..{self.end}"
            )

    @property
    def word(self) -> str:
        """The word as it is spelled here."""
        return " ".join(self.sentence.tokens[self.begin : self.end])

    def parts(self) -> tuple[str, str, str]:
        """The sentence as text: what stands before the word, the word, and what stands after it."""
        tokens, text, offsets = self.sentence.tokens, self.sentence.text, self.sentence.offsets
        if text is not None and offsets is not None:
            begin, end = offsets[self.begin][0], offsets[self.end - 1][1]
            return text[:begin], text[begin:end], text[end:]
        before, after = tokens[: self.begin], tokens[self.end :]
        return "".join(f"{t} " for t in before), self.word, "".join(f" {t}" for t in after)


@dataclass(frozen=True, eq=False)
class Usages:
    """Uses of words with their vectors: row k of ``vectors`` (usage, width) belongs to item k."""

    items: tuple[Usage, ...]
    vectors: Vectors

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or len(self.vectors) != len(self.items):
            raise ShapeError(
                f"expected vectors (usage, width) of {len(self.items)} usages, found {self.vectors.shape}"
            )

    def __len__(self) -> int:
        return len(self.items)


def find_usages(
    sentences: Iterable[Sentence], words: Sequence[str], *, key: Key, limit: int | None = None, seed: int = 0
) -> dict[str, list[Usage]]:
    """The uses of each word, in the order of the text; of more than ``limit``, a fair sample.

    A word may be a phrase: its parts, cut at spaces, are tokens that follow each other.
    """
    entries = {word: entry_of(word, key) for word in words}
    samples = {
        entry: Reservoir[Usage](limit, seed=seed, entry=entry) for entry in dict.fromkeys(entries.values())
    }
    choice = Choice(words, key=key)
    for sentence in sentences:
        for (begin, end), entry in choice.found(sentence.tokens.tokens):
            samples[entry].add(Usage(sentence.tokens, begin, end, sentence.place))
    return {word: samples[entry].kept() for word, entry in entries.items()}


def respelled(usage: Usage, word: str) -> Usage:
    """The usage as if its word were spelled like this.

    Of usages that differ in spelling (Bank, banks), the spelling is what their vectors tell first; Laicher et
    al. (2021) let a model read every usage with the word's lemma in its place, and senses show better.
    """
    parts = parts_of(word)
    tokens = usage.sentence.tokens
    if tokens[usage.begin : usage.end] == parts:
        return usage
    changed = (*tokens[: usage.begin], *parts, *tokens[usage.end :])
    return Usage(Tokens.given(changed), usage.begin, usage.begin + len(parts), usage.place)


def embed_usages(
    elmo: Elmo,
    usages: Sequence[Usage],
    *,
    layers: LayerChoice | int | LayerMix = "average",
    start: Any = "zero",
    on_progress: Callable[[int], None] | None = None,
) -> Usages:
    """The usages with their vectors; a phrase has the mean of its tokens', a sentence is read once.

    ``on_progress`` hears how many usages are done.
    """
    if layers == "all":
        raise ConfigError("a usage has one vector: layers must be average, top, concat or a number, not all")
    rows: list[Vectors] = []
    for chunk in _by_sentence(usages):
        encoded = elmo.encode([same[0].sentence for same in chunk], layers=layers, start=start)
        for encoding, same in zip(encoded, chunk, strict=True):
            rows += [cast("Vectors", encoding.span(usage.begin, usage.end)) for usage in same]
        if on_progress is not None:
            on_progress(len(rows))
    if rows:
        return Usages(tuple(usages), np.stack(rows))
    width = elmo.encode([[]], layers=layers)[0].vectors.shape[-1]
    return Usages((), np.zeros((0, width), dtype=np.float32))


def _by_sentence(usages: Sequence[Usage]) -> Iterator[list[list[Usage]]]:
    """Lists of usages of one and the same sentence, gathered into pieces that are read at once."""
    same = [list(group) for _, group in groupby(usages, key=lambda usage: id(usage.sentence))]
    at = 0
    for piece in pieces([group[0].sentence for group in same], batch_size=None):
        yield same[at : at + len(piece)]
        at += len(piece)
