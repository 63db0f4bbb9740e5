"""A real ``elmo serve`` in its own process, for tests."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SENTENCE = "I sat by the bank of the river and watched the old boats go by until the sun went down ."


@dataclass(frozen=True)
class Reply:
    """Status, headers (names in lower case) and body of a reply."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RunningServer:
    """``elmo serve`` on a free port of 127.0.0.1; its log is in a file."""

    module = "elmo"
    command = "serve"

    def __init__(self, log: Path, *options: str, environment: dict[str, str] | None = None) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.log = log
        variables = {name: value for name, value in os.environ.items() if name != "ELMO_API_KEY"}
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, self.command, "--port", str(self.port), *options],
                stdout=file, stderr=file,
                env={**variables, "PYTHONPATH": str(ROOT / "src"), **(environment or {})},
            )  # fmt: skip

    def wait_until_ready(self, seconds: float = 60.0) -> None:
        stop = time.monotonic() + seconds
        while True:
            try:
                if self.get("/readyz").status == 200:
                    return
            except OSError:
                pass
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < stop, self.log.read_text()
            time.sleep(0.02)

    def get(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        return self.send("GET", path, headers=headers)

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Reply:
        """Send a body as JSON; bytes are sent as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send("POST", path, content, {"Content-Type": "application/json", **(headers or {})})

    def send(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return Reply(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def words(self, *sentences: Any, **fields: Any) -> Reply:
        """Ask for the vectors of sentences."""
        return self.post("/v1/words", {"inputs": list(sentences) or [SENTENCE], "encoding": "base64", **fields})

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        pattern = rf"^{name}(?:\{{[^}}]*\}})? ([0-9.eE+-]+)$"
        return sum(map(float, re.findall(pattern, self.get("/metrics").body.decode(), re.MULTILINE)))

    def read_log(self) -> str:
        """Return the log with the lines of all requests until now; the server writes them with a delay."""
        name = f"log-{time.monotonic_ns()}"
        self.get("/no-such-route", {"X-Request-Id": name})
        stop = time.monotonic() + 10
        while name not in (text := self.log.read_text(encoding="utf-8")):
            assert time.monotonic() < stop, text[-2000:]
            time.sleep(0.02)
        return text

    def children(self) -> list[int]:
        """Return the process ids of the workers that have loaded a model; Linux only."""
        pid = self.process.pid
        found = []
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            try:
                match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{child}/status").read_text())
            except OSError:  # it has just ended
                continue
            if match and int(match[1]) > 100_000:
                found.append(int(child))
        return found

    def stop(self) -> int:
        """Stop the server with SIGTERM; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(20)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()


StartServer = Callable[..., RunningServer]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Start servers with options; they are stopped after the test."""
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    servers: list[RunningServer] = []

    def start(*options: str, environment: dict[str, str] | None = None) -> RunningServer:
        server = RunningServer(tmp_path / f"server-{len(servers)}.log", *options, environment=environment)
        servers.append(server)
        server.wait_until_ready()
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server with the bundled English model and default options, for all tests of a module."""
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    server = RunningServer(tmp_path_factory.mktemp("serve") / "server.log")
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()
