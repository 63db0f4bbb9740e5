"""Run the service in one or several processes.

With one worker, the service runs in this process. With several, this process opens the socket, starts the workers,
restarts a worker that ends, and forwards signals.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elmo.errors import ConfigError, ElmoError, importing_extra
from elmo.serve.options import ServeOptions

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

logger = logging.getLogger(__name__)

RESTART_SECONDS = 1.0  # minimum time between two starts of the same worker
DRAIN_SECONDS = 0.5  # in which a worker that stops still accepts connections, to refuse their requests
STOP_SECONDS = 9.5  # after which a worker that has not ended is killed

OnReady = Callable[[str], None]


def serve(options: ServeOptions, *, on_ready: OnReady | None = None) -> None:
    """Serve models over HTTP until SIGTERM or SIGINT.

    Args:
        options: Models, address and limits.
        on_ready: Function that is called with the URL when the models are loaded.

    Example:
        >>> serve(ServeOptions(models=("en",), port=8000), on_ready=print)  # doctest: +SKIP
    """
    _check_extra()
    options.read_keys()  # raises ConfigError before anything is loaded
    listener = _open_socket(options)
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    if options.workers == 1:
        from elmo.serve.worker import run_worker

        run_worker(options, listener, on_ready=lambda: on_ready(url) if on_ready else None)
    else:
        _Supervisor(options, listener).run(lambda: on_ready(url) if on_ready else None)


def _check_extra() -> None:
    with importing_extra("the HTTP service", extra="serve"):
        import httptools
        import orjson
        import prometheus_client
        import uvicorn

        del httptools, orjson, prometheus_client, uvicorn


def _open_socket(options: ServeOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # asyncio turns off Nagle's algorithm, which delays replies by 40 ms, only if the protocol is named
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot listen on {options.host} port {options.port}: {reason}; choose another with --port"
        ) from error
    listener.setblocking(False)
    return listener


# --- Several workers --------------------------------------------------------------------------------


class _Supervisor:
    """Starts the workers, restarts those that end, and forwards signals."""

    def __init__(self, options: ServeOptions, listener: socket.socket) -> None:
        self._options = options
        self._listener = listener
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[Any] = [None] * options.workers
        self._started = [0.0] * options.workers
        self._pipes: list[Connection | None] = [None] * options.workers
        self._is_stopping = threading.Event()

    def run(self, on_ready: Callable[[], None]) -> None:
        """Run until SIGTERM or SIGINT."""
        folder = tempfile.mkdtemp(prefix="elmo-metrics-")
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        signals = [signal.SIGTERM, signal.SIGINT]
        previous = {number: signal.signal(number, lambda *_: self._is_stopping.set()) for number in signals}
        if hasattr(signal, "SIGHUP"):
            previous[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: self._forward(signal.SIGHUP))
        try:
            for number in range(len(self._workers)):
                self._start(number)
            self._wait_until_ready()
            if not self._is_stopping.is_set():
                on_ready()
            while not self._is_stopping.wait(0.1):
                self._restart_ended()
        finally:
            self._stop_workers()
            for number, handler in previous.items():
                signal.signal(number, handler)
            shutil.rmtree(folder, ignore_errors=True)

    def _start(self, number: int) -> None:
        reader, writer = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_run_in_child, args=(self._options, self._listener, writer), name=f"elmo-serve-{number}"
        )
        process.start()
        writer.close()
        self._workers[number], self._pipes[number], self._started[number] = process, reader, time.monotonic()

    def _wait_until_ready(self) -> None:
        """Wait until every worker has loaded its models; raise the error of the first that cannot."""
        for reader in self._pipes:
            while reader is not None and not self._is_stopping.is_set():
                if not reader.poll(0.1):
                    continue
                try:
                    message = reader.recv()
                except EOFError:
                    raise ConfigError("a worker ended while it loaded the models") from None
                if message != "ready":
                    raise ConfigError(str(message))
                break

    def _restart_ended(self) -> None:
        for number, worker in enumerate(self._workers):
            if not worker.is_alive() and time.monotonic() - self._started[number] > RESTART_SECONDS:
                logger.warning("worker %d ended with code %s; starting it again", worker.pid, worker.exitcode)
                from prometheus_client import multiprocess

                multiprocess.mark_process_dead(worker.pid)
                self._start(number)

    def _forward(self, number: int) -> None:
        for worker in self._workers:
            if worker is not None and worker.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, number)

    def _stop_workers(self) -> None:
        self._forward(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        if self._is_stopping.is_set():  # not if a worker could not start
            time.sleep(DRAIN_SECONDS)
            self._listener.listen(0)  # the workers accept the connections that wait, and no more come
        self._listener.close()
        for worker in self._workers:
            if worker is not None:
                worker.join(max(0.0, deadline - time.monotonic()))
                if worker.is_alive():
                    worker.kill()


def _run_in_child(options: ServeOptions, listener: socket.socket, pipe: Connection) -> None:
    from elmo.serve.worker import run_worker

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("elmo: %(message)s"))
    logging.getLogger("elmo").addHandler(handler)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        run_worker(options, listener, on_ready=lambda: pipe.send("ready"))
    except ElmoError as error:
        with contextlib.suppress(OSError):
            pipe.send(str(error))  # the supervisor raises it


def _exit_with_parent() -> None:
    """End this process if the supervisor is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
