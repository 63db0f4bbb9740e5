"""A text in, its class out: sentiment, topics, relations of marked entities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, cast

import torch
from torch import Tensor, nn

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import LabelledText, TextPair, at
from elmo.tasks.heads.classifiers import BiattentiveHead, FinalLayers, LinearHead
from elmo.tasks.heads.layers import Widths
from elmo.tasks.kinds.task import LATER, Labels, Vectors, check_options, kept_options
from elmo.tasks.scores.labels import label_scores

Network = Literal["biattentive", "linear"]


@dataclass(frozen=True)
class ClassificationOptions:
    """Of the head; widths and dropout None: as the head has them by default."""

    network: Network = "biattentive"
    hidden_width: int | None = None
    dropout: float | None = None
    final_layers: FinalLayers = field(default="relu", metadata=LATER)  # biattentive; "maxout": McCann's
    use_max: bool = field(default=False, metadata=LATER)  # linear: the maximum beside the mean

    def __post_init__(self) -> None:
        check_options(self)
        for name, value, usual, network in (
            ("hidden_width", self.hidden_width, None, "biattentive"),
            ("final_layers", self.final_layers, "relu", "biattentive"),
            ("use_max", self.use_max, False, "linear"),
        ):
            if value != usual and self.network != network:
                raise ConfigError(f"option {name} is of the {network} network, found it with {self.network}")


@dataclass(frozen=True)
class PredictedLabel:
    """The likeliest label, and the probability of each."""

    label: str
    probabilities: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """For a line of output."""
        shares = {name: round(share, 4) for name, share in self.probabilities.items()}
        return {"label": self.label, "probabilities": shares}


@dataclass(frozen=True)
class Classification:
    """One of the labels that training examples have."""

    kind: ClassVar[str] = "classification"
    labels: Labels
    options: ClassificationOptions = ClassificationOptions()

    @classmethod
    def of(cls, train: Sequence[LabelledText], options: ClassificationOptions | None = None) -> Self:
        """The task that these examples set."""
        found = Labels.of((known_label(example) for example in train), what="labels")
        return cls(found, options or ClassificationOptions())

    @property
    def main_score(self) -> str:
        """The share of right labels."""
        return "accuracy"

    def head(self, widths: Widths) -> nn.Module:
        """The network of the options."""
        options = self.options
        given: dict[str, Any] = {"dropout": options.dropout}
        if options.network == "linear":
            kind, given["use_max"] = LinearHead, options.use_max
        else:
            kind = BiattentiveHead
            given |= {"hidden_width": options.hidden_width, "final_layers": options.final_layers}
        chosen = {name: value for name, value in given.items() if value is not None}
        return kind(widths, n_labels=len(self.labels), **chosen)

    def loss(self, head: nn.Module, vectors: Vectors, examples: Sequence[LabelledText]) -> Tensor:
        """How unlikely the labels are."""
        labels = torch.tensor([self.labels.number(known_label(example)) for example in examples])
        found = vectors([example.words for example in examples])
        return cast("BiattentiveHead | LinearHead", head).loss(found, labels)

    def predict(
        self, head: nn.Module, vectors: Vectors, examples: Sequence[LabelledText]
    ) -> list[PredictedLabel]:
        """The likeliest label of each text."""
        found = vectors([example.words for example in examples])
        return named(self.labels, cast("BiattentiveHead | LinearHead", head).predict(found))

    def check(self, examples: Sequence[LabelledText]) -> None:
        """Tell of labels that were not seen in training."""
        self.labels.check([(known_label(example), example.place) for example in examples], what="labels")

    def scores(
        self, examples: Sequence[LabelledText], predictions: Sequence[PredictedLabel]
    ) -> dict[str, float]:
        """Accuracy, and the mean F1 of the labels."""
        return scores_of_labels(examples, predictions)

    def to_json(self) -> dict[str, Any]:
        """For a saved model."""
        return {"labels": list(self.labels.names), "options": kept_options(self.options)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What ``to_json`` gave."""
        return cls(Labels(tuple(values["labels"])), ClassificationOptions(**values["options"]))


def known_label(example: LabelledText | TextPair) -> str:
    """The label of an example that has one."""
    if example.label is None:
        raise DataError(f"{at(example.place)}expected a label, found none")
    return example.label


def named(labels: Labels, probabilities: Tensor) -> list[PredictedLabel]:
    """Probabilities (batch, label) with the names of the labels."""
    rows = probabilities.tolist()
    return [
        PredictedLabel(labels.names[row.index(max(row))], dict(zip(labels.names, row, strict=True)))
        for row in rows
    ]


def scores_of_labels(
    examples: Sequence[LabelledText] | Sequence[TextPair], predictions: Sequence[PredictedLabel]
) -> dict[str, float]:
    """Accuracy, and the mean F1 of the labels."""
    gold = [known_label(example) for example in examples]
    found = label_scores(gold, [one.label for one in predictions])
    return {"accuracy": found.accuracy, "macro_f1": found.macro.f1}
