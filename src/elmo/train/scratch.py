"""Shapes in, memory to work in out: given back after use, and used again by the next who asks.

A window needs hundreds of megabytes for its gates and responses. Fresh from the system each page of them is
zeroed at its first touch, which takes longer than the arithmetic; memory that is used again is at hand.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Scratch:
    """Tensors of any content, kept between uses; threads may share one.

    Whoever saves such a tensor for gradients and gives it back with them can take them once only.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = {}

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of this shape, with the type and device of ``like``; whatever was in it is still there."""
        size = math.prod(shape)
        try:
            found = self._free[size, like.dtype, like.device].pop()
        except (KeyError, IndexError):  # asked, not looked up before: another thread may take the last one
            found = like.new_empty(size)
        return found.view(shape)

    def give(self, *tensors: Tensor) -> None:
        """Take tensors back that came from ``take``; nobody may use them from now on."""
        for tensor in tensors:
            key = (tensor.numel(), tensor.dtype, tensor.device)
            self._free.setdefault(key, []).append(tensor.detach().view(-1))


class Fresh(Scratch):
    """New memory each time, nothing taken back: for those who take gradients as often as they like."""

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of this shape, with the type and device of ``like``."""
        return like.new_empty(shape)

    def give(self, *tensors: Tensor) -> None:
        """Let them go when nobody holds them."""


FRESH = Fresh()
