"""Clusters of mentions as they are and as they were predicted in, the scores of coreference out.

Definitions are those of the reference scorer (Pradhan et al. 2014): a mention is right where its start and
end are, and over documents the tops and the bases of the fractions are added. MUC: Vilain et al. 1995; B³:
Bagga & Baldwin 1998; CEAF: Luo 2005; BLANC: Recasens & Hovy 2011 as extended by Luo et al. 2014; LEA: Moosavi
& Strube 2016. All scores are shares from 0 to 1. A share of nothing is 0, so a document without a cluster on
either side changes no score.
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
# each a recall (top, base) and a precision (top, base); those of BLANC are of links that are there, and not
_MEASURES = ("mentions", "muc", "b_cubed", "ceaf_m", "ceaf_e", "lea", "links", "gaps")


@dataclass(frozen=True)
class CoreferenceScore:
    """One measure."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class CoreferenceScores:
    """How well mentions and their clusters were found."""

    mentions: CoreferenceScore  # whatever their clusters
    muc: CoreferenceScore
    b_cubed: CoreferenceScore
    ceaf_m: CoreferenceScore
    ceaf_e: CoreferenceScore
    lea: CoreferenceScore
    blanc: CoreferenceScore

    @property
    def conll(self) -> float:
        """CoNLL-2012's score: the mean F1 of MUC, B³ and CEAF-e."""
        return (self.muc.f1 + self.b_cubed.f1 + self.ceaf_e.f1) / 3

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"conll": self.conll, **asdict(self)}


@dataclass(frozen=True)
class _Overlaps:
    """What clusters of a document have in common: one entry for each two that share a mention."""

    gold_sizes: _Counts  # (gold,)
    predicted_sizes: _Counts  # (predicted,)
    gold: _Counts  # (overlap,): which cluster
    predicted: _Counts  # (overlap,)
    shared: _Counts  # (overlap,): mentions


def check_extra() -> None:
    """Refuse to begin what could not be scored in the end: CEAF needs scipy."""
    if find_spec("scipy") is None:
        raise MissingExtraError("CEAF", extra="tasks")


def coreference_scores(
    gold_documents: Sequence[Clusters],
    predicted_documents: Sequence[Clusters],
    *,
    keep_singletons: bool = True,
) -> CoreferenceScores:
    """Compare the clusters of each document.

    ``keep_singletons=False`` leaves clusters of one mention out on both sides, as OntoNotes has none. Empty
    clusters are left out always.
    """
    if len(gold_documents) != len(predicted_documents):
        raise DataError(
            f"expected the predicted clusters of {len(gold_documents):,} documents, "
            f"found those of {len(predicted_documents):,}"
        )
    smallest = 1 if keep_singletons else 2
    total = np.zeros((len(_MEASURES), 4))
    for k, (gold, predicted) in enumerate(zip(gold_documents, predicted_documents, strict=True)):
        total += _fractions(
            _overlaps(
                [cluster for cluster in gold if len(cluster) >= smallest],
                [cluster for cluster in predicted if len(cluster) >= smallest],
                document=k + 1,
            )
        )
    found = {name: _score(*row) for name, row in zip(_MEASURES, total.tolist(), strict=True)}
    links, gaps = found.pop("links"), found.pop("gaps")
    has_links, has_gaps = total[_MEASURES.index("links"), 1] > 0, total[_MEASURES.index("gaps"), 1] > 0
    return CoreferenceScores(**found, blanc=_blanc(links if has_links else None, gaps if has_gaps else None))


def _overlaps(gold: Clusters, predicted: Clusters, *, document: int) -> _Overlaps:
    gold_of = _cluster_of(gold, f"document {document}, true clusters")
    predicted_of = _cluster_of(predicted, f"document {document}, predicted clusters")
    both = Counter((gold_of[mention], predicted_of[mention]) for mention in gold_of.keys() & predicted_of)
    pairs = np.array([*both], dtype=np.int64).reshape(-1, 2)
    return _Overlaps(
        gold_sizes=np.array([len(cluster) for cluster in gold], dtype=np.int64),
        predicted_sizes=np.array([len(cluster) for cluster in predicted], dtype=np.int64),
        gold=pairs[:, 0],
        predicted=pairs[:, 1],
        shared=np.array([*both.values()], dtype=np.int64),
    )


def _cluster_of(clusters: Clusters, name: str) -> dict[_Mention, int]:
    found: dict[_Mention, int] = {}
    for k, cluster in enumerate(clusters):
        for span in cluster:
            mention = (span.start, span.end)
            if mention in found:
                raise DataError(f"{name}: expected each mention once, found {span.start}-{span.end} again")
            found[mention] = k
    return found


def _fractions(found: _Overlaps) -> _Numbers:
    """(measure, recall's top and base, precision's top and base)."""
    shared, n_mentions = found.shared, int(found.shared.sum())
    gold_sizes, predicted_sizes = found.gold_sizes, found.predicted_sizes
    gold, predicted = gold_sizes[found.gold], predicted_sizes[found.predicted]  # (overlap,)
    n_gold, n_predicted = int(gold_sizes.sum()), int(predicted_sizes.sum())

    # a cluster of n mentions that the other side cuts into p parts keeps n - p of its n - 1 links
    muc = (shared - 1).sum()
    ceaf_m, ceaf_e = _alignments(found, (shared, 2 * shared / (gold + predicted)))
    links = _pairs(shared).sum()
    gold_links, predicted_links = _pairs(gold_sizes).sum(), _pairs(predicted_sizes).sum()
    # both sides know the two mentions, and neither links them
    known_by_gold = np.bincount(found.gold, weights=shared)
    known_by_predicted = np.bincount(found.predicted, weights=shared)
    gaps = _pairs(n_mentions) - _pairs(known_by_gold).sum() - _pairs(known_by_predicted).sum() + links
    return np.array(
        [
            [n_mentions, n_gold, n_mentions, n_predicted],
            [muc, n_gold - len(gold_sizes), muc, n_predicted - len(predicted_sizes)],
            [(shared**2 / gold).sum(), n_gold, (shared**2 / predicted).sum(), n_predicted],
            [ceaf_m, n_gold, ceaf_m, n_predicted],
            [ceaf_e, len(gold_sizes), ceaf_e, len(predicted_sizes)],
            [_lea(shared, gold, predicted), n_gold, _lea(shared, predicted, gold), n_predicted],
            [links, gold_links, links, predicted_links],
            [gaps, _pairs(n_gold) - gold_links, gaps, _pairs(n_predicted) - predicted_links],
        ],
        dtype=np.float64,
    )


def _lea(shared: _Counts, sizes: _Counts, other_sizes: _Counts) -> float:
    """Σ over clusters of size × the share of its links that the other side has too.

    A mention alone has one link, to itself, which the other side has where the mention is alone there too.
    """
    of_many = shared * (shared - 1) / np.maximum(sizes - 1, 1)
    return float(np.where(sizes > 1, of_many, other_sizes == 1).sum())


def _alignments(found: _Overlaps, weights: tuple[_Numbers | _Counts, ...]) -> list[float]:
    """For each of ``weights`` (overlap,) the most that one-to-one pairs of clusters add up to."""
    try:
        from scipy.optimize import linear_sum_assignment
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components
    except ImportError as error:
        raise MissingExtraError("CEAF", extra="tasks") from error
    n_gold, n_predicted = len(found.gold_sizes), len(found.predicted_sizes)
    if not len(found.shared):
        return [0.0] * len(weights)
    # clusters that are not joined by overlaps cannot take each other's place: the tables stay small
    n = n_gold + n_predicted
    graph = coo_array((np.ones(len(found.shared)), (found.gold, n_gold + found.predicted)), shape=(n, n))
    group = connected_components(graph, directed=False)[1][found.gold]  # (overlap,)
    order = np.argsort(group, kind="stable")
    totals = [0.0] * len(weights)
    for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        if len(members) == 1:  # nothing to choose: most are so
            totals = [
                total + float(weight[members[0]]) for total, weight in zip(totals, weights, strict=True)
            ]
            continue
        rows = np.unique(found.gold[members], return_inverse=True)[1]
        columns = np.unique(found.predicted[members], return_inverse=True)[1]
        for k, weight in enumerate(weights):
            table = np.zeros((rows.max() + 1, columns.max() + 1))  # (gold, predicted)
            table[rows, columns] = weight[members]
            totals[k] += float(table[linear_sum_assignment(table, maximize=True)].sum())
    return totals


def _pairs(n: Any) -> Any:
    """How many links n mentions have."""
    return n * (n - 1) / 2


def _score(
    recall_top: float, recall_base: float, precision_top: float, precision_base: float
) -> CoreferenceScore:
    recall = recall_top / recall_base if recall_base else 0.0
    precision = precision_top / precision_base if precision_base else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return CoreferenceScore(precision, recall, f1)


def _blanc(links: CoreferenceScore | None, gaps: CoreferenceScore | None) -> CoreferenceScore:
    """The mean of both kinds; where the truth has none of a kind (None), the other alone."""
    kinds = [kind for kind in (links, gaps) if kind is not None]
    n = max(len(kinds), 1)
    return CoreferenceScore(
        precision=sum(kind.precision for kind in kinds) / n,
        recall=sum(kind.recall for kind in kinds) / n,
        f1=sum(kind.f1 for kind in kinds) / n,
    )
