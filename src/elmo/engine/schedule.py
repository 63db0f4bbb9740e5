"""A schedule for reading sentences of different lengths in a batch without padding.

Each sentence is assigned to a slot of the batch. When a sentence ends, the next one starts in its slot at the
next step, so products keep their number of rows and no padding is computed. As in torch's
``PackedSequence``, the rows of one step are consecutive, followed by those of the next step. Slots that end
first have the highest numbers, so the batch shrinks at its end.
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

from elmo.engine.compiled import Library, Schedule
from elmo.engine.matmul import BLOCK_ROWS, Kernels


@dataclass(frozen=True)
class SlotChange:
    """Slots in which one sentence ended and the next one starts; sentences are given by index."""

    slots: Tensor
    ended: Tensor
    started: Tensor


@dataclass(frozen=True)
class BatchSchedule:
    """The slot of each sentence, and the step at which it starts."""

    lengths: NDArray[np.int64]  # (sentence,)
    slot: NDArray[np.int64]  # (sentence,)
    first_step: NDArray[np.int64]  # (sentence,)
    batch_sizes: list[int]  # number of slots with a token at each step, falling
    offsets: list[int]  # index of the first row of each step
    device: torch.device

    @classmethod
    def build(cls, lengths: Sequence[int], *, max_slots: int, device: torch.device) -> BatchSchedule:
        """Schedule sentences of at least one token; the longest sentence limits the number of slots."""
        sizes = np.asarray(lengths, dtype=np.int64)
        n_slots = min(max_slots, len(sizes), -(-int(sizes.sum()) // int(sizes.max())))
        heap = [(0, slot) for slot in range(n_slots)]  # (number of tokens so far, slot)
        slot, first_step = np.empty_like(sizes), np.empty_like(sizes)
        for sentence in np.argsort(-sizes, kind="stable").tolist():  # longest first, to the emptiest slot
            load, emptiest = heap[0]
            slot[sentence], first_step[sentence] = emptiest, load
            heapq.heapreplace(heap, (load + lengths[sentence], emptiest))
        loads = np.empty(n_slots, dtype=np.int64)
        for load, number in heap:
            loads[number] = load
        falling = np.argsort(-loads, kind="stable")
        rank = np.empty_like(falling)
        rank[falling] = np.arange(n_slots)
        rising = loads[falling[::-1]]
        batch_sizes = n_slots - np.searchsorted(rising, np.arange(rising[-1]), side="right")
        offsets = np.cumsum(batch_sizes) - batch_sizes
        return cls(sizes, rank[slot], first_step, batch_sizes.tolist(), offsets.tolist(), device)

    @property
    def n_tokens(self) -> int:
        """Number of rows of all steps."""
        return self.offsets[-1] + self.batch_sizes[-1]

    @cached_property
    def token_rows(self) -> NDArray[np.int64]:
        """The row of each token, (token,), for all sentences one after the other."""
        steps = np.repeat(self.first_step - self._starts, self.lengths) + np.arange(self.lengths.sum())
        return np.array(self.offsets)[steps] + np.repeat(self.slot, self.lengths)

    @cached_property
    def first_rows(self) -> Tensor:
        """The row of the first token that is read of each sentence, (sentence,)."""
        return self._tensor(self.token_rows[self._starts])

    @cached_property
    def reversed_tokens(self) -> NDArray[np.int64]:
        """The position of each token, (token,), if every sentence is read from its end."""
        return np.repeat(2 * self._starts + self.lengths - 1, self.lengths) - np.arange(self.lengths.sum())

    @property
    def _starts(self) -> NDArray[np.int64]:
        """The position of the first token of each sentence, (sentence,)."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def first_sentences(self) -> Tensor:
        """The first sentence of each slot, (slot,)."""
        return self._by_slot(np.flatnonzero(self.first_step == 0))

    @cached_property
    def last_sentences(self) -> Tensor:
        """The last sentence of each slot, (slot,)."""
        ends = self.first_step + self.lengths
        loads = np.zeros(self.batch_sizes[0], dtype=np.int64)
        np.maximum.at(loads, self.slot, ends)
        return self._by_slot(np.flatnonzero(ends == loads[self.slot]))

    @cached_property
    def slot_changes(self) -> dict[int, SlotChange]:
        """The changes to make before each step."""
        order = np.lexsort((self.first_step, self.slot))
        before, after = order[:-1], order[1:]
        is_same_slot = self.slot[before] == self.slot[after]
        before, after = before[is_same_slot], after[is_same_slot]
        if not len(after):
            return {}
        by_step = np.argsort(self.first_step[after], kind="stable")
        before, after = before[by_step], after[by_step]
        steps, starts = np.unique(self.first_step[after], return_index=True)
        parts = zip(steps.tolist(), np.split(before, starts[1:]), np.split(after, starts[1:]), strict=True)
        return {
            step: SlotChange(self._tensor(self.slot[started]), self._tensor(ended), self._tensor(started))
            for step, ended, started in parts
        }

    @cached_property
    def compiled(self) -> Schedule:
        """The arrays of this schedule for the compiled kernels."""
        changes = self.slot_changes
        counts = [len(changes[step].slots) if step in changes else 0 for step in range(len(self.batch_sizes))]
        parts = [changes[step] for step in sorted(changes)]
        empty = torch.empty(0, dtype=torch.int64)
        arrays = [
            torch.tensor(self.batch_sizes),
            torch.tensor(self.offsets),
            self.first_sentences,
            self.last_sentences,
            torch.tensor([0, *counts]).cumsum(0),
            *(torch.cat([empty, *(getattr(part, name) for part in parts)]) for name in ("slots", "ended", "started")),
        ]
        schedule = Schedule(len(self.batch_sizes), *(array.data_ptr() for array in arrays))
        schedule.memory = arrays  # keeps the arrays as long as the structure that points to them
        return schedule

    def collect(self, states: Tensor, layers: list[Tensor], direction: int, *, library: Library | None) -> None:
        """Copy ``states`` (layer, row, width) to the half of ``layers`` (layer, time, 2 · width) of a direction.

        Sentences lose their boundaries. In direction 1 they were read from the end.
        """
        width = states.size(2)
        if library is not None:
            arrays = (self.token_rows, self.lengths, np.array([out.data_ptr() for out in layers], dtype=np.int64))
            library.call(
                "elmo_collect", *states.shape, states.data_ptr(), direction, len(layers),
                *(array.ctypes.data for array in arrays),
            )  # fmt: skip
            return
        rows = torch.from_numpy(self.token_rows).to(self.device)
        for out, own_rows in zip(layers, rows.split(self.lengths.tolist()), strict=True):
            read = own_rows.flip(0) if direction else own_rows
            out[:, :, direction * width : (direction + 1) * width] = states.index_select(1, read[1:-1])

    def blocks(self, kernels: Kernels) -> Iterator[tuple[range, int]]:
        """Split the steps into blocks whose inputs are multiplied at once.

        Yields the steps of each block and its number of rows, counted from the first row of its first step.
        """
        first, last_row = 0, 0
        for step, (offset, batch_size) in enumerate(zip(self.offsets, self.batch_sizes, strict=True)):
            end = offset + kernels.padded_rows(batch_size)
            if step > first and end - self.offsets[first] > BLOCK_ROWS:
                yield range(first, step), kernels.padded_block(last_row - self.offsets[first])
                first = step
            last_row = max(end, last_row) if step > first else end
        yield range(first, len(self.batch_sizes)), kernels.padded_block(last_row - self.offsets[first])

    def n_rows(self, kernels: Kernels) -> int:
        """Number of rows that the blocks cover: those of all tokens and some after the last."""
        return max(self.offsets[steps.start] + n_rows for steps, n_rows in self.blocks(kernels))

    def _by_slot(self, sentences: NDArray[np.int64]) -> Tensor:
        """Sort sentences, one per slot, by their slot."""
        return self._tensor(sentences[np.argsort(self.slot[sentences])])

    def _tensor(self, numbers: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self.device)
