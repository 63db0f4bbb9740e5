"""Vectors in, the nearest of many others by cosine out: all are looked at, a block at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.lexicon.unit_rows import unit_rows

BLOCK_ROWS = 1 << 14  # whose similarities to all queries exist at a time
BLOCK_QUERIES = 1 << 10
_GROUP = 64  # rows of which only the best is held against what was found before


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

    Of rows that are equally near, the one that comes first. A vector of zeros is like nothing: cosine 0.
    """
    if not len(queries):
        return Found(np.zeros((0, k), np.int64), np.zeros((0, k), np.float32))
    wanted = torch.from_numpy(unit_rows(queries, dtype=np.float32))
    parts = [_Best(part, k) for part in wanted.split(BLOCK_QUERIES)]
    for block in blocks:
        for begin in range(0, len(block.vectors), BLOCK_ROWS):
            rows = slice(begin, begin + BLOCK_ROWS)
            unit = torch.from_numpy(
                unit_rows(block.vectors[rows], lengths=block.norms[rows], dtype=np.float32)
            )
            out = None if block.is_left_out is None else torch.from_numpy(block.is_left_out[rows])
            for best in parts:
                best.add(unit, block.first + begin, out)
    return Found(
        torch.cat([best.numbers for best in parts]).numpy(),
        torch.cat([best.cosines for best in parts]).numpy(),
    )


class _Best:
    """The best rows so far of some queries."""

    def __init__(self, queries: Tensor, k: int) -> None:
        self._turned = queries.t().contiguous()  # (width, query)
        self.numbers = torch.full((len(queries), k), -1, dtype=torch.int64)
        self.cosines = torch.full((len(queries), k), -torch.inf)
        self._scores = queries.new_empty(0, len(queries))  # (row, query), kept: fresh memory is slow

    def add(self, unit: Tensor, first: int, left_out: Tensor | None) -> None:
        """Look at rows (row, width) of length 1."""
        if len(unit) > len(self._scores):
            self._scores = unit.new_empty(len(unit), self._turned.size(1))
        scores = torch.mm(unit, self._turned, out=self._scores[: len(unit)])  # (row, query)
        if left_out is not None:
            scores[left_out] = -torch.inf
        n_rows, n_queries = scores.shape
        k = self.cosines.size(1)
        bar = self.cosines[:, -1]  # that a row has to pass
        whole = n_rows // _GROUP * _GROUP
        # Nearly all rows are far from nearly all queries: a look at the best of each group tells.
        highest = scores[:whole].view(-1, _GROUP, n_queries).amax(dim=1)  # (group, query)
        group, query = (highest > bar).nonzero(as_tuple=True)
        if len(group) * 4 > highest.numel():
            least = scores.t().topk(min(k, n_rows), dim=1).values[:, -1]
            # not topk's own places: of rows that are equally near it may take any
            row, query = ((scores >= least) & (scores > bar)).nonzero(as_tuple=True)
            self._merge(query, row + first, scores[row, query])
            return
        row = (group[:, None] * _GROUP + torch.arange(_GROUP)).flatten()
        query = query[:, None].expand(-1, _GROUP).flatten()
        rest_row, rest_query = (scores[whole:] > bar).nonzero(as_tuple=True)
        row, query = torch.cat([row, rest_row + whole]), torch.cat([query, rest_query])
        found = scores[row, query]
        is_above = found > bar[query]
        if is_above.any():
            self._merge(query[is_above], row[is_above] + first, found[is_above])

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
