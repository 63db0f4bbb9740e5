"""Metrics of the service in the format of Prometheus, and its access log."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Callable
from typing import Any

import orjson
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)

_PIPE_BYTES = 4096
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKENS = (1, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)
_REASONS = {401: "key", 403: "origin", 413: "too large", 429: "overload", 503: "unavailable", 504: "deadline"}


class Metrics:
    """The counters of one process. With several processes, ``export`` adds those of all (PROMETHEUS_MULTIPROC_DIR)."""

    def __init__(self) -> None:
        self._is_shared = bool(os.environ.get("PROMETHEUS_MULTIPROC_DIR"))
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("elmo_requests_total", "Requests.", ("path", "status"), registry=registry)
        self._refusals = Counter("elmo_refusals_total", "Refused requests.", ("reason",), registry=registry)
        self._tokens = Counter("elmo_tokens_total", "Tokens of answered requests.", ("path",), registry=registry)
        self._latency = Histogram(
            "elmo_request_seconds", "Duration of requests.", ("path",), buckets=_SECONDS, registry=registry
        )
        self._waiting = Histogram("elmo_queue_seconds", "Time in the queue.", buckets=_SECONDS, registry=registry)
        self._batch_tokens = Histogram("elmo_batch_tokens", "Tokens per batch.", buckets=_TOKENS, registry=registry)
        self._batch_requests = Histogram(
            "elmo_batch_requests", "Requests per batch.", buckets=(1, 2, 4, 8, 16, 32, 64, 128), registry=registry
        )
        self._batch_seconds = Histogram(
            "elmo_batch_seconds", "Duration of a batch.", buckets=_SECONDS, registry=registry
        )
        self._gauges = {
            name: Gauge(f"elmo_{name}", text, registry=registry, multiprocess_mode="livesum")
            for name, text in (
                ("queued_tokens", "Tokens in the queue and in the batch in progress."),
                ("requests_in_progress", "Requests in progress."),
                ("reserved_bytes", "Memory that is reserved for requests and replies."),
            )
        }
        self._sources: dict[str, Callable[[], int]] = {}
        self._counters: dict[tuple[str, int], tuple[Any, ...]] = {}  # by path and status

    def watch(self, *, queued: Callable[[], int], requests: Callable[[], int], memory: Callable[[], int]) -> None:
        """Set the functions that return the current values of the gauges."""
        self._sources = {"queued_tokens": queued, "requests_in_progress": requests, "reserved_bytes": memory}

    def observe_request(self, path: str, status: int, seconds: float, n_tokens: int, queue_seconds: float) -> None:
        """Count a request."""
        count, observe, count_tokens, count_refusal = self._find_counters(path, status)
        count()
        observe(seconds)
        if status == 200 and n_tokens:
            count_tokens(n_tokens)
            self._waiting.observe(queue_seconds)
        elif count_refusal is not None:
            count_refusal()
        if self._is_shared:  # other processes read the gauges from a file
            self._update_gauges()

    def _find_counters(self, path: str, status: int) -> tuple[Any, ...]:
        """Return the functions that count a request; finding them by their labels takes longer than counting."""
        found = self._counters.get((path, status))
        if found is None:
            refusals = self._refusals.labels(_REASONS[status]).inc if status in _REASONS else None
            found = (
                self._requests.labels(path, str(status)).inc, self._latency.labels(path).observe,
                self._tokens.labels(path).inc, refusals,
            )  # fmt: skip
            self._counters[path, status] = found
        return found

    def observe_batch(self, n_tokens: int, n_requests: int, seconds: float) -> None:
        """Count a batch."""
        self._batch_tokens.observe(n_tokens)
        self._batch_requests.observe(n_requests)
        self._batch_seconds.observe(seconds)

    def export(self) -> tuple[bytes, str]:
        """Return all metrics as text, and its content type."""
        self._update_gauges()
        registry = self._registry
        if self._is_shared:
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)
        return generate_latest(registry), CONTENT_TYPE_LATEST

    def _update_gauges(self) -> None:
        for name, source in self._sources.items():
            self._gauges[name].set(source())


class AccessLog:
    """Writes one JSON object per request and line to stderr.

    Lines are collected and written together by ``flush``, which the server calls every 0.1 seconds: with thousands of
    refusals per second, a system call for each line would be a large part of the work.
    """

    def __init__(self) -> None:
        self._lines: list[bytes] = []

    def add(self, line: dict[str, Any]) -> None:
        """Add the line of a request."""
        self._lines.append(orjson.dumps(line))

    def flush(self) -> None:
        """Write the lines; they are lost if stderr is closed or full."""
        lines, self._lines = self._lines, []
        with contextlib.suppress(OSError, ValueError, AttributeError):
            while lines:
                # Writes of this size are atomic, so that the lines of several processes do not mix.
                n_bytes = itertools.accumulate(len(line) + 1 for line in lines)
                n = max(1, sum(1 for _ in itertools.takewhile(lambda size: size <= _PIPE_BYTES, n_bytes)))
                sys.stderr.write(b"\n".join((*lines[:n], b"")).decode())
                sys.stderr.flush()
                del lines[:n]
