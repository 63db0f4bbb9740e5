"""A stream of text in, how well both language models predict it out: every token, under the full softmax."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from elmo.errors import DataError
from elmo.train.corpus import TypeIds
from elmo.train.distributed import Ranks
from elmo.train.objective import BiLmObjective
from elmo.train.windows import evaluation_windows


@dataclass(frozen=True)
class Perplexity:
    """Of each direction; ``</S>`` counts as a word of the forward direction, ``<S>`` of the backward one.

    None: a direction that is not trained.
    """

    forward: float | None
    backward: float | None
    n_predictions: int  # of each direction

    @property
    def geometric_mean(self) -> float:
        """Exp of the mean loss of the directions: what bilm-tf reports."""
        return _exp(sum(math.log(x) for x in self._found) / len(self._found))

    @property
    def arithmetic_mean(self) -> float:
        """The mean of the perplexities."""
        return sum(self._found) / len(self._found)

    @property
    def _found(self) -> list[float]:
        return [x for x in (self.forward, self.backward) if x is not None]


@torch.no_grad()
def perplexity(
    objective: BiLmObjective,
    ids: TypeIds,
    stream: NDArray[np.uint32],
    *,
    n_rows: int = 32,
    n_steps: int = 32,
    ranks: Ranks | None = None,
) -> Perplexity:
    """Read the whole stream once, the state carried on from sentence to sentence, nothing left out.

    The text is cut into ``n_rows`` parts that are read side by side; several processes share them.
    """
    if not len(stream):
        raise DataError("perplexity: expected text to predict, found none")
    ranks = ranks or Ranks()
    was_training = objective.training
    objective.eval()
    try:
        # losses of both directions, predictions; on the processor, for some GPUs have no float64
        totals = torch.zeros(3, dtype=torch.float64)
        state = None
        for every in evaluation_windows(stream, n_rows=n_rows, n_steps=n_steps):
            rows = ranks.rows(len(every.forward.inputs))
            if rows.start == rows.stop:  # there are more processes than rows
                break
            window = every.at_rows(rows)
            losses = objective.token_losses(
                window, ids, state or objective.bilm.zero_state(rows.stop - rows.start)
            )
            state = losses.state
            is_true = torch.from_numpy(window.mask)
            for number, each in enumerate((losses.forward, losses.backward)):
                if each is not None:
                    totals[number] += each.cpu()[is_true].double().sum()
            totals[2] += int(is_true.sum())
        if ranks.world > 1:
            totals = totals.to(next(objective.parameters()).device)
            ranks.add_up([totals])
    finally:
        objective.train(was_training)
    sums, n_predictions = totals[:2].tolist(), int(totals[2])
    forward, backward = (
        _exp(total / n_predictions) if number in objective.directions else None
        for number, total in enumerate(sums)
    )
    return Perplexity(forward, backward, n_predictions)


def _exp(loss: float) -> float:
    """Its perplexity; infinite where no number is large enough."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
