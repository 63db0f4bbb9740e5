"""The service under attack: mutated requests, bad HTTP, JSON, Unicode and numbers, access rules, and memory."""

from __future__ import annotations

import asyncio
import http.client
import http.server
import importlib.util
import io
import json
import shutil
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conftest import SENTENCE, Reply, RunningServer, StartServer
from tests.serve.fuzz import CANARY, AuditedServer, fuzz, memory_of

pytestmark = pytest.mark.slow

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
JSON_HEAD = b"Host: localhost\r\nContent-Type: application/json\r\n"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of processes from /proc")


def exchange(server: RunningServer, data: bytes, *, seconds: float = 15.0) -> bytes:
    """Send bytes and return all that the server sends until it closes the connection or is silent for a second."""
    reply = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as client:
        try:
            client.sendall(data)
            reply = client.recv(1 << 16)
            client.settimeout(1)
            while part := client.recv(1 << 16):
                reply += part
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass
    return reply


def status_of(reply: bytes) -> int:
    """Return the status of the first reply; 0 without one."""
    return int(reply.split(b" ", 2)[1]) if reply else 0


# --- Mutated requests -------------------------------------------------------------------------------


@linux_only
def test_mutated_requests_cause_no_5xx_no_hang_no_chosen_file_and_no_growth(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    server = AuditedServer(tmp_path)
    try:
        server.wait_until_ready()
        expected = server.words().json["results"]
        report = asyncio.run(fuzz(server.port, 2000, seed=7, folder=str(server.bait)))
        assert server.words().json["results"] == expected
        assert memory_of(server.process.pid)[1] < 1500  # MB
    finally:
        code = server.stop()
    events, chosen = server.read_events()
    assert report.problems == []
    assert len(report.paths) > 25
    assert code == 0
    assert any("/static/" in event for event in events)  # files are recorded
    assert chosen == {}
    assert not [event for event in events if CANARY in event]
    assert "Traceback" not in server.log.read_text()


# --- Torture ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (b"GET /livez HTTP/1.0\r\n\r\n", 200),
        (b"GET http://evil.example/livez HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),  # the path counts
        (b"GET /explore/../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /explore/%2e%2e%2f%2e%2e%2fetc%2fpasswd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /explore/%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /v1/words HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"TRACE /v1/words HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\n\r\n", 403),  # without Host
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
        (b"POST /v1/nothing HTTP/1.1\r\n" + JSON_HEAD + b"Content-Length: 9\r\n\r\n", 404),  # before the body is sent
        (b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\n\r\n", 403),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX y: 1\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 60_000 + b"\r\n\r\n", 200),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 20_000 + b"\r\n", 431),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 600_000, 431),  # never ends
        (b"POST /v1/words HTTP/1.1\r\n" + JSON_HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (b"POST /v1/words HTTP/1.1\r\n" + JSON_HEAD + b"Content-Length: 5, 5\r\n\r\n", 400),
        (b"POST /v1/words HTTP/1.1\r\n" + JSON_HEAD + b"Content-Length: 99999999999\r\n\r\n", 413),
        (b"POST /v1/words HTTP/1.1\r\n" + JSON_HEAD + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n", 400),
        (b"POST /v1/words HTTP/1.1\r\n" + JSON_HEAD + b"Content-Length: " + b"0" * 6000 + b"2\r\n\r\n{}", 400),
        (b"POST /v1/words HTTP/1.1\r\n" + JSON_HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
        (b"POST /v1/words HTTP/1.1\r\n" + JSON_HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
         400),
        (b"POST /v1/words HTTP/1.1\r\n" + JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST /v1/words HTTP/1.1\r\n" + JSON_HEAD + b"Transfer-Encoding: gzip\r\n\r\n", 400),
        (b"POST /tokenize HTTP/1.1\r\n" + JSON_HEAD + b'Transfer-Encoding: chunked\r\n\r\ne\r\n{"inputs": "a"\r\n1\r\n}'
         b"\r\n0\r\n\r\n", 200),
        (b"POST /tokenize HTTP/1.1\r\n" + JSON_HEAD + b"Content-Length: 15\r\nExpect: 100-continue\r\n\r\n"
         b'{"inputs": "a"}', 100),
        (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", 415),
        (b"POST /tokenize HTTP/1.1\r\n" + JSON_HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 200),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS
    ],
)  # fmt: skip
def test_bad_http_gets_an_exact_status(server: RunningServer, head: bytes, status: int) -> None:
    assert status_of(exchange(server, head)) == status


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"null", 400), (b"[]", 400), (b'"a"', 400), (b"{}", 400), (b'{"inputs": "a"} x', 400),
        (b'\xef\xbb\xbf{"inputs": "a"}', 400), (b'{"inputs": "a", "inputs": "b"}', 200),  # the last one counts
        (b'{"inputs": ' + b"[" * 100_000, 400), (b'{"inputs": ' + b"[" * 900 + b"]" * 900 + b"}", 400),
        (b'{"inputs": "a", "__proto__": {}}', 400), (b'{"inputs": "\\ud800"}', 400), (b'{"inputs": "\xff"}', 400),
        (b'{"inputs": "\xed\xa0\x80"}', 400), (b'{"inputs": "\\u0000"}', 200), (b'{"inputs": "a\0"}', 400),
        ('{"inputs": "\u202emarhaba \u0645\u0631\u062d\u0628\u0627"}'.encode(), 200),
        ('{"inputs": "\U0001f3f4\u200d\u2620\ufe0f"}'.encode(), 200),
        (b'{"inputs": "\\uD83D\\uDE00", "offsets": "utf16"}', 200),
        (b'{"inputs": "' + "e\u0301".encode() * 3000 + b'"}', 200),
        (b'{"inputs": "' + b"x" * 1_000_001 + b'"}', 400), (b'{"inputs": "' + b"a " * 200_000 + b'"}', 413),
        (b'{"inputs": ["a", [], ""]}', 200), (b'{"inputs": []}', 400), (b'{"inputs": [[[]]]}', 400),
        (b'{"inputs": [' + b"[]," * 700_000 + b"[]]}", 413), (b'{"inputs": [' + b'"",' * 3000 + b'""]}', 413),
        (b'{"inputs": "a", "layers": NaN}', 400), (b'{"inputs": "a", "layers": 1e999}', 400),
        (b'{"inputs": "a", "layers": ' + b"9" * 5000 + b"}", 400), (b'{"inputs": "a", "layers": -1}', 400),
        (b'{"inputs": "a", "layers": 2.0}', 200), (b'{"inputs": "a", "layers": [0, 1.0]}', 200),
        (b'{"inputs": "a", "layers": 0.5}', 400), (b'{"inputs": "a b", "targets": [null, [[0, 1.0]]]}', 400),
        (b'{"inputs": "a b", "targets": [[[0.0, 1.0]]]}', 200),
        (b'{"inputs": "a", "layers": 3}', 400), (b'{"inputs": "a", "layers": 01}', 400),
        (b'{"inputs": "a", "layers": true}', 400), (b'{"inputs": "a", "layers": 9223372036854775808}', 400),
        (b'{"inputs": "a", "layers": {"weights": [1e6, -1e6, 5e-324]}}', 200),
        (b'{"inputs": "a", "layers": {"weights": [1, 2]}}', 400),
        (b'{"inputs": "a", "layers": {"weights": [1e7, 0, 0]}}', 400),
        (b'{"inputs": "a b", "targets": [[[0, 1]]]}', 200), (b'{"inputs": "a b", "targets": [[[1, 0]]]}', 200),
        (b'{"inputs": "a b", "targets": [[[0, 99999999]]]}', 400), (b'{"inputs": "a b", "targets": [[], []]}', 400),
        (b'{"inputs": "a", "model": "../en"}', 404), (b'{"inputs": "a", "model": "/etc/passwd"}', 404),
        (b'{"inputs": "a", "model": "en\\u0000"}', 404), (b'{"inputs": "a", "model": ["en"]}', 400),
        (b'{"inputs": "a", "dtype": "float64"}', 400), (b'{"inputs": "a", "dtype": "O"}', 400),
    ],
)  # fmt: skip
def test_json_unicode_and_numbers_get_an_exact_status(server: RunningServer, body: bytes, status: int) -> None:
    reply = server.post("/v1/words", body)
    assert reply.status == status, reply.body[:200]
    if status != 200:
        assert set(reply.json["error"]) == {"message", "type", "code", "param"}
        assert len(reply.body) < 1000


def test_a_client_that_pipelines_without_end_is_stopped(server: RunningServer) -> None:
    request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert exchange(server, request * 10).count(b"HTTP/1.1 200") == 10
    assert exchange(server, request * 5000).count(b"HTTP/1.1 200") < 5000


@pytest.mark.parametrize(
    "invalid",
    [
        b"no such thing\r\n\r\n",
        b"POST /v1/words HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + JSON_HEAD + b"\r\n2\r\n{}\r\nxyz\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + (b"X: " + b"x" * 1000 + b"\r\n") * 66 + b"Y: y\r\n",
    ],
    ids=["line", "chunk", "head"],
)
def test_invalid_http_is_refused_after_the_replies_to_the_requests_before_it(
    server: RunningServer, invalid: bytes
) -> None:
    body = json.dumps({"inputs": [SENTENCE] * 200, "encoding": "base64"}).encode()
    post = b"POST /v1/words HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (JSON_HEAD, len(body), body)
    get = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    reply = io.BytesIO(exchange(server, post + get + invalid))
    found = []
    while line := reply.readline():
        assert line.startswith(b"HTTP/1.1 "), line[:100]
        headers = http.client.parse_headers(reply)
        found.append((int(line.split()[1]), json.loads(reply.read(int(headers["content-length"])))))
    assert [status for status, _ in found] == [200, 200, 431 if len(invalid) > 60_000 else 400]
    assert len(found[0][1]["results"]) == 200


# --- Keys, hosts and origins ------------------------------------------------------------------------


def test_only_a_whole_key_opens_the_service_and_no_key_is_logged(start_server: StartServer, tmp_path: Path) -> None:
    keys = ["key-from-the-environment", "first-key-of-the-file", "second-key-of-the-file"]
    (tmp_path / "keys").write_text("\n".join(keys[1:]) + "\n\n")
    server = start_server("--api-key-file", str(tmp_path / "keys"), environment={"ELMO_API_KEY": keys[0]})
    key = keys[0]
    wrong = [
        None, "", key, "Bearer", "Bearer ", f"Bearer {key[:-1]}", f"Bearer {key}x", f"Bearer {key.upper()}",
        f"Bearer{key}",
        f"Basic {key}", f"Bearer {keys[0]},{keys[1]}", f"Bearer {keys[1]}\\n{keys[2]}", "Bearer \xe9\xe8",
        "Bearer " + "x" * 9000,
    ]  # fmt: skip
    for header in wrong:
        headers = {} if header is None else {"Authorization": header}
        for reply in (server.post("/v1/words", {"inputs": "a"}, headers), server.post("/embed", b"not JSON", headers)):
            assert reply.status == 401, header
            assert reply.headers["www-authenticate"] == "Bearer"
    for known in keys:
        for header in (f"Bearer {known}", f"bearer  {known} "):
            assert server.post("/tokenize", {"inputs": "a"}, {"Authorization": header}).status == 200
        server.get(f"/v1/models?key={known}", {"Authorization": f"Bearer {known}"})
        server.get(f"/{known}", {"Authorization": f"Bearer {known}"})
    log = server.read_log()
    assert not [known for known in keys if known in log]
    assert "/v1/words" in log


def test_names_that_only_look_like_this_host_are_refused(server: RunningServer) -> None:
    good = ["localhost", f"LocalHost:{server.port}", "127.0.0.1:1", "[::1]", "[::1]:80"]
    bad = ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "[::1].evil.example",
           "localhost:80:80",
           "localhost:evil.example", "evil.example:localhost", "a@localhost", "localhost@evil.example",
           "localhost, evil.example",
           "[localhost]", "[::1", "0.0.0.0", "127.0.0.2", "localhost.", "2130706433"]  # fmt: skip
    for host in good:
        assert server.get("/v1/models", {"Host": host}).status == 200, host
    for host in bad:
        assert server.get("/v1/models", {"Host": host}).status == 403, host
        assert server.get("/explore/", {"Host": host}).status == 403, host


def test_origins_are_compared_as_a_whole(start_server: StartServer) -> None:
    named = start_server("--cors-origin", "https://page.example")
    own = f"http://127.0.0.1:{named.port}"
    body = {"inputs": "a"}
    for origin in ("https://page.example", "https://PAGE.example", own):
        assert named.post("/tokenize", body, {"Origin": origin}).status == 200, origin
    for origin in ("null", "", "https://page.example.evil", "http://page.example", "https://page.example:444",
                   "https://evil.example/https://page.example", own + "0", "file://", "http://127.0.0.1"):  # fmt: skip
        reply = named.post("/tokenize", body, {"Origin": origin})
        assert reply.status == 403, origin
        assert not [name for name in reply.headers if name.startswith("access-control")]
    preflight = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    reply = named.send("OPTIONS", "/v1/words", None, preflight)
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (204, "https://page.example")
    assert reply.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in reply.headers


class _Page(http.server.BaseHTTPRequestHandler):
    """An empty page, to run scripts of another origin."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>Other origin</title>")

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Be silent."""


@pytest.fixture
def other_origin() -> Iterator[str]:
    """A web page of another origin on this machine."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as page:
        thread = threading.Thread(target=page.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{page.server_port}"
        page.shutdown()
        thread.join()


ATTEMPTS = """
async ([url, mode, type]) => {
  const body = JSON.stringify({inputs: ["a b c"], encoding: "base64"});
  const headers = type ? {"Content-Type": type} : {};
  try {
    const reply = await fetch(url + "/v1/words", {method: "POST", body, headers, mode});
    return reply.type === "opaque" ? "opaque" : (await reply.json()).object ?? "refused";
  } catch (error) { return "blocked"; }
}
"""
READS = """
async url => {
  const results = [];
  for (const path of ["/v1/models", "/metrics", "/openapi.json", "/explore/", "/livez"]) {
    try { results.push((await fetch(url + path)).status); } catch (error) { results.push("blocked"); }
  }
  const script = document.createElement("script");
  const done = new Promise(resolve => {
    script.onload = () => resolve("run"); script.onerror = () => resolve("blocked");
  });
  script.src = url + "/v1/models";
  document.head.append(script);
  results.push(await done);
  return results;
}
"""


@pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None,
    reason="needs Chromium and the package playwright",
)
def test_a_browser_page_of_another_origin_cannot_use_the_service_unless_it_is_named(
    start_server: StartServer, other_origin: str
) -> None:
    from playwright.sync_api import sync_playwright

    closed, named = start_server(), start_server("--cors-origin", other_origin)
    tokens = closed.metric("elmo_tokens_total")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*FLAGS, "--host-resolver-rules=MAP rebound.example 127.0.0.1"]
        )
        page = browser.new_page()
        page.goto(other_origin)
        url = f"http://127.0.0.1:{closed.port}"
        for name in (url, f"http://localhost:{closed.port}"):
            for mode, kind in (("cors", "application/json"), ("cors", "text/plain"), ("no-cors", "text/plain"),
                               ("no-cors", None), ("no-cors", "application/json")):  # fmt: skip
                assert page.evaluate(ATTEMPTS, [name, mode, kind]) in ("blocked", "opaque"), (mode, kind)
            assert set(page.evaluate(READS, name)) == {"blocked"}
        assert closed.metric("elmo_tokens_total") == tokens  # nothing was computed

        url = f"http://127.0.0.1:{named.port}"
        assert page.evaluate(ATTEMPTS, [url, "cors", "application/json"]) == "words"
        assert page.evaluate(READS, url)[0] == 200

        # DNS rebinding: the name of the page now leads to the service, so the browser sees one origin.
        page.goto(f"http://rebound.example:{closed.port}/livez")
        url = f"http://rebound.example:{closed.port}"
        assert page.evaluate(ATTEMPTS, [url, "cors", "application/json"]) == "refused"
        assert page.evaluate("async url => (await fetch(url + '/v1/models')).status", url) == 403
        assert closed.metric("elmo_tokens_total") == tokens
        browser.close()


# --- Memory -----------------------------------------------------------------------------------------

OVERHEAD_MB = 600  # for connections, batches in progress and fragmentation, in addition to --max-memory-mb


@linux_only
def test_large_bodies_and_unread_replies_stay_within_the_memory_limit(start_server: StartServer) -> None:
    server = start_server("--max-memory-mb", "500", "--max-wait", "30")
    server.words()
    before, _ = memory_of(server.process.pid)
    bodies = [
        b'{"inputs": [' + b"[]," * 5_000_000 + b"[]]}",
        b'{"inputs": ["' + b"a " * 400_000 + b'", "' + b"x" * 15_000_000 + b'"]}',
        json.dumps({"inputs": ["\U0001f600" * 900_000] * 3}, ensure_ascii=False).encode(),
        b" " * 15_000_000 + b'{"inputs": "a"}',
    ]
    with ThreadPoolExecutor(64) as pool:
        replies: list[Reply | Exception] = list(pool.map(lambda k: _post(server, bodies[k % 4]), range(64)))
    statuses = Counter(reply.status if isinstance(reply, Reply) else type(reply).__name__ for reply in replies)
    assert set(statuses) <= {200, 400, 413, 429, "BrokenPipeError", "ConnectionResetError"}, statuses
    _, peak = memory_of(server.process.pid)
    assert peak - before < 500 + OVERHEAD_MB

    body = json.dumps({"inputs": ["a b c d e f g h i j " * 100] * 20, "layers": "all", "encoding": "float"}).encode()
    request = b"POST /v1/words HTTP/1.1\r\n" + JSON_HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(12)]
    try:
        for client in clients:
            client.sendall(request)  # a reply of about 150 MB, which is not read
        stop = time.monotonic() + 60
        while server.metric("elmo_queued_tokens") and time.monotonic() < stop:
            time.sleep(0.2)
        _, peak = memory_of(server.process.pid)
        assert peak - before < 500 + OVERHEAD_MB
        assert server.metric("elmo_reserved_bytes") > 1e8  # what is not read stays reserved
    finally:
        for client in clients:
            client.close()
    stop = time.monotonic() + 20
    while server.metric("elmo_reserved_bytes") and time.monotonic() < stop:
        time.sleep(0.1)
    assert server.metric("elmo_reserved_bytes") == 0
    assert server.words().status == 200


def _post(server: RunningServer, body: bytes) -> Reply | Exception:
    try:
        return server.post("/v1/words", body)
    except OSError as error:  # refused before all was sent
        return error
