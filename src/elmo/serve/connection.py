"""One HTTP connection: requests are parsed, limited and handed to the application; replies are written.

uvicorn accepts connections and shuts down; its protocol is replaced by ``Connection``, because the general interface
between servers and applications costs more per request than the rest of the service. A request that is refused gets
its reply in the call that parses it, without a task.
"""

from __future__ import annotations

import asyncio
import logging
import selectors
import urllib.parse
from collections.abc import Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import Any, Protocol, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from elmo.serve.replies import to_json

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 1 << 16  # of the request line and the headers; also of trailers
MAX_PIPELINED = 32  # requests that a client may send before the first of them is answered
MAX_READ_BYTES = 1 << 16  # read at once; asyncio allocates this before every read
MAX_UNREAD_BYTES = 1 << 14  # of replies that wait in this process; a client that has more to read is waited for
UNUSED_SECONDS = 0.5  # in which a client that has just connected can send a request while the server shuts down
SEND_SECONDS = 30.0  # in which a client must read what was sent
# Needs no file descriptor, unlike the default: there are none left if clients have opened too many connections.
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)
_STATUS_LINES = {int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\n".encode() for status in HTTPStatus}


class DisconnectedError(Exception):
    """The client has closed the connection."""


class RefusedError(Exception):
    """The head of a request is too large, or there are too many requests; ends the parser."""


class Application(Protocol):
    """Answers requests."""

    def accept(self, exchange: HttpExchange) -> Coroutine[Any, Any, None] | None:
        """Return the coroutine that answers a request; None if it was answered at once."""
        ...


class HttpExchange:
    """One request and its reply.

    Attributes:
        method: Method of the request.
        path: Path of its target, decoded.
        headers: Headers by name in lower case; of repeated headers, the first.
        on_disconnect: Function that is called if the client disconnects before the reply is complete.
    """

    def __init__(
        self, connection: Connection, method: str, path: str, headers: dict[bytes, bytes], *, keep_alive: bool
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.on_disconnect: Callable[[], None] | None = None
        self._connection = connection
        self._waits_for_100 = headers.get(b"expect", b"").lower() == b"100-continue"
        self._reading: asyncio.Future[None] | None = None
        self.keep_alive = keep_alive
        self.body = bytearray()
        self.more_body = True
        self.disconnected = False
        self.response_complete = False

    def set(self) -> None:
        """Continue ``read``: a part of the body has been received, or the client has disconnected."""
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)

    async def read(self) -> bytearray:
        """Return the next part of the body; it is the last one if ``more_body`` is false afterwards."""
        connection = self._connection
        if self._waits_for_100 and not connection.transport.is_closing():
            connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._waits_for_100 = False
        if self.more_body and not self.body and not self.disconnected:
            connection.flow.resume_reading()
            self._reading = waiting = connection.loop.create_future()
            try:
                await waiting
            finally:
                self._reading = None
        if self.disconnected:
            raise DisconnectedError
        if not self.more_body:
            connection.watch()
        part, self.body = self.body, bytearray()
        return part

    @property
    def is_writable(self) -> bool:
        """Whether the client has read most of what was written before."""
        return not self._connection.flow.write_paused

    async def drain(self) -> None:
        """Wait until ``is_writable``; raise ``DisconnectedError`` if the client disconnects."""
        await self._connection.flow.drain()
        if self.disconnected:
            raise DisconnectedError

    def start_reply(self, status: int, headers: Iterable[tuple[bytes, bytes]], *, body: bytes = b"") -> None:
        """Write the head of a reply, and the first part of its body with it. Values of headers must be trusted."""
        if self._waits_for_100 and self.more_body:
            self.keep_alive = False  # the client may or may not send the body now
        head = [_STATUS_LINES[status], *(b"%b: %b\r\n" % item for item in headers)]
        if not self.keep_alive:
            head.append(b"connection: close\r\n")
        self.write(b"".join((*head, b"\r\n", body)))

    def write(self, data: bytes | memoryview) -> None:
        """Write a part of a reply."""
        if not self.disconnected:
            self._connection.transport.write(data)

    def end_reply(self) -> None:
        """End the reply."""
        self.response_complete = True
        if not self.keep_alive:
            self._connection.transport.close()
        self._connection.on_response_complete()

    def abort(self) -> None:
        """Close the connection without waiting for the client."""
        self._connection.transport.abort()


class Connection(HttpToolsProtocol):
    """HTTP with limits for what a client may send before its request is read: the head, trailers and pipelining.

    Without them, the memory of one connection is not bounded.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._n_head = 0  # bytes of the head so far
        self._n_quiet = 0  # bytes since the last complete head or part of a body
        self._has_progress = False
        self._is_large = False
        self._current: HttpExchange | None = None  # the request that is being answered
        self._waiting: list[HttpExchange] = []  # requests that were sent before the reply to an earlier one
        self._head: dict[bytes, bytes] = {}
        self._refusal: bytes | None = None  # the reply to invalid HTTP, which waits for those to earlier requests
        self.is_in_head = False  # whether a part of the head of a request has been received

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start a connection."""
        super().connection_made(cast("asyncio.Transport", transport))
        transport.max_size = MAX_READ_BYTES  # type: ignore[attr-defined]
        self.transport.set_write_buffer_limits(high=MAX_UNREAD_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        del exc
        self.connections.discard(self)
        self._waiting.clear()
        self.flow.resume_writing()
        self.parser = cast("Any", None)  # it refers to this object
        exchange = self._current
        if exchange is not None and not exchange.response_complete:
            exchange.disconnected = True
            exchange.set()
            if exchange.on_disconnect is not None:
                exchange.on_disconnect()

    def watch(self) -> None:
        """Read on, to detect that the client disconnects, unless it has sent further requests already."""
        if not self._waiting:
            self.flow.resume_reading()

    def has_unread_data(self) -> bool:
        """Whether the client has sent something that the event loop has not read yet."""
        client = self.transport.get_extra_info("socket")
        if client is None or client.fileno() < 0:
            return False
        with _Selector() as selector:
            selector.register(client.fileno(), selectors.EVENT_READ)
            return bool(selector.select(0))

    def data_received(self, data: bytes) -> None:
        """Parse data."""
        if self.transport.is_closing() or self._refusal is not None:
            return
        self._has_progress = False
        super().data_received(data)
        self._n_quiet = 0 if self._has_progress else self._n_quiet + len(data)
        if self._n_quiet > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._is_large = True
            self.send_400_response("")

    def on_message_begin(self) -> None:
        """Start a request."""
        self.is_in_head = True
        self._n_head = 0
        self.url = b""
        self._head = {}

    def on_url(self, url: bytes) -> None:
        """Add a part of the target of a request."""
        self._count(len(url))
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header or a trailer."""
        self._count(len(name) + len(value) + 4)
        self._head.setdefault(name.lower(), value)

    def _count(self, n_bytes: int) -> None:
        self._n_head += n_bytes
        if self._n_head > MAX_HEAD_BYTES:
            self._is_large = True
            raise RefusedError

    def on_headers_complete(self) -> None:
        """Start to answer a request."""
        self._has_progress = True
        self.is_in_head = False
        if len(self._waiting) >= MAX_PIPELINED:
            raise RefusedError
        path = httptools.parse_url(self.url).path.decode("ascii")
        if "%" in path:
            path = urllib.parse.unquote(path)
        is_kept = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        exchange = HttpExchange(self, self.parser.get_method().decode("ascii"), path, self._head, keep_alive=is_kept)
        self._head = {}  # for trailers, which are ignored
        last, self.cycle = cast("HttpExchange | None", self.cycle), cast("Any", exchange)
        if last is None or last.response_complete:
            self._begin(exchange)
        else:
            self.flow.pause_reading()
            self._waiting.append(exchange)

    def _begin(self, exchange: HttpExchange) -> None:
        self._current = exchange
        coroutine = self._begin_later(exchange) if self.flow.write_paused else self._accept(exchange)
        if coroutine is not None:
            task = self.loop.create_task(coroutine)
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)

    def _accept(self, exchange: HttpExchange) -> Coroutine[Any, Any, None] | None:
        try:
            return cast("Application", self.app).accept(exchange)
        except Exception:  # would be reported as invalid HTTP by the parser
            logger.exception("cannot answer a request")
            self.transport.abort()
            return None

    async def _begin_later(self, exchange: HttpExchange) -> None:
        """Answer a request when the client has read the replies to the earlier ones."""
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await exchange.drain()
        except (TimeoutError, DisconnectedError):
            self.transport.abort()
            return
        coroutine = self._accept(exchange)
        if coroutine is not None:
            await coroutine

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        self._has_progress = True
        exchange = cast("HttpExchange", self.cycle)
        if not exchange.response_complete:
            exchange.body += body
            if len(exchange.body) > MAX_READ_BYTES:
                self.flow.pause_reading()
            exchange.set()

    def on_message_complete(self) -> None:
        """End a request."""
        self._has_progress = True
        exchange = cast("HttpExchange", self.cycle)
        exchange.more_body = False
        exchange.set()

    def on_response_complete(self) -> None:
        """Continue with the next request, which may have been sent already."""
        if self.transport.is_closing():
            return
        if self._waiting:
            self._begin(self._waiting.pop(0))
        elif self._refusal is not None:
            self._refuse()
        else:
            self.flow.resume_reading()

    def shutdown(self) -> None:
        """Close the connection when its request is answered; a new one gets a moment to send its first request."""
        if self._current is None:
            self.loop.call_later(UNUSED_SECONDS, self.transport.close)
        elif self._current.response_complete:
            self.transport.close()
        else:
            self._current.keep_alive = False

    def _should_upgrade(self) -> bool:
        """Return no: a request to change the protocol is answered as if it did not ask for that."""
        return False

    def _unsupported_upgrade_warning(self) -> None:
        """Do nothing."""

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not a valid request, after the replies to the requests before it, and close the connection."""
        del msg
        status, code, message = 400, "invalid_http", "invalid HTTP request"
        if self._is_large:
            status, code, message = 431, "too_large", f"the headers must have at most {MAX_HEAD_BYTES:,} bytes"
        error = {"message": message, "type": "invalid_request_error", "code": code, "param": None}
        body = to_json({"error": error})
        self._refusal = b"%bContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (
            _STATUS_LINES[status],
            len(body),
            body,
        )
        if self._waiting and self._waiting[-1].more_body:  # its body is what is invalid
            self._waiting.pop()
        current = self._current
        if current is None or current.response_complete or current.more_body:
            self._refuse()

    def _refuse(self) -> None:
        self.transport.write(self._refusal or b"")
        self.transport.close()
