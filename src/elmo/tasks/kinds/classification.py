"""Text classification: sentiment, topics, relations between marked entities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, cast

import torch
from torch import Tensor, nn

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import LabeledText, TextPair, format_location
from elmo.tasks.heads.classifiers import BiattentiveHead, FinalLayers, LinearHead
from elmo.tasks.heads.layers import FeatureWidths
from elmo.tasks.kinds.task import OPTIONAL, Embed, Labels, check_options, saved_options
from elmo.tasks.scores.labels import label_scores

Network = Literal["biattentive", "linear"]


@dataclass(frozen=True)
class ClassificationOptions:
    """Options of the head.

    Args:
        network: The biattentive network of the paper, or a linear classifier.
        hidden_width: Width of the hidden states (biattentive); None for the default of the head.
        dropout: Dropout inside the network; None for the default of the head.
        final_layers: Final layers of the biattentive network, relu or maxout (McCann et al. 2017).
        use_max: Add the maximum over the words to their mean (linear).
    """

    network: Network = "biattentive"
    hidden_width: int | None = None
    dropout: float | None = None
    final_layers: FinalLayers = field(default="relu", metadata=OPTIONAL)
    use_max: bool = field(default=False, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        check_options(self)
        for name, value, default, network in (
            ("hidden_width", self.hidden_width, None, "biattentive"),
            ("final_layers", self.final_layers, "relu", "biattentive"),
            ("use_max", self.use_max, False, "linear"),
        ):
            if value != default and self.network != network:
                raise ConfigError(f"option {name} needs network {network}, found {self.network}")


@dataclass(frozen=True)
class PredictedLabel:
    """The most probable label, and the probability of each label."""

    label: str
    probabilities: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return the values of an output line."""
        probabilities = {name: round(p, 4) for name, p in self.probabilities.items()}
        return {"label": self.label, "probabilities": probabilities}


@dataclass(frozen=True)
class Classification:
    """Classification into the labels of the training examples."""

    kind: ClassVar[str] = "classification"
    labels: Labels
    options: ClassificationOptions = ClassificationOptions()

    @classmethod
    def from_examples(cls, train: Sequence[LabeledText], options: ClassificationOptions | None = None) -> Self:
        """Create the task that these training examples define."""
        labels = Labels.collect(map(gold_label, train), what="labels")
        return cls(labels, options or ClassificationOptions())

    @property
    def main_score(self) -> str:
        """The fraction of correct labels."""
        return "accuracy"

    def build_head(self, widths: FeatureWidths) -> nn.Module:
        """Build the network that the options choose."""
        options = self.options
        values: dict[str, Any] = {"dropout": options.dropout}
        if options.network == "linear":
            head, values["use_max"] = LinearHead, options.use_max
        else:
            head = BiattentiveHead
            values |= {"hidden_width": options.hidden_width, "final_layers": options.final_layers}
        not_default = {name: value for name, value in values.items() if value is not None}
        return head(widths, n_labels=len(self.labels), **not_default)

    def loss(self, head: nn.Module, embed: Embed, examples: Sequence[LabeledText]) -> Tensor:
        """Return the negative log-likelihood of the gold labels."""
        labels = torch.tensor([self.labels.id_of(gold_label(example)) for example in examples])
        features = embed([example.words for example in examples])
        return cast("BiattentiveHead | LinearHead", head).loss(features, labels)

    def predict(self, head: nn.Module, embed: Embed, examples: Sequence[LabeledText]) -> list[PredictedLabel]:
        """Predict the label of each text."""
        features = embed([example.words for example in examples])
        return name_labels(self.labels, cast("BiattentiveHead | LinearHead", head).predict(features))

    def check(self, examples: Sequence[LabeledText]) -> None:
        """Warn about labels unseen in training."""
        self.labels.check([(gold_label(example), example.location) for example in examples], what="labels")

    def score(self, examples: Sequence[LabeledText], predictions: Sequence[PredictedLabel]) -> dict[str, float]:
        """Compute accuracy and macro-averaged F1."""
        return score_labels(examples, predictions)

    def to_json(self) -> dict[str, Any]:
        """Return labels and options, for a saved model."""
        return {"labels": list(self.labels.names), "options": saved_options(self.options)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Restore a task from the result of ``to_json``."""
        return cls(Labels(tuple(values["labels"])), ClassificationOptions(**values["options"]))


def gold_label(example: LabeledText | TextPair) -> str:
    """Return the label of an example; raise ``DataError`` if it has none."""
    if example.label is None:
        raise DataError(f"{format_location(example.location)}expected a label, found none")
    return example.label


def name_labels(labels: Labels, probabilities: Tensor) -> list[PredictedLabel]:
    """Turn probabilities (batch, label) into predictions with label names."""
    return [
        PredictedLabel(labels.names[row.index(max(row))], dict(zip(labels.names, row, strict=True)))
        for row in probabilities.tolist()
    ]


def score_labels(
    examples: Sequence[LabeledText] | Sequence[TextPair], predictions: Sequence[PredictedLabel]
) -> dict[str, float]:
    """Compute accuracy and macro-averaged F1."""
    gold = [gold_label(example) for example in examples]
    scores = label_scores(gold, [prediction.label for prediction in predictions])
    return {"accuracy": scores.accuracy, "macro_f1": scores.macro.f1}
