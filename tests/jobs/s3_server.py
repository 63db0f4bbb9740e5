"""An S3-compatible server on 127.0.0.1 that fails at random: ``python s3_server.py PORT FAILURES SEED``.

It is the server of moto. A share FAILURES of all requests fails: with status 500 or 503, or, if it reads, by a
connection that is closed in the middle of the reply. The path ``/failures`` returns how many have failed. The
bucket ``forbidden`` refuses all requests.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app  # pyright: ignore[reportMissingImports]
from werkzeug.serving import run_simple  # pyright: ignore[reportMissingImports]

ERROR = b'<?xml version="1.0"?><Error><Code>%b</Code><Message>Please try again.</Message></Error>'


class FailingApp:
    """Passes requests on, except some."""

    def __init__(self, rate: float, seed: int) -> None:
        self.app = DomainDispatcherApplication(create_backend_app)
        self.chance, self.rate = random.Random(seed), rate
        self.lock = threading.Lock()
        self.n_requests = self.n_failed = 0

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/failures":
            start("200 OK", [("Content-Type", "text/plain")])
            return [f"{self.n_failed} {self.n_requests}".encode()]
        if environ["PATH_INFO"].startswith("/moto-api"):
            return self.app(environ, start)
        if environ["PATH_INFO"].startswith("/forbidden"):
            start("403 Forbidden", [("Content-Type", "application/xml")])
            return [ERROR % b"AccessDenied"]
        with self.lock:
            self.n_requests += 1
            kinds = ("500", "503", "cut") if environ["REQUEST_METHOD"] == "GET" else ("500", "503")
            kind = self.chance.choice(kinds) if self.chance.random() < self.rate else None
            self.n_failed += kind is not None
        if kind is None:
            return self.app(environ, start)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if kind == "cut":
            start("200 OK", [("Content-Type", "application/octet-stream"), ("Content-Length", "1000000")])
            return [b"cut"]
        code, text = {"500": (b"InternalError", "500 Error"), "503": (b"SlowDown", "503 Slow Down")}[kind]
        start(text, [("Content-Type", "application/xml")])
        return [ERROR % code]


if __name__ == "__main__":
    run_simple("127.0.0.1", int(sys.argv[1]), FailingApp(float(sys.argv[2]), int(sys.argv[3])), threaded=True)
