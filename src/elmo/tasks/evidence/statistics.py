"""Scores of several seeds in, mean, spread and the difference of two conditions with its interval out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
_STEPS = 100_000


@dataclass(frozen=True)
class Summary:
    """Scores of one condition, a seed each."""

    mean: float
    spread: float | None  # standard deviation of a sample; None: there is one score only
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Difference:
    """What one condition is better than another by."""

    difference: float
    interval: tuple[float, float] | None  # 95 %; None: a condition has one score only
    error_reduction: float | None  # share of what the other lacks to 1; None: it lacks nothing


def summary(scores: Sequence[float]) -> Summary:
    """Mean and standard deviation."""
    spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else None
    return Summary(float(np.mean(scores)), spread, tuple(scores))


def difference(better: Summary, other: Summary) -> Difference:
    """Of the means, with Welch's t interval (Welch 1947) and the relative reduction of errors."""
    found = better.mean - other.mean
    lack = 1 - other.mean
    return Difference(found, _interval(found, better, other), found / lack if lack > 0 else None)


def _interval(found: float, one: Summary, two: Summary) -> tuple[float, float] | None:
    if one.spread is None or two.spread is None:
        return None
    parts = [each.spread**2 / len(each.scores) for each in (one, two) if each.spread is not None]
    variance = sum(parts)
    if variance == 0:
        return (found, found)
    freedom = variance**2 / sum(
        part**2 / (len(each.scores) - 1) for part, each in zip(parts, (one, two), strict=True)
    )
    reach = t_quantile(freedom) * math.sqrt(variance)
    return (found - reach, found + reach)


def t_quantile(freedom: float) -> float:
    """Which Student's t stays below in size in 95 of 100 cases, for any real number of degrees of freedom.

    With t = √ν · tan θ the density is proportional to cos^(ν-1) θ, which is summed up numerically.
    """
    angles = np.linspace(0, np.pi / 2, _STEPS + 1)
    heights = np.cos(angles[:-1] + angles[1] / 2) ** (freedom - 1)  # in the middle of each step
    shares = np.concatenate([[0.0], np.cumsum(heights) / heights.sum()])
    return math.sqrt(freedom) * math.tan(float(np.interp(CONFIDENCE, shares, angles)))
