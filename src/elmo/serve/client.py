"""``Client`` and ``AsyncClient``: use a model that runs in ``elmo serve`` like a model in this process.

``client_calls.py`` has the methods of both clients. ``Client`` runs them with threads, ``AsyncClient`` with asyncio
tasks. ``Exchange`` has the rules for time limits, retries and errors that both follow.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from elmo.engine.batches import track_progress
from elmo.errors import ConfigError, ServiceError, StateError, importing_extra
from elmo.serve.client_calls import Plan, RemoteModel, Request, RequestGroup, ServiceCalls, read_error, require

if TYPE_CHECKING:
    import httpx

P = ParamSpec("P")
T = TypeVar("T")

MAX_REPLY_BYTES = 1 << 29
IN_FLIGHT = 4  # requests that are sent at the same time
CONNECT_SECONDS = 10.0
FIRST_DELAY, MAX_DELAY = 0.2, 10.0  # seconds before a retry; doubled after each attempt
RETRIED_STATUSES = (429, 503)


@dataclass(frozen=True)
class ServiceSettings:
    """How the service is reached; see ``Client``."""

    url: str
    api_key: str | None = field(repr=False)
    timeout: float
    max_retries: int

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            is_valid = is_valid and re.search(r"[\s?#@]", self.url) is None
        except (ValueError, TypeError, AttributeError):
            is_valid = False
        if not is_valid:
            raise ConfigError(f"url must be an address such as http://127.0.0.1:8000; found {self.url!r:.80}")
        if self.api_key is not None and not re.fullmatch(r"[!-~]+", str(self.api_key)):
            raise ConfigError("api_key must consist of ASCII characters without spaces; check the key")
        if not 0 < self.timeout < float("inf"):
            raise ConfigError(f"timeout must be greater than 0; found {self.timeout}")
        if self.max_retries < 0:
            raise ConfigError(f"max_retries must be at least 0; found {self.max_retries}")

    def headers(self) -> dict[str, str]:
        """Return the headers of every request."""
        from elmo import __version__

        headers = {"User-Agent": f"pyelmo/{__version__}", "Accept": "application/json", "Accept-Encoding": "identity"}
        return headers if self.api_key is None else {**headers, "Authorization": f"Bearer {self.api_key}"}


# --- Time limits, retries and errors -------------------------------------------------------------------------


def _import_httpx() -> Any:
    with importing_extra("elmo.Client", extra="serve"):
        import httpx  # pyright: ignore[reportMissingImports] -- an extra
    return httpx


_attempt = threading.local()  # deadline: when the attempt of this thread must have ended


@cache
def _deadline_backend() -> Any:
    """Return the network of httpcore with reads and writes that end at the deadline of the attempt.

    The time limits of httpx are for single reads and writes, so that a service that sends one byte now and then could
    keep a client for ever. With asyncio, ``asyncio.timeout`` limits the whole attempt.
    """
    import httpcore  # pyright: ignore[reportMissingImports] -- an extra

    def remaining(timeout: float | None, error: type[Exception]) -> float:
        seconds = _attempt.deadline - time.monotonic()
        if seconds <= 0:
            raise error("the time limit has passed")
        return seconds if timeout is None else min(seconds, timeout)

    class Stream(httpcore.NetworkStream):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
            return self._stream.read(max_bytes, remaining(timeout, httpcore.ReadTimeout))

        def write(self, buffer: bytes, timeout: float | None = None) -> None:
            self._stream.write(buffer, remaining(timeout, httpcore.WriteTimeout))

        def start_tls(self, ssl_context: ssl.SSLContext, server_hostname: Any = None, timeout: Any = None) -> Any:
            limit = remaining(timeout, httpcore.ConnectTimeout)
            return Stream(self._stream.start_tls(ssl_context, server_hostname, limit))

        def get_extra_info(self, info: str) -> Any:
            return self._stream.get_extra_info(info)

        def close(self) -> None:
            self._stream.close()

    class Backend(httpcore.SyncBackend):
        def connect_tcp(self, *arguments: Any, **options: Any) -> Any:
            return Stream(super().connect_tcp(*arguments, **options))

    return Backend()


def _open_http(headers: dict[str, str]) -> httpx.Client:
    """Return a client of httpx that respects the deadline of the attempt.

    httpx ignores HTTPS_PROXY and similar variables if it is given a transport, so its own transports are changed.
    """
    http = _import_httpx().Client(headers=headers)
    for transport in (http._transport, *http._mounts.values()):
        if transport is not None:  # None: an address that needs no proxy
            transport._pool._network_backend = _deadline_backend()
    return http


class Exchange:
    """One request and its attempts, until there is a reply, an error that is final, or no time left."""

    def __init__(self, settings: ServiceSettings, request: Request) -> None:
        self._settings, self._request = settings, request
        self._body = request.encode()
        self._reply = bytearray()
        self._n_attempts = 0
        self.deadline = time.monotonic() + settings.timeout
        self._last_error: ServiceError | None = None

    @property
    def remaining(self) -> float:
        """Seconds until the time limit; at least a millisecond."""
        return max(self.deadline - time.monotonic(), 0.001)

    def next_attempt(self) -> dict[str, Any]:
        """Start an attempt; return the arguments of ``httpx.Client.stream``."""
        self._n_attempts += 1
        self._reply.clear()
        seconds = self.remaining
        headers = {"X-Timeout": f"{seconds:.3f}"}
        if self._body is not None:
            headers["Content-Type"] = "application/json"
        timeout = _import_httpx().Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))
        method = "GET" if self._body is None else "POST"
        url = self._settings.url + self._request.path
        return {"method": method, "url": url, "content": self._body, "headers": headers, "timeout": timeout}

    def receive(self, chunk: bytes) -> None:
        """Add a part of the reply."""
        if time.monotonic() > self.deadline:
            raise self.timeout_error()
        require(len(self._reply) + len(chunk) <= MAX_REPLY_BYTES, f"more than {MAX_REPLY_BYTES >> 20} MB")
        self._reply += chunk

    def finish(self, response: httpx.Response) -> Any:
        """Return the parsed reply; None if the request is too large and can be split."""
        status = response.status_code
        try:
            reply = json.loads(self._reply)
        except (ValueError, RecursionError):
            reply = None
            require(status != 200, f"expected JSON, found {bytes(self._reply[:40])!r}")
        if status == 200:
            return self._request.parse(reply)
        numbers = self._request.numbers
        if status == 413 and len(numbers) > 1:
            return None
        error = read_error(reply.get("error") if isinstance(reply, dict) else None, status=status, numbers=numbers)
        if not isinstance(error, ServiceError):
            raise error
        reason = f": {error}" if isinstance(reply, dict) else ""
        raise ServiceError(
            f"{self._settings.url}{self._request.path} replied with status {status}{reason}",
            status=status, code=error.code, retry_after=_read_retry_after(response.headers.get("Retry-After")),
        )  # fmt: skip

    def delay(self, error: Exception) -> float:
        """Return the time to wait before the next attempt; raise the error if there is none."""
        httpx = _import_httpx()
        retry_after = 0.0
        if isinstance(error, ServiceError):
            failure = error
            if error.status not in RETRIED_STATUSES:
                raise error
            retry_after = error.retry_after or 0.0
        elif isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            raise self.timeout_error() from error
        else:
            failure = self._connection_error(error)
            if not _is_temporary(error):
                raise failure from error
        self._last_error = failure
        if self._n_attempts > self._settings.max_retries:
            raise failure from error
        backoff = min(FIRST_DELAY * 2 ** (self._n_attempts - 1), MAX_DELAY)
        seconds = retry_after + backoff * random.uniform(0.5, 1.0)
        if time.monotonic() + seconds >= self.deadline:
            raise failure from error
        return seconds

    def timeout_error(self) -> ServiceError:
        """Return the error for a request that took too long."""
        reason = "" if self._last_error is None else f"; last error: {self._last_error}"
        return ServiceError(
            f"{self._settings.url}{self._request.path} must reply within {self._settings.timeout:g} seconds; found no "
            f"complete reply; increase timeout{reason}",
            code="timeout",
        )

    def _connection_error(self, error: Exception) -> ServiceError:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        hint = "; is it running? Start it with: elmo serve" if "refused" in reason else ""
        return ServiceError(f"cannot reach the service at {self._settings.url}: {reason}{hint}", code="connection")


def _is_temporary(error: BaseException | None) -> bool:
    """Return whether a connection can succeed later: not if the name of the host or its certificate is wrong."""
    httpx = _import_httpx()
    if not isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError | httpx.ConnectTimeout):
        return False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return False
        if isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN:
            return False
        cause = cause.__cause__ or cause.__context__
    return True


def _read_retry_after(value: str | None) -> float:
    """Return the seconds of a Retry-After header; 0 if it has none."""
    return float(value) if value is not None and re.fullmatch(r"\d{1,6}(\.\d{1,6})?", value.strip()) else 0.0


# --- The two clients -----------------------------------------------------------------------------------------


def _hide_plan(call: Any, plan: Any) -> None:
    """Show the type of the result, not that of the plan, in ``help``."""
    signature = inspect.signature(plan)
    result = str(signature.return_annotation).removeprefix("Plan[").removesuffix("]")
    call.__signature__ = signature.replace(return_annotation=result)


def _blocking(plan: Callable[Concatenate[ServiceCalls, P], Plan[T]]) -> Callable[Concatenate[Any, P], T]:
    """Turn a plan into a method of ``Client``."""

    @wraps(plan)
    def call(self: Client, *args: P.args, **options: P.kwargs) -> T:
        return self._run(plan(self._calls, *args, **options))

    _hide_plan(call, plan)
    return call


def _awaitable(
    plan: Callable[Concatenate[ServiceCalls, P], Plan[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Turn a plan into a method of ``AsyncClient``."""

    @wraps(plan)
    async def call(self: AsyncClient, *args: P.args, **options: P.kwargs) -> T:
        return await self._run(plan(self._calls, *args, **options))

    _hide_plan(call, plan)
    return call


class ServiceUser:
    """The settings that both clients have."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        model: str | None = None,
        timeout: float = 60.0,
        max_retries: int = 5,
    ) -> None:
        """Store the settings; the first call connects to the service.

        Args:
            url: Address of the service.
            api_key: API key, if the service requires one.
            model: Id of the model to use. Default: the first model of the service.
            timeout: Maximum time for a request in seconds, including its retries. A large input is sent as several
                requests.
            max_retries: Number of times to repeat a request if the service is busy or cannot be reached.
        """
        _import_httpx()
        self._settings = ServiceSettings(url, api_key, timeout, max_retries)
        self._calls = ServiceCalls(model)
        self._connections: Any = self._new_connections()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings.url!r}, model={self._calls.model!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_connections"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _connections=self._new_connections())

    def _new_connections(self) -> Any:
        raise NotImplementedError

    @property
    def url(self) -> str:
        """Address of the service."""
        return self._settings.url

    @property
    def model(self) -> str | None:
        """Id of the model in requests; None is the first model of the service."""
        return self._calls.model


class Client(ServiceUser):
    """A model in a service that was started with ``elmo serve``, with the methods of ``Elmo``.

    >>> import elmo
    >>> client = elmo.Client("http://127.0.0.1:8000")
    >>> bank = client.encode("I sat by the bank of the river.").word("bank")  # doctest: +SKIP

    A client can be used by several threads, after a fork, and in other processes (it can be pickled). Close its
    connections with ``close``, or use it in a ``with`` statement.
    """

    models = _blocking(ServiceCalls.models)
    describe = _blocking(ServiceCalls.describe)
    encode = _blocking(ServiceCalls.encode)
    compare = _blocking(ServiceCalls.compare)
    substitutes = _blocking(ServiceCalls.substitutes)
    score = _blocking(ServiceCalls.score)
    neighbors = _blocking(ServiceCalls.neighbors)
    senses = _blocking(ServiceCalls.senses)
    concordance = _blocking(ServiceCalls.concordance)
    explain = _blocking(ServiceCalls.explain)

    @property
    def n_layers(self) -> int:
        """Number of layers of the model, including the token layer."""
        return self.describe().n_layers

    @property
    def width(self) -> int:
        """Number of values per token in one layer of the model."""
        return self.describe().width

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        http = self._connections.pop(os.getpid(), None)
        if http is not None:
            http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _new_connections(self) -> dict[int, httpx.Client]:
        return {}  # by process, because a process must not use the sockets of the process that forked it

    def _http(self) -> httpx.Client:
        http = self._connections.get(os.getpid())
        if http is None:
            http = _open_http(self._settings.headers())
            http = self._connections.setdefault(os.getpid(), http)  # another thread may have been faster
        return http

    def _run(self, plan: Plan[T]) -> T:
        replies: list[Any] | None = None
        while True:
            try:
                group = next(plan) if replies is None else plan.send(replies)
            except StopIteration as stop:
                return stop.value
            replies = self._send_all(group)

    def _send_all(self, group: RequestGroup) -> list[Any]:
        """Send requests and return their results in order; raise the error of the first request that fails."""
        stop = threading.Event()
        if len(group.requests) == 1:
            return [self._send(group.requests[0], stop)]
        pool = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="elmo-client")
        try:
            futures = [pool.submit(self._send, request, stop) for request in group.requests]
            return [future.result() for future in track_progress(futures, "Embedding", is_shown=group.is_shown)]
        finally:
            stop.set()  # after an error, do not send the requests that remain
            pool.shutdown(wait=False, cancel_futures=True)

    def _send(self, request: Request, stop: threading.Event) -> Any:
        exchange = Exchange(self._settings, request)
        while not stop.is_set():
            _attempt.deadline = exchange.deadline
            try:
                with self._http().stream(**exchange.next_attempt()) as response:
                    for chunk in response.iter_bytes():
                        exchange.receive(chunk)
                return exchange.finish(response)
            except (_import_httpx().RequestError, ServiceError) as error:
                seconds = exchange.delay(error)
            stop.wait(seconds)
        return None


class AsyncClient(ServiceUser):
    """The same as ``Client`` for asyncio: every method is a coroutine.

    >>> import asyncio, elmo
    >>> async def main():
    ...     async with elmo.AsyncClient("http://127.0.0.1:8000") as client:
    ...         return await client.encode("I sat by the bank of the river.")
    >>> encoding = asyncio.run(main())  # doctest: +SKIP

    ``n_layers`` and ``width`` are known after the first call, such as ``await client.describe()``.
    """

    models = _awaitable(ServiceCalls.models)
    describe = _awaitable(ServiceCalls.describe)
    encode = _awaitable(ServiceCalls.encode)
    compare = _awaitable(ServiceCalls.compare)
    substitutes = _awaitable(ServiceCalls.substitutes)
    score = _awaitable(ServiceCalls.score)
    neighbors = _awaitable(ServiceCalls.neighbors)
    senses = _awaitable(ServiceCalls.senses)
    concordance = _awaitable(ServiceCalls.concordance)
    explain = _awaitable(ServiceCalls.explain)

    @property
    def n_layers(self) -> int:
        """Number of layers of the model, including the token layer."""
        return self._known().n_layers

    @property
    def width(self) -> int:
        """Number of values per token in one layer of the model."""
        return self._known().width

    async def aclose(self) -> None:
        """Close the connections; a later call opens new ones."""
        http = self._connections.pop(asyncio.get_running_loop(), None)
        if http is not None:
            await http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _known(self) -> RemoteModel:
        if self._calls.description is None:
            raise StateError("the model is not known yet; call this first: await client.describe()")
        return self._calls.description

    def _new_connections(self) -> WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient]:
        return WeakKeyDictionary()  # by event loop, because a connection cannot be used in another loop

    def _http(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if loop not in self._connections:
            self._connections[loop] = _import_httpx().AsyncClient(headers=self._settings.headers())
        return self._connections[loop]

    async def _run(self, plan: Plan[T]) -> T:
        replies: list[Any] | None = None
        while True:
            try:
                group = next(plan) if replies is None else plan.send(replies)
            except StopIteration as stop:
                return stop.value
            replies = await self._send_all(group)

    async def _send_all(self, group: RequestGroup) -> list[Any]:
        """Send requests and return their results in order; raise the error of the first request that fails."""
        limit = asyncio.Semaphore(IN_FLIGHT)
        tasks = [asyncio.create_task(self._send(request, limit)) for request in group.requests]
        try:
            return [await task for task in track_progress(tasks, "Embedding", is_shown=group.is_shown)]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, request: Request, limit: asyncio.Semaphore) -> Any:
        async with limit:
            exchange = Exchange(self._settings, request)
            while True:
                try:
                    async with (
                        asyncio.timeout(exchange.remaining),
                        self._http().stream(**exchange.next_attempt()) as response,
                    ):
                        async for chunk in response.aiter_bytes():
                            exchange.receive(chunk)
                    return exchange.finish(response)
                except TimeoutError as error:
                    raise exchange.timeout_error() from error
                except (_import_httpx().RequestError, ServiceError) as error:
                    seconds = exchange.delay(error)
                await asyncio.sleep(seconds)
