"""Large replies: built in pieces that have the bytes of the whole, so that they never stop the event loop for long."""

from __future__ import annotations

import io
import json
import socket
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

orjson = pytest.importorskip("orjson", reason="needs the extra serve")

from elmo.embed.encoding import Encoding  # noqa: E402
from elmo.serve import replies  # noqa: E402
from elmo.serve.replies import to_json, to_pieces, words_reply  # noqa: E402
from tests.serve.conftest import RunningServer  # noqa: E402

ARRAYS = hnp.arrays(
    st.sampled_from([np.float32, np.float16, np.int64]),
    hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6),
    elements=st.integers(-9, 9),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=4) | ARRAYS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=30,
)


@given(value=VALUES, n_values=st.integers(1, 12))
@settings(max_examples=300, deadline=None)
def test_the_pieces_of_a_reply_have_the_bytes_of_the_whole(value: Any, n_values: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replies, "PIECE_VALUES", n_values)
        assert b"".join(to_pieces(value)) == to_json(value)


def test_no_piece_of_a_large_reply_is_large() -> None:
    tokens = [{"id": k, "text": "word", "start": k, "stop": k + 1} for k in range(40_000)]
    values = {
        "rows": np.ones((3, 5000, 64), np.float32), "texts": ["word"] * 200_000, "one": [tokens], "many": tokens,
        "vectors": [np.ones(512, np.float32)] * 1000, "numbers": np.arange(300_000),
    }  # fmt: skip
    for name, value in values.items():
        pieces = list(to_pieces({name: value}))
        assert b"".join(pieces) == to_json({name: value})
        assert max(map(len, pieces)) < 600_000, name
        assert len(pieces) < 1000, name


@pytest.mark.parametrize("encoding", ["float", "base64", "npy"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_vectors_that_are_cut_have_the_bits_of_the_whole(
    encoding: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = np.random.default_rng(0).normal(size=(2, 7, 5)).astype(dtype)
    items = [Encoding(("a",) * 7, vectors), Encoding(("b",) * 7, vectors[:, ::-1].copy())]
    request = {"targets": None, "encoding": encoding, "offsets": "codepoints", "dtype": dtype}
    whole, _ = words_reply({"object": "words"}, items, request)
    monkeypatch.setattr(replies, "PIECE_VALUES", 9)
    monkeypatch.setattr(replies, "PIECE_BYTES", 6)
    parts, _ = words_reply({"object": "words"}, items, request)
    assert len(parts) > len(whole)
    if encoding != "npy":
        assert b"".join(parts) == b"".join(whole)
        return
    found, expected = (zipfile.ZipFile(io.BytesIO(b"".join(chunks))) for chunks in (parts, whole))
    assert [found.read(name) for name in found.namelist()] == [expected.read(name) for name in expected.namelist()]


def pauses(port: int, stop: threading.Event) -> Iterator[float]:
    """Yield the seconds of one request to /livez after the other."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        while not stop.is_set():
            begin = time.monotonic()
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
            yield time.monotonic() - begin
            time.sleep(0.002)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="timers have a low resolution")
def test_others_are_answered_while_a_large_reply_is_built(server: RunningServer) -> None:
    texts = ["the bank of the river and the money in the city near the old market said the man ."] * 900
    n_tokens = server.post("/v1/words", {"inputs": texts[:1], "encoding": "base64"}).json["usage"]["tokens"] * 900
    width = server.get("/v1/models").json["data"][0]["width"]
    numbers = np.random.default_rng(0).normal(size=(n_tokens, width)).astype(np.float32)
    body = json.dumps({"inputs": texts}).encode()
    head = "POST /embed_all HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    longest, usual = [], []
    for _ in range(3):  # other processes can also delay a reply
        begin = time.monotonic()
        to_json(numbers)
        usual.append(time.monotonic() - begin)
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            stop = threading.Event()
            found: list[float] = []
            thread = threading.Thread(target=lambda: found.extend(pauses(server.port, stop)))  # noqa: B023
            thread.start()
            size = 0
            while chunk := client.recv(1 << 18):
                size += len(chunk)
            stop.set()
            thread.join()
        assert size > 5 * numbers.size
        longest.append(max(found))
    assert min(longest) < 0.5 * min(usual), f"pauses {longest}, time to build a reply at once {usual}"
