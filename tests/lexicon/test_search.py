from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.lexicon import search
from elmo.lexicon.search import Block, nearest


def by_hand(queries: np.ndarray, rows: np.ndarray, k: int, left_out: set[int]) -> list[list[int]]:
    """All cosines, sorted."""
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    scores = (unit @ queries.T).T
    kept = [n for n in range(len(rows)) if n not in left_out]
    return [sorted(kept, key=lambda n, s=s: (-round(float(s[n]), 5), n))[:k] for s in scores]


def blocks(rows: np.ndarray, sizes: list[int], left_out: set[int]) -> list[Block]:
    found, at = [], 0
    for size in [*sizes, len(rows)]:
        part = rows[at : at + size]
        mask = np.array([at + n in left_out for n in range(len(part))], dtype=bool)
        norms = np.linalg.norm(part, axis=1).astype(np.float32)
        found.append(Block(at, part, norms, mask if left_out else None))
        at += len(part)
    return found


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    n_rows=st.integers(1, 700),
    n_queries=st.integers(1, 9),
    k=st.integers(1, 20),
    sizes=st.lists(st.integers(0, 300), max_size=3),
    n_left_out=st.integers(0, 5),
)
def test_the_nearest_are_those_of_a_full_sort(
    seed: int, n_rows: int, n_queries: int, k: int, sizes: list[int], n_left_out: int
) -> None:
    random = np.random.default_rng(seed)
    rows = random.standard_normal((n_rows, 5)).astype(np.float32)
    queries = random.standard_normal((n_queries, 5)).astype(np.float32)
    left_out = set(random.integers(0, n_rows, n_left_out).tolist())
    found = nearest(queries, blocks(rows, sizes, left_out), k)
    expected = by_hand(queries, rows, k, left_out)
    for numbers, wanted in zip(found.numbers, expected, strict=True):
        assert numbers[numbers >= 0].tolist() == wanted
        assert (numbers[len(wanted) :] == -1).all()


def test_rows_that_come_ever_nearer_are_all_seen() -> None:
    """The worst order there is: every block holds better ones."""
    angles = np.linspace(1.5, 0.1, 2000)
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    found = nearest(np.array([[1.0, 0.0]], np.float32), blocks(rows, [100] * 15, set()), 3)
    assert found.numbers.tolist() == [[1999, 1998, 1997]]


def test_small_blocks_and_many_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    rows, queries = random.standard_normal((500, 4)), random.standard_normal((30, 4))
    whole = nearest(queries, blocks(rows, [], set()), 7).numbers
    monkeypatch.setattr(search, "BLOCK_ROWS", 33)
    monkeypatch.setattr(search, "BLOCK_QUERIES", 4)
    assert np.array_equal(nearest(queries, blocks(rows, [], set()), 7).numbers, whole)


def test_zeros_are_like_nothing_and_no_query_gives_nothing() -> None:
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]], np.float32)
    found = nearest(np.array([[1.0, 0.0]], np.float32), blocks(rows, [], set()), 3)
    assert found.numbers.tolist() == [[1, 0, 2]]
    assert found.cosines.tolist() == [[1.0, 0.0, -1.0]]
    assert nearest(np.zeros((0, 2), np.float32), blocks(rows, [], set()), 3).numbers.shape == (0, 3)


def test_of_rows_that_are_equally_near_the_first_are_taken() -> None:
    rows = np.tile(np.array([[1.0, 0.0], [0.0, 1.0]], np.float32), (300, 1))
    found = nearest(np.array([[2.0, 0.0]], np.float32), blocks(rows, [200, 200], set()), 5)
    assert found.numbers.tolist() == [[0, 2, 4, 6, 8]]
