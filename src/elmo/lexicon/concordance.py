"""Concordances: the usages of a word in an index as lines, sorted by context, by similarity or by meaning.

``arrange_usages`` computes positions for a map of usages, in which nearby points are similar usages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError
from elmo.lexicon.change import frequent_words
from elmo.lexicon.index import Index
from elmo.lexicon.senses import NameOf, find_senses
from elmo.lexicon.usages import Usage, Usages, embed_usages, find_marked_usage, unit_rows

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

Sort = Literal["corpus", "left", "right", "similarity", "meaning"]
_CLUSTERED_USAGES = 500  # usages that are clustered to sort by meaning; the others are assigned to the clusters
_EXAMPLE_COUNT = 20  # usages of a word that is offered as an example
_COMMON_WORDS = 150  # words that are too frequent for an example
_AMBIGUOUS = (
    "bank", "board", "capital", "case", "chair", "character", "class", "court", "cross", "degree", "face", "figure",
    "fire", "ground", "hand", "head", "interest", "leaves", "letter", "light", "match", "matter", "note", "paper",
    "party", "plant", "power", "right", "spring", "state", "subject", "table", "东西", "分子", "单位", "地方", "对象",
    "意思", "文化", "机关", "水平", "温度", "精神", "背景", "苹果", "运动", "黄金",
)  # fmt: skip


@dataclass(frozen=True)
class ConcordanceLine:
    """A usage of the word, with its number in the index.

    Attributes:
        number: Number of the usage in the index.
        usage: The usage.
        similarity: Cosine with the usage that lines are compared with; None if there is none.
        sense: Number of the sense, from 1, if the lines are sorted by meaning.
    """

    number: int
    usage: Usage
    similarity: float | None
    sense: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the line as a dictionary of JSON values."""
        before, word, after = self.usage.parts()
        return {
            "number": self.number, "before": before, "word": word, "after": after, "place": self.usage.place,
            "similarity": self.similarity, "sense": self.sense,
        }  # fmt: skip


@dataclass(frozen=True)
class Concordance:
    """The usages of a word, in the chosen order.

    Attributes:
        word: The word.
        n_total: Number of usages in the index; the lines are a random sample if there are more than the limit.
        lines: The usages.
    """

    word: str
    n_total: int
    lines: tuple[ConcordanceLine, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the concordance as a dictionary of JSON values."""
        return {"word": self.word, "total": self.n_total, "lines": [line.to_json() for line in self.lines]}


def build_concordance(
    index: Index,
    word: str,
    *,
    elmo: Elmo,
    limit: int = 1000,
    sort: Sort = "corpus",
    to: int | str | Sequence[str] | None = None,
    seed: int = 0,
) -> Concordance:
    """List the usages of a word in an index.

    Args:
        index: The index.
        word: A word, or a phrase such as "New York".
        elmo: The model that built the index, which encodes the sentence ``to``.
        limit: Maximum number of lines; if there are more usages, a random sample is used.
        sort: Order of the lines: as in the corpus; by the words to the left, nearest first, or to the right; by
            similarity to ``to``; or by meaning, which groups the usages by sense.
        to: The usage that lines are compared with: its number in the index, or a sentence in which the word is
            marked like ``[[this]]``.
        seed: Random seed for sampling and clustering.

    Example:
        >>> index = build_index(IndexJob(("corpus.txt",), Path("lines")), elmo)
        >>> concordance = build_concordance(index, "bank", elmo=elmo, sort="similarity", to="Her [[bank]].")
        >>> len(concordance.lines)
        6
    """
    if sort not in get_args(Sort):
        raise ConfigError(f"sort must be one of {', '.join(get_args(Sort))}; found {sort!r:.40}")
    if sort == "similarity" and to is None:
        raise ConfigError("to must be a usage or a marked sentence if lines are sorted by similarity")
    numbers, usages = sample_usages(index, word, limit=limit, seed=seed)
    similarities = None if to is None else similarities_to(index, usages, elmo, to)
    senses = assign_senses(usages, word=word, seed=seed) if sort == "meaning" else None
    order = _sort_lines(usages, sort, similarities, senses)
    lines = tuple(
        ConcordanceLine(
            int(numbers[k]), usages.items[k], None if similarities is None else round(float(similarities[k]), 6),
            None if senses is None else int(senses.labels[k]),
        )
        for k in order
    )  # fmt: skip
    return Concordance(word, len(index.numbers(word)), lines)


def example_words(index: Index, n: int = 8) -> list[str]:
    """Return words to start with: frequent ones with several meanings, then other frequent ones.

    The most frequent words of an index, which are mostly function words, are left out.
    """
    counts = {word: n_usages for word, (n_usages, _) in index.words.items()}
    ambiguous = sorted((word for word in _AMBIGUOUS if counts.get(word, 0) >= _EXAMPLE_COUNT), key=lambda w: -counts[w])
    frequent = frequent_words([counts], min_count=_EXAMPLE_COUNT, max_words=n, skip=_COMMON_WORDS)
    return list(dict.fromkeys([*ambiguous, *frequent]))[:n]


def sample_usages(index: Index, word: str, *, limit: int, seed: int = 0) -> tuple[NDArray[np.int64], Usages]:
    """Return the numbers of up to ``limit`` usages of a word in corpus order, and the usages with their vectors."""
    numbers = index.numbers(word)
    if not len(numbers):
        raise DataError(f"{word[:40]!r} does not occur in the index")
    if len(numbers) > limit:
        numbers = np.sort(np.random.default_rng(seed).choice(numbers, limit, replace=False))
    return numbers, Usages(tuple(index.usage(int(number)) for number in numbers), index.vectors(numbers))


def arrange_usages(vectors: NDArray[Any]) -> NDArray[np.float64]:
    """Compute positions (usage, 2) from vectors (usage, width): the first two principal components of unit vectors.

    The result does not depend on the machine: the coordinate with the largest absolute loading is positive, and
    positions are scaled to -1..1 and rounded.

    Args:
        vectors: Vectors of usages, (usage, width).

    Example:
        >>> arrange_usages(np.eye(3)).shape
        (3, 2)
    """
    rows = unit_rows(np.asarray(vectors, dtype=np.float64))
    centered = rows - rows.mean(axis=0)
    _, axes = np.linalg.eigh(centered.T @ centered)
    axes = axes[:, ::-1][:, :2]
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), range(axes.shape[1])])
    positions = centered @ (axes * np.where(signs == 0, 1, signs))
    positions = np.pad(positions, ((0, 0), (0, 2 - positions.shape[1])))  # for vectors of width 1
    return np.round(positions / max(float(np.abs(positions).max(initial=0.0)), 1e-9), 4) + 0.0


def similarities_to(index: Index, usages: Usages, elmo: Elmo, to: int | str | Sequence[str]) -> NDArray[np.float64]:
    """Compute the cosine of each usage (usage,) with a usage of the index, or with the marked word of a sentence."""
    if isinstance(to, int):
        query = index.vectors([to])
    else:
        usage = find_marked_usage(elmo.tokenizer, to, usages.items[0].word, number=1)
        query = embed_usages(elmo, [usage], layers=index.layers, start=index.start).vectors
    return (unit_rows(usages.vectors) * unit_rows(query)).sum(axis=1).clip(-1, 1)


@dataclass(frozen=True, eq=False)
class AssignedSenses:
    """The senses of many usages of a word, of which only a sample was clustered.

    Attributes:
        labels: Number of the sense of each usage (usage,), from 1.
        similarities: Cosine of each usage with the center of its sense (usage,).
        names: Words that describe each sense.
    """

    labels: NDArray[np.int64]
    similarities: NDArray[np.float64]
    names: tuple[tuple[str, ...], ...]


def assign_senses(
    usages: Usages, *, word: str, n_clusters: int | None = None, name_of: NameOf | None = None, seed: int = 0
) -> AssignedSenses:
    """Find the sense of each usage. If there are many usages, cluster a sample and assign the others to its senses.

    Args:
        usages: The usages of one word with their vectors.
        word: The word.
        n_clusters: Number of senses. Default: chosen from the data.
        name_of: A function that names a sense, as in ``find_senses``.
        seed: Random seed for sampling and clustering.
    """
    n = len(usages)
    rows = np.arange(n)
    if n > _CLUSTERED_USAGES:
        rows = np.sort(np.random.default_rng(seed).choice(n, _CLUSTERED_USAGES, replace=False))
    sample = Usages(tuple(usages.items[k] for k in rows), usages.vectors[rows])
    senses = find_senses(sample, word=word, n_clusters=n_clusters, n_examples=0, name_of=name_of, seed=seed)
    units = unit_rows(usages.vectors)
    means = np.stack([units[rows[senses.labels == number]].mean(axis=0) for number in range(1, len(senses) + 1)])
    cosines = units @ unit_rows(means).T
    labels = cosines.argmax(axis=1).astype(np.int64) + 1
    labels[rows] = senses.labels
    similarities = cosines[np.arange(n), labels - 1].astype(np.float64)
    return AssignedSenses(labels, similarities, tuple(sense.name for sense in senses.items))


def _sort_lines(
    usages: Usages, sort: Sort, similarities: NDArray[np.float64] | None, senses: AssignedSenses | None
) -> list[int]:
    rows = range(len(usages))
    if sort in ("left", "right"):
        return sorted(rows, key=lambda k: _context_key(usages.items[k], sort))
    if sort == "similarity" and similarities is not None:
        return sorted(rows, key=lambda k: -similarities[k])
    if sort == "meaning" and senses is not None:
        return sorted(rows, key=lambda k: (senses.labels[k], -senses.similarities[k]))
    return list(rows)


def _context_key(usage: Usage, side: str) -> list[str]:
    """Return the tokens next to a usage, the nearest first."""
    tokens = usage.sentence.tokens
    context = tokens[: usage.begin][::-1] if side == "left" else tokens[usage.end :]
    return [token.lower() for token in context[:20]]
