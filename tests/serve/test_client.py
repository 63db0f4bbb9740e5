"""``Client`` and ``AsyncClient`` against a small HTTP server with canned replies: splitting, retries, bad replies."""

from __future__ import annotations

import asyncio
import base64
import json
import multiprocessing
import pickle
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
import torch

import elmo
from elmo import (
    AsyncClient,
    Carry,
    Client,
    ConfigError,
    DataError,
    LayerMix,
    SentenceTooLongError,
    ServiceError,
    ShapeError,
    StateError,
)
from elmo.text.tokenizers import Tokens

WIDTH, N_LAYERS = 4, 3
MODELS = {"object": "list", "data": [{"id": "tiny", "n_layers": N_LAYERS, "width": WIDTH, "precision": "float32"}]}
Reply = tuple[int, dict[str, str], bytes]
Answer = Callable[["FakeService", str, Any], "Reply | None"]


class FakeService(ThreadingHTTPServer):
    """Answers /v1/models, and every other request with ``answer``; None as an answer resets the connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer: Answer = lambda service, path, payload: ok(words(payload))
        self.requests: list[tuple[str, Any, dict[str, str]]] = []
        self.n_active = self.max_active = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def posts(self) -> list[Any]:
        return [payload for path, payload, _ in self.requests if path != "/v1/models"]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet about connections that the test breaks."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeService

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self.reply(None)

    def do_POST(self) -> None:
        self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def reply(self, payload: Any) -> None:
        service = self.server
        with service.lock:
            service.requests.append((self.path, payload, dict(self.headers)))
            service.n_active += 1
            service.max_active = max(service.max_active, service.n_active)
        try:
            answer = ok(MODELS) if self.path == "/v1/models" else service.answer(service, self.path, payload)
        finally:
            with service.lock:
                service.n_active -= 1
        if answer is None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        status, headers, body = answer
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        if int(headers.get("Content-Length", len(body))) != len(body):
            self.close_connection = True


def ok(value: Any) -> Reply:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def failure(status: int, code: str, message: str = "no", param: str | None = None, **headers: str) -> Reply:
    error = {"error": {"message": message, "type": "any", "code": code, "param": param}}
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, json.dumps(error).encode()


def words(payload: Any) -> dict[str, Any]:
    """Answer /v1/words; every number of a token is the length of its spelling."""
    results = []
    for item in payload["inputs"]:
        tokens = Tokens.from_words(item) if isinstance(item, list) else elmo_tokens(item)
        vectors = np.repeat(np.array([len(token) for token in tokens.tokens], payload["dtype"])[:, None], WIDTH, axis=1)
        if payload["layers"] == "all":
            vectors = np.repeat(vectors[None], N_LAYERS, axis=0)
        if payload["layers"] == "concat":
            vectors = np.repeat(vectors, N_LAYERS, axis=1)
        results.append(
            {"tokens": tokens.tokens, "offsets": tokens.offsets, "shape": vectors.shape,
             "vectors": base64.b64encode(vectors.tobytes()).decode()}
        )  # fmt: skip
    return {"object": "words", "results": results}


def elmo_tokens(text: str) -> Tokens:
    from elmo.text.tokenizers import WhitespaceTokenizer

    return WhitespaceTokenizer()(text)


@pytest.fixture
def service() -> Iterator[FakeService]:
    with FakeService() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def client(service: FakeService) -> Iterator[Client]:
    with Client(service.url, timeout=20) as opened:
        yield opened


def in_turn(*answers: Reply | None) -> Answer:
    """Answer with each of the replies in turn, then as usual."""
    left = list(answers)
    return lambda service, path, payload: left.pop(0) if left else ok(words(payload))


# --- Encoding ---------------------------------------------------------------------------------------


def test_a_string_gives_one_encoding_and_an_iterable_a_list(client: Client) -> None:
    one = client.encode("a bank  here")
    assert one.tokens == ("a", "bank", "here")
    assert one.text == "a bank  here"
    assert one.offsets == ((0, 1), (2, 6), (8, 12))
    np.testing.assert_array_equal(one.word("bank"), np.full(WIDTH, 4, np.float32))
    many = client.encode(text for text in ["x yy", ["already", "tokenized"], ""])
    assert [encoding.tokens for encoding in many] == [("x", "yy"), ("already", "tokenized"), ()]
    assert many[1].text is None
    assert many[2].vectors.shape == (0, WIDTH)
    assert client.encode([]) == []
    placed = Tokens.from_offsets("New York", [(0, 3), (4, 8)])
    assert client.encode(placed).offsets == placed.offsets
    assert (client.n_layers, client.width) == (N_LAYERS, WIDTH)


def test_vectors_have_the_shape_of_the_layers_and_can_be_changed(client: Client) -> None:
    shapes = {"average": (2, 4), "top": (2, 4), "all": (3, 2, 4), "concat": (2, 12), 1: (2, 4), -1: (2, 4)}
    for layers, shape in shapes.items():
        vectors = client.encode("x yy", layers=layers).vectors  # type: ignore[arg-type]
        assert vectors.shape == shape
        vectors += 1
    assert client.encode("x", dtype="float16").vectors.dtype == np.float16
    assert client.encode("x", dtype="float64").vectors.dtype == np.float64
    tensor = client.encode("x", as_tensor=True, dtype="bfloat16").vectors
    assert isinstance(tensor, torch.Tensor)
    assert tensor.dtype == torch.bfloat16


def test_layers_are_sent_as_the_service_reads_them(client: Client, service: FakeService) -> None:
    client.encode("x", layers=-1)
    client.encode("x", layers=LayerMix(N_LAYERS, weights=[0.1, 0.2, 0.3], gamma=0.5, dropout=0.5), start="warm")
    first, second = service.posts()
    assert first["layers"] == 2
    assert second["start"] == "warm"
    assert np.float32(second["layers"]["weights"]).tolist() == np.float32([0.1, 0.2, 0.3]).tolist()
    assert second["layers"]["gamma"] == 0.5


def _mix_with_nan() -> LayerMix:
    mix = LayerMix(3)
    mix.gamma.data.fill_(float("nan"))
    return mix


@pytest.mark.parametrize(
    ("sentences", "options", "error", "message"),
    [
        (7, {}, DataError, "found int"),
        ([["a", 3]], {}, DataError, "sentence 0: tokens: expected strings, found int at position 1"),
        ([b"bytes"], {}, DataError, "sentence 0 must be text or a list of tokens; found bytes"),
        (["a", None], {}, DataError, "sentence 1 must be text or a list of tokens; found NoneType"),
        ([["a"] * 100_001], {}, SentenceTooLongError, "sentence 0 must have at most 100000 tokens; found 100001"),
        ("\ud800", {}, DataError, r"lone surrogate, U\+D800"),
        ("x", {"layers": 3}, ConfigError, r"layers must be a layer number in 0\.\.2; found 3"),
        ("x", {"layers": "best"}, ConfigError, "layers must be average, top, all, concat"),
        ("x", {"layers": True}, ConfigError, "layers must be average, top, all, concat"),
        ("x", {"layers": LayerMix(2)}, ShapeError, "this mix must have 2 layers; found 3"),
        ("x", {"layers": LayerMix(3, layer_norm=True)}, ConfigError, "without layer_norm"),
        ("x", {"layers": LayerMix(3, top_only=True)}, ConfigError, "without top_only"),
        ("x", {"layers": _mix_with_nan()}, ConfigError, "finite weights"),
        ("x", {"dtype": "int7"}, ConfigError, "dtype must be one of"),
        ("x", {"dtype": "bfloat16"}, ConfigError, "dtype must not be bfloat16"),
        ("x", {"start": "carry"}, StateError, "keeps no state"),
        ("x", {"start": Carry()}, ConfigError, "found Carry"),
        ("x", {"start": "cold"}, ConfigError, "found 'cold'"),
    ],
)
def test_bad_input_raises_the_error_of_the_library_before_it_is_sent(
    client: Client, service: FakeService, sentences: Any, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        client.encode(sentences, **options)
    assert service.posts() == []


@pytest.mark.slow
def test_large_inputs_are_split_and_results_keep_their_order(client: Client, service: FakeService) -> None:
    texts = ["x" * (k % 50 + 1) + " y" for k in range(5000)]
    encodings = client.encode(texts)
    assert [encoding.text for encoding in encodings] == texts
    np.testing.assert_array_equal(
        np.stack([encoding.vectors[0] for encoding in encodings])[:, 0], [len(text) - 2 for text in texts]
    )
    sizes = [len(payload["inputs"]) for payload in service.posts()]
    assert sum(sizes) == 5000
    assert max(sizes) <= 2048
    assert len(sizes) > 3
    n_before = len(sizes)
    client.encode([["w"] * 5000] * 3)  # at most 8,192 tokens per request
    assert len(service.posts()) == n_before + 3


def test_a_few_requests_are_in_flight_at_once(client: Client, service: FakeService) -> None:
    def slow(service: FakeService, path: str, payload: Any) -> Reply:
        time.sleep(0.03)
        return ok(words(payload))

    service.answer = slow
    client.encode([["w"] * 5000] * 8)
    assert 2 <= service.max_active <= 4


def test_a_request_that_is_too_large_for_the_service_is_split(client: Client, service: FakeService) -> None:
    def limited(service: FakeService, path: str, payload: Any) -> Reply:
        if len(payload["inputs"]) > 3 or "endless" in payload["inputs"]:
            return failure(413, "too_large", "a request must have at most 3 inputs")
        return ok(words(payload))

    service.answer = limited
    texts = [f"t{k}" for k in range(10)]
    assert [encoding.text for encoding in client.encode(texts)] == texts
    with pytest.raises(SentenceTooLongError, match="sentence 7: a request must have"):
        client.encode([*texts[:7], "endless"])


def test_the_error_of_one_sentence_has_its_number_in_the_whole_input(client: Client, service: FakeService) -> None:
    def refuse(service: FakeService, path: str, payload: Any) -> Reply:
        reply = words(payload)
        for k, item in enumerate(payload["inputs"]):
            if item == "bad":
                error = {"message": f"sentence {k} is bad", "type": "invalid_input", "code": "invalid_input"}
                reply["results"][k] = {"error": error}
        return ok(reply)

    service.answer = refuse
    with pytest.raises(DataError, match="sentence 4000 is bad"):
        client.encode(["good"] * 4000 + ["bad", "bad"])


def test_the_field_of_an_input_becomes_its_number_in_the_whole_input(client: Client, service: FakeService) -> None:
    def refuse(service: FakeService, path: str, payload: Any) -> Reply:
        if "bad" not in payload["inputs"]:
            return ok(words(payload))
        field = f"inputs[{payload['inputs'].index('bad')}]"
        return failure(400, "invalid_request", f"{field} must be short", field)

    service.answer = refuse
    with pytest.raises(DataError, match=r"^sentence 3001 must be short"):
        client.encode([*["good"] * 3001, "bad", "good"])


# --- Retries, time limits, connections -----------------------------------------------------------------


@pytest.mark.slow
def test_a_busy_service_is_asked_again_after_the_time_that_it_states(client: Client, service: FakeService) -> None:
    service.answer = in_turn(failure(503, "loading", Retry_After="0"), failure(429, "overloaded", Retry_After="1"))
    begin = time.monotonic()
    assert len(client.encode("a b")) == 2
    assert time.monotonic() - begin >= 1.0
    assert len(service.posts()) == 3


def test_a_reset_connection_and_a_truncated_reply_are_repeated(client: Client, service: FakeService) -> None:
    service.answer = in_turn(None, (200, {"Content-Length": "1000"}, b'{"object"'))
    assert len(client.encode("a b")) == 2
    assert len(service.posts()) == 3


@pytest.mark.slow
def test_retries_end(service: FakeService) -> None:
    service.answer = lambda *_: failure(503, "draining")
    with Client(service.url, max_retries=2) as client, pytest.raises(ServiceError) as caught:
        client.encode("a")
    assert (caught.value.status, caught.value.code) == (503, "draining")
    assert len(service.posts()) == 3
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "unauthorized"), (403, "forbidden_host"), (404, "model_not_found"), (500, "internal"),
     (504, "deadline_exceeded")],
)  # fmt: skip
def test_other_errors_are_final(client: Client, service: FakeService, status: int, code: str) -> None:
    service.answer = lambda *_: failure(status, code, "the reason")
    with pytest.raises(ServiceError, match=f"/v1/words replied with status {status}: .*the reason") as caught:
        client.encode("a")
    assert (caught.value.status, caught.value.code) == (status, code)
    assert len(service.posts()) == 1
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.status, again.code) == (str(caught.value), status, code)


@pytest.mark.parametrize(
    ("param", "error"),
    [("layers.weights", ConfigError), ("inputs[0]", DataError), ("start", StateError), (None, DataError)],
)
def test_a_refused_request_raises_the_error_of_the_library(
    client: Client, service: FakeService, param: str | None, error: type[Exception]
) -> None:
    service.answer = lambda *_: failure(400, "invalid_request", "the reason", param)
    with pytest.raises(error, match="the reason"):
        client.encode(["a", "b"])


def test_the_time_limit_includes_retries(service: FakeService) -> None:
    service.answer = lambda *_: failure(429, "overloaded", Retry_After="60")
    begin = time.monotonic()
    with Client(service.url, timeout=30) as client, pytest.raises(ServiceError) as caught:
        client.encode("a")
    assert caught.value.retry_after == 60
    assert time.monotonic() - begin < 20  # it does not wait if there is not enough time for another attempt


def test_a_slow_reply_is_an_error_within_the_time_limit(service: FakeService) -> None:
    released = threading.Event()
    service.answer = lambda *_: failure(500, "late") if released.wait(10) else None
    begin = time.monotonic()
    with (
        Client(service.url, timeout=0.3) as client,
        pytest.raises(ServiceError, match=r"within 0\.3 seconds") as caught,
    ):
        client.encode("a")
    released.set()
    assert caught.value.code == "timeout"
    assert time.monotonic() - begin < 8
    (headers,) = [headers for path, _, headers in service.requests if path == "/v1/words"]
    assert 0 < float(headers["X-Timeout"]) <= 0.3


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"])
def test_a_service_that_sends_single_bytes_does_not_extend_the_time_limit(start: bytes) -> None:
    ended = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(start)
            while not ended.wait(0.1):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener, Client(
        f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=1, max_retries=0
    ) as client, ThreadPoolExecutor(1) as pool:  # fmt: skip
        dripping = pool.submit(drip, listener)
        with pytest.raises(ServiceError) as caught:
            client.models()
        is_sending = not dripping.done()
        ended.set()
    assert caught.value.code == "timeout"
    assert is_sending  # the service had not closed the connection


def test_the_time_limit_includes_the_tls_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def connect(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            ended.wait(2)  # a slow proxy,
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            ended.wait(30)  # and a service behind it that does not answer the handshake

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        pool.submit(connect, listener)
        with Client("https://service.test", timeout=4, max_retries=0) as client:
            begin = time.monotonic()
            with pytest.raises(ServiceError) as caught:
                client.models()
            seconds = time.monotonic() - begin
        ended.set()
    assert caught.value.code == "connection"
    assert seconds < 5.5  # not another 4 seconds for the handshake


def test_the_proxy_of_the_environment_is_used(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    service.answer = lambda *_: ok(MODELS)
    monkeypatch.setenv("HTTP_PROXY", service.url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with Client("http://elmo.example:8000", max_retries=0, timeout=5) as client:
        assert client.models()[0].id == "tiny"
    ((target, _, _),) = service.requests
    assert target == "http://elmo.example:8000/v1/models"


def test_nobody_listening_is_a_short_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}", max_retries=1) as client, pytest.raises(ServiceError) as caught:
        client.encode("a")
    assert caught.value.code == "connection"
    assert "Start it with: elmo serve" in str(caught.value)


def test_an_unknown_host_is_not_tried_again() -> None:
    begin = time.monotonic()
    with Client("http://host.invalid", max_retries=50) as client, pytest.raises(ServiceError, match="cannot reach"):
        client.encode("a")
    assert time.monotonic() - begin < 15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "127.0.0.1:8000"}, "url must be an address"),
        ({"url": "ftp://a"}, "url must be an address"),
        ({"url": "http://user@host"}, "url must be an address"),
        ({"url": "http://host:99999"}, "url must be an address"),
        ({"url": 8000}, "url must be an address"),
        ({"api_key": "a\r\nb"}, "api_key must consist of"),
        ({"timeout": 0}, "timeout must be greater than 0"),
        ({"max_retries": -1}, "max_retries must be at least 0"),
    ],
)
def test_settings_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Client(**options)


def test_the_key_is_sent_but_not_shown(service: FakeService) -> None:
    with Client(service.url + "/", api_key="a-secret-key-1234", model="tiny") as client:
        client.encode("a")
        assert "secret" not in repr(client) + repr(vars(client))
    assert all(headers["Authorization"] == "Bearer a-secret-key-1234" for _, _, headers in service.requests)
    assert service.posts()[0]["model"] == "tiny"


def test_an_unknown_model_is_a_config_error(service: FakeService) -> None:
    with Client(service.url, model="other") as client, pytest.raises(ConfigError, match="must be one of tiny; found"):
        client.encode("a")


def test_threads_share_a_client(client: Client) -> None:
    results: dict[int, list[str | None]] = {}

    def work(k: int) -> None:
        results[k] = [client.encode(f"thread {k} text {n}").text for n in range(10)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {k: [f"thread {k} text {n}" for n in range(10)] for k in range(8)}


def _encode_in_child(client: Client, queue: Any) -> None:
    queue.put([client.encode(f"child {n}").text for n in range(5)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_use_a_client(client: Client, method: str) -> None:
    client.encode("parent")  # opens a connection, which a child must not use
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=_encode_in_child, args=(client, queue))
    child.start()
    parent = [client.encode(f"parent {n}").text for n in range(5)]
    assert queue.get(timeout=60) == [f"child {n}" for n in range(5)]
    child.join()
    assert parent == [f"parent {n}" for n in range(5)]


# --- Malformed replies -------------------------------------------------------------------------------------


def result(**changes: Any) -> dict[str, Any]:
    """Return the reply for "a b" with some fields of its result replaced; ``...`` removes a field."""
    reply = words({"inputs": ["a b"], "dtype": "float32", "layers": "average"})
    item = {**reply["results"][0], **changes}
    return {**reply, "results": [{name: value for name, value in item.items() if value is not ...}]}


VALID = base64.b64encode(bytes(32)).decode()
MALFORMED = {
    "not JSON": b"<html>", "not UTF-8": b"\xff\xfe\x00", "deep nesting": b"[" * 100_000, "list": b"[]", "null": b"null",
    "number": b"1", "no results": {}, "results of another type": {"results": 7}, "too few results": {"results": []},
    "too many results": {"results": [{}, {}]}, "result of another type": {"results": [7]},
    "empty result": {"results": [{}]}, "no tokens": result(tokens=...),
    "tokens of another type": result(tokens=[1, 2]), "fewer tokens": result(tokens=["a"]),
    "other tokens": result(tokens=["a", "c"]), "offsets of another type": result(offsets="ab"),
    "an offset of another type": result(offsets=[[0, 1], [2, "3"]]), "short offsets": result(offsets=[[0, 1]]),
    "offsets outside": result(offsets=[[0, 1], [2, 99]]), "negative offsets": result(offsets=[[-3, -2], [2, 3]]),
    "offsets in another order": result(tokens=["b", "a"], offsets=[[2, 3], [0, 1]]),
    "no shape": result(shape=...), "a larger shape": result(shape=[2_000_000_000, WIDTH]),
    "another width": result(shape=[2, 5]),
    "a shape of another type": result(shape="2,4"), "no vectors": result(vectors=...),
    "numbers": result(vectors=[[0.0] * 4] * 2),
    "short vectors": result(vectors=VALID[:-4]), "not base64": result(vectors="!" * len(VALID)),
    "padding inside": result(vectors="=" + VALID[1:]), "not ASCII": result(vectors="é" * len(VALID)),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_reply_is_a_service_error(client: Client, service: FakeService, name: str) -> None:
    body = MALFORMED[name]
    service.answer = lambda *_: (200, {}, body) if isinstance(body, bytes) else ok(body)
    with pytest.raises(ServiceError, match="malformed") as caught:
        client.encode(["a b"])
    assert caught.value.code == "malformed_reply"
    assert len(service.posts()) == 1


@pytest.mark.parametrize(
    "models",
    [[], {}, [7], [{"id": "a"}], [{"id": 1, "n_layers": 3, "width": 4}], [{"id": "a", "n_layers": 3, "width": -4}]],
)
def test_a_malformed_list_of_models_is_a_service_error(
    client: Client, monkeypatch: pytest.MonkeyPatch, models: Any
) -> None:
    monkeypatch.setitem(MODELS, "data", models)
    with pytest.raises(ServiceError, match="malformed"):
        client.encode("a")


@pytest.mark.parametrize(
    "body", [b"<html>502</html>", b"[]", b'{"error": 7}', b'{"error": {"message": ["a"]}}', b"\xff"]
)
def test_an_error_without_a_reason_is_a_service_error(client: Client, service: FakeService, body: bytes) -> None:
    service.answer = lambda *_: (502, {}, body)
    with pytest.raises(ServiceError, match="replied with status 502") as caught:
        client.encode("a")
    assert caught.value.code is None


def test_a_redirect_is_not_followed(client: Client, service: FakeService) -> None:
    service.answer = lambda *_: (307, {"Location": "http://127.0.0.1:1/"}, b"")
    with pytest.raises(ServiceError, match="status 307"):
        client.encode("a")


def test_a_reply_that_is_too_large_is_not_read(client: Client, service: FakeService, monkeypatch) -> None:
    monkeypatch.setattr("elmo.serve.client.MAX_REPLY_BYTES", 1000)
    service.answer = lambda *_: (200, {}, b" " * 100_000)
    with pytest.raises(ServiceError, match="malformed: more than"):
        client.encode("a")


# --- Other methods --------------------------------------------------------------------------------------------


def test_compare_returns_a_comparison(client: Client, service: FakeService) -> None:
    uses = [{"text": text, "word": "bank", "span": [2, 6], "tokens": ["bank"]} for text in ("a bank", "b bank")]
    reply = {
        "word": "bank",
        "uses": uses,
        "similarities": {"0": [[1, 0.5], [0.5, 1]], "average": [[1.0, 0.25], [0.25, 1.0]]},
    }
    service.answer = lambda *_: ok(reply)
    comparison = client.compare("bank", ["a bank", ["b", "bank"]])
    assert list(comparison.rows()) == [("0", 0, 1, 0.5), ("average", 0, 1, 0.25)]
    assert comparison.uses[1].word == "bank"
    with pytest.raises(DataError, match="two or more sentences; found 1"):
        client.compare("bank", ["a bank"])
    with pytest.raises(DataError, match="must not be empty"):
        client.compare(" ", ["a bank", "b bank"])
    for bad in ({"uses": uses[:1]}, {"similarities": {}}, {"similarities": {"0": [[1, 2]]}},
                {"similarities": {"0": "x"}}, {"ranks": 5}, {"ranks": [{"uses": [0, 2], "share": 0.5}]},
                {"uses": [{**uses[0], "span": [2, 99]}, uses[1]]}, {"uses": [7, 8]},
                {"similarities": {"0": [[10**400, 1], [1, 1]]}}):  # fmt: skip
        service.answer = lambda *_, bad=bad: ok({**reply, **bad})
        with pytest.raises(ServiceError, match="malformed"):
            client.compare("bank", ["a bank", "b bank"])


def test_score_returns_sentence_scores(client: Client, service: FakeService) -> None:
    item = {"tokens": ["a", "b"], "offsets": [[0, 1], [2, 3]], "forward": [-1, -2, -3.0], "backward": None,
            "is_unknown": [False, True], "perplexity": 7.4}  # fmt: skip
    service.answer = lambda *_: ok({"results": [item]})
    (scores,) = client.score("a b")
    assert scores.tokens == ("a", "b")
    assert scores.sums == (-6.0, None)
    assert scores.perplexity == pytest.approx(np.exp(2))
    for bad in ({"forward": [-1, -2]}, {"forward": None}, {"forward": ["x", 1, 2]}, {"is_unknown": [1, 0]}):
        service.answer = lambda *_, bad=bad: ok({"results": [{**item, **bad}]})
        with pytest.raises(ServiceError, match="malformed"):
            client.score("a b")


def test_lists_and_objects_of_json_are_checked(client: Client, service: FakeService) -> None:
    service.answer = lambda *_: ok({"results": [{"word": "bank", "substitutes": [], "neighbors": []}]})
    assert client.substitutes(["a [[bank]]"], n=3)[0]["word"] == "bank"
    assert client.neighbors("a [[bank]]", k=3)[0]["word"] == "bank"
    service.answer = lambda *_: ok({"lines": [], "senses": [], "tokens": [], "scores": []})
    assert client.concordance("bank")["lines"] == []
    assert client.senses("bank", n_clusters=2)["senses"] == []
    assert client.explain("a [[bank]]", layers="top")["scores"] == []
    service.answer = lambda *_: ok([])
    for call in (client.substitutes, client.neighbors, client.concordance, client.senses, client.explain):
        with pytest.raises(ServiceError, match="malformed"):
            call("a [[bank]]")


# --- AsyncClient ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_async_client_gives_the_same_results(client: Client, service: FakeService) -> None:
    texts = [f"text number {k}" for k in range(5000)]

    async def encode() -> list[elmo.Encoding]:
        async with AsyncClient(service.url) as remote:
            with pytest.raises(StateError, match=r"await client\.describe"):
                _ = remote.width
            assert (await remote.describe()).width == remote.width == WIDTH
            return await remote.encode(texts)

    for one, other in zip(asyncio.run(encode()), client.encode(texts), strict=True):
        assert one.text == other.text
        np.testing.assert_array_equal(one.vectors, other.vectors)


def test_an_async_client_is_used_in_several_event_loops(service: FakeService) -> None:
    remote = AsyncClient(service.url)

    async def encode() -> int:
        async with remote:
            return len(await remote.encode("a b"))

    assert [asyncio.run(encode()) for _ in range(3)] == [2, 2, 2]


@pytest.mark.slow
def test_the_async_client_retries_and_keeps_the_time_limit(service: FakeService) -> None:
    async def encode(timeout: float) -> int:
        async with AsyncClient(service.url, timeout=timeout) as remote:
            return len(await remote.encode("a b"))

    service.answer = in_turn(failure(429, "overloaded", Retry_After="0"), None)
    assert asyncio.run(encode(20)) == 2
    released = threading.Event()
    service.answer = lambda *_: failure(500, "late") if released.wait(10) else None
    begin = time.monotonic()
    with pytest.raises(ServiceError, match=r"within 0\.3 seconds"):
        asyncio.run(encode(0.3))
    released.set()
    assert time.monotonic() - begin < 8


def test_the_first_error_stops_the_other_requests(service: FakeService) -> None:
    service.answer = lambda *_: failure(500, "internal")

    async def encode() -> None:
        async with AsyncClient(service.url) as remote:
            await remote.encode([["w"] * 5000] * 50)

    with pytest.raises(ServiceError, match="status 500"):
        asyncio.run(encode())
    with Client(service.url) as client, pytest.raises(ServiceError, match="status 500"):
        client.encode([["w"] * 5000] * 50)
    assert len(service.posts()) < 40
