from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from elmo.lexicon.usages import unit_rows

LEXICON = Path(__file__).parents[2] / "src" / "elmo" / "lexicon"
NUMBERS = st.one_of(st.just(0.0), st.floats(1e-3, 1e3), st.floats(-1e3, -1e-3))
ROWS = arrays(np.float64, st.tuples(st.integers(0, 5), st.integers(1, 4)), elements=NUMBERS)


@given(ROWS)
def test_rows_have_length_one_and_keep_their_direction(rows: np.ndarray) -> None:
    before = rows.copy()
    found = unit_rows(rows)
    is_zero = ~rows.any(axis=1)
    assert np.array_equal(rows, before)  # the vectors of an index are on disk: they are not ours to change
    assert found[is_zero].tolist() == before[is_zero].tolist()
    assert np.allclose(np.linalg.norm(found[~is_zero], axis=1), 1)
    assert np.allclose(found * np.linalg.norm(rows, axis=1, keepdims=True), rows)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_type_is_the_one_that_was_asked_for(dtype: type) -> None:
    half = np.array([[300.0, 400.0], [0.0, 0.0]], dtype=np.float16)
    found = unit_rows(half, dtype=dtype)
    assert found.dtype == dtype
    # 300² is more than float16 can hold
    assert found.tolist() == [[pytest.approx(0.6, abs=1e-6), pytest.approx(0.8, abs=1e-6)], [0, 0]]


def test_lengths_that_are_known_are_believed() -> None:
    found = unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]]), lengths=np.array([10.0, 0.0], dtype=np.float32))
    assert found.tolist() == [[pytest.approx(0.3), pytest.approx(0.4)], [0, 0]]


def test_no_other_file_of_the_room_makes_units_of_its_own() -> None:
    for path in LEXICON.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"def _?(units|normali[sz]ed?)\b", text), path
        assert path.name == "unit_rows.py" or "keepdims=True), 1e-" not in text, path
