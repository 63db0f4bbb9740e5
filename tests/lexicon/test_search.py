from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.lexicon import search
from elmo.lexicon.search import VectorBlock, find_nearest


def cosines_of(queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the cosines (query, row) in float64."""
    unit_rows, unit_queries = (
        x.astype("f8") / np.linalg.norm(x.astype("f8"), axis=1, keepdims=True) for x in (rows, queries)
    )
    return unit_queries @ unit_rows.T


def blocks(rows: np.ndarray, sizes: list[int], excluded: set[int]) -> list[VectorBlock]:
    found, at = [], 0
    for size in [*sizes, len(rows)]:
        part = rows[at : at + size]
        mask = np.array([at + n in excluded for n in range(len(part))], dtype=bool)
        norms = np.linalg.norm(part.astype(np.float32), axis=1)
        found.append(VectorBlock(at, part, norms, mask if excluded else None))
        at += len(part)
    return found


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    n_rows=st.integers(1, 700),
    n_queries=st.integers(1, 9),
    k=st.integers(1, 20),
    sizes=st.lists(st.integers(0, 300), max_size=3),
    n_excluded=st.integers(0, 5),
    dtype=st.sampled_from([np.float16, np.float32]),
)
def test_the_nearest_rows_equal_those_of_a_full_sort(
    seed: int, n_rows: int, n_queries: int, k: int, sizes: list[int], n_excluded: int, dtype: type[np.floating]
) -> None:
    random = np.random.default_rng(seed)
    rows = random.standard_normal((n_rows, 5)).astype(dtype)
    rows.flags.writeable = False  # as in a file that is mapped for reading
    queries = random.standard_normal((n_queries, 5)).astype(np.float32)
    excluded = set(random.integers(0, n_rows, n_excluded).tolist())
    found = find_nearest(queries, blocks(rows, sizes, excluded), k)
    cosines = cosines_of(queries, rows)
    cosines[:, sorted(excluded)] = -np.inf
    n_there = min(k, n_rows - len(excluded))
    best = -np.sort(-cosines, axis=1)[:, :n_there]
    assert (found.numbers[:, n_there:] == -1).all()
    numbers = found.numbers[:, :n_there]
    assert all(len(set(row)) == n_there for row in numbers.tolist())
    # compare cosines, not row numbers: float32 cannot separate very similar cosines
    assert np.abs(np.take_along_axis(cosines, numbers, axis=1) - best).max(initial=0) < 1e-6


def test_few_and_many_queries_have_the_same_result() -> None:
    random = np.random.default_rng(0)
    rows = (1 + random.standard_normal((9000, 64)) / 50).astype(np.float16)  # close together
    rows[100:200] = rows[:100]
    rows[300] = 0
    rows[400, 3] = np.nan
    rows[600:700] *= 900
    queries = rows[[0, 1, 5000, 600, 8999, 7, 8, 9]].astype(np.float32)
    parts = blocks(rows, [4000], {2, 5001})
    together = find_nearest(queries, parts, 12)
    for query, numbers, cosines in zip(queries, together.numbers, together.cosines, strict=True):
        alone = find_nearest(query[None], parts, 12)
        np.testing.assert_array_equal(alone.numbers[0], numbers)
        np.testing.assert_array_equal(alone.cosines[0], cosines)


def test_rows_in_order_of_increasing_cosine_are_all_found() -> None:
    """The worst case: every block has better rows."""
    angles = np.linspace(1.5, 0.1, 2000)
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    found = find_nearest(np.array([[1.0, 0.0]], np.float32), blocks(rows, [100] * 15, set()), 3)
    assert found.numbers.tolist() == [[1999, 1998, 1997]]


def test_small_blocks_and_many_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    rows, queries = random.standard_normal((500, 4)), random.standard_normal((30, 4))
    whole = find_nearest(queries, blocks(rows, [], set()), 7).numbers
    monkeypatch.setattr(search, "BLOCK_ROWS", 33)
    monkeypatch.setattr(search, "BLOCK_QUERIES", 4)
    assert np.array_equal(find_nearest(queries, blocks(rows, [], set()), 7).numbers, whole)


def test_zero_rows_have_cosine_zero_and_no_query_gives_no_result() -> None:
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]], np.float32)
    found = find_nearest(np.array([[1.0, 0.0]], np.float32), blocks(rows, [], set()), 3)
    assert found.numbers.tolist() == [[1, 0, 2]]
    assert found.cosines.tolist() == [[1.0, 0.0, -1.0]]
    assert find_nearest(np.zeros((0, 2), np.float32), blocks(rows, [], set()), 3).numbers.shape == (0, 3)


def test_ties_go_to_the_first_rows() -> None:
    rows = np.tile(np.array([[1.0, 0.0], [0.0, 1.0]], np.float32), (300, 1))
    found = find_nearest(np.array([[2.0, 0.0]], np.float32), blocks(rows, [200, 200], set()), 5)
    assert found.numbers.tolist() == [[0, 2, 4, 6, 8]]


@pytest.mark.parametrize("has_units", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.02, 1.0])
@pytest.mark.parametrize("spread", [1.0, 0.1, 0.001, 0.0])
def test_every_sequence_of_precisions_finds_the_nearest(
    has_units: bool, share: float, spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that agree in none, half or all of their digits."""
    monkeypatch.setattr(search, "has_bfloat16", lambda: has_units)
    monkeypatch.setattr(search, "MAX_CANDIDATE_SHARE", share)
    monkeypatch.setattr(search, "BLOCK_ROWS", 400)
    random = np.random.default_rng(1)
    centres = random.standard_normal((7, 24))
    rows = (centres[random.integers(0, 7, 3000)] + spread * random.standard_normal((3000, 24))).astype("f4")
    queries = rows[:40] + np.float32(spread)
    excluded = set(range(0, 200, 3))
    found = find_nearest(queries, blocks(rows, [1000, 500], excluded), 12)
    cosines = cosines_of(queries, rows)
    cosines[:, sorted(excluded)] = -np.inf
    best = -np.sort(-cosines, axis=1)[:, :12]
    assert np.abs(np.take_along_axis(cosines, found.numbers, axis=1) - best).max() < 1e-6
    assert np.abs(found.cosines - best).max() < 1e-6


def test_bfloat16_is_enough_if_rows_are_far_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first block, where all rows are candidates, no float32 product is computed."""
    monkeypatch.setattr(search, "has_bfloat16", lambda: True)
    monkeypatch.setattr(search, "BLOCK_ROWS", 512)
    taken: list[torch.dtype] = []
    scores = search._UnitRows.scores

    def counted(self: search._UnitRows, queries: torch.Tensor) -> torch.Tensor:
        taken.append(queries.dtype)
        return scores(self, queries)

    monkeypatch.setattr(search._UnitRows, "scores", counted)
    random = np.random.default_rng(0)
    rows = random.standard_normal((4096, 64)).astype("f4")
    found = find_nearest(rows[:8], blocks(rows, [], set()), 5)
    assert taken.count(torch.float32) <= 1
    assert taken.count(torch.bfloat16) == 8
    best = np.argsort(-cosines_of(rows[:8], rows), axis=1)[:, :5]
    assert np.array_equal(found.numbers, best)


@pytest.mark.parametrize("has_units", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_copies_in_later_blocks_never_replace_the_first(
    has_units: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "has_bfloat16", lambda: has_units)
    random = np.random.default_rng(seed)
    one, others = random.standard_normal((1, 320)), random.standard_normal((2000, 320))
    others[::400] = one
    rows = np.concatenate([np.repeat(one, 640, axis=0), others]).astype("f4")
    query = (one + 0.3 * random.standard_normal((1, 320))).astype("f4")
    alone = find_nearest(query, blocks(rows, [640, 700], set()), 5)
    assert alone.numbers.tolist() == [[0, 1, 2, 3, 4]]
    with_others = find_nearest(np.concatenate([query, rows[650:850]]), blocks(rows, [640, 700], set()), 5)
    assert np.array_equal(with_others.numbers[:1], alone.numbers)
    assert np.array_equal(with_others.cosines[:1], alone.cosines)


@pytest.mark.parametrize("n_broken", [1, 30])
def test_rows_with_nan_are_ignored_and_hide_no_others(n_broken: int) -> None:
    random = np.random.default_rng(3)
    rows = random.standard_normal((600, 8)).astype("f4")
    whole = find_nearest(rows[:3], blocks(rows, [200, 200], set(range(100, 100 + n_broken))), 7).numbers
    rows[100 : 100 + n_broken, 2] = np.nan
    assert np.array_equal(find_nearest(rows[:3], blocks(rows, [200, 200], set()), 7).numbers, whole)


def test_the_bfloat16_error_is_within_its_bound() -> None:
    random = np.random.default_rng(2)
    for width in (3, 320, 2048):
        a, b = (
            torch.nn.functional.normalize(torch.from_numpy(random.standard_normal((300, width))), dim=1)
            for _ in range(2)
        )
        b = torch.cat([b, a])  # cosines of 1 are rounded the most
        rough = (a.bfloat16() @ b.T.bfloat16()).double()
        assert (rough - a @ b.T).abs().max() <= search._bfloat16_error(width)
