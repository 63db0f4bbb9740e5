"""A word in a sentence and an index in, the nearest usages out (Peters et al. 2018, Table 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from elmo.errors import ConfigError
from elmo.lexicon.approximate import ApproximateIndex
from elmo.lexicon.index import Index, Neighbour
from elmo.lexicon.marked import marked_usage
from elmo.lexicon.usages import Usage, Vectors, embed_usages

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

Among = Literal["all", "same", "others"]
AMONG = ("all", "same", "others")


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
    graph = ApproximateIndex.open(index) if is_approximate else None
    found: dict[int, list[Neighbour]] = {}
    left, size = list(range(len(usages))), min(2 * k, max(len(index), 1))
    while left:
        if graph is not None:
            rows = graph.nearest(vectors[left], size)
        elif among == "all":
            rows = index.nearest(vectors[left], size)
        else:
            rows = [_among(index, usages[one], vectors[one][None], among, size) for one in left]
        found |= {one: _distinct(usages[one], row) for one, row in zip(left, rows, strict=True)}
        # a sentence may stand in a corpus many times
        left = [one for one in left if len(found[one]) < k and size < len(index)]
        size = min(4 * size, len(index))
    return [Neighbours(usage, tuple(found[one][:k])) for one, usage in enumerate(usages)]


def _among(index: Index, usage: Usage, vector: Vectors, among: Among, size: int) -> list[Neighbour]:
    same = index.numbers(usage.word)
    chosen = {"among": same} if among == "same" else {"left_out": same}
    (found,) = index.nearest(vector, size, **chosen)
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
