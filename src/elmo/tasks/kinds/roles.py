"""A sentence and its predicate in, who did what to whom out: spans with their roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from elmo.errors import DataError
from elmo.tasks.data.examples import Predicate, Span, Words, at
from elmo.tasks.data.tagging import allowed_transitions, spans_of, tags_of
from elmo.tasks.heads.layers import Widths
from elmo.tasks.heads.taggers import RolesHead
from elmo.tasks.kinds.task import Labels, Vectors, check_options, padded_numbers
from elmo.tasks.scores.labels import span_scores


@dataclass(frozen=True)
class RolesOptions:
    """Of the head; the paper's has 8 layers of 300 units."""

    hidden_width: int = 200
    n_layers: int = 4
    dropout: float = 0.1
    predicate_width: int = 50

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class PredictedRoles:
    """Spans with their roles, and how sure each is: the least sure of its words."""

    roles: tuple[Span, ...]
    confidences: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """For a line of output."""
        return {
            "roles": [
                {"start": span.start, "end": span.end, "role": span.label, "confidence": round(sure, 4)}
                for span, sure in zip(self.roles, self.confidences, strict=True)
            ]
        }


@dataclass(frozen=True)
class Roles:
    """Roles as BIO tags of words."""

    kind: ClassVar[str] = "roles"
    labels: Labels  # tags
    options: RolesOptions = RolesOptions()
    _gold: dict[tuple[tuple[Span, ...], int], tuple[int, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # numbers of the tags, by roles and length

    @classmethod
    def of(cls, train: Sequence[Predicate], options: RolesOptions | None = None) -> Self:
        """The task that these examples set."""
        roles = {span.label for example in train for span in _known(example)}
        tags = ["O", *(f"{mark}-{role}" for role in roles for mark in "BI")]
        return cls(Labels.of(tags, what="roles"), options or RolesOptions())

    @property
    def main_score(self) -> str:
        """F1 of whole spans with their roles."""
        return "f1"

    def head(self, widths: Widths) -> RolesHead:
        """Alternating LSTMs with highway connections."""
        rules = allowed_transitions(self.labels.names, "IOB2")
        return RolesHead(
            widths,
            n_tags=len(self.labels),
            allowed=torch.from_numpy(rules.between),
            starts=torch.from_numpy(rules.start),
            ends=torch.from_numpy(rules.end),
            **asdict(self.options),
        )

    def loss(self, head: nn.Module, vectors: Vectors, examples: Sequence[Predicate]) -> Tensor:
        """How unlikely the words' tags are."""
        sentences, rows = _shared(examples)
        found = vectors(sentences)
        tags = [self._numbers(example) for example in examples]
        predicates = torch.tensor([example.predicate for example in examples])
        numbers = torch.from_numpy(padded_numbers(tags, found.mask.size(1)))
        return cast("RolesHead", head).loss(found, predicates, tags=numbers, rows=rows)

    def _numbers(self, example: Predicate) -> tuple[int, ...]:
        """Of the tag of each word; every epoch asks for them again."""
        key = (_known(example), len(example.words))
        if key not in self._gold:
            self._gold[key] = tuple(map(self.labels.number, tags_of(*key, "IOB2")))
        return self._gold[key]

    def predict(
        self, head: nn.Module, vectors: Vectors, examples: Sequence[Predicate]
    ) -> list[PredictedRoles]:
        """The likeliest roles."""
        sentences, rows = _shared(examples)
        predicates = torch.tensor([example.predicate for example in examples])
        found = cast("RolesHead", head).predict(vectors(sentences), predicates, rows=rows)
        predicted = []
        for one in found:
            roles = spans_of(tuple(self.labels.names[number] for number in one.tags), "IOB2")
            sure = tuple(min(one.confidences[span.start : span.end]) for span in roles)
            predicted.append(PredictedRoles(roles, sure))
        return predicted

    def check(self, examples: Sequence[Predicate]) -> None:
        """Tell of roles that were not seen in training."""
        known = Labels(tuple(sorted({tag[2:] for tag in self.labels.names if tag != "O"})))
        found = [(span.label, example.place) for example in examples for span in _known(example)]
        known.check(found, what="roles")

    def scores(
        self, examples: Sequence[Predicate], predictions: Sequence[PredictedRoles]
    ) -> dict[str, float]:
        """Precision, recall and F1 of spans with their roles; the predicate's own are not counted.

        A span counts by its own label: the later part of an argument, C-ARG1 say, is a span for itself.
        CoNLL-2005's scorer joins it to its ARG1 and counts both as one, so that the figures are not
        comparable where arguments have several parts.
        """
        found = span_scores(
            [_scored(_known(example)) for example in examples], [_scored(one.roles) for one in predictions]
        )
        return {
            "f1": found.overall.f1,
            "precision": found.overall.precision,
            "recall": found.overall.recall,
        }

    def to_json(self) -> dict[str, Any]:
        """For a saved model."""
        return {"labels": list(self.labels.names), "options": asdict(self.options)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What ``to_json`` gave."""
        return cls(Labels(tuple(values["labels"])), RolesOptions(**values["options"]))


def _known(example: Predicate) -> tuple[Span, ...]:
    if example.roles is None:
        raise DataError(f"{at(example.place)}expected the roles of the predicate, found none")
    return example.roles


def _scored(roles: tuple[Span, ...]) -> tuple[Span, ...]:
    """Without the rest of a predicate in several parts, as CoNLL-2005's scorer has it."""
    return tuple(span for span in roles if span.label != "C-V")


def _shared(examples: Sequence[Predicate]) -> tuple[list[Words], Tensor]:
    """Each sentence once, and which is whose."""
    places: dict[Words, int] = {}
    rows = [places.setdefault(example.words, len(places)) for example in examples]
    return list(places), torch.tensor(rows)
