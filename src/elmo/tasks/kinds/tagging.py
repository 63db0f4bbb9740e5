"""Sequence tagging: named entities, chunks, parts of speech."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from elmo.errors import DataError
from elmo.tasks.data.examples import TaggedSentence, format_location
from elmo.tasks.data.schemes import (
    Scheme,
    build_transitions,
    convert_tags,
    decode_spans,
    detect_letters,
    detect_scheme,
    is_span_tag,
    replace_letters,
)
from elmo.tasks.heads.layers import FeatureWidths
from elmo.tasks.heads.taggers import TaggerHead
from elmo.tasks.kinds.task import Embed, Labels, check_options, pad_label_ids
from elmo.tasks.scores.labels import span_scores

NEARLY_ALL = 0.95  # if this fraction of the tags other than O mark spans, the rest are errors

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaggingOptions:
    """Options of the head.

    Args:
        hidden_width: Width of the LSTM states.
        n_layers: Number of LSTM layers.
        dropout: Dropout inside the network.
        has_crf: Use a CRF instead of a softmax; None uses it if tags mark spans.
    """

    hidden_width: int = 200
    n_layers: int = 1
    dropout: float = 0.5
    has_crf: bool | None = None

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class PredictedTags:
    """A tag and its probability for each word."""

    tags: tuple[str, ...]
    confidences: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the values of an output line."""
        return {"tags": list(self.tags), "confidences": [round(value, 4) for value in self.confidences]}


@dataclass(frozen=True)
class Tagging:
    """Tagging; tags that mark spans are learned as BIOES and predicted in the scheme of the data."""

    kind: ClassVar[str] = "tagging"
    scheme: Scheme
    labels: Labels  # BIOES if tags mark spans
    options: TaggingOptions = TaggingOptions()
    letters: str = "BIES"  # letters of the data: BILU is the same scheme as BIOES
    _learned: dict[tuple[str, ...], tuple[tuple[str, ...], tuple[int, ...]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # learned tags and their ids by the tags of the data: every epoch needs them again

    @classmethod
    def from_examples(cls, train: Sequence[TaggedSentence], options: TaggingOptions | None = None) -> Self:
        """Create the task; if nearly all tags mark spans, all must."""
        tags = [_gold_tags(example) for example in train]
        scheme = detect_scheme(tags)
        if scheme == "plain":
            _check_stray_tags(train)
        learned = [_to_learned(row, scheme) for row in tags]
        labels = Labels.collect((tag for row in learned for tag in row), what="tags")
        letters = detect_letters(tags) if scheme == "BIOES" else "BIES"
        _log.info("tag scheme %s (%s), %d labels", scheme, _describe(scheme, letters), len(labels))
        return cls(scheme, labels, options or TaggingOptions(), letters)

    @property
    def has_spans(self) -> bool:
        """Whether tags mark spans, not single words."""
        return self.scheme != "plain"

    @property
    def main_score(self) -> str:
        """F1 over spans, or accuracy over words."""
        return "f1" if self.has_spans else "accuracy"

    def build_head(self, widths: FeatureWidths) -> TaggerHead:
        """Build a biLSTM with a CRF (spans) or a softmax (words)."""
        options = self.options
        rules = build_transitions(self.labels.names, "BIOES" if self.has_spans else "plain")
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

    def loss(self, head: nn.Module, embed: Embed, examples: Sequence[TaggedSentence]) -> Tensor:
        """Return the negative log-likelihood of the gold tags."""
        features = embed([example.words for example in examples])
        tag_ids = [self._encode_tags(example)[1] for example in examples]
        tags = torch.from_numpy(pad_label_ids(tag_ids, features.mask.size(1)))
        return cast("TaggerHead", head).loss(features, tags)

    def predict(self, head: nn.Module, embed: Embed, examples: Sequence[TaggedSentence]) -> list[PredictedTags]:
        """Predict tags in the scheme and letters of the data."""
        features = embed([example.words for example in examples])
        predictions = []
        for row in cast("TaggerHead", head).predict(features):
            tags = tuple(self.labels.names[tag] for tag in row.tags)
            if self.has_spans:
                tags = replace_letters(convert_tags(tags, "BIOES", self.scheme), self.letters)
            predictions.append(PredictedTags(tags, row.confidences))
        return predictions

    def check(self, examples: Sequence[TaggedSentence]) -> None:
        """Warn about tags unseen in training; raise ``DataError`` for a stray tag where tags mark spans."""
        tags = [(tag, example.location) for example in examples for tag in _gold_tags(example)]
        if self.has_spans:  # only the labels count: the data may use another scheme
            for example in examples:
                _check_span_tags(example, "O, or B- or I- and a label, as in training")
            known = Labels(tuple(sorted({_label(name) for name in self.labels.names})))
            known.check([(_label(tag), location) for tag, location in tags if tag != "O"], what="labels")
        else:
            self.labels.check(tags, what="tags")

    def score(self, examples: Sequence[TaggedSentence], predictions: Sequence[PredictedTags]) -> dict[str, float]:
        """Compute accuracy and, where tags mark spans, precision, recall and F1 over whole spans.

        Spans are compared as BIOES, so that the schemes of gold and predicted tags may differ.
        """
        gold = [self._encode_tags(example)[0] for example in examples]
        predicted = [_to_learned(prediction.tags, self.scheme) for prediction in predictions]
        is_correct = [
            tag == gold_tag
            for row, gold_row in zip(predicted, gold, strict=True)
            for tag, gold_tag in zip(row, gold_row, strict=True)
        ]
        accuracy = sum(is_correct) / max(len(is_correct), 1)
        if not self.has_spans:
            return {"accuracy": accuracy}
        overall = span_scores(
            [decode_spans(row, "BIOES") for row in gold], [decode_spans(row, "BIOES") for row in predicted]
        ).overall
        return {"f1": overall.f1, "precision": overall.precision, "recall": overall.recall, "accuracy": accuracy}

    def _encode_tags(self, example: TaggedSentence) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the gold tags as they are learned, and their ids."""
        tags = _gold_tags(example)
        if tags not in self._learned:
            learned = _to_learned(tags, self.scheme)
            self._learned[tags] = (learned, tuple(map(self.labels.id_of, learned)))
        return self._learned[tags]

    def to_json(self) -> dict[str, Any]:
        """Return labels and options, for a saved model."""
        return {
            "scheme": str(self.scheme),
            "labels": list(self.labels.names),
            "letters": self.letters,
            "options": asdict(self.options),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Restore a task from the result of ``to_json``."""
        options = TaggingOptions(**values["options"])
        labels, letters = Labels(tuple(values["labels"])), str(values.get("letters", "BIES"))
        return cls(cast("Scheme", values["scheme"]), labels, options, letters)


def _gold_tags(example: TaggedSentence) -> tuple[str, ...]:
    if example.tags is None:
        raise DataError(
            f"{format_location(example.location)}expected a tag for each word, found a sentence without tags"
        )
    return example.tags


def _check_stray_tags(train: Sequence[TaggedSentence]) -> None:
    """Raise ``DataError`` for a mistyped tag, which would turn all span tags into plain tags."""
    tags = [tag for example in train for tag in _gold_tags(example) if tag != "O"]
    n_fit = sum(map(is_span_tag, tags))
    if n_fit < NEARLY_ALL * len(tags):
        return
    for example in train:
        _check_span_tags(example, f"O, or B- or I- and a label, like {n_fit:,} of the {len(tags):,} other tags")


def _check_span_tags(example: TaggedSentence, expected: str) -> None:
    for number, tag in enumerate(_gold_tags(example), start=1):
        if not is_span_tag(tag):
            raise DataError(f"{format_location(example.location)}tag {number}: expected {expected}, found {tag[:40]!r}")


def _describe(scheme: Scheme, letters: str) -> str:
    return {"plain": "no spans", "BIOES": f"letters {letters}"}.get(scheme, "spans")


def _to_learned(tags: tuple[str, ...], scheme: Scheme) -> tuple[str, ...]:
    return tags if scheme == "plain" else convert_tags(tags, scheme, "BIOES")


def _label(tag: str) -> str:
    return tag.partition("-")[2] or tag
