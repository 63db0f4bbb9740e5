"""A seed and numbers in, 64-bit values out that look random and are the same on every machine, for ever.

NumPy may change the streams of its generators from version to version; a corpus and an order of training
must not change with it. The mixing is that of SplitMix64 (Steele, Lea and Flood 2014).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def scattered(seed: int, numbers: NDArray[np.integer]) -> NDArray[np.uint64]:
    """A value for each of ``numbers``; another seed gives values that have nothing to do with these."""
    start = _mixed(np.array([seed % (1 << 64)], dtype=np.uint64) + _GOLDEN)
    return _mixed((numbers.astype(np.uint64) + np.uint64(1)) * _GOLDEN + start)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
