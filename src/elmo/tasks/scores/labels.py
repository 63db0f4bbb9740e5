"""Labels as they are and as they were predicted in, accuracy, precision, recall and F1 out.

All scores are shares from 0 to 1. A share of nothing is 0: a label that was never predicted has a precision
of 0, one that never was right an F1 of 0.

The spans of sentences as they are and as they were predicted in, precision, recall and F1 out.

A span is right where start, end and label are all the same, as CoNLL-2000's and CoNLL-2003's conlleval
counts. All scores are shares from 0 to 1; a share of nothing is 0.

Two rows of numbers in, how well they go together out: Pearson, Spearman, mean squared error.

Where one of the rows is constant, as that of a head that says the same of all pairs, a correlation is not
defined. It is 0 here, for such a row tells nothing of the other, and ``is_constant`` says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmo.errors import DataError
from elmo.tasks.data.examples import Span


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


@dataclass(frozen=True)
class SpanScores:
    """How well spans were found."""

    overall: LabelScore  # all spans counted together (micro)
    macro: LabelScore  # the mean over labels that are there or were predicted
    by_label: Mapping[str, LabelScore]  # in the order of the labels

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "overall": asdict(self.overall),
            "macro": asdict(self.macro),
            "by_label": {label: asdict(score) for label, score in self.by_label.items()},
        }


def span_scores(gold: Sequence[Sequence[Span]], predicted: Sequence[Sequence[Span]]) -> SpanScores:
    """Compare the spans of each sentence (or predicate); one that is named twice counts once."""
    if len(gold) != len(predicted):
        raise DataError(
            f"expected the predicted spans of {len(gold):,} sentences, found those of {len(predicted):,}"
        )
    n_gold: Counter[str] = Counter()
    n_predicted: Counter[str] = Counter()
    n_right: Counter[str] = Counter()
    for true, said in zip(gold, predicted, strict=True):
        true_set, said_set = set(true), set(said)
        n_gold.update(span.label for span in true_set)
        n_predicted.update(span.label for span in said_set)
        n_right.update(span.label for span in true_set & said_set)
    by_label = {
        label: LabelScore.of_counts(
            n_right=n_right[label], n_predicted=n_predicted[label], n_gold=n_gold[label]
        )
        for label in sorted(n_gold.keys() | n_predicted.keys())
    }
    overall = LabelScore.of_counts(
        n_right=n_right.total(), n_predicted=n_predicted.total(), n_gold=n_gold.total()
    )
    return SpanScores(overall, LabelScore.macro(by_label.values()), by_label)


Numbers = Sequence[float] | NDArray[np.floating[Any]]
TOO_LARGE = 1e150  # a number whose square may not be one
_Row = NDArray[np.float64]  # (pair,)


@dataclass(frozen=True)
class CorrelationScores:
    """How predicted numbers go with the true ones."""

    pearson: float
    spearman: float
    mean_squared_error: float
    n: int
    is_constant: bool  # one of the rows is: its correlations are said to be 0

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def correlation_scores(gold: Numbers, predicted: Numbers) -> CorrelationScores:
    """All of them at once."""
    true, said = _rows(gold, predicted)
    return CorrelationScores(
        pearson=_pearson(true, said),
        spearman=_pearson(_ranks(true), _ranks(said)),
        mean_squared_error=float(np.square(true - said).mean()),
        n=len(true),
        is_constant=_is_constant(true) or _is_constant(said),
    )


def pearson(gold: Numbers, predicted: Numbers) -> float:
    """How near to a straight line they lie, -1 to 1; 0 where one of them is constant."""
    return _pearson(*_rows(gold, predicted))


def spearman(gold: Numbers, predicted: Numbers) -> float:
    """Pearson of their ranks; equals share the mean of their ranks. 0 where one of them is constant."""
    true, said = _rows(gold, predicted)
    return _pearson(_ranks(true), _ranks(said))


def mean_squared_error(gold: Numbers, predicted: Numbers) -> float:
    """The mean of the squared differences."""
    true, said = _rows(gold, predicted)
    return float(np.square(true - said).mean())


def _pearson(true: _Row, said: _Row) -> float:
    if _is_constant(true) or _is_constant(said):
        return 0.0
    one, other = _direction(true), _direction(said)
    return float(np.clip(one @ other, -1.0, 1.0))


def _direction(row: _Row) -> _Row:
    """From the mean, of length 1. Scaled first, so that squares of tiny numbers are not 0."""
    scaled = row / np.abs(row).max()
    centred = scaled - scaled.mean()
    length = float(np.linalg.norm(centred))
    return centred / length if length else centred


def _ranks(row: _Row) -> _Row:
    """From 1 on, (pair,)."""
    _, which, counts = np.unique(row, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)  # of each value
    return (last - (counts - 1) / 2)[which]


def _is_constant(row: _Row) -> bool:
    return bool(row.min() == row.max())


def _rows(gold: Numbers, predicted: Numbers) -> tuple[_Row, _Row]:
    true, said = np.asarray(gold, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if true.ndim != 1 or true.shape != said.shape or not true.size:
        raise DataError(
            f"expected one predicted number for each true one, found shapes {said.shape} and {true.shape}"
        )
    for name, row in (("true", true), ("predicted", said)):
        is_wrong = ~(np.abs(row) < TOO_LARGE)  # nan is not smaller either
        if is_wrong.any():
            k = int(np.flatnonzero(is_wrong)[0])
            raise DataError(f"{name} number {k + 1}: expected less than {TOO_LARGE:g}, found {row[k]}")
    return true, said
