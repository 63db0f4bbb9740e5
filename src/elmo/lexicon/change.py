"""Measure how much words changed between periods, and test whether the change is significant.

``change_in_corpora`` finds the usages of words in one corpus per period, ``change_in_uses`` takes usages from
files of the Diachronic Word Usage Graphs, and ``measure_change`` takes usages with their vectors. All of them
rank words by their change from the first period to the last.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError
from elmo.lexicon.clustering import Labels, Method, cluster
from elmo.lexicon.senses import VectorOptions, embed_by, select_distinct, usage_json
from elmo.lexicon.usages import (
    Reservoir,
    Usage,
    Usages,
    WordFilter,
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

MeasureName = Literal["apd", "prt", "prt-inverted", "jsd", "mmd"]
MEASURES: tuple[MeasureName, ...] = get_args(MeasureName)
Floats = NDArray[np.float64]
UsesByWord = Mapping[str, Mapping[str, Sequence[Usage]]]  # word -> period -> usages
OnProgress = Callable[[int, int], None]  # receives the number of embedded usages, or measured words, and the total
COLUMNS = (
    "rank", "word", "earlier", "later", "change", "low", "high", "p", "q", "usages_earlier", "usages_later",
    "per_million_earlier", "per_million_later",
)  # fmt: skip


@dataclass(frozen=True)
class ChangeOptions:
    """Options for measuring and testing semantic change.

    Attributes:
        measure: Measure of change: average pairwise distance (apd), cosine distance of the mean vectors (prt),
            1 / cosine of the mean vectors (prt-inverted), Jensen-Shannon divergence of the senses (jsd), or maximum
            mean discrepancy (mmd).
        method: Clustering method for the senses, which jsd and the choice of examples use.
        min_count: Minimum number of usages of a word in each period; words with fewer usages are skipped.
        permutations: Number of permutations for the p-value. Default: 20 per word, at least 1,000.
        n_examples: Number of typical usages to keep for each period.
        keep_usages: Whether to keep the usages and their vectors in the result, which a figure needs.
        seed: Random seed for sampling, permutations and clustering.

    Example:
        >>> options = ChangeOptions(measure="prt", min_count=3)
    """

    measure: MeasureName = "apd"
    method: Method = "agglomerative"
    min_count: int = 10
    permutations: int | None = None
    n_examples: int = 3
    keep_usages: bool = False
    seed: int = 0

    def check(self, periods: Sequence[str]) -> None:
        """Raise ``ConfigError`` if the options or the periods are invalid."""
        if len(periods) < 2 or len(set(periods)) < len(periods):
            raise ConfigError(f"periods must be two or more different names; found {', '.join(periods)!r:.80}")
        if self.measure not in MEASURES:
            raise ConfigError(f"measure must be one of {', '.join(MEASURES)}; found {self.measure!r:.40}")
        if self.min_count < 1:
            raise ConfigError(f"min_count must be at least 1; found {self.min_count}")


@dataclass(frozen=True)
class PeriodChange:
    """The change of a word from one period to another.

    Attributes:
        earlier: Name of the earlier period.
        later: Name of the later period.
        value: The change.
        low: Lower end of the 95% confidence interval.
        high: Upper end of the 95% confidence interval.
        p: P-value of a permutation test.
        q: False discovery rate if this word and all with a smaller p-value are reported as changed.
        appeared: Typical usages of the sense whose share increased most.
        declined: Typical usages of the sense whose share decreased most.
    """

    earlier: str
    later: str
    value: float
    low: float
    high: float
    p: float
    q: float
    appeared: tuple[Usage, ...] = ()
    declined: tuple[Usage, ...] = ()


@dataclass(frozen=True, eq=False)
class WordChange:
    """The change of a word between consecutive periods and, if there are more than two, from the first to the last.

    Attributes:
        word: The word.
        steps: The change of each step; the last item is the change from the first period to the last.
        n_usages: Number of usages in each period.
        per_million: Occurrences per million tokens in each period.
        usages: Usages in each period; None without ``keep_usages``.
        labels: Sense of each usage (usage,), over all periods in order, from 0.
    """

    word: str
    steps: tuple[PeriodChange, ...]
    n_usages: Mapping[str, int]
    per_million: Mapping[str, float] | None = None
    usages: Mapping[str, Usages] | None = None
    labels: Labels | None = None

    @property
    def overall(self) -> PeriodChange:
        """The change from the first period to the last."""
        return self.steps[-1]


@dataclass(frozen=True)
class SkippedWord:
    """A word that was not measured, and the reason."""

    word: str
    reason: str


@dataclass(frozen=True, eq=False)
class Changes:
    """Words ranked by their change from the first period to the last, the largest first.

    Attributes:
        measure: Measure of change.
        periods: Names of the periods, in order of time.
        words: The words, the largest change first.
        skipped: Words that were not measured, with the reason.
        frequency_correlation: Spearman correlation of change and mean frequency.
    """

    measure: str
    periods: tuple[str, ...]
    words: tuple[WordChange, ...]
    skipped: tuple[SkippedWord, ...] = ()
    frequency_correlation: float | None = None

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
        """Return the result as a dictionary of JSON values."""
        return {
            "measure": self.measure,
            "periods": list(self.periods),
            "correlation_with_frequency": self.frequency_correlation,
            "words": [_word_json(word) for word in self.words],
            "left_out": [asdict(skipped) for skipped in self.skipped],
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
    is_as_written: bool = False,
    options: ChangeOptions | None = None,
    on_progress: OnProgress | None = None,
    on_measured: OnProgress | None = None,
    **vectors: Unpack[VectorOptions],
) -> Changes:
    """Rank words by how much their usages differ between corpora of different periods.

    Args:
        elmo: The model.
        corpora: For each period, in order of time, a function that reads its corpus. Without ``words``, each
            corpus is read twice.
        words: Words to measure. Default: frequent words of all corpora with three letters or more.
        max_words: Maximum number of words to measure, the most frequent first, if no words are given.
        skip: Number of most frequent words to skip, mostly function words, if no words are given.
        limit: Maximum number of usages of a word per period; if there are more, a random sample is used.
        is_as_written: Encode usages as they are written, instead of replacing inflected and capitalized forms
            with the word.
        options: Options for measuring and testing the change.
        on_progress: Called with the number of usages that are embedded so far and the total number of usages.
        on_measured: Called with the number of words whose change is measured so far and the total number of words.
        vectors: How to compute the vectors; see ``VectorOptions``.

    Example:
        >>> from elmo.jobs import EmbedJob
        >>> sentences = list(EmbedJob(("corpus.txt",)).sentences(elmo.tokenizer))
        >>> corpora = {"rivers": lambda: sentences[:3], "money": lambda: sentences[3:6]}
        >>> changes = change_in_corpora(elmo, corpora, words=["bank"], options=ChangeOptions(min_count=3))
        >>> [change.word for change in changes.words]
        ['bank']
    """
    options = options or ChangeOptions()
    options.check(list(corpora))
    if limit < options.min_count:
        raise ConfigError(f"limit must be at least min_count, which is {options.min_count}; found {limit}")
    key = entry_key(elmo)
    if words is None:
        texts = {period: WordCounter(read(), WordFilter(None, key=key)) for period, read in corpora.items()}
        for text in texts.values():
            deque(text, maxlen=0)  # reads the text to its end
        _check_not_empty(texts)
        counts = [text.counts for text in texts.values()]
        words = frequent_words(counts, min_count=options.min_count, max_words=max_words, skip=skip)
        if not words:
            raise DataError(
                f"expected words that occur at least {options.min_count} times in each text and are not among the "
                f"{skip} most frequent, found none; use --words, or a smaller --min-count or --skip"
            )
    words = list(dict.fromkeys(words))
    texts = {period: WordCounter(read(), WordFilter(words, key=key)) for period, read in corpora.items()}
    by_period = {
        period: find_usages(text, words, key=key, limit=limit, seed=options.seed) for period, text in texts.items()
    }
    _check_not_empty(texts)
    per_million = {
        word: {period: text.per_million(to_entry(word, key)) for period, text in texts.items()} for word in words
    }
    usages = {word: {period: by_period[period][word] for period in corpora} for word in words}
    spellings = {} if is_as_written else {word: word for word in words}
    return _measure_usages(
        elmo, usages, list(corpora), spellings=spellings, per_million=per_million, options=options,
        on_progress=on_progress, on_measured=on_measured, **vectors,
    )  # fmt: skip


def change_in_uses(
    elmo: Elmo,
    uses: UsesByWord,
    periods: Sequence[str],
    *,
    words: Sequence[str] | None = None,
    limit: int = 200,
    is_as_written: bool = False,
    options: ChangeOptions | None = None,
    on_progress: OnProgress | None = None,
    **vectors: Unpack[VectorOptions],
) -> Changes:
    """Rank words by how much their usages differ between periods, from usages that are already collected.

    Args:
        elmo: The model.
        uses: Usages by lemma and period, as ``read_uses`` returns them.
        periods: Names of the periods, in order of time.
        words: Lemmas to measure. Default: all lemmas.
        limit: Maximum number of usages of a lemma per period; if there are more, a random sample is used.
        is_as_written: Encode usages as they are written, instead of replacing each form with the lemma.
        options: Options for measuring and testing the change.
        on_progress: Called with the number of usages that are embedded so far and the total number of usages.
        vectors: How to compute the vectors; see ``VectorOptions``.

    Example:
        >>> old, new = (find_marked_usage(elmo.tokenizer, text) for text in ("The [[bank]].", "My [[bank]]."))
        >>> uses = {"bank": {"old": [old] * 3, "new": [new] * 3}}
        >>> changes = change_in_uses(elmo, uses, ["old", "new"], options=ChangeOptions(min_count=3))
        >>> changes.words[0].n_usages
        {'old': 3, 'new': 3}
    """
    options = options or ChangeOptions()
    options.check(periods)
    usages = {
        word: {period: _sample(items, limit, options.seed, word) for period, items in uses[word].items()}
        for word in (uses if words is None else words)
        if word in uses
    }
    spellings = {} if is_as_written else {word: strip_part_of_speech(word) for word in usages}
    changes = _measure_usages(
        elmo, usages, periods, spellings=spellings, options=options, on_progress=on_progress, **vectors
    )
    unknown = [SkippedWord(word, "the DWUG files have no usages of it") for word in words or () if word not in uses]
    return replace(changes, skipped=(*unknown, *changes.skipped))


def _sample(usages: Sequence[Usage], limit: int, seed: int, word: str) -> list[Usage]:
    reservoir = Reservoir[Usage](limit, seed=seed, entry=word)
    for usage in usages:
        reservoir.add(usage)
    return reservoir.sample()


class WordCounter:
    """Iterates over the sentences of a corpus once, and counts their tokens and words."""

    def __init__(self, sentences: Iterable[Sentence], word_filter: WordFilter) -> None:
        self._sentences, self._filter = sentences, word_filter
        self.counts: Counter[str] = Counter()
        self.n_tokens = 0

    def __iter__(self) -> Iterator[Sentence]:
        for sentence in self._sentences:
            self.n_tokens += len(sentence)
            self.counts.update(entry for _, entry in self._filter.find(sentence.tokens.tokens))
            yield sentence

    def per_million(self, entry: str) -> float:
        """Return how often an entry occurs per million tokens."""
        return 1e6 * self.counts[entry] / max(self.n_tokens, 1)


def _check_not_empty(texts: Mapping[str, WordCounter]) -> None:
    for period, text in texts.items():
        if not text.n_tokens:
            raise DataError(f"{period[:80]}: expected text for this period, found no words")


def frequent_words(counts: Sequence[Mapping[str, int]], *, min_count: int, max_words: int, skip: int) -> list[str]:
    """Select words that occur in every period, the most frequent first.

    The ``skip`` most frequent words, which are mostly function words, are left out, and so are tokens that
    are not spelled with letters and words of fewer than three letters or two Chinese characters.
    """
    total = sum(map(Counter, counts), Counter[str]())
    ranked = sorted(total, key=lambda word: (-total[word], word))[skip:]
    frequent = (word for word in ranked if min(count.get(word, 0) for count in counts) >= min_count)
    return [word for word in frequent if is_word(word) and text_width(word) >= 3][:max_words]


def _measure_usages(
    elmo: Elmo,
    usages: UsesByWord,
    periods: Sequence[str],
    *,
    spellings: Mapping[str, str],
    per_million: Mapping[str, Mapping[str, float]] | None = None,
    options: ChangeOptions,
    on_progress: OnProgress | None,
    on_measured: OnProgress | None = None,
    **vectors: Unpack[VectorOptions],
) -> Changes:
    """Embed the usages of all words that have enough of them, and measure their change."""
    reasons = {word: _find_missing(by_period, periods, options) for word, by_period in usages.items()}
    kept = {word: {period: usages[word][period] for period in periods} for word in usages if not reasons[word]}
    if options.permutations is None:  # enough that q can fall below 0.05 if a single word changed
        options = replace(options, permutations=max(1000, 20 * len(kept)))
    # If all vectors are kept in any case, all words are embedded together, so that each sentence is encoded once.
    n_words = _BATCH_WORDS if not options.keep_usages else max(len(kept), 1)
    embedded = _embed(elmo, kept, spellings=spellings, n_words=n_words, on_progress=on_progress, **vectors)
    embedded = _report(embedded, len(kept), on_measured)
    changes = measure_change(embedded, periods, per_million=per_million, options=options)
    skipped = tuple(SkippedWord(word, reason) for word, reason in reasons.items() if reason)
    return replace(changes, skipped=skipped)


def _report(words: Iterator[Any], total: int, on_measured: OnProgress | None) -> Iterator[Any]:
    """Yield words, and report each one when the next is requested, so after it was measured."""
    for n, word in enumerate(words, start=1):
        yield word
        if on_measured is not None:
            on_measured(n, total)


def _find_missing(usages: Mapping[str, Any], periods: Sequence[str], options: ChangeOptions) -> str:
    """Return which periods have too few usages of a word, as a message; '' if all have enough."""
    counts = [(period, len(usages.get(period, ()))) for period in periods]
    few = [f"{n} in {period}" for period, n in counts if n < options.min_count]
    if not few:
        return ""
    return f"expected at least {options.min_count} usages in each period, found {', '.join(few)}"


_BATCH_WORDS = 32  # words that are embedded together: a sentence with two of them is encoded once


def _embed(
    elmo: Elmo,
    usages: UsesByWord,
    *,
    spellings: Mapping[str, str],
    n_words: int,
    on_progress: OnProgress | None,
    **vectors: Unpack[VectorOptions],
) -> Iterator[tuple[str, dict[str, Usages]]]:
    """Yield each word with its embedded usages by period; ``n_words`` words are embedded together."""
    n_all = sum(len(items) for by_period in usages.values() for items in by_period.values())
    n_before = 0
    words = list(usages)
    for begin in range(0, len(words), n_words):
        batch = words[begin : begin + n_words]
        respelled = [
            respell(usage, spellings[word]) if word in spellings else usage
            for word in batch
            for items in usages[word].values()
            for usage in items
        ]

        def report(n: int, n_before: int = n_before) -> None:
            if on_progress is not None:
                on_progress(n_before + n, n_all)

        rows = embed_by(elmo, respelled, on_progress=report, **vectors).vectors
        n_before += len(respelled)
        for word in batch:
            by_period: dict[str, Usages] = {}
            for period, items in usages[word].items():
                by_period[period], rows = Usages(tuple(items), rows[: len(items)]), rows[len(items) :]
            yield word, by_period


# --- The change of each word ------------------------------------------------------------------------


def measure_change(
    words: Iterable[tuple[str, Mapping[str, Usages]]],
    periods: Sequence[str],
    *,
    per_million: Mapping[str, Mapping[str, float]] | None = None,
    options: ChangeOptions | None = None,
) -> Changes:
    """Rank words by how much the vectors of their usages differ between periods.

    Args:
        words: Words with their embedded usages by period. They are processed one at a time, so their vectors
            need not fit in memory together.
        periods: Names of the periods, in order of time.
        per_million: Occurrences per million tokens, by word and period.
        options: Options for measuring and testing the change.

    Example:
        >>> sentences = ["We sat on the [[bank]].", "The [[bank]] lent her money.", "Her [[bank]] gave her a loan."]
        >>> usages = [find_marked_usage(elmo.tokenizer, sentence) for sentence in sentences]
        >>> period = embed_usages(elmo, usages)
        >>> changes = measure_change(
        ...     [("bank", {"old": period, "new": period})], ["old", "new"], options=ChangeOptions(min_count=3)
        ... )
        >>> changes.words[0].overall.p > 0.5  # both periods have the same usages
        True
    """
    options = options or ChangeOptions()
    options.check(periods)
    changed: list[WordChange] = []
    skipped: list[SkippedWord] = []
    for word, by_period in words:
        if reason := _find_missing(by_period, periods, options):
            skipped.append(SkippedWord(word, reason))
            continue
        usages = {period: by_period[period] for period in periods}
        vectors = np.concatenate([items.vectors for items in usages.values()])
        labels = cluster(vectors, method=options.method, seed=options.seed).labels
        change = WordChange(
            word,
            tuple(_compare_periods(usages, labels, options)),
            {period: len(items) for period, items in usages.items()},
            None if per_million is None else per_million[word],
        )
        changed.append(replace(change, usages=usages, labels=labels) if options.keep_usages else change)
    return _rank(Changes(options.measure, tuple(periods), tuple(changed), tuple(skipped)))


def _compare_periods(usages: Mapping[str, Usages], labels: Labels, options: ChangeOptions) -> Iterator[PeriodChange]:
    periods = list(usages)
    ends = np.cumsum([len(usages[period]) for period in periods])
    senses = dict(zip(periods, np.split(labels, ends[:-1]), strict=True))
    pairs = list(pairwise(periods))
    for earlier, later in [*pairs, (periods[0], periods[-1])] if len(pairs) > 1 else pairs:
        both = usages[earlier], usages[later]
        vectors = np.concatenate([items.vectors for items in both])
        pair_labels = np.concatenate([senses[earlier], senses[later]])
        is_later = np.repeat([False, True], [len(items) for items in both])
        estimate = estimate_change(
            build_measure(options.measure, vectors, pair_labels), is_later,
            permutations=1000 if options.permutations is None else options.permutations, seed=options.seed,
        )  # fmt: skip
        items = both[0].items + both[1].items
        units = unit_rows(vectors)
        appeared, declined = (
            select_distinct([items[k] for k in _rank_typical(units, pair_labels, is_own)], options.n_examples)
            for is_own in (is_later, ~is_later)
        )
        yield PeriodChange(
            earlier, later, estimate.value, estimate.low, estimate.high, p=estimate.p, q=estimate.p,
            appeared=tuple(appeared), declined=tuple(declined),
        )  # fmt: skip


def _rank_typical(units: Floats, labels: Labels, is_own: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the usages of one period that are typical for it, the most typical first.

    They belong to the sense whose share is larger than in the other period by the largest amount. Usages near the
    center of that sense and far from the other period come first, so outliers come last.
    """
    n_senses = int(labels.max()) + 1
    own, other = (np.bincount(labels[mask], minlength=n_senses) / mask.sum() for mask in (is_own, ~is_own))
    rows = np.flatnonzero(is_own & (labels == int((own - other).argmax())))
    scores = units[rows] @ (units[rows].mean(axis=0) - units[~is_own].mean(axis=0))
    return rows[np.argsort(-scores, kind="stable")]


def _rank(changes: Changes) -> Changes:
    """Sort the words by change, and add false discovery rates and the correlation with frequency."""
    words = changes.words
    if not words:
        return changes
    p = np.array([[step.p for step in word.steps] for word in words])  # (word, step)
    q = np.stack([adjust_p_values(column) for column in p.T], axis=1)
    words = [
        replace(word, steps=tuple(replace(step, q=float(x)) for step, x in zip(word.steps, row, strict=True)))
        for word, row in zip(words, q, strict=True)
    ]
    frequencies = [float(np.mean(list(word.per_million.values()))) for word in words if word.per_million]
    correlation = None
    if len(frequencies) == len(words):
        values = np.array([word.overall.value for word in words])
        correlation = rank_correlation(values, np.array(frequencies))
    ranked = tuple(sorted(words, key=lambda word: -word.overall.value))
    return replace(changes, words=ranked, frequency_correlation=correlation)


# --- Measures and tests -----------------------------------------------------------------------------

_MAX_CELLS = 1 << 22  # maximum size of a matrix of weights
_RESAMPLES = 1000  # bootstrap samples


@dataclass(frozen=True, eq=False)
class ChangeMeasure:
    """A measure of change for the usages of one word; ``build_measure`` creates it.

    It is a function of the weight of each usage in each period. The weights are 0 or 1 for the observed
    periods and for permutations of them, and counts for bootstrap samples. If the weights of a thousand
    permutations are in one matrix, two matrix products compute all of them.
    """

    name: str
    features: Floats  # numbers that the measure averages over usages (usage, feature)

    def __call__(self, earlier: Floats, later: Floats) -> Floats:
        """Return the change (case,) for the weights (case, usage) of each period."""
        a, b = (weights @ self.features / weights.sum(axis=1, keepdims=True) for weights in (earlier, later))
        if self.name == "jsd":
            return _entropy((a + b) / 2) - (_entropy(a) + _entropy(b)) / 2
        if self.name == "apd":  # the mean cosine of all pairs is the product of the mean unit vectors
            return 1 - (a * b).sum(axis=1)
        if self.name == "mmd":
            return _mean_cosine(a, earlier) + _mean_cosine(b, later) - 2 * (a * b).sum(axis=1)
        norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        cosines = (a * b).sum(axis=1) / np.where(norms > 0, norms, 1.0)
        if self.name == "prt":
            return 1 - cosines
        return 1 / np.maximum(cosines, 1e-6)  # a cosine of zero or less has no useful inverse


def build_measure(name: str, vectors: NDArray[np.floating[Any]], labels: Labels | None = None) -> ChangeMeasure:
    """Return a measure of change for usages with ``vectors`` (usage, width) and sense numbers ``labels`` (usage,).

    ``apd`` is the average cosine distance of all pairs of usages from different periods. ``prt`` is 1 - cosine
    of the mean vectors of the periods (prototypes), and ``prt-inverted`` is 1 / cosine (Kutuzov and Giulianelli
    2020). ``jsd`` is the Jensen-Shannon divergence of the shares of the senses, in bits from 0 to 1; it needs
    ``labels``. ``mmd`` is the squared maximum mean discrepancy (Gretton et al. 2012) with the cosine as kernel: how
    much more similar two usages of the same period are than two usages of different periods. Its estimate is
    unbiased, so it is about 0, or less, for a word that did not change, no matter how many senses or usages it has.
    """
    if name not in MEASURES:
        raise ConfigError(f"measure must be one of {', '.join(MEASURES)}; found {name!r:.40}")
    features = np.asarray(vectors, dtype=np.float64)
    if name == "jsd":
        if labels is None:
            raise ConfigError("cannot measure jsd without senses: pass the sense of each usage in labels")
        features = np.eye(int(labels.max()) + 1)[labels]
    elif name in ("apd", "mmd"):
        features = unit_rows(features)
    return ChangeMeasure(name, features)


def _mean_cosine(means: Floats, weights: Floats) -> Floats:
    """Return the mean cosine (case,) of pairs of different usages of a period.

    ``means`` (case, feature) are the mean unit vectors for ``weights`` (case, usage).
    """
    total, same = weights.sum(axis=1), (weights**2).sum(axis=1)  # of the pairs, these are a usage and itself
    n_pairs = total**2 - same
    return ((means**2).sum(axis=1) * total**2 - same) / np.where(n_pairs > 0, n_pairs, 1.0)


def _entropy(shares: Floats) -> Floats:
    return -(shares * np.log2(np.where(shares > 0, shares, 1.0))).sum(axis=1)


@dataclass(frozen=True)
class ChangeEstimate:
    """The value of a change, its 95% confidence interval, and the p-value of a permutation test."""

    value: float
    low: float
    high: float
    p: float


def estimate_change(
    measure: ChangeMeasure, is_later: NDArray[np.bool_], *, permutations: int = 1000, seed: int = 0
) -> ChangeEstimate:
    """Estimate the change between two periods; ``is_later`` (usage,) marks the usages of the later period.

    The p-value is (b + 1) / (m + 1) if b of m random permutations of the periods have a change at least as
    large (Phipson and Smyth 2010). The confidence interval comes from bootstrap samples; it is shifted so that
    their mean is the value, because resampling alone makes prt and jsd larger.
    """
    if permutations < 1:
        raise ConfigError(f"permutations must be at least 1; found {permutations}")
    n_usages = len(measure.features)
    if len(is_later) != n_usages or is_later.all() or not is_later.any():
        raise DataError(
            f"is_later must mark some, but not all, of {n_usages} usages; "
            f"found {int(is_later.sum())} of {len(is_later)} marked"
        )
    random = np.random.default_rng(seed)
    observed = is_later[None].astype(np.float64)
    value = float(measure(1 - observed, observed)[0])
    permuted = np.concatenate([measure(1 - weights, weights) for weights in _permute(is_later, permutations, random)])
    resampled = np.concatenate([measure(*weights) for weights in _resample(is_later, _RESAMPLES, random)])
    low, high = np.quantile(resampled, (0.025, 0.975)) - resampled.mean() + value
    n_larger = int((permuted >= value - 1e-12).sum())  # tolerates rounding errors of sums in another order
    smallest = {"prt-inverted": 1.0, "mmd": -np.inf}.get(measure.name, 0.0)
    largest = 1.0 if measure.name == "jsd" else np.inf
    p = (n_larger + 1) / (permutations + 1)
    return ChangeEstimate(value, max(float(low), smallest), min(float(high), largest), p)


def _permute(is_later: NDArray[np.bool_], n: int, random: np.random.Generator) -> Iterator[Floats]:
    """Yield ``n`` random permutations of the periods, in matrices (case, usage) of limited size."""
    for size in _batch_sizes(n, len(is_later)):
        yield random.permuted(np.tile(is_later.astype(np.float64), (size, 1)), axis=1)


def _resample(is_later: NDArray[np.bool_], n: int, random: np.random.Generator) -> Iterator[tuple[Floats, Floats]]:
    """Yield ``n`` bootstrap samples of each period: counts of usages, in matrices (case, usage) of limited size."""
    for size in _batch_sizes(n, len(is_later)):
        both = []
        for is_own in (~is_later, is_later):
            weights = np.zeros((size, len(is_later)))
            n_own = int(is_own.sum())
            weights[:, is_own] = random.multinomial(n_own, np.full(n_own, 1 / n_own), size=size)
            both.append(weights)
        yield both[0], both[1]


def _batch_sizes(n: int, width: int) -> Iterator[int]:
    largest = max(_MAX_CELLS // max(width, 1), 1)
    for begin in range(0, n, largest):
        yield min(largest, n - begin)


def adjust_p_values(p_values: Floats) -> Floats:
    """Return the false discovery rate at which each p-value is significant (Benjamini and Hochberg 1995)."""
    n = len(p_values)
    order = np.argsort(p_values)
    raw = p_values[order] * n / np.arange(1, n + 1)
    adjusted = np.empty(n)
    adjusted[order] = np.minimum(np.minimum.accumulate(raw[::-1])[::-1], 1.0)
    return adjusted


def rank_correlation(x: Floats, y: Floats) -> float | None:
    """Compute the Spearman rank correlation; None if all values of ``x`` or of ``y`` are equal."""
    a, b = _ranks(x), _ranks(y)
    if len(x) < 2 or a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: Floats) -> Floats:
    """Return the rank of each value, from 1; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]
