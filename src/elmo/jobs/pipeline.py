"""An iterator in, the same one read ahead in a thread out; work in, a thread that does it meanwhile, out.

Both hold one item at most, however fast one side and however slow the other: that is what keeps memory flat.
Both end their thread before they are left, whatever happened; an error in the thread is raised, as it is, in
the thread that waits for the result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class _LeftError(Exception):
    """Nobody wants the rest."""


@contextmanager
def read_ahead(source: Iterable[S], gather: Callable[[Iterable[S]], Iterator[T]]) -> Iterator[Iterator[T]]:
    """``gather(source)``, each item made in a thread while the one before it is in use.

    Left early, the thread stops before it takes another item of ``source``.
    """
    is_left = threading.Event()

    def wanted() -> Iterator[S]:
        for item in source:
            if is_left.is_set():
                raise _LeftError
            yield item

    with ThreadPoolExecutor(1, thread_name_prefix="elmo-read") as pool:
        try:
            yield _ahead(gather(wanted()), pool)
        finally:
            is_left.set()


def _ahead(items: Iterator[T], pool: ThreadPoolExecutor) -> Iterator[T]:
    end = object()  # no item is this
    coming: Future[Any] = pool.submit(next, items, end)
    while (item := coming.result()) is not end:
        coming = pool.submit(next, items, end)  # only now: the one before has been taken
        yield item


class BackgroundWriter:
    """A thread that does one piece of work at a time, in order; use it in a ``with``.

    On leaving, the piece at hand is waited for. If it fails, its error counts even when leaving because of
    another error, which came later in the order of the work; only Ctrl-C and the like go first.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="elmo-write")
        self._at_hand: Future[None] | None = None

    def do(self, work: Callable[[], None]) -> None:
        """Begin ``work`` when the piece before it is done; an error of that one is raised here."""
        self._wait()
        self._at_hand = self._pool.submit(work)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupt: KeyboardInterrupt | None = None
        while self._at_hand is not None and not self._at_hand.done():
            try:
                # not for the thread: joining it once more after a Ctrl-C fails in Python 3.11
                wait([self._at_hand])
            except KeyboardInterrupt as pressed:
                interrupt = pressed  # raised when the piece is done, not before
        self._pool.shutdown()
        if interrupt is not None:
            raise interrupt
        if error is None or isinstance(error, Exception):
            self._wait()

    def _wait(self) -> None:
        if self._at_hand is not None:
            wait([self._at_hand])  # after a Ctrl-C here it is still at hand
            done, self._at_hand = self._at_hand, None  # an error is raised once
            done.result()
