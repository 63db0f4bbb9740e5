"""A seed and a place in a run in, random numbers out: the same at that place, whatever was drawn before.

So nothing random has to be kept in a checkpoint, and what one process draws does not depend on how many
others there are.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

Purpose = Literal["samples", "words", "masks", "restarts", "starts"]
_PURPOSES: dict[Purpose, int] = {"samples": 0, "words": 1, "masks": 2, "restarts": 3, "starts": 4}


def generator_at(purpose: Purpose, *, seed: int, step: int, place: tuple[int, ...] = ()) -> torch.Generator:
    """The generator of one purpose at one step; ``place`` tells directions and rows of the batch apart."""
    entropy = (seed, _PURPOSES[purpose], step, *place)
    mixed = np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed) >> 1)  # torch's seeds are signed
