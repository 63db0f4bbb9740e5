"""Textual entailment: classify the relation between two texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from elmo.tasks.data.examples import TextPair
from elmo.tasks.heads.layers import FeatureWidths
from elmo.tasks.heads.pairs import EsimHead
from elmo.tasks.kinds.classification import PredictedLabel, gold_label, name_labels, score_labels
from elmo.tasks.kinds.task import Embed, Labels, check_options


@dataclass(frozen=True)
class EntailmentOptions:
    """Options of the head.

    Args:
        hidden_width: Width of the hidden states.
        dropout: Dropout inside the network.
    """

    hidden_width: int = 150
    dropout: float = 0.5

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class Entailment:
    """Classification of text pairs into the labels of the training pairs."""

    kind: ClassVar[str] = "entailment"
    labels: Labels
    options: EntailmentOptions = EntailmentOptions()

    @classmethod
    def from_examples(cls, train: Sequence[TextPair], options: EntailmentOptions | None = None) -> Self:
        """Create the task that these training examples define."""
        labels = Labels.collect(map(gold_label, train), what="labels")
        return cls(labels, options or EntailmentOptions())

    @property
    def main_score(self) -> str:
        """The fraction of correct labels."""
        return "accuracy"

    def build_head(self, widths: FeatureWidths) -> EsimHead:
        """Build an ESIM network."""
        return EsimHead(widths, n_labels=len(self.labels), **asdict(self.options))

    def loss(self, head: nn.Module, embed: Embed, examples: Sequence[TextPair]) -> Tensor:
        """Return the negative log-likelihood of the gold labels."""
        labels = torch.tensor([self.labels.id_of(gold_label(example)) for example in examples])
        first, second = (embed([example.sentences[k] for example in examples]) for k in (0, 1))
        return cast("EsimHead", head).loss(first, second, labels)

    def predict(self, head: nn.Module, embed: Embed, examples: Sequence[TextPair]) -> list[PredictedLabel]:
        """Predict the label of each pair."""
        first, second = (embed([example.sentences[k] for example in examples]) for k in (0, 1))
        return name_labels(self.labels, cast("EsimHead", head).predict(first, second))

    def check(self, examples: Sequence[TextPair]) -> None:
        """Warn about labels unseen in training."""
        self.labels.check([(gold_label(example), example.location) for example in examples], what="labels")

    def score(self, examples: Sequence[TextPair], predictions: Sequence[PredictedLabel]) -> dict[str, float]:
        """Compute accuracy and macro-averaged F1."""
        return score_labels(examples, predictions)

    def to_json(self) -> dict[str, Any]:
        """Return labels and options, for a saved model."""
        return {"labels": list(self.labels.names), "options": asdict(self.options)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Restore a task from the result of ``to_json``."""
        return cls(Labels(tuple(values["labels"])), EntailmentOptions(**values["options"]))
