"""A seed and numbers in, 64-bit values out that look random and are the same on every machine, for ever.

NumPy may change the streams of its generators from version to version; a corpus and an order of training
must not change with it. The mixing is that of SplitMix64 (Steele, Lea and Flood 2014).

A seed and a place in a run in, random numbers out: the same at that place, whatever was drawn before.

So nothing random has to be kept in a checkpoint, and what one process draws does not depend on how many
others there are.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
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


Purpose = Literal["samples", "words", "masks", "restarts", "starts"]
_PURPOSES: dict[Purpose, int] = {"samples": 0, "words": 1, "masks": 2, "restarts": 3, "starts": 4}


def generator_at(purpose: Purpose, *, seed: int, step: int, place: tuple[int, ...] = ()) -> torch.Generator:
    """The generator of one purpose at one step; ``place`` tells directions and rows of the batch apart."""
    entropy = (seed, _PURPOSES[purpose], step, *place)
    mixed = np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed) >> 1)  # torch's seeds are signed
