"""Two texts in, how alike they are out, on the scale of the training data."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from elmo.errors import DataError
from elmo.tasks.data.examples import TextPair, at
from elmo.tasks.heads.layers import Widths
from elmo.tasks.heads.pairs import Encoder, SimilarityHead
from elmo.tasks.kinds.task import LATER, Vectors, check_options, kept_options
from elmo.tasks.scores.labels import mean_squared_error, pearson, spearman

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SimilarityOptions:
    """Of the head."""

    hidden_width: int = 150
    dropout: float = 0.3
    encoder: Encoder = field(default="lstm", metadata=LATER)  # of a sentence; or the "mean" of its vectors

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class PredictedScore:
    """How alike two texts are."""

    score: float

    def to_json(self) -> dict[str, Any]:
        """For a line of output."""
        return {"score": round(self.score, 4)}


@dataclass(frozen=True)
class Similarity:
    """Scores between two whole numbers: SICK's lie in 1..5."""

    kind: ClassVar[str] = "similarity"
    low: int
    high: int
    options: SimilarityOptions = SimilarityOptions()

    @classmethod
    def of(cls, train: Sequence[TextPair], options: SimilarityOptions | None = None) -> Self:
        """The task that these examples set: the scale runs from the lowest score to the highest."""
        scores = [_known(example) for example in train]
        low, high = math.floor(min(scores)), math.ceil(max(scores))
        if high - low > 1000:
            raise DataError(
                f"expected scores on a scale such as 1 to 5, found {min(scores)} to {max(scores)}"
            )
        return cls(low, max(high, low + 1), options or SimilarityOptions())

    @property
    def main_score(self) -> str:
        """Pearson's correlation."""
        return "pearson"

    def head(self, widths: Widths) -> SimilarityHead:
        """A distribution over the scale's whole numbers."""
        return SimilarityHead(widths, low=self.low, high=self.high, **asdict(self.options))

    def loss(self, head: nn.Module, vectors: Vectors, examples: Sequence[TextPair]) -> Tensor:
        """How far the distributions are from the scores."""
        scores = torch.tensor([_known(example) for example in examples]).clamp(self.low, self.high)
        first, second = (vectors([example.sentences[k] for example in examples]) for k in (0, 1))
        return cast("SimilarityHead", head).loss(first, second, scores)

    def predict(
        self, head: nn.Module, vectors: Vectors, examples: Sequence[TextPair]
    ) -> list[PredictedScore]:
        """The expected score of each pair."""
        first, second = (vectors([example.sentences[k] for example in examples]) for k in (0, 1))
        return [
            PredictedScore(score) for score in cast("SimilarityHead", head).predict(first, second).tolist()
        ]

    def check(self, examples: Sequence[TextPair]) -> None:
        """Tell of scores that lie off the scale: they count, but are never predicted."""
        off = [example for example in examples if not self.low <= _known(example) <= self.high]
        if off:
            _log.warning(
                "%s%d of %d scores lie off the learned scale %d..%d, %g for one: they are never predicted",
                at(off[0].place), len(off), len(examples), self.low, self.high, _known(off[0]),
            )  # fmt: skip

    def scores(self, examples: Sequence[TextPair], predictions: Sequence[PredictedScore]) -> dict[str, float]:
        """Pearson's and Spearman's correlation, and the mean squared error."""
        gold, said = [_known(example) for example in examples], [one.score for one in predictions]
        return {
            "pearson": pearson(gold, said),
            "spearman": spearman(gold, said),
            "mean_squared_error": mean_squared_error(gold, said),
        }

    def to_json(self) -> dict[str, Any]:
        """For a saved model."""
        return {"low": self.low, "high": self.high, "options": kept_options(self.options)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What ``to_json`` gave."""
        return cls(int(values["low"]), int(values["high"]), SimilarityOptions(**values["options"]))


def _known(example: TextPair) -> float:
    if example.score is None or not math.isfinite(example.score):
        found = "none" if example.score is None else example.score
        raise DataError(f"{at(example.place)}expected a score, found {found}")
    return example.score
