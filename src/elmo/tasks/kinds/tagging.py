"""Sequence tagging: named entities, chunks, parts of speech."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self, cast

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
from elmo.tasks.kinds.task import Embed, HeadOptions, Labels, pad_label_ids
from elmo.tasks.scores.labels import span_scores

NEARLY_ALL = 0.95  # if at least this fraction of the tags other than O mark spans, the others count as typos

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaggingOptions(HeadOptions):
    """Options of the head for sequence tagging.

    Args:
        hidden_width: Width of the LSTM states.
        n_layers: Number of LSTM layers.
        dropout: Dropout inside the network.
        has_crf: Whether to use a CRF instead of a softmax; None uses a CRF if tags mark spans.

    Example:
        >>> options = TaggingOptions(has_crf=True)
    """

    hidden_width: int = 200
    n_layers: int = 1
    dropout: float = 0.5
    has_crf: bool | None = None


@dataclass(frozen=True)
class PredictedTags:
    """The predicted tag of each word, and its probability."""

    tags: tuple[str, ...]
    confidences: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the tags as JSON values, with confidences rounded to 4 digits."""
        return {"tags": list(self.tags), "confidences": [round(value, 4) for value in self.confidences]}


@dataclass(frozen=True)
class Tagging:
    """Sequence tagging; tags that mark spans are learned as BIOES and predicted in the scheme of the data.

    Attributes:
        scheme: Scheme of the tags in the data.
        labels: The tags; those of spans are in the scheme BIOES.
        options: Options of the head.
        letters: Letters of a BIOES scheme in the data, such as BILU for BILOU.

    Example:
        >>> task = load("tagger.safetensors").task
        >>> task.kind, task.has_spans
        ('tagging', True)
    """

    kind: ClassVar[str] = "tagging"
    scheme: Scheme
    labels: Labels
    options: TaggingOptions = TaggingOptions()
    letters: str = "BIES"
    _learned: dict[tuple[str, ...], tuple[tuple[str, ...], tuple[int, ...]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # cache for later epochs: maps the tags of a sentence to BIOES tags and their ids

    @classmethod
    def from_examples(cls, train: Sequence[TaggedSentence], options: TaggingOptions | None = None) -> Self:
        """Create the task; raise ``DataError`` if nearly all tags mark spans, but not all."""
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
        """Whether tags mark spans of words."""
        return self.scheme != "plain"

    @property
    def main_score(self) -> str:
        """Name of the main score: F1 if tags mark spans, else accuracy."""
        return "f1" if self.has_spans else "accuracy"

    def build_head(self, widths: FeatureWidths) -> TaggerHead:
        """Build a biLSTM with a CRF or a softmax; by default, a CRF if tags mark spans."""
        rules = build_transitions(self.labels.names, "BIOES" if self.has_spans else "plain")
        options = asdict(self.options)
        if options["has_crf"] is None:
            options["has_crf"] = self.has_spans
        return TaggerHead(widths, n_tags=len(self.labels), rules=rules, **options)

    def loss(self, head: nn.Module, embed: Embed, examples: Sequence[TaggedSentence]) -> Tensor:
        """Compute the negative log-likelihood of the gold tags."""
        features = embed([example.words for example in examples])
        tags = pad_label_ids(self._encode_tags(example)[1] for example in examples)
        return cast("TaggerHead", head).loss(features, tags)

    def predict(self, head: nn.Module, embed: Embed, examples: Sequence[TaggedSentence]) -> list[PredictedTags]:
        """Predict the tags of each sentence, in the scheme and letters of the training data."""
        features = embed([example.words for example in examples])
        predictions = []
        for row in cast("TaggerHead", head).predict(features):
            tags = tuple(self.labels.names[tag] for tag in row.tags)
            if self.has_spans:
                tags = replace_letters(convert_tags(tags, "BIOES", self.scheme), self.letters)
            predictions.append(PredictedTags(tags, row.confidences))
        return predictions

    def check(self, examples: Sequence[TaggedSentence]) -> None:
        """Warn about tags that were not seen in training; raise ``DataError`` for an invalid span tag."""
        tags = [(tag, example.location) for example in examples for tag in _gold_tags(example)]
        if self.has_spans:  # only labels are compared, because the data may use another scheme
            for example in examples:
                _check_span_tags(example, "as in training")
            known = Labels(tuple(sorted({_label(name) for name in self.labels.names})))
            known.check([(_label(tag), location) for tag, location in tags if tag != "O"], what="labels")
        else:
            self.labels.check(tags, what="tags")

    def score(self, examples: Sequence[TaggedSentence], predictions: Sequence[PredictedTags]) -> dict[str, float]:
        """Compute accuracy and, if tags mark spans, precision, recall and F1 over whole spans.

        Tags are compared as BIOES, so the schemes of gold and predicted tags may differ.
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
        """Return the gold tags as BIOES if they mark spans, and their label ids."""
        tags = _gold_tags(example)
        if tags not in self._learned:
            learned = _to_learned(tags, self.scheme)
            self._learned[tags] = (learned, tuple(map(self.labels.id_of, learned)))
        return self._learned[tags]

    def to_json(self) -> dict[str, Any]:
        """Return the scheme, labels, letters and options as JSON values."""
        return {
            "scheme": str(self.scheme),
            "labels": list(self.labels.names),
            "letters": self.letters,
            "options": self.options.to_json(),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create a task from the values that ``to_json`` returned."""
        options = TaggingOptions(**values["options"])
        labels, letters = Labels(tuple(values["labels"])), str(values.get("letters", "BIES"))
        return cls(cast("Scheme", values["scheme"]), labels, options, letters)


def _gold_tags(example: TaggedSentence) -> tuple[str, ...]:
    if example.tags is None:
        raise DataError(f"{format_location(example.location)}each word must have a tag; found a sentence without tags")
    return example.tags


def _check_stray_tags(train: Sequence[TaggedSentence]) -> None:
    """Raise ``DataError`` if nearly all tags mark spans, but some do not: these are probably typos."""
    tags = [tag for example in train for tag in _gold_tags(example) if tag != "O"]
    n_fit = sum(map(is_span_tag, tags))
    if n_fit < NEARLY_ALL * len(tags):
        return
    for example in train:
        _check_span_tags(example, f"as {n_fit:,} of the {len(tags):,} tags other than O are")


def _check_span_tags(example: TaggedSentence, reason: str) -> None:
    for number, tag in enumerate(_gold_tags(example), start=1):
        if not is_span_tag(tag):
            raise DataError(
                f"{format_location(example.location)}tag {number} must be O or a span tag such as B-LOC, {reason}; "
                f"found {tag[:40]!r}"
            )


def _describe(scheme: Scheme, letters: str) -> str:
    return {"plain": "no spans", "BIOES": f"letters {letters}"}.get(scheme, "spans")


def _to_learned(tags: tuple[str, ...], scheme: Scheme) -> tuple[str, ...]:
    return tags if scheme == "plain" else convert_tags(tags, scheme, "BIOES")


def _label(tag: str) -> str:
    return tag.partition("-")[2] or tag
