"""Pearson and Spearman correlation and mean squared error.

A correlation with a constant row of numbers, for example a model that predicts the same value for every pair,
is undefined. It is reported as 0 here, and ``is_constant`` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmo.errors import DataError

Numbers = Sequence[float] | NDArray[np.floating[Any]]
TOO_LARGE = 1e150  # the square of a larger number may overflow
_Row = NDArray[np.float64]  # (pair,)


@dataclass(frozen=True)
class CorrelationScores:
    """Agreement of predicted numbers with the true ones."""

    pearson: float
    spearman: float
    mean_squared_error: float
    n: int
    is_constant: bool  # all numbers of one side are equal, so the correlations are reported as 0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def correlation_scores(gold: Numbers, predicted: Numbers) -> CorrelationScores:
    """Compute all scores."""
    true_row, predicted_row = _rows(gold, predicted)
    return CorrelationScores(
        pearson=_pearson(true_row, predicted_row),
        spearman=_pearson(_ranks(true_row), _ranks(predicted_row)),
        mean_squared_error=float(np.square(true_row - predicted_row).mean()),
        n=len(true_row),
        is_constant=_is_constant(true_row) or _is_constant(predicted_row),
    )


def pearson(gold: Numbers, predicted: Numbers) -> float:
    """Compute the Pearson correlation; 0 if one side is constant."""
    return _pearson(*_rows(gold, predicted))


def spearman(gold: Numbers, predicted: Numbers) -> float:
    """Compute the Spearman correlation, with mean ranks for ties; 0 if one side is constant."""
    true_row, predicted_row = _rows(gold, predicted)
    return _pearson(_ranks(true_row), _ranks(predicted_row))


def mean_squared_error(gold: Numbers, predicted: Numbers) -> float:
    """Compute the mean squared difference."""
    true_row, predicted_row = _rows(gold, predicted)
    return float(np.square(true_row - predicted_row).mean())


def _pearson(true_row: _Row, predicted_row: _Row) -> float:
    if _is_constant(true_row) or _is_constant(predicted_row):
        return 0.0
    return float(np.clip(_unit_vector(true_row) @ _unit_vector(predicted_row), -1.0, 1.0))


def _unit_vector(row: _Row) -> _Row:
    """Center a row and scale it to length 1; scaling first keeps tiny squares from underflowing."""
    scaled = row / np.abs(row).max()
    centered = scaled - scaled.mean()
    length = float(np.linalg.norm(centered))
    return centered / length if length else centered


def _ranks(row: _Row) -> _Row:
    """Rank numbers from 1, (pair,)."""
    _, position, counts = np.unique(row, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)  # the last rank of each distinct value
    return (last - (counts - 1) / 2)[position]


def _is_constant(row: _Row) -> bool:
    return bool(row.min() == row.max())


def _rows(gold: Numbers, predicted: Numbers) -> tuple[_Row, _Row]:
    true_row, predicted_row = np.asarray(gold, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if true_row.ndim != 1 or true_row.shape != predicted_row.shape or not true_row.size:
        raise DataError(f"expected one predicted number per true one, found {predicted_row.shape} and {true_row.shape}")
    for name, row in (("true", true_row), ("predicted", predicted_row)):
        is_wrong = ~(np.abs(row) < TOO_LARGE)  # also true for NaN
        if is_wrong.any():
            k = int(np.flatnonzero(is_wrong)[0])
            raise DataError(f"{name} number {k + 1}: expected a finite number below {TOO_LARGE:g}, found {row[k]}")
    return true_row, predicted_row
