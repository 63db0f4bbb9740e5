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
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
import uvicorn

from elmo.serve.app import App, access_logger
from elmo.serve.options import ServeOptions

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 0.5
SHUTDOWN_SECONDS = 8  # in which requests in progress must end
IDLE_SECONDS = 10  # after which an idle connection is closed
SWITCH_SECONDS = 0.0005  # between Python threads; short, so that the event loop does not wait for the lanes
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def run_worker(options: ServeOptions, listener: socket.socket, *, on_ready: Callable[[], None]) -> None:
    """Answer requests until SIGTERM or SIGINT; ``on_ready`` is called when the models are loaded."""
    torch.set_num_threads(max(1, count_cpus() // options.workers))
    sys.setswitchinterval(SWITCH_SECONDS)
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


def _configure_access_log() -> None:
    """Write one JSON object per line and request to stderr."""
    if not access_logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        access_logger.addHandler(handler)
        access_logger.propagate = False
        access_logger.setLevel(logging.INFO)
