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
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from elmo.serve.app import App, access_logger
from elmo.serve.options import ServeOptions
from elmo.serve.replies import to_json

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 0.5
SHUTDOWN_SECONDS = 8  # in which requests in progress must end
IDLE_SECONDS = 10  # after which an idle connection is closed, and in which the head of a request must be sent
MAX_CONNECTIONS = 4096  # above this, connections without a request are closed, the oldest first
MAX_HEAD_BYTES = 1 << 16  # of the request line and the headers; also of trailers
MAX_PIPELINED = 32  # requests that a client may send before the first of them is answered
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def run_worker(options: ServeOptions, listener: socket.socket, *, on_ready: Callable[[], None]) -> None:
    """Answer requests until SIGTERM or SIGINT; ``on_ready`` is called when the models are loaded."""
    torch.set_num_threads(max(1, count_cpus() // options.workers))
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
            http=LimitedProtocol, ws="none", lifespan="off", loop="asyncio", log_config=None, access_log=False,
            server_header=False, date_header=False, proxy_headers=False, backlog=1024,
            timeout_keep_alive=IDLE_SECONDS, timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )  # fmt: skip
        super().__init__(config)
        self._app = app
        self._reloading: threading.Thread | None = None
        self._idle: dict[Any, tuple[Any, float]] = {}  # connection -> last request, and when it was first seen idle
        self._closing: dict[Any, float] = {}  # connection -> when it was first seen closing

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
        closing = [connection for connection in self.server_state.connections if connection.transport.is_closing()]
        self._closing = {connection: self._closing.get(connection, now) for connection in closing}
        for connection, since in self._closing.items():
            if now - since > IDLE_SECONDS:  # the client does not read the end of its reply
                connection.transport.abort()

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


class RefusedError(Exception):
    """The head of a request is too large, or there are too many requests; ends the parser."""


class LimitedProtocol(HttpToolsProtocol):
    """HTTP with limits for what a client may send before its request is read: the head, trailers and pipelining.

    Without them, the memory of one connection is not bounded.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._n_head = 0  # bytes of the head so far
        self._n_quiet = 0  # bytes since the last complete head or part of a body
        self._has_progress = False
        self._is_large = False

    def data_received(self, data: bytes) -> None:
        """Parse data."""
        if self.transport.is_closing():
            return
        self._has_progress = False
        super().data_received(data)
        self._n_quiet = 0 if self._has_progress else self._n_quiet + len(data)
        if self._n_quiet > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._is_large = True
            self.send_400_response("")

    def on_message_begin(self) -> None:
        """Start a request."""
        self._n_head = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Add a part of the target of a request."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header or a trailer."""
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def _count(self, n_bytes: int) -> None:
        self._n_head += n_bytes
        if self._n_head > MAX_HEAD_BYTES:
            self._is_large = True
            raise RefusedError

    def on_headers_complete(self) -> None:
        """Start to answer a request."""
        self._has_progress = True
        if len(self.pipeline) >= MAX_PIPELINED:
            raise RefusedError
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        self._has_progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._has_progress = True
        super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """Do nothing: a request to change the protocol is answered as if it did not ask for that."""

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not a valid request, and close the connection."""
        del msg
        status, code = (
            (b"431 Request Header Fields Too Large", "too_large")
            if self._is_large
            else (b"400 Bad Request", "invalid_http")
        )
        message = (
            f"the headers must have at most {MAX_HEAD_BYTES:,} bytes" if self._is_large else "invalid HTTP request"
        )
        error = {"message": message, "type": "invalid_request_error", "code": code, "param": None}
        body = to_json({"error": error})
        self.transport.write(
            b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
            % (status, len(body), body)
        )
        self.transport.close()


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
