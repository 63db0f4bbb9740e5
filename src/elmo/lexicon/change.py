"""Vectors of a word's usages in two periods in, how far the word changed and whether by chance, out.

Every measure is a function of weights (case, usage), one row of numbers for each period: ones and zeros for
the usages as they are, shuffled for a permutation, and how often each was drawn for a bootstrap. So a
thousand permutations are two products of matrices.

Usages of words in two or more periods in, the words ranked by how far they changed out.

Texts or files of uses of two or more periods in, the words ranked by how far they changed out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
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
            select_distinct([items[k] for k in _typical(rows, own, is_own)], n)
            for is_own in (is_later, ~is_later)
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


OnProgress = Callable[[int, int], None]  # usages that have their vectors, and all
By = Literal["layers", "substitutes"]  # whose vectors: the word's layers, or the words expected in its place

_WORDS_AT_ONCE = 32  # whose sentences are read together: a sentence with two of them is read once


def change_in_corpora(
    elmo: Elmo,
    corpora: Mapping[str, Callable[[], Iterable[Sentence]]],
    *,
    words: Sequence[str] | None = None,
    limit: int = 200,
    min_count: int = 10,
    max_words: int = 200,
    skip: int = 150,
    layers: Any = "average",
    start: Any = "zero",
    is_as_written: bool = False,
    by: By = "layers",
    on_progress: OnProgress | None = None,
    seed: int = 0,
    **options: Any,
) -> Changes:
    """The change of words between texts, one for each period; at most ``limit`` usages of each are read.

    They are read with the word as it is asked for, whatever its case, unless ``is_as_written``.

    Without ``words``, those that occur ``min_count`` times or more in each text, the most frequent first, at
    most ``max_words``: words of letters, not too short, not among the ``skip`` most frequent. Texts are
    functions, because they are then read twice. ``options`` are those of ``change``.
    """
    check_periods(list(corpora), min_count=min_count)
    if limit < min_count:
        raise ConfigError(f"limit must be at least min_count, which is {min_count}, found {limit}")
    key = entry_key(elmo)
    if words is None:
        everything = {period: Counted(read(), WordFilter(None, key=key)) for period, read in corpora.items()}
        for text in everything.values():
            text.read()
        _check_empty(everything)
        words = frequent_words(
            [text.counts for text in everything.values()], min_count=min_count, max_words=max_words, skip=skip
        )
        if not words:
            raise DataError(
                f"expected words that occur {min_count} times or more in each text and are not among the "
                f"{skip} most frequent, found none; give --words, or a smaller --min-count or --skip"
            )
    words = list(dict.fromkeys(words))
    texts = {period: Counted(read(), WordFilter(words, key=key)) for period, read in corpora.items()}
    by_period = {
        period: find_usages(text, words, key=key, limit=limit, seed=seed) for period, text in texts.items()
    }
    _check_empty(texts)
    found = {word: {period: by_period[period][word] for period in corpora} for word in words}
    per_million = {
        word: {period: text.per_million(to_entry(word, key)) for period, text in texts.items()}
        for word in words
    }
    return _read(
        elmo, found, list(corpora), min_count=min_count, layers=layers, start=start, on_progress=on_progress,
        spellings={} if is_as_written else {word: word for word in words}, by=by, per_million=per_million,
        seed=seed, **options,
    )  # fmt: skip


def change_in_uses(
    elmo: Elmo,
    uses: Mapping[str, Mapping[str, Sequence[Usage]]],
    periods: Sequence[str],
    *,
    words: Sequence[str] | None = None,
    limit: int = 200,
    min_count: int = 10,
    layers: Any = "average",
    start: Any = "zero",
    is_as_written: bool = False,
    by: By = "layers",
    on_progress: OnProgress | None = None,
    seed: int = 0,
    **options: Any,
) -> Changes:
    """The change of words whose usages are known by period, as ``uses_files.read_uses`` gives them.

    They are read with the lemma in the word's place, unless ``is_as_written``.
    """
    check_periods(periods, min_count=min_count)
    unknown = [word for word in words or () if word not in uses]
    chosen = {
        word: {period: _sample(some, limit, seed, word) for period, some in uses[word].items()}
        for word in (uses if words is None else words)
        if word in uses
    }
    found = _read(
        elmo,
        chosen,
        periods,
        min_count=min_count,
        layers=layers,
        start=start,
        on_progress=on_progress,
        spellings={} if is_as_written else {word: strip_part_of_speech(word) for word in chosen},
        by=by,
        seed=seed,
        **options,
    )
    return replace(
        found, left_out=(*(LeftOut(word, "has no file of uses") for word in unknown), *found.left_out)
    )


def _sample(usages: Sequence[Usage], limit: int, seed: int, word: str) -> list[Usage]:
    kept = Reservoir[Usage](limit, seed=seed, entry=word)
    for usage in usages:
        kept.add(usage)
    return kept.sample()


class Counted:
    """Sentences to go through once, and how often words stand in what was read of them."""

    def __init__(self, sentences: Iterable[Sentence], choice: WordFilter) -> None:
        self._sentences, self._choice = sentences, choice
        self.counts: Counter[str] = Counter()
        self.n_tokens = 0

    def __iter__(self) -> Iterator[Sentence]:
        for sentence in self._sentences:
            self.n_tokens += len(sentence)
            self.counts.update(entry for _, entry in self._choice.find(sentence.tokens.tokens))
            yield sentence

    def read(self) -> None:
        """Count it all, keep nothing of it."""
        for _ in self:
            pass

    def per_million(self, entry: str) -> float:
        """How frequent an entry is."""
        return 1e6 * self.counts[entry] / max(self.n_tokens, 1)


def frequent_words(
    counts: Sequence[Mapping[str, int]], *, min_count: int, max_words: int, skip: int
) -> list[str]:
    """Words of every period, the most frequent first.

    Not the ``skip`` most frequent of all, which are mostly function words, nor what has other characters than
    letters or is shorter than three of them, or two Chinese ones.
    """
    total = Counter[str]()
    for one in counts:
        total.update(one)
    ranked = sorted(total, key=lambda word: (-total[word], word))[skip:]
    kept = (word for word in ranked if min(one.get(word, 0) for one in counts) >= min_count)
    return [word for word in kept if is_word(word) and text_width(word) >= 3][:max_words]


def _read(
    elmo: Elmo,
    found: Mapping[str, Mapping[str, Sequence[Usage]]],
    periods: Sequence[str],
    *,
    min_count: int,
    layers: Any,
    start: Any,
    on_progress: OnProgress | None,
    spellings: Mapping[str, str],
    by: By,
    permutations: int | None = None,
    **options: Any,
) -> Changes:
    """The change of words with enough usages: only theirs are read.

    Permutations are so many, unless told, that a word which alone has changed can have a q of 0.05.
    """
    reasons = {word: too_few(usages, periods, min_count) for word, usages in found.items()}
    chosen = {
        word: {p: found[word][p] for p in periods} for word, reason in reasons.items() if reason is None
    }
    left_out = tuple(LeftOut(word, reason) for word, reason in reasons.items() if reason is not None)
    embedded = _embedded(
        elmo, chosen, layers=layers, start=start, on_progress=on_progress, spellings=spellings, by=by
    )
    permutations = permutations or max(1000, 20 * len(chosen))
    changes = change(embedded, periods, min_count=min_count, permutations=permutations, **options)
    return replace(changes, left_out=left_out)


def _embedded(
    elmo: Elmo,
    found: Mapping[str, Mapping[str, Sequence[Usage]]],
    *,
    layers: Any,
    start: Any,
    on_progress: OnProgress | None,
    spellings: Mapping[str, str],
    by: By,
) -> Iterator[tuple[str, dict[str, Usages]]]:
    n_all = sum(len(usages) for periods in found.values() for usages in periods.values())
    n_done = 0
    words = list(found)
    for at in range(0, len(words), _WORDS_AT_ONCE):
        some = words[at : at + _WORDS_AT_ONCE]
        usages = [
            respell(usage, spellings[word]) if word in spellings else usage
            for word in some
            for period in found[word].values()
            for usage in period
        ]
        # same sentences side by side
        order = sorted(range(len(usages)), key=lambda k: id(usages[k].sentence))
        before = n_done

        def told(n: int, before: int = before) -> None:
            if on_progress is not None:
                on_progress(before + n, n_all)

        given = [usages[k] for k in order]
        if by == "substitutes":
            rows = embed_substitutes(elmo, given, start=start, on_progress=told)
        else:
            rows = embed_usages(elmo, given, layers=layers, start=start, on_progress=told)
        vectors = rows.vectors[np.argsort(order)]
        n_done += len(usages)
        first = 0
        for word in some:
            periods: dict[str, Usages] = {}
            for period, items in found[word].items():
                periods[period] = Usages(tuple(items), vectors[first : first + len(items)])
                first += len(items)
            yield word, periods


def _check_empty(texts: Mapping[str, Counted]) -> None:
    for period, text in texts.items():
        if not text.n_tokens:
            raise DataError(f"{period[:80]}: expected text of this period, found no words")
