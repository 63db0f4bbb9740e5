"""Generate HTTP load for ``serve.py``, in a separate process: one selector, raw sockets and prebuilt requests.

``run_load`` sends requests over keep-alive connections, either in a closed loop (each client sends its next request
when it has the reply) or in an open loop (requests arrive at a rate, whether replies come or not). The time of a
reply is the monotonic clock of the machine, so that times of several processes are comparable. ``drop_clients`` and
``hold_slow_clients`` are clients that misbehave.

A request costs 10 to 30 µs, because the server often shares the machine with its load.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import selectors
import socket
import time
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LOST, REFUSED, TIMED_OUT = 0, -1, -2  # in place of a status: connection lost, not connected, no reply in time
_CHUNK = 1 << 18


def build_request(
    path: str,
    body: Any = None,
    *,
    headers: Mapping[str, str] | None = None,
    port: int = 8000,
    method: str | None = None,
) -> bytes:
    """Build the bytes of an HTTP request; ``body`` is JSON, or bytes that are sent as they are."""
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    method = method or ("GET" if body is None else "POST")
    lines = {"Host": f"127.0.0.1:{port}", "Content-Type": "application/json", "Content-Length": str(len(content))}
    head = "".join(f"{name}: {value}\r\n" for name, value in {**lines, **(headers or {})}.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + content


@dataclass(frozen=True)
class LoadPlan:
    """A load: what to send, how fast and for how long.

    Attributes:
        port: Port of the server on 127.0.0.1.
        requests: Complete requests, which are sent in turn.
        seconds: Time during which new requests are sent.
        clients: Number of connections of a closed loop; the most connections of an open loop.
        rate: Arrivals per second of an open loop, at random times; None for a closed loop.
        n_requests: Number of requests after which the load ends; None for no limit.
        grace: Seconds to wait for the outstanding replies at the end.
        signal: Process id, signal number and the second at which it is sent; None for no signal.
        has_bodies: Keep the bodies of the replies.
        has_checksums: Compute the checksums of the bodies.
    """

    port: int
    requests: tuple[bytes, ...]
    seconds: float
    clients: int = 64
    rate: float | None = None
    n_requests: int | None = None
    grace: float = 60.0
    signal: tuple[int, int, float] | None = None
    has_bodies: bool = False
    has_checksums: bool = False


@dataclass
class LoadResult:
    """What became of each request, in the order of the replies.

    Attributes:
        begin: When the request was due: its arrival in an open loop, the time of sending in a closed loop.
        sent: When its last byte was sent.
        end: When its reply was complete.
        status: Status of the reply, or ``LOST``, ``REFUSED`` or ``TIMED_OUT``.
        which: Index of the request in the plan.
        size: Bytes of the body of the reply.
        checksum: CRC-32 of the body, if it was asked for.
        retry_after: The Retry-After header in seconds; -1 without one.
        is_reused: Whether the connection had a reply before, so that the server certainly had accepted it.
        bodies: Bodies, if they were asked for.
        signaled_at: When the signal was sent.
    """

    begin: array[float] = field(default_factory=lambda: array("d"))
    sent: array[float] = field(default_factory=lambda: array("d"))
    end: array[float] = field(default_factory=lambda: array("d"))
    status: array[int] = field(default_factory=lambda: array("h"))
    which: array[int] = field(default_factory=lambda: array("l"))
    size: array[int] = field(default_factory=lambda: array("l"))
    checksum: array[int] = field(default_factory=lambda: array("L"))
    retry_after: array[float] = field(default_factory=lambda: array("d"))
    is_reused: array[int] = field(default_factory=lambda: array("b"))
    bodies: list[bytes] = field(default_factory=list)
    signaled_at: float | None = None


class _Connection:
    """One keep-alive connection: a request that is sent, and the reply as far as it has been received."""

    __slots__ = (
        "begin", "body", "checksum", "head", "is_chunked", "is_connected", "is_reused", "left", "outgoing",
        "retry_after", "sent", "size", "socket", "status", "which",
    )  # fmt: skip

    def __init__(self) -> None:
        self.socket: socket.socket | None = None
        self.is_connected = self.is_reused = False
        self.which = -1  # no request is under way

    def prepare(self, which: int, request: bytes, begin: float) -> None:
        self.which, self.outgoing, self.begin = which, memoryview(request), begin
        self.sent = self.retry_after = -1.0
        self.head, self.left, self.status, self.size, self.checksum = b"", -1, LOST, 0, 0
        self.is_chunked, self.body = False, bytearray()

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
        self.socket, self.is_connected, self.is_reused = None, False, False


def run_load(plan: LoadPlan) -> LoadResult:
    """Send the load of a plan and return what became of each request."""
    return _Load(plan).run()


class _Load:
    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        self.result = LoadResult()
        self.selector = selectors.DefaultSelector()
        self.free: list[_Connection] = []
        self.busy: set[_Connection] = set()
        self.n_started = 0
        self.chance = random.Random(0)

    def run(self) -> LoadResult:
        plan = self.plan
        start = time.monotonic()
        self.stop = start + plan.seconds
        due = start
        if plan.rate is None:
            for _ in range(plan.clients):
                self.start(_Connection(), time.monotonic())
        while True:
            now = time.monotonic()
            if plan.signal is not None and self.result.signaled_at is None and now >= start + plan.signal[2]:
                self.result.signaled_at = time.monotonic()
                os.kill(*plan.signal[:2])
            if plan.rate is not None:
                while due <= now and due < self.stop and self.has_more():
                    if self.free or len(self.busy) < plan.clients:
                        self.start(self.free.pop() if self.free else _Connection(), due)
                    else:
                        self.record_missing(due, now)
                    due += self.chance.expovariate(plan.rate)
            is_over = now >= self.stop or not self.has_more()
            if (is_over and not self.busy) or now >= self.stop + plan.grace:
                break
            if plan.rate is None and not self.busy and not is_over:
                time.sleep(0.005)  # every client was refused: try again
                for connection in self.take_free():
                    self.start(connection, time.monotonic())
            wait = min(0.05, max(0.0, due - now)) if plan.rate is not None and not is_over else 0.05
            for key, events in self.selector.select(wait):
                self.advance(key.data, events)
        for connection in list(self.busy):
            connection.status = TIMED_OUT
            self.finish(connection, is_kept=False)
        for connection in self.free:
            connection.close()
        self.selector.close()
        return self.result

    def take_free(self) -> list[_Connection]:
        taken, self.free = self.free, []
        return taken

    def has_more(self) -> bool:
        return self.plan.n_requests is None or self.n_started < self.plan.n_requests

    def record_missing(self, due: float, now: float) -> None:
        connection = _Connection()
        self.begin_request(connection, due)
        connection.status = REFUSED
        self.record(connection, now)

    def begin_request(self, connection: _Connection, begin: float) -> None:
        which = self.n_started % len(self.plan.requests)
        self.n_started += 1
        connection.prepare(which, self.plan.requests[which], begin)

    def start(self, connection: _Connection, begin: float) -> None:
        self.begin_request(connection, begin)
        self.busy.add(connection)
        if connection.socket is None:
            connection.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            connection.socket.setblocking(False)
            connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            failure = connection.socket.connect_ex(("127.0.0.1", self.plan.port))
            connection.is_connected = failure == 0
            if failure not in (0, errno.EINPROGRESS):
                connection.status = REFUSED
                self.finish(connection, is_kept=False)
                return
            self.selector.register(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)
        if connection.is_connected:
            self.send(connection)

    def send(self, connection: _Connection) -> None:
        assert connection.socket is not None
        try:
            n = connection.socket.send(connection.outgoing)
        except BlockingIOError:
            n = 0
        except OSError:
            self.finish(connection, is_kept=False)
            return
        connection.outgoing = connection.outgoing[n:]
        is_done = not connection.outgoing
        if is_done:
            connection.sent = time.monotonic()
        events = selectors.EVENT_READ if is_done else selectors.EVENT_READ | selectors.EVENT_WRITE
        if self.selector.get_key(connection.socket).events != events:
            self.selector.modify(connection.socket, events, connection)

    def advance(self, connection: _Connection, events: int) -> None:
        if connection.socket is None:
            return  # closed by an earlier event of the same round
        if events & selectors.EVENT_WRITE and connection.which >= 0:
            if not connection.is_connected:
                if connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    connection.status = REFUSED
                    self.finish(connection, is_kept=False)
                    return
                connection.is_connected = True
            self.send(connection)
        if events & selectors.EVENT_READ and connection.socket is not None:
            self.receive(connection)

    def receive(self, connection: _Connection) -> None:
        assert connection.socket is not None
        try:
            data = connection.socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            if connection.which < 0:  # the server closes an idle connection
                self.selector.unregister(connection.socket)
                connection.close()
                return
            connection.status = LOST
            self.finish(connection, is_kept=False)
            return
        if connection.left < 0 and not connection.is_chunked:
            data = self.read_head(connection, data)
            if data is None:
                return
        if connection.is_chunked:
            connection.body += data
            if _ends_chunks(connection.body):
                connection.body = bytearray(_join_chunks(connection.body))
                connection.checksum, connection.size = zlib.crc32(connection.body), len(connection.body)
                self.finish(connection, is_kept=b"connection: close" not in connection.head)
            return
        connection.size += len(data)
        if self.plan.has_checksums:
            connection.checksum = zlib.crc32(data, connection.checksum)
        if self.plan.has_bodies:
            connection.body += data
        connection.left -= len(data)
        if connection.left <= 0:
            self.finish(connection, is_kept=b"connection: close" not in connection.head)

    def read_head(self, connection: _Connection, data: bytes) -> bytes | None:
        """Read the head of a reply; return the part of the body that came with it, or None if more is needed."""
        data = connection.head + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            connection.head = data
            return None
        head = connection.head = data[: end + 2].lower()
        connection.status = int(head[9:12])
        connection.is_chunked = b"\r\ntransfer-encoding: chunked" in head
        length = _header(head, b"content-length")
        connection.left = int(length) if length else 0
        seconds = _header(head, b"retry-after")
        connection.retry_after = float(seconds) if seconds else -1.0
        return data[end + 4 :]

    def finish(self, connection: _Connection, *, is_kept: bool) -> None:
        now = time.monotonic()
        self.record(connection, now)
        connection.which = -1
        self.busy.discard(connection)
        was_refused = connection.status == REFUSED
        if is_kept:
            connection.is_reused = True
        elif connection.socket is not None:
            with contextlib.suppress(KeyError, ValueError):
                self.selector.unregister(connection.socket)
            connection.close()
        if self.plan.rate is None and not was_refused and now < self.stop and self.has_more():
            self.start(connection, now)
        else:
            self.free.append(connection)

    def record(self, connection: _Connection, now: float) -> None:
        result = self.result
        result.begin.append(connection.begin)
        result.sent.append(connection.sent)
        result.end.append(now)
        result.status.append(connection.status)
        result.which.append(connection.which)
        result.size.append(connection.size)
        result.checksum.append(connection.checksum)
        result.retry_after.append(connection.retry_after)
        result.is_reused.append(connection.is_reused)
        if self.plan.has_bodies:
            result.bodies.append(bytes(connection.body))


def _header(head: bytes, name: bytes) -> bytes | None:
    at = head.find(b"\r\n" + name + b":")
    if at < 0:
        return None
    return head[at + len(name) + 3 : head.find(b"\r\n", at + 2)].strip()


def _ends_chunks(body: bytearray) -> bool:
    at = 0
    while (end := body.find(b"\r\n", at)) >= 0:
        size = int(bytes(body[at:end]).partition(b";")[0], 16)
        at = end + 2 + size + 2
        if size == 0:
            return len(body) >= at
    return False


def _join_chunks(body: bytearray) -> bytes:
    at, parts = 0, []
    while True:
        end = body.find(b"\r\n", at)
        size = int(bytes(body[at:end]).partition(b";")[0], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(bytes(body[end + 2 : end + 2 + size]))
        at = end + 2 + size + 2


def drop_clients(port: int, requests: Sequence[bytes], n_clients: int, *, at_once: int = 50) -> int:
    """Connect clients that disconnect half-way; return how many could connect.

    Half of them disconnect in the middle of their request, the others after 0 to 50 ms of waiting for the reply. Every
    second one resets the connection instead of closing it.
    """
    chance = random.Random(0)
    n_connected = 0
    for first in range(0, n_clients, at_once):
        clients = []
        for k in range(first, min(first + at_once, n_clients)):
            with contextlib.suppress(OSError):
                client = socket.create_connection(("127.0.0.1", port), timeout=10)
                request = requests[k % len(requests)]
                client.sendall(request if k % 2 else request[: len(request) // 2])
                clients.append(client)
        n_connected += len(clients)
        chance.shuffle(clients)
        for k, client in enumerate(clients):
            time.sleep(chance.random() * 0.1 / at_once)
            if k % 2:
                linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            client.close()
    return n_connected


def hold_slow_clients(port: int, request: bytes, n_clients: int, *, seconds: float) -> tuple[int, int]:
    """Send one byte per second over each of ``n_clients`` connections; return how many connected and how many last."""
    clients = []
    for _ in range(n_clients):
        with contextlib.suppress(OSError):
            clients.append(socket.create_connection(("127.0.0.1", port), timeout=10))
    lasting = list(clients)
    stop = time.monotonic() + seconds
    for k in range(len(request) - 1):
        if time.monotonic() >= stop:
            break
        for client in list(lasting):
            try:
                client.sendall(request[k : k + 1])
                client.setblocking(False)
                try:
                    if not client.recv(1, socket.MSG_PEEK):
                        lasting.remove(client)
                except BlockingIOError:
                    pass
                finally:
                    client.setblocking(True)
            except OSError:
                lasting.remove(client)
        time.sleep(max(0.0, min(1.0, stop - time.monotonic())))
    for client in clients:
        client.close()
    return len(clients), len(lasting)
