"""A stream of sentences in; which stretches of it each row of a batch reads, epoch after epoch, out.

The stream is cut at sentence ends into blocks, which every epoch puts in another order; the whole is then
cut, at sentence ends again, into one part for each row. A row reads its parts without a break: its text is
that of epoch 0, of epoch 1, and so on. Parts cannot all be equally long, but what a row reads too much in one
epoch it reads less in the next: rows do not drift apart.

A stream of type ids in, windows of a batch's rows out: inputs and targets of both directions.

Every row reads a text of its own (``elmo.train.windows``), ``n_steps`` tokens in each window, and the model
carries its state from window to window by row. A row never stops: it goes from the last sentence of its part
of an epoch straight on to the first of the next one, as bilm-tf does, so that the state is not reset there
either, no window is padded, and no token is ever left out.

::

    stream              w1    w2    w3    </S>
    forward   inputs    <S>   w1    w2    w3        never </S>
              targets   w1    w2    w3    </S>
    backward  inputs    </S>  w3    w2    w1        never <S>
              targets   w3    w2    w1    <S>
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError
from elmo.train.randomness import scattered
from elmo.train.vocabulary import EOS

_N_BLOCKS = 1000  # about so many in a small text
_BLOCK_TOKENS = (64, 2048)  # the least and the most that is chosen
_SEARCH = 128  # tokens in which a sentence end is looked for at first


@dataclass(frozen=True)
class RowPart:
    """What one row reads in one epoch: stretches of the stream, each of whole sentences."""

    starts: NDArray[np.int64]  # (stretch,) in the stream
    ends: NDArray[np.int64]  # (stretch,) in the stream
    before: NDArray[np.int64]  # (stretch,) tokens of the row's text before it, all epochs counted

    @property
    def end(self) -> int:
        """Tokens of the row's text when the part is read."""
        return int(self.before[-1] + self.ends[-1] - self.starts[-1])


def sentences_in(stream: NDArray[np.uint32], *, enough: int) -> int:
    """How many sentences the stream has; it is not looked at any further than there are ``enough``."""
    n_sentences = 0
    for first in range(0, len(stream), 1 << 20):
        n_sentences += int((stream[first : first + (1 << 20)] == EOS).sum())
        if n_sentences >= enough:
            break
    return n_sentences


class Deal:
    """The parts of every row; a function of the stream, the seed and the number of rows alone."""

    def __init__(
        self, stream: NDArray[np.uint32], *, n_rows: int, seed: int | None, block_tokens: int | None = None
    ) -> None:
        if n_rows < 1:
            raise ConfigError(f"rows: expected at least 1, found {n_rows}")
        if block_tokens is not None and block_tokens < 1:
            raise ConfigError(f"block_tokens: expected at least 1, found {block_tokens}")
        if len(stream) == 0 or stream[-1] != EOS:
            raise DataError("stream: expected sentences that end in </S>, found none or one without an end")
        self.stream = stream
        self.n_rows = n_rows
        self.seed = seed
        least, most = _BLOCK_TOKENS
        size = block_tokens or min(max(len(stream) // _N_BLOCKS, least), most)
        self._ends = self._block_ends(size)
        self._starts = np.concatenate([[0], self._ends[:-1]])
        self._refuse_too_few()
        self._read = [np.zeros(n_rows, dtype=np.int64)]  # (epoch, row): tokens of the row's text before it
        self._epochs: dict[int, list[RowPart]] = {}  # the last two

    def part(self, epoch: int, row: int) -> RowPart:
        """What a row reads in an epoch."""
        for earlier in range(len(self._read) - 1, epoch):
            self._deal(earlier)
        if epoch not in self._epochs:
            self._deal(epoch)
        return self._epochs[epoch][row]

    def epoch_of(self, row: int, position: int, guess: int) -> int:
        """The epoch in which a row reads its ``position``-th token; it is near ``guess``."""
        epoch = max(0, guess)
        while epoch > 0 and self._read_before(epoch)[row] > position:
            epoch -= 1
        while self._read_before(epoch + 1)[row] <= position:
            epoch += 1
        return epoch

    def sentence_start(self, start: int, position: int) -> int:
        """Where the sentence around ``position`` of the stream begins, not before ``start``."""
        width = _SEARCH
        while True:
            low = max(start, position - width)
            found = np.flatnonzero(self.stream[low:position] == EOS)
            if len(found):
                return low + int(found[-1]) + 1
            if low == start:
                return start
            width *= 4

    def sentence_end(self, position: int) -> int:
        """Where the sentence around ``position`` of the stream ends."""
        width = _SEARCH
        while True:
            found = np.flatnonzero(self.stream[position : position + width] == EOS)
            if len(found):
                return position + int(found[0]) + 1
            width *= 4

    def _read_before(self, epoch: int) -> NDArray[np.int64]:
        for earlier in range(len(self._read) - 1, epoch):
            self._deal(earlier)
        return self._read[epoch]

    def _block_ends(self, size: int) -> NDArray[np.int64]:
        ends = []
        end = 0
        while end < len(self.stream):
            end = self.sentence_end(min(end + size, len(self.stream)) - 1)
            ends.append(end)
        return np.array(ends, dtype=np.int64)

    def _refuse_too_few(self) -> None:
        n_sentences = sentences_in(self.stream, enough=self.n_rows)
        if n_sentences < self.n_rows:
            raise DataError(
                f"{self.n_rows} rows need as many sentences at least, found {n_sentences}; use a smaller "
                "batch or more text"
            )

    def _order(self, epoch: int) -> NDArray[np.int64]:
        numbers = np.arange(len(self._ends))
        if self.seed is None:
            return numbers
        return np.argsort(scattered(self.seed, numbers + (epoch << 40)), kind="stable")

    def _deal(self, epoch: int) -> None:
        """Cut an epoch's text into parts; every row gets a sentence at least."""
        order = self._order(epoch)
        starts, ends = self._starts[order], self._ends[order]
        before = np.concatenate([[0], np.cumsum(ends - starts)])  # (block + 1,) tokens of the epoch
        read = self._read[epoch]
        total = len(self.stream)
        rows = np.arange(1, self.n_rows + 1)
        # what each row should have read by the end of this epoch, less what it has
        wanted = np.cumsum(
            ((epoch + 1) * total * rows) // self.n_rows
            - ((epoch + 1) * total * (rows - 1)) // self.n_rows
            - read
        )
        latest = self._last_cuts(starts, ends, before)
        cuts = [0]
        for row in range(self.n_rows - 1):
            least = max(int(wanted[row]), cuts[-1] + 1)
            cuts.append(latest[row] if least >= latest[row] else self._cut(least, starts, before))
        cuts.append(total)
        parts = []
        for row in range(self.n_rows):
            low, high = cuts[row], cuts[row + 1]
            first = int(np.searchsorted(before, low, side="right")) - 1
            last = int(np.searchsorted(before, high, side="left"))
            own_starts, own_ends = starts[first:last].copy(), ends[first:last].copy()
            own_starts[0] += low - before[first]
            own_ends[-1] -= before[last] - high
            passed = np.cumsum(own_ends - own_starts)
            parts.append(RowPart(own_starts, own_ends, read[row] + passed - (own_ends - own_starts)))
        if len(self._read) == epoch + 1:
            self._read.append(np.array([part.end for part in parts]))
        self._epochs = {k: kept for k, kept in self._epochs.items() if abs(k - epoch) <= 1}
        self._epochs[epoch] = parts

    def _cut(self, least: int, starts: NDArray[np.int64], before: NDArray[np.int64]) -> int:
        """The first sentence end of the epoch's text at ``least`` or after it."""
        block = int(np.searchsorted(before, least - 1, side="right")) - 1
        place = int(starts[block]) + least - 1 - int(before[block])
        return int(before[block]) + self.sentence_end(place) - int(starts[block])

    def _last_cuts(
        self, starts: NDArray[np.int64], ends: NDArray[np.int64], before: NDArray[np.int64]
    ) -> list[int]:
        """For each row the last cut after it that leaves a sentence for each of the others."""
        found: list[int] = []
        block = len(starts)
        while len(found) < self.n_rows:
            block -= 1
            inside = np.flatnonzero(self.stream[starts[block] : ends[block]] == EOS) + 1
            found = [*(int(before[block]) + inside).tolist(), *found]
        return found[-self.n_rows :]


BOS = 0
_CHUNK_TOKENS = 1024  # of each row, made at once

Ids = NDArray[np.int64]


class Position(NamedTuple):
    """A window of a run: its epoch, and its number in that epoch."""

    epoch: int
    window: int


@dataclass(frozen=True)
class Direction:
    """What one direction reads and what it should say."""

    inputs: Ids  # (batch, time)
    targets: Ids  # (batch, time)
    starts: NDArray[np.bool_] | None = None  # (batch, time): True where the state is reset before reading

    def at_rows(self, rows: slice) -> Direction:
        """Select some of its rows."""
        starts = None if self.starts is None else self.starts[rows]
        return Direction(self.inputs[rows], self.targets[rows], starts)


@dataclass(frozen=True)
class Window:
    """One window of a batch; both directions read the same sentences of a row."""

    forward: Direction
    backward: Direction
    position: Position
    mask: NDArray[np.bool_] | None = None  # (batch, time): False where a row has ended; None: nowhere

    def at_rows(self, rows: slice) -> Window:
        """Some of its rows."""
        mask = None if self.mask is None else self.mask[rows]
        return Window(self.forward.at_rows(rows), self.backward.at_rows(rows), self.position, mask)

    def with_starts(self, drawn: NDArray[np.bool_]) -> Window:
        """Reset the state at the sentence starts among the ``drawn`` tokens, (direction, batch, time)."""
        forward = replace(self.forward, starts=drawn[0] & (self.forward.inputs == BOS))
        backward = replace(self.backward, starts=drawn[1] & (self.backward.inputs == EOS))
        return replace(self, forward=forward, backward=backward)


class Windows:
    """The windows of all epochs, for all rows of the batch or for the ``rows`` of one process.

    The order depends on ``seed`` and ``n_rows`` only. With a seed the text is shuffled by blocks of about
    ``block_tokens`` (by default a thousandth of the text, 64 to 2048 tokens), anew for each epoch; without
    one its order is kept, and each row reads a contiguous part of it.

    An epoch has as many windows as the stream fills. Rows do not turn to the next epoch in the same window,
    but within about a sentence of each other.
    """

    def __init__(
        self,
        stream: NDArray[np.uint32],
        *,
        n_rows: int,
        n_steps: int,
        seed: int | None,
        rows: slice | None = None,
        block_tokens: int | None = None,
    ) -> None:
        if n_steps < 1:
            raise ConfigError(f"steps: expected at least 1, found {n_steps}")
        self.n_rows = n_rows
        self.n_steps = n_steps
        self.deal = Deal(stream, n_rows=n_rows, seed=seed, block_tokens=block_tokens)
        self.rows = range(n_rows)[rows or slice(None)]
        if not self.rows:
            raise ConfigError(f"rows: expected some of the batch's {n_rows}, found none in {rows}")
        self._total = len(stream)
        self._per_chunk = max(1, min(_CHUNK_TOKENS, len(stream) // n_rows) // n_steps)
        self._chunk = -1
        self._made: tuple[Ids, Ids, Ids, Ids] | None = None

    def n_windows(self, epoch: int) -> int:
        """How many windows begin in an epoch; epochs may differ by one."""
        return self._first(epoch + 1) - self._first(epoch)

    def after(self, position: Position) -> Position:
        """The position of the next window."""
        return self._position(self._number(position) + 1)

    def at(self, position: Position) -> Window:
        """The window at a position; quickest when positions come in order."""
        number = self._number(position)
        if number // self._per_chunk != self._chunk or self._made is None:
            self._chunk = number // self._per_chunk
            self._made = self._make(self._chunk * self._per_chunk * self.n_steps)
        start = number % self._per_chunk * self.n_steps
        arrays = [array[:, start : start + self.n_steps].copy() for array in self._made]
        fi, ft, bi, bt = arrays
        return Window(Direction(fi, ft), Direction(bi, bt), self._position(number))

    def read(self, start: tuple[int, int] = (0, 0)) -> Iterator[Window]:
        """The windows from a position on, without end."""
        position = Position(*start)
        while True:
            window = self.at(position)
            yield window
            position = self.after(window.position)

    def _first(self, epoch: int) -> int:
        """The number of an epoch's first window, all epochs counted."""
        return epoch * self._total // (self.n_rows * self.n_steps)

    def _number(self, position: Position) -> int:
        epoch, window = position
        if epoch < 0 or window < 0:
            raise ConfigError(f"position: expected numbers from 0, found epoch {epoch}, window {window}")
        return self._first(epoch) + window

    def _position(self, number: int) -> Position:
        # the last epoch whose first window is not after it; an epoch of a tiny text may have no window
        epoch = -(-(number + 1) * self.n_rows * self.n_steps // self._total) - 1
        return Position(epoch, number - self._first(epoch))

    def _make(self, start: int) -> tuple[Ids, Ids, Ids, Ids]:
        """Inputs and targets of both directions for the tokens from ``start`` on of each row's text."""
        n_tokens = self._per_chunk * self.n_steps
        guess = start * self.n_rows // self._total
        pieces: list[NDArray[np.uint32]] = []
        offsets = []  # of each row's first token among the pieces
        length = 0
        for row in self.rows:
            found, lead = self._sentences(row, start, start + n_tokens, guess)
            offsets.append(length + lead)
            length += sum(map(len, found))
            pieces += found
        both = both_directions(np.concatenate(pieces).astype(np.int64))
        index = np.array(offsets)[:, None] + np.arange(n_tokens)
        fi, ft, bi, bt = (array[index] for array in both)
        return fi, ft, bi, bt

    def _sentences(self, row: int, start: int, end: int, guess: int) -> tuple[list[NDArray[np.uint32]], int]:
        """The whole sentences that hold a row's tokens ``start … end``; how far into them ``start`` is."""
        deal = self.deal
        epoch = deal.epoch_of(row, start, guess)
        pieces: list[NDArray[np.uint32]] = []
        lead = 0
        while True:
            part = deal.part(epoch, row)
            first = max(0, int(np.searchsorted(part.before, start, side="right")) - 1)
            for k in range(first, len(part.starts)):
                low, high, before = int(part.starts[k]), int(part.ends[k]), int(part.before[k])
                if before >= end:
                    return pieces, lead
                if before < start:
                    begin = deal.sentence_start(low, low + start - before)
                    lead = low + start - before - begin
                    low, before = begin, before + begin - low
                if before + high - low > end:
                    high = deal.sentence_end(low + end - before - 1)
                pieces.append(deal.stream[low:high])
            if part.end >= end:
                return pieces, lead
            epoch += 1


def both_directions(stream: Ids) -> tuple[Ids, Ids, Ids, Ids]:
    """Forward inputs and targets, backward inputs and targets of whole sentences, (time,) each."""
    ends = np.flatnonzero(stream == EOS)
    lengths = np.diff(ends, prepend=-1)
    mirrored = np.repeat(2 * ends + 1 - lengths, lengths) - np.arange(len(stream))  # within its sentence
    forward_inputs = np.empty_like(stream)
    forward_inputs[0], forward_inputs[1:] = BOS, stream[:-1]
    forward_inputs[ends[:-1] + 1] = BOS
    backward_inputs = stream[mirrored]
    backward_targets = stream[mirrored - 1]
    backward_targets[ends] = BOS
    return forward_inputs, stream, backward_inputs, backward_targets


def evaluation_windows(stream: NDArray[np.uint32], *, n_rows: int, n_steps: int) -> Iterator[Window]:
    """The whole stream once, in order, nothing left out: each row has a contiguous part of it.

    Rows that have ended are masked. There are fewer rows when the stream has fewer sentences.
    """
    n_rows = max(1, min(n_rows, sentences_in(stream, enough=n_rows)))
    windows = Windows(stream, n_rows=n_rows, n_steps=n_steps, seed=None)
    ends = np.array([windows.deal.part(0, row).end for row in range(n_rows)])
    for number in range(-(-int(ends.max()) // n_steps)):
        window = windows.at(Position(0, number))
        mask = number * n_steps + np.arange(n_steps) < ends[:, None]
        yield Window(
            Direction(
                np.where(mask, window.forward.inputs, BOS), np.where(mask, window.forward.targets, EOS)
            ),
            Direction(
                np.where(mask, window.backward.inputs, EOS), np.where(mask, window.backward.targets, BOS)
            ),
            Position(0, number),
            mask,
        )
