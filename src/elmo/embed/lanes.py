"""Lengths of sentences in; lanes in which they are read one after another, all busy to the end, out.

Each step of an LSTM reads a token of every lane. Where a sentence ends, the next one begins in its lane, so
that products keep their number of rows and nothing is computed for padding. Rows of one step lie together,
those of the next behind them; lanes that end first stand last, and fall away.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.embed.kernels import Kernels


@dataclass(frozen=True)
class Switch:
    """Lanes in which one sentence has ended and the next one begins."""

    lanes: Tensor
    ended: Tensor  # sentences, by number
    begun: Tensor


@dataclass(frozen=True)
class Lanes:
    """Which sentence is where: its lane, and the step at which it begins there."""

    lengths: NDArray[np.int64]  # of each sentence
    lane: NDArray[np.int64]
    first_step: NDArray[np.int64]
    counts: list[int]  # lanes that have a token at each step, falling
    begins: list[int]  # the first row of each step
    device: torch.device

    @classmethod
    def of(cls, lengths: Sequence[int], *, max_lanes: int, device: torch.device) -> Lanes:
        """For sentences of at least one token; as many lanes as the longest one leaves busy to the end."""
        sizes = np.asarray(lengths, dtype=np.int64)
        n_lanes = min(max_lanes, len(sizes), -(-int(sizes.sum()) // int(sizes.max())))
        heap = [(0, lane) for lane in range(n_lanes)]  # (tokens so far, lane)
        lane, first_step = np.empty_like(sizes), np.empty_like(sizes)
        for sentence in np.argsort(-sizes, kind="stable").tolist():  # longest first, to the emptiest lane
            load, where = heap[0]
            lane[sentence], first_step[sentence] = where, load
            heapq.heapreplace(heap, (load + lengths[sentence], where))
        loads = np.empty(n_lanes, dtype=np.int64)
        for load, where in heap:
            loads[where] = load
        falling = np.argsort(-loads, kind="stable")
        rank = np.empty_like(falling)
        rank[falling] = np.arange(n_lanes)
        rising = loads[falling[::-1]]
        counts = n_lanes - np.searchsorted(rising, np.arange(rising[-1]), side="right")
        begins = np.cumsum(counts) - counts
        return cls(sizes, rank[lane], first_step, counts.tolist(), begins.tolist(), device)

    @property
    def n_tokens(self) -> int:
        """Rows of all steps together."""
        return self.begins[-1] + self.counts[-1]

    def places(self, *, is_mirrored: bool) -> list[NDArray[np.int64]]:
        """For each sentence the row of each token in its order, also when it is read from its end."""
        begins = np.array(self.begins)
        found = (
            begins[first : first + length] + lane
            for first, length, lane in zip(
                self.first_step.tolist(), self.lengths.tolist(), self.lane.tolist(), strict=True
            )
        )
        return [rows[::-1] if is_mirrored else rows for rows in found]

    @cached_property
    def opening(self) -> Tensor:
        """The sentence that each lane begins with."""
        return self._sentences(np.flatnonzero(self.first_step == 0))

    @cached_property
    def closing(self) -> Tensor:
        """The sentence that each lane ends with."""
        ends = self.first_step + self.lengths
        loads = np.zeros(self.counts[0], dtype=np.int64)
        np.maximum.at(loads, self.lane, ends)
        return self._sentences(np.flatnonzero(ends == loads[self.lane]))

    @cached_property
    def switches(self) -> dict[int, Switch]:
        """By step: before it is read, these lanes change over."""
        order = np.lexsort((self.first_step, self.lane))
        before, after = order[:-1], order[1:]
        is_same = self.lane[before] == self.lane[after]
        before, after = before[is_same], after[is_same]
        if not len(after):
            return {}
        by_step = np.argsort(self.first_step[after], kind="stable")
        before, after = before[by_step], after[by_step]
        steps, starts = np.unique(self.first_step[after], return_index=True)
        pieces = zip(steps.tolist(), np.split(before, starts[1:]), np.split(after, starts[1:]), strict=True)
        return {
            step: Switch(self._tensor(self.lane[begun]), self._tensor(ended), self._tensor(begun))
            for step, ended, begun in pieces
        }

    def blocks(self, kernels: Kernels) -> Iterator[tuple[range, int]]:
        """Steps whose inputs are multiplied at once, and how many rows that takes from the first one's on."""
        first, last_row = 0, 0
        for step, (begin, count) in enumerate(zip(self.begins, self.counts, strict=True)):
            end = begin + kernels.rows(count)
            if step > first and end - self.begins[first] > kernels.max_block:
                yield range(first, step), kernels.block(last_row - self.begins[first])
                first = step
            last_row = max(end, last_row) if step > first else end
        yield range(first, len(self.counts)), kernels.block(last_row - self.begins[first])

    def n_rows(self, kernels: Kernels) -> int:
        """Rows that ``blocks`` reach into: those of all tokens, and some behind the last."""
        return max(self.begins[steps.start] + n_rows for steps, n_rows in self.blocks(kernels))

    def _sentences(self, chosen: NDArray[np.int64]) -> Tensor:
        """One of each lane, in the order of lanes."""
        return self._tensor(chosen[np.argsort(self.lane[chosen])])

    def _tensor(self, numbers: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self.device)
