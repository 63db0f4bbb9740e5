"""Usages of a word in, its senses out: clusters of usages with their shares, typical sentences and names.

A model in, a function that names a sense by what else could stand in its usages' places out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo.errors import ConfigError, DataError
from elmo.lexicon.clustering import MAX_CLUSTERS, Labels, Method, cluster
from elmo.lexicon.usages import unit_rows
from elmo.lexicon.substitutes import Substituter
from elmo.lexicon.usages import Usage, Usages

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

    pass


NameOf = Callable[[Sequence[Usage]], Sequence[str]]

WINDOW = 10  # tokens on each side of the word that may give its sense a name
_COMMON = 0.2  # of the other senses' usages: a word near more of them than this tells nothing apart
_PRIOR = 100.0  # counts that every word's log-odds are drawn to its share in all usages with
COLUMNS = ("sense", "name", "similarity", "place", "before", "word", "after")


@dataclass(frozen=True)
class Sense:
    """One cluster of usages."""

    number: int  # from 1, the most frequent
    name: tuple[str, ...]  # words that stand for it; none for a word's only sense, unless somebody named it
    share: float  # of all usages
    members: tuple[int, ...]  # their rows in the usages, the most typical first
    examples: tuple[Usage, ...]  # the most typical ones with different sentences

    @property
    def label(self) -> str:
        """Its number and name in one line."""
        return f"{self.number}: {', '.join(self.name)}" if self.name else str(self.number)


@dataclass(frozen=True, eq=False)
class Senses:
    """The senses of a word; ``labels`` (usage,) hold the number of each usage's sense, from 1."""

    word: str
    usages: Usages
    items: tuple[Sense, ...]
    labels: Labels
    similarities: np.ndarray[Any, np.dtype[np.float64]]  # (usage,): cosine with the centre of its sense
    method: str
    silhouette: float | None  # of the best number of clusters above one, if it was sought
    null: float | None  # what data without clusters reach

    def __len__(self) -> int:
        return len(self.items)

    def rows(self) -> Iterator[tuple[str, ...]]:
        """For a table with ``COLUMNS``: a row per usage, with its similarity to its sense's centre."""
        for k, usage in enumerate(self.usages.items):
            sense = self.items[self.labels[k] - 1]
            number, name = str(sense.number), ", ".join(sense.name)
            yield (number, name, f"{self.similarities[k]:.4f}", usage.place, *usage.parts())

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        senses = [
            {
                "sense": sense.number,
                "name": list(sense.name),
                "share": sense.share,
                "usages": len(sense.members),
                "examples": [usage_json(usage) for usage in sense.examples],
            }
            for sense in self.items
        ]
        found = {"word": self.word, "usages": len(self.usages), "method": self.method}
        return found | {"silhouette": self.silhouette, "null": self.null, "senses": senses}


def senses(
    usages: Usages,
    *,
    word: str | None = None,
    method: Method = "agglomerative",
    n_clusters: int | None = None,
    max_clusters: int = MAX_CLUSTERS,
    n_examples: int = 3,
    name_of: NameOf | None = None,
    seed: int = 0,
) -> Senses:
    """The senses that a word's usages show; how many, is found unless ``n_clusters`` tells it.

    ``name_of`` makes names from a sense's usages, the most typical first; without it, words that stand near
    the word in this sense more than in the others.
    """
    if not len(usages):
        raise DataError(f"expected usages of {word or 'a word'!r:.40} to cluster, found none")
    if n_examples < 0:
        raise ConfigError(f"n_examples must be at least 0, found {n_examples}")
    found = cluster(
        usages.vectors, method=method, n_clusters=n_clusters, max_clusters=max_clusters, seed=seed
    )
    similarities = _to_centre(usages, found.labels)
    groups = [np.flatnonzero(found.labels == k) for k in range(found.n_clusters)]
    # the most typical first; of equals, the earlier
    groups = [rows[np.argsort(-similarities[rows], kind="stable")] for rows in groups]
    members = [[usages.items[row] for row in rows] for rows in groups]
    names = context_names(members) if name_of is None else [tuple(name_of(some)) for some in members]
    items = tuple(
        Sense(
            k + 1,
            names[k],
            len(rows) / len(usages),
            tuple(int(row) for row in rows),
            tuple(distinct(members[k], n_examples)),
        )
        for k, rows in enumerate(groups)
    )
    return Senses(
        word or _common_spelling(usages.items), usages, items, found.labels + 1, similarities, method,
        found.silhouette, found.null,
    )  # fmt: skip


def context_names(groups: Sequence[Sequence[Usage]], n_words: int = 3) -> list[tuple[str, ...]]:
    """For each group of usages, words that stand near it more than near the others.

    By the log-odds with a prior of Monroe et al. (2008, "Fightin' Words", Eq. 16 and 22): words that are
    frequent everywhere, and words that occurred once, fall out.
    """
    counts = [Counter(word for usage in group for word in _context(usage)) for group in groups]
    whole = sum(counts, Counter[str]())
    if len(groups) < 2 or not whole:
        return [() for _ in groups]
    n_all = sum(whole.values())
    names: list[tuple[str, ...]] = []
    for own, group in zip(counts, groups, strict=True):
        n_others = sum(map(len, groups)) - len(group)
        n_own, scored = sum(own.values()), list[tuple[float, str]]()
        for word, n in own.items():
            prior = _PRIOR * whole[word] / n_all
            rest, n_rest = whole[word] - n, n_all - n_own
            others, n_others_left = n_own + _PRIOR - n - prior, n_rest + _PRIOR - rest - prior
            if min(others, n_others_left) <= 0:  # there is no other word
                continue
            odds = np.log((n + prior) / others)
            other = np.log((rest + prior) / n_others_left)
            z = float((odds - other) / np.sqrt(1 / (n + prior) + 1 / (rest + prior)))
            if n > 1 and z > 0 and rest <= _COMMON * n_others:
                scored.append((-z, word))
        names.append(tuple(word for _, word in sorted(scored)[:n_words]))
    return names


def distinct(usages: Sequence[Usage], n: int) -> list[Usage]:
    """The first ``n`` usages of different sentences whose words nearby differ: texts repeat themselves."""
    found: list[Usage] = []
    seen: set[tuple[str, ...]] = set()
    for usage in usages:
        if len(found) == n:
            break
        nearby = usage.sentence.tokens[max(usage.begin - 5, 0) : usage.end + 5]
        spelled = tuple(token.lower() for token in nearby)
        if not {spelled, usage.sentence.tokens} & seen:
            seen |= {spelled, usage.sentence.tokens}
            found.append(usage)
    return found


def usage_json(usage: Usage) -> dict[str, str]:
    """A usage as plain JSON values."""
    before, word, after = usage.parts()
    return {"place": usage.place, "before": before, "word": word, "after": after}


def _to_centre(usages: Usages, labels: Labels) -> np.ndarray[Any, np.dtype[np.float64]]:
    rows = unit_rows(usages.vectors)
    centres = unit_rows(np.stack([rows[labels == k].mean(axis=0) for k in range(int(labels.max()) + 1)]))
    return (rows * centres[labels]).sum(axis=1)


def _context(usage: Usage) -> set[str]:
    """Words near the usage, each once, its own word and punctuation left out."""
    tokens = usage.sentence.tokens
    near = tokens[max(usage.begin - WINDOW, 0) : usage.begin] + tokens[usage.end : usage.end + WINDOW]
    own = {token.lower() for token in tokens[usage.begin : usage.end]}
    return {token.lower() for token in near if any(map(str.isalpha, token))} - own


def _common_spelling(items: Sequence[Usage]) -> str:
    return Counter(usage.word.lower() for usage in items).most_common(1)[0][0]


_USAGES = 20  # the most typical ones, whose substitutes are counted
_EACH = 10  # substitutes of each of them


def by_substitutes(elmo: Elmo, *, n_words: int = 3) -> NameOf | None:
    """None for a model that predicts no words."""
    if elmo.softmax is None or elmo.vocab is None:
        return None
    substituter = Substituter(elmo)

    def name_of(usages: Sequence[Usage]) -> Sequence[str]:
        shares: dict[str, float] = defaultdict(float)
        for found in substituter.substitutes(usages[:_USAGES], n=_EACH):
            for one in found.items:
                shares[one.lemma] += one.probability
        return sorted(shares, key=lambda word: -shares[word])[:n_words]

    return name_of
