"""Accuracy, precision, recall and F1 of labels and of spans.

0/0 counts as 0: a label that is never predicted has a precision of 0. A span is correct if its start, end and
label match a gold span, as in the script conlleval of CoNLL-2000 and CoNLL-2003.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from elmo.errors import DataError
from elmo.tasks.data.examples import Span


@dataclass(frozen=True)
class LabelScore:
    """Precision, recall and F1 of one label."""

    precision: float
    recall: float
    f1: float
    support: int  # number of gold labels or spans

    @classmethod
    def from_counts(cls, *, n_correct: int, n_predicted: int, n_gold: int) -> LabelScore:
        """Compute precision, recall and F1 from counts of labels or spans."""
        return cls(
            precision=n_correct / n_predicted if n_predicted else 0.0,
            recall=n_correct / n_gold if n_gold else 0.0,
            f1=2 * n_correct / (n_predicted + n_gold) if n_predicted + n_gold else 0.0,
            support=n_gold,
        )

    @classmethod
    def macro(cls, scores: Iterable[LabelScore]) -> LabelScore:
        """Return the unweighted mean of scores, with the sum of their supports."""
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
    """Scores of predicted labels, overall and for each label."""

    accuracy: float
    macro: LabelScore  # mean over all gold and predicted labels
    by_label: Mapping[str, LabelScore]  # sorted by label
    confusion: Mapping[tuple[str, str], int]  # counts of (gold label, predicted label)


def label_scores(gold: Sequence[str], predicted: Sequence[str]) -> LabelScores:
    """Compute the scores of predicted labels; ``gold[i]`` is the correct label for ``predicted[i]``."""
    if not gold:
        raise DataError("cannot compute scores: there are no labeled examples")
    pairs = Counter(zip(gold, predicted, strict=True))
    n_correct = Counter({label: n for (label, other), n in pairs.items() if label == other})
    by_label = _score_labels(n_correct, Counter(predicted), Counter(gold))
    return LabelScores(
        accuracy=n_correct.total() / len(gold),
        macro=LabelScore.macro(by_label.values()),
        by_label=by_label,
        confusion=dict(sorted(pairs.items())),
    )


@dataclass(frozen=True)
class SpanScores:
    """Scores of predicted spans, overall and for each label."""

    overall: LabelScore  # all spans together (micro average)
    macro: LabelScore  # mean over the labels of all gold and predicted spans
    by_label: Mapping[str, LabelScore]  # sorted by label


def span_scores(gold: Sequence[Sequence[Span]], predicted: Sequence[Sequence[Span]]) -> SpanScores:
    """Compute the scores of the predicted spans of each sentence or predicate; duplicate spans count once."""
    n_gold: Counter[str] = Counter()
    n_predicted: Counter[str] = Counter()
    n_correct: Counter[str] = Counter()
    for gold_spans, predicted_spans in zip(map(set, gold), map(set, predicted), strict=True):
        n_gold.update(span.label for span in gold_spans)
        n_predicted.update(span.label for span in predicted_spans)
        n_correct.update(span.label for span in gold_spans & predicted_spans)
    by_label = _score_labels(n_correct, n_predicted, n_gold)
    overall = LabelScore.from_counts(
        n_correct=n_correct.total(), n_predicted=n_predicted.total(), n_gold=n_gold.total()
    )
    return SpanScores(overall, LabelScore.macro(by_label.values()), by_label)


def _score_labels(n_correct: Counter[str], n_predicted: Counter[str], n_gold: Counter[str]) -> dict[str, LabelScore]:
    return {
        label: LabelScore.from_counts(n_correct=n_correct[label], n_predicted=n_predicted[label], n_gold=n_gold[label])
        for label in sorted(n_gold.keys() | n_predicted.keys())
    }
