"""A pool of worker threads that divide torch's threads among them.

The two directions of a language model are independent between the token layer and the loss. In two threads,
each with half of the CPU cores, they synchronize once instead of at every small operation. Autograd runs in
the thread that calls ``backward``, so a task may compute its gradients too.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


class ThreadPool:
    """Worker threads for independent tasks; close the pool, or use it in a ``with`` statement.

    Thread-local settings of torch (grad mode, autocast) have their defaults in a worker. Tasks must not
    share a random generator, because the order in which they use it is not fixed.
    """

    def __init__(self, n_workers: int = 2) -> None:
        share = max(1, torch.get_num_threads() // n_workers)
        # torch stores its number of threads per thread, so the caller's does not change.
        self._executor = ThreadPoolExecutor(
            n_workers, thread_name_prefix="elmo", initializer=torch.set_num_threads, initargs=(share,)
        )

    def run(self, *tasks: Callable[[], T]) -> list[T]:
        """Run all tasks and return their results in order; the first error is raised when all have ended."""
        futures = [self._executor.submit(task) for task in tasks]
        errors = [future.exception() for future in futures]  # waits for each
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]

    def close(self) -> None:
        """Stop the workers."""
        self._executor.shutdown()

    def __enter__(self) -> ThreadPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
