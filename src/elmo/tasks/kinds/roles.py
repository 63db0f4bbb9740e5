"""Semantic role labeling: find the arguments of a predicate, as spans with roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from elmo.errors import DataError
from elmo.tasks.data.examples import Predicate, Span, format_location
from elmo.tasks.data.schemes import build_transitions, decode_spans, encode_spans
from elmo.tasks.heads.layers import FeatureWidths
from elmo.tasks.heads.taggers import RolesHead
from elmo.tasks.kinds.task import Embed, HeadOptions, Labels, pad_label_ids, unique_rows
from elmo.tasks.scores.labels import span_scores


@dataclass(frozen=True)
class RolesOptions(HeadOptions):
    """Options of the head for semantic roles; the paper uses 8 layers of width 300.

    Args:
        hidden_width: Width of the LSTM states.
        n_layers: Number of LSTM layers.
        dropout: Dropout inside the network.
        predicate_width: Width of the embedding that marks the predicate.

    Example:
        >>> options = RolesOptions(n_layers=8, hidden_width=300)  # as in the paper
    """

    hidden_width: int = 200
    n_layers: int = 4
    dropout: float = 0.1
    predicate_width: int = 50


@dataclass(frozen=True)
class PredictedRoles:
    """Spans with roles, and the confidence of each span: the lowest tag probability among its words."""

    roles: tuple[Span, ...]
    confidences: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the roles as JSON values, with confidences rounded to 4 digits."""
        return {
            "roles": [
                {"start": span.start, "end": span.end, "role": span.label, "confidence": round(confidence, 4)}
                for span, confidence in zip(self.roles, self.confidences, strict=True)
            ]
        }


@dataclass(frozen=True)
class Roles:
    """Semantic role labeling; roles are learned as BIO tags of words.

    Attributes:
        labels: BIO tags of the roles.
        options: Options of the head.

    Example:
        >>> task = load("roles.safetensors").task  # doctest: +SKIP
        >>> task.labels  # doctest: +SKIP
    """

    kind: ClassVar[str] = "roles"
    main_score: ClassVar[str] = "f1"
    labels: Labels
    options: RolesOptions = RolesOptions()
    _tag_ids: dict[tuple[tuple[Span, ...], int], tuple[int, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # cache for later epochs: maps roles and sentence length to tag ids

    @classmethod
    def from_examples(cls, train: Sequence[Predicate], options: RolesOptions | None = None) -> Self:
        """Create the task with the roles of its training examples."""
        roles = {span.label for example in train for span in _gold_roles(example)}
        tags = ["O", *(f"{mark}-{role}" for role in roles for mark in "BI")]
        return cls(Labels.collect(tags, what="roles"), options or RolesOptions())

    def build_head(self, widths: FeatureWidths) -> RolesHead:
        """Build a stack of highway LSTM layers with alternating directions."""
        rules = build_transitions(self.labels.names, "IOB2")
        return RolesHead(widths, n_tags=len(self.labels), rules=rules, **asdict(self.options))

    def loss(self, head: nn.Module, embed: Embed, examples: Sequence[Predicate]) -> Tensor:
        """Compute the mean negative log-likelihood of the gold tags."""
        sentences, rows = unique_rows(example.words for example in examples)
        predicates = torch.tensor([example.predicate for example in examples])
        tags = pad_label_ids(map(self._encode_tags, examples))
        return cast("RolesHead", head).loss(embed(sentences), predicates, tags=tags, rows=rows)

    def _encode_tags(self, example: Predicate) -> tuple[int, ...]:
        key = (_gold_roles(example), len(example.words))
        if key not in self._tag_ids:
            self._tag_ids[key] = tuple(map(self.labels.id_of, encode_spans(*key, "IOB2")))
        return self._tag_ids[key]

    def predict(self, head: nn.Module, embed: Embed, examples: Sequence[Predicate]) -> list[PredictedRoles]:
        """Predict the roles of each predicate."""
        sentences, rows = unique_rows(example.words for example in examples)
        predicates = torch.tensor([example.predicate for example in examples])
        tagged = cast("RolesHead", head).predict(embed(sentences), predicates, rows=rows)
        predictions = []
        for row in tagged:
            roles = decode_spans(tuple(self.labels.names[tag] for tag in row.tags), "IOB2")
            confidences = tuple(min(row.confidences[span.start : span.end]) for span in roles)
            predictions.append(PredictedRoles(roles, confidences))
        return predictions

    def check(self, examples: Sequence[Predicate]) -> None:
        """Warn about roles that were not seen in training."""
        known = Labels(tuple(sorted({tag[2:] for tag in self.labels.names if tag != "O"})))
        roles = [(span.label, example.location) for example in examples for span in _gold_roles(example)]
        known.check(roles, what="roles")

    def score(self, examples: Sequence[Predicate], predictions: Sequence[PredictedRoles]) -> dict[str, float]:
        """Compute precision, recall and F1 over spans with roles; parts of the predicate (C-V) are ignored.

        The continuation of an argument, such as C-ARG1, counts as a separate span. The CoNLL-2005 scorer joins
        it with its ARG1, so its scores differ for arguments with several parts.
        """
        overall = span_scores(
            [_without_predicate(_gold_roles(example)) for example in examples],
            [_without_predicate(prediction.roles) for prediction in predictions],
        ).overall
        return {"f1": overall.f1, "precision": overall.precision, "recall": overall.recall}

    def to_json(self) -> dict[str, Any]:
        """Return the tags and options as JSON values."""
        return {"labels": list(self.labels.names), "options": self.options.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create a task from the values that ``to_json`` returned."""
        return cls(Labels(tuple(values["labels"])), RolesOptions(**values["options"]))


def _gold_roles(example: Predicate) -> tuple[Span, ...]:
    if example.roles is None:
        raise DataError(f"{format_location(example.location)}the predicate must have gold roles; found None")
    return example.roles


def _without_predicate(roles: tuple[Span, ...]) -> tuple[Span, ...]:
    """Remove spans that continue the predicate (C-V), as the CoNLL-2005 scorer does."""
    return tuple(span for span in roles if span.label != "C-V")
