"""Coreference metrics: MUC, B³, CEAF, LEA and BLANC.

The definitions are those of the reference scorer (Pradhan et al. 2014): a mention is correct if its start and
end match those of a gold mention, and numerators and denominators are summed over documents. MUC: Vilain et al.
1995; B³: Bagga & Baldwin 1998; CEAF: Luo 2005; BLANC: Recasens & Hovy 2011, extended by Luo et al. 2014; LEA:
Moosavi & Strube 2016. A document without any gold or predicted cluster does not change the scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmo.errors import importing_extra
from elmo.tasks.data.examples import Span

Clusters = Sequence[Sequence[Span]]  # the clusters of one document
_Counts = NDArray[np.int64]
_Numbers = NDArray[np.float64]
# The rows of the sums over documents. BLANC combines the scores of links and non-links.
_MEASURES = ("mentions", "muc", "b_cubed", "ceaf_m", "ceaf_e", "lea", "links", "non_links")


@dataclass(frozen=True)
class CoreferenceScore:
    """Precision, recall and F1 by one coreference metric."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class CoreferenceScores:
    """Scores of predicted mentions and clusters by several metrics."""

    mentions: CoreferenceScore  # scores of mentions, regardless of their clusters
    muc: CoreferenceScore
    b_cubed: CoreferenceScore
    ceaf_m: CoreferenceScore
    ceaf_e: CoreferenceScore
    lea: CoreferenceScore
    blanc: CoreferenceScore

    @property
    def conll(self) -> float:
        """The score of the CoNLL-2012 shared task: the mean F1 of MUC, B³ and CEAFe."""
        return (self.muc.f1 + self.b_cubed.f1 + self.ceaf_e.f1) / 3


@dataclass(frozen=True)
class _Overlaps:
    """Pairs of a gold and a predicted cluster of one document that share at least one mention."""

    gold_sizes: _Counts  # (gold,): number of mentions of each gold cluster
    predicted_sizes: _Counts  # (predicted,): number of mentions of each predicted cluster
    gold: _Counts  # (overlap,): index of the gold cluster
    predicted: _Counts  # (overlap,): index of the predicted cluster
    shared: _Counts  # (overlap,): number of shared mentions


def check_extra() -> None:
    """Raise ``MissingExtraError`` if scipy, which the CEAF metrics need, is not installed."""
    with importing_extra("scoring coreference (CEAF)", extra="tasks"):
        import scipy.optimize
        import scipy.sparse.csgraph  # noqa: F401


def coreference_scores(
    gold_documents: Sequence[Clusters], predicted_documents: Sequence[Clusters], *, keep_singletons: bool = True
) -> CoreferenceScores:
    """Compute the scores of the predicted clusters of all documents; no mention may be in two clusters.

    ``keep_singletons=False`` ignores gold and predicted clusters of one mention, as in OntoNotes. Empty clusters
    are always ignored.
    """
    check_extra()
    smallest = 1 if keep_singletons else 2
    total = np.zeros((len(_MEASURES), 4))
    for sides in zip(gold_documents, predicted_documents, strict=True):
        total += _fractions(_find_overlaps(*([c for c in clusters if len(c) >= smallest] for clusters in sides)))
    scores = {name: _score(*row) for name, row in zip(_MEASURES, total.tolist(), strict=True)}
    links, non_links = scores.pop("links"), scores.pop("non_links")
    has_links, has_non_links = total[-2:, 1] > 0
    blanc = _blanc(links if has_links else None, non_links if has_non_links else None)
    return CoreferenceScores(**scores, blanc=blanc)


def _find_overlaps(gold: Clusters, predicted: Clusters) -> _Overlaps:
    gold_of, predicted_of = (
        {(span.start, span.end): k for k, cluster in enumerate(clusters) for span in cluster}
        for clusters in (gold, predicted)
    )  # cluster index of each mention
    n_shared = Counter((gold_of[mention], predicted_of[mention]) for mention in gold_of.keys() & predicted_of)
    pairs = np.array([*n_shared], dtype=np.int64).reshape(-1, 2)
    return _Overlaps(
        gold_sizes=np.array([len(cluster) for cluster in gold], dtype=np.int64),
        predicted_sizes=np.array([len(cluster) for cluster in predicted], dtype=np.int64),
        gold=pairs[:, 0],
        predicted=pairs[:, 1],
        shared=np.array([*n_shared.values()], dtype=np.int64),
    )


def _fractions(overlaps: _Overlaps) -> _Numbers:
    """Compute the numerator and denominator of recall and of precision for each of ``_MEASURES``, (measure, 4)."""
    shared, n_mentions = overlaps.shared, int(overlaps.shared.sum())
    gold_sizes, predicted_sizes = overlaps.gold_sizes, overlaps.predicted_sizes
    gold, predicted = gold_sizes[overlaps.gold], predicted_sizes[overlaps.predicted]  # (overlap,)
    n_gold, n_predicted = int(gold_sizes.sum()), int(predicted_sizes.sum())

    # MUC: a cluster of n mentions that the other clustering splits into p parts keeps n - p of its n - 1 links.
    muc = (shared - 1).sum()
    ceaf_m, ceaf_e = _best_alignments(overlaps, (shared, 2 * shared / (gold + predicted)))
    links = _pairs(shared).sum()
    gold_links, predicted_links = _pairs(gold_sizes).sum(), _pairs(predicted_sizes).sum()
    # Non-links: pairs of mentions that occur in both clusterings and are linked in neither.
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
    """Compute the numerator of LEA: the sum over clusters of the size times the fraction of shared links.

    A link is shared if the other clustering has it too. A singleton has one link, to itself.
    """
    of_many = shared * (shared - 1) / np.maximum(sizes - 1, 1)
    return float(np.where(sizes > 1, of_many, other_sizes == 1).sum())


def _best_alignments(overlaps: _Overlaps, weights: tuple[_Numbers | _Counts, ...]) -> list[float]:
    """Find the one-to-one alignment of clusters with the highest sum for each of ``weights``; return the sums."""
    from scipy.optimize import linear_sum_assignment
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n_gold, n_predicted = len(overlaps.gold_sizes), len(overlaps.predicted_sizes)
    if not len(overlaps.shared):
        return [0.0] * len(weights)
    # Align each connected component of overlapping clusters separately, which keeps the tables small.
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
    """Return the number of pairs of n mentions."""
    return n * (n - 1) / 2


def _score(recall_sum: float, recall_total: float, precision_sum: float, precision_total: float) -> CoreferenceScore:
    recall = recall_sum / recall_total if recall_total else 0.0
    precision = precision_sum / precision_total if precision_total else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return CoreferenceScore(precision, recall, f1)


def _blanc(links: CoreferenceScore | None, non_links: CoreferenceScore | None) -> CoreferenceScore:
    """Compute BLANC, the mean of the scores of links and of non-links; a score is None if the gold data has none."""
    kinds = [kind for kind in (links, non_links) if kind is not None]
    n = max(len(kinds), 1)
    return CoreferenceScore(
        precision=sum(kind.precision for kind in kinds) / n,
        recall=sum(kind.recall for kind in kinds) / n,
        f1=sum(kind.f1 for kind in kinds) / n,
    )
