"""Find the senses of a word by clustering its usages, and name them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from elmo.errors import ConfigError, DataError
from elmo.lexicon.clustering import MAX_CLUSTERS, Labels, Method, cluster
from elmo.lexicon.substitutes import Start, Substituter, embed_substitutes
from elmo.lexicon.usages import Usage, Usages, embed_usages, unit_rows

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.encoding import LayerChoice
    from elmo.model.mix import LayerMix

VectorSource = Literal["layers", "substitutes"]  # vectors of the word, or of its predicted substitutes
NameOf = Callable[[Sequence[Usage]], Sequence[str]]

WINDOW = 10  # tokens on each side of the word that can name its sense
_COMMON = 0.2  # a word that occurs near more of the other senses' usages is not a name
_PRIOR = 100.0  # total pseudo-counts of the prior on words
COLUMNS = ("sense", "name", "similarity", "place", "before", "word", "after")


@dataclass(frozen=True)
class Sense:
    """One sense: a cluster of usages."""

    number: int  # from 1, the most frequent
    name: tuple[str, ...]  # words that describe it; empty for the only sense of a word
    share: float  # fraction of all usages
    members: tuple[int, ...]  # rows in the usages, the most typical first
    examples: tuple[Usage, ...]  # the most typical usages from different sentences

    @property
    def label(self) -> str:
        """Number and name in one line."""
        return f"{self.number}: {', '.join(self.name)}" if self.name else str(self.number)


@dataclass(frozen=True, eq=False)
class Senses:
    """The senses of a word; ``labels`` (usage,) holds the sense number of each usage, from 1."""

    word: str
    usages: Usages
    items: tuple[Sense, ...]
    labels: Labels
    similarities: np.ndarray[Any, np.dtype[np.float64]]  # (usage,): cosine with the center of its sense
    method: str
    silhouette: float | None  # see ``Clustering``
    null: float | None

    def __len__(self) -> int:
        return len(self.items)

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield one table row (``COLUMNS``) per usage, with its similarity to the center of its sense."""
        for k, usage in enumerate(self.usages.items):
            sense = self.items[self.labels[k] - 1]
            number, name = str(sense.number), ", ".join(sense.name)
            yield (number, name, f"{self.similarities[k]:.4f}", usage.place, *usage.parts())

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
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
        return {
            "word": self.word,
            "usages": len(self.usages),
            "method": self.method,
            "silhouette": self.silhouette,
            "null": self.null,
            "senses": senses,
        }


def find_senses(
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
    """Cluster the usages of a word into senses.

    Args:
        usages: The usages of one word with their vectors.
        word: The word to report. Default: its most frequent spelling.
        method: Clustering method.
        n_clusters: Number of senses. Default: chosen from the data.
        max_clusters: Largest number of senses to try.
        n_examples: Typical usages to keep for each sense.
        name_of: Function that names a sense from its usages, the most typical first. Default: words that
            occur near this sense more often than near the others.
        seed: Seed of random numbers.
    """
    if not len(usages):
        raise DataError(f"{word or 'word'!r:.40}: expected usages to cluster, found none")
    if n_examples < 0:
        raise ConfigError(f"n_examples must be at least 0, found {n_examples}")
    clustering = cluster(usages.vectors, method=method, n_clusters=n_clusters, max_clusters=max_clusters, seed=seed)
    similarities = _similarities_to_center(usages, clustering.labels)
    groups = [np.flatnonzero(clustering.labels == k) for k in range(clustering.n_clusters)]
    # The most typical first; ties keep the order of the text.
    groups = [rows[np.argsort(-similarities[rows], kind="stable")] for rows in groups]
    members = [[usages.items[row] for row in rows] for rows in groups]
    names = context_names(members) if name_of is None else [tuple(name_of(group)) for group in members]
    items = tuple(
        Sense(
            k + 1,
            names[k],
            len(rows) / len(usages),
            tuple(int(row) for row in rows),
            tuple(select_distinct(members[k], n_examples)),
        )
        for k, rows in enumerate(groups)
    )
    return Senses(
        word=word or _common_spelling(usages.items),
        usages=usages,
        items=items,
        labels=clustering.labels + 1,
        similarities=similarities,
        method=method,
        silhouette=clustering.silhouette,
        null=clustering.null,
    )


def embed_by(
    elmo: Elmo,
    usages: Sequence[Usage],
    *,
    by: VectorSource = "layers",
    layers: LayerChoice | int | LayerMix = "average",
    start: Start = "zero",
    on_progress: Callable[[int], None] | None = None,
) -> Usages:
    """Compute the vectors of usages from the layers of the word, or from its predicted substitutes.

    Args:
        elmo: The model. Substitutes need a softmax and a vocabulary.
        usages: Words in their sentences.
        by: Source of the vectors.
        layers: Which layers to use; substitutes ignore it.
        start: Start state of the LSTMs, as in ``Elmo.encode``.
        on_progress: Called with the number of usages that are done.
    """
    if by == "substitutes":
        return embed_substitutes(elmo, usages, start=start, on_progress=on_progress)
    return embed_usages(elmo, usages, layers=layers, start=start, on_progress=on_progress)


def context_names(groups: Sequence[Sequence[Usage]], n_words: int = 3) -> list[tuple[str, ...]]:
    """Name each group of usages by words that occur near it more often than near the others.

    Uses the log-odds with a prior of Monroe et al. (2008, "Fightin' Words", Eq. 16 and 22), which excludes
    words that are frequent everywhere and words that occur once.
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
            if min(others, n_others_left) <= 0:  # there is only one word
                continue
            odds = np.log((n + prior) / others)
            other = np.log((rest + prior) / n_others_left)
            z = float((odds - other) / np.sqrt(1 / (n + prior) + 1 / (rest + prior)))
            if n > 1 and z > 0 and rest <= _COMMON * n_others:
                scored.append((-z, word))
        names.append(tuple(word for _, word in sorted(scored)[:n_words]))
    return names


def select_distinct(usages: Sequence[Usage], n: int) -> list[Usage]:
    """Select the first ``n`` usages with different sentences and different nearby words."""
    selected: list[Usage] = []
    seen: set[tuple[str, ...]] = set()
    for usage in usages:
        if len(selected) == n:
            break
        nearby = usage.sentence.tokens[max(usage.begin - 5, 0) : usage.end + 5]
        spelled = tuple(token.lower() for token in nearby)
        if not {spelled, usage.sentence.tokens} & seen:
            seen |= {spelled, usage.sentence.tokens}
            selected.append(usage)
    return selected


def usage_json(usage: Usage) -> dict[str, str]:
    """Return a usage as plain JSON values."""
    before, word, after = usage.parts()
    return {"place": usage.place, "before": before, "word": word, "after": after}


def _similarities_to_center(usages: Usages, labels: Labels) -> np.ndarray[Any, np.dtype[np.float64]]:
    rows = unit_rows(usages.vectors)
    centers = unit_rows(np.stack([rows[labels == k].mean(axis=0) for k in range(int(labels.max()) + 1)]))
    return (rows * centers[labels]).sum(axis=1)


def _context(usage: Usage) -> set[str]:
    """Return the distinct words near the usage, without its own word and punctuation."""
    tokens = usage.sentence.tokens
    near = tokens[max(usage.begin - WINDOW, 0) : usage.begin] + tokens[usage.end : usage.end + WINDOW]
    own = {token.lower() for token in tokens[usage.begin : usage.end]}
    return {token.lower() for token in near if any(map(str.isalpha, token))} - own


def _common_spelling(items: Sequence[Usage]) -> str:
    return Counter(usage.word.lower() for usage in items).most_common(1)[0][0]


_NAMING_USAGES = 20  # the most typical usages, whose substitutes are counted
_N_SUBSTITUTES = 10  # for each of them


def name_by_substitutes(elmo: Elmo, *, n_words: int = 3) -> NameOf | None:
    """Return a function that names a sense by its substitutes; None if the model has no softmax."""
    if elmo.softmax is None or elmo.vocab is None:
        return None
    substituter = Substituter(elmo)

    def name_of(usages: Sequence[Usage]) -> Sequence[str]:
        shares: dict[str, float] = defaultdict(float)
        for substitutes in substituter.substitutes(usages[:_NAMING_USAGES], n=_N_SUBSTITUTES):
            for substitute in substitutes.items:
                shares[substitute.lemma] += substitute.probability
        return sorted(shares, key=lambda word: -shares[word])[:n_words]

    return name_of
