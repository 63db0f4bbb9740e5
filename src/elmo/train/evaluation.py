"""Evaluate both language models on held-out text, with the full softmax."""

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
class HeldoutPerplexity:
    """Perplexity of each direction.

    The forward direction also predicts ``</S>``, the backward direction ``<S>``.

    Attributes:
        forward: Perplexity of the forward direction. None: not trained.
        backward: Perplexity of the backward direction. None: not trained.
        n_predictions: Number of predictions in each direction.
    """

    forward: float | None
    backward: float | None
    n_predictions: int

    @property
    def geometric_mean(self) -> float:
        """Exponential of the mean loss of the directions, as bilm-tf reports it."""
        return _exp(sum(math.log(value) for value in self._values) / len(self._values))

    @property
    def arithmetic_mean(self) -> float:
        """Mean of the perplexities."""
        return sum(self._values) / len(self._values)

    @property
    def _values(self) -> list[float]:
        return [value for value in (self.forward, self.backward) if value is not None]


@torch.no_grad()
def evaluate(
    objective: BiLmObjective,
    ids: TypeIds,
    stream: NDArray[np.uint32],
    *,
    batch_size: int = 32,
    window: int = 32,
    ranks: Ranks | None = None,
) -> HeldoutPerplexity:
    """Compute the perplexity of a stream of type ids. Every token is predicted once.

    Args:
        objective: Model and softmax.
        ids: Ids of the stream's types for this model.
        stream: (token,) Type ids; every sentence ends in ``</S>``.
        batch_size: Number of parts that are read in parallel. The state is carried within a part.
        window: Number of tokens that each row reads at once.
        ranks: Processes that share the rows.
    """
    if not len(stream):
        raise DataError("perplexity: expected at least one token to predict, found none")
    ranks = ranks or Ranks()
    was_training = objective.training
    objective.eval()
    try:
        # losses of both directions, number of predictions; on the CPU, because some GPUs have no float64
        totals = torch.zeros(3, dtype=torch.float64)
        state = None
        for batch in evaluation_windows(stream, batch_size=batch_size, window=window):
            rows = ranks.rows(len(batch.forward.inputs))
            if rows.start == rows.stop:  # more processes than rows
                break
            mine = batch.select_rows(rows)
            losses = objective.token_losses(mine, ids, state or objective.bilm.zero_state(rows.stop - rows.start))
            state = losses.state
            mask = torch.from_numpy(mine.mask)
            for number, loss in enumerate((losses.forward, losses.backward)):
                if loss is not None:
                    totals[number] += loss.cpu()[mask].double().sum()
            totals[2] += int(mask.sum())
        if ranks.world > 1:
            totals = totals.to(next(objective.parameters()).device)
            ranks.add_up([totals])
    finally:
        objective.train(was_training)
    sums, n_predictions = totals[:2].tolist(), int(totals[2])
    forward, backward = (
        _exp(total / n_predictions) if number in objective.directions else None for number, total in enumerate(sums)
    )
    return HeldoutPerplexity(forward, backward, n_predictions)


def _exp(loss: float) -> float:
    """Return the perplexity of a loss; infinity on overflow."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
