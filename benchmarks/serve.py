"""Measure ``elmo serve`` against the library in the same run: speed, exactness, overload, shutdown, soak, SDKs.

usage: serve.py [SECTION ...] [--text FILE] [--seconds N] [--rounds N] [--rate N] [--server "OPTIONS"]

Sections: throughput, bits, overload, shutdown, startup, sdk, soak. Default: all but soak, which takes ``--seconds``
(3600 for an hour). ``elmo serve`` runs in its own process with the bundled English model, the load comes from
another process (``serve_load.py``), and the library runs in a third; they take turns, and ratios are medians of the
ratios within a round. Sentences have 20 tokens; with ``--text``, they are those of a file with one sentence per line.

A line ends with its bar; a missed bar is marked with !. Memory is read from /proc, so that it is measured on Linux
only. ``sdk`` needs ``--openai-python``, an interpreter that has the package openai, and ``--openai-node``, a folder in
which ``npm install openai`` was run.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import io
import json
import lzma
import os
import re
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

import numpy as np
from product_rates import warn_if_busy
from serve_load import (
    LOST,
    REFUSED,
    TIMED_OUT,
    LoadPlan,
    LoadResult,
    build_request,
    drop_clients,
    hold_slow_clients,
    run_load,
)

SRC = Path(__file__).resolve().parents[1] / "src"
N_TOKENS = 20
N_SENTENCES = 640
WORDS = (
    "the a of to in and she he they it river bank money water city school house year time day people government "
    "said went took made found wrote moved opened closed near under over after before with from old new small large "
    "first last public early late long short high low good bad north south music paper market street station "
    "train"
)
SDK_TEXTS = ("I sat by the bank of the river.", "She took the money to the bank.", "苹果 😀 and naïve café")


# --- the parts: the server, the library, the load ------------------------------------------------------


class Server:
    """``elmo serve`` in its own process, on a free port."""

    def __init__(self, *options: str, environment: dict[str, str] | None = None) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.log = tempfile.NamedTemporaryFile("w+b", suffix=".log", prefix="elmo-serve-")  # noqa: SIM115
        begin = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "elmo", "serve", "--port", str(self.port), *options],
            stdout=self.log, stderr=self.log, env=os.environ | {"PYTHONPATH": str(SRC)} | (environment or {}),
        )  # fmt: skip
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > begin + 60:
                self.stop()
                raise SystemExit(f"elmo serve did not start:\n{self.read_log()[-2000:]}")
            time.sleep(0.01)
        self.startup = time.monotonic() - begin

    def is_ready(self) -> bool:
        """Whether ``/readyz`` answers 200."""
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def get(self, path: str) -> tuple[int, bytes]:
        """Return the status and the body of a GET request."""
        status, _, body = self.send(path)
        return status, body

    def send(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None, *, timeout: float = 120
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Send one request over a new connection; return status, headers and body of the reply."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(
                "GET" if body is None else "POST",
                path,
                content,
                {"Content-Type": "application/json", **(headers or {})},
            )
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()
        finally:
            connection.close()

    def request(self, path: str, body: Any, headers: dict[str, str] | None = None) -> bytes:
        """Build the bytes of a request to this server."""
        return build_request(path, body, headers=headers, port=self.port)

    def pids(self) -> list[int]:
        """Return the process ids of the server and of its workers."""
        found, waiting = [], [self.process.pid]
        while waiting:
            pid = waiting.pop()
            found.append(pid)
            try:
                waiting += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
            except OSError:
                continue
        return found

    def resident(self) -> float:
        """Return the resident memory of all processes in megabytes."""
        total = 0.0
        for pid in self.pids():
            try:
                match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
            except OSError:
                continue
            total += int(match[1]) / 1024 if match else 0.0
        return total

    def queue(self) -> float | None:
        """Return the tokens in the queue plus the requests in progress, other than this one; None if not reported."""
        text = self.get("/metrics")[1].decode()
        names = ("elmo_queued_tokens", "elmo_requests_in_progress")
        found = [re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.eE+-]+)$", text, re.MULTILINE) for name in names]
        return sum(map(float, found[0] + found[1])) - 1 if all(found) else None

    def read_log(self) -> str:
        """Return what the server printed."""
        return Path(self.log.name).read_text(encoding="utf-8", errors="replace")

    def stop(self) -> float:
        """Stop the server; return the seconds until it has exited."""
        begin = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return time.monotonic() - begin

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.log.close()


@cache
def model() -> Any:
    """The bundled English model, loaded once in each process that asks for it."""
    from elmo import Elmo

    return Elmo.from_pretrained("en")


def measure_library(sentences: Sequence[str], batch: int, seconds: float) -> float:
    """Return the tokens per second of ``Elmo.encode`` with batches of ``batch`` sentences."""
    n, begin = 0, time.perf_counter()
    while time.perf_counter() < begin + seconds:
        for first in range(0, len(sentences) - batch + 1, batch):
            n += sum(map(len, model().encode(sentences[first : first + batch])))
    return n / (time.perf_counter() - begin)


def measure_library_latency(sentences: Sequence[str], n: int) -> float:
    """Return the median seconds of ``Elmo.encode`` for one sentence."""
    times = []
    for k in range(n):
        begin = time.perf_counter()
        model().encode(sentences[k % len(sentences)])
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def choose_sentences(path: Path | None) -> list[str]:
    """Return sentences of 20 tokens: from a file, or random ones."""
    if path is None:
        chance = np.random.default_rng(0)
        return [" ".join([*chance.choice(WORDS.split(), N_TOKENS - 1), "."]) for _ in range(N_SENTENCES)]
    found = []
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
        for line in file:
            if len(model().tokenizer(line.strip()).tokens) == N_TOKENS:
                found.append(line.strip())
                if len(found) == N_SENTENCES:
                    return found
    raise SystemExit(f"{path} must have {N_SENTENCES} lines of {N_TOKENS} tokens; found {len(found)}")


def latencies(result: LoadResult, status: int | None = None) -> np.ndarray:
    """Return the seconds between the arrival of requests and their replies."""
    seconds = np.array(result.end) - np.array(result.begin)
    return seconds if status is None else seconds[np.array(result.status) == status]


def quantile(values: np.ndarray, q: float) -> float:
    """Return a quantile in milliseconds; nan without values."""
    return float(np.quantile(values, q)) * 1000 if len(values) else float("nan")


def rate(result: LoadResult, *, warm_up: float = 0.0, status: int = 200) -> float:
    """Return the replies per second from the first request, after a warm-up, to the last request.

    Replies after the last request do not count: in a short run with many clients, they would be a large share.
    """
    ends = np.array(result.end)[np.array(result.status) == status]
    begin, end = min(result.begin) + warm_up, max(result.begin)
    return float(((ends >= begin) & (ends <= end)).sum()) / (end - begin) if end > begin else 0.0


def count_failures(result: LoadResult) -> str:
    """Describe the replies that were not 200."""
    names = {LOST: "lost", REFUSED: "not connected", TIMED_OUT: "no reply"}
    counts = Counter(names.get(status, str(status)) for status in result.status if status != 200)
    return ", ".join(f"{n:,} × {name}" for name, n in counts.most_common()) or "none"


class Report:
    """Prints one line per figure, with its bar, and remembers whether a bar was missed."""

    def __init__(self) -> None:
        self.n_missed = 0

    def title(self, name: str) -> None:
        """Print the name of a section."""
        print(f"\n{name}", flush=True)

    def line(self, name: str, value: str, bar: str = "", is_met: bool = True) -> None:
        """Print one figure."""
        self.n_missed += not is_met
        print(f"  {name:58}{value:>30}   {bar}{'' if is_met else '  !'}", flush=True)


class Bench:
    """The processes that take part, and the options of the run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.report = Report()
        self.sentences = choose_sentences(options.text)
        self.server_options: list[str] = shlex.split(options.server)
        spawn = get_context("spawn")
        self.load = ProcessPoolExecutor(1, mp_context=spawn)
        self.other_load = ProcessPoolExecutor(1, mp_context=spawn)
        self.library = ProcessPoolExecutor(1, mp_context=spawn)

    def run(self, server: Server, requests: Iterable[bytes], seconds: float, **plan: Any) -> LoadResult:
        """Run a load and wait for it."""
        return self.start(server, requests, seconds, **plan).result()

    def start(self, server: Server, requests: Iterable[bytes], seconds: float, **plan: Any) -> Future[LoadResult]:
        """Start a load in its own process."""
        return self.load.submit(run_load, LoadPlan(server.port, tuple(requests), seconds, **plan))

    def words(self, server: Server, sentences: Iterable[Any] | None = None, **fields: Any) -> list[bytes]:
        """Build requests for vectors of one sentence each."""
        body = {"encoding": "base64", **fields}
        return [server.request("/v1/words", {"inputs": [s], **body}) for s in sentences or self.sentences]

    def groups(self, server: Server, size: int, **fields: Any) -> list[bytes]:
        """Build requests for vectors of ``size`` sentences each."""
        body = {"encoding": "base64", **fields}
        rows = [self.sentences[k : k + size] for k in range(0, len(self.sentences) - size + 1, size)]
        return [server.request("/v1/words", {"inputs": row, **body}) for row in rows]

    @contextmanager
    def serve(self, *options: str, environment: dict[str, str] | None = None) -> Iterator[Server]:
        """Start a server and send it a short load first, so that caches and buffers are as in use."""
        with Server(*self.server_options, *options, environment=environment) as server:
            self.run(server, self.words(server), 1.0, clients=16)
            yield server


# --- throughput and latency ----------------------------------------------------------------------------


def measure_throughput(bench: Bench) -> None:
    """Compare the service with ``Elmo.encode``: 64 clients with batches of 64 and 640, and one client alone."""
    report, seconds = bench.report, bench.options.round_seconds
    report.title(f"throughput: sentences of {N_TOKENS} tokens, medians of {bench.options.rounds} rounds")
    variants = {"base64 float32": {}, "base64 float16": {"dtype": "float16"}, "float": {"encoding": "float"}}
    rows: list[dict[str, float]] = []
    with bench.serve() as server:
        requests = {name: bench.words(server, **fields) for name, fields in variants.items()}
        call = bench.library.submit
        call(measure_library, bench.sentences, 64, 1.0).result()
        sizes: dict[str, float] = {}
        for _ in range(bench.options.rounds):
            row = {f"library {n}": call(measure_library, bench.sentences, n, seconds).result() for n in (64, 640)}
            for name in variants:
                result = bench.run(server, requests[name], seconds, clients=64)
                row[name] = rate(result, warm_up=0.2) * N_TOKENS
                row[f"{name} p50"] = quantile(latencies(result, 200), 0.5)
                sizes[name] = statistics.median(result.size)
                if any(status != 200 for status in result.status):
                    report.line(f"failures, {name}", count_failures(result), "none", is_met=False)
            row["library latency"] = call(measure_library_latency, bench.sentences, 200).result() * 1000
            row["client latency"] = quantile(
                latencies(bench.run(server, requests["base64 float32"], 60, clients=1, n_requests=200)), 0.5
            )
            rows.append(row)

    def median(compute: Callable[[dict[str, float]], float]) -> float:
        return statistics.median(compute(row) for row in rows)

    for n in (64, 640):
        report.line(f"Elmo.encode, batches of {n}", f"{median(lambda row: row[f'library {n}']):,.0f} tokens/s")  # noqa: B023
    for name in variants:
        ratios = [median(lambda row: row[name] / row[f"library {n}"]) for n in (64, 640)]  # noqa: B023
        value = f"{median(lambda row: row[name]):,.0f} tokens/s"  # noqa: B023
        report.line(f"64 clients, {name} ({sizes[name] / 1000:.0f} kB)", value)
        is_bar = name == "base64 float32"
        report.line("  / batches of 64", f"{ratios[0]:.0%}", "≥ 90%" if is_bar else "", not is_bar or ratios[0] >= 0.9)
        report.line("  / batches of 640", f"{ratios[1]:.0%}")
        report.line("  median latency", f"{median(lambda row: row[f'{name} p50']):.1f} ms")  # noqa: B023
    report.line("Elmo.encode, one sentence", f"{median(lambda row: row['library latency']):.2f} ms")
    above = median(lambda row: row["client latency"] - row["library latency"])
    report.line("one client", f"{median(lambda row: row['client latency']):.2f} ms")
    report.line("  above the library", f"{above:.2f} ms", "≤ 5 ms", above <= 5)


# --- bits ----------------------------------------------------------------------------------------------


def decode_vectors(result: dict[str, Any], reply: dict[str, Any]) -> np.ndarray:
    """Return the vectors of one result of ``/v1/words``."""
    dtype = np.dtype(reply["dtype"]).newbyteorder("<")
    if reply["encoding"] == "base64":
        return np.frombuffer(base64.b64decode(result["vectors"]), dtype).reshape(result["shape"])
    return np.array(result["vectors"], np.float64).astype(dtype).reshape(result["shape"])


def read_words(body: bytes) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Return a reply of ``/v1/words`` and the vectors of each input."""
    if body[:2] != b"PK":
        reply = json.loads(body)
        return reply, [decode_vectors(result, reply) for result in reply["results"]]
    archive = zipfile.ZipFile(io.BytesIO(body))
    reply = json.loads(archive.read("reply.json"))
    vectors = np.load(io.BytesIO(archive.read("vectors.npy")))
    ends = np.cumsum([result["shape"][-2] for result in reply["results"]])
    return reply, np.split(vectors, ends[:-1], axis=-2)


def expect_words(sentences: Sequence[Any], layers: Any, dtype: str, start: str) -> list[np.ndarray]:
    """Return what the library computes for a request to ``/v1/words``."""
    from elmo import LayerMix

    if isinstance(layers, dict):
        layers = LayerMix(len(layers["weights"]), weights=layers["weights"], gamma=layers.get("gamma", 1.0))
    if isinstance(layers, list):
        encodings = model().encode(sentences, layers="all", start=start)
        return [encoding.vectors[layers].astype(dtype) for encoding in encodings]
    return [encoding.vectors for encoding in model().encode(sentences, layers=layers, dtype=dtype, start=start)]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays have the same shape, type and bits."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def bit_cases(bench: Bench) -> Iterator[tuple[str, str, dict[str, Any], Callable[[bytes], bool]]]:
    """Yield every kind of request with vectors: its name, its path, its body and a check of the reply."""
    n_layers = model().n_layers
    sentences: list[Any] = [*bench.sentences[:3], "One", ["A", "list", "of", "tokens", "."], "naïve 😀 café — 苹果"]
    mixes = ({"weights": [0.5, -1.0, 2.0][:n_layers], "gamma": 1.7}, {"weights": [0.0] * n_layers})
    choices: tuple[Any, ...] = ("average", "top", "all", "concat", *range(n_layers), [0, n_layers - 1], [1], *mixes)
    for layers in choices:
        for dtype in ("float32", "float16"):
            wanted = {start: expect_words(sentences, layers, dtype, start) for start in ("zero", "warm")}
            for encoding in ("float", "base64", "npy"):
                for start in ("zero", "warm"):
                    body = {"inputs": sentences, "layers": layers, "dtype": dtype, "encoding": encoding, "start": start}

                    def check(reply: bytes, vectors: list[np.ndarray] = wanted[start]) -> bool:
                        found = read_words(reply)[1]
                        return len(found) == len(vectors) and all(map(same_bits, found, vectors))

                    yield f"words {json.dumps(layers)} {dtype} {encoding} {start}", "/v1/words", body, check
    text = "She moved to New York and back to York ."
    encoding = model().encode(text)
    parts = [encoding.word("moved"), encoding.phrase("New York"), encoding.characters(0, 3)]
    body = {"inputs": [text], "targets": [["moved", "New York", [0, 3]]], "encoding": "base64"}
    yield "words targets", "/v1/words", body, lambda reply: same_bits(read_words(reply)[1][0], np.stack(parts))
    texts = [sentence for sentence in sentences if isinstance(sentence, str)]
    encodings = model().encode(texts)
    rows = np.stack([encoding.sentence() for encoding in encodings])

    def check_embeddings(reply: bytes) -> bool:
        found = [item["embedding"] for item in json.loads(reply)["data"]]
        if isinstance(found[0], str):
            return same_bits(np.stack([np.frombuffer(base64.b64decode(row), "<f4") for row in found]), rows)
        return same_bits(np.array(found).astype(np.float32), rows)

    for name in ("float", "base64"):
        yield (
            f"embeddings {name}",
            "/v1/embeddings",
            {"input": texts, "model": "en", "encoding_format": name},
            check_embeddings,
        )
    yield (
        "embed",
        "/embed",
        {"inputs": texts, "normalize": False},
        lambda reply: same_bits(np.array(json.loads(reply)).astype(np.float32), rows),
    )
    unit = rows / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    yield (
        "embed normalized (to 1e-6)",
        "/embed",
        {"inputs": texts},
        lambda reply: bool(np.abs(np.array(json.loads(reply)) - unit).max() < 1e-6),
    )
    yield (
        "embed_all",
        "/embed_all",
        {"inputs": texts},
        lambda reply: all(
            same_bits(np.array(found).astype(np.float32), encoding.vectors)
            for found, encoding in zip(json.loads(reply), encodings, strict=True)
        ),
    )


def check_bits(bench: Bench) -> None:
    """Compare replies with the library bit by bit: every layer choice, encoding and route, alone and under load."""
    report = bench.report
    report.title("bits: replies against Elmo.encode")
    cases = list(bit_cases(bench))
    with bench.serve("--max-wait", "30") as server:  # nothing is refused
        for when in ("alone", "under load"):
            load = None
            if when == "under load":
                load = bench.start(server, bench.groups(server, 4), max(10.0, len(cases) * 0.25), clients=32)
            wrong = []
            begin = time.monotonic()
            for name, path, body, check in cases:
                status, _, reply = server.send(path, body)
                if status != 200 or not check(reply):
                    wrong.append(f"{name} ({status})")
            seconds = time.monotonic() - begin
            value = f"{len(cases) - len(wrong)} of {len(cases)} equal"
            report.line(f"{len(cases)} kinds of request, {when} ({seconds:.0f} s)", value, "all", not wrong)
            for name in wrong[:8]:
                report.line(f"  {name}", "differs", "", is_met=False)
            if load is not None:
                load.result()
        requests = bench.words(server)
        plan = {"has_checksums": True, "n_requests": len(requests) * 5}
        alone = bench.run(
            server, requests, 600, clients=1, has_bodies=True, has_checksums=True, n_requests=len(requests)
        )
        vectors = model().encode(bench.sentences)
        n_equal = sum(
            same_bits(read_words(body)[1][0], vectors[which].vectors)
            for which, body in zip(alone.which, alone.bodies, strict=True)
        )
        report.line(
            "one sentence per request, one client",
            f"{n_equal} of {len(requests)} equal",
            "all",
            n_equal == len(requests),
        )
        known = dict(zip(alone.which, alone.checksum, strict=True))
        together = bench.run(server, requests, 600, clients=64, **plan)
        pairs = list(zip(together.which, together.checksum, strict=True))
        n_equal = sum(known[which] == checksum for which, checksum in pairs)
        report.line("the same, 64 clients", f"{n_equal:,} of {len(pairs):,} equal", "all", n_equal == len(pairs))
        sizes = {}
        for name, fields in {
            "float16": {"encoding": "base64", "dtype": "float16"},
            "json": {"encoding": "float"},
        }.items():
            sizes[name] = statistics.mean(
                len(server.send("/v1/words", {"inputs": [sentence], **fields})[2]) for sentence in bench.sentences[:50]
            )
    plain = statistics.mean(len(json.dumps(encoding.vectors.tolist())) for encoding in vectors[:50])
    ratio = sizes["float16"] / sizes["json"]
    report.line(
        "float16 base64 / float",
        f"{sizes['float16']:,.0f} / {sizes['json']:,.0f} bytes = 1/{1 / ratio:.1f}",
        "≤ 1/7",
        ratio <= 1 / 7,
    )
    report.line("float16 base64 / json.dumps(vectors.tolist())", f"1/{plain / sizes['float16']:.1f}")


# --- overload ------------------------------------------------------------------------------------------


def measure_overload(bench: Bench) -> None:
    """Send three times what the server can do; and small requests while a very large one runs."""
    report, seconds = bench.report, bench.options.seconds
    for size in bench.options.group:
        n_tokens = size * N_TOKENS
        report.title(f"overload: requests of {n_tokens} tokens at 3 × capacity for {seconds:g} s")
        with bench.serve() as server:
            requests = bench.groups(server, size)
            usual = latencies(bench.run(server, requests, 3, clients=1), 200)
            idle = server.resident()
            usual_memory: list[float] = []
            peaks = [measure_peak(bench, server, requests, memory=usual_memory)]
            load = bench.start(server, requests, seconds, rate=3 * peaks[0], clients=4000)
            memory = watch_memory(server, load)
            result = load.result()
            probe = bench.run(server, requests, 4, clients=1)
            after = server.resident()
            peaks.append(measure_peak(bench, server, requests))  # the speed of many machines changes within a minute
            peak = statistics.mean(peaks)
            status = np.array(result.status)
            refused, good = latencies(result, 429), latencies(result, 200)
            goodput = rate(result, warm_up=min(2.0, seconds / 5)) / peak
            refusal_seconds = np.array(result.end) - np.array(result.sent)
            answered = refusal_seconds[status == 429]
            headers = np.array(result.retry_after)[status == 429]
            others = Counter(int(code) for code in status if code not in (200, 429))
            report.line("peak before and after", f"{peaks[0]:,.0f} and {peaks[1]:,.0f} requests/s")
            report.line("  mean", f"{peak * n_tokens:,.0f} tokens/s")
            report.line("arrivals", f"{len(status):,}: {len(good):,} answered, {len(refused):,} refused")
            report.line("goodput / peak", f"{goodput:.0%}", "≥ 90%", goodput >= 0.9)
            late = quantile(np.array(result.sent)[status == 429] - np.array(result.begin)[status == 429], 0.99)
            report.line(
                "refusals: p50, p99, max",
                f"{quantile(answered, 0.5):.1f}, {quantile(answered, 0.99):.1f}, {quantile(answered, 1):.1f} ms",
                "≤ 50 ms",
                bool(len(answered)) and quantile(answered, 1) <= 50,
            )
            report.line("  time in the load generator before sending, p99", f"{late:.1f} ms")
            n_bare = int((headers < 0).sum())
            report.line("  without Retry-After", f"{n_bare:,}", "0", n_bare == 0)
            report.line(
                "  Retry-After, least and most", f"{headers.min():g} and {headers.max():g} s" if len(headers) else "–"
            )
            report.line(
                "answers: p50, p99, max",
                f"{quantile(good, 0.5):.0f}, {quantile(good, 0.99):.0f}, {quantile(good, 1):.0f} ms",
            )
            report.line("neither answered nor refused", f"{dict(others) or 'none'}", "none", not others)
            most, usual_most = max(memory), max(usual_memory)
            report.line(
                "resident memory: idle, at peak, most, after",
                f"{idle:.0f}, {usual_most:.0f}, {most:.0f}, {after:.0f} MB",
            )
            report.line(
                "  growth from peak to overload", f"{most / usual_most - 1:.0%}", "≤ 10%", most <= 1.1 * usual_most
            )
            report.line("  growth from idle to idle", f"{after / idle - 1:.0%}", "≤ 10%", after <= 1.1 * idle)
            normal = 1.5 * float(np.median(usual)) + 0.005
            back = time_to_normal(probe, float(max(result.begin)), normal)
            report.line(
                f"latency is normal (< {normal * 1000:.0f} ms) after",
                "not within 4 s" if back is None else f"{back:.2f} s",
                "≤ 1 s",
                back is not None and back <= 1,
            )
    measure_interleaving(bench)


def measure_peak(
    bench: Bench, server: Server, requests: Sequence[bytes], *, memory: list[float] | None = None
) -> float:
    """Return the requests per second of a closed loop, with the better number of clients.

    The resident memory during the loop is added to ``memory``.
    """
    rates = []
    for n in (8, 64):
        load = bench.start(server, requests, 3, clients=n)
        sizes = watch_memory(server, load)
        rates.append(rate(load.result(), warm_up=0.3))
        if memory is not None:
            memory += sizes
    return max(rates)


def watch_memory(server: Server, load: Future[LoadResult]) -> list[float]:
    """Return the resident memory of the server, in MB, four times per second until the load ends."""
    memory = [server.resident()]
    while not load.done():
        time.sleep(0.25)
        memory.append(server.resident())
    return memory


def time_to_normal(probe: LoadResult, last_arrival: float, limit: float) -> float | None:
    """Return the seconds from the last arrival of an overload until the median of 10 requests is under a limit."""
    seconds = latencies(probe)
    for k in range(max(1, len(seconds) - 9)):
        if np.median(seconds[k : k + 10]) <= limit and seconds[k] <= limit:
            return max(0.0, probe.begin[k] - last_arrival)
    return None


def measure_interleaving(bench: Bench) -> None:
    """Measure small requests while a request of 100,000 tokens runs, as many sentences and as a single one."""
    report = bench.report
    report.title("interleaving: 4 clients with 20 tokens each while a request of 100,000 tokens runs")
    many = [" ".join(bench.sentences[k % 500] for k in range(j, j + 5)) for j in range(1000)]
    lengths = np.cumsum([len(model().tokenizer(text).tokens) for text in many])
    many = many[: int((lengths <= 100_000).sum())]
    words = " ".join(bench.sentences * 8).split()[:99_000]
    with bench.serve() as server:
        requests = bench.words(server)
        usual = latencies(bench.run(server, requests, 3, clients=4), 200)
        report.line(
            "without it: p50, p99, max",
            f"{quantile(usual, 0.5):.1f}, {quantile(usual, 0.99):.1f}, {quantile(usual, 1):.0f} ms",
        )
        for name, inputs in (("1,000 sentences of 100", many), ("one sentence of 99,000", [words])):
            large = server.request("/v1/words", {"inputs": inputs, "encoding": "npy", "dtype": "float16"})
            plan = LoadPlan(server.port, (large,), 120, clients=1, n_requests=1)
            future = bench.other_load.submit(run_load, plan)
            results = []
            while not future.done():
                results.append(bench.run(server, requests, 1.0, clients=4))
            other = future.result()
            small = np.concatenate([latencies(result, 200) for result in results])
            failed = Counter(status for result in results for status in result.status if status != 200)
            took = latencies(other)[0]
            report.line(f"{name}: status, seconds", f"{other.status[0]}, {took:.1f} s", "200", other.status[0] == 200)
            report.line(
                "  small requests: p50, p99, max",
                f"{quantile(small, 0.5):.1f}, {quantile(small, 0.99):.1f}, {quantile(small, 1):.0f} ms",
            )
            report.line(
                "  small requests per second, failed",
                f"{len(small) / len(results):.0f}, {dict(failed) or 0}",
                "none failed",
                not failed,
            )


# --- shutdown and bad clients --------------------------------------------------------------------------


def measure_shutdown(bench: Bench) -> None:
    """Stop the server under load; kill a worker; disconnect; connect slow clients."""
    report = bench.report
    report.title(f"shutdown: SIGTERM under a load of 32 clients, {bench.options.stops} times")
    totals: Counter[str] = Counter()
    exits, codes = [], Counter()
    for k in range(bench.options.stops):
        with Server(*bench.server_options) as server:
            requests = bench.groups(server, 8) if k % 2 else bench.words(server)
            result = bench.run(
                server, requests, 1.6, clients=32, grace=15, signal=(server.process.pid, signal.SIGTERM, 0.8 + 0.03 * k)
            )
            signaled = result.signaled_at or 0.0
            try:
                server.process.wait(30)
            except subprocess.TimeoutExpired:
                totals["did not exit"] += 1
            exits.append(
                max(0.0, max(t for t, s in zip(result.end, result.status, strict=True) if s != REFUSED) - signaled)
            )
            codes[server.process.poll()] += 1
            if server.process.poll():
                print(f"  exit code {server.process.poll()}: {server.read_log()[-1000:]}")
            for status, sent, end, is_reused in zip(
                result.status, result.sent, result.end, result.is_reused, strict=True
            ):
                if status == REFUSED:
                    continue
                if 0 <= sent < signaled and end >= signaled:
                    totals["in progress at the signal"] += 1
                    if status in (LOST, TIMED_OUT):
                        totals["lost" if is_reused else "lost in the backlog"] += 1
                    elif status != 200:
                        totals[f"in progress, answered {status}"] += 1
                elif sent >= signaled:
                    totals[
                        {LOST: "sent after the signal, closed without reply"}.get(
                            status, f"sent after the signal, answered {status}"
                        )
                    ] += 1
                elif sent < 0:
                    totals["not sent completely"] += 1
    for name in ("in progress at the signal", "lost", "lost in the backlog", "did not exit"):
        report.line(
            name,
            f"{totals.pop(name, 0):,}",
            "" if name.startswith("in ") else "0",
            name.startswith("in ") or not totals[name],
        )
    for name, n in sorted(totals.items()):
        report.line(name, f"{n:,}")
    report.line(
        "last reply after the signal: median, most",
        f"{statistics.median(exits):.2f}, {max(exits):.2f} s",
        "≤ 10 s",
        max(exits) <= 10,
    )
    report.line("exit codes", str(dict(codes)), "0", set(codes) == {0})
    measure_exit(bench)
    measure_worker_restart(bench)
    measure_disconnects(bench)
    measure_slow_clients(bench)


def measure_exit(bench: Bench) -> None:
    """Measure the seconds from SIGTERM to the end of the process while 32 clients keep sending."""
    times = []
    for _ in range(3):
        with Server(*bench.server_options) as server:
            load = bench.start(server, bench.groups(server, 8), 2.0, clients=32, grace=15)
            time.sleep(1.0)
            times.append(server.stop())
            load.result()
    bench.report.line(
        "seconds to exit: median, most",
        f"{statistics.median(times):.2f}, {max(times):.2f} s",
        "≤ 10 s",
        max(times) <= 10,
    )


def measure_worker_restart(bench: Bench) -> None:
    """Kill one of two workers under load."""
    report = bench.report
    report.title("restart: SIGKILL of one of two workers under a load of 16 clients")
    with bench.serve("--workers", "2") as server:
        workers = find_workers(server)
        if len(workers) < 2:
            report.line("workers", f"{len(workers)}", "2", is_met=False)
            return
        load = bench.start(server, bench.words(server), 8.0, clients=16)
        time.sleep(2)
        os.kill(workers[0], signal.SIGKILL)
        killed = time.monotonic()
        back = None
        while time.monotonic() < killed + 20 and back is None:
            found = find_workers(server)
            if len(found) >= 2 and workers[0] not in found:
                back = time.monotonic() - killed
            time.sleep(0.02)
        result = load.result()
        ends = np.array(result.end)[np.array(result.status) == 200]
        gap = float(np.diff(ends[ends > killed - 0.5]).max())
        lost = sum(status != 200 for status in result.status)
        report.line(
            "requests lost with the worker",
            f"{lost:,} of {len(result.status):,}: {count_failures(result)}",
            "≤ 16",
            lost <= 16,
        )
        report.line("longest time without a reply", f"{gap * 1000:.0f} ms")
        report.line("a new worker runs after", "never" if back is None else f"{back:.2f} s", "", back is not None)
        time.sleep(3)
        before = {pid: cpu_seconds(pid) for pid in find_workers(server)}
        again = bench.run(server, bench.words(server), 2.0, clients=16)
        shares = sorted(cpu_seconds(pid) - seconds for pid, seconds in before.items())
        report.line(
            "CPU seconds of the workers afterwards",
            ", ".join(f"{share:.1f}" for share in shares),
            "both work",
            min(shares) > 0.1,
        )
        report.line("failures afterwards", count_failures(again), "none", all(status == 200 for status in again.status))


def find_workers(server: Server) -> list[int]:
    """Return the process ids of the workers: the children of the server that hold a model."""
    found = []
    for pid in server.pids()[1:]:
        try:
            match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        except OSError:
            continue
        if match and int(match[1]) > 100_000:
            found.append(pid)
    return found


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_disconnects(bench: Bench) -> None:
    """Let 1,000 clients disconnect half-way, 20 times.

    A leak grows with every 1,000 clients, so that the most memory after one of the last ten times is compared with the
    most after one of the first ten: 2% are about 0.6 kB per client. Before that, memory rises to that of the most
    requests that are ever open at once: Python keeps small objects in arenas of 1 MB, and returns only those arenas to
    the system in which no object is left.
    """
    report = bench.report
    report.title("disconnects: 20 × 1,000 clients that leave half-way")
    with bench.serve() as server:
        requests = bench.groups(server, 32)
        bench.run(server, requests, 3, clients=32)
        usual = latencies(bench.run(server, bench.words(server), 1.5, clients=1), 200)
        time.sleep(1.5)  # an idle server returns memory once per second
        memory = [server.resident()]
        n, queue, drained = 0, None, 0.0
        for _ in range(20):
            n += bench.load.submit(drop_clients, server.port, requests, 1000).result()
            begin = time.monotonic()
            queue = server.queue()
            while queue and time.monotonic() < begin + 30:
                time.sleep(0.02)
                queue = server.queue()
            drained = max(drained, time.monotonic() - begin)
            time.sleep(1.5)
            memory.append(server.resident())
        report.line("connected", f"{n:,}")
        value = "no gauge in /metrics" if queue is None else f"{queue:g} after ≤ {drained:.2f} s"
        report.line("queue", value, "0", queue == 0)
        values = ", ".join(f"{memory[k]:.0f}" for k in (0, 1, 2, 5, 10, 15, 20))
        report.line("resident MB: before, after 1, 2, 5, 10, 15 and 20 times", values)
        growth = max(memory[11:]) / max(memory[1:11]) - 1
        report.line("  growth from the first ten to the last ten", f"{growth:.1%}", "≤ 2%", growth <= 0.02)
        later = latencies(bench.run(server, bench.words(server), 1.5, clients=1), 200)
        report.line(
            "latency of one client: before, after", f"{quantile(usual, 0.5):.1f}, {quantile(later, 0.5):.1f} ms"
        )


def measure_slow_clients(bench: Bench) -> None:
    """Measure the latency of others while 200 clients send one byte per second."""
    report = bench.report
    report.title("slow clients: 200 connections that send one byte per second")
    with bench.serve() as server:
        requests = bench.words(server)
        usual = latencies(bench.run(server, requests, 3, clients=4), 200)
        slow = bench.other_load.submit(hold_slow_clients, server.port, requests[0], 200, seconds=10.0)
        time.sleep(2)
        during = bench.run(server, requests, 6, clients=4)
        connected, lasting = slow.result()
        found = latencies(during, 200)
        report.line("connected, still open after 10 s", f"{connected}, {lasting}")
        for name, values in (("without them", usual), ("with them", found)):
            report.line(
                f"{name}: p50, p99, max",
                f"{quantile(values, 0.5):.1f}, {quantile(values, 0.99):.1f}, {quantile(values, 1):.0f} ms",
            )
        ratio = quantile(found, 0.5) / quantile(usual, 0.5)
        report.line("  ratio of the medians", f"{ratio:.2f}", "≤ 1.25", ratio <= 1.25)
        report.line("failures", count_failures(during), "none", all(status == 200 for status in during.status))


# --- soak ----------------------------------------------------------------------------------------------


def mixed_requests(bench: Bench, server: Server) -> tuple[list[bytes], list[int]]:
    """Build a mix of requests to all routes, and the status that each must have."""
    chance = np.random.default_rng(1)
    marked = ["I sat by the [[bank]] of the river .", "She took the money to the [[bank]] ."]
    counts = Counter(word for sentence in bench.sentences for word in sentence.split() if len(word) > 3)
    ((word, _),) = counts.most_common(1)
    kinds: list[tuple[int, str, Callable[[list[str]], Any], int]] = [
        (40, "/v1/words", lambda s: {"inputs": s[:1], "encoding": "base64"}, 200),
        (10, "/v1/words", lambda s: {"inputs": s[:1]}, 200),
        (10, "/v1/words", lambda s: {"inputs": s[:16], "encoding": "base64", "dtype": "float16", "layers": "all"}, 200),
        (4, "/v1/words", lambda s: {"inputs": s, "encoding": "npy", "layers": "concat"}, 200),
        (4, "/v1/words", lambda s: {"inputs": [s[0].split()], "layers": {"weights": [0.1, 0.2, 0.3]}}, 200),
        (8, "/v1/embeddings", lambda s: {"input": s[:4], "model": "en", "encoding_format": "base64"}, 200),
        (4, "/embed", lambda s: {"inputs": s[:4]}, 200),
        (2, "/embed_all", lambda s: {"inputs": s[:2]}, 200),
        (4, "/tokenize", lambda s: {"inputs": s[:8]}, 200),
        (4, "/v1/similarity", lambda _: {"sentences": marked}, 200),
        (3, "/v1/score", lambda s: {"inputs": s[:2]}, 200),
        (2, "/v1/substitutes", lambda _: {"inputs": marked[:1]}, 200),
        (2, "/v1/explain", lambda _: {"input": marked[0]}, 200),
        (1, "/v1/expectations", lambda s: {"inputs": s[:1]}, 200),
        (1, "/v1/inside", lambda s: {"input": s[0]}, 200),
        (2, "/v1/neighbors", lambda _: {"inputs": marked[:1]}, 200),
        (1, "/v1/concordance", lambda _: {"word": word}, 200),
        (1, "/v1/senses", lambda _: {"word": word, "limit": 50}, 200),
        (1, "/v1/map", lambda _: {"word": word, "limit": 50}, 200),
        (2, "/v1/words", lambda _: {"inputs": 3}, 400),
        (1, "/v1/words", lambda s: {"inputs": s[:1], "model": "nothing"}, 404),
        (1, "/v1/nothing", lambda _: {}, 404),
    ]
    requests, statuses = [], []
    for n, path, build, status in kinds:
        for _ in range(n * 2):
            picked = chance.choice(len(bench.sentences), 64, replace=False)
            requests.append(server.request(path, build([bench.sentences[k] for k in picked])))
            statuses.append(status)
    order = chance.permutation(len(requests))
    return [requests[k] for k in order], [statuses[k] for k in order]


def build_usages(bench: Bench, folder: str) -> Path:
    """Build an index of the usages in the sentences of the benchmark."""
    from elmo.lexicon import IndexJob, build_index

    text = Path(folder) / "text.txt"
    text.write_text("\n".join(bench.sentences) + "\n", encoding="utf-8")
    build_index(IndexJob((str(text),), Path(folder) / "usages"), model())
    return Path(folder) / "usages"


def measure_soak(bench: Bench) -> None:
    """Send a mix of requests for ``--seconds`` and print errors, memory and latency by minute."""
    report, seconds, arrivals = bench.report, bench.options.seconds, bench.options.rate
    kind = "8 clients" if arrivals is None else f"{arrivals:g} arrivals/s"
    report.title(f"soak: mixed requests, {kind}, for {seconds:g} s")
    minute = min(60.0, seconds / 6)
    rows: list[tuple[float, float, float]] = []
    n_requests = n_errors = 0
    with tempfile.TemporaryDirectory() as folder, bench.serve("--index", str(build_usages(bench, folder))) as server:
        requests, statuses = mixed_requests(bench, server)
        small = np.array([b"POST /v1/words" in head[:20] and len(head) < 500 for head in requests])
        names = f"{'p50 ms':>9}{'p99 ms':>9}{'small p50':>11}{'small p99':>11}{'CPU s':>8}"
        print(f"  {'seconds':>8}{'requests':>10}{'errors':>8}{'MB':>8}{names}")
        begin = time.monotonic()
        while time.monotonic() < begin + seconds - minute / 2:
            used = cpu_seconds(server.process.pid)
            clients = 8 if arrivals is None else 1000
            result = bench.run(server, requests, minute, clients=clients, rate=arrivals)
            used = cpu_seconds(server.process.pid) - used
            errors = Counter(
                (requests[which].split(b" ", 2)[1].decode(), status)
                for which, status in zip(result.which, result.status, strict=True)
                if status != statuses[which]
            )
            n_requests += len(result.status)
            n_errors += errors.total()
            found = latencies(result)
            of_small = found[small[np.array(result.which)]]
            rows.append((server.resident(), quantile(of_small, 0.5), quantile(of_small, 0.99)))
            print(
                f"  {time.monotonic() - begin:8.0f}{len(found):10,}{errors.total():8,}{rows[-1][0]:8.0f}"
                f"{quantile(found, 0.5):9.1f}{quantile(found, 0.99):9.1f}{rows[-1][1]:11.1f}{rows[-1][2]:11.1f}"
                f"{used:8.1f}  {dict(errors) if errors else ''}",
                flush=True,
            )
        log = server.read_log()
    report.line("requests, errors", f"{n_requests:,}, {n_errors:,}", "0 errors", not n_errors)
    n_traces = log.count("Traceback")
    report.line("tracebacks in the log", f"{n_traces}", "0", not n_traces)
    steady = np.array(rows[max(1, len(rows) // 6) :])  # after warm-up
    drift = np.abs(steady[:, 0] / steady[0, 0] - 1).max()
    report.line("memory after warm-up: largest deviation", f"{drift:.1%}", "≤ 5%", drift <= 0.05)
    half = len(steady) // 2
    slope = np.median(steady[half:, 1]) / np.median(steady[: max(1, half), 1])
    report.line(
        "latency of small requests, second half / first half", f"{slope:.2f}", "0.8..1.25", 0.8 <= slope <= 1.25
    )


# --- startup and size ----------------------------------------------------------------------------------


def measure_startup(bench: Bench) -> None:
    """Measure the time to readiness, and what the extra installs."""
    report = bench.report
    report.title("startup and size")
    times = []
    for _ in range(bench.options.rounds):
        with Server(*bench.server_options) as server:
            times.append(server.startup)
    report.line(
        "ready after: median, most",
        f"{statistics.median(times):.2f}, {max(times):.2f} s",
        "≤ 3 s",
        statistics.median(times) <= 3,
    )
    core, extra = dependency_closure(""), dependency_closure("serve")
    added = sorted(extra - core)
    sizes = {name: installed_bytes(name) / 1e6 for name in added}
    report.line("packages that the extra adds", f"{len(added)}", "≤ 12", 0 < len(added) <= 12)
    report.line("  their installed size", f"{sum(sizes.values()):.2f} MB", "≤ 3 MB", sum(sizes.values()) <= 3)
    print("  " + ", ".join(f"{name} {size:.2f}" for name, size in sizes.items()))


def dependency_closure(extra: str) -> set[str]:
    """Return the installed packages that pyelmo needs, with an extra or (for "") without."""
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found: set[str] = set()
    waiting: list[tuple[str, frozenset[str]]] = [("pyelmo", frozenset({extra}))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            requirements = pyelmo_requirements() if name == "pyelmo" else requires(name) or []
        except PackageNotFoundError:
            print(f"  {name} is not installed", file=sys.stderr)
            continue
        found.add(name)
        for line in requirements:
            requirement = Requirement(line)
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in extras | {""}):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return found - {"pyelmo"}


def pyelmo_requirements() -> list[str]:
    """Return the requirements in pyproject.toml, which may be newer than those of the installed package."""
    import tomllib

    project = tomllib.loads((SRC.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return project["dependencies"] + [
        f'{line} ; extra == "{extra}"' if ";" not in line else f'{line} and extra == "{extra}"'
        for extra, lines in extras.items()
        for line in lines
        if extra != "all"
    ]


def installed_bytes(name: str) -> int:
    """Return the bytes of the installed files of a package, without bytecode."""
    from importlib.metadata import files

    paths = [Path(str(file.locate())) for file in files(name) or [] if file.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.is_file())


# --- SDKs ----------------------------------------------------------------------------------------------

PYTHON_SDK = """
import json, sys
from openai import NotFoundError, BadRequestError, OpenAI
base, key, texts = json.load(sys.stdin)
client = OpenAI(base_url=base + "/v1", api_key=key)
out = {"models": [model.id for model in client.models.list().data]}
out["default"] = [d.embedding for d in client.embeddings.create(model="en", input=texts).data]
out["float"] = [d.embedding for d in client.embeddings.create(model="en", input=texts, encoding_format="float").data]
one = client.embeddings.create(model="en", input=texts[0])
out["single"], out["tokens"] = one.data[0].embedding, one.usage.total_tokens
many = client.embeddings.create(model="en", input=[texts[0]] * 2048)
out["many"] = [len(many.data), many.data[2047].index]
errors = []
bad = ({"model": "nothing", "input": "a"}, {"input": [[1, 2]]}, {"input": "a", "dimensions": 7})
for fields in bad:
    try:
        client.embeddings.create(**{"model": "en", **fields})
    except Exception as error:
        errors.append(type(error).__name__)
out["errors"] = errors
print(json.dumps(out))
"""
NODE_SDK = """
import OpenAI from "openai";
const [base, apiKey, texts] = JSON.parse(process.argv[2]);
const client = new OpenAI({ baseURL: base + "/v1", apiKey });
const vectors = (reply) => reply.data.map((item) => Array.from(item.embedding));
const out = { models: (await client.models.list()).data.map((model) => model.id) };
out.default = vectors(await client.embeddings.create({ model: "en", input: texts }));
out.float = vectors(await client.embeddings.create({ model: "en", input: texts, encoding_format: "float" }));
out.single = vectors(await client.embeddings.create({ model: "en", input: texts[0] }))[0];
const many = await client.embeddings.create({ model: "en", input: Array(2048).fill(texts[0]) });
out.many = [many.data.length, many.data[2047].index];
out.errors = [];
const bad = [{ model: "nothing", input: "a" }, { input: [[1, 2]] }, { input: "a", dimensions: 7 }];
for (const fields of bad) {
  await client.embeddings.create({ model: "en", ...fields }).catch((error) => out.errors.push(error.constructor.name));
}
console.log(JSON.stringify(out));
"""


def check_sdks(bench: Bench) -> None:
    """Use the official OpenAI SDKs and the curl examples of TEI's documentation."""
    report = bench.report
    report.title("sdk: unmodified OpenAI SDKs, and curl as in TEI's documentation")
    wanted = np.stack([encoding.sentence() for encoding in model().encode(SDK_TEXTS)]).astype(np.float64)
    key = "a-key-for-the-benchmark"
    with bench.serve() as server, bench.serve(environment={"ELMO_API_KEY": key}) as closed:
        for place, name in ((server, "without key"), (closed, "with key")):
            arguments = json.dumps([f"http://127.0.0.1:{place.port}", key, list(SDK_TEXTS)])
            for language, reply in (
                ("Python", run_python_sdk(bench.options.openai_python, arguments)),
                ("Node", run_node_sdk(bench.options.openai_node, arguments)),
            ):
                title = f"{language} SDK, {name}"
                if isinstance(reply, str):
                    report.line(title, reply[-200:], "", is_met="not given" in reply)
                    continue
                parts = (reply["default"], reply["float"], [reply["single"]])
                error = max(float(np.abs(np.array(rows) - wanted[: len(rows)]).max()) for rows in parts)
                report.line(f"{title}: largest error", f"{error:.1e}", "≤ 1e-6", error <= 1e-6)
                is_right = reply["many"] == [2048, 2047] and "en" in reply["models"]
                report.line("  2,048 inputs, list of models", f"{reply['many'][0]}, {reply['models']}", "", is_right)
                errors = ", ".join(reply["errors"])
                is_right = errors == "NotFoundError, BadRequestError, BadRequestError"
                report.line("  bad model, token ids, dimensions", errors, "", is_right)
        check_curl(report, server)


def run_python_sdk(python: str | None, arguments: str) -> Any:
    """Run the Python SDK in its own environment; return what it found, or why it could not run."""
    if python is None:
        return "not given: --openai-python"
    done = subprocess.run([python, "-c", PYTHON_SDK], input=arguments, text=True, capture_output=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()


def run_node_sdk(folder: str | None, arguments: str) -> Any:
    """Run the Node SDK; return what it found, or why it could not run."""
    node = shutil.which("node")
    if folder is None or node is None:
        return "not given: --openai-node"
    script = Path(folder) / "check-elmo.mjs"
    script.write_text(NODE_SDK, encoding="utf-8")
    done = subprocess.run([node, script.name, arguments], cwd=folder, text=True, capture_output=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()


def check_curl(report: Report, server: Server) -> None:
    """Run the examples of TEI's documentation whose routes are offered."""
    if shutil.which("curl") is None:
        report.line("curl", "not installed")
        return
    width, question = model().width, "What is Deep Learning?"
    examples: tuple[tuple[str, Any, Callable[[Any], bool]], ...] = (
        ("/embed", {"inputs": question}, lambda reply: np.shape(reply) == (1, width)),
        ("/embed", {"inputs": ["Today is a nice day", "I like you"]}, lambda reply: np.shape(reply) == (2, width)),
        ("/embed", {"inputs": question, "normalize": True, "truncate": True}, lambda reply: len(reply) == 1),
        ("/embed_all", {"inputs": question}, lambda reply: np.shape(reply) == (1, 5, width)),
        ("/tokenize", {"inputs": question}, lambda reply: reply[0][0]["text"] == "What"),
        (
            "/v1/embeddings",
            {"input": question, "model": "en"},
            lambda reply: len(reply["data"][0]["embedding"]) == width,
        ),
        ("/info", None, lambda reply: reply["max_input_length"] > 0),
        ("/health", None, lambda reply: True),
    )
    for path, body, check in examples:
        data = [] if body is None else ["-X", "POST", "-d", json.dumps(body), "-H", "Content-Type: application/json"]
        done = subprocess.run(
            ["curl", "-sS", "-w", "\n%{http_code}", f"127.0.0.1:{server.port}{path}", *data],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        reply, _, status = done.stdout.rpartition("\n")
        try:
            is_right = status == "200" and bool(check(json.loads(reply or "null")))
        except (ValueError, LookupError, TypeError):
            is_right = False
        report.line(f"curl {path} {body or ''}"[:58], status, "200", is_right)


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "throughput": measure_throughput,
    "bits": check_bits,
    "overload": measure_overload,
    "shutdown": measure_shutdown,
    "startup": measure_startup,
    "sdk": check_sdks,
    "soak": measure_soak,
}


def main() -> int:
    """Run the sections; return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(SECTIONS)}; default: all but soak")
    parser.add_argument("--text", type=Path, help="file with one sentence per line; default: random sentences")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of overload and soak")
    parser.add_argument("--rate", type=float, help="arrivals per second of the soak; default: 8 clients in a loop")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds of throughput and startup")
    parser.add_argument("--round-seconds", type=float, default=3.0, help="seconds of each measurement in a round")
    parser.add_argument("--stops", type=int, default=20, help="number of shutdowns under load")
    parser.add_argument("--group", type=int, nargs="+", default=[1, 16], help="sentences per request of the overload")
    parser.add_argument("--server", default="--no-access-log", metavar="OPTIONS", help="options of elmo serve")
    parser.add_argument("--openai-python", help="Python interpreter that has the package openai")
    parser.add_argument("--openai-node", help="folder in which the npm package openai is installed")
    options = parser.parse_args()
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"SECTION must be one of {', '.join(SECTIONS)}; found {unknown[0]}")
    warn_if_busy()
    bench = Bench(options)
    for name in options.sections or [name for name in SECTIONS if name != "soak"]:
        SECTIONS[name](bench)
    if bench.report.n_missed:
        print(f"\n{bench.report.n_missed} missed")
    return int(bench.report.n_missed > 0)


if __name__ == "__main__":
    sys.exit(main())
