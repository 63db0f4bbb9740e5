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
from elmo.tasks.heads.layers import FeatureWidths, LabelHead
from elmo.tasks.kinds.task import OPTIONAL, Embed, HeadOptions, Labels, embed_columns
from elmo.tasks.scores.labels import label_scores

Network = Literal["biattentive", "linear"]


@dataclass(frozen=True)
class PredictedLabel:
    """The most probable label of an example, and the probability of each label."""

    label: str
    probabilities: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return the prediction as JSON values, with probabilities rounded to 4 decimal places."""
        probabilities = {name: round(p, 4) for name, p in self.probabilities.items()}
        return {"label": self.label, "probabilities": probabilities}


@dataclass(frozen=True)
class LabelTask:
    """Base class for tasks that predict one label for each example."""

    kind: ClassVar[str]
    options_type: ClassVar[type[HeadOptions]]
    main_score: ClassVar[str] = "accuracy"
    labels: Labels
    options: Any

    @classmethod
    def from_examples(cls, train: Sequence[LabeledText | TextPair], options: HeadOptions | None = None) -> Self:
        """Create the task with the labels of its training examples."""
        return cls(Labels.collect(map(_gold_label, train), what="labels"), options or cls.options_type())

    def loss(self, head: nn.Module, embed: Embed, examples: Sequence[LabeledText | TextPair]) -> Tensor:
        """Compute the mean negative log-likelihood of the gold labels."""
        labels = torch.tensor([self.labels.id_of(_gold_label(example)) for example in examples])
        return cast("LabelHead", head).loss(*embed_columns(embed, examples), labels=labels)

    def predict(
        self, head: nn.Module, embed: Embed, examples: Sequence[LabeledText | TextPair]
    ) -> list[PredictedLabel]:
        """Predict the label of each example."""
        names = self.labels.names
        probabilities = cast("LabelHead", head).predict(*embed_columns(embed, examples))  # (batch, label)
        return [
            PredictedLabel(names[row.index(max(row))], dict(zip(names, row, strict=True)))
            for row in probabilities.tolist()
        ]

    def check(self, examples: Sequence[LabeledText | TextPair]) -> None:
        """Warn about labels that were not seen in training."""
        self.labels.check([(_gold_label(example), example.location) for example in examples], what="labels")

    def score(
        self, examples: Sequence[LabeledText | TextPair], predictions: Sequence[PredictedLabel]
    ) -> dict[str, float]:
        """Compute accuracy and macro-averaged F1."""
        scores = label_scores(list(map(_gold_label, examples)), [prediction.label for prediction in predictions])
        return {"accuracy": scores.accuracy, "macro_f1": scores.macro.f1}

    def to_json(self) -> dict[str, Any]:
        """Return the labels and options as JSON values."""
        return {"labels": list(self.labels.names), "options": self.options.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create a task from the values that ``to_json`` returned."""
        return cls(Labels(tuple(values["labels"])), cls.options_type(**values["options"]))


@dataclass(frozen=True)
class ClassificationOptions(HeadOptions):
    """Options of the head for text classification.

    Args:
        network: The biattentive network of the paper, or a linear classifier.
        hidden_width: Width of the hidden states of the biattentive network; None for the default of the head.
        dropout: Dropout inside the network; None for the default of the head.
        final_layers: Final layers of the biattentive network, relu or maxout (McCann et al. 2017).
        use_max: Whether the linear classifier uses the maximum over the words in addition to the mean.

    Example:
        >>> options = ClassificationOptions(network="linear")
    """

    network: Network = "biattentive"
    hidden_width: int | None = None
    dropout: float | None = None
    final_layers: FinalLayers = field(default="relu", metadata=OPTIONAL)
    use_max: bool = field(default=False, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, default, network in (
            ("hidden_width", None, "biattentive"),
            ("final_layers", "relu", "biattentive"),
            ("use_max", False, "linear"),
        ):
            if getattr(self, name) != default and self.network != network:
                raise ConfigError(f"option {name} needs network {network}; found network {self.network}")


@dataclass(frozen=True)
class Classification(LabelTask):
    """Classification of texts into the labels of the training examples.

    Attributes:
        labels: The labels.
        options: Options of the head.

    Example:
        >>> task = load("sentiment.safetensors").task  # doctest: +SKIP
        >>> task.labels  # doctest: +SKIP
    """

    kind: ClassVar[str] = "classification"
    options_type: ClassVar[type[HeadOptions]] = ClassificationOptions
    options: ClassificationOptions = ClassificationOptions()

    def build_head(self, widths: FeatureWidths) -> LabelHead:
        """Build the network that the options select: biattentive or linear."""
        options = self.options
        values: dict[str, Any] = {"dropout": options.dropout}
        if options.network == "linear":
            head, values["use_max"] = LinearHead, options.use_max
        else:
            head = BiattentiveHead
            values |= {"hidden_width": options.hidden_width, "final_layers": options.final_layers}
        not_default = {name: value for name, value in values.items() if value is not None}
        return head(widths, n_labels=len(self.labels), **not_default)


def _gold_label(example: LabeledText | TextPair) -> str:
    if example.label is None:
        raise DataError(f"{format_location(example.location)}the example must have a label; found none")
    return example.label
