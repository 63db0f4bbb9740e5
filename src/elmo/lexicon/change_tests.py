"""Vectors of a word's usages in two periods in, how far the word changed and whether by chance, out.

Every measure is a function of weights (case, usage), one row of numbers for each period: ones and zeros for
the usages as they are, shuffled for a permutation, and how often each was drawn for a bootstrap. So a
thousand permutations are two products of matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError
from elmo.lexicon.clustering import Labels
from elmo.lexicon.unit_rows import unit_rows

MeasureName = Literal["apd", "prt", "prt-inverted", "jsd"]
MEASURES: tuple[str, ...] = get_args(MeasureName)
Floats = NDArray[np.float64]

_CELLS = 1 << 22  # of a matrix of weights at once


@dataclass(frozen=True, eq=False)
class Measure:
    """One of the measures for given usages; see ``measure_of``."""

    name: str
    rows: Floats  # (usage, feature): what is summed by the weights

    def __call__(self, earlier: Floats, later: Floats) -> Floats:
        """The change (case,) for the weights of each period, both (case, usage)."""
        a, b = (weights @ self.rows / weights.sum(axis=1, keepdims=True) for weights in (earlier, later))
        if self.name == "jsd":
            return _entropy((a + b) / 2) - (_entropy(a) + _entropy(b)) / 2
        if self.name == "apd":  # the mean cosine of all pairs is the product of the mean unit vectors
            return 1 - (a * b).sum(axis=1)
        sizes = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        cosines = (a * b).sum(axis=1) / np.where(sizes > 0, sizes, 1.0)
        if self.name == "prt":
            return 1 - cosines
        # a mean vector that points elsewhere altogether has no inverse to speak of
        return 1 / np.maximum(cosines, 1e-6)


def measure_of(name: str, vectors: NDArray[np.floating[Any]], labels: Labels | None = None) -> Measure:
    """A measure of change for usages with ``vectors`` (usage, width) and, for jsd, their senses' ``labels``.

    ``apd``: average cosine distance of all pairs across the periods; ``prt``: 1 - cosine of the mean vectors
    (prototypes), ``prt-inverted``: 1 / cosine (Kutuzov and Giulianelli 2020); ``jsd``: Jensen-Shannon
    divergence of the senses' shares, in bits, from 0 to 1.
    """
    if name not in MEASURES:
        raise ConfigError(f"measure must be one of {', '.join(MEASURES)}, not {name!r:.40}")
    rows = np.asarray(vectors, dtype=np.float64)
    if name == "jsd":
        if labels is None:
            raise ConfigError("jsd compares the shares of senses: give the sense of each usage, too")
        rows = np.eye(int(labels.max()) + 1)[labels]
    elif name == "apd":
        rows = unit_rows(rows)
    return Measure(name, rows)


@dataclass(frozen=True)
class Judged:
    """A change with its 95 % interval and the chance of one at least as large, were nothing changed."""

    value: float
    low: float
    high: float
    p: float


def judged(
    measure: Measure, is_later: NDArray[np.bool_], *, permutations: int = 1000, seed: int = 0
) -> Judged:
    """The change between usages of the earlier and the later period; ``is_later`` (usage,) parts them.

    p = (b + 1) / (m + 1) (Phipson and Smyth 2010), b of m permutations of the usages' periods being at least
    as large. The interval is that of a bootstrap of the usages, moved so that its mean is the value: drawing
    again makes prt and jsd larger by itself.
    """
    if permutations < 1:
        raise ConfigError(f"permutations must be at least 1, found {permutations}")
    if len(is_later) != len(measure.rows) or is_later.all() or not is_later.any():
        raise DataError(
            f"expected {len(measure.rows)} usages of two periods, found {int(is_later.sum())} later ones "
            f"of {len(is_later)}"
        )
    chance = np.random.default_rng(seed)
    asked = is_later[None].astype(np.float64)
    value = float(measure(1 - asked, asked)[0])
    shuffled = np.concatenate(
        [measure(1 - weights, weights) for weights in _shuffled(is_later, permutations, chance)]
    )
    drawn = np.concatenate(
        [measure(*weights) for weights in _drawn(is_later, max(permutations, 1000), chance)]
    )
    low, high = np.quantile(drawn, (0.025, 0.975)) - drawn.mean() + value
    b = int((shuffled >= value - 1e-12).sum())  # sums in another order differ in the last bits
    least = 1.0 if measure.name == "prt-inverted" else 0.0
    most = 1.0 if measure.name == "jsd" else np.inf
    return Judged(value, max(float(low), least), min(float(high), most), (b + 1) / (permutations + 1))


def q_values(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The false-discovery rate at which each would be taken for a change (Benjamini and Hochberg 1995)."""
    n = len(p_values)
    order = np.argsort(p_values)
    raw = p_values[order] * n / np.arange(1, n + 1)
    found = np.empty(n)
    found[order] = np.minimum(np.minimum.accumulate(raw[::-1])[::-1], 1.0)
    return found


def rank_correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float | None:
    """Spearman's; None where one of them does not vary."""
    if len(x) < 2:
        return None
    a, b = _ranks(x), _ranks(y)
    if a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: NDArray[np.float64]) -> Floats:
    """From 1; equal values share the mean of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[places]


def _shuffled(is_later: NDArray[np.bool_], n: int, chance: np.random.Generator) -> Iterator[Floats]:
    """The periods of the usages in ``n`` other orders, in matrices (case, usage) that fit in memory."""
    for size in _sizes(n, len(is_later)):
        yield chance.permuted(np.tile(is_later.astype(np.float64), (size, 1)), axis=1)


def _drawn(
    is_later: NDArray[np.bool_], n: int, chance: np.random.Generator
) -> Iterator[tuple[Floats, Floats]]:
    """How often each usage is drawn when as many as each period has are drawn from it, ``n`` times."""
    for size in _sizes(n, len(is_later)):
        both = []
        for is_own in (~is_later, is_later):
            weights = np.zeros((size, len(is_later)))
            n_own = int(is_own.sum())
            weights[:, is_own] = chance.multinomial(n_own, np.full(n_own, 1 / n_own), size=size)
            both.append(weights)
        yield both[0], both[1]


def _sizes(n: int, width: int) -> Iterator[int]:
    largest = max(_CELLS // max(width, 1), 1)
    for begin in range(0, n, largest):
        yield min(largest, n - begin)


def _entropy(shares: Floats) -> Floats:
    return -(shares * np.log2(np.where(shares > 0, shares, 1.0))).sum(axis=1)
