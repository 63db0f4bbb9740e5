"""Measures of change agree with their definitions, chance is told from change, false discoveries are few."""

from __future__ import annotations

import numpy as np
import pytest

from elmo import ConfigError, DataError
from elmo.lexicon.change import MEASURES, judged, measure_of, q_values, rank_correlation


def periods(n: int = 30, *, moved: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Vectors of two periods, the later moved; which are later; and two senses by a sign."""
    chance = np.random.default_rng(seed)
    rows = chance.normal(size=(2 * n, 8)) + 1
    rows[n:, 0] += moved
    return rows, np.repeat([False, True], n), (rows[:, 0] > 1).astype(np.int64)


def slow(name: str, a: np.ndarray, b: np.ndarray, shares: tuple[np.ndarray, np.ndarray]) -> float:
    """The definitions, word for word."""
    if name == "apd":
        return float(np.mean([1 - x @ y / np.linalg.norm(x) / np.linalg.norm(y) for x in a for y in b]))
    x, y = a.mean(axis=0), b.mean(axis=0)
    cosine = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
    if name.startswith("prt"):
        return float(1 - cosine if name == "prt" else 1 / cosine)
    p, q = shares
    middle = (p + q) / 2
    return sum(float(np.sum(s[s > 0] * np.log2(s[s > 0] / middle[s > 0]))) for s in (p, q)) / 2


@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_is_what_it_is_said_to_be(name: str) -> None:
    rows, is_later, labels = periods(9, moved=2.0)
    shares = tuple(np.bincount(labels[m], minlength=2) / 9 for m in (~is_later, is_later))
    found = judged(measure_of(name, rows, labels), is_later, permutations=20)
    assert found.value == pytest.approx(slow(name, rows[~is_later], rows[is_later], (shares[0], shares[1])))
    assert found.low <= found.value <= found.high


@pytest.mark.parametrize("name", MEASURES)
def test_change_is_told_from_chance(name: str) -> None:
    rows, is_later, labels = periods(40, moved=3.0)
    changed = judged(measure_of(name, rows, labels), is_later, permutations=999)
    assert changed.p == 1 / 1000
    p_values = []
    for seed in range(25):
        rows, is_later, labels = periods(20, seed=seed + 100)
        p_values.append(judged(measure_of(name, rows, labels), is_later, permutations=99, seed=seed).p)
    assert 0.2 < np.mean(p_values) < 0.8  # as chance has it, they lie anywhere between 0 and 1
    assert np.mean(np.array(p_values) <= 0.05) <= 0.2


def test_p_counts_the_permutations_that_change_as_much() -> None:
    # 2 of 6 orders part these as they are parted; so two thirds of permutations do not
    rows = np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    found = judged(measure_of("apd", rows), np.array([False, False, True, True]), permutations=3000)
    assert found.value == 1.0
    assert found.p == pytest.approx(1 / 3, abs=0.03)
    same = judged(measure_of("apd", rows * 0 + 1), np.array([False, False, True, True]), permutations=10)
    assert (same.value, same.p) == (pytest.approx(0.0), 1.0)


def test_the_interval_holds_the_true_change_about_as_often_as_it_says() -> None:
    truth = judged(measure_of("apd", periods(2000, moved=2.0, seed=99)[0]), periods(2000)[1], permutations=1)
    hits = 0
    for seed in range(40):
        rows, is_later, _ = periods(30, moved=2.0, seed=seed)
        found = judged(measure_of("apd", rows), is_later, permutations=1, seed=seed)
        hits += found.low <= truth.value <= found.high
    assert hits >= 33


def test_many_usages_are_done_in_pieces_with_the_same_law() -> None:
    rows, is_later, _ = periods(1000, moved=0.5)
    found = judged(measure_of("apd", rows), is_later, permutations=2500)
    assert found.p == 1 / 2501
    assert found.low < found.value < found.high


def test_q_values_are_those_of_benjamini_and_hochberg() -> None:
    p = np.array([0.01, 0.04, 0.03, 0.005, 0.9])
    assert q_values(p) == pytest.approx([0.025, 0.05, 0.05, 0.025, 0.9])
    scipy_stats = pytest.importorskip("scipy.stats")
    many = np.random.default_rng(0).uniform(size=50) ** 2
    assert q_values(many) == pytest.approx(scipy_stats.false_discovery_control(many))
    assert q_values(np.array([])).tolist() == []


def test_rank_correlation_is_spearmans_with_ties() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    chance = np.random.default_rng(0)
    x, y = chance.integers(0, 6, 30).astype(float), chance.normal(size=30)
    assert rank_correlation(x, y) == pytest.approx(scipy_stats.spearmanr(x, y).statistic)
    assert rank_correlation(x, x * 0) is None
    assert rank_correlation(x[:1], y[:1]) is None


def test_what_cannot_be_judged_is_refused() -> None:
    rows, is_later, _ = periods(5)
    with pytest.raises(ConfigError, match="one of apd, prt, prt-inverted, jsd, not 'cos'"):
        measure_of("cos", rows)
    with pytest.raises(ConfigError, match="give the sense of each usage"):
        measure_of("jsd", rows)
    with pytest.raises(ConfigError, match="permutations must be at least 1, found 0"):
        judged(measure_of("apd", rows), is_later, permutations=0)
    with pytest.raises(DataError, match="usages of two periods, found 0 later ones of 10"):
        judged(measure_of("apd", rows), is_later & False)
