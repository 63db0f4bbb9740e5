"""A word in a sentence and an index in, the nearest usages out (Peters et al. 2018, Table 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from elmo.errors import ConfigError
from elmo.lexicon.approximate import ApproximateIndex
from elmo.lexicon.index import Index, Neighbour
from elmo.lexicon.marked import marked_usage
from elmo.lexicon.usages import Usage, embed_usages

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

Among = Literal["all", "same", "others"]
AMONG = ("all", "same", "others")
_MORE = 8  # times as many are looked up, since a sentence may stand in a corpus several times


@dataclass(frozen=True)
class Neighbours:
    """A usage and those near it, best first."""

    usage: Usage
    found: tuple[Neighbour, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "word": self.usage.word,
            "sentence": "".join(self.usage.parts()),
            "neighbours": [
                {
                    "similarity": round(one.similarity, 6),
                    "word": one.usage.word,
                    "place": one.usage.place,
                    "parts": list(one.usage.parts()),
                }
                for one in self.found
            ],
        }


def neighbours(
    elmo: Elmo,
    index: Index | str | Path,
    sentences: Sequence[str | Sequence[str]],
    *,
    word: str | None = None,
    k: int = 10,
    among: Among = "all",
    is_approximate: bool = False,
) -> list[Neighbours]:
    """For the word of each sentence, marked like ``[[this]]`` or named, its ``k`` nearest usages.

    ``among`` all words of the index, the ``same`` word, or ``others`` only. The sentence itself, where the
    corpus has it, and sentences that were found before are left out.
    """
    if among not in AMONG:
        raise ConfigError(f"among must be all, same or others, not {among!r:.40}")
    if is_approximate and among != "all":
        raise ConfigError(f"an approximate search looks among all words, not among {among!r}")
    if k < 1:
        raise ConfigError(f"k must be at least 1, found {k}")
    index = index if isinstance(index, Index) else Index(index)
    index.check(elmo)
    usages = [
        marked_usage(elmo.tokenizer, sentence, word, number=number)
        for number, sentence in enumerate(sentences, start=1)
    ]
    vectors = embed_usages(elmo, usages, layers=index.layers, start=index.start).vectors
    if is_approximate:
        rows = ApproximateIndex.open(index).nearest(vectors, _MORE * k)
    elif among == "all":
        rows = index.nearest(vectors, _MORE * k)
    else:
        rows = [
            _among(index, usage, vector[None], among, k)
            for usage, vector in zip(usages, vectors, strict=True)
        ]
    return [
        Neighbours(usage, tuple(_distinct(usage, found)[:k]))
        for usage, found in zip(usages, rows, strict=True)
    ]


def _among(index: Index, usage: Usage, vector: Any, among: Among, k: int) -> list[Neighbour]:
    same = index.numbers(usage.word)
    if among == "same":
        return index.measured(vector[0], same)[: _MORE * k]
    (found,) = index.nearest(vector, _MORE * k, left_out=np.asarray(same))
    return found


def _distinct(usage: Usage, found: Sequence[Neighbour]) -> list[Neighbour]:
    """One of each sentence, and not the sentence that was asked about."""
    seen = {_known_by(usage)}
    kept: list[Neighbour] = []
    for one in found:
        if (name := _known_by(one.usage)) not in seen:
            seen.add(name)
            kept.append(one)
    return kept


def _known_by(usage: Usage) -> tuple[tuple[str, ...], int]:
    return usage.sentence.tokens, usage.begin
