"""An open zip file in, the place of each entry's bytes out; only entries that are stored uncompressed.

``torch.save`` stores, and never compresses: an entry then cannot grow as it is read, and its numbers can be
read from the file where they lie.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO

MAX_ENTRIES = 1 << 14
_MAX_DIRECTORY = 1 << 21  # bytes
_END = struct.Struct("<4s4HIIH")
_END64_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_FULL32 = 0xFFFFFFFF  # the number stands in a 64-bit field elsewhere


@dataclass(frozen=True)
class Span:
    """Bytes of a file."""

    position: int
    size: int


def read_spans(file: BinaryIO, file_size: int) -> dict[str, Span]:
    """Where each entry's bytes lie; ``ValueError`` says what is wrong."""
    start, size, count = _directory(file, file_size)
    if size > _MAX_DIRECTORY or count > MAX_ENTRIES or start + size > file_size:
        raise ValueError(f"a zip directory of {count} entries, {size} bytes at {start}")
    directory = _exactly(file, start, size)
    spans: dict[str, Span] = {}
    position = 0
    for _ in range(count):
        if position + _ENTRY.size > size:
            raise ValueError("a zip directory that is cut off")
        values = _ENTRY.unpack_from(directory, position)
        magic, flags, method, packed, unpacked = values[0], values[3], values[4], values[8], values[9]
        name_size, extra_size, comment_size, offset = values[10], values[11], values[12], values[16]
        if magic != b"PK\1\2":
            raise ValueError("a damaged zip directory")
        position += _ENTRY.size
        raw_name = directory[position : position + name_size]
        extra = directory[position + name_size : position + name_size + extra_size]
        position += name_size + extra_size + comment_size
        name = raw_name.decode("utf-8")  # its error is a ValueError too
        unpacked, packed, offset = _wide(extra, (unpacked, packed, offset))
        if flags & 1 or method != 0 or packed != unpacked:
            raise ValueError(f"zip entry {name!r:.80}, which is compressed or encrypted")
        if name in spans:
            raise ValueError(f"zip entry {name!r:.80} twice")
        spans[name] = _local(file, raw_name=raw_name, offset=offset, size=unpacked, end=start)
    return spans


def _directory(file: BinaryIO, file_size: int) -> tuple[int, int, int]:
    """Position and size of the central directory, and its number of entries."""
    if file_size < _END.size:
        raise ValueError("a zip file that is cut off")
    magic, _, _, _, count, size, start, comment = _END.unpack(
        _exactly(file, file_size - _END.size, _END.size)
    )
    if magic != b"PK\5\6" or comment:
        raise ValueError("a zip file that is cut off, or followed by something else")
    if count != 0xFFFF and _FULL32 not in (size, start):
        return start, size, count
    place = file_size - _END.size - _END64_LOCATOR.size
    magic, _, place64, _ = _END64_LOCATOR.unpack(_exactly(file, place, _END64_LOCATOR.size))
    if magic != b"PK\6\7" or place64 + _END64.size > place:
        raise ValueError("a zip file without the end that its size needs")
    values = _END64.unpack(_exactly(file, place64, _END64.size))
    if values[0] != b"PK\6\6":
        raise ValueError("a zip file without the end that its size needs")
    return values[9], values[8], values[7]


def _wide(extra: bytes, numbers: tuple[int, int, int]) -> list[int]:
    """The numbers, those that did not fit 32 bits taken from the entry's extra fields."""
    position, wide = 0, b""
    while position + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, position)
        if kind == 1:
            wide = extra[position + 4 : position + 4 + size]
        position += 4 + size
    n_wide = numbers.count(_FULL32)
    if len(wide) < 8 * n_wide:
        raise ValueError("a zip entry without its 64-bit size")
    replaced = iter(struct.unpack_from(f"<{n_wide}Q", wide))
    return [next(replaced) if number == _FULL32 else number for number in numbers]


def _local(file: BinaryIO, *, raw_name: bytes, offset: int, size: int, end: int) -> Span:
    """The bytes behind an entry's own header, which must lie before the directory."""
    if offset + _LOCAL.size > end:
        raise ValueError(f"zip entry {raw_name!r:.80} outside the file")
    values = _LOCAL.unpack(_exactly(file, offset, _LOCAL.size))
    position = offset + _LOCAL.size + values[9] + values[10]
    if values[0] != b"PK\3\4" or values[3] != 0 or values[9] != len(raw_name):
        raise ValueError(f"zip entry {raw_name!r:.80} with two different headers")
    if position + size > end:
        raise ValueError(f"zip entry {raw_name!r:.80} of {size} bytes, more than the file has")
    if _exactly(file, offset + _LOCAL.size, len(raw_name)) != raw_name:
        raise ValueError(f"zip entry {raw_name!r:.80} under two names")
    return Span(position, size)


def _exactly(file: BinaryIO, position: int, size: int) -> bytes:
    if position < 0:
        raise ValueError("a zip file that is cut off")
    file.seek(position)
    data = file.read(size)
    if len(data) != size:
        raise ValueError("a zip file that is cut off")
    return data
