"""Random mutations of bytes, repeatable by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

_NUMBERS = (0, 1, 2, 7, 8, 16, 63, 64, 127, 128, 255, 256, 1 << 15, (1 << 16) - 1, 1 << 16, (1 << 31) - 1, 1 << 31,
            (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip
_WORDS = (b"\0", b"\n", b"\n\n", b"\t", b" ", b'"', b"{", b"}", b"[", b"]", b"[" * 500, b'{"a":' * 300, b"null",
          b"true", b"NaN", b"-Infinity", b"1e999", b"-1", b"0", b"9" * 400, b"1" * 5000, b"0.5", b'""',
          b"../../etc/passwd", b"/etc/passwd", b"\\u0000", b"\\ud800", b"\xff\xfe", b"\xef\xbb\xbf", b"\xe2\x80\xa8",
          b"\xc2\x85", b"\r",
          "é河😀".encode(), b"#begin document", b"-DOCSTART-",
          b"PK\x03\x04", b"\x1f\x8b", b"cos\nsystem\n")  # fmt: skip


def mutate(seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """Return a mutation of one of the seeds; sometimes a mix of two."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        _mutate_once(data, seeds, rng)
    return bytes(data)


def _mutate_once(data: bytearray, seeds: Sequence[bytes], rng: random.Random) -> None:
    at = _spot(len(data), rng)
    kind = rng.randrange(10)
    if kind <= 1 and data:
        data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
    elif kind == 2 and data:
        data[min(at, len(data) - 1)] = rng.randrange(256)
    elif kind == 3:
        size = rng.choice((1, 2, 4, 8))
        number = (rng.choice(_NUMBERS) + rng.choice((-1, 0, 1))) % (1 << 8 * size)
        data[at : at + size] = number.to_bytes(size, rng.choice(("little", "big")))
    elif kind == 4:
        del data[at : at + rng.choice((1, 1, 4, 16, 100, len(data)))]
    elif kind == 5:
        data[at:at] = rng.choice(_WORDS)
    elif kind == 6:
        end = at + rng.randint(1, 40)
        data[at:end] = rng.choice(_WORDS)
    elif kind == 7:  # repeat a part
        begin = _spot(len(data), rng)
        data[at:at] = data[begin : begin + rng.choice((1, 4, 20, 200))] * rng.choice((1, 2, 50))
    elif kind == 8:  # mix two inputs
        other = rng.choice(seeds)
        begin = _spot(len(other), rng)
        data[at : at + rng.randint(0, 100)] = other[begin : begin + rng.randint(1, 200)]
    else:
        end = min(len(data), at + rng.randint(1, 64))
        data[at:end] = rng.choice((b"\0", b"\xff", b" ")) * (end - at)


def _spot(size: int, rng: random.Random) -> int:
    """Return a position; often near the ends, where the headers are."""
    if size <= 1024 or rng.random() < 0.3:
        return rng.randrange(size + 1)
    edge = rng.randrange(1024)
    return edge if rng.random() < 0.6 else size - edge
