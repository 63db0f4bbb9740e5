"""Vectors of a word's usages in, the number of the cluster that each belongs to out.

Distances are cosine distances in the directions that vary most (PCA). How many clusters there are is found:
of the numbers whose silhouette (Rousseeuw 1987) lies above those of data without clusters, drawn from a
normal distribution of the same covariance, the one with the highest; one where nothing rises above chance.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError, MissingExtraError
from elmo.lexicon.usages import unit_rows

Method = Literal["agglomerative", "kmeans", "affinity", "hdbscan"]
METHODS: tuple[Method, ...] = get_args(Method)
Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.int64]

N_COMPONENTS = 20  # of the PCA: what varies less is mostly noise to a few hundred usages
N_NULLS = 19  # sets of data without clusters: to lie above all of them has a chance of 1 in 20
SMALLEST_SHARE = 0.04  # of the usages, and three: fewer are strays of the next cluster, no sense
MAX_CLUSTERS = 10  # that are looked for where nobody says how many
FEWEST = 6  # usages, below which no clusters are looked for
MOST = 5000  # usages, whose distances to each other are held, some times over


@dataclass(frozen=True, eq=False)
class Clustering:
    """Cluster 0 is the largest; silhouettes are None where no number of clusters was sought."""

    labels: Labels  # (usage,)
    n_clusters: int
    silhouette: float | None = None  # of the best number above one, whether it was taken or not
    null: float | None = None  # what data without clusters reach: above it, there are clusters


def cluster(
    vectors: Floats,
    *,
    method: Method = "agglomerative",
    n_clusters: int | None = None,
    max_clusters: int = MAX_CLUSTERS,
    seed: int = 0,
) -> Clustering:
    """The clusters of ``vectors`` (usage, width).

    ``agglomerative`` joins by the average distance; it and ``kmeans`` take a number of clusters, or find it.
    ``affinity`` (Frey and Dueck 2007) and ``hdbscan`` (Campello et al. 2013) find their own.
    """
    _check(vectors, method, n_clusters, max_clusters)
    rows = np.asarray(vectors, dtype=np.float64)
    points = reduced(rows)
    n = len(points)
    if n_clusters == 1 or (n_clusters is None and n < FEWEST) or points.shape[1] == 0:
        return Clustering(np.zeros(n, dtype=np.int64), min(n, 1))
    if method in ("affinity", "hdbscan"):
        labels = _by_size((_affinity if method == "affinity" else _hdbscan)(points, seed))
        return Clustering(labels, len(np.unique(labels)))
    cut = _tree if method == "agglomerative" else _kmeans
    if n_clusters is not None:
        labels = _by_size(_noise_joined(points, next(cut(points, [n_clusters], 1, seed))))
        return Clustering(labels, len(np.unique(labels)))
    return _best(points, cut, max_clusters=max_clusters, seed=seed)


def reduced(vectors: Floats, n_components: int = N_COMPONENTS) -> NDArray[np.float64]:
    """Rows of length one in their first principal components (usage, component).

    Half the squared distance of two such rows is their cosine distance, but for what the PCA leaves out.
    """
    rows = unit_rows(vectors)
    centred = rows - rows.mean(axis=0, keepdims=True) if len(rows) else rows
    left, sizes, right = np.linalg.svd(centred, full_matrices=False)
    n_kept = min(n_components, int((sizes > 1e-9).sum()))
    signs = np.sign(right[np.arange(n_kept), np.abs(right[:n_kept]).argmax(axis=1)])  # LAPACK may choose
    return left[:, :n_kept] * (sizes[:n_kept] * signs)


def silhouette(distances: Floats, labels: Labels) -> float:
    """The mean silhouette for a matrix of distances (usage, usage); 0 for one cluster."""
    n_clusters = int(labels.max()) + 1
    if n_clusters < 2:
        return 0.0
    one_hot = np.eye(n_clusters)[labels]  # (usage, cluster)
    sizes = one_hot.sum(axis=0)
    sums = distances @ one_hot  # of the distances to each cluster's members
    own = np.arange(len(labels)), labels
    inside = sums[own] / np.maximum(sizes[labels] - 1, 1)
    means = sums / np.maximum(sizes, 1)
    means[:, sizes == 0] = np.inf
    means[own] = np.inf
    outside = means.min(axis=1)
    larger = np.maximum(inside, outside)
    scores = (outside - inside) / np.where(larger > 0, larger, 1)
    return float(np.where((sizes[labels] > 1) & (larger > 0), scores, 0).mean())


def _check(vectors: Floats, method: str, n_clusters: int | None, max_clusters: int) -> None:
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise DataError(f"expected finite vectors (usage, width) to cluster, found shape {vectors.shape}")
    if len(vectors) > MOST:
        raise ConfigError(f"expected at most {MOST:,} usages, found {len(vectors):,}; take a sample of them")
    if method not in METHODS:
        raise ConfigError(f"method must be one of {', '.join(METHODS)}, not {method!r:.40}")
    if max_clusters < 2:
        raise ConfigError(f"max_clusters must be at least 2, found {max_clusters}")
    if n_clusters is None:
        return
    if method in ("affinity", "hdbscan"):
        raise ConfigError(f"{method} finds the number of clusters itself; give it to agglomerative or kmeans")
    if not 1 <= n_clusters <= max(len(vectors), 1):
        raise ConfigError(f"expected 1..{len(vectors)} clusters of {len(vectors)} usages, found {n_clusters}")


Cut = Callable[[NDArray[np.float64], list[int], int, int], Iterator[Labels]]


def _best(points: NDArray[np.float64], cut: Cut, *, max_clusters: int, seed: int) -> Clustering:
    """The number of clusters with the highest silhouette of those that no null reaches, or one cluster."""
    n = len(points)
    smallest = max(3, math.ceil(SMALLEST_SHARE * n))
    numbers = list(range(2, min(max_clusters, n // smallest) + 1))
    if not numbers:
        return Clustering(np.zeros(n, dtype=np.int64), 1)
    found = list(cut(points, numbers, smallest, seed))
    scores = _silhouettes(points, found)
    chance = np.random.default_rng(seed)
    far = np.argsort((points**2).sum(axis=1), kind="stable")
    spread = points[far[: n - round(SMALLEST_SHARE * n)]].std(axis=0)  # one stray would stretch a direction
    nulls = np.stack(
        [
            _silhouettes(null, cut(null, numbers, smallest, seed))
            for null in (chance.normal(size=points.shape) * spread for _ in range(N_NULLS))
        ]
    )  # (null, number)
    means = nulls.mean(axis=0)
    reached = means + (nulls - means).max()  # of any number: there are many to choose from
    is_above = scores > reached
    # the null is long where clusters lie apart, and so parts well in two: silhouettes themselves choose
    best = int(np.where(is_above, scores, scores - 2).argmax())
    labels = np.zeros(n, dtype=np.int64)
    if is_above[best]:
        labels = _by_size(_noise_joined(points, found[best]))
    return Clustering(labels, int(labels.max()) + 1, float(scores[best]), float(reached[best]))


def _silhouettes(points: NDArray[np.float64], labels: Iterable[Labels]) -> NDArray[np.float64]:
    """The silhouette of each clustering, without its strays (-1): one can spoil that of a whole cluster."""
    distances = _distances(points)
    kept = [(one, one >= 0) for one in labels]
    return np.array([silhouette(distances[np.ix_(is_in, is_in)], one[is_in]) for one, is_in in kept])


def _distances(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosine distances (usage, usage)."""
    squares = (points**2).sum(axis=1)
    found = np.maximum((squares[:, None] + squares - 2 * points @ points.T) / 2, 0.0)
    np.fill_diagonal(found, 0.0)
    return found


def _tree(points: NDArray[np.float64], numbers: list[int], smallest: int, seed: int) -> Iterator[Labels]:
    """Average linkage, cut where so many clusters have at least ``smallest`` usages; the rest is -1."""
    del seed  # there is no chance in it
    try:
        from scipy.cluster.hierarchy import cut_tree, linkage
        from scipy.spatial.distance import squareform
    except ImportError as error:
        raise MissingExtraError("clustering", extra="lexicon") from error
    tree = linkage(squareform(_distances(points), checks=False), method="average")
    cuts = np.asarray(cut_tree(tree))[:, ::-1]  # column c has c + 1 clusters
    large = [int((np.bincount(column) >= smallest).sum()) for column in cuts.T]
    for number in numbers:
        # a tree may have no cut with so many: then the one that has most
        at = next((c for c, n in enumerate(large) if n >= number), int(np.argmax(large)))
        labels = cuts[:, at].astype(np.int64)
        is_large = np.bincount(labels) >= smallest
        yield np.where(is_large[labels], (np.cumsum(is_large) - 1)[labels], -1)


def _kmeans(points: NDArray[np.float64], numbers: list[int], smallest: int, seed: int) -> Iterator[Labels]:
    """k-means that begins with the centres of the tree's clusters: good ones, and always the same."""
    try:
        from sklearn.cluster import KMeans
    except ImportError as error:
        raise MissingExtraError("clustering", extra="lexicon") from error
    for labels in _tree(points, numbers, smallest, seed):
        n_clusters = int(labels.max()) + 1
        centres = np.stack([points[labels == k].mean(axis=0) for k in range(n_clusters)])
        settings: dict[str, Any] = {"init": centres, "n_init": 1, "random_state": seed}
        found = KMeans(n_clusters, **settings).fit_predict(points)
        yield np.unique(found, return_inverse=True)[1].astype(np.int64)


def _affinity(points: NDArray[np.float64], seed: int) -> Labels:
    try:
        from sklearn.cluster import AffinityPropagation
    except ImportError as error:
        raise MissingExtraError("clustering", extra="lexicon") from error
    near = -_distances(points)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it did not settle: its labels are -1 then
        settings: dict[str, Any] = {"affinity": "precomputed", "damping": 0.9, "max_iter": 1000}
        # the smallest similarity as preference: few exemplars, as few senses are wanted
        model = AffinityPropagation(preference=near.min(), random_state=seed, **settings)
        found = np.asarray(model.fit_predict(near), dtype=np.int64)
    return _noise_joined(points, found)


def _hdbscan(points: NDArray[np.float64], seed: int) -> Labels:
    del seed
    try:
        from sklearn.cluster import HDBSCAN
    except ImportError as error:
        raise MissingExtraError("clustering", extra="lexicon") from error
    smallest = max(3, math.ceil(SMALLEST_SHARE * len(points)))
    settings: dict[str, Any] = {"metric": "precomputed", "copy": True}
    model = HDBSCAN(min_cluster_size=smallest, **settings)
    return _noise_joined(points, np.asarray(model.fit_predict(_distances(points)), dtype=np.int64))


def _noise_joined(points: NDArray[np.float64], labels: Labels) -> Labels:
    """Usages of no cluster, -1, as members of the one whose centre is nearest; all one where none is."""
    numbers = np.unique(labels[labels >= 0])
    if not len(numbers):
        return np.zeros(len(labels), dtype=np.int64)
    centres = np.stack([points[labels == number].mean(axis=0) for number in numbers])
    nearest = ((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    return np.where(labels >= 0, np.searchsorted(numbers, labels), nearest).astype(np.int64)


def _by_size(labels: Labels) -> Labels:
    """Numbered from the largest; of equals, the one that comes first in the text."""
    numbers, firsts, sizes = np.unique(labels, return_index=True, return_counts=True)
    places = np.empty(int(numbers.max()) + 1, dtype=np.int64)
    places[numbers[np.lexsort((firsts, -sizes))]] = np.arange(len(numbers))
    return places[labels]
