"""A pool of reusable buffers for the intermediate results of training.

A training window needs hundreds of megabytes for gates and activations. Memory that is new to the process
must be zeroed by the operating system page by page, which takes longer than the arithmetic. A pool reuses
the memory of the window before.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes of a cache line


class BufferPool:
    """Uninitialized tensors that are reused after their release; safe to share between threads.

    An autograd function that releases the tensors it saved for ``backward`` allows only one backward pass.
    Sizes are rounded up to a few steps, so that windows of different sizes share memory.
    """

    def __init__(self, *, is_reusing: bool = True) -> None:
        """Create a pool; without ``is_reusing``, every tensor is new and nothing is kept."""
        self._is_reusing = is_reusing
        self._free: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = {}

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Take an uninitialized tensor of this shape, with the type and device of ``like``."""
        if not self._is_reusing:
            return like.new_empty(shape)
        size = math.prod(shape)
        try:
            buffer = self._free[_round_up(size), like.dtype, like.device].pop()
        except (KeyError, IndexError):  # no check before pop: another thread may take the last one
            buffer = new_buffer((_round_up(size),), like)
        return buffer[:size].view(shape)

    def release(self, *tensors: Tensor) -> None:
        """Return tensors from ``take`` to the pool; do not use them afterwards."""
        if not self._is_reusing:
            return
        for tensor in tensors:
            size = _round_up(tensor.numel())
            whole = tensor.detach().as_strided((size,), (1,))
            self._free.setdefault((size, tensor.dtype, tensor.device), []).append(whole)


def new_buffer(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Allocate an uninitialized tensor with the type and device of ``like``.

    On a CPU, numpy requests huge pages for large arrays: they take less time to allocate and to read.
    """
    if like.device.type != "cpu":
        return like.new_empty(shape)
    n_bytes = math.prod(shape) * like.element_size()
    memory = np.empty(n_bytes + _ALIGNMENT, dtype=np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return torch.from_numpy(memory[first : first + n_bytes]).view(like.dtype).view(shape)


UNPOOLED = BufferPool(is_reusing=False)  # allows any number of backward passes


def _round_up(size: int) -> int:
    """Round up to three significant binary digits: at most a quarter more."""
    unit = 1 << max(0, size.bit_length() - 3)
    return -(-size // unit) * unit
