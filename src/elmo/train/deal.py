"""A stream of sentences in; which stretches of it each row of a batch reads, epoch after epoch, out.

The stream is cut at sentence ends into blocks, which every epoch puts in another order; the whole is then
cut, at sentence ends again, into one part for each row. A row reads its parts without a break: its text is
that of epoch 0, of epoch 1, and so on. Parts cannot all be equally long, but what a row reads too much in one
epoch it reads less in the next: rows do not drift apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError
from elmo.train.scatter import scattered
from elmo.train.word_types import EOS

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
