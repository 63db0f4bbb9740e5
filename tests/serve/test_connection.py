"""One HTTP connection, without a model behind it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn", reason="needs the extra serve")

from uvicorn.server import ServerState  # noqa: E402

from elmo.serve.connection import MAX_READ_BYTES, Connection, HttpExchange  # noqa: E402


class SlowApplication:
    """Answers GET at once; POST when ``gate`` is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.exchanges: list[HttpExchange] = []

    def accept(self, exchange: HttpExchange) -> Coroutine[Any, Any, None]:
        self.exchanges.append(exchange)
        return self._answer(exchange)

    async def _answer(self, exchange: HttpExchange) -> None:
        if exchange.method == "POST":
            await self.gate.wait()
        n_bytes = 0
        while exchange.more_body or exchange.body:
            n_bytes += len(await exchange.read())
        body = b"%d" % n_bytes
        exchange.start_reply(200, [(b"content-length", b"%d" % len(body))], body=body)
        exchange.end_reply()


@asynccontextmanager
async def connect() -> AsyncIterator[tuple[SlowApplication, Connection, socket.socket]]:
    """Connect a client to an application; yield both, and the server's end of the connection."""
    app, connections, loop = SlowApplication(), list[Connection](), asyncio.get_running_loop()
    config = uvicorn.Config(app, http=Connection, interface="asgi3", log_config=None, proxy_headers=False)  # type: ignore[arg-type]

    def build() -> Connection:
        connections.append(Connection(config=config, server_state=ServerState(), app_state={}))
        return connections[-1]

    server = await loop.create_server(build, "127.0.0.1", 0)
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, server.sockets[0].getsockname())
        while not connections or connections[0].transport is None:
            await asyncio.sleep(0.01)
        try:
            yield app, connections[0], client
        finally:
            connections[0].transport.abort()
            server.close()
            await server.wait_closed()


@pytest.mark.skipif(sys.platform == "win32", reason="lowers the limit of open files")
def test_unread_data_is_found_without_a_free_file_descriptor() -> None:
    import resource

    async def scenario() -> None:
        async with connect() as (_, connection, client):
            assert not connection.has_unread_data()
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            client.send(b"GET / HTTP/1.1\r\n")
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            try:
                with pytest.raises(OSError, match="Too many open files"):
                    os.dup(0)
                assert connection.has_unread_data()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_the_bodies_of_requests_that_wait_for_an_earlier_reply_stay_unread() -> None:
    post = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n" + b"x" * 60_000

    async def scenario() -> None:
        async with connect() as (app, connection, client):
            loop = asyncio.get_running_loop()
            requests = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 30 + post * 30
            sending = loop.create_task(loop.sock_sendall(client, requests))
            while len(app.exchanges) < 31:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            held = [connection.cycle, *connection._waiting, app.exchanges[-1]]
            assert sum(len(exchange.body) for exchange in set(held)) <= 3 * MAX_READ_BYTES
            app.gate.set()
            replies = b""
            while replies.count(b"HTTP/1.1 200") < 60 or not replies.endswith(b"\r\n\r\n60000"):
                replies += await loop.sock_recv(client, 1 << 16)
            await sending
            assert replies.count(b"\r\n\r\n60000") == 30

    asyncio.run(asyncio.wait_for(scenario(), 30))
