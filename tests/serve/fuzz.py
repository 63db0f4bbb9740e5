"""Mutated requests for ``elmo serve``, the client that sends them, and a server that records which files it opens.

``python -m tests.serve.fuzz serve …`` runs the command ``elmo serve …``. Between SIGUSR1 and the end, it counts the
files, folders, sockets and processes that the server opens, and writes them to the file ELMO_AUDIT_REPORT.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.serve.conftest import ROOT, RunningServer

SENTENCES: list[Any] = [
    "I sat by the bank of the river .", "The bank lent her money .", "Yes", "", ["a", "list", "of", "tokens"],
    "na\u00efve \U0001f4b0 .",
]  # fmt: skip
MARKED = ["I sat by the [[bank]] of the river .", "The [[bank]] lent her money ."]
CORPUS = [
    "She sat on the bank of the river .", "The bank of the stream was wet .", "He went to the bank for money .",
    "The bank lent him money .", "A river runs here .",
]  # fmt: skip
POSTS: dict[str, list[dict[str, Any]]] = {
    "/v1/words": [
        {"inputs": SENTENCES, "layers": "all", "encoding": "base64", "dtype": "float16", "offsets": "utf16"},
        {"inputs": [MARKED[1]], "targets": [["bank", [0, 3]]], "layers": [0, 2], "encoding": "npy", "start": "zero"},
        {"inputs": "One text .", "layers": {"weights": [0.5, -1.0, 2.0], "gamma": 1.5}, "model": "en"},
    ],
    "/v1/similarity": [{"sentences": MARKED, "word": "bank", "layers": "all", "start": "zero", "model": "en"}],
    "/v1/substitutes": [{"inputs": MARKED, "n": 3, "combine": "inject"},
                        {"inputs": MARKED[:1], "candidates": ["shore", "money"], "word": None}],
    "/v1/score": [{"inputs": SENTENCES[:2], "offsets": "utf16", "start": "zero"}],
    "/v1/expectations": [{"inputs": SENTENCES[:1], "n": 2, "offsets": "codepoints"}],
    "/v1/explain": [{"input": MARKED[0], "other": MARKED[1], "method": "leave-out", "layers": "top", "word": "bank"}],
    "/v1/inside": [{"input": "A bank .", "token": 1}],
    "/v1/neighbors": [{"inputs": MARKED, "index": None, "k": 3, "among": "all", "word": None}],
    "/v1/concordance": [{"word": "bank", "limit": 10, "sort": "similarity", "to": MARKED[0], "seed": 0}],
    "/v1/senses": [{"word": "bank", "limit": 10, "method": "agglomerative", "n_clusters": 2, "n_examples": 1}],
    "/v1/map": [{"word": "bank", "limit": 10, "n_clusters": 2, "to": MARKED[1]}],
    "/v1/change": [{"n": 5, "offset": 0, "query": "b"}],
    "/v1/change/word": [{"word": "bank"}],
    "/v1/embeddings": [{"input": ["a b", "c"], "model": "en", "encoding_format": "base64", "user": "me"}],
    "/embed": [{"inputs": ["a b", "c"], "normalize": True, "truncate": False, "dimensions": None}],
    "/embed_all": [{"inputs": ["a b"], "truncate": None}],
    "/tokenize": [{"inputs": "What is this?", "add_special_tokens": True}],
}  # fmt: skip
GETS = (
    "/v1/models", "/v1/periods", "/info", "/livez", "/readyz", "/health", "/metrics", "/openapi.json", "/docs", "/",
    "/explore/",
)  # fmt: skip
METHODS = ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get", "BREW", "")
MAX_SECONDS = 60.0  # in which every request must be answered, or its connection closed
CANARY = "elmo-canary-7f3a"  # part of every path that a request chooses


# --- Mutations of values ----------------------------------------------------------------------------


@cache
def nasty_strings(folder: str) -> list[str]:
    """Return strings that servers trip over: paths, markup, control characters, scripts and long texts."""
    return [
        "", " ", "\0", "a\0b", "\u202ebank\u202c", "\u0645\u0631\u062d\u0628\u0627",
        "\U0001f3f4\u200d\u2620\ufe0f" * 20, "e" + "\u0301" * 500,
        "\ufeff", "\uffff", "\ud7ff\ue000", "\u2028\u2029\x85\x0b", "[[", "]]", "[[]]", "[[bank]] [[bank]]",
        "[[[[bank]]]]",
        "[[ ]]", "bank " * 300, "x" * 5000, ",.;:!?'\"" * 50, "<S>", "</S>", "<UNK>", "%s%n{0}{}", "${jndi:ldap://x}",
        "<script>alert(1)</script>", "' OR 1=1 --", "__proto__", "\x1b[31m", "\r\nX-Injected: 1", "NaN", "-1", "1e999",
        "\u4e2d\u6587" * 30, "\u200b", "\u00ad", "I\u0307", "\u00df\u1e9e", "\U00010400", "zh", "en\0", "../en",
        *(path.format(folder=folder, canary=CANARY) for path in (
            "{folder}/{canary}", "{folder}/{canary}/config.json", "../../../../../../{folder}/{canary}",
            "file://{folder}/{canary}", "./{canary}", "~/{canary}", "{canary}/model", "C:\\{canary}\\x",
            "\\\\host\\{canary}",
            "hf://{canary}/model", "http://127.0.0.1:9/{canary}", "/proc/self/fd/{canary}", "/dev/{canary}",
            "{folder}/{canary}.zip", "{folder}/{canary}\0.txt", "..%2f..%2f{canary}", "*{canary}*", "|{canary}",
            "-{canary}",
        )),
    ]  # fmt: skip


NUMBERS: list[Any] = [
    0, 1, -1, 2, 3, 10, 50, 63, 64, 65, 1000, 1001, 10_000, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**64, -(2**63),
    10**30, 10**400, 0.5, -0.0, 1.0, 1e-320, 1e6, 1.7e308, 1e-7, float("nan"), float("inf"), float("-inf"),
]  # fmt: skip


def nasty_value(rng: random.Random, strings: Sequence[str], depth: int = 0) -> Any:
    """Return a random JSON value."""
    kind = rng.randrange(10)
    if kind < 4:
        return rng.choice(strings)
    if kind < 6:
        return rng.choice(NUMBERS)
    if kind < 7:
        return rng.choice([None, True, False])
    if depth > 2:
        return []
    if kind < 9:
        return [nasty_value(rng, strings, depth + 1) for _ in range(rng.choice([0, 1, 2, 3, 70]))]
    return {rng.choice(strings): nasty_value(rng, strings, depth + 1) for _ in range(rng.randrange(4))}


def mutate_value(rng: random.Random, value: Any, strings: Sequence[str]) -> Any:
    """Change one place of a JSON value."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        copy = dict(value)
        name = rng.choice(list(copy))
        action = rng.randrange(12)
        if action == 0:
            del copy[name]
        elif action == 1:
            copy[rng.choice([name.upper(), name + "s", "", rng.choice(strings)])] = copy.pop(name)
        elif action == 2:
            copy[rng.choice(strings)] = nasty_value(rng, strings)
        else:
            copy[name] = mutate_value(rng, copy[name], strings)
        return copy
    if isinstance(value, list) and value and rng.random() < 0.75:
        copy = list(value)
        place = rng.randrange(len(copy))
        action = rng.randrange(6)
        if action == 0:
            del copy[place]
        elif action == 1:
            copy.insert(place, nasty_value(rng, strings))
        elif action == 2:
            copy = copy * rng.choice([2, 10, 40])
        else:
            copy[place] = mutate_value(rng, copy[place], strings)
        return copy
    if isinstance(value, str) and rng.random() < 0.4:
        place = rng.randrange(len(value) + 1)
        return value[:place] + rng.choice(strings)[:200] + value[place + rng.randrange(3) :]
    if rng.random() < 0.1:
        return [value] if rng.random() < 0.5 else {"": value}
    return nasty_value(rng, strings)


def mutate_text(rng: random.Random, body: bytes) -> bytes:
    """Change the JSON text itself, so that it is often not valid."""
    place = rng.randrange(len(body) + 1)
    inserts: list[bytes] = [
        b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-", b"01", b"1.", b".5", b"0x10", b"9" * 5000,
        b"1e" + b"9" * 400,
        b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\u0000"', b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xef\xbb\xbf",
        b"\0", b"//x\n",
        b"/**/", b"'", b"\\", b",", b",,", b"}", b"]", b'"', b"\x1f", b"[" * 1023, b"[" * 100_000, b'{"a":' * 50_000,
    ]  # fmt: skip
    action = rng.randrange(6)
    if action == 0:
        return body[:place]
    if action == 1:
        return body[:place] + bytes([rng.randrange(256)]) + body[place + 1 :]
    if action == 2:
        return b'{"inputs":1,"inputs":"a","word":"x","word":"bank","input":[],"input":"[[a]] b",' + body[1:]
    if action == 3:
        return body + rng.choice(inserts)
    if action == 4:
        depth = rng.choice([10, 500, 1024, 2000, 200_000])
        return b'{"inputs":' + b"[" * depth + b'"a"' + b"]" * depth + b"}"
    return body[:place] + rng.choice(inserts) + body[place:]


# --- Requests ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attack:
    """One mutated request. If ``is_http``, it is valid HTTP with one request, and must be answered."""

    number: int
    kind: str
    path: str
    data: bytes
    is_http: bool = True
    is_head: bool = False
    has_timeout: bool = False


def build_attack(seed: int, number: int, folder: str) -> Attack:
    """Build a mutated request; the same for the same seed and number."""
    rng = random.Random(f"{seed} {number}")
    strings = nasty_strings(folder)
    chance = rng.random()
    if chance < 0.62:
        return _body_attack(rng, number, strings)
    if chance < 0.84:
        return _header_attack(rng, number, strings)
    return _http_attack(rng, number)


def _body_attack(rng: random.Random, number: int, strings: Sequence[str]) -> Attack:
    path = rng.choice(list(POSTS))
    value: Any = rng.choice(POSTS[path])
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        value = mutate_value(rng, value, strings)
    body = dump(value)
    kind = "JSON values"
    if rng.random() < 0.25:
        body, kind = mutate_text(rng, body), "JSON text"
    return Attack(number, kind, path, request_bytes("POST", path, body))


def _header_attack(rng: random.Random, number: int, strings: Sequence[str]) -> Attack:
    path = rng.choice([*POSTS, *GETS])
    method, body = ("POST", dump(rng.choice(POSTS[path]))) if path in POSTS else ("GET", b"")
    headers: dict[str, str] = {}
    text = re.sub(r"[^\x20-\x7e\xa0-\xff]", "", rng.choice(strings))[:5000]
    action = rng.randrange(8)
    target = path
    kind = "headers"
    if action <= 2:
        name = rng.choice(["Host", "Origin", "Content-Type", "X-Request-Id", "Authorization", "Accept", "Range",
                           "Cookie",
                           "Content-Encoding", "Referer", "X-Forwarded-Host", "Forwarded", "If-None-Match", "TE",
                           "Trailer",
                           "X-Http-Method-Override", "X-Original-Url", "Access-Control-Request-Method"])  # fmt: skip
        headers[name] = rng.choice(
            [text, "*", "null", "http://evil.example", "localhost", "gzip", "a" * 3000, "bytes=0-1"]
        )
    elif action == 3:
        headers["X-Timeout"] = rng.choice(
            ["1e-9", "0.01", "1e308", "-1", "nan", "inf", "1_0", "", "\xb2", "9" * 400, text]
        )
    elif action == 4:
        method = rng.choice([m for m in METHODS if m.isupper() and m not in ("CONNECT", "BREW")])
        kind = "methods"
    else:
        kind = "targets"
        target = rng.choice([
            path + "/", path.upper(), "/" + path, path + "?x=%00&y=" + "z" * 100, path + "#x",
            "/%2e%2e/%2e%2e/" + CANARY,
            "/explore/../../" + CANARY, "/explore/%2e%2e%2f%2e%2e%2f" + CANARY, "/explore/..%5c" + CANARY,
            "/" + "a" * 5000,
            f"http://evil.example{path}", f"http://localhost{path}", path.replace("/", "/./"), path + "%00",
            path + "%zz",
            path + ";x=1", "/static/" + CANARY, "/explore//etc/" + CANARY, path + "%ff%fe", "/explore/%00" + CANARY,
        ])  # fmt: skip
    if rng.random() < 0.1 and body:
        headers["Expect"] = "100-continue"
    data = request_bytes(method, target, body, headers, is_chunked=bool(body) and rng.random() < 0.2, rng=rng)
    return Attack(number, kind, path, data, is_head=method == "HEAD", has_timeout="X-Timeout" in headers)


def _http_attack(rng: random.Random, number: int) -> Attack:
    """Build what is not valid HTTP, or more than one request."""
    path = rng.choice([*POSTS, *GETS])
    method, body = ("POST", dump(rng.choice(POSTS[path]))) if path in POSTS else ("GET", b"")
    line = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n".encode()
    kind_line = b"Content-Type: application/json\r\n"
    n = len(body)
    whole = request_bytes(method, path, body)
    place = rng.randrange(len(whole) + 1)
    version = rng.choice(["0.9", "2.0", "9.9", "1", "x", "1.1 "])
    name, data = rng.choice([
        ("length", line + kind_line + b"Content-Length: %d\r\n\r\n" % (n + 50) + body),
        ("length", line + kind_line + b"Content-Length: %d\r\n\r\n" % max(0, n - 5) + body),
        ("length", line + kind_line + b"Content-Length: %d\r\nContent-Length: 3\r\n\r\n" % n + body),
        ("length", line + kind_line + b"Content-Length: %b\r\n\r\n" % rng.choice(
            [b"-1", b"1e3", b"0x10", b"+5", b"99999999999999999999999", b"0" * 6000 + b"5", b"5, 5", b"", b"\xb2",
             b"1 1"]) + body),
        ("chunks", line + kind_line + b"Transfer-Encoding: chunked\r\n\r\n" + rng.choice(
            [b"zz\r\n{}\r\n0\r\n\r\n", b"-2\r\n{}\r\n0\r\n\r\n", b"ffffffffffffffffff\r\n{}", b"2\r\n{}0\r\n\r\n",
             b"2;" + b"x" * 9000
             + b"\r\n{}\r\n0\r\n\r\n", b"0\r\nHost: evil\r\n\r\n", b"2\n{}\n0\n\n", b"2\r\n{}\r\n"])),
        ("chunks", line + kind_line + b"Transfer-Encoding: %b\r\n\r\n0\r\n\r\n" % rng.choice(
            [b"gzip, chunked", b"chunked, gzip", b"xchunked", b"chunked\r\nTransfer-Encoding: identity", b" chunked"])),
        ("both", line + kind_line + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % n + body),
        ("large", line + b"X-Large: " + b"a" * rng.choice([8000, 70_000, 400_000]) + b"\r\n\r\n"),
        ("large", line + b"".join(b"X-%d: a\r\n" % k for k in range(rng.choice([500, 9000]))) + b"\r\n"),
        ("large", b"GET /" + b"a" * rng.choice([70_000, 300_000]) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("version", f"{method} {path}\r\n\r\n".encode()),
        ("version",
         f"{method} {path} HTTP/{version}\r\nHost: localhost\r\n\r\n".encode()),
        ("version", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("version", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(200)),
        ("garbage", rng.randbytes(rng.choice([1, 50, 5000]))),
        ("garbage", whole[:place] + rng.randbytes(rng.randrange(1, 5)) + whole[place:]),
        ("garbage", whole[:place]),
        ("garbage", b"\r\n" * 5 + whole),
        ("methods", f"{rng.choice(METHODS)} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()),
        ("methods", b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("methods", b"CONNECT localhost:22 HTTP/1.1\r\nHost: localhost:22\r\n\r\n"),
        ("names", line + b"Host: evil.example\r\n\r\n"),
        ("names", line + rng.choice([b"X y: 1", b": 1", b"X\0: 1", b"X: a\0b", b"X: a\n b", b" folded", b"X: \x7f",
                                     b"\xff: 1"]) + b"\r\n\r\n"),
        ("names", b"GET " + path.encode() + b" HTTP/1.1\r\n\r\n"),
        ("names", b"GET /\xff\xfe\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("upgrade",
         line + b"Connection: Upgrade\r\nUpgrade: %b\r\nSec-WebSocket-Key: x\r\n\r\n" % rng.choice(
            [b"websocket", b"h2c", b"x"])),
        ("pipeline", whole * rng.choice([2, 3, 5])),
        ("pipeline", b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" * rng.choice([20, 200])),
    ])  # fmt: skip
    return Attack(number, f"HTTP: {name}", path, data, is_http=False, has_timeout=False)


def dump(value: Any) -> bytes:
    """Return a value as JSON; lone surrogates stay escapes."""
    return json.dumps(value).encode()


def request_bytes(
    method: str, target: str, body: bytes, headers: dict[str, str] | None = None, *, is_chunked: bool = False,
    rng: random.Random | None = None,
) -> bytes:  # fmt: skip
    """Return a request as bytes."""
    given = {"Host": "localhost", "Content-Type": "application/json", **(headers or {})}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    if is_chunked and rng is not None:
        lines.append("Transfer-Encoding: chunked")
        content, first = b"", 0
        while first < len(body):
            part = body[first : first + rng.choice([1, 7, 100, 5000])]
            content += b"%x\r\n%b\r\n" % (len(part), part)
            first += len(part)
        content += b"0\r\n\r\n"
    else:
        lines.append(f"Content-Length: {len(body)}")
        content = body
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content


# --- Client -----------------------------------------------------------------------------------------


@dataclass
class FuzzReport:
    """The replies to mutated requests."""

    statuses: dict[str, Counter[str]] = field(default_factory=dict)  # by kind
    paths: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    n_requests: int = 0
    seconds: float = 0.0
    slowest: tuple[float, str] = (0.0, "")  # seconds, and which request

    def table(self) -> str:
        """Return the statuses of each kind of mutation as a table."""
        names = sorted({name for counts in self.statuses.values() for name in counts})
        rows = [["mutation", "requests", *names]]
        for kind, counts in sorted(self.statuses.items()):
            rows.append(
                [kind, f"{sum(counts.values()):,}", *(f"{counts[name]:,}" if counts[name] else "" for name in names)]
            )
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        return "\n".join("  ".join(cell.rjust(width) if k else cell.ljust(width) for k, (cell, width) in enumerate(
            zip(row, widths, strict=True))) for row in rows)  # fmt: skip


class NoReplyError(Exception):
    """The server closed the connection, or kept silent."""


async def fuzz(
    port: int, n_requests: int, *, seed: int = 0, n_connections: int = 16, folder: str = "/tmp", first: int = 0,
    progress: Callable[[int], None] | None = None,
) -> FuzzReport:  # fmt: skip
    """Send mutated requests over keep-alive connections, and check every reply.

    Args:
        port: Port of the server on 127.0.0.1.
        n_requests: Number of requests.
        seed: Seed of the mutations.
        n_connections: Number of connections that send at the same time.
        folder: Folder of the files that requests name.
        first: Number of the first request, to repeat a part of a run.
        progress: Function that is called with the number of answered requests.
    """
    report = FuzzReport()
    numbers = iter(range(first, first + n_requests))
    begin = time.monotonic()

    async def work() -> None:
        connection = _Connection(port)
        for number in numbers:
            attack = build_attack(seed, number, folder)
            started = time.monotonic()
            try:
                async with asyncio.timeout(MAX_SECONDS):
                    status = await _exchange(connection, attack, report)
            except TimeoutError:
                status = "hang"
                report.problems.append(f"request {number} ({attack.kind}, {attack.path}) was not answered in time")
                await connection.close()
            label = f"request {number} ({attack.kind}, {attack.path}, {status})"
            report.slowest = max(report.slowest, (time.monotonic() - started, label))
            report.statuses.setdefault(attack.kind, Counter())[status] += 1
            report.paths[attack.path] += 1
            report.n_requests += 1
            if progress is not None and report.n_requests % 1000 == 0:
                progress(report.n_requests)
        await connection.close()

    await asyncio.gather(*(work() for _ in range(n_connections)))
    report.seconds = time.monotonic() - begin
    return report


class _Connection:
    def __init__(self, port: int) -> None:
        self._port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.reader is None or self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        return self.reader, self.writer

    async def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


async def _exchange(connection: _Connection, attack: Attack, report: FuzzReport) -> str:
    for _ in range(3):
        reader, writer = await connection.open()
        try:
            writer.write(attack.data)
            if not attack.is_http:
                return await _read_rest(connection, attack, report)
            status, headers, body = await read_reply(reader, is_head=attack.is_head)
        except (NoReplyError, OSError, asyncio.IncompleteReadError):
            await connection.close()  # the server closes idle connections and those of refused bodies
            if not attack.is_http:
                return "closed"
            continue
        _check_reply(attack, status, headers, body, report)
        if headers.get("connection") == "close":
            await connection.close()
        return str(status)
    report.problems.append(f"request {attack.number} ({attack.kind}, {attack.path}) was not answered")
    return "closed"


async def _read_rest(connection: _Connection, attack: Attack, report: FuzzReport) -> str:
    """Read replies until the server is silent, and close the connection; the first status counts."""
    reader, writer = await connection.open()
    first = "closed"
    try:
        while True:
            try:
                async with asyncio.timeout(0.25 if first == "closed" else 0.02):
                    await reader.read(0)
                    status, headers, body = await read_reply(reader, is_head=attack.data.startswith(b"HEAD"))
            except TimeoutError:
                break
            _check_reply(attack, status, headers, body, report)
            first = str(status) if first == "closed" else first
        writer.write_eof()
        while await reader.read(1 << 16):
            pass
    except (NoReplyError, OSError, asyncio.IncompleteReadError):
        pass
    await connection.close()
    return first


async def read_reply(reader: asyncio.StreamReader, *, is_head: bool) -> tuple[int, dict[str, str], bytes]:
    """Read one reply; interim replies are skipped."""
    while True:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError as error:
            raise NoReplyError from error
        line, *rest = head[:-4].split("\r\n")
        status = int(line.split(" ")[1])
        if status != 100:
            break
    headers = {name.lower(): value for name, _, value in (item.partition(": ") for item in rest)}
    has_body = not is_head and status not in (204, 304)
    return status, headers, await reader.readexactly(int(headers.get("content-length", 0))) if has_body else b""


def _check_reply(attack: Attack, status: int, headers: dict[str, str], body: bytes, report: FuzzReport) -> None:
    where = f"request {attack.number} ({attack.kind}, {attack.path})"
    if status >= 500 and not (status == 504 and attack.has_timeout):
        report.problems.append(f"{where}: status {status}: {body[:200]!r}")
    if "x-injected" in headers:
        report.problems.append(f"{where}: a header was injected")
    if status >= 400 and not attack.is_head and body:
        try:
            error = json.loads(body)["error"]
            assert headers["content-type"] == "application/json"
            assert isinstance(error if isinstance(error, str) else error["message"], str)
        except (ValueError, KeyError, TypeError, AssertionError):
            report.problems.append(f"{where}: not an error reply: {body[:200]!r}")
        if b"Traceback" in body or b"site-packages" in body or str(Path(__file__).parents[2]).encode() in body:
            report.problems.append(f"{where}: the reply describes the machine: {body[:200]!r}")
    if status == 200 and body and headers["content-type"] == "application/json":
        try:
            json.loads(body, parse_constant=_refuse_constant)
        except ValueError as error:
            report.problems.append(f"{where}: the reply is not JSON: {error}")
        if b'"code":"internal"' in body:
            report.problems.append(f"{where}: an input failed with an internal error")


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


# --- Server -----------------------------------------------------------------------------------------

_WATCHED = ("open", "os.", "shutil.", "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto",
            "subprocess.",
            "urllib.", "pickle.", "ctypes.dlopen", "import", "exec", "tempfile.", "glob.", "mmap.", "sqlite3.",
            "ftplib.")  # fmt: skip


def run_audited(report: Path, arguments: Sequence[str]) -> None:
    """Run a command of elmo; count what it opens between SIGUSR1 and its end."""
    from elmo.cli import main

    events: Counter[str] = Counter()
    is_recording = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if is_recording and event.startswith(_WATCHED):
            events[f"{event} {arguments[0] if arguments else ''!s:.300}"] += 1

    def start(*_: Any) -> None:
        nonlocal is_recording
        is_recording = True

    def write() -> None:
        nonlocal is_recording
        is_recording = False
        report.write_text(json.dumps(events, indent=1))

    sys.addaudithook(hook)
    signal.signal(signal.SIGUSR1, start)
    sys.argv = ["elmo", *arguments]
    try:
        main()
    finally:
        write()  # before libraries import others at the exit


class AuditedServer(RunningServer):
    """A server that records what it opens, with the bundled English model and a small index."""

    module = "tests.serve.fuzz"

    def __init__(self, folder: Path, *options: str) -> None:
        from elmo import Elmo
        from elmo.lexicon import IndexJob, build_index

        text, self.index = folder / "text.txt", folder / "usages"
        text.write_text("\n".join(CORPUS) + "\n")
        build_index(IndexJob((str(text),), self.index), Elmo.from_pretrained())
        self.report = folder / "audit.json"
        self.bait = folder / "bait"  # requests name files in it
        self.bait.mkdir()
        (self.bait / CANARY).write_text("secret")
        environment = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "ELMO_AUDIT_REPORT": str(self.report)}
        arguments = ("--index", str(self.index), "--max-wait", "30", *options)
        super().__init__(folder / "server.log", *arguments, environment=environment)

    def wait_until_ready(self, seconds: float = 120.0) -> None:
        """Wait until all that is loaded on first use is loaded, and start to record."""
        super().wait_until_ready(seconds)
        for path, bodies in POSTS.items():
            for body in bodies:
                assert self.post(path, body).status in ((200,) if not path.startswith("/v1/change") else (404,)), path
        for method in ("leave-out", "replace", "gradient"):
            self.post("/v1/explain", {"input": MARKED[0], "method": method})
        for method in ("agglomerative", "affinity", "kmeans"):
            self.post("/v1/senses", {"word": "bank", "method": method})
        for sort in ("corpus", "left", "right", "similarity", "meaning"):
            self.post("/v1/concordance", {"word": "bank", "sort": sort, "to": 0})
        for path in GETS:
            self.get(path)
        self.process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)

    def read_events(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return what was opened, and the part of it that requests may have chosen; after the server has stopped."""
        events: dict[str, int] = json.loads(self.report.read_text())
        static = ROOT / "src" / "elmo" / "serve" / "static"
        allowed = (*(f"open {path}{os.sep}" for path in (static, self.index)), "import ")
        return events, {event: n for event, n in events.items() if not event.startswith(allowed)}


def memory_of(pid: int) -> tuple[float, float]:
    """Return the resident memory of a process now and at its peak, in megabytes; Linux only."""
    text = Path(f"/proc/{pid}/status").read_text()
    return tuple(int(re.findall(rf"{name}:\s+(\d+)", text)[0]) / 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]


if __name__ == "__main__":
    run_audited(Path(os.environ["ELMO_AUDIT_REPORT"]), sys.argv[1:])
