"""Vectors in, the same with length one out: products of such rows are cosines.

Vectors in, the nearest of many others by cosine out: all are looked at, a block at a time.

A product of matrices tells which rows may be among the nearest; what is compared in the end is each row's
cosine, added up by itself. So which rows are found depends neither on the processor nor on what else was
asked for.
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

Floats = NDArray[np.floating[Any]]


def unit_rows(vectors: Floats, *, lengths: Floats | None = None, dtype: Any = np.float64) -> NDArray[Any]:
    """The rows (row, width) with length one, as a new array of ``dtype``; a zero row stays zero.

    ``lengths`` (row,), where they are known, are not computed again.
    """
    rows = np.array(vectors, dtype=dtype)
    sizes = np.linalg.norm(rows, axis=1) if lengths is None else np.asarray(lengths)
    rows /= np.where(sizes > 0, sizes, 1.0).astype(rows.dtype)[:, None]
    return rows


BLOCK_ROWS = 1 << 14  # whose similarities to all queries exist at a time
BLOCK_QUERIES = 1 << 10
MEASURED_SHARE = 0.02  # of all pairs, each by itself: beyond it a finer product is faster
_GROUP = 64  # rows of which only the best is held against what was found before
_MEASURED_NUMBERS = 1 << 20  # of rows and queries that are multiplied at a time
_FINE_ERROR = 2.0**-18  # of a product in float32; ten times what is seen


@dataclass(frozen=True, eq=False)
class Block:
    """Some of the vectors to search, (row, width), with their lengths; the first has number ``first``."""

    first: int
    vectors: NDArray[np.floating[Any]]
    norms: NDArray[np.float32]  # (row,)
    is_left_out: NDArray[np.bool_] | None = None  # (row,)


@dataclass(frozen=True, eq=False)
class Found:
    """The nearest rows of each query, best first; -1 and -inf where there are fewer than asked for."""

    numbers: NDArray[np.int64]  # (query, k)
    cosines: NDArray[np.float32]  # (query, k)


@torch.inference_mode()
def nearest(queries: NDArray[np.floating[Any]], blocks: Iterable[Block], k: int) -> Found:
    """The ``k`` rows of all blocks with the highest cosine to each query (query, width).

    Of rows that are equally near, the one that comes first. A vector of zeros is like nothing: cosine 0. One
    that has numbers which are none is not found.
    """
    if not len(queries):
        return Found(np.zeros((0, k), np.int64), np.zeros((0, k), np.float32))
    wanted = torch.from_numpy(unit_rows(queries, dtype=np.float32))
    parts = [_Best(part, k) for part in wanted.split(BLOCK_QUERIES)]
    spaces: dict[torch.dtype, Tensor] = {}  # of scores, for all parts: fresh memory is slow
    for block in blocks:
        for begin in range(0, len(block.vectors), BLOCK_ROWS):
            rows = _Rows.of(block, slice(begin, begin + BLOCK_ROWS), spaces)
            for best in parts:
                best.add(rows, block.first + begin)
    return Found(
        torch.cat([best.numbers for best in parts]).numpy(),
        torch.cat([best.cosines for best in parts]).numpy(),
    )


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of length 1, to be multiplied in one precision or another."""

    unit: Tensor  # (row, width)
    left_out: Tensor  # numbers of rows
    spaces: dict[torch.dtype, Tensor]
    _rounded: dict[torch.dtype, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, block: Block, rows: slice, spaces: dict[torch.dtype, Tensor]) -> _Rows:
        unit = torch.from_numpy(unit_rows(block.vectors[rows], lengths=block.norms[rows], dtype=np.float32))
        is_left_out = ~torch.isfinite(unit.sum(dim=1))
        unit[is_left_out] = 0
        if block.is_left_out is not None:
            is_left_out |= torch.from_numpy(block.is_left_out[rows])
        return cls(unit, is_left_out.nonzero()[:, 0], spaces)

    def times(self, turned: Tensor) -> Tensor:
        """The scores (row, query) with queries (width, query), in their precision; -inf where left out.

        They are written over by the next ones.
        """
        dtype, n = turned.dtype, len(self.unit) * turned.size(1)
        if dtype not in self._rounded:
            self._rounded[dtype] = self.unit.to(dtype)
        space = self.spaces.get(dtype)
        if space is None or len(space) < n:
            space = self.spaces[dtype] = turned.new_empty(n)
        scores = torch.mm(self._rounded[dtype], turned, out=space[:n].view(len(self.unit), -1))
        scores[self.left_out] = -torch.inf
        return scores


class _Best:
    """The best rows so far of some queries."""

    def __init__(self, queries: Tensor, k: int) -> None:
        self._queries = queries  # (query, width)
        self.numbers = torch.full((len(queries), k), -1, dtype=torch.int64)
        self.cosines = torch.full((len(queries), k), -torch.inf)
        turned = queries.t().contiguous()  # (width, query)
        self._looks = [(turned, _FINE_ERROR)]
        if has_bfloat16():  # where there are units for it a rough look comes first, and is often enough
            self._looks.insert(0, (turned.bfloat16(), _rough_error(len(turned))))
        self._n_failed = self._n_skipped = 0  # rough looks

    def add(self, rows: _Rows, first: int) -> None:
        """Look at rows, of which the first has this number."""
        row, query = self._candidates(rows)
        cosine = self._measured(rows.unit, row, query)
        is_above = cosine > self.cosines[query, -1]
        if is_above.any():
            self._merge(query[is_above], row[is_above] + first, cosine[is_above])

    def _candidates(self, rows: _Rows) -> tuple[Tensor, Tensor]:
        """Rows and queries, among them all that may be better than what was found."""
        k, bar = self.cosines.size(1), self.cosines[:, -1]
        *rough, (turned, error) = self._looks
        most = round(len(rows.unit) * len(bar) * MEASURED_SHARE)
        for coarse, far in rough:
            if self._n_skipped < 2**self._n_failed - 1:  # rows that lie close together: fewer and fewer tries
                self._n_skipped += 1
                continue
            found = _passing(rows.times(coarse), bar, k=k, error=far, most=most)
            self._n_failed, self._n_skipped = 0 if found else min(self._n_failed + 1, 10), 0
            if found:
                return found
        scores = rows.times(turned)
        found = _passing(scores, bar, k=k, error=error, most=most)
        return found or _few_of_each(scores, *_all_passing(scores, bar, k=k, error=error), k=k)

    def _measured(self, unit: Tensor, row: Tensor, query: Tensor) -> Tensor:
        """The cosine of each pair, by itself: its bits depend on nothing else."""
        size = max(1, _MEASURED_NUMBERS // max(1, unit.size(1)))
        found = [
            (unit[some] * self._queries[of]).sum(dim=1)
            for some, of in zip(row.split(size), query.split(size), strict=True)
        ]
        return torch.cat([unit.new_empty(0), *found])

    def _merge(self, query: Tensor, number: Tensor, cosine: Tensor) -> None:
        n_queries, k = self.cosines.shape
        every = torch.arange(n_queries)[:, None].expand(-1, k).flatten().numpy()
        queries = np.concatenate([every, query.numpy()])
        numbers = np.concatenate([self.numbers.flatten().numpy(), number.numpy()])
        cosines = np.concatenate([self.cosines.flatten().numpy(), cosine.numpy()])
        order = np.lexsort((numbers, -cosines, queries))
        starts = np.searchsorted(queries[order], np.arange(n_queries))  # each has k or more
        chosen = order[(starts[:, None] + np.arange(k)).flatten()]
        self.numbers = torch.from_numpy(numbers[chosen].reshape(n_queries, k))
        self.cosines = torch.from_numpy(cosines[chosen].reshape(n_queries, k))
        self.numbers[torch.isinf(self.cosines)] = -1


def _passing(scores: Tensor, bar: Tensor, *, k: int, error: float, most: int) -> tuple[Tensor, Tensor] | None:
    """Rows and queries, among them all of the ``k`` best whose cosine lies above the bar (query,).

    Scores (row, query) may be wrong by ``error``. None where more than ``most`` are left.
    """
    n_rows, n_queries = scores.shape
    whole, low = n_rows // _GROUP * _GROUP, bar - error
    # Nearly all rows are far from nearly all queries: a look at the best of each group tells.
    highest = scores[:whole].view(-1, _GROUP, n_queries).amax(dim=1)  # (group, query)
    group, query = (highest > low).nonzero(as_tuple=True)
    if len(group) * 4 > highest.numel():
        is_near = _is_near(scores, bar, k=k, error=error)
        if int(is_near.count_nonzero()) > most:
            return None
        row, query = is_near.nonzero(as_tuple=True)
        return row, query
    row = (group[:, None] * _GROUP + torch.arange(_GROUP)).flatten()
    query = query[:, None].expand(-1, _GROUP).flatten()
    is_above = scores[row, query] > low[query]
    rest_row, rest_query = (scores[whole:] > low).nonzero(as_tuple=True)
    row, query = torch.cat([row[is_above], rest_row + whole]), torch.cat([query[is_above], rest_query])
    return (row, query) if len(row) <= most else None


def _all_passing(scores: Tensor, bar: Tensor, *, k: int, error: float) -> tuple[Tensor, Tensor]:
    """The same, however many."""
    row, query = _is_near(scores, bar, k=k, error=error).nonzero(as_tuple=True)
    return row, query


def _is_near(scores: Tensor, bar: Tensor, *, k: int, error: float) -> Tensor:
    """(row, query)."""
    least = scores.t().float().topk(min(k, len(scores)), dim=1).values[:, -1]
    # not topk's own places: of rows that are equally near it may take any
    return (scores >= least - 2 * error) & (scores > bar - error)


def _few_of_each(scores: Tensor, row: Tensor, query: Tensor, *, k: int) -> tuple[Tensor, Tensor]:
    """Of a query's rows with the same score, the first ``k``: a word may stand there a thousand times."""
    score = scores[row, query].numpy()
    order = np.lexsort((row.numpy(), score, query.numpy()))
    of_query, of_score = query.numpy()[order], score[order]
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = (of_query[1:] != of_query[:-1]) | (of_score[1:] != of_score[:-1])
    begins = np.flatnonzero(is_new)
    place = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    kept = torch.from_numpy(order[place < k])
    return row[kept], query[kept]


def _rough_error(width: int) -> float:
    """The most by which a product of unit rows in bfloat16 may miss the cosine.

    Both factors and the result are rounded to eight bits, by 2^-8 of each at the most, and what two unit
    rows have in common adds up to 1 at the most (Cauchy and Schwarz); adding up in float32 loses far less.
    """
    return 3 * 2.0**-8 + 2.0**-14 + width * 2.0**-22
