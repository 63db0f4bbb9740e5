"""Clusters are found where they are, one where there are none, and the same every time."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn")
from sklearn.metrics import adjusted_rand_score, silhouette_score

from elmo import ConfigError, DataError
from elmo.lexicon.clustering import METHODS, Method, cluster, reduce_dimensions, silhouette
from elmo.lexicon.usages import unit_rows


def clouds(*sizes: int, apart: float = 6.0, width: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Round clouds with centres in different directions, far from the origin."""
    chance = np.random.default_rng(seed)
    centres = 10 * np.ones((len(sizes), width)) + apart * np.eye(len(sizes), width)
    rows = [centre + chance.normal(size=(n, width)) for centre, n in zip(centres, sizes, strict=True)]
    return np.concatenate(rows), np.repeat(np.arange(len(sizes)), sizes)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_finds_two_clusters(method: Method) -> None:
    rows, truth = clouds(40, 25)
    found = cluster(rows, method=method, max_clusters=4)
    assert adjusted_rand_score(truth, found.labels) > (0.5 if method == "affinity" else 0.95)
    assert found.n_clusters == len(set(found.labels.tolist()))
    assert np.bincount(found.labels).tolist() == sorted(np.bincount(found.labels), reverse=True)


@pytest.mark.parametrize("method", ["agglomerative", "kmeans"])
def test_the_number_of_clusters_is_found(method: Method) -> None:
    rows, truth = clouds(40, 30, 20)
    found = cluster(rows, method=method, max_clusters=5)
    assert found.n_clusters == 3
    assert adjusted_rand_score(truth, found.labels) == 1.0
    assert found.silhouette is not None
    assert found.null is not None
    assert found.silhouette > found.null + 0.1


@pytest.mark.parametrize("seed", range(12))
def test_clusters_are_accepted_if_the_silhouette_is_above_the_null(seed: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((12, 6)) + np.repeat([[0.0], [2.5]], 6, axis=0)
    found = cluster(rows)
    assert found.silhouette is not None
    assert found.null is not None
    assert (found.n_clusters > 1) == (found.silhouette > found.null)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["agglomerative", "kmeans"])
def test_data_without_clusters_is_mostly_one_cluster(method: Method) -> None:
    numbers = [cluster(clouds(50, seed=k)[0], method=method, max_clusters=4).n_clusters for k in range(5)]
    assert numbers.count(1) >= 3  # each is parted with a chance of 1 in 20
    # and a long one, which k = 2 would part well, is one, too
    chance = np.random.default_rng(1)
    long = 50 + chance.normal(size=(60, 8)) * [5, 1, 1, 1, 1, 1, 1, 1]
    assert cluster(long, method=method, max_clusters=4).n_clusters == 1


def test_a_fixed_number_of_clusters_keeps_outliers_alone() -> None:
    rows, _ = clouds(30, 30)
    for k in (1, 2, 5, 60):
        assert cluster(rows, n_clusters=k).n_clusters == k


def test_an_outlier_is_not_a_cluster() -> None:
    rows, truth = clouds(60, 40)
    stray = -rows[:1]
    found = cluster(np.concatenate([rows, stray]), max_clusters=5)
    assert found.n_clusters == 2
    assert adjusted_rand_score(truth, found.labels[:-1]) == 1.0


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_clusters_and_norms_do_not_matter(method: Method) -> None:
    rows, _ = clouds(30, 20, apart=3.0)
    first = cluster(rows, method=method, max_clusters=4, seed=3).labels
    assert np.array_equal(first, cluster(rows, method=method, max_clusters=4, seed=3).labels)
    longer = rows * np.random.default_rng(0).uniform(1, 9, (len(rows), 1))
    assert np.array_equal(first, cluster(longer, method=method, max_clusters=4, seed=3).labels)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", [np.ones((30, 4)), np.ones((1, 4)), np.zeros((8, 4)), np.eye(3)])
def test_equal_or_few_usages_are_one_cluster(method: Method, rows: np.ndarray) -> None:
    found = cluster(rows, method=method)
    assert (found.n_clusters, found.labels.tolist()) == (1, [0] * len(rows))


def test_the_silhouette_is_that_of_scikit_learn() -> None:
    chance = np.random.default_rng(0)
    rows = chance.normal(size=(40, 5))
    distances = np.linalg.norm(rows[:, None] - rows, axis=2)
    labels = np.append(chance.integers(0, 4, 39), 4)  # the last is alone
    assert silhouette(distances, labels) == pytest.approx(silhouette_score(distances, labels, metric="precomputed"))


def test_half_the_squared_distance_of_reduced_rows_is_the_cosine_distance() -> None:
    rows = np.random.default_rng(0).normal(size=(15, 6)).astype(np.float32)
    points = reduce_dimensions(rows)
    squares = ((points[:, None] - points) ** 2).sum(axis=2) / 2
    assert np.allclose(squares, 1 - unit_rows(rows) @ unit_rows(rows).T)


def test_invalid_arguments_are_rejected() -> None:
    rows = np.ones((5, 3))
    with pytest.raises(ConfigError, match="one of agglomerative, kmeans, affinity, hdbscan; found 'ward'"):
        cluster(rows, method="ward")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="n_clusters must be between 1 and 5, the number of usages; found 6"):
        cluster(rows, n_clusters=6)
    with pytest.raises(ConfigError, match="hdbscan chooses it itself"):
        cluster(rows, method="hdbscan", n_clusters=2)
    with pytest.raises(ConfigError, match="max_clusters must be at least 2; found 1"):
        cluster(rows, max_clusters=1)
    with pytest.raises(DataError, match="vectors must be finite"):
        cluster(rows * np.nan)
