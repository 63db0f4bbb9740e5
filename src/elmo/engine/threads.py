"""Shapes in, memory to work in out: given back after use, and used again by the next who asks.

A window needs hundreds of megabytes for its gates and responses. Fresh from the system each page of them is
zeroed at its first touch, which takes longer than the arithmetic; memory that is used again is at hand.

Independent pieces of work in, their results out: each in a thread of its own, with its share of threads.

The two directions of a language model share no arithmetic between the token layer and the loss. Side by
side, each on half the processors, they wait for each other once instead of at every small operation.
Autograd runs where ``backward`` is called, so a piece may well take its own gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

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

T = TypeVar("T")


class SideBySide:
    """So many workers for so many pieces; close it, or use it in a ``with``, to end them.

    What torch keeps by thread (grad mode, autocast) has its default in a worker. Draw random numbers before,
    or from a generator of the piece's own: which piece reaches a shared generator first is chance.
    """

    def __init__(self, n_workers: int = 2) -> None:
        share = max(1, torch.get_num_threads() // n_workers)
        # torch keeps its number of threads by thread: the caller's stays what it is
        self._pool = ThreadPoolExecutor(
            n_workers, thread_name_prefix="elmo", initializer=torch.set_num_threads, initargs=(share,)
        )

    def run(self, *pieces: Callable[[], T]) -> list[T]:
        """The results in the order of ``pieces``; the first that failed raises here, when all have ended."""
        futures = [self._pool.submit(piece) for piece in pieces]
        errors = [future.exception() for future in futures]  # waits for each
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the workers."""
        self._pool.shutdown()

    def __enter__(self) -> SideBySide:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
