"""A window of text in, the gradient of every weight out: directions and rows side by side on a processor.

Above the token layer the directions share no arithmetic, nor do the rows of a batch. So the work is cut into
pieces, one for each thread that torch may use: a direction, and some rows of it. A piece takes its own
gradients; they are added up in a fixed order, and then flow through the token layer, which reads each word
once for all pieces, the words dealt out to the threads as well. The results are those of
``BiLmObjective.forward`` and ``backward()``.
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
from numpy.typing import NDArray
from torch import Tensor

from elmo.engine.threads import Scratch, SideBySide
from elmo.model.bilm import BiLmState
from elmo.model.softmax import Samples
from elmo.train.corpus import TypeIds
from elmo.train.objective import BiLmObjective, Chance, Losses, state_after
from elmo.train.windows import Window

T = TypeVar("T")
LEAST_ROWS = 8  # of a piece: narrower products waste more than a thread brings


@dataclass(frozen=True)
class _Found:
    """Of one piece: its loss, the state it leaves, and the gradients of what it read and used."""

    loss: Tensor
    state: BiLmState  # (layer, batch, …)
    d_vectors: Tensor
    d_weights: Sequence[Tensor | None]  # None: a part of an adaptive softmax that no target fell in


class Gradients:
    """Adds to the gradients (``grad``) of one objective, window after window; ``close`` ends its threads.

    The tensors that hold them are made once: fresh memory of that size costs more than what is done in it.
    """

    def __init__(self, objective: BiLmObjective, *, n_threads: int | None = None) -> None:
        self.objective = objective
        objective.scratch = Scratch()
        self.n_threads = torch.get_num_threads() if n_threads is None else n_threads
        is_cpu = all(weight.device.type == "cpu" for weight in objective.parameters())
        self._side = SideBySide(self.n_threads) if is_cpu and self.n_threads > 1 else None
        self._token_weights: list[Tensor] = [*objective.bilm.token_layer.parameters()]
        tied = [] if (table := objective.softmax.tied_table) is None else [table.weight]
        self._softmax_weights: list[Tensor] = [*tied, *objective.softmax.parameters()]
        for weight in self._weights():
            weight.grad = torch.zeros_like(weight)

    def clear(self) -> None:
        """Set all gradients to zero."""
        for weight in self._weights():
            if weight.grad is not None:
                weight.grad.zero_()

    def _weights(self) -> list[Tensor]:
        """Those that are trained, each once."""
        stacks = [self.objective.stack(number) for number in self.objective.directions]
        weights = [*self._token_weights, *self._softmax_weights]
        return [*dict.fromkeys([*weights, *(weight for stack in stacks for weight in stack.parameters())])]

    def add_window(
        self,
        window: Window,
        ids: TypeIds,
        state: BiLmState,
        *,
        samples: tuple[Samples, ...] | None,
        chance: Chance,
        scale: float = 1.0,
    ) -> Losses:
        """Add the gradients of ``scale`` times the mean loss; returns the losses."""
        objective, directions = self.objective, self.objective.directions
        distinct, places = objective.distinct_words(window)
        tables = self._word_tables(distinct, ids)
        table = torch.cat([each.detach() for each in tables]).requires_grad_()
        n_tables = len(tables)
        # each thread makes every n-th word, so that all get long and short ones; put in order again here
        order = np.argsort(np.concatenate([np.arange(len(distinct))[k::n_tables] for k in range(n_tables)]))
        ordered = objective.without_words(table[ids.on_device(order)], chance)
        vectors = F.embedding(ids.on_device(places), ordered)  # (direction, batch, time, width)
        n_rows = vectors.size(1)
        parts = self._parts(n_rows)

        def piece(place: int, rows: slice) -> _Found:
            number = directions[place]
            direction = (window.forward, window.backward)[number].at_rows(rows)
            leaf = vectors[place, rows].detach().requires_grad_()
            loss, after = objective.direction_loss(
                number,
                leaf,
                ids.targets(direction.targets),
                BiLmState(state.hidden[:, :, rows], state.cell[:, :, rows]),
                None if samples is None else samples[place],
                replace(chance, first_row=chance.first_row + rows.start),
                starts=None if direction.starts is None else ids.on_device(direction.starts),
            )
            share = scale * (rows.stop - rows.start) / (n_rows * len(directions))
            d_vectors, *d_weights = torch.autograd.grad(
                loss * share, [leaf, *self._used_by(number)], allow_unused=True
            )
            detached = BiLmState(after.hidden.detach(), after.cell.detach())
            return _Found(loss.detach(), detached, d_vectors, d_weights)

        pieces = [(place, rows) for place in range(len(directions)) for rows in parts]
        found = self._run([lambda p=p, r=r: piece(p, r) for p, r in pieces])
        for (place, _), each in zip(pieces, found, strict=True):
            _add(self._used_by(directions[place]), each.d_weights)
        d_vectors = [
            torch.cat([each.d_vectors for (p, _), each in zip(pieces, found, strict=True) if p == place])
            for place in range(len(directions))
        ]
        (d_table,) = torch.autograd.grad(vectors, [table], torch.stack(d_vectors))
        for of_tokens in self._run(
            [
                partial(torch.autograd.grad, each, self._token_weights, part, allow_unused=True)
                for each, part in zip(tables, d_table.split([len(each) for each in tables]), strict=True)
            ]
        ):
            _add(self._token_weights, of_tokens)
        return self._losses(pieces, found, state, n_rows)

    def _word_tables(self, distinct: NDArray[np.int64], ids: TypeIds) -> list[Tensor]:
        """The vectors of every n-th word from each of n threads."""
        n_tables = 1 if self._side is None else self.n_threads
        shares = [distinct[k::n_tables] for k in range(n_tables)]
        return self._run([partial(self.objective.word_table, share, ids) for share in shares if len(share)])

    def _used_by(self, direction: int) -> list[Tensor]:
        """The weights between the token layer and the loss of one direction."""
        return [*self.objective.stack(direction).parameters(), *self._softmax_weights]

    def close(self) -> None:
        """End the threads."""
        if self._side is not None:
            self._side.close()

    def _parts(self, n_rows: int) -> list[slice]:
        """Rows of the pieces of one direction."""
        if self._side is None:
            return [slice(0, n_rows)]
        wanted = self.n_threads // len(self.objective.directions)
        n_parts = max(1, min(wanted, n_rows // LEAST_ROWS))
        ends = [n_rows * k // n_parts for k in range(n_parts + 1)]
        return [slice(begin, end) for begin, end in pairwise(ends)]

    def _run(self, pieces: list[Callable[[], T]]) -> list[T]:
        if self._side is None or len(pieces) == 1:
            return [piece() for piece in pieces]
        return self._side.run(*pieces)

    def _losses(
        self, pieces: list[tuple[int, slice]], found: list[_Found], before: BiLmState, n_rows: int
    ) -> Losses:
        losses: dict[int, Tensor] = {}
        after: dict[int, BiLmState] = {}
        for place, number in enumerate(self.objective.directions):
            mine = [(r, each) for (p, r), each in zip(pieces, found, strict=True) if p == place]
            losses[number] = torch.stack([e.loss * ((r.stop - r.start) / n_rows) for r, e in mine]).sum()
            hidden, cell = (
                torch.cat([getattr(e.state, name) for _, e in mine], dim=1) for name in ("hidden", "cell")
            )
            after[number] = BiLmState(hidden, cell)
        return Losses(losses.get(0), losses.get(1), state_after(before, after))


def _add(weights: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    for weight, gradient in zip(weights, gradients, strict=True):
        if gradient is None or weight.grad is None:
            continue
        if gradient.is_sparse:  # of some rows, one of them perhaps more than once
            weight.grad.index_add_(0, gradient._indices()[0], gradient._values().contiguous())
        else:
            weight.grad.add_(gradient)
