"""One worker of the service: the event loop, the network threads, and the reaction to signals.

SIGTERM and SIGINT shut down gracefully: all accepted requests are answered, while new ones are refused with status
503 for ``DRAIN_SECONDS`` before the socket is closed. SIGHUP reloads the models and indexes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import uvicorn

from elmo.serve.app import App, access_logger
from elmo.serve.options import ServeOptions

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 0.5
SHUTDOWN_SECONDS = 8  # in which requests in progress must end
IDLE_SECONDS = 10  # after which an idle connection is closed, and in which the head of a request must be sent
MAX_CONNECTIONS = 4096  # above this, connections without a request are closed, the oldest first
SWITCH_SECONDS = 0.0005  # between Python threads; short, so that the event loop does not wait for the lanes
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def run_worker(options: ServeOptions, listener: socket.socket, *, on_ready: Callable[[], None]) -> None:
    """Answer requests until SIGTERM or SIGINT; ``on_ready`` is called when the models are loaded."""
    torch.set_num_threads(max(1, count_cpus() // options.workers))
    sys.setswitchinterval(SWITCH_SECONDS)
    _raise_file_limit()
    _configure_access_log()
    app = App(options)
    server = GracefulServer(app)
    errors: list[BaseException] = []

    def load() -> None:
        try:
            app.start()
            on_ready()
        except BaseException as error:  # raised again in the main thread
            errors.append(error)
            server.should_exit = True

    async def run() -> None:
        threading.Thread(target=load, name="elmo-serve-load", daemon=True).start()
        if hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, server.reload)
        await server.serve(sockets=[listener])

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())
    app.stop()
    if errors:
        raise errors[0]


class GracefulServer(uvicorn.Server):
    """A uvicorn server that refuses new requests with status 503 for a moment before it closes its socket."""

    def __init__(self, app: App) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        config = uvicorn.Config(
            app,  # type: ignore[arg-type]
            http="httptools", ws="none", lifespan="off", loop="asyncio", log_config=None, access_log=False,
            server_header=False, date_header=False, proxy_headers=False, backlog=1024,
            timeout_keep_alive=IDLE_SECONDS, timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )  # fmt: skip
        super().__init__(config)
        self._app = app
        self._reloading: threading.Thread | None = None
        self._idle: dict[Any, tuple[Any, float]] = {}  # connection -> last request, and when it was first seen idle

    async def on_tick(self, counter: int) -> bool:
        """Close connections that do not send a complete request; uvicorn limits only the time between requests."""
        if counter % 10 == 0:
            self._close_idle_connections(time.monotonic())
        return await super().on_tick(counter)

    def _close_idle_connections(self, now: float) -> None:
        idle = {}
        for connection in list(self.server_state.connections):
            cycle = getattr(connection, "cycle", None)
            if cycle is None or cycle.response_complete:
                last, since = self._idle.get(connection, (None, now))
                idle[connection] = (cycle, since if last is cycle else now)
        n_surplus = len(self.server_state.connections) - MAX_CONNECTIONS
        for number, (connection, (_, since)) in enumerate(sorted(idle.items(), key=lambda item: item[1][1])):
            if now - since > IDLE_SECONDS + 2 or number < n_surplus:
                connection.transport.close()
        self._idle = idle

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
            self._reloading = threading.Thread(target=self._app.reload, name="elmo-serve-reload", daemon=True)
            self._reloading.start()


def count_cpus() -> int:
    """Return the number of CPUs that this process may use, from its affinity mask and its cgroup."""
    n_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = _CPU_QUOTA.read_text(encoding="ascii").split()
        if quota != "max":
            n_cpus = min(n_cpus, max(1, round(int(quota) / int(period))))
    return n_cpus


def _raise_file_limit() -> None:
    """Allow as many open connections as the system permits."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # not on Windows

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 2 * MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(2 * MAX_CONNECTIONS, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _configure_access_log() -> None:
    """Write one JSON object per line and request to stderr."""
    if not access_logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        access_logger.addHandler(handler)
        access_logger.propagate = False
        access_logger.setLevel(logging.INFO)
