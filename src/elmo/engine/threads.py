"""Worker threads that divide torch's threads among them, and safe forks of a process that computes.

The two directions of a language model are independent between the token layer and the loss. In two threads,
each with half of the CPU cores, they synchronize once instead of at every small operation. Autograd runs in
the thread that calls ``backward``, so a task may compute its gradients too.

A forked child has only the thread that forked. A lock that another thread held stays locked in it, and threads
that a pool counts on are missing. Prefork servers and the workers of a ``DataLoader`` fork processes that
compute, so:

- ``FORK_GATE``: a fork waits until no thread computes. Then nothing is half written, and no lock inside torch's
  libraries is held.
- Before a fork, the threads that OpenMP keeps for the forking thread end. The next operation starts new ones.
- ``reset_after_fork``: in the child, locks and pools are new. This covers forks that do not wait, because they
  were started in C or because a computation takes longer than ``MAX_FORK_WAIT``.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

T = TypeVar("T")

MAX_FORK_WAIT = 10.0  # seconds that a fork waits for the computations of other threads
_CHECK_SECONDS = 1.0  # how often a thread that waits for another one checks that it is alive
_OMP_PAUSE_SOFT = 1  # from omp.h: end the threads, keep the settings


class WatchedExecutor(ThreadPoolExecutor):
    """A pool of threads; ``wait_for`` and ``get_result`` notice if one of them has died."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Let a thread call a function."""
        future = super().submit(fn, *args, **kwargs)
        vars(future)["threads"] = self._threads
        return future


def wait_for(future: Future[Any]) -> None:
    """Wait until a task has ended.

    A thread may die without a result if memory runs out: even storing an error needs memory. Its task would then never
    end, so ``MemoryError`` is raised.
    """
    while True:
        try:
            future.exception(timeout=_CHECK_SECONDS)
        except CancelledError:
            return
        except TimeoutError:
            threads: set[threading.Thread] = vars(future).get("threads", set())
            if not all(thread.is_alive() for thread in tuple(threads)) and not future.done():
                raise MemoryError("a thread ended without a result; it has probably run out of memory") from None
        else:
            return


def get_result(future: Future[T]) -> T:
    """Wait for the result of a task, or raise its error; raise ``MemoryError`` if its thread has died."""
    wait_for(future)
    return future.result()


class ThreadPool:
    """Worker threads for independent tasks; close the pool, or use it in a ``with`` statement.

    Thread-local settings of torch (grad mode, autocast) have their defaults in a worker. Tasks must not
    share a random generator, because the order in which they use it is not fixed.
    """

    def __init__(self, n_workers: int = 2) -> None:
        self._n_workers = n_workers
        self._share = max(1, torch.get_num_threads() // n_workers)
        self.reset_locks()
        reset_after_fork(self)

    def reset_locks(self) -> None:
        """Start without threads: in a forked child, those of the parent are missing."""
        # torch stores its number of threads per thread, so the caller's does not change.
        self._executor = WatchedExecutor(
            self._n_workers, thread_name_prefix="elmo", initializer=torch.set_num_threads, initargs=(self._share,)
        )

    def run(self, *tasks: Callable[[], T]) -> list[T]:
        """Run all tasks and return their results in order; the first error is raised when all have ended."""
        with FORK_GATE:
            futures = [self._executor.submit(task) for task in tasks]
            try:
                for future in futures:
                    wait_for(future)
            except MemoryError:
                self.reset_locks()  # the pool would keep the dead thread
                raise
        errors = [future.exception() for future in futures]
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


class ForkGate:
    """Delays forks until no thread is inside; use it in a ``with`` statement around computations.

    A thread that is inside may enter again. Code inside must not call functions of the user, which may wait for
    the thread that forks.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._n_inside = 0  # number of threads
        self._is_closed = False
        self._own = threading.local()  # how often the current thread has entered

    @property
    def _depth(self) -> int:
        return getattr(self._own, "depth", 0)

    def __enter__(self) -> None:
        depth = self._depth
        if depth == 0:
            with self._changed:
                while self._is_closed:
                    self._changed.wait()
                self._n_inside += 1
        self._own.depth = depth + 1

    def __exit__(self, *_: object) -> None:
        self._own.depth -= 1
        if self._own.depth == 0:
            with self._changed:
                self._n_inside -= 1
                if self._is_closed:
                    self._changed.notify_all()

    def close(self) -> None:
        """Let no other thread enter, and wait until all have left; at most for ``MAX_FORK_WAIT`` seconds."""
        with self._changed:
            while self._is_closed:  # by another thread that forks
                self._changed.wait()
            self._is_closed = True
            n_own = int(self._depth > 0)
            self._changed.wait_for(lambda: self._n_inside <= n_own, timeout=MAX_FORK_WAIT)

    def open(self) -> None:
        """Let threads enter again."""
        with self._changed:
            self._is_closed = False
            self._changed.notify_all()

    def reset_locks(self) -> None:
        """Open the gate of a forked child, in which only the current thread can be inside."""
        self._changed = threading.Condition(threading.Lock())
        self._n_inside = int(self._depth > 0)
        self._is_closed = False


class HasLocks(Protocol):
    """An object with locks or threads, which a forked child must replace."""

    def reset_locks(self) -> None:
        """Replace all locks by new ones, and repair or drop values that a thread of the parent was changing."""
        ...


FORK_GATE = ForkGate()
_with_locks: weakref.WeakSet[HasLocks] = weakref.WeakSet()
_is_omp_paused = False


def reset_after_fork(owner: HasLocks) -> None:
    """Call ``owner.reset_locks()`` in forked children, as long as ``owner`` exists."""
    _with_locks.add(owner)


def _before_fork() -> None:
    global _is_omp_paused  # noqa: PLW0603
    FORK_GATE.close()
    pause = _find_omp_pause()
    _is_omp_paused = pause is not None and pause(_OMP_PAUSE_SOFT) == 0


def _after_fork_in_child() -> None:
    global _is_omp_paused  # noqa: PLW0603
    FORK_GATE.reset_locks()
    for owner in list(_with_locks):
        owner.reset_locks()
    if not _is_omp_paused:  # OpenMP would wait forever for threads that are missing here
        torch.set_num_threads(1)
    _is_omp_paused = False


def _after_fork_in_parent() -> None:
    global _is_omp_paused  # noqa: PLW0603
    _is_omp_paused = False
    FORK_GATE.open()


@functools.cache
def _find_omp_pause() -> Callable[[int], int] | None:
    """Find the function of torch's OpenMP library that ends the threads of the calling thread."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        return ctypes.CDLL(str(path)).omp_pause_resource_all  # also searches the libraries it depends on
    except (OSError, AttributeError):
        return None


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
