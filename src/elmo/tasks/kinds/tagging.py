"""Words in, a tag for each out: entities, chunks, parts of speech."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from elmo.errors import DataError
from elmo.tasks.data.examples import TaggedSentence
from elmo.tasks.data.tag_schemes import Scheme, allowed_transitions, converted, scheme_of, spans_of
from elmo.tasks.heads.sentence_vectors import Widths
from elmo.tasks.heads.tagger import TaggerHead
from elmo.tasks.kinds.labels import Labels, padded_numbers
from elmo.tasks.scores.spans import span_scores
from elmo.tasks.task import Vectors


@dataclass(frozen=True)
class TaggingOptions:
    """Of the head; a CRF by default where tags mark spans."""

    hidden_width: int = 200
    n_layers: int = 1
    dropout: float = 0.5
    has_crf: bool | None = None


@dataclass(frozen=True)
class PredictedTags:
    """A tag and its probability for every word."""

    tags: tuple[str, ...]
    confidences: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """For a line of output."""
        return {"tags": list(self.tags), "confidences": [round(value, 4) for value in self.confidences]}


@dataclass(frozen=True)
class Tagging:
    """Tags as the data has them, and as the network learns them: spans are learned as BIOES."""

    kind: ClassVar[str] = "tagging"
    scheme: Scheme
    labels: Labels  # as learned
    options: TaggingOptions = TaggingOptions()

    @classmethod
    def of(cls, train: Sequence[TaggedSentence], options: TaggingOptions | None = None) -> Self:
        """The task that these examples set."""
        tags = [_known(example) for example in train]
        scheme = scheme_of(tags)
        learned = [_learned(row, scheme) for row in tags]
        labels = Labels.of((tag for row in learned for tag in row), what="tags")
        return cls(scheme, labels, options or TaggingOptions())

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
        rows = [
            [self.labels.number(tag) for tag in _learned(_known(example), self.scheme)]
            for example in examples
        ]
        tags = torch.from_numpy(padded_numbers(rows, found.mask.size(1)))
        return cast("TaggerHead", head).loss(found, tags)

    def predict(
        self, head: nn.Module, vectors: Vectors, examples: Sequence[TaggedSentence]
    ) -> list[PredictedTags]:
        """The likeliest tags, in the scheme of the data."""
        found = cast("TaggerHead", head).predict(vectors([example.words for example in examples]))
        predicted = []
        for one in found:
            tags = tuple(self.labels.names[number] for number in one.tags)
            if self.has_spans:
                tags = converted(tags, "BIOES", self.scheme)
            predicted.append(PredictedTags(tags, one.confidences))
        return predicted

    def check(self, examples: Sequence[TaggedSentence]) -> None:
        """Tell of tags that were not seen in training."""
        found = [(tag, example.place) for example in examples for tag in example.tags or ()]
        if self.has_spans:  # what counts are the labels: any scheme's marks will do
            known = Labels(tuple(sorted({_label(name) for name in self.labels.names})))
            known.check([(_label(tag), place) for tag, place in found if tag != "O"], what="labels")
        else:
            self.labels.check(found, what="tags")

    def scores(
        self, examples: Sequence[TaggedSentence], predictions: Sequence[PredictedTags]
    ) -> dict[str, float]:
        """Accuracy; and precision, recall and F1 of whole spans."""
        gold = [_known(example) for example in examples]
        pairs = [
            (right, said)
            for row, one in zip(gold, predictions, strict=True)
            for right, said in zip(row, one.tags, strict=True)
        ]
        accuracy = sum(right == said for right, said in pairs) / max(len(pairs), 1)
        if not self.has_spans:
            return {"accuracy": accuracy}
        scheme = scheme_of(gold)
        found = span_scores(
            [spans_of(row, self.scheme if scheme == "plain" else scheme) for row in gold],
            [spans_of(one.tags, self.scheme) for one in predictions],
        )
        return {
            "f1": found.overall.f1,
            "precision": found.overall.precision,
            "recall": found.overall.recall,
            "accuracy": accuracy,
        }

    def to_json(self) -> dict[str, Any]:
        """For a saved model."""
        return {
            "scheme": str(self.scheme),
            "labels": list(self.labels.names),
            "options": asdict(self.options),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What ``to_json`` gave."""
        options = TaggingOptions(**values["options"])
        return cls(cast("Scheme", values["scheme"]), Labels(tuple(values["labels"])), options)


def _known(example: TaggedSentence) -> tuple[str, ...]:
    if example.tags is None:
        where = "" if example.place is None else f"{example.place}: "
        raise DataError(f"{where}expected a tag for every word, found a sentence without tags")
    return example.tags


def _learned(tags: tuple[str, ...], scheme: Scheme) -> tuple[str, ...]:
    return tags if scheme == "plain" else converted(tags, scheme, "BIOES")


def _label(tag: str) -> str:
    return tag.partition("-")[2] or tag
