"""Steps in, the same steps out, with a bar on stderr that shows how many are done.

Sentences in, as many of them at a time as the network takes, out: memory is theirs, not the text's.

A stream of sentences in, groups of a shard's size out.

Where a group ends depends on the sentences alone, never on when a job was stopped: that is what lets a job
go on to the same bytes.

Lengths of sentences in; lanes in which they are read one after another, all busy to the end, out.

Each step of an LSTM reads a token of every lane. Where a sentence ends, the next one begins in its lane, so
that products keep their number of rows and nothing is computed for padding. Rows of one step lie together,
those of the next behind them; lanes that end first stand last, and fall away.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.engine.matmul import Kernels
from elmo.errors import SentenceTooLongError
from elmo.text.reader import Sentence

T = TypeVar("T")


def track_progress(steps: Sequence[T], description: str, *, is_shown: bool) -> Iterable[T]:
    """The steps, with a bar while they are taken if ``is_shown``."""
    if not is_shown:
        return steps
    from rich.console import Console
    from rich.progress import track

    return track(steps, description=description, console=Console(stderr=True))  # stdout is for results


BATCH_TOKENS = 1 << 14  # read at once, boundaries included, but for one longer sentence

S = TypeVar("S", bound=Sized)


def split_batches(
    sentences: Iterable[S], *, batch_size: int | None, max_tokens: int = BATCH_TOKENS
) -> Iterator[list[S]]:
    """In their order: ``batch_size`` sentences at a time or, by default, as many as ``max_tokens`` hold."""
    held: list[S] = []
    n_tokens = 0
    for sentence in sentences:
        size = len(sentence) + 2  # its boundaries are read as well
        if held and batch_size is None and n_tokens + size > max_tokens:
            yield held
            held, n_tokens = [], 0
        held.append(sentence)
        n_tokens += size
        if len(held) == batch_size:  # at once: the next sentence may still have to be typed
            yield held
            held, n_tokens = [], 0
    if held:
        yield held


MAX_TOKENS = 100_000  # of one sentence
MAX_CHARACTERS = 1 << 26  # of one group's tokens: they are held in memory, however few they are
MAX_SENTENCES = 1 << 18  # of one group: empty lines are sentences too


@dataclass(frozen=True)
class Group:
    """The sentences of one shard."""

    index: int
    first: int  # index of its first sentence
    sentences: tuple[Sentence, ...]
    n_tokens: int
    is_last: bool
    digest: str  # SHA-256 of all sentences up to the last of this group


def split_groups(sentences: Iterable[Sentence], *, max_tokens: int) -> Iterator[Group]:
    """At least one group, each of at most ``max_tokens`` tokens or of one longer sentence."""
    digest = hashlib.sha256()
    index, first, n_tokens, n_characters = 0, 0, 0, 0
    held: list[Sentence] = []
    for sentence in sentences:
        check_length(sentence)
        length = len(sentence.tokens)
        characters = sum(map(len, sentence.tokens.tokens))
        is_full = n_tokens + length > max_tokens or n_characters + characters > MAX_CHARACTERS
        if held and (is_full or len(held) == MAX_SENTENCES):
            yield Group(index, first, tuple(held), n_tokens, is_last=False, digest=digest.hexdigest())
            index, first, n_tokens, n_characters, held = index + 1, first + len(held), 0, 0, []
        held.append(sentence)
        n_tokens += length
        n_characters += characters
        digest.update(_line(sentence))
    yield Group(index, first, tuple(held), n_tokens, is_last=True, digest=digest.hexdigest())


def check_length(sentence: Sentence) -> None:
    """Refuse a sentence whose vectors would not fit."""
    if len(sentence.tokens) > MAX_TOKENS:
        raise SentenceTooLongError(
            f"{sentence.place}: this sentence has {len(sentence.tokens)} tokens, but the limit is "
            f"{MAX_TOKENS}; split it"
        )


def _line(sentence: Sentence) -> bytes:
    """All that the output keeps of a sentence, as one line."""
    tokens = sentence.tokens
    return (
        json.dumps([tokens.tokens, tokens.offsets, sentence.path, sentence.line, sentence.start]).encode()
        + b"\n"
    )


@dataclass(frozen=True)
class Switch:
    """BatchSchedule in which one sentence has ended and the next one begins."""

    lanes: Tensor
    ended: Tensor  # sentences, by number
    begun: Tensor


@dataclass(frozen=True)
class BatchSchedule:
    """Which sentence is where: its lane, and the step at which it begins there."""

    lengths: NDArray[np.int64]  # of each sentence
    lane: NDArray[np.int64]
    first_step: NDArray[np.int64]
    counts: list[int]  # lanes that have a token at each step, falling
    begins: list[int]  # the first row of each step
    device: torch.device

    @classmethod
    def of(cls, lengths: Sequence[int], *, max_lanes: int, device: torch.device) -> BatchSchedule:
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
