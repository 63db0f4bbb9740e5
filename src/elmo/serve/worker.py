"""One worker of the service: the event loop, the network threads, and the reaction to signals.

SIGTERM and SIGINT shut down gracefully: all accepted requests are answered, while new ones are refused with status
503 for ``DRAIN_SECONDS`` before the socket is closed. SIGHUP reloads the models and indexes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
import uvicorn

from elmo.serve.app import App
from elmo.serve.connection import Connection
from elmo.serve.options import ServeOptions
from elmo.serve.server import DRAIN_SECONDS

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 8  # in which requests in progress must end
HEAD_SECONDS = 10  # in which a client must send the head of its first request, and of each request it has begun
IDLE_SECONDS = 75  # after which an unused connection is closed; longer than proxies and clients keep theirs
MAX_CONNECTIONS = 4096  # above this, connections without a request are closed, the oldest first
BACKLOG = 1024  # connections that wait to be accepted
ACCEPTED_AT_ONCE = 16  # before requests of other connections have their turn
SWITCH_SECONDS = 0.002  # for which a network thread may keep the event loop waiting for the interpreter
RETURNED_BYTES = 1 << 26  # memory of requests that have ended from which free memory is returned to the system
COLLECT_SECONDS = 300.0  # after which all garbage is collected even if the server is never idle
_M_ARENA_MAX = -8  # from malloc.h
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def run_worker(options: ServeOptions, listener: socket.socket, *, on_ready: Callable[[], None]) -> None:
    """Answer requests until SIGTERM or SIGINT; ``on_ready`` is called when the models are loaded."""
    _limit_arenas()
    n_threads = max(1, count_cpus() // options.workers)
    torch.set_num_threads(n_threads)
    sys.setswitchinterval(SWITCH_SECONDS)
    _raise_file_limit()
    app = App(options, n_threads=n_threads)
    server = GracefulServer(app)
    errors: list[BaseException] = []

    def load(is_loaded: Callable[[], None]) -> None:
        try:
            app.start()
            _freeze_objects()
            on_ready()
        except BaseException as error:  # raised again in the main thread
            errors.append(error)
            server.should_exit = True
        finally:
            is_loaded()

    async def run() -> None:
        loop, loaded = asyncio.get_running_loop(), asyncio.Event()

        def set_loaded() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(loaded.set)

        threading.Thread(target=load, args=(set_loaded,), name="elmo-serve-load", daemon=True).start()
        if hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, server.reload)
        if options.workers > 1:
            await loaded.wait()  # until then, other workers answer
        if not errors:
            await server.serve(sockets=[listener])

    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(run())
    finally:
        gc.enable()
        app.stop()
    if errors:
        raise errors[0]


class GracefulServer(uvicorn.Server):
    """A uvicorn server that refuses new requests with status 503 for a moment before it closes its socket."""

    def __init__(self, app: App) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        config = uvicorn.Config(
            app,  # type: ignore[arg-type]
            http=Connection, interface="asgi3", ws="none", lifespan="off", loop="asyncio", log_config=None,
            access_log=False, server_header=False, date_header=False, proxy_headers=False, backlog=ACCEPTED_AT_ONCE,
            timeout_keep_alive=IDLE_SECONDS, timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )  # fmt: skip
        super().__init__(config)
        self._app = app
        self._has_backlog = app.options.workers == 1  # otherwise, the workers share it
        self._reloading: threading.Thread | None = None
        self._idle: dict[Connection, tuple[Any, float]] = {}  # its state, and when it was first seen in it
        self._most_reserved = 0  # since memory was last returned
        self._closing: dict[Connection, float] = {}  # when it was first seen closing
        self._collected = time.monotonic()
        self._n_collected = 0  # requests until then

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)  # asyncio uses one number for this and for what it accepts at once

    async def on_tick(self, counter: int) -> bool:
        """Write the access log, collect garbage, and close connections that do not send a complete request."""
        self._app.access_log.flush()
        gc.collect(0 if counter % 10 else 1)
        if counter % 10 == 0:
            now = time.monotonic()
            self._close_idle_connections(now)
            is_idle = self._collect_garbage(now)
            reserved = self._app.reserved_bytes
            self._most_reserved = max(self._most_reserved, reserved)
            if is_idle or self._most_reserved - reserved > RETURNED_BYTES:
                self._most_reserved = reserved
                await asyncio.to_thread(_return_memory)
        return await super().on_tick(counter)

    def _close_idle_connections(self, now: float) -> None:
        idle: dict[Connection, tuple[Any, float]] = {}
        connections = cast("list[Connection]", list(self.server_state.connections))
        for connection in connections:
            cycle = connection.cycle
            if cycle is None or cycle.response_complete:
                state = (cycle, cycle is None or connection.is_in_head)
                last, since = self._idle.get(connection, (None, now))
                idle[connection] = (state, since if last == state else now)
        n_surplus = len(connections) - MAX_CONNECTIONS
        for number, (connection, (state, since)) in enumerate(sorted(idle.items(), key=lambda item: item[1][1])):
            is_old = now - since > (HEAD_SECONDS if state[1] else IDLE_SECONDS)
            if (is_old or number < n_surplus) and not connection.has_unread_data():
                connection.transport.close()
        self._idle = idle
        closing = [connection for connection in connections if connection.transport.is_closing()]
        self._closing = {connection: self._closing.get(connection, now) for connection in closing}
        for connection, since in self._closing.items():
            if now - since > HEAD_SECONDS:  # the client does not read the end of its reply
                connection.transport.abort()

    def _collect_garbage(self, now: float) -> bool:
        """Collect all garbage if no request is in progress, or if this has not happened for a long time.

        A full collection stops all threads, for 80 ms if many requests wait.

        Returns:
            Whether garbage was collected and no request is in progress.
        """
        n_accepted, is_idle = self._app.n_accepted, not self._app.n_requests
        if n_accepted == self._n_collected or not (is_idle or now - self._collected > COLLECT_SECONDS):
            return False
        gc.collect()
        self._collected, self._n_collected = now, n_accepted
        return is_idle

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept the connections that wait, so that each gets an answer; then accept no more.

        The backlog of several workers is closed by their supervisor, when all of them stop.
        """
        if self._has_backlog:
            for listener in sockets or ():
                listener.listen(0)
        for _ in range(BACKLOG // ACCEPTED_AT_ONCE):
            await asyncio.sleep(0)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start to drain at the first signal; a second SIGINT ends at once."""
        del frame
        if not self._app.is_draining:
            self._app.is_draining = True
            loop = asyncio.get_event_loop()
            loop.call_soon_threadsafe(loop.call_later, DRAIN_SECONDS, setattr, self, "should_exit", True)
        elif sig == signal.SIGINT:
            self.force_exit = self.should_exit = True

    def reload(self) -> None:
        """Load the models again in another thread, unless this is in progress."""
        if self._reloading is None or not self._reloading.is_alive():
            self._reloading = threading.Thread(target=self._reload, name="elmo-serve-reload", daemon=True)
            self._reloading.start()

    def _reload(self) -> None:
        self._app.reload()
        _freeze_objects()
        _return_memory()


def count_cpus() -> int:
    """Return the number of CPUs that this process may use, from its affinity mask and its cgroup."""
    n_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = _CPU_QUOTA.read_text(encoding="ascii").split()
        if quota != "max":
            n_cpus = min(n_cpus, max(1, round(int(quota) / int(period))))
    return n_cpus


def _freeze_objects() -> None:
    """Exclude what is loaded from later garbage collections, which would stop all threads for tens of milliseconds.

    From then on, the event loop collects. A network thread that collects could lose its core in the middle, because its
    priority is lower, and would keep the event loop waiting for the interpreter.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.disable()


def _limit_arenas() -> None:
    """Let all threads share the memory that they free; glibc would keep the free memory of each thread apart."""
    with contextlib.suppress(OSError, AttributeError):
        _libc().mallopt(_M_ARENA_MAX, 2)


def _return_memory() -> None:
    """Return free memory to the system; glibc keeps it if something is allocated behind it."""
    with contextlib.suppress(OSError, AttributeError):
        _libc().malloc_trim(0)


@cache
def _libc() -> ctypes.CDLL:
    """Return the C library of this process, which is opened once."""
    return ctypes.CDLL(None)


def _raise_file_limit() -> None:
    """Allow as many open connections as the system permits."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # not on Windows

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 2 * MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(2 * MAX_CONNECTIONS, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
