"""Usages of words in two or more periods in, the words ranked by how far they changed out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError
from elmo.lexicon.change_tests import MEASURES, judged, measure_of, q_values, rank_correlation
from elmo.lexicon.clustering import Labels, Method, cluster
from elmo.lexicon.senses import distinct, usage_json
from elmo.lexicon.unit_rows import unit_rows
from elmo.lexicon.usages import Usage, Usages

COLUMNS = (
    "rank", "word", "earlier", "later", "change", "low", "high", "p", "q", "usages_earlier", "usages_later",
    "per_million_earlier", "per_million_later",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """The change of a word from one period to another."""

    earlier: str
    later: str
    value: float
    low: float  # of the 95 % interval
    high: float
    p: float  # the chance of such a change, were the periods the same
    q: float  # the rate of false discoveries if all words up to this one are taken for changed
    appeared: tuple[Usage, ...] = ()  # typical of what is new in the later period
    went: tuple[Usage, ...] = ()  # typical of what the earlier period had more of


@dataclass(frozen=True, eq=False)
class WordChange:
    """A word's changes between periods that follow each other; of more than two, from first to last, too."""

    word: str
    steps: tuple[Step, ...]  # the last one is from the first period to the last
    n_usages: Mapping[str, int]  # by period
    per_million: Mapping[str, float] | None = None  # by period: how frequent the word is
    usages: Mapping[str, Usages] | None = None  # by period, where they are kept for a picture
    labels: Labels | None = None  # the sense of each of them, from 0

    @property
    def whole(self) -> Step:
        """From the first period to the last."""
        return self.steps[-1]


@dataclass(frozen=True)
class LeftOut:
    """A word that has too few usages, and where."""

    word: str
    reason: str


@dataclass(frozen=True, eq=False)
class Changes:
    """Words by their change from the first period to the last, the largest first."""

    measure: str
    periods: tuple[str, ...]
    words: tuple[WordChange, ...]
    left_out: tuple[LeftOut, ...] = ()
    with_frequency: float | None = None  # Spearman's correlation of change with mean frequency

    def rows(self) -> Iterator[tuple[str, ...]]:
        """For a table with ``COLUMNS``: a row per word and pair of periods."""
        for rank, word in enumerate(self.words, start=1):
            for step in word.steps:
                both = (step.earlier, step.later)
                numbers = (step.value, step.low, step.high, step.p, step.q)
                frequencies = [f"{word.per_million[name]:.3f}" if word.per_million else "" for name in both]
                yield (
                    str(rank), word.word, *both, *(f"{x:.6g}" for x in numbers),
                    *(str(word.n_usages[name]) for name in both), *frequencies,
                )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "measure": self.measure,
            "periods": list(self.periods),
            "correlation_with_frequency": self.with_frequency,
            "words": [_word_json(word) for word in self.words],
            "left_out": [{"word": one.word, "reason": one.reason} for one in self.left_out],
        }


def change(
    words: Iterable[tuple[str, Mapping[str, Usages]]],
    periods: Sequence[str],
    *,
    measure: str = "apd",
    method: Method = "agglomerative",
    permutations: int = 1000,
    min_count: int = 10,
    n_examples: int = 3,
    per_million: Mapping[str, Mapping[str, float]] | None = None,
    keep_usages: bool = False,
    seed: int = 0,
) -> Changes:
    """The words by their change; each comes with its usages in each of the ``periods``, in their order.

    ``words`` are taken one at a time, so their vectors need not fit in memory together. ``method`` clusters
    the usages of all periods into senses, for jsd and for the sentences that show what appeared and went.
    """
    check_periods(periods, min_count=min_count, measure=measure)
    changed: list[WordChange] = []
    left_out: list[LeftOut] = []
    for word, usages in words:
        reason = too_few(usages, periods, min_count)
        if reason is not None:
            left_out.append(LeftOut(word, reason))
            continue
        given = {period: usages[period] for period in periods}
        labels = cluster(
            np.concatenate([one.vectors for one in given.values()]), method=method, seed=seed
        ).labels
        found = WordChange(
            word,
            tuple(_steps(given, labels, measure=measure, permutations=permutations, n=n_examples, seed=seed)),
            {period: len(one) for period, one in given.items()},
            None if per_million is None else per_million[word],
        )
        changed.append(replace(found, usages=given, labels=labels) if keep_usages else found)
    return Changes(measure, tuple(periods), *_ranked(changed, left_out))


def check_periods(periods: Sequence[str], *, min_count: int, measure: str = "apd") -> None:
    """Refuse what cannot be compared, before anything is read."""
    if len(periods) < 2 or len(set(periods)) < len(periods):
        raise ConfigError(
            f"expected two or more periods of different names, found {', '.join(periods)!r:.80}"
        )
    if measure not in MEASURES:
        raise ConfigError(f"measure must be one of {', '.join(MEASURES)}, not {measure!r:.40}")
    if min_count < 1:
        raise ConfigError(f"min_count must be at least 1, found {min_count}")


def too_few(usages: Mapping[str, Any], periods: Sequence[str], min_count: int) -> str | None:
    """Why a word cannot be judged, if so."""
    few = [(period, len(usages.get(period, ()))) for period in periods]
    shown = [f"{n} in {period}" for period, n in few if n < min_count]
    return f"expected {min_count} usages or more in each period, found {', '.join(shown)}" if shown else None


def _steps(
    usages: Mapping[str, Usages], labels: Labels, *, measure: str, permutations: int, n: int, seed: int
) -> Iterator[Step]:
    periods = list(usages)
    ends = np.cumsum([len(usages[period]) for period in periods])
    senses = dict(zip(periods, np.split(labels, ends[:-1]), strict=True))
    pairs = list(pairwise(periods))
    for earlier, later in [*pairs, (periods[0], periods[-1])] if len(pairs) > 1 else pairs:
        both = usages[earlier], usages[later]
        vectors = np.concatenate([one.vectors for one in both])
        own = np.concatenate([senses[earlier], senses[later]])
        is_later = np.repeat([False, True], [len(one) for one in both])
        found = judged(measure_of(measure, vectors, own), is_later, permutations=permutations, seed=seed)
        items = both[0].items + both[1].items
        rows = unit_rows(vectors)
        appeared, went = (
            distinct([items[k] for k in _typical(rows, own, is_own)], n) for is_own in (is_later, ~is_later)
        )
        yield Step(
            earlier, later, found.value, found.low, found.high, found.p, found.p, tuple(appeared), tuple(went)
        )


def _typical(rows: NDArray[np.float64], labels: Labels, is_own: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Usages of one period in the sense that has most more of it, those first that show the difference best.

    These are near the centre of that sense and far from all of the other period: no strays.
    """
    size = int(labels.max()) + 1
    own, other = (np.bincount(labels[mask], minlength=size) / mask.sum() for mask in (is_own, ~is_own))
    chosen = np.flatnonzero(is_own & (labels == int((own - other).argmax())))
    scores = rows[chosen] @ (rows[chosen].mean(axis=0) - rows[~is_own].mean(axis=0))
    return chosen[np.argsort(-scores, kind="stable")]


def _ranked(
    changed: Sequence[WordChange], left_out: Sequence[LeftOut]
) -> tuple[tuple[WordChange, ...], tuple[LeftOut, ...], float | None]:
    """The words in order, with false-discovery rates for each pair of periods."""
    if not changed:
        return (), tuple(left_out), None
    p = np.array([[step.p for step in word.steps] for word in changed])  # (word, step)
    q = np.stack([q_values(column) for column in p.T], axis=1)
    words = [
        replace(word, steps=tuple(replace(step, q=float(x)) for step, x in zip(word.steps, row, strict=True)))
        for word, row in zip(changed, q, strict=True)
    ]
    frequencies = [float(np.mean(list(word.per_million.values()))) for word in words if word.per_million]
    correlation = None
    if len(frequencies) == len(words):
        correlation = rank_correlation(np.array([word.whole.value for word in words]), np.array(frequencies))
    return tuple(sorted(words, key=lambda word: -word.whole.value)), tuple(left_out), correlation


def _word_json(word: WordChange) -> dict[str, Any]:
    steps = [
        {
            "earlier": step.earlier, "later": step.later, "change": step.value, "low": step.low,
            "high": step.high, "p": step.p, "q": step.q,
            "appeared": [usage_json(usage) for usage in step.appeared],
            "went": [usage_json(usage) for usage in step.went],
        }
        for step in word.steps
    ]  # fmt: skip
    return {
        "word": word.word, "usages": dict(word.n_usages),
        "per_million": None if word.per_million is None else dict(word.per_million), "steps": steps,
    }  # fmt: skip
