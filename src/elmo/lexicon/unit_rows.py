"""Vectors in, the same with length one out: products of such rows are cosines."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def unit_rows(vectors: Floats, *, lengths: Floats | None = None, dtype: Any = np.float64) -> NDArray[Any]:
    """The rows (row, width) with length one, as a new array of ``dtype``; a zero row stays zero.

    ``lengths`` (row,), where they are known, are not computed again.
    """
    rows = np.array(vectors, dtype=dtype)
    sizes = np.linalg.norm(rows, axis=1) if lengths is None else np.asarray(lengths)
    rows /= np.where(sizes > 0, sizes, 1.0).astype(rows.dtype)[:, None]
    return rows
