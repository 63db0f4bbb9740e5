"""Store the usages of an index in a Lance table, for approximate search in corpora beyond memory.

Lance keeps the vectors on disk and searches them through an IVF-PQ index: the vectors are divided into partitions, and
each is compressed to one byte per eight values. A query reads the codes of the nearest partitions, takes the best
usages by their codes, and compares the query with the full vectors of these usages. The cosines are exact, but some
neighbors may be missed.

The table is in the folder of the index, as ``usages.lance``, with one row per usage: ``number``, ``word``,
``sentence``, ``begin``, ``end`` (tokens), ``place`` and ``vector``. LanceDB can read it, too. It is
committed every million rows, so that an interrupted build can resume; ``lance.json`` is written last.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo.errors import DataError, OutputError, importing_extra
from elmo.lexicon.index import Index, Neighbor
from elmo.lexicon.usages import Vectors
from elmo.storage.atomic import atomic_file, cannot_write, check_own
from elmo.storage.files import format_error, format_path, read_json

if TYPE_CHECKING:
    import pyarrow

TABLE, TABLE_DESCRIPTION = "usages.lance", "lance.json"
_DIGEST = b"elmo.index"  # metadata of the table: the digest of the index
_MAX_DESCRIPTION_BYTES = 1 << 10
_BATCH = 1 << 13  # rows in memory
_COMMIT = 1 << 20  # rows between two points at which an interrupted build resumes
MIN_ROWS = 1 << 16  # smaller tables are searched row by row, which is exact
PARTITION_ROWS = 1 << 13  # average number of usages per partition
N_PROBES = 32  # partitions that a query reads
REFINE = 20  # full vectors that a query reads, per neighbor
_PARTS = {"data", "_versions", "_indices", "_transactions", "_deletions"}  # folders of a table
_CODE_WIDTH = 8  # values per byte of a compressed vector


class LanceIndex:
    """An approximate index of usages in a Lance table. Its cosines are exact, but it may miss some neighbors.

    Args:
        index: The index.
        table: The Lance table of its usages; see ``build`` and ``open``.

    Example:
        >>> index = build_index(IndexJob(("corpus.txt",), Path("lance"), to="lance"), elmo)
        >>> lance = LanceIndex.open(index)
    """

    def __init__(self, index: Index, table: Any) -> None:
        self._index, self._table = index, table

    @classmethod
    def build(cls, index: Index, *, on_progress: Callable[[int, int], None] | None = None) -> LanceIndex:
        """Write the table to the folder of an index, or resume writing it, and build its vector index.

        ``on_progress`` is called with the number of usages in the table and the total number of usages.
        """
        lance = _import_lance()
        path, description = index.folder / TABLE, index.folder / TABLE_DESCRIPTION
        check_own(path)
        try:
            description.unlink(missing_ok=True)
            table = _open_unfinished(index, path)
            n_rows, least = (0, 1) if table is None else (table.count_rows(), 0)  # an empty index has a table, too
            for begin in range(n_rows, max(len(index), least), _COMMIT):
                numbers = range(begin, min(begin + _COMMIT, len(index)))
                reader = _read_rows(index, numbers, on_progress)
                table = lance.write_dataset(reader, path, mode="append" if begin else "create")
            build_vector_index(table)
        except OSError as error:  # Lance raises it, too
            raise cannot_write(path, error) from error
        with atomic_file(description) as temporary:
            temporary.write_text(json.dumps({"index": index.digest}) + "\n")
        return cls(index, table)

    @classmethod
    def open(cls, index: Index) -> LanceIndex:
        """Open the table of an index."""
        lance = _import_lance()
        path, description = index.folder / TABLE, index.folder / TABLE_DESCRIPTION
        if not is_stored(index):
            raise DataError(
                f"{format_path(index.folder)}: expected {TABLE}, found none; build it with: elmo index … --to lance"
            )
        if read_json(description, _MAX_DESCRIPTION_BYTES) != {"index": index.digest}:
            raise DataError(
                f"cannot use {format_path(path)}: it was built for another index; build it again with: "
                "elmo index … --to lance"
            )
        try:
            table = lance.dataset(path)
            is_whole = table.count_rows() == len(index) and table.schema.field("vector").type.list_size == index.width
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise DataError(f"cannot read {format_path(path)}: {format_error(error)}") from error
        if not is_whole:
            raise DataError(
                f"cannot use {format_path(path)}: it is damaged; build it again with: elmo index … --to lance"
            )
        return cls(index, table)

    def nearest(self, queries: Vectors, k: int = 10) -> list[list[Neighbor]]:
        """Find the usages nearest to each query (query, width), like ``Index.nearest``."""
        size = min(k, len(self._index))
        return [self._index.rank(query, search(self._table, query, size)) for query in queries]


def is_stored(index: Index) -> bool:
    """Return whether the folder of an index has a complete Lance table."""
    return (index.folder / TABLE).is_dir() and (index.folder / TABLE_DESCRIPTION).is_file()


def search(table: Any, query: Vectors, k: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the values of ``number`` of the ``k`` rows nearest to a query (width,), best first."""
    if k < 1:
        return np.zeros(0, np.int64)
    rows = table.to_table(
        columns=["number"],
        nearest={
            "column": "vector", "q": query.astype(np.float32), "k": k, "nprobes": N_PROBES,
            "refine_factor": REFINE, "metric": "cosine",
        },
        disable_scoring_autoprojection=True,  # do not return the distances
    )  # fmt: skip
    return rows["number"].to_numpy()


def build_vector_index(table: Any) -> None:
    """Build the IVF-PQ index of the column ``vector``, unless the table is so small that it needs none."""
    n_rows = table.count_rows()
    if n_rows < MIN_ROWS or table.describe_indices():
        return
    width = table.schema.field("vector").type.list_size
    table.create_index(
        "vector",
        "IVF_PQ",
        metric="cosine",
        num_partitions=max(1, round(n_rows / PARTITION_ROWS)),
        num_sub_vectors=math.gcd(width, max(1, width // _CODE_WIDTH)),
    )


def _open_unfinished(index: Index, path: Path) -> Any:
    """Open the table of an interrupted build; remove a table that belongs to another index."""
    if not path.exists():
        return None
    try:
        table = _import_lance().dataset(path)
        if (table.schema.metadata or {}).get(_DIGEST) == index.digest.encode() and table.count_rows() <= len(index):
            return table
    except (OSError, ValueError):
        pass  # the first write was interrupted
    if not path.is_dir() or {part.name for part in path.iterdir()} - _PARTS:
        raise OutputError(
            f"cannot write {format_path(path)}: it is not a Lance table; remove it, or choose another output"
        )
    shutil.rmtree(path)
    return None


def _read_rows(
    index: Index, numbers: range, on_progress: Callable[[int, int], None] | None
) -> pyarrow.RecordBatchReader:
    """Read usages in batches, so that memory does not depend on their number."""
    import pyarrow as pa

    def read_batch(some: range) -> pyarrow.RecordBatch:
        usages = [index.usage(number) for number in some]
        vectors = index.vectors(some).astype(np.float16).reshape(-1)
        columns = {
            "number": pa.array(some, pa.int64()),
            "word": pa.array([_clean(usage.word) for usage in usages], pa.string()),
            "sentence": pa.array([_clean("".join(usage.parts())) for usage in usages], pa.string()),
            "begin": pa.array([usage.begin for usage in usages], pa.int32()),
            "end": pa.array([usage.end for usage in usages], pa.int32()),
            "place": pa.array([_clean(usage.place) for usage in usages], pa.string()),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors), index.width),
        }
        return pa.record_batch(columns).replace_schema_metadata({_DIGEST: index.digest.encode()})

    def read_batches() -> Iterator[pyarrow.RecordBatch]:
        for begin in range(numbers.start, numbers.stop, _BATCH):
            some = range(begin, min(begin + _BATCH, numbers.stop))
            yield read_batch(some)
            if on_progress is not None:
                on_progress(some.stop, len(index))

    return pa.RecordBatchReader.from_batches(read_batch(range(0)).schema, read_batches())


def _clean(text: str) -> str:
    """Replace lone surrogates, which Arrow cannot store."""
    return text.encode("utf-8", "replace").decode()


def check_library() -> None:
    """Raise ``MissingExtraError`` if Lance is not installed."""
    _import_lance()


def _import_lance() -> Any:
    with importing_extra("a Lance table", extra="lance"):
        import lance  # pyright: ignore[reportMissingImports] -- an extra
    return lance
