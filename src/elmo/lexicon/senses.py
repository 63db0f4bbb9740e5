"""Find the senses of a word by clustering its usages, and name each sense by related words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np

from elmo.errors import ConfigError, DataError
from elmo.lexicon.clustering import MAX_CLUSTERS, Labels, Method, cluster
from elmo.lexicon.index import Index
from elmo.lexicon.substitutes import Start, Substituter, embed_substitutes
from elmo.lexicon.usages import (
    Usage,
    Usages,
    embed_usages,
    entry_key,
    find_usages,
    hint_about_tokenizer,
    respell,
    unit_rows,
)
from elmo.storage.files import format_path
from elmo.text.reader import Sentence

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.encoding import LayerChoice
    from elmo.model.mix import LayerMix

VectorSource = Literal["layers", "substitutes"]  # vectors of the word, or of its predicted substitutes
NameOf = Callable[[Sequence[Usage]], Sequence[str]]  # names a sense from its usages, the most typical first

WINDOW = 10  # number of tokens on each side of a usage from which the name of a sense is chosen
_COMMON = 0.2  # a word near more than this fraction of the usages of other senses does not name a sense
_PRIOR = 100.0  # sum of the pseudo-counts of all words
COLUMNS = ("sense", "name", "similarity", "place", "before", "word", "after")


@dataclass(frozen=True)
class Sense:
    """A sense of a word: a cluster of its usages.

    Attributes:
        number: Number of the sense, from 1; sense 1 is the most frequent.
        name: Words that describe the sense; may be empty if the word has one sense.
        share: Fraction of all usages.
        members: Row numbers of the usages of this sense, the most typical first.
        examples: The most typical usages from different sentences.
    """

    number: int
    name: tuple[str, ...]
    share: float
    members: tuple[int, ...]
    examples: tuple[Usage, ...]

    @property
    def label(self) -> str:
        """Number and name in one line."""
        return f"{self.number}: {', '.join(self.name)}" if self.name else str(self.number)


@dataclass(frozen=True, eq=False)
class Senses:
    """The senses of a word.

    Attributes:
        word: The word.
        usages: All usages of the word, with their vectors.
        items: The senses, the most frequent first.
        labels: Number of the sense of each usage (usage,), from 1.
        similarities: Cosine of each usage with the center of its sense (usage,).
        method: The clustering method.
        silhouette: Silhouette of the clusters, as in ``Clustering``; None if it was not used.
        null: Threshold for the silhouette, as in ``Clustering``; None if ``silhouette`` is None.
    """

    word: str
    usages: Usages
    items: tuple[Sense, ...]
    labels: Labels
    similarities: np.ndarray[Any, np.dtype[np.float64]]
    method: str
    silhouette: float | None
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
        """Return the result as a dictionary of JSON values."""
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


class VectorOptions(TypedDict, total=False):
    """How the vectors of usages are computed.

    Attributes:
        by: Use the vectors of the word itself (layers), or of its predicted substitutes. Default: layers.
        layers: Layers of the vectors, as in ``Elmo.encode``, but not ``"all"``. Default: sense.
        start: Start state of the LSTMs, zero or warm. Default: zero.

    Example:
        >>> options: VectorOptions = {"by": "layers", "layers": "sense"}
        >>> changes = change_in_corpora(elmo, corpora, words=["bank"], **options)  # doctest: +SKIP
    """

    by: VectorSource
    layers: LayerChoice | int | LayerMix
    start: Start


def senses_in_corpus(
    elmo: Elmo,
    sentences: Iterable[Sentence],
    word: str,
    *,
    method: Method = "agglomerative",
    n_clusters: int | None = None,
    limit: int = 500,
    n_examples: int = 3,
    seed: int = 0,
    is_as_written: bool = False,
    **vectors: Unpack[VectorOptions],
) -> Senses:
    """Find the senses of a word in a corpus, and name them by substitutes if the model has a softmax.

    Args:
        elmo: The model.
        sentences: The sentences of the corpus.
        word: A word, or a phrase such as "New York".
        method: Clustering method.
        n_clusters: Number of senses. Default: chosen from the data.
        limit: Maximum number of usages; if there are more, a random sample is used.
        n_examples: Number of typical sentences to show for each sense.
        seed: Random seed for sampling and clustering.
        is_as_written: Encode usages as they are written, instead of replacing each form with ``word``.
        vectors: How to compute the vectors; see ``VectorOptions``.

    Example:
        >>> from elmo.jobs import EmbedJob
        >>> sentences = list(EmbedJob(("corpus.txt",)).sentences(elmo.tokenizer))
        >>> senses = senses_in_corpus(elmo, sentences, "bank", n_clusters=2)
        >>> len(senses.items)
        2
    """
    items = find_usages(sentences, [word], key=entry_key(elmo), limit=limit, seed=seed)[word]
    if not items:
        hint = hint_about_tokenizer(elmo.tokenizer, word) or "; check its spelling and the tokenizer"
        raise DataError(f"{word[:40]!r} does not occur in the text{hint}")
    respelled = items if is_as_written else [respell(usage, word) for usage in items]
    usages = Usages(tuple(items), embed_by(elmo, respelled, **vectors).vectors)
    return find_senses(
        usages, word=word, method=method, n_clusters=n_clusters, n_examples=n_examples,
        name_of=name_by_substitutes(elmo), seed=seed,
    )  # fmt: skip


def join_usages(first: Index, second: Index, words: tuple[str, str], *, limit: int, seed: int = 0) -> Usages:
    """Return the usages of a word in one index and of its translation in another, with their vectors.

    Args:
        first: An index of one language.
        second: An index of the other language, with a model that is aligned to that of the first, or the reverse.
        words: The word in each language.
        limit: Maximum number of usages of both words; if there are more, random samples of equal size are used.
        seed: Random seed of the samples.

    Example:
        >>> index = build_index(IndexJob(("corpus.txt",), Path("joined")), elmo)
        >>> usages = join_usages(index, index, ("river", "stream"), limit=10)
        >>> [usage.word for usage in usages.items]
        ['river', 'stream']
    """
    settings = [(index.layers, index.start, index.width) for index in (first, second)]
    if settings[0] != settings[1] or not first.has_coordinates({second.model, *second.targets}):
        raise ConfigError(
            f"cannot compare the vectors of {format_path(first.folder)} and {format_path(second.folder)}: build both "
            "with the same layers and start, and one of them with a model that 'elmo align' aligned to the other's"
        )
    parts = [
        index.usages(word, limit=max(1, limit // 2), seed=seed)
        for index, word in zip((first, second), words, strict=True)
    ]
    for part, word in zip(parts, words, strict=True):
        if not len(part):
            raise DataError(f"{word[:40]!r} does not occur in the index; check its spelling")
    return Usages((*parts[0].items, *parts[1].items), np.concatenate([part.vectors for part in parts]))


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
        word: The word, for the result. Default: its most frequent spelling.
        method: Clustering method.
        n_clusters: Number of senses. Default: chosen from the data.
        max_clusters: Largest number of senses to try.
        n_examples: Number of typical usages to keep for each sense.
        name_of: A function that names a sense from its usages, the most typical first. Default: name a sense
            by words that occur near its usages more often than near other usages.
        seed: Random seed.

    Example:
        >>> sentences = ["We sat on the [[bank]].", "The [[bank]] lent her money.", "Her [[bank]] gave her a loan."]
        >>> usages = [find_marked_usage(elmo.tokenizer, sentence) for sentence in sentences]
        >>> senses = find_senses(embed_usages(elmo, usages), n_clusters=2)
        >>> [sense.number for sense in senses.items]
        [1, 2]
    """
    if not len(usages):
        raise DataError(f"{word or 'word'!r:.40}: expected usages to cluster, found none")
    if n_clusters is not None and n_clusters > len(usages):
        raise DataError(
            f"{word or 'word'!r:.40}: expected at least {n_clusters} usages for {n_clusters} senses, "
            f"found {len(usages)}"
        )
    if n_examples < 0:
        raise ConfigError(f"n_examples must be at least 0; found {n_examples}")
    clustering = cluster(usages.vectors, method=method, n_clusters=n_clusters, max_clusters=max_clusters, seed=seed)
    similarities = _similarities_to_center(usages, clustering.labels)
    groups = [np.flatnonzero(clustering.labels == k) for k in range(clustering.n_clusters)]
    # Sort each group, the most typical usage first; ties keep the order of the text.
    groups = [rows[np.argsort(-similarities[rows], kind="stable")] for rows in groups]
    members = [[usages.items[row] for row in rows] for rows in groups]
    names = context_names(members) if name_of is None else [tuple(name_of(group)) for group in members]
    names = make_names_distinct(names, members)
    items: list[Sense] = []
    for number, (rows, name, group) in enumerate(zip(groups, names, members, strict=True), start=1):
        examples = tuple(select_distinct(group, n_examples))
        items.append(Sense(number, name, len(rows) / len(usages), tuple(rows.tolist()), examples))
    return Senses(
        word or Counter(usage.word.lower() for usage in usages.items).most_common(1)[0][0],
        usages, tuple(items), clustering.labels + 1, similarities, method, clustering.silhouette, clustering.null,
    )  # fmt: skip


def embed_by(
    elmo: Elmo,
    usages: Sequence[Usage],
    *,
    by: VectorSource = "layers",
    layers: LayerChoice | int | LayerMix = "sense",
    start: Start = "zero",
    on_progress: Callable[[int], None] | None = None,
) -> Usages:
    """Compute the vectors of usages from the layers of the word, or from its predicted substitutes.

    Args:
        elmo: The model. Substitutes need a softmax and a vocabulary.
        usages: Words in their sentences.
        by: Use the vectors of the word itself (layers), or of its predicted substitutes.
        layers: Layers of the vectors, as in ``Elmo.encode``; not used for substitutes.
        start: Start state of the LSTMs, as in ``Elmo.encode``.
        on_progress: Called with the number of usages that are embedded so far.

    Example:
        >>> sentences = ["We sat on the [[bank]].", "The [[bank]] lent her money.", "Her [[bank]] gave her a loan."]
        >>> usages = [find_marked_usage(elmo.tokenizer, sentence) for sentence in sentences]
        >>> embed_by(elmo, usages, by="substitutes").vectors.shape[0]
        3
    """
    if by == "substitutes":
        return embed_substitutes(elmo, usages, start=start, on_progress=on_progress)
    return embed_usages(elmo, usages, layers=layers, start=start, on_progress=on_progress)


def context_names(groups: Sequence[Sequence[Usage]], n_words: int = 3) -> list[tuple[str, ...]]:
    """Name each group of usages by words that occur near them more often than near the other usages.

    Words are ranked by log-odds with a prior (Monroe et al. 2008, "Fightin' Words", Eq. 16 and 22), so words
    that are frequent everywhere and words that occur only once do not name a group. Names and German nouns keep their
    capitals.
    """
    spelling = _find_spellings(usage for group in groups for usage in group)
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
            if min(others, n_others_left) <= 0:  # no other word occurs near the usages
                continue
            odds = np.log((n + prior) / others)
            other = np.log((rest + prior) / n_others_left)
            z = float((odds - other) / np.sqrt(1 / (n + prior) + 1 / (rest + prior)))
            if n > 1 and z > 0 and rest <= _COMMON * n_others:
                scored.append((-z, word))
        names.append(tuple(spelling.get(word, word) for _, word in sorted(scored)[:n_words]))
    return names


def make_names_distinct(names: Sequence[tuple[str, ...]], groups: Sequence[Sequence[Usage]]) -> list[tuple[str, ...]]:
    """Extend the names that several groups of usages share, so that all names differ; empty names stay empty.

    A name is extended by the word that ``context_names`` finds for its group among the groups with the same words as
    name; if there is none, all but the first of these groups add their number.
    """
    sharing: defaultdict[frozenset[str], list[int]] = defaultdict(list)
    for k, name in enumerate(names):
        sharing[frozenset(map(str.lower, name))].append(k)
    distinct = list(names)
    for words, rows in sharing.items():
        if words and len(rows) > 1:
            for k, context in zip(rows, context_names([groups[k] for k in rows]), strict=True):
                distinct[k] += tuple(word for word in context if word.lower() not in words)[:1]
    seen: set[frozenset[str]] = set()
    for k, name in enumerate(distinct):
        spelled = frozenset(map(str.lower, name))
        if name and spelled in seen:
            distinct[k] = (*name, f"({k + 1})")
        seen.add(spelled)
    return distinct


def select_distinct(usages: Sequence[Usage], n: int) -> list[Usage]:
    """Select the first ``n`` usages, but only one of those with the same sentence or the same words near the usage."""
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
    """Return a usage as a dictionary of JSON values."""
    before, word, after = usage.parts()
    return {"place": usage.place, "before": before, "word": word, "after": after}


def _similarities_to_center(usages: Usages, labels: Labels) -> np.ndarray[Any, np.dtype[np.float64]]:
    rows = unit_rows(usages.vectors)
    centers = unit_rows(np.stack([rows[labels == k].mean(axis=0) for k in range(int(labels.max()) + 1)]))
    return (rows * centers[labels]).sum(axis=1)


def _find_spellings(usages: Iterable[Usage]) -> dict[str, str]:
    """Return the most frequent spelling of each word within sentences, by its spelling in lower case."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for usage in usages:
        for token in usage.sentence.tokens[1:]:  # the first word of a sentence has a capital letter in any case
            counts[token.lower()][token] += 1
    return {word: spellings.most_common(1)[0][0] for word, spellings in counts.items()}


def _context(usage: Usage) -> set[str]:
    """Return the distinct words near a usage, without punctuation and the word of the usage itself."""
    tokens = usage.sentence.tokens
    near = tokens[max(usage.begin - WINDOW, 0) : usage.begin] + tokens[usage.end : usage.end + WINDOW]
    own = {token.lower() for token in tokens[usage.begin : usage.end]}
    return {token.lower() for token in near if any(map(str.isalpha, token))} - own


_NAMING_USAGES = 20  # number of typical usages whose substitutes can name a sense
_N_SUBSTITUTES = 10  # number of substitutes for each of these usages


def name_by_substitutes(elmo: Elmo, *, n_words: int = 3) -> SubstituteNames | None:
    """Return a function that names a sense by the substitutes of its usages; None if the model has no softmax.

    Args:
        elmo: A model with a softmax and a vocabulary.
        n_words: Number of words in a name.

    Example:
        >>> sentences = ["We sat on the [[bank]].", "The [[bank]] lent her money.", "Her [[bank]] gave her a loan."]
        >>> usages = [find_marked_usage(elmo.tokenizer, sentence) for sentence in sentences]
        >>> name = name_by_substitutes(elmo, n_words=2)
        >>> senses = find_senses(embed_usages(elmo, usages), n_clusters=2, name_of=name)
    """
    if elmo.softmax is None or elmo.vocab is None:
        return None
    return SubstituteNames(Substituter(elmo), n_words)


@dataclass(frozen=True)
class SubstituteNames:
    """Names senses by the substitutes of their usages; a ``NameOf``."""

    substituter: Substituter
    n_words: int

    def __call__(self, usages: Sequence[Usage]) -> Sequence[str]:
        """Name a sense from its usages, the most typical first."""
        return self.name_groups([usages])[0]

    def name_groups(self, groups: Sequence[Sequence[Usage]]) -> list[Sequence[str]]:
        """Name several senses together, which is faster."""
        groups = [group[:_NAMING_USAGES] for group in groups]
        results = iter(self.substituter.substitutes([usage for group in groups for usage in group], n=_N_SUBSTITUTES))
        names: list[Sequence[str]] = []
        for group in groups:
            shares: dict[str, float] = defaultdict(float)
            for substitutes in islice(results, len(group)):
                for substitute in substitutes.items:
                    shares[substitute.lemma] += substitute.probability
            best = sorted(shares, key=lambda word: -shares[word])[: self.n_words]
            names.append([self.substituter.table.display_name(word) for word in best])
        return names
