"""Find the usages of an index that are nearest to a word in context (Peters et al. 2018, Table 4).

The search is exact by default. An ``ApproximateIndex`` is faster but may miss some of the nearest usages; it
needs the optional library usearch. A ``LanceIndex`` is for corpora beyond memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from elmo.errors import ConfigError, DataError, OutputError, importing_extra
from elmo.lexicon.index import Index, Neighbor
from elmo.lexicon.lance import LanceIndex, is_stored
from elmo.lexicon.usages import Usage, Vectors, embed_usages, find_marked_usage
from elmo.storage.atomic import atomic_file
from elmo.storage.files import format_error, format_path, read_json

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

Among = Literal["all", "same", "others"]
AMONG = ("all", "same", "others")


@dataclass(frozen=True)
class Neighbors:
    """A usage and its nearest neighbors, best first.

    Attributes:
        usage: The usage that was searched for.
        items: Its neighbors, the best first.
    """

    usage: Usage
    items: tuple[Neighbor, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the result as a dictionary of JSON values."""
        return {
            "word": self.usage.word,
            "sentence": "".join(self.usage.parts()),
            "neighbors": [
                {
                    "similarity": round(neighbor.similarity, 6),
                    "word": neighbor.usage.word,
                    "place": neighbor.usage.place,
                    "parts": list(neighbor.usage.parts()),
                }
                for neighbor in self.items
            ],
        }


def find_neighbors(
    elmo: Elmo,
    index: Index | str | Path,
    sentences: Sequence[str | Sequence[str]],
    *,
    word: str | None = None,
    k: int = 10,
    among: Among = "all",
    approximate: bool = False,
) -> list[Neighbors]:
    """Find the usages of an index that are nearest to the marked word of each sentence.

    If a sentence occurs several times in the corpus, each of its usages is returned only once. If the corpus
    contains the sentence of the query, the query itself is left out.

    Args:
        elmo: The model that built the index.
        index: An index, or its folder.
        sentences: Sentences in which the word is marked like ``[[this]]``.
        word: The word to search for in sentences without a mark.
        k: Number of neighbors.
        among: Search the usages of all words, of the same word, or of other words.
        approximate: Use the approximate index or the Lance table, which are faster but may miss some neighbors.

    Example:
        >>> index = build_index(IndexJob(("corpus.txt",), Path("near")), elmo)
        >>> (neighbors,) = find_neighbors(elmo, index, ["My [[bank]] lent me money."], k=2, among="same")
        >>> [item.usage.word for item in neighbors.items]
        ['bank', 'bank']
    """
    if among not in AMONG:
        raise ConfigError(f"among must be all, same or others; found {among!r:.40}")
    if approximate and among != "all":
        raise ConfigError(f"among must be 'all' for an approximate search; found {among!r}")
    if k < 1:
        raise ConfigError(f"k must be at least 1; found {k}")
    index = index if isinstance(index, Index) else Index(index)
    index.check_model(elmo)
    usages = [
        find_marked_usage(elmo.tokenizer, sentence, word, number=number)
        for number, sentence in enumerate(sentences, start=1)
    ]
    vectors = embed_usages(elmo, usages, layers=index.layers, start=index.start).vectors
    graph = _open_approximate(index) if approximate else None
    neighbors: dict[int, list[Neighbor]] = {}
    pending, size = list(range(len(usages))), min(2 * k, max(len(index), 1))
    while pending:
        if graph is not None:
            rows = graph.nearest(vectors[pending], size)
        elif among == "all":
            rows = index.nearest(vectors[pending], size)
        else:
            rows = [_nearest_among(index, usages[n], vectors[n][None], among, size) for n in pending]
        neighbors |= {n: _drop_duplicates(usages[n], row) for n, row in zip(pending, rows, strict=True)}
        # A sentence may occur many times in the corpus: search more usages until k different ones are found.
        pending = [n for n in pending if len(neighbors[n]) < k and size < len(index)]
        size = min(4 * size, len(index))
    return [Neighbors(usage, tuple(neighbors[n][:k])) for n, usage in enumerate(usages)]


def _open_approximate(index: Index) -> ApproximateIndex | LanceIndex:
    if is_stored(index) and not (index.folder / GRAPH_DESCRIPTION).is_file():
        return LanceIndex.open(index)
    return ApproximateIndex.open(index)


def _nearest_among(index: Index, usage: Usage, query: Vectors, among: Among, size: int) -> list[Neighbor]:
    same = index.numbers(usage.word)
    (neighbors,) = index.nearest(query, size, **({"among": same} if among == "same" else {"exclude": same}))
    return neighbors


def _drop_duplicates(usage: Usage, neighbors: Sequence[Neighbor]) -> list[Neighbor]:
    """Keep the first of several equal usages, and drop usages that are equal to the query."""
    by_key: dict[tuple[tuple[str, ...], int], Neighbor] = {}
    for neighbor in neighbors:
        by_key.setdefault((neighbor.usage.sentence.tokens, neighbor.usage.begin), neighbor)
    by_key.pop((usage.sentence.tokens, usage.begin), None)
    return list(by_key.values())


# --- Approximate search -----------------------------------------------------------------------------

GRAPH, GRAPH_DESCRIPTION = "approximate.usearch", "approximate.json"
_MAX_DESCRIPTION_BYTES = 1 << 10
# The usages of a word lie close together, so a short search may end among the usages of a wrong word. Among
# 660,000 usages, one query in a hundred missed most of its ten nearest with usearch's default expansion of 64;
# with 512, no query missed more than one.
_EXPANSION = 512
_BATCH = 1 << 13  # number of usages to add between two calls of on_progress


class ApproximateIndex:
    """A graph for approximate search in an index. Its cosines are exact, but it may miss some neighbors.

    Args:
        index: The index.
        graph: The graph of its usages; see ``build`` and ``open``.

    Example:
        >>> index = build_index(IndexJob(("corpus.txt",), Path("graph"), approximate=True), elmo)
        >>> approximate = ApproximateIndex.open(index)
    """

    def __init__(self, index: Index, graph: Any) -> None:
        self._index, self._graph = index, graph
        graph.expansion_search = _EXPANSION

    @classmethod
    def build(cls, index: Index, *, on_progress: Callable[[int, int], None] | None = None) -> ApproximateIndex:
        """Build the graph and save it in the folder of the index.

        ``on_progress`` is called with the number of usages in the graph and the total number of usages.
        """
        graph = _import_usearch().Index(ndim=index.width, metric="cos", dtype="f16")
        for begin in range(0, len(index), _BATCH):
            numbers = np.arange(begin, min(begin + _BATCH, len(index)))
            graph.add(numbers, index.vectors(numbers), threads=1)  # with several, each run gives another graph
            if on_progress is not None:
                on_progress(int(numbers[-1]) + 1, len(index))
        with atomic_file(index.folder / GRAPH) as temporary:
            try:
                graph.save(str(temporary))
            except RuntimeError as error:  # usearch raises it if the disk is full
                raise OutputError(
                    f"cannot write {format_path(index.folder / GRAPH)}: {format_error(error)}; the disk has "
                    f"{disk_usage(index.folder).free:,} bytes left: free some space and run the command again"
                ) from error
            (index.folder / GRAPH_DESCRIPTION).unlink(missing_ok=True)  # it describes an older graph
        with atomic_file(index.folder / GRAPH_DESCRIPTION) as temporary:
            temporary.write_text(json.dumps({"index": index.digest}) + "\n")
        return cls(index, graph)

    @classmethod
    def open(cls, index: Index) -> ApproximateIndex:
        """Open the graph of an index without reading it into memory."""
        library = _import_usearch()
        path, description = index.folder / GRAPH, index.folder / GRAPH_DESCRIPTION
        if not path.is_file() or not description.is_file():
            raise DataError(
                f"{format_path(index.folder)}: expected an approximate index, found none; "
                "build one with: elmo index … --approximate"
            )
        if read_json(description, _MAX_DESCRIPTION_BYTES) != {"index": index.digest}:
            raise DataError(
                f"cannot use {format_path(path)}: it was built for an older index; build it again with: "
                "elmo index … --approximate"
            )
        try:
            graph = library.Index.restore(str(path), view=True)
        except (RuntimeError, ValueError, OSError, KeyError) as error:
            raise DataError(f"cannot read {format_path(path)}: {' '.join(str(error).split())[:200]}") from error
        if graph is None or graph.ndim != index.width or len(graph) != len(index):
            raise DataError(
                f"cannot use {format_path(path)}: it belongs to another index; build it again with: "
                "elmo index … --approximate"
            )
        return cls(index, graph)

    def nearest(self, queries: Vectors, k: int = 10) -> list[list[Neighbor]]:
        """Find the usages nearest to each query (query, width), like ``Index.nearest``."""
        size = min(k, len(self._index))
        keys = [np.asarray(self._graph.search(query.astype(np.float32), size).keys) for query in queries]
        return [self._index.rank(query, numbers.astype(np.int64)) for query, numbers in zip(queries, keys, strict=True)]


def _import_usearch() -> Any:
    with importing_extra("an approximate index", extra="approximate"):
        import usearch.index  # pyright: ignore[reportMissingImports] -- an extra
    return usearch.index
