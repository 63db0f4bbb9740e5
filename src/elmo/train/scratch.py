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

    Whoever saves such a tensor for gradients and gives it back with them can take them once only. Memory
    comes in few sizes, so that what varies from window to window does not pile up.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = {}

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of this shape, with the type and device of ``like``; whatever was in it is still there."""
        size = math.prod(shape)
        try:
            found = self._free[_rounded_up(size), like.dtype, like.device].pop()
        except (KeyError, IndexError):  # asked, not looked up before: another thread may take the last one
            found = like.new_empty(_rounded_up(size))
        return found[:size].view(shape)

    def give(self, *tensors: Tensor) -> None:
        """Take tensors back that came from ``take``; nobody may use them from now on."""
        for tensor in tensors:
            size = _rounded_up(tensor.numel())
            whole = tensor.detach().as_strided((size,), (1,))
            self._free.setdefault((size, tensor.dtype, tensor.device), []).append(whole)


def _rounded_up(size: int) -> int:
    """To a number of three binary digits and zeros behind them: a quarter more at most."""
    unit = 1 << max(0, size.bit_length() - 3)
    return -(-size // unit) * unit


class Fresh(Scratch):
    """New memory each time, nothing taken back: for those who take gradients as often as they like."""

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of this shape, with the type and device of ``like``."""
        return like.new_empty(shape)

    def give(self, *tensors: Tensor) -> None:
        """Let them go when nobody holds them."""


FRESH = Fresh()
