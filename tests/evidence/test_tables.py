"""Means, standard deviations and Welch intervals agree with published numbers."""

from __future__ import annotations

import numpy as np
import pytest

from elmo.evidence.tables import compare, summarize, t_quantile


@pytest.mark.parametrize(
    ("freedom", "expected"),
    # 97.5 % points of Student's t, as tables of it have them; the last is all but normal
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (10, 2.228), (30, 2.042), (1000, 1.962)],
)
def test_quantiles_are_those_of_the_published_tables(freedom: int, expected: float) -> None:
    assert t_quantile(freedom) == pytest.approx(expected, abs=6e-4)


def test_intervals_agree_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(1)
    for n_one, n_two in ((2, 2), (3, 3), (5, 2)):
        one, two = random.normal(0.8, 0.02, n_one), random.normal(0.7, 0.05, n_two)
        expected = stats.ttest_ind(one, two, equal_var=False).confidence_interval(0.95)
        found = compare(summarize(one.tolist()), summarize(two.tolist()))
        assert found.interval == pytest.approx((expected.low, expected.high), abs=1e-5)


def test_error_reduction_is_a_fraction_of_the_error() -> None:
    found = compare(summarize([0.9, 0.9]), summarize([0.8, 0.8]))
    assert found.difference == pytest.approx(0.1)
    assert found.error_reduction == pytest.approx(0.5)
    assert found.interval == pytest.approx((0.1, 0.1))


def test_one_seed_has_no_spread_and_no_interval() -> None:
    one = summarize([0.5])
    assert (one.mean, one.spread) == (0.5, None)
    found = compare(one, summarize([1.0]))
    assert (found.difference, found.interval, found.error_reduction) == (-0.5, None, None)
