"""The application: routes, limits, access rules and error replies.

A request passes through ``App.accept``: access rules, and whether there is room for it; then the handler of its route
reads the body (limited), checks the request, submits work to the scheduler, waits for it and builds the reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import math
import os
import random
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from elmo.errors import ConfigError, DataError, ElmoError, EncodingError, SentenceTooLongError, StateError
from elmo.serve import compatible, explore, native, openapi
from elmo.serve.connection import SEND_SECONDS, DisconnectedError, HttpExchange
from elmo.serve.metrics import AccessLog, Metrics
from elmo.serve.options import ServeOptions
from elmo.serve.replies import estimate_bytes, to_json, to_pieces
from elmo.serve.scheduler import LONG_SENTENCE, DeadlineError, Lane, OverloadedError, TooMuchWorkError, Work, cost_of
from elmo.serve.schemas import REQUESTS, RequestError, Schema, check
from elmo.serve.service import LoadedModel, Service
from elmo.text.tokenizers import Tokens

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset(("/livez", "/readyz", "/health"))  # without Host check: probes use the address of a machine
QUIET_PATHS = OPEN_PATHS | {"/metrics"}  # not logged
WORDS_PATHS = frozenset(("/v1/words", "/v1/embeddings", "/embed", "/embed_all", "/tokenize"))  # of the lane words
INPUT_ERRORS = (DataError, ConfigError, StateError)  # whose messages describe the request
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
LARGE_BODY = 1 << 16  # bytes; larger bodies are parsed outside of the event loop
LARGE_REPLY = 1 << 17  # bytes; larger replies are built outside of the event loop,
LARGE_TOKENS = 2048  # and those to requests with more tokens
BODY_SECONDS = 20.0  # in which a client must send its body
SEND_RATE = 100_000  # bytes per second; a slower client is disconnected, because its reply occupies memory
SEND_BYTES = 1 << 18  # sent at once; the next part waits until the client has read most of it
MAX_VALUES = 1_000_000  # values in the JSON of a body
COUNTED_BYTES = 1 << 20  # of a body whose values are counted at once
VALUE_BYTES = 90  # memory that a value needs, at most
CHARACTER_BYTES = 225  # memory that the tokens of a text need per character while it is tokenized, at most
TOKEN_BYTES = 250  # memory that a token and its offsets need
MAX_REQUESTS = 4096  # requests in progress
_HOST = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::[0-9]*)?")  # the name, or an IPv6 address in brackets, and the port
_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 408: "timeout_error", 413: "invalid_request_error", 415: "invalid_request_error",
    429: "overloaded_error", 500: "server_error", 503: "server_error", 504: "timeout_error",
}  # fmt: skip


@dataclass
class Call:
    """One HTTP request in progress."""

    exchange: HttpExchange
    request_id: str
    deadline: float
    begin: float
    body_size: int = 0  # bytes that were read
    status: int = 0
    sent_bytes: int = 0
    n_tokens: int = 0
    queue_seconds: float = 0.0
    compute_seconds: float = 0.0
    reserved: int = 0  # bytes of memory
    reply_size: int = 0  # estimated bytes
    extra_headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    @property
    def path(self) -> str:
        """The path of the request."""
        return self.exchange.path

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The headers of the request."""
        return self.exchange.headers

    @property
    def has_large_reply(self) -> bool:
        """Whether the reply takes so long to build that it must be built outside of the event loop."""
        return self.reply_size >= LARGE_REPLY or self.n_tokens >= LARGE_TOKENS


Handler = Callable[[Call], Awaitable[None]]


class App:
    """The service."""

    def __init__(self, options: ServeOptions, *, n_threads: int = 1, load: Callable[[], Service] | None = None) -> None:
        self.options = options
        self.keys = options.read_keys()
        self.metrics = Metrics()
        self.access_log = AccessLog()
        self.service: Service | None = None
        self.load_error: str | None = None
        self.is_draining = False
        self.words = Lane(
            "words", max_wait=options.max_wait, max_seconds=options.timeout, n_threads=n_threads,
            observe=self.metrics.observe_batch,
        )  # fmt: skip
        self.calls = Lane("calls", max_wait=options.max_wait, max_seconds=options.timeout, min_measured=1)
        self._load = load or partial(Service.load, options)
        self._memory = 0  # bytes that are reserved for requests and replies
        self._n_requests = 0
        self.n_accepted = 0  # requests that were not refused at once, since the start
        self._max_memory = int(options.max_memory_mb * 1e6)
        self._max_body = int(options.max_body_mb * 1e6)
        self._max_reply = int(options.max_reply_mb * 1e6)
        self._hosts = {name.lower() for name in (*LOOPBACK_NAMES, options.host, *options.allowed_hosts)}
        # On other addresses, keys protect the service; without keys, an address in numbers cannot be rebound.
        self._any_host = not options.is_loopback and not options.allowed_hosts and bool(self.keys)
        self._any_address = not options.is_loopback and not options.allowed_hosts
        self._private_paths = _find_paths(options)
        self._origins = frozenset(origin.lower().encode() for origin in options.cors_origins)
        self.routes: dict[str, dict[str, Handler]] = self._build_routes()
        self.metrics.watch(queued=lambda: self.words.queued_tokens + self.calls.queued_tokens,
                           requests=lambda: self._n_requests, memory=lambda: self._memory)  # fmt: skip

    def _build_routes(self) -> dict[str, dict[str, Handler]]:
        return {
            **native.build_routes(self),
            **compatible.build_routes(self),
            **explore.build_routes(self),
            "/v1/models": {"GET": self.get_models},
            "/livez": {"GET": self.get_livez},
            "/readyz": {"GET": self.get_readyz},
            "/health": {"GET": self.get_readyz},
            "/metrics": {"GET": self.get_metrics},
            "/openapi.json": {"GET": self.get_openapi},
            "/docs": {"GET": self.get_docs},
        }

    # --- Start and stop -------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads and load the models; blocks until they are loaded."""
        self.words.start()
        self.calls.start()
        self.reload()

    def reload(self) -> None:
        """Load the models and indexes again and use them for new requests; keep the old ones on an error."""
        try:
            service = self._load()
        except ElmoError as error:
            self.load_error = str(error)
            if self.service is None:
                raise
            logger.error("cannot reload: %s; the models in use are kept", error)
            return
        except OSError as error:
            self.load_error = "cannot read a file"
            if self.service is None:
                raise ConfigError(f"cannot load the models: {error}") from error
            logger.error("cannot reload: %s; the models in use are kept", error)
            return
        self.words.set_rate(service.measure_rate())
        self.service, self.load_error = service, None

    def stop(self) -> None:
        """Stop the threads."""
        self.access_log.flush()
        self.words.stop()
        self.calls.stop()
        self.access_log.flush()

    @property
    def n_requests(self) -> int:
        """Number of requests in progress."""
        return self._n_requests

    @property
    def reserved_bytes(self) -> int:
        """Memory that is reserved for requests and replies in progress."""
        return self._memory

    # --- One request ----------------------------------------------------------------------------

    def accept(self, exchange: HttpExchange) -> Coroutine[Any, Any, None] | None:
        """Return the coroutine that answers a request; None if it was refused and has its reply."""
        begin = time.monotonic()
        request_id = _request_id(exchange.headers.get(b"x-request-id"))
        call = Call(exchange, request_id, begin + self.options.timeout, begin)
        try:
            handler = self._route(call)
            if exchange.method == "POST":
                self._check_room(call.path)
        except Exception as error:
            self._send_error(call, error)
            self._log(call)
            return None
        self._n_requests += 1
        self.n_accepted += 1
        return self._answer(call, handler)

    def _check_room(self, path: str) -> None:
        """Refuse requests that would have to wait too long, before anything else is done for them."""
        self.ready()
        if self._n_requests >= MAX_REQUESTS:
            raise OverloadedError(1.0)
        (self.words if path in WORDS_PATHS else self.calls).check_room()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Fail: uvicorn requires this interface, but requests come from ``elmo.serve.connection``."""
        raise NotImplementedError("use elmo.serve.serve")

    async def _answer(self, call: Call, handler: Handler) -> None:
        try:
            await handler(call)
        except DisconnectedError:
            call.status = 499
        except asyncio.CancelledError:
            call.status = 499
            raise
        except Exception as error:
            self._send_error(call, error)
        finally:
            self._n_requests -= 1
            self._memory -= call.reserved
            self._log(call)

    def _route(self, call: Call) -> Handler:
        """Check the access rules and return the handler; raise ``RequestError`` if the request is refused."""
        path, method = call.path, call.exchange.method
        if path not in OPEN_PATHS:
            self._check_host(call)
            origin = call.headers.get(b"origin")
            if origin is not None:
                self._check_origin(call, origin.lower())
                if method == "OPTIONS" and b"access-control-request-method" in call.headers:
                    return self._preflight
            if path.startswith("/v1/") or method == "POST":
                self._check_key(call)
        methods = self.routes.get(path)
        if methods is None:
            raise RequestError("no such route; see /docs", status=404, code="not_found")
        handler = methods.get("GET" if method == "HEAD" else method)
        if handler is None:
            call.extra_headers.append((b"allow", ", ".join(methods).encode()))
            raise RequestError(f"use {' or '.join(methods)}", status=405, code="method_not_allowed")
        return handler

    def _check_host(self, call: Call) -> None:
        if self._any_host:
            return
        host = call.headers.get(b"host", b"").decode("latin-1").lower()
        match = _HOST.fullmatch(host)
        if match is None or not (match[1] in self._hosts or (self._any_address and _is_address(match[1]))):
            raise RequestError("this host name is not allowed; see --allowed-host", status=403, code="forbidden_host")

    def _check_origin(self, call: Call, origin: bytes) -> None:
        """Refuse web pages of other origins, unless they are named."""
        if origin in self._origins:
            call.extra_headers += [
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", b"X-Request-Id, Server-Timing, Retry-After"),
                (b"vary", b"Origin"),
            ]
            return
        host = call.headers.get(b"host", b"").lower()
        if origin.partition(b"://")[2] != host:
            raise RequestError(
                "web pages of this origin are not allowed; see --cors-origin", status=403, code="forbidden_origin"
            )

    def _check_key(self, call: Call) -> None:
        if not self.keys:
            return
        scheme, _, key = call.headers.get(b"authorization", b"").partition(b" ")
        given = key.strip() if scheme.lower() == b"bearer" else b""
        matches = [hmac.compare_digest(given, known) for known in self.keys]  # compares with all, in constant time
        if not any(matches):
            call.extra_headers.append((b"www-authenticate", b"Bearer"))
            raise RequestError("a valid API key is required", status=401, code="unauthorized")

    async def _preflight(self, call: Call) -> None:
        call.extra_headers += [
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-allow-headers", b"Authorization, Content-Type, X-Request-Id, X-Timeout"),
            (b"access-control-max-age", b"600"),
        ]
        await self.send(call, [], status=204)

    # --- Requests -------------------------------------------------------------------------------

    def ready(self) -> Service:
        """Return the loaded service; raise ``RequestError`` while loading or draining."""
        if self.is_draining:
            raise UnavailableError("draining", "the server is shutting down")
        if self.service is None:
            raise UnavailableError("loading", "the models are being loaded")
        return self.service

    async def read_json(self, call: Call, lane: Lane) -> tuple[Service, Any]:
        """Check that there is room in the queue, and read and parse the body of a request."""
        service = self.ready()
        self._set_deadline(call)
        if self._n_requests > MAX_REQUESTS:
            raise OverloadedError(1.0)
        lane.check_room()
        kind = call.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            raise RequestError("the Content-Type must be application/json", status=415, code="unsupported_media_type")
        if call.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise RequestError("compressed bodies are not supported", status=415, code="unsupported_media_type")
        body = await self._read_body(call)
        self._reserve_values(call, body)
        try:
            value = orjson.loads(body) if len(body) < LARGE_BODY else await asyncio.to_thread(orjson.loads, body)
        except orjson.JSONDecodeError as error:
            raise RequestError(f"the body must be JSON: {_json_problem(error)}") from error
        del body
        self._release(call, call.body_size)
        if not isinstance(value, dict):
            raise RequestError("the body must be a JSON object")
        return service, value

    async def read_request(self, call: Call, lane: Lane) -> tuple[Service, dict[str, Any]]:
        """Read a request of the native API and check it against its schema."""
        service, value = await self.read_json(call, lane)
        return service, await self.check(call, value, REQUESTS[call.path])

    async def check(self, call: Call, value: Any, schema: Schema) -> dict[str, Any]:
        """Check a body against its schema; outside of the event loop if it is large."""
        if call.body_size < LARGE_BODY:
            return check(value, schema)
        return await asyncio.to_thread(check, value, schema)

    def _set_deadline(self, call: Call) -> None:
        text = call.headers.get(b"x-timeout")
        if text is None:
            return
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise RequestError("X-Timeout must be a number of seconds greater than 0", param="X-Timeout")
        call.deadline = call.begin + min(seconds, self.options.timeout)

    async def _read_body(self, call: Call) -> bytearray:
        length = call.headers.get(b"content-length", b"")
        length = length.lstrip(b"0")[:20] if length.isdigit() else b""
        if length and int(length) > self._max_body:
            raise self._too_large(call)
        if length:
            self.reserve(call, int(length))
        exchange = call.exchange
        if not exchange.more_body:  # the usual case: it came with the head
            body = await exchange.read()
            self._check_body(call, len(body), is_reserved=bool(length))
        else:
            body = bytearray()
            try:
                async with asyncio.timeout(min(BODY_SECONDS, call.deadline - time.monotonic())):
                    while exchange.more_body or exchange.body:
                        chunk = await exchange.read()
                        self._check_body(call, len(body) + len(chunk), is_reserved=bool(length), n_new=len(chunk))
                        body += chunk
            except TimeoutError:
                raise RequestError("the body was not sent in time", status=408, code="body_timeout") from None
        call.body_size = len(body)
        return body

    def _check_body(self, call: Call, size: int, *, is_reserved: bool, n_new: int | None = None) -> None:
        if size > self._max_body:
            raise self._too_large(call)
        if not is_reserved:
            self.reserve(call, size if n_new is None else n_new)

    def _reserve_values(self, call: Call, body: bytearray) -> None:
        """Reserve memory for the parsed body: ``[[],[],…]`` needs 30 times as much as its text."""
        n_values = 0
        for begin in range(0, len(body), COUNTED_BYTES):
            n_values += sum(
                body.count(mark, begin, begin + COUNTED_BYTES) for mark in (b",", b"[", b"{")
            )  # in texts, too
            if n_values > MAX_VALUES:
                raise RequestError(
                    f"the body must have at most {MAX_VALUES:,} values; send fewer inputs per request", status=413,
                    code="too_large",
                )  # fmt: skip
        is_narrow = body.isascii() and b"\\u" not in body
        self.reserve(call, VALUE_BYTES * n_values + len(body) * (1 if is_narrow else 4))  # bytes per character

    def _too_large(self, call: Call) -> RequestError:
        call.exchange.keep_alive = False  # the rest of the body is not read
        return RequestError(
            f"the body must have at most {self._max_body:,} bytes; send fewer inputs per request", status=413,
            code="too_large",
        )  # fmt: skip

    def reserve(self, call: Call, n_bytes: int) -> None:
        """Reserve memory for a request until it is answered; raise ``OverloadedError`` if there is not enough."""
        if self._memory + n_bytes > self._max_memory:
            raise OverloadedError(1.0)
        self._memory += n_bytes
        call.reserved += n_bytes

    def _release(self, call: Call, n_bytes: int) -> None:
        self._memory -= n_bytes
        call.reserved -= n_bytes

    def reserve_reply(self, call: Call, n_numbers: int, *, encoding: Any = "float", dtype: str = "float32") -> None:
        """Reserve memory for a reply with ``n_numbers`` numbers; raise ``RequestError`` if it is too large."""
        size = estimate_bytes(n_numbers, n_tokens=call.n_tokens, encoding=encoding, dtype=dtype)
        if size > self._max_reply:
            raise RequestError(
                f"the reply would have about {size // 1_000_000} MB, more than {self._max_reply // 1_000_000}; send "
                "fewer inputs, or ask for encoding base64, dtype float16 or fewer targets",
                status=413,
                code="too_large",
            )
        self.reserve(call, size)
        call.reply_size = size

    def tokenize(self, model: LoadedModel, sentences: Sequence[Any]) -> list[Tokens]:
        """Tokenize the sentences of a request; raise ``RequestError`` if they have too many tokens."""
        tokenized: list[Tokens] = []
        n_tokens = 0
        for k, sentence in enumerate(sentences):
            tokens = model.tokenize(sentence, k)
            n_tokens += len(tokens)
            if n_tokens > self.options.max_tokens:
                raise RequestError(
                    f"a request must have at most {self.options.max_tokens:,} tokens; send fewer inputs per request",
                    status=413, code="too_large", param="inputs",
                )  # fmt: skip
            tokenized.append(tokens)
        return tokenized

    async def tokenize_inputs(self, call: Call, model: LoadedModel, sentences: Sequence[Any]) -> list[Tokens]:
        """Tokenize outside of the event loop if the request is large."""
        if len(sentences) > self.options.max_inputs:
            raise RequestError(
                f"a request must have at most {self.options.max_inputs:,} inputs; found {len(sentences):,}", status=413,
                code="too_large", param="inputs",
            )  # fmt: skip
        if call.body_size < LARGE_BODY:
            tokenized = self.tokenize(model, sentences)
        else:
            n_bytes = CHARACTER_BYTES * max((len(item) for item in sentences if isinstance(item, str)), default=0)
            self.reserve(call, n_bytes)
            try:
                tokenized = await asyncio.to_thread(self.tokenize, model, sentences)
            finally:
                self._release(call, n_bytes)
        call.n_tokens = sum(map(len, tokenized))
        self.reserve(call, TOKEN_BYTES * call.n_tokens)
        return tokenized

    async def encode(
        self, call: Call, model: LoadedModel, sentences: Sequence[Tokens], *, layers: Any, start: str, dtype: str
    ) -> list[Any]:
        """Encode sentences in the next batches; the result has an error in place of a sentence that failed."""
        key = model.encode_key(layers, start, dtype)
        self.reserve(call, 4 * call.n_tokens * model.vector_size(layers))
        long = [tokens for tokens in sentences if len(tokens) > LONG_SENTENCE]
        if not long:
            return self.hide_private(
                await self._run(call, self.words, cost_of(sentences), key=key, sentences=sentences)
            )
        others = [tokens for tokens in sentences if len(tokens) <= LONG_SENTENCE]
        encode = model.encode_key(layers, start, dtype, is_second=True).encode
        results = iter(await self._run(call, self.words, cost_of(others), key=key, sentences=others) if others else [])
        of_long = iter(await self._run(call, self.calls, cost_of(long), function=partial(_encode_each, encode, long)))
        return self.hide_private([next(of_long if len(tokens) > LONG_SENTENCE else results) for tokens in sentences])

    async def run(self, call: Call, cost: int, function: Callable[[], Any]) -> Any:
        """Run a function in the lane for calls; ``cost`` is its estimated cost in tokens."""
        return await self._run(call, self.calls, cost + native.CALL_COST, function=function)

    async def _run(
        self, call: Call, lane: Lane, cost: int, *, key: Any = None, sentences: Sequence[Tokens] = (),
        function: Callable[[], Any] | None = None,
    ) -> Any:  # fmt: skip
        """Submit work and wait for it; drop it when the client disconnects or the deadline passes."""
        loop = asyncio.get_running_loop()
        if key is not None and not sentences:
            return []
        work = Work(cost, call.deadline, loop, loop.create_future(), key=key, call=function, sentences=sentences)
        if call.exchange.disconnected:
            raise DisconnectedError
        lane.submit(work)
        call.exchange.on_disconnect = partial(_drop, lane, work, DisconnectedError)
        timer = loop.call_later(max(0.0, call.deadline - time.monotonic()), _drop, lane, work, DeadlineError)
        try:
            return await work.future
        finally:
            timer.cancel()
            call.exchange.on_disconnect = None
            if not work.future.done():
                lane.cancel(work)
            if work.started is not None:
                call.queue_seconds += work.started - work.enqueued
                call.compute_seconds += work.compute_seconds

    # --- Replies --------------------------------------------------------------------------------

    async def send_json(self, call: Call, value: Any, *, status: int = 200) -> None:
        """Send a JSON reply."""
        if call.has_large_reply:
            await self.send(call, await asyncio.to_thread(lambda: list(to_pieces(value))), status=status)
        else:
            await self.send(call, [to_json(value)], status=status)

    async def build(self, call: Call, function: Callable[[], Any]) -> Any:
        """Return what a function builds for a reply; outside of the event loop if the reply is large."""
        return await asyncio.to_thread(function) if call.has_large_reply else function()

    async def send(
        self, call: Call, parts: Sequence[bytes], *, status: int = 200, content_type: str = "application/json"
    ) -> None:
        """Send a reply; ``parts`` are its bytes."""
        size = sum(map(len, parts))
        exchange = call.exchange
        if exchange.method == "HEAD":
            parts = ()
        is_small = size <= SEND_BYTES and exchange.is_writable
        if is_small:  # the usual case: one system call
            exchange.start_reply(status, self._head(call, size, status, content_type), body=b"".join(parts))
            if exchange.is_writable:
                exchange.end_reply()
                return
        try:
            async with asyncio.timeout(SEND_SECONDS + size / SEND_RATE):
                await exchange.drain()  # waits until the client has read most of it: its memory stays reserved
                if not is_small:
                    exchange.start_reply(status, self._head(call, size, status, content_type))
                    for chunk in _cut(parts):
                        exchange.write(chunk)
                        await exchange.drain()
        except TimeoutError:
            exchange.abort()
            raise DisconnectedError from None
        exchange.end_reply()

    def _send_now(self, call: Call, body: bytes, *, status: int) -> None:
        """Send a small reply without waiting for the client."""
        headers = self._head(call, len(body), status, "application/json")
        call.exchange.start_reply(status, headers, body=body if call.exchange.method != "HEAD" else b"")
        call.exchange.end_reply()

    def _head(self, call: Call, size: int, status: int, content_type: str) -> list[tuple[bytes, bytes]]:
        call.status, call.sent_bytes = status, size
        if self.is_draining:
            call.exchange.keep_alive = False
        seconds = (call.queue_seconds * 1e3, call.compute_seconds * 1e3, (time.monotonic() - call.begin) * 1e3)
        head = [] if status == 204 else [(b"content-type", content_type.encode()), (b"content-length", b"%d" % size)]
        return [
            *head,
            (b"x-request-id", call.request_id.encode()),
            (b"server-timing", b"queue;dur=%.1f, compute;dur=%.1f, total;dur=%.1f" % seconds),
            (b"x-content-type-options", b"nosniff"),
            (b"cache-control", b"no-store"),
            *call.extra_headers,
        ]

    def _send_error(self, call: Call, error: Exception) -> None:
        """Answer with an error; only messages that are meant for clients are sent."""
        if call.status:  # the reply has begun
            logger.error("request %s failed", call.request_id, exc_info=error)
            call.exchange.abort()
            return
        kind = None
        if isinstance(error, RequestError):
            status, code, message, param = error.status, error.code, error.message, error.param
            if status == 503:
                call.extra_headers.append((b"retry-after", b"1"))
        else:
            status, code, message, param = self._describe_error(call, error)
            kind = type(error).__name__ if isinstance(error, ElmoError) and status != 500 else None
        if call.path in compatible.TEI_PATHS:
            value: dict[str, Any] = compatible.tei_error(status, message)
        else:
            kind = kind or _TYPES.get(status, "server_error")
            value = {"error": {"message": message, "type": kind, "code": code, "param": param}}
        if status in (408, 413, 415) and not call.body_size:
            call.exchange.keep_alive = False
        self._send_now(call, to_json(value), status=status)

    def _describe_error(self, call: Call, error: Exception) -> tuple[int, str, str, str | None]:
        """Return the status, the code and the message of an error."""
        if isinstance(error, OverloadedError):
            retry = math.ceil(error.retry_after)
            call.extra_headers.append((b"retry-after", b"%d" % retry))
            return 429, "overloaded", f"the server is overloaded; retry after {retry} s", None
        if isinstance(error, TooMuchWorkError):
            return 413, "too_large", f"{error}; send less, or allow more time", None
        if isinstance(error, DeadlineError):
            return 504, "deadline_exceeded", "the request was not completed before its deadline", None
        message = self.public_message(error)
        if message is None:
            logger.error("request %s failed", call.request_id, exc_info=error)
            return 500, "internal", "internal error", None
        if isinstance(error, SentenceTooLongError):
            return 413, "too_large", message, None
        return 400, "invalid_request", message, None

    def hide_private(self, results: list[Any]) -> list[Any]:
        """Replace errors whose messages are not for clients; the results of the other inputs are returned."""
        for k, result in enumerate(results):
            if isinstance(result, ElmoError) and self.public_message(result) is None:
                logger.error("an input failed", exc_info=result)
                results[k] = RuntimeError("internal error")
        return results

    def public_message(self, error: Exception) -> str | None:
        """Return the message of an error that is about the input of a client; None for all other errors.

        Errors of the classes for input can also name files of this machine, such as a damaged index. No other files
        than those of the options are opened, so that these messages are known by their paths.
        """
        message = str(error)
        if not isinstance(error, INPUT_ERRORS) or isinstance(error, EncodingError):
            return None
        return None if any(path in message for path in self._private_paths) else message

    def _log(self, call: Call) -> None:
        seconds = time.monotonic() - call.begin
        path = call.path if call.path in self.routes else "other"
        self.metrics.observe_request(path, call.status, seconds, call.n_tokens, call.queue_seconds)
        if self.options.access_log and path not in QUIET_PATHS:
            self.access_log.add({
                "time": round(time.time(), 3), "id": call.request_id, "method": call.exchange.method, "path": path,
                "status": call.status, "ms": round(seconds * 1e3, 1), "queue_ms": round(call.queue_seconds * 1e3, 1),
                "tokens": call.n_tokens, "bytes_in": call.body_size, "bytes_out": call.sent_bytes,
            })  # fmt: skip

    # --- Operations -----------------------------------------------------------------------------

    async def get_models(self, call: Call) -> None:
        """Answer /v1/models."""
        await self.send_json(call, self.ready().describe())

    async def get_livez(self, call: Call) -> None:
        """Answer /livez: whether the event loop and the threads work."""
        is_alive = self.words.is_alive() and self.calls.is_alive()
        await self.send_json(call, {"status": "ok" if is_alive else "stuck"}, status=200 if is_alive else 503)

    async def get_readyz(self, call: Call) -> None:
        """Answer /readyz: whether requests are accepted."""
        status = "draining" if self.is_draining else "loading" if self.service is None else "ok"
        await self.send_json(call, {"status": status}, status=200 if status == "ok" else 503)

    async def get_metrics(self, call: Call) -> None:
        """Answer /metrics in the text format of Prometheus."""
        body, kind = self.metrics.export()
        await self.send(call, [body], content_type=kind)

    async def get_openapi(self, call: Call) -> None:
        """Answer /openapi.json."""
        await self.send_json(call, openapi.build_document(self.options, self.service, has_keys=bool(self.keys)))

    async def get_docs(self, call: Call) -> None:
        """Answer /docs: a page that lists the routes, without any resource of another host."""
        call.extra_headers.append((b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"))
        page = openapi.build_page(self.options, self.service)
        await self.send(call, [page.encode()], content_type="text/html; charset=utf-8")


class UnavailableError(RequestError):
    """The server is loading or shutting down."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, status=503, code=code)


def _encode_each(encode: Callable[[Sequence[Tokens]], Sequence[Any]], sentences: Sequence[Tokens]) -> list[Any]:
    """Encode long sentences one by one; return an error in place of a sentence that failed."""
    results: list[Any] = []
    for sentence in sentences:
        try:
            results += encode([sentence])
        except ElmoError as error:
            results.append(error)
    return results


def _drop(lane: Lane, work: Work, error: type[Exception]) -> None:
    """Drop work whose client has disconnected, or whose deadline has passed."""
    lane.cancel(work)
    if not work.future.done():
        work.future.set_exception(error())


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _request_id(header: bytes | None) -> str:
    """Return the id that the client sent, if it is short and printable, or a new one."""
    if header is not None and len(header) <= 128:
        text = header.decode("latin-1")
        if text.isascii() and text.isprintable() and text:
            return text
    return f"{random.getrandbits(128):032x}"


def _json_problem(error: orjson.JSONDecodeError) -> str:
    return f"{error.msg} at line {error.lineno} column {error.colno}"


def _find_paths(options: ServeOptions) -> frozenset[str]:
    """Return all spellings of the paths that errors could name: those of the options, and of the package."""
    named = [*map(Path, options.models), *options.indexes, *(path for _, path in options.corpora)]
    named += [Path(__file__).parents[1], Path.cwd()]
    if options.api_key_file is not None:
        named.append(options.api_key_file)
    with contextlib.suppress(RuntimeError):  # a service may run as a user without a home folder
        named.append(Path.home())
    spellings = {str(form) for path in named for form in (path, path.absolute(), path.resolve())}
    spellings |= {text.replace(os.path.expanduser("~"), "~", 1) for text in spellings}  # noqa: PTH111
    return frozenset(text for text in spellings if len(text) > 1 and ("/" in text or "\\" in text))


def _cut(parts: Sequence[bytes], size: int = SEND_BYTES) -> Iterator[bytes | memoryview]:
    """Join consecutive small parts and cut large ones, so that each message has about ``size`` bytes."""
    waiting: list[bytes] = []
    n_waiting = 0
    for part in parts:
        if len(part) > size:
            if waiting:
                yield b"".join(waiting)
                waiting, n_waiting = [], 0
            view = memoryview(part)
            yield from (view[begin : begin + size] for begin in range(0, len(part), size))
            continue
        waiting.append(part)
        n_waiting += len(part)
        if n_waiting >= size:
            yield b"".join(waiting)
            waiting, n_waiting = [], 0
    if waiting:
        yield b"".join(waiting)
