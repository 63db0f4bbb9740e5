"""Compute the gradients of a window in parallel threads.

Above the token layer, directions and rows share no computation, so the work is split into one piece per thread:
some rows of one direction. The gradients of all pieces are added up in a fixed order, and those of the token
vectors are propagated to the token layer. The token layer computes each distinct word once for all pieces; these words
are also distributed over the threads. The results are those of ``BiLmObjective.forward`` and ``backward()``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from elmo.engine.buffers import BufferPool
from elmo.engine.threads import ThreadPool
from elmo.model.bilm import BiLmState
from elmo.model.softmax import Samples
from elmo.train.corpus import TypeIds
from elmo.train.objective import BiLmObjective, Losses, StepRandom
from elmo.train.windows import Window

T = TypeVar("T")
MIN_ROWS = 8  # smallest number of rows in a piece; smaller matrix products would be too slow


@dataclass(frozen=True)
class _PieceResult:
    """Loss, state and gradients of one piece."""

    loss: Tensor
    state: BiLmState  # (layer, batch, …)
    d_vectors: Tensor
    d_weights: Sequence[Tensor | None]  # None for a cluster of an adaptive softmax without targets


class Gradients:
    """Computes the gradients of an objective and adds them to ``grad`` of its weights. ``close`` ends the threads.

    The gradient tensors are allocated only once, because allocating them takes longer than the arithmetic.
    """

    def __init__(self, objective: BiLmObjective, *, n_threads: int | None = None) -> None:
        self.objective = objective
        objective.buffer_pool = BufferPool()
        self.n_threads = torch.get_num_threads() if n_threads is None else n_threads
        is_cpu = all(weight.device.type == "cpu" for weight in objective.parameters())
        self._threads = ThreadPool(self.n_threads) if is_cpu and self.n_threads > 1 else None
        self._token_weights: list[Tensor] = [*objective.bilm.token_layer.parameters()]
        tied = [] if (table := objective.softmax.tied_table) is None else [table.weight]
        self._softmax_weights: list[Tensor] = [*tied, *objective.softmax.parameters()]
        self._rows: dict[Tensor, list[Tensor]] = {}  # rows of weights with sparse gradients
        self._dense: set[Tensor] = set()  # weights with dense gradients; tied weights may have both kinds
        for weight in self._trained_weights():
            weight.grad = torch.zeros_like(weight)

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.close()

    def clear(self) -> None:
        """Set all gradients to zero."""
        self._rows.clear()
        self._dense.clear()
        for weight in self._trained_weights():
            if weight.grad is not None:
                weight.grad.zero_()

    def take_rows(self) -> dict[Tensor, Tensor]:
        """Return the rows that have a gradient, for each weight with sparse gradients only, and forget them."""
        rows = {weight: torch.cat(parts).unique() for weight, parts in self._rows.items() if weight not in self._dense}
        self._rows.clear()
        self._dense.clear()
        return rows

    def _trained_weights(self) -> list[Tensor]:
        weights = [*self._token_weights, *self._softmax_weights]
        for number in self.objective.directions:
            weights += self.objective.stack(number).parameters()
        return [*dict.fromkeys(weights)]  # tied weights once

    def add_window(
        self,
        window: Window,
        ids: TypeIds,
        state: BiLmState,
        *,
        samples: tuple[Samples, ...] | None,
        random: StepRandom,
        scale: float = 1.0,
    ) -> Losses:
        """Add the gradients of the mean loss of a window, multiplied by ``scale``. Return the losses.

        Training calls this method instead of ``BiLmObjective.forward``. It computes the same losses in parallel
        threads; read ``forward`` first.
        """
        objective, directions = self.objective, self.objective.directions

        # Token layer: each of n threads computes every n-th type, so that each gets short and long words.
        types, index = objective.distinct_types(window)
        n_shares = 1 if self._threads is None else self.n_threads
        shares = [np.arange(len(types))[k::n_shares] for k in range(min(n_shares, len(types)))]
        tables = self._run([partial(objective.embed_types, types[share], ids) for share in shares])
        table = torch.cat([part.detach() for part in tables]).requires_grad_()
        order = np.argsort(np.concatenate(shares))
        ordered = objective.drop_words(table[ids.on_device(order)], random)
        vectors = F.embedding(ids.on_device(index), ordered)  # (direction, batch, time, width)

        # LSTM layers and softmax: one piece per thread.
        n_rows = vectors.size(1)

        def run_piece(k: int, rows: slice) -> _PieceResult:
            number = directions[k]
            direction = window.direction(number).select_rows(rows)
            leaf = vectors[k, rows].detach().requires_grad_()
            loss, after = objective.direction_loss(
                number,
                leaf,
                ids.targets(direction.targets),
                BiLmState(state.hidden[:, :, rows], state.cell[:, :, rows]),
                samples=None if samples is None else samples[k],
                random=replace(random, first_row=random.first_row + rows.start),
                resets=None if direction.resets is None else ids.on_device(direction.resets),
                places=objective.places(direction, ids),
            )
            share = scale * (rows.stop - rows.start) / (n_rows * len(directions))
            d_vectors, *d_weights = torch.autograd.grad(
                loss * share, [leaf, *self._upper_weights(number)], allow_unused=True
            )
            detached = BiLmState(after.hidden.detach(), after.cell.detach())
            return _PieceResult(loss.detach(), detached, d_vectors, d_weights)

        parts = self._split_rows(n_rows)
        pieces = [(k, rows) for k in range(len(directions)) for rows in parts]
        results = self._run([partial(run_piece, k, rows) for k, rows in pieces])
        by_direction = [results[k * len(parts) : (k + 1) * len(parts)] for k in range(len(directions))]
        for (k, _), result in zip(pieces, results, strict=True):
            self._add(self._upper_weights(directions[k]), result.d_weights)

        # Backpropagation through the token layer.
        d_vectors = torch.stack([torch.cat([r.d_vectors for r in group]) for group in by_direction])
        (d_table,) = torch.autograd.grad(vectors, [table], d_vectors)
        d_parts = d_table.split([len(part) for part in tables])
        for d_weights in self._run(
            [
                partial(torch.autograd.grad, part, self._token_weights, d_part, allow_unused=True)
                for part, d_part in zip(tables, d_parts, strict=True)
            ]
        ):
            self._add(self._token_weights, d_weights)

        losses, states = {}, {}
        for number, group in zip(directions, by_direction, strict=True):
            weighted = [r.loss * ((s.stop - s.start) / n_rows) for s, r in zip(parts, group, strict=True)]
            losses[number] = torch.stack(weighted).sum()
            hidden, cell = (torch.cat([getattr(r.state, name) for r in group], dim=1) for name in ("hidden", "cell"))
            states[number] = BiLmState(hidden, cell)
        return Losses.combine(losses, states, state)

    def _upper_weights(self, direction: int) -> list[Tensor]:
        """Return the weights between the token layer and the loss of one direction."""
        return [*self.objective.stack(direction).parameters(), *self._softmax_weights]

    def _split_rows(self, n_rows: int) -> list[slice]:
        """Split the rows of one direction into pieces."""
        n_pieces = 1
        if self._threads is not None:
            n_pieces = max(1, min(self.n_threads // len(self.objective.directions), n_rows // MIN_ROWS))
        ends = [n_rows * k // n_pieces for k in range(n_pieces + 1)]
        return [slice(begin, end) for begin, end in pairwise(ends)]

    def _run(self, tasks: list[Callable[[], T]]) -> list[T]:
        if self._threads is None or len(tasks) == 1:
            return [task() for task in tasks]
        return self._threads.run(*tasks)

    def _add(self, weights: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        for weight, gradient in zip(weights, gradients, strict=True):
            if gradient is None or weight.grad is None:
                continue
            if gradient.is_sparse:  # a row may occur more than once
                rows = gradient._indices()[0]
                self._rows.setdefault(weight, []).append(rows)
                weight.grad.index_add_(0, rows, gradient._values().contiguous())
            else:
                self._dense.add(weight)
                weight.grad.add_(gradient)
