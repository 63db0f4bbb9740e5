"""Cluster the vectors of a word's usages and choose the number of clusters.

Distances are cosine distances, computed from the first principal components. To choose the number of clusters,
the silhouette (Rousseeuw 1987) for each number is compared with that of simulated data without clusters, drawn
from a normal distribution with the same covariance. Among the numbers whose silhouette is higher than that of
the simulated data, the one with the highest silhouette is chosen; if there is none, all usages form one cluster.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError, importing_extra
from elmo.lexicon.usages import unit_rows

Method = Literal["agglomerative", "kmeans", "affinity", "hdbscan"]
METHODS: tuple[Method, ...] = get_args(Method)
Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.int64]

N_COMPONENTS = 20  # principal components; for a few hundred usages, the rest is mostly noise
N_NULLS = 19  # simulated data sets without clusters; the probability of exceeding all of them by chance is 1 in 20
SMALLEST_SHARE = 0.04  # minimum size of a cluster as a fraction of the usages; at least three usages
MAX_CLUSTERS = 10  # largest number of clusters that is tried
MIN_USAGES = 6  # fewer usages form one cluster
MAX_USAGES = 5000  # limits the memory for pairwise distances


@dataclass(frozen=True, eq=False)
class Clustering:
    """The cluster of each usage.

    Attributes:
        labels: Cluster of each usage (usage,), from 0; clusters are sorted by size, the largest first.
        n_clusters: Number of clusters.
        silhouette: Silhouette of the clusters or, if one cluster was chosen, the highest silhouette of two or more
            clusters. None if the number of clusters was not chosen by silhouette.
        null: Threshold for the silhouette, which data without clusters do not exceed; None if ``silhouette`` is None.
    """

    labels: Labels
    n_clusters: int
    silhouette: float | None = None
    null: float | None = None


def cluster(
    vectors: Floats,
    *,
    method: Method = "agglomerative",
    n_clusters: int | None = None,
    max_clusters: int = MAX_CLUSTERS,
    seed: int = 0,
) -> Clustering:
    """Cluster the vectors of usages.

    Args:
        vectors: The vectors (usage, width).
        method: ``agglomerative`` (average linkage), ``kmeans``, ``affinity`` (Frey and Dueck 2007) or
            ``hdbscan`` (Campello et al. 2013). The last two always choose the number of clusters themselves.
        n_clusters: Number of clusters. Default: chosen by silhouette.
        max_clusters: Largest number of clusters to try.
        seed: Random seed.
    """
    _check(vectors, method, n_clusters, max_clusters)
    with importing_extra("clustering", extra="lexicon"):
        import scipy.cluster.hierarchy
        import scipy.spatial.distance  # noqa: F401
        import sklearn.cluster  # noqa: F401
    return _cluster(vectors, method, n_clusters, max_clusters, seed)


def _cluster(vectors: Floats, method: Method, n_clusters: int | None, max_clusters: int, seed: int) -> Clustering:
    rows = np.asarray(vectors, dtype=np.float64)
    points = reduce_dimensions(rows)
    n = len(points)
    if n_clusters == 1 or (n_clusters is None and n < MIN_USAGES) or points.shape[1] == 0:
        return Clustering(np.zeros(n, dtype=np.int64), min(n, 1))
    if method in ("affinity", "hdbscan"):
        labels = _sort_by_size((_affinity if method == "affinity" else _hdbscan)(points, seed))
        return Clustering(labels, len(np.unique(labels)))
    cut = _tree if method == "agglomerative" else _kmeans
    if n_clusters is not None:
        labels = _sort_by_size(_assign_noise(points, next(cut(points, [n_clusters], 1, seed))))
        return Clustering(labels, len(np.unique(labels)))
    return _choose_number(points, cut, max_clusters=max_clusters, seed=seed)


def reduce_dimensions(vectors: Floats, n_components: int = N_COMPONENTS) -> NDArray[np.float64]:
    """Scale vectors (usage, width) to unit length, and project them onto their first principal components.

    Half the squared distance between two rows of the result (usage, component) approximates the cosine
    distance of the vectors.
    """
    rows = unit_rows(vectors)
    centered = rows - rows.mean(axis=0, keepdims=True) if len(rows) else rows
    left, sizes, right = np.linalg.svd(centered, full_matrices=False)
    n_kept = min(n_components, int((sizes > 1e-9).sum()))
    signs = np.sign(right[np.arange(n_kept), np.abs(right[:n_kept]).argmax(axis=1)])  # fix the arbitrary sign
    return left[:, :n_kept] * (sizes[:n_kept] * signs)


def silhouette(distances: Floats, labels: Labels) -> float:
    """Compute the mean silhouette of a clustering from distances (usage, usage); 0 for one cluster."""
    n_clusters = int(labels.max()) + 1
    if n_clusters < 2:
        return 0.0
    one_hot = np.eye(n_clusters)[labels]  # (usage, cluster)
    sizes = one_hot.sum(axis=0)
    sums = distances @ one_hot  # summed distances to the members of each cluster
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
        raise DataError(
            f"vectors must be finite and have the shape (usage, width); found shape {vectors.shape}"
            f"{' with NaN or infinity' if vectors.ndim == 2 else ''}"
        )
    if len(vectors) > MAX_USAGES:
        raise ConfigError(f"cannot cluster {len(vectors):,} usages: the limit is {MAX_USAGES:,}; use a sample")
    if method not in METHODS:
        raise ConfigError(f"method must be one of {', '.join(METHODS)}; found {method!r:.40}")
    if max_clusters < 2:
        raise ConfigError(f"max_clusters must be at least 2; found {max_clusters}")
    if n_clusters is None:
        return
    if method in ("affinity", "hdbscan"):
        raise ConfigError(f"cannot set the number of clusters: {method} chooses it itself; use agglomerative or kmeans")
    if not 1 <= n_clusters <= max(len(vectors), 1):
        raise ConfigError(f"n_clusters must be between 1 and {len(vectors)}, the number of usages; found {n_clusters}")


Cut = Callable[[NDArray[np.float64], list[int], int, int], Iterator[Labels]]


def _choose_number(points: NDArray[np.float64], cut: Cut, *, max_clusters: int, seed: int) -> Clustering:
    """Choose the number of clusters.

    Candidates are the numbers whose silhouette is higher than that of all simulated data sets without clusters
    (null data). The candidate with the highest silhouette is chosen; if there is none, all usages form one cluster.
    """
    n = len(points)
    smallest = max(3, math.ceil(SMALLEST_SHARE * n))
    numbers = list(range(2, min(max_clusters, n // smallest) + 1))
    if not numbers:
        return Clustering(np.zeros(n, dtype=np.int64), 1)
    clusterings = list(cut(points, numbers, smallest, seed))
    scores = _silhouettes(points, clusterings)
    random = np.random.default_rng(seed)
    by_norm = np.argsort((points**2).sum(axis=1), kind="stable")
    spread = points[by_norm[: n - round(SMALLEST_SHARE * n)]].std(axis=0)  # without outliers
    nulls = np.stack(
        [
            _silhouettes(null, cut(null, numbers, smallest, seed))
            for null in (random.normal(size=points.shape) * spread for _ in range(N_NULLS))
        ]
    )  # (null, number)
    means = nulls.mean(axis=0)
    threshold = means + (nulls - means).max()  # the maximum over all numbers corrects for choosing among them
    is_above = scores > threshold
    # The silhouettes themselves are compared, not their distances from the threshold: null data stretched along
    # one axis have a high silhouette for two clusters.
    best = int(np.where(is_above, scores, scores - 2).argmax())
    labels = np.zeros(n, dtype=np.int64)
    if is_above[best]:
        labels = _sort_by_size(_assign_noise(points, clusterings[best]))
    return Clustering(labels, int(labels.max()) + 1, float(scores[best]), float(threshold[best]))


def _silhouettes(points: NDArray[np.float64], labels: Iterable[Labels]) -> NDArray[np.float64]:
    """Compute the silhouette of each clustering, without the points labeled as noise (-1)."""
    distances = _distances(points)
    scores: list[float] = []
    known: dict[bytes, float] = {}  # cuts for different numbers of clusters can be the same
    for clustering in labels:
        key = clustering.tobytes()
        if key not in known:
            is_kept = clustering >= 0
            known[key] = silhouette(distances[np.ix_(is_kept, is_kept)], clustering[is_kept])
        scores.append(known[key])
    return np.array(scores)


def _distances(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the cosine distances (usage, usage) of reduced vectors."""
    squares = (points**2).sum(axis=1)
    distances = np.maximum((squares[:, None] + squares - 2 * points @ points.T) / 2, 0.0)
    np.fill_diagonal(distances, 0.0)
    return distances


def _tree(points: NDArray[np.float64], numbers: list[int], smallest: int, seed: int) -> Iterator[Labels]:
    """Yield clusterings from an average-linkage tree, one for each number of clusters in ``numbers``.

    Clusters have at least ``smallest`` usages; all other usages are noise (-1).
    """
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    del seed  # the result is deterministic
    tree = linkage(squareform(_distances(points), checks=False), method="average")
    large = _count_large(tree, smallest)
    for number in numbers:
        # If no cut has that many large clusters, take the cut with the most.
        n_clusters = next((c for c, n in enumerate(large, start=1) if n >= number), int(np.argmax(large)) + 1)
        labels = _cut(tree, n_clusters)
        is_large = np.bincount(labels) >= smallest
        yield np.where(is_large[labels], (np.cumsum(is_large) - 1)[labels], -1)


def _count_large(tree: NDArray[np.float64], smallest: int) -> list[int]:
    """Count the clusters with at least ``smallest`` usages in the cuts of a tree into 1, 2, … clusters."""
    n = len(tree) + 1
    sizes = [1] * n
    counts = [n if smallest <= 1 else 0]
    for a, b in tree[:, :2].astype(np.int64).tolist():
        size = sizes[a] + sizes[b]
        sizes.append(size)
        counts.append(counts[-1] + (size >= smallest) - (sizes[a] >= smallest) - (sizes[b] >= smallest))
    return counts[::-1]


def _cut(tree: NDArray[np.float64], n_clusters: int) -> Labels:
    """Cut a tree into clusters, numbered by their first usage from 0."""
    n = len(tree) + 1
    parents = np.arange(2 * n - 1)
    for k in range(n - n_clusters):
        parents[tree[k, :2].astype(np.int64)] = n + k
    for node in range(2 * n - 2, -1, -1):  # a parent comes after its children
        parents[node] = parents[parents[node]]
    _, first, inverse = np.unique(parents[:n], return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].astype(np.int64)


def _kmeans(points: NDArray[np.float64], numbers: list[int], smallest: int, seed: int) -> Iterator[Labels]:
    """Yield k-means clusterings, started from the centers of the clusters of the tree."""
    from sklearn.cluster import KMeans

    for labels in _tree(points, numbers, smallest, seed):
        n_clusters = int(labels.max()) + 1
        centers = np.stack([points[labels == k].mean(axis=0) for k in range(n_clusters)])
        settings: dict[str, Any] = {"init": centers, "n_init": 1, "random_state": seed}
        predicted = KMeans(n_clusters, **settings).fit_predict(points)
        yield np.unique(predicted, return_inverse=True)[1].astype(np.int64)


def _affinity(points: NDArray[np.float64], seed: int) -> Labels:
    from sklearn.cluster import AffinityPropagation

    similarities = -_distances(points)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without convergence, all labels are -1
        settings: dict[str, Any] = {"affinity": "precomputed", "damping": 0.9, "max_iter": 1000}
        # The smallest similarity as preference gives few exemplars: words have few senses.
        model = AffinityPropagation(preference=similarities.min(), random_state=seed, **settings)
        labels = np.asarray(model.fit_predict(similarities), dtype=np.int64)
    return _assign_noise(points, labels)


def _hdbscan(points: NDArray[np.float64], seed: int) -> Labels:
    from sklearn.cluster import HDBSCAN

    del seed  # the result is deterministic
    smallest = max(3, math.ceil(SMALLEST_SHARE * len(points)))
    settings: dict[str, Any] = {"metric": "precomputed", "copy": True}
    model = HDBSCAN(min_cluster_size=smallest, **settings)
    return _assign_noise(points, np.asarray(model.fit_predict(_distances(points)), dtype=np.int64))


def _assign_noise(points: NDArray[np.float64], labels: Labels) -> Labels:
    """Assign points labeled as noise (-1) to the nearest cluster; without clusters, all points form one cluster."""
    numbers = np.unique(labels[labels >= 0])
    if not len(numbers):
        return np.zeros(len(labels), dtype=np.int64)
    centers = np.stack([points[labels == number].mean(axis=0) for number in numbers])
    nearest = ((points[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
    return np.where(labels >= 0, np.searchsorted(numbers, labels), nearest).astype(np.int64)


def _sort_by_size(labels: Labels) -> Labels:
    """Renumber clusters by size, the largest first; clusters of the same size keep the order of the text."""
    numbers, firsts, sizes = np.unique(labels, return_index=True, return_counts=True)
    ranks = np.empty(int(numbers.max()) + 1, dtype=np.int64)
    ranks[numbers[np.lexsort((firsts, -sizes))]] = np.arange(len(numbers))
    return ranks[labels]
