"""Say what the held-out perplexity of a model means, what the model is good for, and what would improve it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from elmo.train.plan import IRREDUCIBLE_LOSS, expected_loss

Level = Literal["very weak", "weak", "usable", "good"]

# By how many times the perplexity is lower than that of word frequencies, a rule of thumb
_LEVELS: tuple[tuple[float, Level], ...] = ((2, "very weak"), (6, "weak"), (12, "usable"))
_MEANING: dict[Level, str] = {
    "very weak": "it predicts little better than word frequencies do, so its vectors mostly reflect the spelling",
    "weak": "it has learned frequent words and phrases; do not rely on it to separate senses",
    "usable": "try it as features of a tagger or classifier; senses of frequent words may be separated",
    "good": "it predicts words from their context",
}
_USELESS = "it predicts worse than word frequencies do, so it needs more training"
_MORE_TEXT, _MORE_TIME = 10, 4


@dataclass(frozen=True)
class ModelAssessment:
    """What the held-out perplexity of a model means.

    Attributes:
        perplexity: Held-out perplexity, the geometric mean of both directions.
        n_words: Size of the vocabulary.
        by_frequency: Perplexity of predicting words by their frequency alone, estimated by Zipf's law.
        level: How much lower the perplexity is, as a word.
        with_more_text: Estimated perplexity with ten times as much text; None if the number of tokens is unknown.
        with_more_time: Estimated perplexity after four times as much training on the same text, or None.
        is_short: Whether the run read too few tokens for these estimates.
    """

    perplexity: float
    n_words: int
    by_frequency: float
    level: Level
    with_more_text: float | None = None
    with_more_time: float | None = None
    is_short: bool = False

    @property
    def lines(self) -> dict[str, str]:
        """Short descriptions by title."""
        meaning = _MEANING[self.level] if self.perplexity < self.by_frequency else _USELESS
        lines = {
            "perplexity": f"{_format(self.perplexity)} on held-out text, among {self.n_words:,} words "
            f"(word frequencies alone: about {_format(self.by_frequency)})",
            "quality": f"{self.level}: {meaning}",
        }
        if self.with_more_text is not None and self.with_more_time is not None:
            lines["to improve"] = (
                f"{_MORE_TEXT} times as much text: perplexity about {_format(self.with_more_text)}; {_MORE_TIME} times "
                f"as much training on the same text: about {_format(self.with_more_time)} (estimates)"
            )
        elif self.is_short:
            lines["to improve"] = "train for longer, if possible on more text; this run was too short for estimates"
        return lines


def assess_model(metadata: Mapping[str, Any], *, n_words: int | None, n_weights: int) -> ModelAssessment | None:
    """Assess a model that ``elmo train`` wrote; return None for other models.

    The estimates use the scaling law that also plans runs: the part of the loss that more text or training can remove
    shrinks as much as in the law. It was measured on Transformers, so they only show the direction and the order of
    magnitude. There are no estimates for runs so short that the law predicts a loss above that of a uniform guess.

    Args:
        metadata: Metadata of the model, whose entry ``training`` describes the run.
        n_words: Size of the vocabulary.
        n_weights: Number of weights of the model.

    Example:
        >>> model = Elmo.from_pretrained("run")
        >>> assessment = assess_model(model.pretrained.metadata, n_words=len(model.vocab.words), n_weights=100_000)
    """
    training = metadata.get("training")
    if not isinstance(training, Mapping) or not n_words:
        return None
    perplexity = training.get("heldout_perplexity")
    if not isinstance(perplexity, int | float) or not math.isfinite(perplexity) or perplexity < 1:
        return None
    shares = 1 / np.arange(1, n_words + 1)
    shares /= shares.sum()
    by_frequency = float(np.exp(-(shares * np.log(shares)).sum()))
    level: Level = "good"
    for limit, name in reversed(_LEVELS):
        if by_frequency < limit * perplexity:
            level = name
    n_unique, n_read = training.get("tokens"), training.get("tokens_read")
    if not (isinstance(n_unique, int) and isinstance(n_read, int) and min(n_unique, n_read) > 0):
        return ModelAssessment(perplexity, n_words, by_frequency, level)

    def predict_loss(*, text: int = 1, time: int = 1) -> float:
        return expected_loss(n_weights=n_weights, n_tokens=time * n_read, n_unique=text * n_unique)

    now = predict_loss()
    if now > math.log(n_words):
        return ModelAssessment(perplexity, n_words, by_frequency, level, is_short=True)

    def estimate(loss: float) -> float:
        removable = max(0.0, math.log(perplexity) - IRREDUCIBLE_LOSS)
        share = (now - loss) / (now - IRREDUCIBLE_LOSS)  # of the removable loss
        return perplexity * math.exp(-removable * share)

    more_text, more_time = predict_loss(text=_MORE_TEXT, time=_MORE_TEXT), predict_loss(time=_MORE_TIME)
    return ModelAssessment(perplexity, n_words, by_frequency, level, estimate(more_text), estimate(more_time))


def _format(perplexity: float) -> str:
    return f"{perplexity:,.1f}" if perplexity < 100 else f"{float(f'{perplexity:.3g}'):,.0f}"
