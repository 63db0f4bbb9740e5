"""The bytes of a LevelDB table (TensorFlow's ``.index``) in, its keys and values out, every block checked."""

from __future__ import annotations

from collections.abc import Iterator

from elmo.errors import FormatError
from elmo.formats.containers.crc32c import crc32c, masked
from elmo.formats.containers.wire import read_varint

MAX_BYTES = 1 << 20  # of a table, compressed or not; the largest biLM's has a few thousand
MAX_KEYS = 1 << 14
MAX_KEY_BYTES = 1 << 10
_FOOTER_BYTES = 48
_MAGIC = 0xDB4775248B80FB57
_TRAILER_BYTES = 5  # how the block is compressed, and its checksum
_RAW, _SNAPPY = 0, 1


def read_table(data: bytes) -> dict[bytes, bytes]:
    """Every key with its value, in the order of the table, which is that of the keys."""
    if len(data) < _FOOTER_BYTES or int.from_bytes(data[-8:], "little") != _MAGIC:
        raise FormatError(
            "expected a table that ends in LevelDB's magic number, found none; is the file whole?"
        )
    footer = data[-_FOOTER_BYTES:-8]
    filters_handle, at = _read_handle(footer, 0)
    index_handle, at = _read_handle(footer, at)
    if any(footer[at:]):
        raise FormatError(
            "expected two block handles and zeros in the footer, found more; is the file whole?"
        )
    _read_block(data, *filters_handle, budget=MAX_BYTES)  # empty in TensorFlow's tables, but maybe damaged
    found: dict[bytes, bytes] = {}
    budget = MAX_BYTES
    end = 0  # blocks lie one behind the other: a hostile index cannot have one of them read a million times
    last = None
    for _, encoded in _entries(_read_block(data, *index_handle, budget=budget)):
        (offset, size), _ = _read_handle(encoded, 0)
        if offset < end:
            raise FormatError(f"expected the next block at byte {end} or later, found it at {offset}")
        end = offset + size + _TRAILER_BYTES
        block = _read_block(data, offset, size, budget=budget)
        budget -= len(block)
        for key, value in _entries(block):
            if last is not None and key <= last:
                raise FormatError(f"expected keys in rising order, found {key[:40]!r} after {last[:40]!r}")
            if len(found) == MAX_KEYS:
                raise FormatError(f"expected at most {MAX_KEYS} keys, found more")
            found[key] = value
            last = key
    return found


def _read_handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Offset and size of a block, and where the next handle starts."""
    offset, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return (offset, size), at


def _read_block(data: bytes, offset: int, size: int, *, budget: int) -> bytes:
    end = offset + size
    if end + _TRAILER_BYTES > len(data) - _FOOTER_BYTES:
        raise FormatError(f"expected a block in bytes {offset}..{end}, found a file of {len(data)} bytes")
    stored = int.from_bytes(data[end + 1 : end + _TRAILER_BYTES], "little")
    found = masked(crc32c(data[offset : end + 1]))
    if found != stored:
        raise FormatError(f"block at byte {offset}: expected checksum {stored:08x}, found {found:08x}")
    compression = data[end]
    if compression == _SNAPPY:
        return unpack_snappy(data[offset:end], limit=budget)
    if compression != _RAW:
        raise FormatError(
            f"block at byte {offset}: expected it raw or in Snappy, found compression {compression}"
        )
    return data[offset:end]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of one block; a key is stored as what differs from the key before."""
    n_restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * n_restarts
    if len(block) < 4 or end < 0:
        raise FormatError(f"expected {n_restarts} restart points in a block, found {len(block)} bytes")
    at, key = 0, b""
    while at < end:
        n_shared, at = read_varint(block, at)
        n_own, at = read_varint(block, at)
        n_value, at = read_varint(block, at)
        if n_shared > len(key) or n_own + n_value > end - at:
            raise FormatError(f"expected a key and a value within the block's {end} bytes, found more")
        if n_shared + n_own > MAX_KEY_BYTES:
            raise FormatError(f"expected keys of at most {MAX_KEY_BYTES} bytes, found {n_shared + n_own}")
        key = key[:n_shared] + block[at : at + n_own]
        at += n_own + n_value
        yield key, block[at - n_value : at]


def unpack_snappy(data: bytes, *, limit: int) -> bytes:
    """A raw Snappy stream, unpacked; more than ``limit`` bytes are refused before they are made."""
    size, at = read_varint(data, 0)
    if size > limit:
        raise FormatError(f"expected at most {limit} bytes in a Snappy block, found {size}")
    out = bytearray()
    while at < len(data):
        tag = data[at]
        at += 1
        if tag & 3 == 0:  # bytes as they are; long runs keep their length in 1 to 4 bytes behind the tag
            length, extra = (tag >> 2) + 1, max(0, (tag >> 2) - 59)
            if extra:
                length = int.from_bytes(data[at : at + extra], "little") + 1
            at += extra
            piece = data[at : at + length]
            at += length
        else:  # a copy of what came out before
            if tag & 3 == 1:
                length, extra, high = ((tag >> 2) & 7) + 4, 1, tag >> 5 << 8
            else:
                length, extra, high = (tag >> 2) + 1, 2 if tag & 3 == 2 else 4, 0
            back = high | int.from_bytes(data[at : at + extra], "little")
            at += extra
            if not 0 < back <= len(out):
                raise FormatError(
                    f"Snappy block: expected a copy from 1..{len(out)} bytes before, found {back}"
                )
            start = len(out) - back
            # A copy may run into its own output: then it repeats.
            piece = (bytes(out[start : start + length]) * (length // back + 1))[:length]
        if len(piece) != length or len(out) + length > size:
            break
        out += piece
    if len(out) != size or at != len(data):
        raise FormatError(f"Snappy block: expected {size} bytes, found {len(out)}")
    return bytes(out)
