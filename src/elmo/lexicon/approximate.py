"""An index in, a graph over its vectors that finds most of the nearest usages fast out: an extra."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shutil import disk_usage
from typing import Any

import numpy as np

from elmo.embed.atomic import replacing
from elmo.errors import DataError, MissingExtraError, OutputError
from elmo.formats.files import read_json, reason, shown
from elmo.lexicon.index import Index, Neighbour
from elmo.lexicon.usages import Vectors

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
