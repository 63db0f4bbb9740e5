"""An index in, a graph over its vectors that finds most of the nearest usages fast out: an extra.

A word in a sentence and an index in, the nearest usages out (Peters et al. 2018, Table 4).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from elmo.errors import ConfigError, DataError, MissingExtraError, OutputError
from elmo.lexicon.index import Index, Neighbour
from elmo.lexicon.usages import Usage, Vectors, embed_usages, marked_usage
from elmo.storage.atomic import replacing
from elmo.storage.files import read_json, reason, shown

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo


NAME, OF = "approximate.usearch", "approximate.json"  # the graph, and the index that it is of
_LIMIT = 1 << 10  # bytes
# Usages of one word lie close together, and a short search may end among those of a wrong one: with usearch's
# 64, one query in a hundred missed most of its ten nearest among 660,000 usages; with 512, none missed two.
_LOOKED_AT = 512
_AT_ONCE = 1 << 13  # usages that are added between two reports


class ApproximateIndex:
    """Cosines are measured anew, so they are exact; that the nearest are all found is not sure."""

    def __init__(self, index: Index, graph: Any) -> None:
        self._index, self._graph = index, graph
        graph.expansion_search = _LOOKED_AT

    @classmethod
    def build(cls, index: Index, *, on_progress: Callable[[int], None] | None = None) -> ApproximateIndex:
        """Make the graph and keep it beside the index; ``on_progress`` hears how many usages are in it."""
        library = _usearch()
        graph = library.Index(ndim=index.width, metric="cos", dtype="f16")
        for begin in range(0, len(index), _AT_ONCE):
            numbers = np.arange(begin, min(begin + _AT_ONCE, len(index)))
            graph.add(numbers, index.vectors(numbers))
            if on_progress is not None:
                on_progress(int(numbers[-1]) + 1)
        with replacing(index.folder / NAME) as temporary:
            try:
                graph.save(str(temporary))
            except RuntimeError as error:  # all that usearch says of a full disk
                free = disk_usage(index.folder).free
                raise OutputError(
                    f"{shown(index.folder / NAME)}: cannot be written: {reason(error)}; the disk has "
                    f"{free:,} bytes left: free some space and run it again"
                ) from error
            (index.folder / OF).unlink(missing_ok=True)  # an older graph is good until here
        with replacing(index.folder / OF) as temporary:
            temporary.write_text(json.dumps({"index": index.digest}) + "\n")
        return cls(index, graph)

    @classmethod
    def open(cls, index: Index) -> ApproximateIndex:
        """The graph that was made before; it stays on disk."""
        library = _usearch()
        path = Path(index.folder) / NAME
        if not path.is_file() or not (path.parent / OF).is_file():
            raise DataError(
                f"{shown(index.folder)}: has no approximate index; make one: elmo index … --approximate"
            )
        if read_json(path.parent / OF, _LIMIT) != {"index": index.digest}:
            raise DataError(
                f"{shown(path)}: the index was made anew since; make this, too: elmo index … --approximate"
            )
        try:
            graph = library.Index.restore(str(path), view=True)
        except (RuntimeError, ValueError, OSError, KeyError) as error:
            raise DataError(f"{shown(path)}: cannot be read: {' '.join(str(error).split())[:200]}") from error
        if graph is None or graph.ndim != index.width or len(graph) != len(index):
            raise DataError(
                f"{shown(path)}: belongs to another index; make it anew: elmo index … --approximate"
            )
        return cls(index, graph)

    def nearest(self, queries: Vectors, k: int = 10) -> list[list[Neighbour]]:
        """As ``Index.nearest``."""
        found: list[list[Neighbour]] = []
        for query in queries:
            keys = np.asarray(self._graph.search(query.astype(np.float32), min(k, len(self._index))).keys)
            found.append(self._index.measured(query, keys.astype(np.int64)))
        return found


def _usearch() -> Any:
    try:
        import usearch.index  # pyright: ignore[reportMissingImports] -- an extra
    except ImportError as error:
        raise MissingExtraError("an approximate index", extra="approximate") from error
    return usearch.index


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
