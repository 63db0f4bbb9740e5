"""Independent pieces of work in, their results out: each in a thread of its own, with its share of threads.

The two directions of a language model share no arithmetic between the token layer and the loss. Side by
side, each on half the processors, they wait for each other once instead of at every small operation.
Autograd runs where ``backward`` is called, so a piece may well take its own gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

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
