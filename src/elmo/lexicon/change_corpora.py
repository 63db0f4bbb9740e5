"""Texts or files of uses of two or more periods in, the words ranked by how far they changed out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from elmo.embed.figure import text_width
from elmo.errors import ConfigError, DataError
from elmo.lexicon.change import Changes, LeftOut, change, check_periods, too_few
from elmo.lexicon.choice import Choice, Reservoir, entry_key, entry_of, is_word
from elmo.lexicon.expected_words import expected_words
from elmo.lexicon.usages import Usage, Usages, embed_usages, find_usages, respelled
from elmo.lexicon.uses_files import spelling_of
from elmo.text.source import Sentence

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

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
        everything = {period: Counted(read(), Choice(None, key=key)) for period, read in corpora.items()}
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
    texts = {period: Counted(read(), Choice(words, key=key)) for period, read in corpora.items()}
    by_period = {
        period: find_usages(text, words, key=key, limit=limit, seed=seed) for period, text in texts.items()
    }
    _check_empty(texts)
    found = {word: {period: by_period[period][word] for period in corpora} for word in words}
    per_million = {
        word: {period: text.per_million(entry_of(word, key)) for period, text in texts.items()}
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
        spellings={} if is_as_written else {word: spelling_of(word) for word in chosen},
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
    return kept.kept()


class Counted:
    """Sentences to go through once, and how often words stand in what was read of them."""

    def __init__(self, sentences: Iterable[Sentence], choice: Choice) -> None:
        self._sentences, self._choice = sentences, choice
        self.counts: Counter[str] = Counter()
        self.n_tokens = 0

    def __iter__(self) -> Iterator[Sentence]:
        for sentence in self._sentences:
            self.n_tokens += len(sentence)
            self.counts.update(entry for _, entry in self._choice.found(sentence.tokens.tokens))
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
            respelled(usage, spellings[word]) if word in spellings else usage
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
            rows = expected_words(elmo, given, start=start, on_progress=told)
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
