"""Words in, a vector for each distinct one out: computed once, and remembered for the next call."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from elmo.embed.kernels import Kernels
from elmo.embed.token_rows import TokenRows, word_lengths
from elmo.text.batch import TokenIds, TokenIndexer

CACHED_WORDS = 50_000  # that are remembered, those read last; 100 MB of vectors at the largest published size
LONGEST_CACHED = 64  # characters of a word that is remembered: spellings take memory as well
FEWEST_TOGETHER = 4  # words that are not worth a thread of their own

RunAll = Callable[[Sequence[Callable[[], Tensor]]], list[Tensor]]


class TokenVectors:
    """The token layer behind a memory for words; several threads may ask at a time."""

    def __init__(
        self,
        indexer: TokenIndexer,
        layer: TokenRows,
        kernels: Kernels,
        *,
        device: torch.device,
        n_cached: int = CACHED_WORDS,
    ) -> None:
        self._indexer = indexer
        self._layer = layer
        self._kernels = kernels
        self._device = device
        self._n_cached = n_cached
        self._lock = threading.Lock()
        self._slots: OrderedDict[str, int] = OrderedDict()  # rows of the table; read last, stands last
        edges = self._compute(indexer.boundaries(), lambda pieces: [piece() for piece in pieces])
        self.boundaries = edges  # (2, width)
        self._table = edges.new_empty(0, edges.size(1))

    def __len__(self) -> int:
        """How many words are remembered."""
        return len(self._slots)

    def forget(self) -> None:
        """Remember no word."""
        with self._lock:
            self._slots.clear()
            self._table = self._table[:0].clone()

    def __call__(self, words: Sequence[str], run_all: RunAll) -> Tensor:
        """The vectors (word, width) of distinct words; ``run_all`` runs independent pieces of work."""
        found = self.boundaries.new_empty(len(words), self.boundaries.size(1))
        with self._lock:
            slots = [self._slots.get(word) for word in words]
            known = [k for k, slot in enumerate(slots) if slot is not None]
            for k in known:
                self._slots.move_to_end(words[k])
            if known:
                rows = self._numbers([slot for slot in slots if slot is not None])
                found.index_copy_(0, self._numbers(known), self._table.index_select(0, rows))
        missing = [k for k, slot in enumerate(slots) if slot is None]
        if missing:
            unknown = [words[k] for k in missing]
            vectors = self._compute(self._indexer.words(unknown), run_all)
            found.index_copy_(0, self._numbers(missing), vectors)
            with self._lock:
                self._remember(unknown, vectors)
        return found

    def _compute(self, ids: TokenIds, run_all: RunAll) -> Tensor:
        parts = [part for part in (ids.char_ids, ids.word_ids) if part is not None]
        n = len(parts[0])
        # words of like length together: what is computed for one is computed for all
        order = torch.arange(n)
        if ids.char_ids is not None:
            order = word_lengths(torch.from_numpy(ids.char_ids)).argsort(descending=True, stable=True)
        size = min(self._kernels.max_rows, max(FEWEST_TOGETHER, -(-n // 2)))  # a few for each of two threads

        def piece(rows: Tensor) -> Tensor:
            given = (ids.char_ids, ids.word_ids)
            chosen = (None if part is None else torch.from_numpy(part)[rows] for part in given)
            return self._layer(*(None if part is None else part.to(self._device) for part in chosen))

        vectors = torch.cat(run_all([lambda rows=rows: piece(rows) for rows in order.split(size)]))
        return torch.empty_like(vectors).index_copy_(0, order.to(self._device), vectors)

    def _numbers(self, numbers: list[int]) -> Tensor:
        """To index by: not by brackets, see ``Engine.run``."""
        return torch.tensor(numbers, device=self._device)

    def _remember(self, words: Sequence[str], vectors: Tensor) -> None:
        """The last ``n_cached`` words, in place of those that were not read for longest."""
        rows = [k for k, word in enumerate(words) if len(word) <= LONGEST_CACHED and word not in self._slots]
        rows = rows[max(0, len(rows) - self._n_cached) :]
        slots: list[int] = []
        for k in rows:
            if len(self._slots) < self._n_cached:
                slot = len(self._slots)
            else:
                _, slot = self._slots.popitem(last=False)
            self._slots[words[k]] = slot
            slots.append(slot)
        if len(self._slots) > len(self._table):
            n_rows = min(self._n_cached, max(len(self._slots), 2 * len(self._table)))
            more = self._table.new_empty(n_rows - len(self._table), self._table.size(1))
            self._table = torch.cat([self._table, more])
        self._table[slots] = vectors[rows]
