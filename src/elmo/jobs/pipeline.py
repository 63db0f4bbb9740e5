"""Overlap reading, computing and writing with threads.

Each thread works on one item at a time, so memory does not grow if one of them is slower. The threads end
before their context manager exits. An error in a thread is raised in the thread that waits for the result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from elmo.engine.threads import WatchedExecutor, get_result, wait_for

S = TypeVar("S")
T = TypeVar("T")


class _StoppedError(Exception):
    """Stops the reading thread after the consumer has left the context."""


@contextmanager
def read_ahead(source: Iterable[S], gather: Callable[[Iterable[S]], Iterator[T]]) -> Iterator[Iterator[T]]:
    """Provide an iterator over ``gather(source)``; a thread computes the next item while the current one is in use.

    If the context is left early, the thread stops before it takes another item from ``source``.
    """
    is_stopped = threading.Event()

    def until_stopped() -> Iterator[S]:
        for item in source:
            if is_stopped.is_set():
                raise _StoppedError
            yield item

    with WatchedExecutor(1, thread_name_prefix="elmo-read") as pool:
        try:
            yield _iterate_ahead(gather(until_stopped()), pool)
        finally:
            is_stopped.set()


def _iterate_ahead(items: Iterator[T], pool: WatchedExecutor) -> Iterator[T]:
    end = object()
    future: Future[Any] = pool.submit(next, items, end)
    while (item := get_result(future)) is not end:
        future = pool.submit(next, items, end)  # only now, after the previous item was taken
        yield item


class BackgroundWriter:
    """A thread that runs one task at a time, in order; use it as a context manager.

    Leaving the context waits for the current task. If that task fails, its error replaces an exception that
    was raised in the context, because the task belongs to earlier work. Only KeyboardInterrupt and other
    exceptions that are not an ``Exception`` are kept.
    """

    def __init__(self) -> None:
        self._pool = WatchedExecutor(1, thread_name_prefix="elmo-write")
        self._current: Future[None] | None = None

    def submit(self, task: Callable[[], None]) -> None:
        """Wait for the previous task, raise its error if it failed, and start ``task``."""
        self._wait()
        self._current = self._pool.submit(task)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupt: KeyboardInterrupt | None = None
        while self._current is not None and not self._current.done():
            try:
                # wait for the future: in Python 3.11, the thread cannot be joined again after Ctrl-C
                wait_for(self._current)
            except KeyboardInterrupt as pressed:
                interrupt = pressed  # raised when the task is done
        self._pool.shutdown()
        if interrupt is not None:
            raise interrupt
        if error is None or isinstance(error, Exception):
            self._wait()

    def _wait(self) -> None:
        if self._current is not None:
            wait_for(self._current)  # if Ctrl-C interrupts this line, the task stays current
            done, self._current = self._current, None  # so that its error is raised only once
            done.result()
