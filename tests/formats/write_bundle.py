"""Write TensorFlow V2 checkpoints; each part can be made wrong on purpose.

``tests/conformance/test_tensorflow.py`` checks that TensorFlow can read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

TYPES = {"float32": 1, "float64": 2, "int32": 3, "string": 7, "int64": 9, "bfloat16": 14, "float16": 19}
MAGIC = 0xDB4775248B80FB57
Box = Sequence[tuple[int, int | None]]


def divided(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


TABLE = [divided(byte) for byte in range(256)]


def crc32c(data: bytes) -> int:
    """Compute the checksum byte by byte, slowly."""
    register = 0xFFFFFFFF
    for byte in data:
        register = register >> 8 ^ TABLE[(register ^ byte) & 0xFF]
    return register ^ 0xFFFFFFFF


def mask_crc(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def number(field: int, value: int) -> bytes:
    """Return a varint field; protobuf omits zeros."""
    return varint(field << 3) + varint(value) if value else b""


def message(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def header(n_shards: int = 1, *, endianness: int = 0, min_consumer: int = 0) -> bytes:
    version = number(1, 1) + number(2, min_consumer)
    return number(1, n_shards) + number(2, endianness) + message(3, version)


def entry(
    dtype: int | str,
    shape: Iterable[int],
    *,
    shard: int = 0,
    offset: int = 0,
    size: int = 0,
    crc: int = 0,
    slices: Iterable[Box] = (),
) -> bytes:
    axes = b"".join(message(2, number(1, length)) for length in shape)
    out = number(1, TYPES[dtype] if isinstance(dtype, str) else dtype) + message(2, axes)
    out += number(3, shard) + number(4, offset) + number(5, size)
    if crc:
        out += varint(6 << 3 | 5) + crc.to_bytes(4, "little")
    for box in slices:
        extents = b""
        for start, length in box:
            extents += message(1, number(1, start) + (b"" if length is None else varint(2 << 3) + varint(length)))
        out += message(7, extents)
    return out


def slice_key(name: str, box: Box) -> bytes:
    """Return the key of a slice with sizes below 2**13, which take one or two bytes."""

    def ordered(value: int) -> bytes:
        if -64 <= value < 64:
            return bytes([(value & 0xFF) ^ 0x80])
        return ((value & 0xFFFF) ^ 0xC000).to_bytes(2, "big")

    key = b"\0" + name.encode() + b"\0\1" + bytes([1, len(box)])
    for start, length in box:
        key += ordered(start) + ordered(-1 if length is None else length)
    return key


def block(pairs: Iterable[tuple[bytes, bytes]], *, restart_every: int = 16) -> bytes:
    out, last, restarts = b"", b"", []
    for i, (key, value) in enumerate(pairs):
        shared = 0
        if i % restart_every == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    restarts = restarts or [0]
    return out + b"".join(at.to_bytes(4, "little") for at in (*restarts, len(restarts)))


def table(pairs: Sequence[tuple[bytes, bytes]], *, per_block: int = 20, snappy: bool = False) -> bytes:
    """Return a LevelDB table of the pairs, in this order."""
    out, index = b"", []
    for start in range(0, len(pairs), per_block):
        part = pairs[start : start + per_block]
        content = block(part)
        index.append((part[-1][0], varint(len(out)) + varint(len(stored(content, snappy=snappy)) - 5)))
        out += stored(content, snappy=snappy)
    return with_footer(out, block(index, restart_every=1))


def with_footer(blocks: bytes, index: bytes) -> bytes:
    """Return blocks, an empty filter block, the index, and the footer that points to both."""
    filters = block([])
    handles = varint(len(blocks)) + varint(len(filters))
    out = blocks + stored(filters)
    handles += varint(len(out)) + varint(len(index))
    return out + stored(index) + footer(handles)


def footer(handles: bytes) -> bytes:
    return handles.ljust(40, b"\0") + MAGIC.to_bytes(8, "little")


def stored(content: bytes, *, snappy: bool = False, compression: int | None = None) -> bytes:
    """Return a block with its trailer: compression and checksum."""
    if snappy:
        content = packed(content)
    kind = bytes([int(snappy) if compression is None else compression])
    return content + kind + mask_crc(crc32c(content + kind)).to_bytes(4, "little")


def packed(content: bytes) -> bytes:
    """Compress in a simple way: literal bytes, and copies of a byte repeated 4 to 64 times."""
    out, at, literal = varint(len(content)), 0, b""

    def flush(piece: bytes) -> bytes:
        made = b""
        for start in range(0, len(piece), 70):
            part = piece[start : start + 70]
            made += (bytes([(len(part) - 1) << 2]) if len(part) <= 60 else bytes([60 << 2, len(part) - 1])) + part
        return made

    while at < len(content):
        run = 0
        while at and run < 64 and at + run < len(content) and content[at + run] == content[at - 1]:
            run += 1
        if run >= 4:
            out += flush(literal) + bytes([(run - 1) << 2 | 2, 1, 0])  # from one byte before
            literal, at = b"", at + run
        else:
            literal, at = literal + content[at : at + 1], at + 1
    return out + flush(literal)


def raw(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def write_bundle(
    folder: Path,
    prefix: str,
    tensors: Mapping[str, np.ndarray],
    *,
    n_shards: int = 1,
    slices: Mapping[str, Sequence[Box]] | None = None,
    bfloat16: Iterable[str] = (),
    extra: Iterable[tuple[bytes, bytes]] = (),
    per_block: int = 20,
    snappy: bool = False,
) -> None:
    """Write every tensor, partitioned as in ``slices``, to ``n_shards`` data files in turn.

    For a tensor in ``bfloat16``, the upper half of each float32 is stored.
    """
    data = [b""] * n_shards
    pairs = list(extra)

    def store(key: bytes, array: np.ndarray, *, is_bfloat16: bool) -> None:
        shard = len(pairs) % n_shards
        content = raw((array.view(np.uint32) >> 16).astype(np.uint16) if is_bfloat16 else array)
        kind = "bfloat16" if is_bfloat16 else str(array.dtype)
        where = {"shard": shard, "offset": len(data[shard]), "size": len(content)}
        pairs.append((key, entry(kind, array.shape, crc=mask_crc(crc32c(content)), **where)))
        data[shard] += content

    for name, array in tensors.items():
        is_bfloat16 = name in bfloat16
        boxes = (slices or {}).get(name)
        if boxes is None:
            store(name.encode(), array, is_bfloat16=is_bfloat16)
            continue
        pairs.append((name.encode(), entry("bfloat16" if is_bfloat16 else str(array.dtype), array.shape, slices=boxes)))
        for box in boxes:
            part = array[tuple(slice(start, None if n is None else start + n) for start, n in box)]
            store(slice_key(name, box), np.ascontiguousarray(part), is_bfloat16=is_bfloat16)
    target = folder / prefix
    target.parent.mkdir(parents=True, exist_ok=True)
    pairs.append((b"", header(n_shards)))
    index = table(sorted(pairs), per_block=per_block, snappy=snappy)
    (target.parent / f"{target.name}.index").write_bytes(index)
    for shard, content in enumerate(data):
        (target.parent / f"{target.name}.data-{shard:05d}-of-{n_shards:05d}").write_bytes(content)
