"""Bytes in, their CRC-32C out: the checksum inside TensorFlow's files, at NumPy's speed.

A loop of Python over a checkpoint of 400 MB would take minutes. A CRC is the remainder of the message, read
as a polynomial over GF(2), by the polynomial P of the checksum; so any multiple of P may be added to the
message. P = 0x11EDC6F41 divides

    x^290 + x^136 + x^113 + x^107 + x^32 + 1

and, squaring again and again, the same sum with every exponent times any power of two. A stretch at the
front of the message may hence be taken away and XORed in 290, 258, 183, 177 and 154 strides further back:
five XORs of whole arrays, until some 290 bytes are left for the table.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

_REFLECTED = 0x82F63B78  # P without its leading term, lowest power in the highest bit
_DEGREE = 290
_TARGETS = (154, 177, 183, 258, 290)  # 290 less each of the lower exponents
_CHUNK = 1 << 21  # bytes folded at a time: they stay in the processor's cache
_MASK_DELTA = 0xA282EAD8


def crc32c(data: bytes | memoryview | NDArray[np.uint8], crc: int = 0) -> int:
    """The CRC-32C of ``data``, going on from the ``crc`` of what came before."""
    view = np.frombuffer(data, dtype=np.uint8)
    register = crc ^ 0xFFFFFFFF
    for start in range(0, len(view), _CHUNK):
        register = _through_chunk(register, view[start : start + _CHUNK])
    return register ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """The CRC as TensorFlow and LevelDB store it: turned by 15 bits, a constant added."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _through_chunk(register: int, chunk: NDArray[np.uint8]) -> int:
    if len(chunk) > 2 * _DEGREE:
        chunk = chunk.copy()
        chunk[:4] ^= np.frombuffer(register.to_bytes(4, "little"), dtype=np.uint8)
        register = 0
        chunk = _folded(chunk)
    table = _table()
    for byte in chunk.tobytes():
        register = table[(register ^ byte) & 0xFF] ^ (register >> 8)
    return register


def _folded(chunk: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A short message with the remainder of the long one; ``chunk`` is overwritten."""
    stride = 1 << (len(chunk) // _DEGREE).bit_length()
    while stride > 1:
        stride >>= 1
        start, reach = 0, _DEGREE * stride
        while (left := len(chunk) - start - reach) > 0:
            # No stretch may be longer than the way to its nearest target, or it would fall on itself.
            length = min(left, _TARGETS[0] * stride)
            stretch = chunk[start : start + length]
            for target in _TARGETS:
                begin = start + target * stride
                chunk[begin : begin + length] ^= stretch
            start += length
        chunk = chunk[start:]
    return chunk


@cache
def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [(value >> 1) ^ (_REFLECTED if value & 1 else 0) for value in table]
    return table
