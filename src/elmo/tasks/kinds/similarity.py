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
from elmo.tasks.kinds.task import OPTIONAL, Embed, HeadOptions, embed_columns
from elmo.tasks.scores.correlation import correlation_scores

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SimilarityOptions(HeadOptions):
    """Options of the head for semantic similarity.

    Args:
        hidden_width: Width of the hidden states.
        dropout: Dropout inside the network.
        encoder: How to encode a sentence: by an LSTM ("lstm"), or by the mean of its features ("mean").

    Example:
        >>> options = SimilarityOptions(encoder="mean")
    """

    hidden_width: int = 150
    dropout: float = 0.3
    encoder: SentenceEncoder = field(default="lstm", metadata=OPTIONAL)


@dataclass(frozen=True)
class PredictedScore:
    """The predicted similarity of two texts."""

    score: float

    def to_json(self) -> dict[str, Any]:
        """Return the score as a JSON value, rounded to 4 digits."""
        return {"score": round(self.score, 4)}


@dataclass(frozen=True)
class Similarity:
    """Prediction of a similarity score on a scale between two integers, such as 1 to 5 in SICK.

    Attributes:
        low: Lowest score.
        high: Highest score.
        options: Options of the head.

    Example:
        >>> Similarity(low=1, high=5).main_score
        'pearson'
    """

    kind: ClassVar[str] = "similarity"
    main_score: ClassVar[str] = "pearson"
    low: int
    high: int
    options: SimilarityOptions = SimilarityOptions()

    @classmethod
    def from_examples(cls, train: Sequence[TextPair], options: SimilarityOptions | None = None) -> Self:
        """Create the task; the scale runs from the lowest to the highest training score."""
        scores = [_gold_score(example) for example in train]
        low, high = math.floor(min(scores)), math.ceil(max(scores))
        if high - low > 1000:
            raise DataError(
                f"difference between the highest and the lowest training score must be at most 1000; "
                f"found scores from {min(scores)} to {max(scores)}"
            )
        return cls(low, max(high, low + 1), options or SimilarityOptions())

    def build_head(self, widths: FeatureWidths) -> SimilarityHead:
        """Build a network that predicts a distribution over the integers of the scale."""
        return SimilarityHead(widths, low=self.low, high=self.high, **asdict(self.options))

    def loss(self, head: nn.Module, embed: Embed, examples: Sequence[TextPair]) -> Tensor:
        """Compute the mean of KL(gold ‖ predicted); each gold score is a distribution over the two nearest integers."""
        scores = torch.tensor([_gold_score(example) for example in examples]).clamp(self.low, self.high)
        first, second = embed_columns(embed, examples)
        return cast("SimilarityHead", head).loss(first, second, scores)

    def predict(self, head: nn.Module, embed: Embed, examples: Sequence[TextPair]) -> list[PredictedScore]:
        """Predict the similarity of each pair: the mean of the predicted distribution over scores."""
        first, second = embed_columns(embed, examples)
        return [PredictedScore(score) for score in cast("SimilarityHead", head).predict(first, second).tolist()]

    def check(self, examples: Sequence[TextPair]) -> None:
        """Warn about gold scores outside the scale of the training data; they are never predicted."""
        outside = [example for example in examples if not self.low <= _gold_score(example) <= self.high]
        if outside:
            _log.warning(
                "%s%d of %d scores are outside the training scale of %d to %d and are never predicted; the first is %g",
                format_location(outside[0].location), len(outside), len(examples), self.low, self.high,
                outside[0].score,
            )  # fmt: skip

    def score(self, examples: Sequence[TextPair], predictions: Sequence[PredictedScore]) -> dict[str, float]:
        """Compute the Pearson and Spearman correlations and the mean squared error."""
        gold = [_gold_score(example) for example in examples]
        predicted = [prediction.score for prediction in predictions]
        scores = correlation_scores(gold, predicted)
        return {"pearson": scores.pearson, "spearman": scores.spearman, "mean_squared_error": scores.mean_squared_error}

    def to_json(self) -> dict[str, Any]:
        """Return the scale and the options as JSON values."""
        return {"low": self.low, "high": self.high, "options": self.options.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create a task from the values that ``to_json`` returned."""
        return cls(int(values["low"]), int(values["high"]), SimilarityOptions(**values["options"]))


def _gold_score(example: TextPair) -> float:
    if example.score is None or not math.isfinite(example.score):
        value = "none" if example.score is None else example.score
        raise DataError(f"{format_location(example.location)}the score must be a finite number; found {value}")
    return example.score
