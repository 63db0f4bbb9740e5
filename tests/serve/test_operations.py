"""The service as an operator sees it: shutdown, reload, restart, overload, limits and bad clients, on a real server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.serve.conftest import SENTENCE, Reply, RunningServer, StartServer

pytestmark = pytest.mark.slow

LARGE = [SENTENCE] * 400  # more than a batch


class Clients:
    """Clients that send one request after the other until they are stopped, over new connections."""

    def __init__(self, server: RunningServer, n: int = 4, *sentences: str) -> None:
        self.server = server
        self.sentences = sentences or (SENTENCE,)
        self.statuses: Counter[int] = Counter()
        self.failures: list[tuple[float, Exception]] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run) for _ in range(n)]

    def _run(self) -> None:
        while not self._stop.is_set():
            begin = time.monotonic()
            try:
                status = self.server.words(*self.sentences).status
            except ConnectionRefusedError:
                return  # the server has stopped listening
            except OSError as error:
                with self._lock:
                    self.failures.append((begin, error))
            else:
                with self._lock:
                    self.statuses[status] += 1

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    stop = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < stop, "the condition did not become true"
        time.sleep(0.02)


def code(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.json["error"]["code"]


# --- Stop, reload, restart --------------------------------------------------------------------------


def test_sigterm_completes_the_requests_in_progress_and_exits(start_server: StartServer) -> None:
    server = start_server("--max-wait", "30")  # on a slow machine, the default refuses some of the requests
    with ThreadPoolExecutor(4) as pool:
        replies = [pool.submit(server.words, *LARGE[:200], dtype="float16") for _ in range(4)]
        wait_for(lambda: server.metric("elmo_requests_in_progress") > 4)  # the request for metrics is one, too
        time.sleep(0.2)  # until their bodies are read
        begin = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert [reply.result().status for reply in replies] == [200] * 4
    assert server.process.wait(10) == 0
    assert time.monotonic() - begin < 10
    assert "Traceback" not in server.log.read_text()


def test_a_server_that_stops_refuses_new_connections_or_answers_503(start_server: StartServer) -> None:
    server = start_server()
    with Clients(server, 4, *LARGE[:50]) as clients:
        wait_for(lambda: clients.statuses[200] > 4)
        server.process.send_signal(signal.SIGTERM)
        signaled = time.monotonic()
        assert server.process.wait(10) == 0
    assert set(clients.statuses) <= {200, 503}
    assert [failure for begin, failure in clients.failures if begin < signaled - 0.1] == []


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no SIGHUP on this system")
def test_sighup_loads_the_models_again_without_losing_a_request(start_server: StartServer) -> None:
    server = start_server()
    before = server.words().json["results"]
    with Clients(server) as clients:
        for _ in range(3):
            n = clients.statuses[200]
            server.process.send_signal(signal.SIGHUP)
            wait_for(lambda n=n: clients.statuses[200] > n + 20)
    assert clients.failures == []
    assert set(clients.statuses) == {200}
    assert server.words().json["results"] == before
    assert server.process.poll() is None


@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
def test_a_worker_that_is_killed_comes_back_while_the_others_answer(start_server: StartServer) -> None:
    server = start_server("--workers", "2")
    wait_for(lambda: "serving at" in server.log.read_text())  # all workers are ready
    workers = server.children()
    with Clients(server, 2) as clients:
        os.kill(workers[0], signal.SIGKILL)
        n = clients.statuses[200]
        wait_for(lambda: clients.statuses[200] > n + 20)
        wait_for(lambda: len(set(server.children()) - {workers[0]}) == 2)
    assert len(clients.failures) <= 2 * 2  # the requests of that worker, at most one per client and connection
    assert server.words().status == 200


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("ss") is None, reason="needs /proc and ss")
def test_a_worker_that_is_stopped_leaves_the_backlog_of_the_others(start_server: StartServer) -> None:
    server = start_server("--workers", "2")
    wait_for(lambda: "serving at" in server.log.read_text())  # all workers are ready

    def backlog() -> int:
        command = ["ss", "--no-header", "-ltn", f"sport = :{server.port}"]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[2])

    usual, stopped = backlog(), server.children()[0]
    os.kill(server.process.pid, signal.SIGSTOP)  # which would start another worker
    try:
        os.kill(stopped, signal.SIGTERM)
        wait_for(lambda: Path(f"/proc/{stopped}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
        assert backlog() == usual
        assert server.words().status == 200
    finally:
        os.kill(server.process.pid, signal.SIGCONT)


# --- Bad clients ------------------------------------------------------------------------------------


def test_the_work_of_clients_that_disconnect_is_dropped(server: RunningServer) -> None:
    body = json.dumps({"inputs": LARGE, "encoding": "base64"}).encode()
    head = "POST /v1/words HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
    for k, client in enumerate(clients):
        client.sendall(head.encode() + (body if k % 2 else body[: len(body) // 2]))
    wait_for(lambda: server.metric("elmo_queued_tokens") > 0)
    for client in clients:
        client.close()
    begin = time.monotonic()
    wait_for(lambda: server.metric("elmo_queued_tokens") == 0 and server.metric("elmo_requests_in_progress") <= 1, 5)
    assert time.monotonic() - begin < 2  # their work would take longer
    assert server.words().status == 200


def test_clients_that_send_slowly_do_not_block_others(server: RunningServer) -> None:
    server.words()
    begin = time.monotonic()
    for _ in range(10):
        server.words()
    usual = time.monotonic() - begin
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    try:
        for byte in b"POST /v1/":
            for client in slow:
                client.sendall(bytes([byte]))
        begin = time.monotonic()
        for _ in range(10):
            assert server.words().status == 200
        assert time.monotonic() - begin < 3 * usual + 0.2
    finally:
        for client in slow:
            client.close()


# --- Limits -----------------------------------------------------------------------------------------


def test_a_request_that_would_wait_too_long_is_refused_with_retry_after(start_server: StartServer) -> None:
    server = start_server("--max-wait", "0.2")
    server.words(*LARGE)
    with ThreadPoolExecutor(24) as pool:
        replies = [reply.result() for reply in [pool.submit(server.words, *LARGE, dtype="float16") for _ in range(24)]]
    statuses = Counter(reply.status for reply in replies)
    assert set(statuses) == {200, 429}
    for reply in replies:
        if reply.status == 429:
            assert int(reply.headers["retry-after"]) >= 1
            assert reply.json["error"]["code"] == "overloaded"
    wait_for(lambda: server.words().status == 200)


def test_what_is_too_large_is_refused_with_413(start_server: StartServer) -> None:
    server = start_server("--max-body-mb", "0.1", "--max-inputs", "10", "--max-tokens", "50")
    assert server.words("a b c").status == 200
    for body in (b" " * 200_000, {"inputs": ["a"] * 11}, {"inputs": ["a " * 51]}, {"inputs": ["a " * 30] * 2}):
        assert code(server.post("/v1/words", body)) == (413, "too_large"), str(body)[:40]
    assert server.post("/embed", {"inputs": ["a"] * 11}).json["error_type"] == "Validation"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        head = "POST /v1/words HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
        try:
            for _ in range(40):
                client.sendall(chunk)
            client.sendall(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server may close the connection before everything is sent
        assert client.recv(100).startswith(b"HTTP/1.1 413")


def test_x_timeout_sets_the_deadline_of_a_request(server: RunningServer) -> None:
    body = {"inputs": LARGE, "encoding": "base64"}
    assert code(server.post("/v1/words", body, {"X-Timeout": "0.01"})) == (504, "deadline_exceeded")
    assert server.post("/v1/words", body, {"X-Timeout": "30"}).status == 200
    for bad in ("soon", "-1", "0", "nan", "inf"):
        assert server.post("/v1/words", body, {"X-Timeout": bad}).status == 400, bad


def test_a_request_id_is_returned_and_timings_are_reported(server: RunningServer) -> None:
    reply = server.post("/v1/words", {"inputs": "a"}, {"X-Request-Id": "my-id-7"})
    assert reply.headers["x-request-id"] == "my-id-7"
    assert {part.partition(";")[0].strip() for part in reply.headers["server-timing"].split(",")} >= {
        "queue",
        "compute",
    }
    assert server.words().headers["x-request-id"] != server.words().headers["x-request-id"]
    assert "my-id-7" in server.read_log()


def test_each_request_has_a_line_in_the_access_log_even_at_the_end(start_server: StartServer) -> None:
    server = start_server()
    ids = [f"request-{k}" for k in range(20)]
    for name in ids[:-1]:
        assert server.post("/v1/words", {"inputs": ["a b"]}, {"X-Request-Id": name}).status == 200
    assert server.post("/v1/words", b"{", {"X-Request-Id": ids[-1]}).status == 400
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
    assert [line["id"] for line in lines] == ids
    assert [line["status"] for line in lines] == [200] * 19 + [400]
    assert (lines[0]["path"], lines[0]["tokens"]) == ("/v1/words", 2)


# --- Access -----------------------------------------------------------------------------------------


def test_other_host_names_are_refused_unless_they_are_allowed(start_server: StartServer) -> None:
    server = start_server("--allowed-host", "elmo.example")
    for host, status in (
        ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("localhost.evil.example:8000", 403), ("", 403),
        (f"localhost:{server.port}", 200), (f"127.0.0.1:{server.port}", 200), ("elmo.example", 200),
        ("ELMO.example:1", 200), ("[::1]", 200),
    ):  # fmt: skip
        reply = server.post("/v1/words", {"inputs": "a"}, {"Host": host})
        assert reply.status == status, host
        if status == 403:
            assert reply.json["error"]["code"] == "forbidden_host"


def test_a_key_is_required_if_one_is_set(start_server: StartServer) -> None:
    keys = ("first-key-0123456789", "second-key-0123456789")
    server = start_server(environment={"ELMO_API_KEY": ",".join(keys)})
    for header in (None, "Bearer wrong-key-0123456789", f"Basic {keys[0]}", "Bearer", f"Bearer {keys[0]}x"):
        headers = {} if header is None else {"Authorization": header}
        reply = server.post("/v1/words", {"inputs": "a"}, headers)
        assert code(reply) == (401, "unauthorized"), header
        assert server.post("/embed", {"inputs": "a"}, headers).status == 401
        assert server.get("/v1/models", headers).status == 401
    for key in keys:
        assert server.post("/v1/words", {"inputs": "a"}, {"Authorization": f"Bearer {key}"}).status == 200
    for path in ("/livez", "/readyz", "/health", "/metrics"):
        assert server.get(path).status == 200
    assert not any(key in server.log.read_text() for key in keys)


def test_an_address_for_others_requires_a_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    server = RunningServer(tmp_path_factory.mktemp("serve") / "server.log", "--host", "0.0.0.0")
    assert server.process.wait(30) != 0
    text = server.log.read_text()
    assert "API key" in text
    assert len(text.strip().splitlines()) == 1


def test_web_pages_of_other_origins_are_refused_unless_they_are_named(
    server: RunningServer, start_server: StartServer
) -> None:
    origin = {"Origin": "https://page.example"}
    preflight = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    server = start_server()
    for reply in (
        server.post("/v1/words", {"inputs": "a"}, origin),
        server.send("OPTIONS", "/v1/words", None, preflight),
    ):
        assert reply.status == 403
        assert not [name for name in reply.headers if name.startswith("access-control")]
    named = start_server("--cors-origin", "https://page.example")
    reply = named.send("OPTIONS", "/v1/words", None, preflight)
    assert reply.status in (200, 204)
    assert reply.headers["access-control-allow-origin"] == "https://page.example"
    reply = named.post("/v1/words", {"inputs": "a"}, origin)
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, "https://page.example")
    assert named.post("/v1/words", {"inputs": "a"}, {"Origin": "https://other.example"}).status == 403
