"""Compute the perplexity of both language models on held-out text, with the full softmax."""

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
from elmo.train.windows import evaluation_windows, sentence_windows


@dataclass(frozen=True)
class HeldoutPerplexity:
    """Perplexity of each direction on held-out text.

    The forward direction also predicts ``</S>`` after each sentence, and the backward direction ``<S>`` before it.

    Attributes:
        forward: Perplexity of the forward direction, or None if it is not trained.
        backward: Perplexity of the backward direction, or None if it is not trained.
        n_predictions: Number of predictions in each direction.
    """

    forward: float | None
    backward: float | None
    n_predictions: int

    @property
    def geometric_mean(self) -> float:
        """Geometric mean of the perplexities of both directions, as reported by bilm-tf."""
        return _exp(sum(math.log(value) for value in self._values) / len(self._values))

    @property
    def arithmetic_mean(self) -> float:
        """Arithmetic mean of the perplexities of both directions."""
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
    """Compute the perplexity of a stream of type ids. Each direction predicts every token once.

    Args:
        objective: The model and its softmax.
        ids: Converts the type ids of the stream to ids of the model.
        stream: (token,) Type ids; every sentence ends in ``</S>``.
        batch_size: Number of rows: parts of the stream that are read in parallel, each with its own state.
        window: Number of tokens that each row reads at a time. A transformer reads ``batch_size`` · ``window`` tokens
            of whole sentences at a time.
        ranks: Processes that share the rows. By default, there is only this process.

    Example:
        >>> corpus = build_corpus("corpus.txt", "evaluated-corpus")
        >>> options = TrainOptions(n_steps=1, n_vocab=50, batch_size=2, window=5)
        >>> trainer = Trainer(corpus, PRESETS["tiny"], options, Path("evaluated"))
        >>> result = evaluate(trainer.objective, trainer.ids, corpus.heldout)
        >>> result.geometric_mean > 1
        True
        >>> trainer.close()
    """
    if not len(stream):
        raise DataError("cannot compute the perplexity of a text without tokens")
    ranks = ranks or Ranks()
    was_training = objective.training
    objective.eval()
    try:
        # sum of the losses of each direction, and number of predictions; on the CPU, because some GPUs have no float64
        totals = torch.zeros(3, dtype=torch.float64)
        state = None
        if has_sentences := objective.bilm.has_positions:
            windows = sentence_windows(stream, max_tokens=batch_size * window)
        else:
            windows = evaluation_windows(stream, batch_size=batch_size, window=window)
        for batch in windows:
            rows = ranks.rows(len(batch.forward.inputs))
            if rows.start == rows.stop:  # there are more processes than rows
                continue
            mine = batch.select_rows(rows)
            losses = objective.token_losses(mine, ids, state or objective.bilm.zero_state(rows.stop - rows.start))
            state = None if has_sentences else losses.state
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
    """Return the exponential of a loss, or infinity if it is too large."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
