"""Two rows of numbers in, how well they go together out: Pearson, Spearman, mean squared error.

Where one of the rows is constant, as that of a head that says the same of all pairs, a correlation is not
defined. It is 0 here, for such a row tells nothing of the other, and ``is_constant`` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmo.errors import DataError

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
