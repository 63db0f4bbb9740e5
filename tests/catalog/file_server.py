"""Serve files on 127.0.0.1 over HTTP, with ranges and versions as real servers have them, and with faults."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

Reply = Callable[["Request"], None]


@dataclass
class Request:
    """A request and what answers it.

    Attributes:
        start: First byte that is requested; None without a valid range.
    """

    handler: BaseHTTPRequestHandler
    content: bytes
    start: int | None

    def send(
        self,
        body: bytes,
        *,
        status: int = 200,
        length: int | None = None,
        headers: dict[str, str] | None = None,
        without: tuple[str, ...] = (),
    ) -> None:
        """Send headers, and a body that may not fit them; close the connection."""
        values = {"ETag": etag(self.content), "Content-Length": str(len(body) if length is None else length)}
        values |= {"Content-Type": "application/octet-stream", "Connection": "close", **(headers or {})}
        self.handler.send_response(status)
        for name, value in values.items():
            if name not in without:
                self.handler.send_header(name, value)
        self.handler.end_headers()
        self.handler.wfile.write(body)

    def send_file(self, *, n_bytes: int | None = None, headers: dict[str, str] | None = None) -> None:
        """Send the file, or the part that is requested; at most ``n_bytes``, although more are announced."""
        if self.start is None:
            self.send(self.content[:n_bytes], length=len(self.content), headers=headers)
            return
        size = len(self.content)
        if self.start >= size:
            self.send(b"", status=416, headers={"Content-Range": f"bytes */{size}"})
            return
        part = self.content[self.start :]
        where = {"Content-Range": f"bytes {self.start}-{size - 1}/{size}", **(headers or {})}
        self.send(part[:n_bytes], status=206, length=len(part), headers=where)


@dataclass
class FileServer:
    """A running server.

    Attributes:
        files: Content by path.
        faults: Replies by path, in place of the file; the last one is repeated.
        requests: The paths that were requested, with the range.
    """

    address: str
    files: dict[str, bytes]
    faults: dict[str, list[Reply]] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)

    def url(self, path: str) -> str:
        """Return the address of a file."""
        return f"{self.address}/{path}"


def etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that close the connection."""


def start_server(files: dict[str, bytes]) -> FileServer:
    """Serve files in threads of this process until it ends."""
    return _start(files)[0]


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[FileServer]:
    """Serve files until the block ends."""
    server, http, thread = _start(files)
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def _start(files: dict[str, bytes]) -> tuple[FileServer, _Http, threading.Thread]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path).lstrip("/")
            server.requests.append((path, self.headers.get("Range")))
            self.close_connection = True
            if path not in server.files and path not in server.faults:
                Request(self, b"", None).send(b"gone", status=404)
                return
            content = server.files.get(path, b"")
            match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            is_same = self.headers.get("If-Range") in (None, etag(content))
            request = Request(self, content, int(match[1]) if match and is_same else None)
            faults = server.faults.get(path)
            reply = Request.send_file if not faults else faults.pop(0) if len(faults) > 1 else faults[0]
            reply(request)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            pass

    http = _Http(("127.0.0.1", 0), Handler)
    server = FileServer(f"http://127.0.0.1:{http.server_port}", files)
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    return server, http, thread


# --- faults ---------------------------------------------------------------------------------------------


def cut(n_bytes: int) -> Reply:
    """Close the connection after a few bytes."""
    return lambda request: request.send_file(n_bytes=n_bytes)


def status(code: int, **headers: str) -> Reply:
    return lambda request: request.send(b"no", status=code, headers=headers)


def redirect(target: str, code: int = 302) -> Reply:
    return lambda request: request.send(b"", status=code, headers={"Location": target})


def without_ranges(request: Request) -> None:
    """Send the whole file, whatever is requested."""
    request.start = None
    request.send_file()


def web_page(request: Request) -> None:
    request.send(b"<html>sign in</html>", headers={"Content-Type": "text/html; charset=utf-8"})


def without_length(request: Request) -> None:
    request.send(request.content, without=("Content-Length",))


def chunked(request: Request) -> None:
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (request.content[:7], request.content[7:]))
    request.send(body + b"0\r\n\r\n", without=("Content-Length",), headers={"Transfer-Encoding": "chunked"})


def cut_chunk(request: Request) -> None:
    body = b"%x\r\n%b" % (len(request.content), request.content[:5])
    request.send(body, without=("Content-Length",), headers={"Transfer-Encoding": "chunked"})


def announces(length: int) -> Reply:
    """State another size than the file has."""
    return lambda request: request.send(request.content, length=length)


def other_range(request: Request) -> None:
    """Send another part than was requested, with headers that say so."""
    if request.start is None:
        request.send_file(n_bytes=10)
    else:
        size = len(request.content)
        request.send(request.content[3:], status=206, headers={"Content-Range": f"bytes 3-{size - 1}/{size}"})


def other_total(request: Request) -> None:
    """State another total size when the transfer continues."""
    if request.start is None:
        request.send_file(n_bytes=10)
    else:
        part = request.content[request.start :]
        where = f"bytes {request.start}-{request.start + len(part) - 1}/{len(request.content) + 5}"
        request.send(part, status=206, headers={"Content-Range": where})


def silent(seconds: float) -> Reply:
    """Send the first bytes, and then nothing for a while."""

    def reply(request: Request) -> None:
        request.send(request.content[:4], length=len(request.content))
        request.handler.wfile.flush()
        time.sleep(seconds)

    return reply


def trickle(pause: float, *, n_bytes: int = 1) -> Reply:
    """Send a few bytes at a time."""

    def reply(request: Request) -> None:
        start, size = request.start or 0, len(request.content)
        where = {"Content-Range": f"bytes {start}-{size - 1}/{size}"}
        request.send(b"", length=size - start, status=206 if start else 200, headers=where if start else None)
        for k in range(start, size, n_bytes):
            request.handler.wfile.write(request.content[k : k + n_bytes])
            request.handler.wfile.flush()
            time.sleep(pause)

    return reply


def encoded(request: Request) -> None:
    request.send(request.content, headers={"Content-Encoding": "gzip"})
