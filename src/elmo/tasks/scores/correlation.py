"""Pearson and Spearman correlation and mean squared error.

The correlation with a constant sequence, for example if a model predicts the same score for every pair, is
undefined. It is reported as 0, and ``is_constant`` is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmo.errors import DataError

MAX_NUMBER = 1e150  # the square of a larger number may overflow
_Row = NDArray[np.float64]  # (pair,)


@dataclass(frozen=True)
class CorrelationScores:
    """Agreement between predicted and gold numbers."""

    pearson: float
    spearman: float
    mean_squared_error: float
    is_constant: bool  # whether all gold or all predicted numbers are equal, so that the correlations are 0


def correlation_scores(gold: Sequence[float], predicted: Sequence[float]) -> CorrelationScores:
    """Compute correlations and the mean squared error; the Spearman correlation gives ties their mean rank."""
    gold_row, predicted_row = _check_numbers(gold, "gold"), _check_numbers(predicted, "predicted")
    if gold_row.shape != predicted_row.shape or not gold_row.size:
        raise DataError(
            f"numbers of gold and predicted scores must be equal and at least 1; "
            f"found {gold_row.size} and {predicted_row.size}"
        )
    return CorrelationScores(
        pearson=_pearson(gold_row, predicted_row),
        spearman=_pearson(_ranks(gold_row), _ranks(predicted_row)),
        mean_squared_error=float(np.square(gold_row - predicted_row).mean()),
        is_constant=_is_constant(gold_row) or _is_constant(predicted_row),
    )


def _pearson(gold: _Row, predicted: _Row) -> float:
    if _is_constant(gold) or _is_constant(predicted):
        return 0.0
    return float(np.clip(_unit_vector(gold) @ _unit_vector(predicted), -1.0, 1.0))


def _unit_vector(row: _Row) -> _Row:
    """Center a row and scale it to length 1; dividing by the maximum first keeps tiny squares from underflowing."""
    scaled = row / np.abs(row).max()
    centered = scaled - scaled.mean()
    length = float(np.linalg.norm(centered))
    return centered / length if length else centered


def _ranks(row: _Row) -> _Row:
    """Return the rank of each number, starting at 1; equal numbers get their mean rank."""
    _, position, counts = np.unique(row, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)  # the last rank of each distinct number
    return (last - (counts - 1) / 2)[position]


def _is_constant(row: _Row) -> bool:
    return bool(row.min() == row.max())


def _check_numbers(numbers: Sequence[float], name: str) -> _Row:
    row = np.asarray(numbers, dtype=np.float64)
    is_wrong = ~(np.abs(row) < MAX_NUMBER)  # also true for NaN
    if is_wrong.any():
        k = int(np.flatnonzero(is_wrong)[0])
        raise DataError(f"{name} number {k + 1} must be finite and below {MAX_NUMBER:g}; found {row[k]}")
    return row
