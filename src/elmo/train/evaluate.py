"""A stream of text in, how well both language models predict it out: every token, under the full softmax."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from elmo.errors import DataError
from elmo.train.objective import BiLmObjective
from elmo.train.type_ids import TypeIds
from elmo.train.windows import evaluation_windows


@dataclass(frozen=True)
class Perplexity:
    """Of each direction; ``</S>`` counts as a word of the forward direction, ``<S>`` of the backward one."""

    forward: float
    backward: float
    n_predictions: int  # of each direction

    @property
    def geometric_mean(self) -> float:
        """Exp of the mean loss of both directions: what bilm-tf reports."""
        return math.sqrt(self.forward * self.backward)

    @property
    def arithmetic_mean(self) -> float:
        """The mean of the two perplexities."""
        return (self.forward + self.backward) / 2


@torch.no_grad()
def perplexity(
    objective: BiLmObjective, ids: TypeIds, stream: NDArray[np.uint32], *, n_rows: int = 32, n_steps: int = 32
) -> Perplexity:
    """Read the whole stream once, the state carried on from sentence to sentence, nothing left out."""
    if not len(stream):
        raise DataError("perplexity: expected text to predict, found none")
    was_training = objective.training
    objective.eval()
    try:
        total_forward = total_backward = 0.0
        n_predictions = 0
        state = None
        for window in evaluation_windows(stream, n_rows=n_rows, n_steps=n_steps):
            rows = len(window.forward.inputs)
            losses = objective.token_losses(window, ids, state or objective.bilm.zero_state(rows))
            state = losses.state
            is_true = torch.from_numpy(window.mask)
            total_forward += float(losses.forward[is_true].double().sum())
            total_backward += float(losses.backward[is_true].double().sum())
            n_predictions += int(is_true.sum())
    finally:
        objective.train(was_training)
    means = total_forward / n_predictions, total_backward / n_predictions
    return Perplexity(math.exp(means[0]), math.exp(means[1]), n_predictions)
