"""Words in, a tag for each out: entities, chunks, parts of speech."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from elmo.errors import DataError
from elmo.tasks.data.examples import TaggedSentence, at
from elmo.tasks.data.tagging import (
    Scheme,
    allowed_transitions,
    converted,
    in_letters,
    is_of_a_scheme,
    letters_of,
    scheme_of,
    spans_of,
)
from elmo.tasks.heads.layers import Widths
from elmo.tasks.heads.taggers import TaggerHead
from elmo.tasks.kinds.task import Labels, Vectors, check_options, padded_numbers
from elmo.tasks.scores.labels import span_scores

NEARLY_ALL = 0.95  # of the tags but O: where so many mark spans, others are slips

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaggingOptions:
    """Of the head; a CRF by default where tags mark spans."""

    hidden_width: int = 200
    n_layers: int = 1
    dropout: float = 0.5
    has_crf: bool | None = None

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class PredictedTags:
    """A tag and its probability for every word."""

    tags: tuple[str, ...]
    confidences: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """For a line of output."""
        return {"tags": list(self.tags), "confidences": [round(value, 4) for value in self.confidences]}


@dataclass(frozen=True)
class _Gold:
    """The tags of a sentence as they are learned, and their numbers."""

    tags: tuple[str, ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Tagging:
    """Tags as the data has them, and as the network learns them: spans are learned as BIOES."""

    kind: ClassVar[str] = "tagging"
    scheme: Scheme
    labels: Labels  # as learned
    options: TaggingOptions = TaggingOptions()
    letters: str = "BIES"  # of the data: BILU and others are BIOES too
    _gold: dict[tuple[str, ...], _Gold] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, train: Sequence[TaggedSentence], options: TaggingOptions | None = None) -> Self:
        """The task that these examples set; tags that nearly all mark spans must all do so."""
        tags = [_known(example) for example in train]
        scheme = scheme_of(tags)
        if scheme == "plain":
            _refuse_slips(train)
        learned = [_learned(row, scheme) for row in tags]
        labels = Labels.of((tag for row in learned for tag in row), what="tags")
        letters = letters_of(tags) if scheme == "BIOES" else "BIES"
        _log.info("tags are %s (%s), learned as %d labels", scheme, _described(scheme, letters), len(labels))
        return cls(scheme, labels, options or TaggingOptions(), letters)

    @property
    def has_spans(self) -> bool:
        """Whether tags mark spans, rather than words."""
        return self.scheme != "plain"

    @property
    def main_score(self) -> str:
        """F1 of spans, or the share of right tags."""
        return "f1" if self.has_spans else "accuracy"

    def head(self, widths: Widths) -> TaggerHead:
        """A biLSTM with a CRF (spans) or a softmax (words)."""
        options = self.options
        rules = allowed_transitions(self.labels.names, "BIOES" if self.has_spans else "plain")
        return TaggerHead(
            widths,
            n_tags=len(self.labels),
            hidden_width=options.hidden_width,
            n_layers=options.n_layers,
            dropout=options.dropout,
            has_crf=self.has_spans if options.has_crf is None else options.has_crf,
            allowed=torch.from_numpy(rules.between),
            starts=torch.from_numpy(rules.start),
            ends=torch.from_numpy(rules.end),
        )

    def loss(self, head: nn.Module, vectors: Vectors, examples: Sequence[TaggedSentence]) -> Tensor:
        """How unlikely the tags are."""
        found = vectors([example.words for example in examples])
        rows = [self._of_gold(example).numbers for example in examples]
        tags = torch.from_numpy(padded_numbers(rows, found.mask.size(1)))
        return cast("TaggerHead", head).loss(found, tags)

    def predict(
        self, head: nn.Module, vectors: Vectors, examples: Sequence[TaggedSentence]
    ) -> list[PredictedTags]:
        """The likeliest tags, in the scheme and the letters of the data."""
        found = cast("TaggerHead", head).predict(vectors([example.words for example in examples]))
        predicted = []
        for one in found:
            tags = tuple(self.labels.names[number] for number in one.tags)
            if self.has_spans:
                tags = in_letters(converted(tags, "BIOES", self.scheme), self.letters)
            predicted.append(PredictedTags(tags, one.confidences))
        return predicted

    def check(self, examples: Sequence[TaggedSentence]) -> None:
        """Tell of tags that were not seen in training; refuse those of no scheme where tags mark spans."""
        found = [(tag, example.place) for example in examples for tag in _known(example)]
        if self.has_spans:  # what counts are the labels: any scheme's marks will do
            for example in examples:
                _refuse_odd(example, "O, or B- or I- and a label, as in training")
            known = Labels(tuple(sorted({_label(name) for name in self.labels.names})))
            known.check([(_label(tag), place) for tag, place in found if tag != "O"], what="labels")
        else:
            self.labels.check(found, what="tags")

    def scores(
        self, examples: Sequence[TaggedSentence], predictions: Sequence[PredictedTags]
    ) -> dict[str, float]:
        """Accuracy; and precision, recall and F1 of whole spans.

        Where tags mark spans, both sides are compared as BIOES, whichever scheme and letters they have.
        """
        gold = [self._of_gold(example).tags for example in examples]
        predicted = [_learned(one.tags, self.scheme) for one in predictions]
        pairs = [
            (right, said)
            for row, said_row in zip(gold, predicted, strict=True)
            for right, said in zip(row, said_row, strict=True)
        ]
        accuracy = sum(right == said for right, said in pairs) / max(len(pairs), 1)
        if not self.has_spans:
            return {"accuracy": accuracy}
        found = span_scores(
            [spans_of(row, "BIOES") for row in gold], [spans_of(row, "BIOES") for row in predicted]
        )
        return {
            "f1": found.overall.f1,
            "precision": found.overall.precision,
            "recall": found.overall.recall,
            "accuracy": accuracy,
        }

    def _of_gold(self, example: TaggedSentence) -> _Gold:
        """The tags of an example as they are learned; every epoch asks for them again."""
        tags = _known(example)
        if tags not in self._gold:
            learned = _learned(tags, self.scheme)
            self._gold[tags] = _Gold(learned, tuple(map(self.labels.number, learned)))
        return self._gold[tags]

    def to_json(self) -> dict[str, Any]:
        """For a saved model."""
        return {
            "scheme": str(self.scheme),
            "labels": list(self.labels.names),
            "letters": self.letters,
            "options": asdict(self.options),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What ``to_json`` gave."""
        options = TaggingOptions(**values["options"])
        labels, letters = Labels(tuple(values["labels"])), str(values.get("letters", "BIES"))
        return cls(cast("Scheme", values["scheme"]), labels, options, letters)


def _known(example: TaggedSentence) -> tuple[str, ...]:
    if example.tags is None:
        raise DataError(f"{at(example.place)}expected a tag for every word, found a sentence without tags")
    return example.tags


def _refuse_slips(train: Sequence[TaggedSentence]) -> None:
    """One tag mistyped, and all would be learned as plain tags, whose spans are not scored."""
    tags = [tag for example in train for tag in _known(example) if tag != "O"]
    n_fit = sum(map(is_of_a_scheme, tags))
    if n_fit < NEARLY_ALL * len(tags):
        return
    for example in train:
        _refuse_odd(
            example, f"O, or B- or I- and a label, as {n_fit:,} of {len(tags):,} tags beside O have it"
        )


def _refuse_odd(example: TaggedSentence, expected: str) -> None:
    for number, tag in enumerate(_known(example), start=1):
        if not is_of_a_scheme(tag):
            raise DataError(f"{at(example.place)}tag {number}: expected {expected}, found {tag[:40]!r}")


def _described(scheme: Scheme, letters: str) -> str:
    return {"plain": "no spans", "BIOES": f"in the letters {letters}"}.get(scheme, "spans")


def _learned(tags: tuple[str, ...], scheme: Scheme) -> tuple[str, ...]:
    return tags if scheme == "plain" else converted(tags, scheme, "BIOES")


def _label(tag: str) -> str:
    return tag.partition("-")[2] or tag
