"""Accuracy, precision, recall and F1 of labels and of spans.

0/0 counts as 0: a label that was never predicted has a precision of 0. A span is correct if start, end and
label all match, as in conlleval of CoNLL-2000 and CoNLL-2003.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from elmo.errors import DataError
from elmo.tasks.data.examples import Span


@dataclass(frozen=True)
class LabelScore:
    """Precision, recall and F1 of one label."""

    precision: float
    recall: float
    f1: float
    support: int  # number of true occurrences

    @classmethod
    def from_counts(cls, *, n_correct: int, n_predicted: int, n_gold: int) -> LabelScore:
        """Compute the scores from counts."""
        return cls(
            precision=n_correct / n_predicted if n_predicted else 0.0,
            recall=n_correct / n_gold if n_gold else 0.0,
            f1=2 * n_correct / (n_predicted + n_gold) if n_predicted + n_gold else 0.0,
            support=n_gold,
        )

    @classmethod
    def macro(cls, scores: Iterable[LabelScore]) -> LabelScore:
        """Average scores with equal weights and add their supports."""
        scores = list(scores)
        n = max(len(scores), 1)
        return cls(
            precision=sum(score.precision for score in scores) / n,
            recall=sum(score.recall for score in scores) / n,
            f1=sum(score.f1 for score in scores) / n,
            support=sum(score.support for score in scores),
        )


@dataclass(frozen=True)
class LabelScores:
    """Scores of predicted labels: overall and for each label."""

    accuracy: float
    macro: LabelScore  # over all labels that occur or were predicted
    by_label: Mapping[str, LabelScore]  # sorted by label
    confusion: Mapping[tuple[str, str], int]  # (true label, predicted label) to count

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; ``confusion`` maps true labels to counts of predicted labels."""
        confusion: dict[str, dict[str, int]] = {}
        for (gold, predicted), n in self.confusion.items():
            confusion.setdefault(gold, {})[predicted] = n
        return {
            "accuracy": self.accuracy,
            "macro": asdict(self.macro),
            "by_label": {label: asdict(score) for label, score in self.by_label.items()},
            "confusion": confusion,
        }


def label_scores(gold: Sequence[str], predicted: Sequence[str]) -> LabelScores:
    """Compare predicted labels with the true ones."""
    if len(gold) != len(predicted) or not gold:
        raise DataError(f"expected one prediction per label, found {len(predicted):,} for {len(gold):,}")
    pairs = Counter(zip(gold, predicted, strict=True))
    n_gold, n_predicted = Counter(gold), Counter(predicted)
    by_label = {
        label: LabelScore.from_counts(
            n_correct=pairs[label, label], n_predicted=n_predicted[label], n_gold=n_gold[label]
        )
        for label in sorted(n_gold.keys() | n_predicted.keys())
    }
    n_correct = sum(n for (true, prediction), n in pairs.items() if true == prediction)
    return LabelScores(
        accuracy=n_correct / len(gold),
        macro=LabelScore.macro(by_label.values()),
        by_label=by_label,
        confusion=dict(sorted(pairs.items())),
    )


@dataclass(frozen=True)
class SpanScores:
    """Scores of predicted spans: overall and for each label."""

    overall: LabelScore  # all spans together (micro average)
    macro: LabelScore  # mean over all labels that occur or were predicted
    by_label: Mapping[str, LabelScore]  # sorted by label

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "overall": asdict(self.overall),
            "macro": asdict(self.macro),
            "by_label": {label: asdict(score) for label, score in self.by_label.items()},
        }


def span_scores(gold: Sequence[Sequence[Span]], predicted: Sequence[Sequence[Span]]) -> SpanScores:
    """Compare the spans of each sentence or predicate; duplicates count once."""
    if len(gold) != len(predicted):
        raise DataError(f"expected predicted spans for {len(gold):,} sentences, found them for {len(predicted):,}")
    n_gold: Counter[str] = Counter()
    n_predicted: Counter[str] = Counter()
    n_correct: Counter[str] = Counter()
    for true_spans, predicted_spans in zip(map(set, gold), map(set, predicted), strict=True):
        n_gold.update(span.label for span in true_spans)
        n_predicted.update(span.label for span in predicted_spans)
        n_correct.update(span.label for span in true_spans & predicted_spans)
    by_label = {
        label: LabelScore.from_counts(n_correct=n_correct[label], n_predicted=n_predicted[label], n_gold=n_gold[label])
        for label in sorted(n_gold.keys() | n_predicted.keys())
    }
    overall = LabelScore.from_counts(
        n_correct=n_correct.total(), n_predicted=n_predicted.total(), n_gold=n_gold.total()
    )
    return SpanScores(overall, LabelScore.macro(by_label.values()), by_label)
