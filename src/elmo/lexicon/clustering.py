"""Cluster the vectors of a word's usages and choose the number of clusters.

Distances are cosine distances between the first principal components. The number of clusters is the one with
the highest silhouette (Rousseeuw 1987) among those whose silhouette is higher than that of data without
clusters, drawn from a normal distribution with the same covariance. If none is higher, there is one cluster.
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

N_COMPONENTS = 20  # principal components; for a few hundred usages, the rest is mostly noise
N_NULLS = 19  # data sets without clusters; being above all of them has a probability of 1 in 20
SMALLEST_SHARE = 0.04  # smallest cluster, as a fraction of the usages; at least three usages
MAX_CLUSTERS = 10  # largest number of clusters that is tried
MIN_USAGES = 6  # fewer usages form one cluster
MAX_USAGES = 5000  # limits the memory for pairwise distances


@dataclass(frozen=True, eq=False)
class Clustering:
    """Cluster labels, 0 for the largest cluster. Silhouettes are None if the number of clusters was given."""

    labels: Labels  # (usage,)
    n_clusters: int
    silhouette: float | None = None  # the highest for two or more clusters, accepted or not
    null: float | None = None  # what data without clusters reach


def cluster(
    vectors: Floats,
    *,
    method: Method = "agglomerative",
    n_clusters: int | None = None,
    max_clusters: int = MAX_CLUSTERS,
    seed: int = 0,
) -> Clustering:
    """Cluster ``vectors`` (usage, width).

    ``agglomerative`` (average linkage) and ``kmeans`` take a number of clusters or choose it. ``affinity``
    (Frey and Dueck 2007) and ``hdbscan`` (Campello et al. 2013) always choose it themselves.
    """
    _check(vectors, method, n_clusters, max_clusters)
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
    """Project unit rows on their first principal components (usage, component).

    Half the squared distance between two such rows approximates their cosine distance.
    """
    rows = unit_rows(vectors)
    centered = rows - rows.mean(axis=0, keepdims=True) if len(rows) else rows
    left, sizes, right = np.linalg.svd(centered, full_matrices=False)
    n_kept = min(n_components, int((sizes > 1e-9).sum()))
    signs = np.sign(right[np.arange(n_kept), np.abs(right[:n_kept]).argmax(axis=1)])  # fix the arbitrary sign
    return left[:, :n_kept] * (sizes[:n_kept] * signs)


def silhouette(distances: Floats, labels: Labels) -> float:
    """Compute the mean silhouette from distances (usage, usage); 0 for one cluster."""
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
        raise DataError(f"expected finite vectors (usage, width) to cluster, found shape {vectors.shape}")
    if len(vectors) > MAX_USAGES:
        raise ConfigError(f"expected at most {MAX_USAGES:,} usages, found {len(vectors):,}; use a sample")
    if method not in METHODS:
        raise ConfigError(f"method must be one of {', '.join(METHODS)}, found {method!r:.40}")
    if max_clusters < 2:
        raise ConfigError(f"max_clusters must be at least 2, found {max_clusters}")
    if n_clusters is None:
        return
    if method in ("affinity", "hdbscan"):
        raise ConfigError(f"{method} chooses the number of clusters; use agglomerative or kmeans to set it")
    if not 1 <= n_clusters <= max(len(vectors), 1):
        raise ConfigError(f"n_clusters must be between 1 and {len(vectors)}, the number of usages, found {n_clusters}")


Cut = Callable[[NDArray[np.float64], list[int], int, int], Iterator[Labels]]


def _choose_number(points: NDArray[np.float64], cut: Cut, *, max_clusters: int, seed: int) -> Clustering:
    """Choose the number with the highest silhouette among those that beat all null data, or one cluster."""
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
    threshold = means + (nulls - means).max()  # over all numbers, to correct for choosing among them
    is_above = scores > threshold
    # Rank by the silhouette, not by its distance from the null: null data stretched along one axis split well
    # in two.
    best = int(np.where(is_above, scores, scores - 2).argmax())
    labels = np.zeros(n, dtype=np.int64)
    if is_above[best]:
        labels = _sort_by_size(_assign_noise(points, clusterings[best]))
    return Clustering(labels, int(labels.max()) + 1, float(scores[best]), float(threshold[best]))


def _silhouettes(points: NDArray[np.float64], labels: Iterable[Labels]) -> NDArray[np.float64]:
    """Compute the silhouette of each clustering without its noise (-1)."""
    distances = _distances(points)
    scores = []
    for clustering in labels:
        is_kept = clustering >= 0
        scores.append(silhouette(distances[np.ix_(is_kept, is_kept)], clustering[is_kept]))
    return np.array(scores)


def _distances(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute cosine distances (usage, usage)."""
    squares = (points**2).sum(axis=1)
    distances = np.maximum((squares[:, None] + squares - 2 * points @ points.T) / 2, 0.0)
    np.fill_diagonal(distances, 0.0)
    return distances


def _tree(points: NDArray[np.float64], numbers: list[int], smallest: int, seed: int) -> Iterator[Labels]:
    """Cut an average-linkage tree into clusters of at least ``smallest`` usages; the rest is noise (-1)."""
    del seed  # deterministic
    try:
        from scipy.cluster.hierarchy import cut_tree, linkage
        from scipy.spatial.distance import squareform
    except ImportError as error:
        raise MissingExtraError("clustering", extra="lexicon") from error
    tree = linkage(squareform(_distances(points), checks=False), method="average")
    cuts = np.asarray(cut_tree(tree))[:, ::-1]  # column c has c + 1 clusters
    large = [int((np.bincount(column) >= smallest).sum()) for column in cuts.T]
    for number in numbers:
        # If no cut has that many large clusters, take the one with the most.
        at = next((c for c, n in enumerate(large) if n >= number), int(np.argmax(large)))
        labels = cuts[:, at].astype(np.int64)
        is_large = np.bincount(labels) >= smallest
        yield np.where(is_large[labels], (np.cumsum(is_large) - 1)[labels], -1)


def _kmeans(points: NDArray[np.float64], numbers: list[int], smallest: int, seed: int) -> Iterator[Labels]:
    """Run k-means from the centers of the tree's clusters: a good and reproducible start."""
    try:
        from sklearn.cluster import KMeans
    except ImportError as error:
        raise MissingExtraError("clustering", extra="lexicon") from error
    for labels in _tree(points, numbers, smallest, seed):
        n_clusters = int(labels.max()) + 1
        centers = np.stack([points[labels == k].mean(axis=0) for k in range(n_clusters)])
        settings: dict[str, Any] = {"init": centers, "n_init": 1, "random_state": seed}
        predicted = KMeans(n_clusters, **settings).fit_predict(points)
        yield np.unique(predicted, return_inverse=True)[1].astype(np.int64)


def _affinity(points: NDArray[np.float64], seed: int) -> Labels:
    try:
        from sklearn.cluster import AffinityPropagation
    except ImportError as error:
        raise MissingExtraError("clustering", extra="lexicon") from error
    similarities = -_distances(points)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it did not converge; all labels are -1
        settings: dict[str, Any] = {"affinity": "precomputed", "damping": 0.9, "max_iter": 1000}
        # The smallest similarity as preference gives few exemplars: words have few senses.
        model = AffinityPropagation(preference=similarities.min(), random_state=seed, **settings)
        labels = np.asarray(model.fit_predict(similarities), dtype=np.int64)
    return _assign_noise(points, labels)


def _hdbscan(points: NDArray[np.float64], seed: int) -> Labels:
    del seed
    try:
        from sklearn.cluster import HDBSCAN
    except ImportError as error:
        raise MissingExtraError("clustering", extra="lexicon") from error
    smallest = max(3, math.ceil(SMALLEST_SHARE * len(points)))
    settings: dict[str, Any] = {"metric": "precomputed", "copy": True}
    model = HDBSCAN(min_cluster_size=smallest, **settings)
    return _assign_noise(points, np.asarray(model.fit_predict(_distances(points)), dtype=np.int64))


def _assign_noise(points: NDArray[np.float64], labels: Labels) -> Labels:
    """Assign noise (-1) to the nearest cluster; without clusters, everything is one cluster."""
    numbers = np.unique(labels[labels >= 0])
    if not len(numbers):
        return np.zeros(len(labels), dtype=np.int64)
    centers = np.stack([points[labels == number].mean(axis=0) for number in numbers])
    nearest = ((points[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
    return np.where(labels >= 0, np.searchsorted(numbers, labels), nearest).astype(np.int64)


def _sort_by_size(labels: Labels) -> Labels:
    """Renumber clusters by falling size; ties keep the order of the text."""
    numbers, firsts, sizes = np.unique(labels, return_index=True, return_counts=True)
    ranks = np.empty(int(numbers.max()) + 1, dtype=np.int64)
    ranks[numbers[np.lexsort((firsts, -sizes))]] = np.arange(len(numbers))
    return ranks[labels]
