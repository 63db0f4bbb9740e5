"""Labels as they are and as they were predicted in, accuracy, precision, recall and F1 out.

All scores are shares from 0 to 1. A share of nothing is 0: a label that was never predicted has a precision
of 0, one that never was right an F1 of 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from elmo.errors import DataError


@dataclass(frozen=True)
class LabelScore:
    """How well something was found."""

    precision: float
    recall: float
    f1: float
    support: int  # how often it is there

    @classmethod
    def of_counts(cls, *, n_right: int, n_predicted: int, n_gold: int) -> LabelScore:
        """From how many were predicted, are there, and are both."""
        return cls(
            precision=n_right / n_predicted if n_predicted else 0.0,
            recall=n_right / n_gold if n_gold else 0.0,
            f1=2 * n_right / (n_predicted + n_gold) if n_predicted + n_gold else 0.0,
            support=n_gold,
        )

    @classmethod
    def macro(cls, scores: Iterable[LabelScore]) -> LabelScore:
        """The mean of several, each of the same weight; their supports are added."""
        listed = list(scores)
        n = max(len(listed), 1)
        return cls(
            precision=sum(one.precision for one in listed) / n,
            recall=sum(one.recall for one in listed) / n,
            f1=sum(one.f1 for one in listed) / n,
            support=sum(one.support for one in listed),
        )


@dataclass(frozen=True)
class LabelScores:
    """How well labels were predicted, in all and each."""

    accuracy: float
    macro: LabelScore  # over all labels that are there or were predicted
    by_label: Mapping[str, LabelScore]  # in the order of the labels
    confusion: Mapping[tuple[str, str], int]  # how often a label (first) was called another (second)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; ``confusion`` by the true label, then by the predicted one."""
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
    """Compare one predicted label with each true one."""
    if len(gold) != len(predicted) or not gold:
        raise DataError(f"expected one prediction for each label, found {len(predicted):,} for {len(gold):,}")
    pairs = Counter(zip(gold, predicted, strict=True))
    n_gold, n_predicted = Counter(gold), Counter(predicted)
    by_label = {
        label: LabelScore.of_counts(
            n_right=pairs[label, label], n_predicted=n_predicted[label], n_gold=n_gold[label]
        )
        for label in sorted(n_gold.keys() | n_predicted.keys())
    }
    n_right = sum(n for (one, other), n in pairs.items() if one == other)
    return LabelScores(
        accuracy=n_right / len(gold),
        macro=LabelScore.macro(by_label.values()),
        by_label=by_label,
        confusion=dict(sorted(pairs.items())),
    )
