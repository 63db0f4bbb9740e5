"""Training windows: the inputs and targets of both directions, for each row of the batch.

Each row of a batch reads its own text, ``window`` tokens at a time, and the state of a row is carried from window
to window. After the last sentence of an epoch, a row continues with the first sentence of the next epoch, as in
bilm-tf. No window is padded, and no token is left out.

::

    stream              w1    w2    w3    </S>
    forward   inputs    <S>   w1    w2    w3
              targets   w1    w2    w3    </S>
    backward  inputs    </S>  w3    w2    w1
              targets   w3    w2    w1    <S>

``RowPlan`` decides which text each row reads. It splits the stream at sentence ends into blocks, shuffles the
blocks in every epoch, and splits the result, again at sentence ends, into one part per row. Parts differ in
length, but a row that reads more in one epoch reads less in the next, so rows do not drift apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError
from elmo.train.corpus import BOS, EOS, hash_numbers

_CHUNK_TOKENS = 1024  # number of tokens per row that are prepared at a time
_N_BLOCKS = 1000  # approximate number of blocks
_BLOCK_TOKENS = (64, 2048)  # smallest and largest block size
_SEARCH_TOKENS = 128  # size of the first range that is searched for a sentence end

Ids = NDArray[np.int64]


class Position(NamedTuple):
    """Position of a window in a run: its epoch, and its number within the epoch."""

    epoch: int
    window: int


@dataclass(frozen=True)
class Direction:
    """Inputs and targets of one direction.

    Attributes:
        inputs: (batch, time) Type ids to read.
        targets: (batch, time) Type ids to predict.
        resets: (batch, time) True where the state is set to zero before the token. None if there are no resets.
        positions: (batch, time) Position of each input in its sentence, which transformers need; ``<S>`` has 0.
    """

    inputs: Ids
    targets: Ids
    resets: NDArray[np.bool_] | None = None
    positions: Ids | None = None

    def select_rows(self, rows: slice) -> Direction:
        """Return the inputs and targets of some rows."""
        resets = None if self.resets is None else self.resets[rows]
        positions = None if self.positions is None else self.positions[rows]
        return Direction(self.inputs[rows], self.targets[rows], resets, positions)

    def sentence_numbers(self) -> Ids:
        """Number the sentences of each row, (batch, time). The first one may have begun in an earlier window."""
        return np.cumsum((self.inputs == BOS) | (self.inputs == EOS), axis=1)


@dataclass(frozen=True)
class Window:
    """The inputs and targets of one training step. In each row, both directions read the same sentences.

    Attributes:
        forward: Inputs and targets of the forward direction.
        backward: Inputs and targets of the backward direction.
        position: Position in the run.
        mask: (batch, time) False after the end of a row. None if no row has ended.
    """

    forward: Direction
    backward: Direction
    position: Position
    mask: NDArray[np.bool_] | None = None

    def direction(self, number: int) -> Direction:
        """Return the forward (0) or the backward (1) direction."""
        return self.backward if number else self.forward

    def select_rows(self, rows: slice) -> Window:
        """Return a window with some of the rows."""
        mask = None if self.mask is None else self.mask[rows]
        return Window(self.forward.select_rows(rows), self.backward.select_rows(rows), self.position, mask)

    def with_resets(self, selected: NDArray[np.bool_]) -> Window:
        """Return a window that resets the state at sentence starts where ``selected`` is True.

        Args:
            selected: (direction, batch, time) Whether a sentence that starts at this token starts from a zero state.
        """
        forward = replace(self.forward, resets=selected[0] & (self.forward.inputs == BOS))
        backward = replace(self.backward, resets=selected[1] & (self.backward.inputs == EOS))
        return replace(self, forward=forward, backward=backward)


class Windows:
    """The windows of all epochs, for the whole batch or for the ``rows`` of one process.

    The order of the text depends only on ``seed`` and ``batch_size``. All rows reach the next epoch at almost the same
    time, within about one sentence.

    Args:
        stream: (token,) Type ids; every sentence ends in ``</S>``.
        batch_size: Number of rows.
        window: Number of tokens that each row reads in a window.
        seed: Seed for shuffling the text. None keeps the order: each row reads a contiguous part of the text.
        rows: Rows to read. By default, all rows.
        block_tokens: Size of the blocks that are shuffled. By default, a thousandth of the text, but at least 64 and
            at most 2048 tokens.
        has_positions: Whether windows contain the positions of their inputs.

    Example:
        >>> corpus = build_corpus("corpus.txt", "windows-corpus")
        >>> windows = Windows(corpus.train, batch_size=2, window=5, seed=0)
    """

    def __init__(
        self,
        stream: NDArray[np.uint32],
        *,
        batch_size: int,
        window: int,
        seed: int | None,
        rows: slice | None = None,
        block_tokens: int | None = None,
        has_positions: bool = False,
    ) -> None:
        if window < 1:
            raise ConfigError(f"window must be at least 1; found {window}")
        self.batch_size = batch_size
        self.window = window
        self.row_plan = RowPlan(stream, n_rows=batch_size, seed=seed, block_tokens=block_tokens)
        self.rows = range(batch_size)[rows or slice(None)]
        if not self.rows:
            raise ConfigError(f"rows must contain at least one of the {batch_size} rows of the batch; found {rows}")
        self._total = len(stream)
        self._chunk_windows = max(1, min(_CHUNK_TOKENS, len(stream) // batch_size) // window)
        self._has_positions = has_positions
        self._chunk = -1
        self._arrays: list[Ids] = []  # of the current chunk, see ``both_directions`` and ``both_positions``

    def n_windows(self, epoch: int) -> int:
        """Return the number of windows that begin in an epoch. It may differ by one between epochs."""
        return self._first(epoch + 1) - self._first(epoch)

    def after(self, position: Position) -> Position:
        """Return the position of the next window."""
        return self._position(self._number(position) + 1)

    def at(self, position: Position) -> Window:
        """Return the window at a position. This is fastest if windows are read in order."""
        number = self._number(position)
        if number // self._chunk_windows != self._chunk:
            self._chunk = number // self._chunk_windows
            self._arrays = self._build_chunk(self._chunk * self._chunk_windows * self.window)
        start = number % self._chunk_windows * self.window
        forward_in, forward_out, backward_in, backward_out, *positions = (
            array[:, start : start + self.window].copy() for array in self._arrays
        )
        forward, backward = positions or (None, None)
        return Window(
            Direction(forward_in, forward_out, positions=forward),
            Direction(backward_in, backward_out, positions=backward),
            self._position(number),
        )

    def read(self, start: tuple[int, int] = (0, 0)) -> Iterator[Window]:
        """Yield the windows from position ``start`` on, epoch after epoch, endlessly."""
        position = Position(*start)
        while True:
            window = self.at(position)
            yield window
            position = self.after(window.position)

    def _first(self, epoch: int) -> int:
        """Return the number of the first window of an epoch, counted from the start of the run."""
        return epoch * self._total // (self.batch_size * self.window)

    def _number(self, position: Position) -> int:
        epoch, window = position
        if epoch < 0 or window < 0:
            raise ConfigError(f"position must not be negative; found epoch {epoch}, window {window}")
        return self._first(epoch) + window

    def _position(self, number: int) -> Position:
        # the last epoch that starts at this window or earlier; epochs of a tiny text may have no window
        epoch = -(-(number + 1) * self.batch_size * self.window // self._total) - 1
        return Position(epoch, number - self._first(epoch))

    def _build_chunk(self, start: int) -> list[Ids]:
        """Build the inputs and targets of both directions for each row, from token ``start`` of the row."""
        n_tokens = self._chunk_windows * self.window
        guess = start * self.batch_size // self._total
        pieces: list[NDArray[np.uint32]] = []
        offsets = []  # first token of each row in the concatenated pieces
        length = 0
        for row in self.rows:
            sentences, lead = self._sentences(row, start, start + n_tokens, guess)
            offsets.append(length + lead)
            length += sum(map(len, sentences))
            pieces += sentences
        index = np.array(offsets)[:, None] + np.arange(n_tokens)
        stream = np.concatenate(pieces).astype(np.int64)
        arrays = (*both_directions(stream), *(both_positions(stream) if self._has_positions else ()))
        return [array[index] for array in arrays]

    def _sentences(self, row: int, start: int, end: int, guess: int) -> tuple[list[NDArray[np.uint32]], int]:
        """Return the sentences that contain the tokens ``start`` to ``end`` of a row, and the offset of ``start``."""
        plan = self.row_plan
        epoch = plan.epoch_of(row, start, guess)
        pieces: list[NDArray[np.uint32]] = []
        lead = 0
        while True:
            part = plan.part(epoch, row)
            first = max(0, int(np.searchsorted(part.before, start, side="right")) - 1)
            for k in range(first, len(part.starts)):
                low, high, before = int(part.starts[k]), int(part.ends[k]), int(part.before[k])
                if before >= end:
                    return pieces, lead
                if before < start:
                    begin = plan.sentence_start(low, low + start - before)
                    lead = low + start - before - begin
                    low, before = begin, before + begin - low
                if before + high - low > end:
                    high = plan.sentence_end(low + end - before - 1)
                pieces.append(plan.stream[low:high])
            if part.end >= end:
                return pieces, lead
            epoch += 1


def both_directions(stream: Ids) -> tuple[Ids, Ids, Ids, Ids]:
    """Return forward inputs, forward targets, backward inputs and backward targets of whole sentences, each (time,)."""
    ends = np.flatnonzero(stream == EOS)
    lengths = np.diff(ends, prepend=-1)
    mirrored = np.repeat(2 * ends + 1 - lengths, lengths) - np.arange(len(stream))  # reverses each sentence
    forward_inputs = np.empty_like(stream)
    forward_inputs[0], forward_inputs[1:] = BOS, stream[:-1]
    forward_inputs[ends[:-1] + 1] = BOS
    backward_inputs = stream[mirrored]
    backward_targets = stream[mirrored - 1]
    backward_targets[ends] = BOS
    return forward_inputs, stream, backward_inputs, backward_targets


def both_positions(stream: Ids) -> tuple[Ids, Ids]:
    """Return the positions of forward inputs and backward inputs in their sentences, each (time,)."""
    ends = np.flatnonzero(stream == EOS)
    lengths = np.diff(ends, prepend=-1)
    forward = np.arange(len(stream)) - np.repeat(ends + 1 - lengths, lengths)
    return forward, np.repeat(lengths, lengths) - forward


def sentence_windows(stream: NDArray[np.uint32], *, max_tokens: int) -> Iterator[Window]:
    """Yield windows that read every sentence of the stream once, from its start to its end, each in a row.

    A window has sentences of similar length: at most ``max_tokens`` tokens with padding, or one longer sentence.
    """
    ends = np.flatnonzero(stream == EOS)
    lengths = np.diff(ends, prepend=-1)
    order = np.argsort(-lengths, kind="stable")
    first = number = 0
    while first < len(order):
        longest = int(lengths[order[first]])
        selected = order[first : first + max(1, max_tokens // longest)]
        mask = np.arange(longest) < lengths[selected][:, None]
        tokens = np.concatenate([stream[ends[k] + 1 - lengths[k] : ends[k] + 1] for k in selected]).astype(np.int64)
        padded = []
        for array, fill in zip(
            (*both_directions(tokens), *both_positions(tokens)), (BOS, EOS, EOS, BOS, 0, 0), strict=True
        ):
            rows = np.full(mask.shape, fill, dtype=np.int64)
            rows[mask] = array
            padded.append(rows)
        forward, backward = Direction(*padded[:2], positions=padded[4]), Direction(*padded[2:4], positions=padded[5])
        yield Window(forward, backward, Position(0, number), mask)
        first, number = first + len(selected), number + 1


def evaluation_windows(stream: NDArray[np.uint32], *, batch_size: int, window: int) -> Iterator[Window]:
    """Yield windows that read the whole stream once, in order. Each row reads a contiguous part of the stream.

    Tokens after the end of a row are masked. If there are fewer sentences than ``batch_size``, there are fewer rows.
    """
    n_rows = max(1, min(batch_size, count_sentences(stream, enough=batch_size)))
    windows = Windows(stream, batch_size=n_rows, window=window, seed=None)
    ends = np.array([windows.row_plan.part(0, row).end for row in range(n_rows)])
    for number in range(-(-int(ends.max()) // window)):
        full = windows.at(Position(0, number))
        mask = number * window + np.arange(window) < ends[:, None]
        forward, backward = full.forward, full.backward
        yield Window(
            Direction(np.where(mask, forward.inputs, BOS), np.where(mask, forward.targets, EOS)),
            Direction(np.where(mask, backward.inputs, EOS), np.where(mask, backward.targets, BOS)),
            Position(0, number),
            mask,
        )


def count_sentences(stream: NDArray[np.uint32], *, enough: int) -> int:
    """Count the sentences of a stream. Counting stops after ``enough`` sentences, so the result is a lower bound."""
    n_sentences = 0
    for first in range(0, len(stream), 1 << 20):
        n_sentences += int((stream[first : first + (1 << 20)] == EOS).sum())
        if n_sentences >= enough:
            break
    return n_sentences


@dataclass(frozen=True)
class RowPart:
    """The text that one row reads in one epoch, as slices of the stream with whole sentences.

    Attributes:
        starts: (slice,) Start of each slice in the stream.
        ends: (slice,) End of each slice in the stream.
        before: (slice,) Number of tokens that the row reads before each slice, from the start of the run.
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    before: NDArray[np.int64]

    @property
    def end(self) -> int:
        """Number of tokens that the row has read at the end of this epoch, from the start of the run."""
        return int(self.before[-1] + self.ends[-1] - self.starts[-1])


class RowPlan:
    """Computes the text that each row reads in each epoch, from the stream, the seed and the number of rows."""

    def __init__(
        self, stream: NDArray[np.uint32], *, n_rows: int, seed: int | None, block_tokens: int | None = None
    ) -> None:
        if n_rows < 1:
            raise ConfigError(f"batch_size must be at least 1; found {n_rows}")
        if block_tokens is not None and block_tokens < 1:
            raise ConfigError(f"block_tokens must be at least 1; found {block_tokens}")
        if len(stream) == 0 or stream[-1] != EOS:
            raise DataError("stream must contain at least one sentence and end in </S>")
        n_sentences = count_sentences(stream, enough=n_rows)
        if n_sentences < n_rows:
            problem = f"a batch of {n_rows} rows needs at least {n_rows} sentences; found {n_sentences}"
            raise DataError(f"{problem}; use a smaller batch size or more text")
        self.stream = stream
        self.n_rows = n_rows
        self.seed = seed
        smallest, largest = _BLOCK_TOKENS
        size = block_tokens or min(max(len(stream) // _N_BLOCKS, smallest), largest)
        self._ends = self._block_ends(size)
        self._starts = np.concatenate([[0], self._ends[:-1]])
        self._read = [np.zeros(n_rows, dtype=np.int64)]  # tokens that each row reads before each epoch
        self._epochs: dict[int, list[RowPart]] = {}  # cache of the parts of the last epochs

    def part(self, epoch: int, row: int) -> RowPart:
        """Return the text that a row reads in an epoch."""
        self._read_before(epoch)
        if epoch not in self._epochs:
            self._split_epoch(epoch)
        return self._epochs[epoch][row]

    def epoch_of(self, row: int, position: int, guess: int) -> int:
        """Return the epoch in which a row reads token number ``position``. The search starts at epoch ``guess``."""
        epoch = max(0, guess)
        while epoch > 0 and self._read_before(epoch)[row] > position:
            epoch -= 1
        while self._read_before(epoch + 1)[row] <= position:
            epoch += 1
        return epoch

    def sentence_start(self, start: int, position: int) -> int:
        """Return the start of the sentence that contains ``position`` of the stream, but at least ``start``."""
        width = _SEARCH_TOKENS
        while True:
            low = max(start, position - width)
            ends = np.flatnonzero(self.stream[low:position] == EOS)
            if len(ends):
                return low + int(ends[-1]) + 1
            if low == start:
                return start
            width *= 4

    def sentence_end(self, position: int) -> int:
        """Return the end of the sentence that contains ``position`` of the stream."""
        width = _SEARCH_TOKENS
        while True:
            ends = np.flatnonzero(self.stream[position : position + width] == EOS)
            if len(ends):
                return position + int(ends[0]) + 1
            width *= 4

    def _read_before(self, epoch: int) -> NDArray[np.int64]:
        for earlier in range(len(self._read) - 1, epoch):
            self._split_epoch(earlier)
        return self._read[epoch]

    def _block_ends(self, size: int) -> NDArray[np.int64]:
        ends = []
        end = 0
        while end < len(self.stream):
            end = self.sentence_end(min(end + size, len(self.stream)) - 1)
            ends.append(end)
        return np.array(ends, dtype=np.int64)

    def _block_order(self, epoch: int) -> NDArray[np.int64]:
        numbers = np.arange(len(self._ends))
        if self.seed is None:
            return numbers
        return np.argsort(hash_numbers(self.seed, numbers + (epoch << 40)), kind="stable")

    def _split_epoch(self, epoch: int) -> None:
        """Split the text of an epoch into one part per row, each with at least one sentence."""
        order = self._block_order(epoch)
        starts, ends = self._starts[order], self._ends[order]
        before = np.concatenate([[0], np.cumsum(ends - starts)])  # (block + 1,) tokens of the epoch
        read = self._read[epoch]
        total = len(self.stream)
        rows = np.arange(1, self.n_rows + 1)
        # ideal cuts: the tokens that each row should have read at the end of this epoch, minus those it has read
        ideal = np.cumsum(
            ((epoch + 1) * total * rows) // self.n_rows - ((epoch + 1) * total * (rows - 1)) // self.n_rows - read
        )
        latest = self._latest_cuts(starts, ends, before)
        cuts = [0]
        for row in range(self.n_rows - 1):
            cut = max(int(ideal[row]), cuts[-1] + 1)
            cuts.append(latest[row] if cut >= latest[row] else self._next_cut(cut, starts, before))
        cuts.append(total)
        parts = []
        for row in range(self.n_rows):
            low, high = cuts[row], cuts[row + 1]
            first = int(np.searchsorted(before, low, side="right")) - 1
            last = int(np.searchsorted(before, high, side="left"))
            row_starts, row_ends = starts[first:last].copy(), ends[first:last].copy()
            row_starts[0] += low - before[first]
            row_ends[-1] -= before[last] - high
            passed = np.cumsum(row_ends - row_starts)
            parts.append(RowPart(row_starts, row_ends, read[row] + passed - (row_ends - row_starts)))
        if len(self._read) == epoch + 1:
            self._read.append(np.array([part.end for part in parts]))
        self._epochs = {k: kept for k, kept in self._epochs.items() if abs(k - epoch) <= 1}
        self._epochs[epoch] = parts

    def _next_cut(self, least: int, starts: NDArray[np.int64], before: NDArray[np.int64]) -> int:
        """Return the first sentence end at ``least`` or later in the text of the epoch."""
        block = int(np.searchsorted(before, least - 1, side="right")) - 1
        position = int(starts[block]) + least - 1 - int(before[block])
        return int(before[block]) + self.sentence_end(position) - int(starts[block])

    def _latest_cuts(self, starts: NDArray[np.int64], ends: NDArray[np.int64], before: NDArray[np.int64]) -> list[int]:
        """Return the latest possible cut after each row that leaves one sentence for each later row."""
        cuts: list[int] = []
        block = len(starts)
        while len(cuts) < self.n_rows:
            block -= 1
            inside = np.flatnonzero(self.stream[starts[block] : ends[block]] == EOS) + 1
            cuts = [*(int(before[block]) + inside).tolist(), *cuts]
        return cuts[-self.n_rows :]
