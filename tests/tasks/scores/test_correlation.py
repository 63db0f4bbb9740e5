"""Pearson, Spearman and the mean squared error."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo.errors import DataError
from elmo.tasks.scores.correlation import correlation_scores, mean_squared_error, pearson, spearman

FLOATS = st.floats(-1e149, 1e149)
NUMBERS = st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=20)


def test_a_line_correlates_fully_and_a_rising_curve_by_rank() -> None:
    x = [1.0, 2.0, 3.0, 4.0]
    assert pearson(x, [2.0, 4.0, 6.0, 8.0]) == pytest.approx(1.0)
    assert pearson(x, [8.0, 6.0, 4.0, 2.0]) == pytest.approx(-1.0)
    assert spearman(x, [1.0, 10.0, 100.0, 1000.0]) == pytest.approx(1.0)
    assert pearson(x, [1.0, 10.0, 100.0, 1000.0]) < 0.9
    assert mean_squared_error(x, [1.0, 2.0, 3.0, 6.0]) == 1.0


def test_a_constant_row_has_no_correlation_and_says_so() -> None:
    scores = correlation_scores([0.1, 0.2, 0.9], [0.3, 0.3, 0.3])
    assert (scores.pearson, scores.spearman, scores.is_constant) == (0.0, 0.0, True)
    assert scores.mean_squared_error == pytest.approx((0.04 + 0.01 + 0.36) / 3)
    assert correlation_scores([0.0, 0.0], [0.0, 0.0]).pearson == 0.0
    assert correlation_scores([5.0], [5.0]).is_constant
    assert not correlation_scores([0.0, 1.0], [0.0, 2.0]).is_constant


@given(rows=NUMBERS)
def test_correlations_are_numbers_from_minus_one_to_one(rows: list[tuple[float, float]]) -> None:
    x, y = [one for one, _ in rows], [other for _, other in rows]
    for found in (pearson(x, y), spearman(x, y)):
        assert -1.0 <= found <= 1.0


@pytest.mark.slow
def test_scores_agree_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(5)
    for k in range(300):
        n, scale = int(random.integers(3, 50)), 10.0 ** random.integers(-200, 149)
        x = random.integers(0, 5, n) * scale if k % 2 else random.normal(size=n) * scale  # with ties and without
        y = np.round(x / scale + random.normal(size=n), 1)
        x[0], x[1], y[0], y[1] = 0.0, scale, 0.0, 1.0  # none is constant
        scores = correlation_scores(x, y)
        # scipy squares numbers of any size, hence / scale
        assert scores.pearson == pytest.approx(stats.pearsonr(x / scale, y).statistic, abs=1e-12)
        assert scores.spearman == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
        assert (scores.n, scores.is_constant) == (n, False)
        assert pearson(x, y) == scores.pearson
        assert spearman(x.tolist(), y.tolist()) == scores.spearman


@pytest.mark.parametrize(
    ("gold", "said", "message"),
    [
        ([], [], r"expected one predicted number per true one, found \(0,\) and \(0,\)"),
        ([1.0, 2.0], [1.0], r"found \(1,\) and \(2,\)"),
        ([1.0, 2.0], [1.0, math.nan], "predicted number 2: expected a finite number below 1e.150, found nan"),
        ([1.0, 2.0], [-1e150, 2.0], "predicted number 1: expected a finite number"),
        ([math.inf, 2.0], [1.0, 2.0], "true number 1: expected a finite number below 1e.150, found inf"),
    ],
)
def test_numbers_that_cannot_be_compared_are_refused(gold: list[float], said: list[float], message: str) -> None:
    for score in (pearson, spearman, mean_squared_error, correlation_scores):
        with pytest.raises(DataError, match=message):
            score(gold, said)
