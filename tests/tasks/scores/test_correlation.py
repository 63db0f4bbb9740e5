"""Pearson, Spearman and the mean squared error."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo.errors import DataError
from elmo.tasks.scores.correlation import correlation_scores

FLOATS = st.floats(-1e149, 1e149)
NUMBERS = st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=20)


def test_a_line_correlates_fully_and_a_rising_curve_by_rank() -> None:
    x = [1.0, 2.0, 3.0, 4.0]
    assert correlation_scores(x, [2.0, 4.0, 6.0, 8.0]).pearson == pytest.approx(1.0)
    assert correlation_scores(x, [8.0, 6.0, 4.0, 2.0]).pearson == pytest.approx(-1.0)
    assert correlation_scores(x, [1.0, 10.0, 100.0, 1000.0]).spearman == pytest.approx(1.0)
    assert correlation_scores(x, [1.0, 10.0, 100.0, 1000.0]).pearson < 0.9
    assert correlation_scores(x, [1.0, 2.0, 3.0, 6.0]).mean_squared_error == 1.0


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
    scores = correlation_scores(x, y)
    for found in (scores.pearson, scores.spearman):
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
        scores = correlation_scores(x.tolist(), y.tolist())
        # scipy squares numbers of any size, hence / scale
        assert scores.pearson == pytest.approx(stats.pearsonr(x / scale, y).statistic, abs=1e-12)
        assert scores.spearman == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
        assert not scores.is_constant


@pytest.mark.parametrize(
    ("gold", "said", "message"),
    [
        ([], [], "must be equal and at least 1; found 0 and 0"),
        ([1.0, 2.0], [1.0], "found 2 and 1"),
        ([1.0, 2.0], [1.0, math.nan], "predicted number 2 must be finite and below 1e.150; found nan"),
        ([1.0, 2.0], [-1e150, 2.0], "predicted number 1 must be finite"),
        ([math.inf, 2.0], [1.0, 2.0], "gold number 1 must be finite and below 1e.150; found inf"),
    ],
)
def test_numbers_that_cannot_be_compared_are_refused(gold: list[float], said: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        correlation_scores(gold, said)
