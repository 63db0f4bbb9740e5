"""Coreference metrics: MUC, B³, CEAF, LEA and BLANC.

The definitions are those of the reference scorer (Pradhan et al. 2014): a mention is correct if its start and
end match, and numerators and denominators are summed over documents. MUC: Vilain et al. 1995; B³: Bagga &
Baldwin 1998; CEAF: Luo 2005; BLANC: Recasens & Hovy 2011, extended by Luo et al. 2014; LEA: Moosavi & Strube
2016. A document without clusters on either side changes no score.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmo.errors import DataError, MissingExtraError
from elmo.tasks.data.examples import Span

Clusters = Sequence[Sequence[Span]]  # of one document
_Mention = tuple[int, int]
_Counts = NDArray[np.int64]
_Numbers = NDArray[np.float64]
# Each has numerator and denominator of recall and of precision. BLANC combines coreferent and non-coreferent
# links.
_MEASURES = ("mentions", "muc", "b_cubed", "ceaf_m", "ceaf_e", "lea", "links", "non_links")


@dataclass(frozen=True)
class CoreferenceScore:
    """Precision, recall and F1 of one metric."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class CoreferenceScores:
    """Scores of mentions and of their clusters."""

    mentions: CoreferenceScore  # regardless of clusters
    muc: CoreferenceScore
    b_cubed: CoreferenceScore
    ceaf_m: CoreferenceScore
    ceaf_e: CoreferenceScore
    lea: CoreferenceScore
    blanc: CoreferenceScore

    @property
    def conll(self) -> float:
        """The CoNLL-2012 score: the mean F1 of MUC, B³ and CEAF-e."""
        return (self.muc.f1 + self.b_cubed.f1 + self.ceaf_e.f1) / 3

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"conll": self.conll, **asdict(self)}


@dataclass(frozen=True)
class _Overlaps:
    """The overlaps of true and predicted clusters in a document: one entry per pair that shares a mention."""

    gold_sizes: _Counts  # (gold,)
    predicted_sizes: _Counts  # (predicted,)
    gold: _Counts  # (overlap,): cluster number
    predicted: _Counts  # (overlap,)
    shared: _Counts  # (overlap,): number of shared mentions


def check_extra() -> None:
    """Raise early if scipy, which CEAF needs, is missing."""
    if find_spec("scipy") is None:
        raise MissingExtraError("CEAF", extra="tasks")


def coreference_scores(
    gold_documents: Sequence[Clusters], predicted_documents: Sequence[Clusters], *, keep_singletons: bool = True
) -> CoreferenceScores:
    """Compare the clusters of each document.

    ``keep_singletons=False`` ignores clusters of one mention on both sides, as in OntoNotes. Empty clusters
    are always ignored.
    """
    if len(gold_documents) != len(predicted_documents):
        raise DataError(
            f"expected predicted clusters for {len(gold_documents):,} documents, "
            f"found them for {len(predicted_documents):,}"
        )
    smallest = 1 if keep_singletons else 2
    total = np.zeros((len(_MEASURES), 4))
    for k, (gold, predicted) in enumerate(zip(gold_documents, predicted_documents, strict=True)):
        total += _fractions(
            _find_overlaps(
                [cluster for cluster in gold if len(cluster) >= smallest],
                [cluster for cluster in predicted if len(cluster) >= smallest],
                document=k + 1,
            )
        )
    scores = {name: _score(*row) for name, row in zip(_MEASURES, total.tolist(), strict=True)}
    links, non_links = scores.pop("links"), scores.pop("non_links")
    has_links, has_non_links = total[-2:, 1] > 0
    blanc = _blanc(links if has_links else None, non_links if has_non_links else None)
    return CoreferenceScores(**scores, blanc=blanc)


def _find_overlaps(gold: Clusters, predicted: Clusters, *, document: int) -> _Overlaps:
    gold_of = _cluster_numbers(gold, f"document {document}, true clusters")
    predicted_of = _cluster_numbers(predicted, f"document {document}, predicted clusters")
    n_shared = Counter((gold_of[mention], predicted_of[mention]) for mention in gold_of.keys() & predicted_of)
    pairs = np.array([*n_shared], dtype=np.int64).reshape(-1, 2)
    return _Overlaps(
        gold_sizes=np.array([len(cluster) for cluster in gold], dtype=np.int64),
        predicted_sizes=np.array([len(cluster) for cluster in predicted], dtype=np.int64),
        gold=pairs[:, 0],
        predicted=pairs[:, 1],
        shared=np.array([*n_shared.values()], dtype=np.int64),
    )


def _cluster_numbers(clusters: Clusters, name: str) -> dict[_Mention, int]:
    numbers: dict[_Mention, int] = {}
    for k, cluster in enumerate(clusters):
        for span in cluster:
            mention = (span.start, span.end)
            if mention in numbers:
                raise DataError(f"{name}: expected each mention once, found {span.start}-{span.end} more than once")
            numbers[mention] = k
    return numbers


def _fractions(overlaps: _Overlaps) -> _Numbers:
    """Compute (metric, 4): numerator and denominator of recall, then of precision."""
    shared, n_mentions = overlaps.shared, int(overlaps.shared.sum())
    gold_sizes, predicted_sizes = overlaps.gold_sizes, overlaps.predicted_sizes
    gold, predicted = gold_sizes[overlaps.gold], predicted_sizes[overlaps.predicted]  # (overlap,)
    n_gold, n_predicted = int(gold_sizes.sum()), int(predicted_sizes.sum())

    # A cluster of n mentions that the other side splits into p parts keeps n - p of its n - 1 links.
    muc = (shared - 1).sum()
    ceaf_m, ceaf_e = _best_alignments(overlaps, (shared, 2 * shared / (gold + predicted)))
    links = _pairs(shared).sum()
    gold_links, predicted_links = _pairs(gold_sizes).sum(), _pairs(predicted_sizes).sum()
    # Non-links: pairs of mentions that both sides contain and neither side links.
    known_by_gold = np.bincount(overlaps.gold, weights=shared)
    known_by_predicted = np.bincount(overlaps.predicted, weights=shared)
    non_links = _pairs(n_mentions) - _pairs(known_by_gold).sum() - _pairs(known_by_predicted).sum() + links
    return np.array(
        [
            [n_mentions, n_gold, n_mentions, n_predicted],
            [muc, n_gold - len(gold_sizes), muc, n_predicted - len(predicted_sizes)],
            [(shared**2 / gold).sum(), n_gold, (shared**2 / predicted).sum(), n_predicted],
            [ceaf_m, n_gold, ceaf_m, n_predicted],
            [ceaf_e, len(gold_sizes), ceaf_e, len(predicted_sizes)],
            [_lea(shared, gold, predicted), n_gold, _lea(shared, predicted, gold), n_predicted],
            [links, gold_links, links, predicted_links],
            [non_links, _pairs(n_gold) - gold_links, non_links, _pairs(n_predicted) - predicted_links],
        ],
        dtype=np.float64,
    )


def _lea(shared: _Counts, sizes: _Counts, other_sizes: _Counts) -> float:
    """Sum over clusters the size times the fraction of links that the other side shares.

    A singleton has one link, to itself; the other side shares it if the mention is a singleton there too.
    """
    of_many = shared * (shared - 1) / np.maximum(sizes - 1, 1)
    return float(np.where(sizes > 1, of_many, other_sizes == 1).sum())


def _best_alignments(overlaps: _Overlaps, weights: tuple[_Numbers | _Counts, ...]) -> list[float]:
    """Maximize the sum of each of ``weights`` (overlap,) over one-to-one alignments of clusters."""
    try:
        from scipy.optimize import linear_sum_assignment
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components
    except ImportError as error:
        raise MissingExtraError("CEAF", extra="tasks") from error
    n_gold, n_predicted = len(overlaps.gold_sizes), len(overlaps.predicted_sizes)
    if not len(overlaps.shared):
        return [0.0] * len(weights)
    # Align each connected component of overlapping clusters separately: the tables stay small.
    n = n_gold + n_predicted
    edges = (overlaps.gold, n_gold + overlaps.predicted)
    graph = coo_array((np.ones(len(overlaps.shared)), edges), shape=(n, n))
    group = connected_components(graph, directed=False)[1][overlaps.gold]  # (overlap,)
    order = np.argsort(group, kind="stable")
    totals = [0.0] * len(weights)
    for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        if len(members) == 1:  # nothing to align; the most frequent case
            totals = [total + float(weight[members[0]]) for total, weight in zip(totals, weights, strict=True)]
            continue
        rows = np.unique(overlaps.gold[members], return_inverse=True)[1]
        columns = np.unique(overlaps.predicted[members], return_inverse=True)[1]
        for k, weight in enumerate(weights):
            table = np.zeros((rows.max() + 1, columns.max() + 1))  # (gold, predicted)
            table[rows, columns] = weight[members]
            totals[k] += float(table[linear_sum_assignment(table, maximize=True)].sum())
    return totals


def _pairs(n: Any) -> Any:
    """Number of links between n mentions."""
    return n * (n - 1) / 2


def _score(recall_sum: float, recall_total: float, precision_sum: float, precision_total: float) -> CoreferenceScore:
    recall = recall_sum / recall_total if recall_total else 0.0
    precision = precision_sum / precision_total if precision_total else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return CoreferenceScore(precision, recall, f1)


def _blanc(links: CoreferenceScore | None, non_links: CoreferenceScore | None) -> CoreferenceScore:
    """Average both kinds of links; a kind that the true clusters do not contain (None) is ignored."""
    kinds = [kind for kind in (links, non_links) if kind is not None]
    n = max(len(kinds), 1)
    return CoreferenceScore(
        precision=sum(kind.precision for kind in kinds) / n,
        recall=sum(kind.recall for kind in kinds) / n,
        f1=sum(kind.f1 for kind in kinds) / n,
    )
