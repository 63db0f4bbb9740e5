"""Exact nearest-neighbor search by cosine: every row is compared with every query, block by block.

A matrix product selects the rows that can be among the nearest. Their cosines are then computed pair by pair, so
the result depends neither on the processor nor on the other queries.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.engine.matmul import has_bfloat16
from elmo.lexicon.usages import Vectors, unit_rows

BLOCK_ROWS = 1 << 14  # maximum number of rows whose scores are in memory at once
BLOCK_QUERIES = 1 << 10  # maximum number of queries in one matrix product
MAX_CANDIDATE_SHARE = 0.02  # if a larger fraction of the pairs are candidates, a more precise product is faster
_GROUP_ROWS = 64  # rows per group; a group is first tested by its highest score only
_PAIR_NUMBERS = 1 << 20  # maximum number of values in each factor when cosines are computed pair by pair
_FEW_QUERIES = 4  # up to this number, most of the time is spent on converting rows, so they are not scaled
_CONVERTED_ROWS = 1 << 12  # rows that are converted to float32 at once, so that they stay in the cache
_FLOAT32_ERROR = 2.0**-18  # bound on the error of a float32 product; ten times the largest error observed


@dataclass(frozen=True, eq=False)
class VectorBlock:
    """A block of vectors to search.

    Attributes:
        first: Number of the first row.
        vectors: The vectors (row, width).
        norms: Lengths of the vectors (row,).
        is_excluded: Whether to leave out each row (row,); None to search all rows.
    """

    first: int
    vectors: Vectors
    norms: NDArray[np.float32]
    is_excluded: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class NearestRows:
    """The ``k`` nearest rows of each query, best first.

    Attributes:
        numbers: Numbers of the rows (query, k); -1 if there are fewer than k rows.
        cosines: Cosines of the rows with the query (query, k); -inf if there are fewer than k rows.
    """

    numbers: NDArray[np.int64]
    cosines: NDArray[np.float32]


@torch.inference_mode()
def find_nearest(queries: Vectors, blocks: Iterable[VectorBlock], k: int) -> NearestRows:
    """Find the ``k`` rows of all blocks with the highest cosine to each query (query, width).

    Rows with the same cosine are sorted by their number. The cosine of a zero vector is 0. Rows with NaN
    or infinite numbers are ignored.
    """
    if not len(queries):
        return NearestRows(np.zeros((0, k), np.int64), np.zeros((0, k), np.float32))
    unit_queries = torch.from_numpy(unit_rows(queries, dtype=np.float32))
    parts = [_BestRows(part, k) for part in unit_queries.split(BLOCK_QUERIES)]
    buffers: dict[torch.dtype, Tensor] = {}  # for scores; reused, because allocation is slow
    for block in blocks:
        for begin in range(0, len(block.vectors), BLOCK_ROWS):
            kind = _StoredRows if len(queries) <= _FEW_QUERIES and block.vectors.dtype == np.float16 else _UnitRows
            rows = kind.from_block(block, slice(begin, begin + BLOCK_ROWS), buffers)
            for best in parts:
                best.add(rows, block.first + begin)
    return NearestRows(
        torch.cat([best.numbers for best in parts]).numpy(), torch.cat([best.cosines for best in parts]).numpy()
    )


@dataclass(frozen=True, eq=False)
class _UnitRows:
    """Rows of unit length, with copies in other precisions."""

    unit: Tensor  # (row, width)
    excluded: Tensor  # numbers of the rows to leave out
    buffers: dict[torch.dtype, Tensor]
    _rounded: dict[torch.dtype, Tensor] = field(default_factory=dict)

    @classmethod
    def from_block(cls, block: VectorBlock, rows: slice, buffers: dict[torch.dtype, Tensor]) -> _UnitRows:
        unit = torch.from_numpy(unit_rows(block.vectors[rows], norms=block.norms[rows], dtype=np.float32))
        is_excluded = ~torch.isfinite(unit.sum(dim=1))
        unit[is_excluded] = 0
        if block.is_excluded is not None:
            is_excluded |= torch.from_numpy(block.is_excluded[rows])
        return cls(unit, is_excluded.nonzero()[:, 0], buffers)

    def __len__(self) -> int:
        return len(self.unit)

    def select(self, rows: Tensor) -> Tensor:
        """Return some rows (row, width)."""
        return self.unit[rows]

    def scores(self, queries: Tensor) -> Tensor:
        """Multiply the rows with queries (width, query), in the precision of the queries.

        The result (row, query) is -inf for excluded rows. It is valid until the next call.
        """
        dtype, n = queries.dtype, len(self.unit) * queries.size(1)
        if dtype not in self._rounded:
            self._rounded[dtype] = self.unit.to(dtype)
        buffer = self.buffers.get(dtype)
        if buffer is None or len(buffer) < n:
            buffer = self.buffers[dtype] = queries.new_empty(n)
        scores = torch.mm(self._rounded[dtype], queries, out=buffer[:n].view(len(self.unit), -1))
        scores[self.excluded] = -torch.inf
        return scores


@dataclass(frozen=True, eq=False)
class _StoredRows:
    """Rows in float16 as they are stored, for few queries; only candidates are scaled to unit length."""

    stored: Tensor  # (row, width)
    lengths: Tensor  # (row,)
    excluded: Tensor  # numbers of the rows to leave out
    buffers: dict[torch.dtype, Tensor]

    @classmethod
    def from_block(cls, block: VectorBlock, rows: slice, buffers: dict[torch.dtype, Tensor]) -> _StoredRows:
        lengths = torch.from_numpy(np.array(block.norms[rows], dtype=np.float32))
        is_excluded = ~torch.isfinite(lengths)
        lengths[is_excluded | (lengths <= 0)] = 1
        if block.is_excluded is not None:
            is_excluded |= torch.from_numpy(block.is_excluded[rows])
        stored = torch.from_numpy(np.asarray(_SharedArray(block.vectors[rows])))
        return cls(stored, lengths, is_excluded.nonzero()[:, 0], buffers)

    def __len__(self) -> int:
        return len(self.stored)

    def select(self, rows: Tensor) -> Tensor:
        """Return some rows (row, width) with unit length."""
        return self.stored[rows].float() / self.lengths[rows, None]

    def scores(self, queries: Tensor) -> Tensor:
        """Multiply the rows with queries (width, query); the result (row, query) is -inf for excluded rows."""
        width = self.stored.size(1)
        buffer = self.buffers.setdefault(torch.float16, torch.empty(_CONVERTED_ROWS * width))
        scores = queries.new_empty(len(self), queries.size(1))
        for begin in range(0, len(self), _CONVERTED_ROWS):
            part = self.stored[begin : begin + _CONVERTED_ROWS]
            converted = buffer[: part.numel()].view(part.shape).copy_(part)
            torch.mm(converted, queries.float(), out=scores[begin : begin + len(part)])
        scores /= self.lengths[:, None]
        scores[self.excluded] = -torch.inf
        return scores


class _SharedArray:
    """The memory of an array as if it could be written to: torch warns about a file that is mapped for reading."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array  # keeps the memory
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


class _BestRows:
    """The best rows so far for a batch of queries."""

    def __init__(self, queries: Tensor, k: int) -> None:
        self._queries = queries  # (query, width)
        self.numbers = torch.full((len(queries), k), -1, dtype=torch.int64)
        self.cosines = torch.full((len(queries), k), -torch.inf)
        self._columns = queries.t().contiguous()  # (width, query)
        # With hardware support, a bfloat16 product comes first and is often precise enough.
        self._rough_columns = self._columns.bfloat16() if has_bfloat16() else None
        self._rough_error = _bfloat16_error(len(self._columns))
        self._n_failed = self._n_skipped = 0  # bfloat16 products: consecutive failures, and attempts skipped since then

    def add(self, rows: _UnitRows | _StoredRows, first: int) -> None:
        """Compare a block of rows with the queries; ``first`` is the number of its first row."""
        row, query = self._candidates(rows)
        cosine = self._pair_cosines(rows, row, query)
        is_better = cosine > self.cosines[query, -1]
        if is_better.any():
            self._merge(query[is_better], row[is_better] + first, cosine[is_better])

    def _candidates(self, rows: _UnitRows | _StoredRows) -> tuple[Tensor, Tensor]:
        """Return the numbers of rows and queries of all pairs that can improve on the best rows so far."""
        k, bar = self.cosines.size(1), self.cosines[:, -1]
        limit = round(len(rows) * len(bar) * MAX_CANDIDATE_SHARE)
        if self._rough_columns is not None and isinstance(rows, _UnitRows):
            # If rows lie close together, bfloat16 is not precise enough and is tried less and less often.
            if self._n_skipped < 2**self._n_failed - 1:
                self._n_skipped += 1
            else:
                scores = rows.scores(self._rough_columns)
                pairs = _select(scores, bar, k=k, error=self._rough_error, limit=limit)
                self._n_failed, self._n_skipped = 0 if pairs else min(self._n_failed + 1, 10), 0
                if pairs:
                    return pairs
        scores = rows.scores(self._columns)
        pairs = _select(scores, bar, k=k, error=_FLOAT32_ERROR, limit=limit)
        if pairs:
            return pairs
        row, query = _is_candidate(scores, bar, k=k, error=_FLOAT32_ERROR).nonzero(as_tuple=True)
        return _first_of_ties(scores, row, query, k=k)

    def _pair_cosines(self, rows: _UnitRows | _StoredRows, row: Tensor, query: Tensor) -> Tensor:
        """Compute the cosine of each pair separately, so that it does not depend on other pairs."""
        size = max(1, _PAIR_NUMBERS // max(1, self._queries.size(1)))
        cosines = [
            (rows.select(own) * self._queries[queries]).sum(dim=1)
            for own, queries in zip(row.split(size), query.split(size), strict=True)
        ]
        return torch.cat([self._queries.new_empty(0), *cosines])

    def _merge(self, query: Tensor, number: Tensor, cosine: Tensor) -> None:
        n_queries, k = self.cosines.shape
        old_queries = torch.arange(n_queries)[:, None].expand(-1, k).flatten().numpy()
        queries = np.concatenate([old_queries, query.numpy()])
        numbers = np.concatenate([self.numbers.flatten().numpy(), number.numpy()])
        cosines = np.concatenate([self.cosines.flatten().numpy(), cosine.numpy()])
        order = np.lexsort((numbers, -cosines, queries))
        starts = np.searchsorted(queries[order], np.arange(n_queries))  # each query has k rows or more
        best = order[(starts[:, None] + np.arange(k)).flatten()]
        self.numbers = torch.from_numpy(numbers[best].reshape(n_queries, k))
        self.cosines = torch.from_numpy(cosines[best].reshape(n_queries, k))
        self.numbers[torch.isinf(self.cosines)] = -1


def _select(scores: Tensor, bar: Tensor, *, k: int, error: float, limit: int) -> tuple[Tensor, Tensor] | None:
    """Select all pairs of rows and queries in which the row can be among the ``k`` best rows of the query.

    The scores (row, query) differ from the cosines by at most ``error``. ``bar`` (query,) is the cosine of the
    k-th best row so far, which a row must exceed. Return None if there are more than ``limit`` pairs.
    """
    n_rows, n_queries = scores.shape
    n_grouped, low = n_rows // _GROUP_ROWS * _GROUP_ROWS, bar - error
    # Almost all rows are far from almost all queries, so most groups are excluded by their highest score.
    highest = scores[:n_grouped].view(-1, _GROUP_ROWS, n_queries).amax(dim=1)  # (group, query)
    group, query = (highest > low).nonzero(as_tuple=True)
    if len(group) * 4 > highest.numel():
        is_candidate = _is_candidate(scores, bar, k=k, error=error)
        if int(is_candidate.count_nonzero()) > limit:
            return None
        row, query = is_candidate.nonzero(as_tuple=True)
        return row, query
    row = (group[:, None] * _GROUP_ROWS + torch.arange(_GROUP_ROWS)).flatten()
    query = query[:, None].expand(-1, _GROUP_ROWS).flatten()
    is_above = scores[row, query] > low[query]
    rest_row, rest_query = (scores[n_grouped:] > low).nonzero(as_tuple=True)
    row, query = torch.cat([row[is_above], rest_row + n_grouped]), torch.cat([query[is_above], rest_query])
    return (row, query) if len(row) <= limit else None


def _is_candidate(scores: Tensor, bar: Tensor, *, k: int, error: float) -> Tensor:
    """Return whether each row can be among the ``k`` best of its block and above ``bar`` (row, query)."""
    least = scores.t().float().topk(min(k, len(scores)), dim=1).values[:, -1]
    # Do not use the indices of topk: among equal scores it may return any of them.
    return (scores >= least - 2 * error) & (scores > bar - error)


def _first_of_ties(scores: Tensor, row: Tensor, query: Tensor, *, k: int) -> tuple[Tensor, Tensor]:
    """Keep only the first ``k`` of the rows that have the same score for a query.

    A sentence that occurs a thousand times has a thousand equal rows.
    """
    score = scores[row, query].numpy()
    order = np.lexsort((row.numpy(), score, query.numpy()))
    sorted_query, sorted_score = query.numpy()[order], score[order]
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = (sorted_query[1:] != sorted_query[:-1]) | (sorted_score[1:] != sorted_score[:-1])
    begins = np.flatnonzero(is_new)
    rank = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    kept = torch.from_numpy(order[rank < k])
    return row[kept], query[kept]


def _bfloat16_error(width: int) -> float:
    """Return a bound on the error of a bfloat16 product of unit rows, compared with their cosine.

    Rounding both factors and the result to eight bits has a relative error of at most 2^-8 each, and by the
    Cauchy-Schwarz inequality the absolute values of the products add up to at most 1. The error of summation in
    float32 is far smaller.
    """
    return 3 * 2.0**-8 + 2.0**-14 + width * 2.0**-22
