"""Measure how far words changed between periods, and test whether the change may be chance.

``change_in_corpora`` finds the usages of words in one corpus per period, ``change_in_uses`` takes usages from
files of the Diachronic Word Usage Graphs, and ``measure_change`` takes usages with their vectors. All of them
rank words by their change from the first period to the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError
from elmo.lexicon.clustering import Labels, Method, cluster
from elmo.lexicon.senses import select_distinct, usage_json
from elmo.lexicon.substitutes import embed_substitutes
from elmo.lexicon.usages import (
    Reservoir,
    Usage,
    Usages,
    VectorSource,
    WordFilter,
    embed_usages,
    entry_key,
    find_usages,
    is_word,
    respell,
    strip_part_of_speech,
    to_entry,
    unit_rows,
)
from elmo.text.display import text_width
from elmo.text.reader import Sentence

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.encoding import LayerChoice
    from elmo.embed.start import Start
    from elmo.model.mix import LayerMix

MeasureName = Literal["apd", "prt", "prt-inverted", "jsd"]
MEASURES: tuple[MeasureName, ...] = get_args(MeasureName)
Floats = NDArray[np.float64]
OnProgress = Callable[[int, int], None]  # receives the number of embedded usages, and of all usages
COLUMNS = (
    "rank", "word", "earlier", "later", "change", "low", "high", "p", "q", "usages_earlier", "usages_later",
    "per_million_earlier", "per_million_later",
)  # fmt: skip


@dataclass(frozen=True)
class ChangeOptions:
    """How change is measured and tested.

    Attributes:
        measure: Average pairwise distance (apd), distance of the mean vectors (prt), its inverted cosine
            (prt-inverted), or divergence of the senses (jsd).
        method: Clustering method for senses, which jsd and the example sentences need.
        min_count: Usages that a word needs in each period.
        permutations: Number of permutations for the p-value. Default: 1,000, or 20 per word.
        n_examples: Typical usages to keep for each period.
        keep_usages: Keep the usages with their vectors in the result, for a figure.
        seed: Seed of samples, permutations and clustering.
    """

    measure: MeasureName = "apd"
    method: Method = "agglomerative"
    min_count: int = 10
    permutations: int | None = None
    n_examples: int = 3
    keep_usages: bool = False
    seed: int = 0

    def check(self, periods: Sequence[str]) -> None:
        """Raise ``ConfigError`` for wrong options or periods."""
        if len(periods) < 2 or len(set(periods)) < len(periods):
            raise ConfigError(f"expected two or more different periods, found {', '.join(periods)!r:.80}")
        if self.measure not in MEASURES:
            raise ConfigError(f"measure must be one of {', '.join(MEASURES)}, not {self.measure!r:.40}")
        if self.min_count < 1:
            raise ConfigError(f"min_count must be at least 1, found {self.min_count}")


@dataclass(frozen=True)
class PeriodChange:
    """The change of a word from one period to another."""

    earlier: str
    later: str
    value: float
    low: float  # 95 % confidence interval
    high: float
    p: float  # probability of such a change if the periods do not differ
    q: float  # false discovery rate if all words up to this one count as changed
    appeared: tuple[Usage, ...] = ()  # typical usages of the sense that became more frequent
    declined: tuple[Usage, ...] = ()  # typical usages of the sense that became less frequent


@dataclass(frozen=True, eq=False)
class WordChange:
    """The change of a word between consecutive periods and, for more than two, from the first to the last."""

    word: str
    steps: tuple[PeriodChange, ...]  # the last one is from the first period to the last
    n_usages: Mapping[str, int]  # by period
    per_million: Mapping[str, float] | None = None  # frequency by period
    usages: Mapping[str, Usages] | None = None  # by period, with ``keep_usages``
    labels: Labels | None = None  # (usage,) over all periods: the sense of each usage, from 0

    @property
    def overall(self) -> PeriodChange:
        """The change from the first period to the last."""
        return self.steps[-1]


@dataclass(frozen=True)
class SkippedWord:
    """A word with too few usages."""

    word: str
    reason: str


@dataclass(frozen=True, eq=False)
class Changes:
    """Words ranked by their change from the first period to the last, the largest first."""

    measure: str
    periods: tuple[str, ...]
    words: tuple[WordChange, ...]
    skipped: tuple[SkippedWord, ...] = ()
    frequency_correlation: float | None = None  # Spearman correlation of change and mean frequency

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield one table row (``COLUMNS``) per word and pair of periods."""
        for rank, word in enumerate(self.words, start=1):
            for step in word.steps:
                periods = (step.earlier, step.later)
                numbers = (step.value, step.low, step.high, step.p, step.q)
                per_million = [f"{word.per_million[name]:.3f}" if word.per_million else "" for name in periods]
                yield (
                    str(rank), word.word, *periods, *(f"{x:.6g}" for x in numbers),
                    *(str(word.n_usages[name]) for name in periods), *per_million,
                )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "measure": self.measure,
            "periods": list(self.periods),
            "correlation_with_frequency": self.frequency_correlation,
            "words": [_word_json(word) for word in self.words],
            "left_out": [{"word": skipped.word, "reason": skipped.reason} for skipped in self.skipped],
        }


def _word_json(word: WordChange) -> dict[str, Any]:
    steps = [
        {
            "earlier": step.earlier, "later": step.later, "change": step.value, "low": step.low,
            "high": step.high, "p": step.p, "q": step.q,
            "appeared": [usage_json(usage) for usage in step.appeared],
            "went": [usage_json(usage) for usage in step.declined],
        }
        for step in word.steps
    ]  # fmt: skip
    return {
        "word": word.word, "usages": dict(word.n_usages),
        "per_million": None if word.per_million is None else dict(word.per_million), "steps": steps,
    }  # fmt: skip


# --- Usages of words in corpora or files ------------------------------------------------------------


def change_in_corpora(
    elmo: Elmo,
    corpora: Mapping[str, Callable[[], Iterable[Sentence]]],
    *,
    words: Sequence[str] | None = None,
    max_words: int = 200,
    skip: int = 150,
    limit: int = 200,
    by: VectorSource = "layers",
    layers: LayerChoice | int | LayerMix = "average",
    start: Start = "zero",
    is_as_written: bool = False,
    options: ChangeOptions | None = None,
    on_progress: OnProgress | None = None,
) -> Changes:
    """Rank words by their change between corpora.

    Args:
        elmo: The model.
        corpora: For each period, in order of time, a function that reads its corpus. Without ``words``, each
            corpus is read twice.
        words: Words to measure. Default: frequent words of all corpora with three letters or more.
        max_words: Without words: number of words, the most frequent first.
        skip: Without words: number of most frequent words to skip; most of them are function words.
        limit: Usages of a word per period; a word with more usages is sampled.
        by: Compare the vectors of the word, or its predicted substitutes.
        layers: Layers for the vectors, as in ``Elmo.encode``; ``"all"`` is not possible.
        start: Start state of the LSTMs, as in ``Elmo.encode``.
        is_as_written: Keep inflected and capitalized forms; do not replace them by the word.
        options: How change is measured and tested.
        on_progress: Called with the number of embedded usages and the number of all usages.
    """
    options = options or ChangeOptions()
    options.check(list(corpora))
    if limit < options.min_count:
        raise ConfigError(f"limit must be at least min_count, which is {options.min_count}, found {limit}")
    key = entry_key(elmo)
    if words is None:
        words = _find_frequent_words(
            _count_words(corpora, None, key), options.min_count, max_words=max_words, skip=skip
        )
    words = list(dict.fromkeys(words))
    texts = {period: WordCounter(read(), WordFilter(words, key=key)) for period, read in corpora.items()}
    by_period = {
        period: find_usages(text, words, key=key, limit=limit, seed=options.seed)
        for period, text in texts.items()
    }
    _check_not_empty(texts)
    return _measure_usages(
        elmo,
        {word: {period: by_period[period][word] for period in corpora} for word in words},
        list(corpora),
        spellings={} if is_as_written else {word: word for word in words},
        per_million={
            word: {period: text.per_million(to_entry(word, key)) for period, text in texts.items()}
            for word in words
        },
        embed=_embedder(elmo, by=by, layers=layers, start=start),
        options=options,
        on_progress=on_progress,
    )
