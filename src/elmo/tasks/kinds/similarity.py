"""Semantic similarity: score two texts on the scale of the training data."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from elmo.errors import DataError
from elmo.tasks.data.examples import TextPair, format_location
from elmo.tasks.heads.layers import FeatureWidths
from elmo.tasks.heads.pairs import SentenceEncoder, SimilarityHead
from elmo.tasks.kinds.task import OPTIONAL, Embed, check_options, saved_options
from elmo.tasks.scores.correlation import mean_squared_error, pearson, spearman

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SimilarityOptions:
    """Options of the head.

    Args:
        hidden_width: Width of the hidden states.
        dropout: Dropout inside the network.
        encoder: Encode a sentence by an LSTM, or by the mean of its vectors.
    """

    hidden_width: int = 150
    dropout: float = 0.3
    encoder: SentenceEncoder = field(default="lstm", metadata=OPTIONAL)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class PredictedScore:
    """The predicted similarity of two texts."""

    score: float

    def to_json(self) -> dict[str, Any]:
        """Return the values of an output line."""
        return {"score": round(self.score, 4)}


@dataclass(frozen=True)
class Similarity:
    """Similarity on a scale between two integers, such as 1 to 5 in SICK."""

    kind: ClassVar[str] = "similarity"
    low: int
    high: int
    options: SimilarityOptions = SimilarityOptions()

    @classmethod
    def from_examples(cls, train: Sequence[TextPair], options: SimilarityOptions | None = None) -> Self:
        """Create the task; the scale runs from the lowest to the highest training score."""
        scores = [_gold_score(example) for example in train]
        low, high = math.floor(min(scores)), math.ceil(max(scores))
        if high - low > 1000:
            raise DataError(f"expected scores on a scale such as 1 to 5, found {min(scores)} to {max(scores)}")
        return cls(low, max(high, low + 1), options or SimilarityOptions())

    @property
    def main_score(self) -> str:
        """The Pearson correlation."""
        return "pearson"

    def build_head(self, widths: FeatureWidths) -> SimilarityHead:
        """Build a network that predicts a distribution over the integers of the scale."""
        return SimilarityHead(widths, low=self.low, high=self.high, **asdict(self.options))

    def loss(self, head: nn.Module, embed: Embed, examples: Sequence[TextPair]) -> Tensor:
        """Return the divergence between predicted distributions and gold scores."""
        scores = torch.tensor([_gold_score(example) for example in examples]).clamp(self.low, self.high)
        first, second = (embed([example.sentences[k] for example in examples]) for k in (0, 1))
        return cast("SimilarityHead", head).loss(first, second, scores)

    def predict(self, head: nn.Module, embed: Embed, examples: Sequence[TextPair]) -> list[PredictedScore]:
        """Predict the expected score of each pair."""
        first, second = (embed([example.sentences[k] for example in examples]) for k in (0, 1))
        return [PredictedScore(score) for score in cast("SimilarityHead", head).predict(first, second).tolist()]

    def check(self, examples: Sequence[TextPair]) -> None:
        """Warn about scores outside the learned scale, which are never predicted."""
        outside = [example for example in examples if not self.low <= _gold_score(example) <= self.high]
        if outside:
            _log.warning(
                "%s%d of %d scores are outside the learned scale %d..%d, for example %g; they are never predicted",
                format_location(outside[0].location), len(outside), len(examples), self.low, self.high,
                outside[0].score,
            )  # fmt: skip

    def score(self, examples: Sequence[TextPair], predictions: Sequence[PredictedScore]) -> dict[str, float]:
        """Compute the Pearson and Spearman correlations and the mean squared error."""
        gold = [_gold_score(example) for example in examples]
        predicted = [prediction.score for prediction in predictions]
        return {
            "pearson": pearson(gold, predicted),
            "spearman": spearman(gold, predicted),
            "mean_squared_error": mean_squared_error(gold, predicted),
        }

    def to_json(self) -> dict[str, Any]:
        """Return labels and options, for a saved model."""
        return {"low": self.low, "high": self.high, "options": saved_options(self.options)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Restore a task from the result of ``to_json``."""
        return cls(int(values["low"]), int(values["high"]), SimilarityOptions(**values["options"]))


def _gold_score(example: TextPair) -> float:
    if example.score is None or not math.isfinite(example.score):
        value = "none" if example.score is None else example.score
        raise DataError(f"{format_location(example.location)}expected a score, found {value}")
    return example.score
