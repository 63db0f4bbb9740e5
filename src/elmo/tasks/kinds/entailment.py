"""Two texts in, whether the first entails the second out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from elmo.tasks.data.examples import TextPair
from elmo.tasks.heads.layers import Widths
from elmo.tasks.heads.pairs import EsimHead
from elmo.tasks.kinds.classification import PredictedLabel, known_label, named, scores_of_labels
from elmo.tasks.kinds.task import Labels, Vectors, check_options


@dataclass(frozen=True)
class EntailmentOptions:
    """Of the head."""

    hidden_width: int = 150
    dropout: float = 0.5

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class Entailment:
    """One of the relations that training pairs have."""

    kind: ClassVar[str] = "entailment"
    labels: Labels
    options: EntailmentOptions = EntailmentOptions()

    @classmethod
    def of(cls, train: Sequence[TextPair], options: EntailmentOptions | None = None) -> Self:
        """The task that these examples set."""
        found = Labels.of((known_label(example) for example in train), what="labels")
        return cls(found, options or EntailmentOptions())

    @property
    def main_score(self) -> str:
        """The share of right labels."""
        return "accuracy"

    def head(self, widths: Widths) -> EsimHead:
        """ESIM."""
        return EsimHead(widths, n_labels=len(self.labels), **asdict(self.options))

    def loss(self, head: nn.Module, vectors: Vectors, examples: Sequence[TextPair]) -> Tensor:
        """How unlikely the labels are."""
        labels = torch.tensor([self.labels.number(known_label(example)) for example in examples])
        first, second = (vectors([example.sentences[k] for example in examples]) for k in (0, 1))
        return cast("EsimHead", head).loss(first, second, labels)

    def predict(
        self, head: nn.Module, vectors: Vectors, examples: Sequence[TextPair]
    ) -> list[PredictedLabel]:
        """The likeliest label of each pair."""
        first, second = (vectors([example.sentences[k] for example in examples]) for k in (0, 1))
        return named(self.labels, cast("EsimHead", head).predict(first, second))

    def check(self, examples: Sequence[TextPair]) -> None:
        """Tell of labels that were not seen in training."""
        self.labels.check([(known_label(example), example.place) for example in examples], what="labels")

    def scores(self, examples: Sequence[TextPair], predictions: Sequence[PredictedLabel]) -> dict[str, float]:
        """Accuracy, and the mean F1 of the labels."""
        return scores_of_labels(examples, predictions)

    def to_json(self) -> dict[str, Any]:
        """For a saved model."""
        return {"labels": list(self.labels.names), "options": asdict(self.options)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What ``to_json`` gave."""
        return cls(Labels(tuple(values["labels"])), EntailmentOptions(**values["options"]))
