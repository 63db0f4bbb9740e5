"""The bytes of a protobuf message in, its fields out: the wire format by hand, strictly bounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elmo.errors import FormatError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that starts at ``at``, and where the next thing starts."""
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + i + 1
    raise FormatError(f"expected a number of at most 64 bits at byte {at}, found none that ends")


def read_message(data: bytes, kinds: Mapping[int, int]) -> dict[int, list[Any]]:
    """Every value of the fields in ``kinds`` (field number to wire type), in the order of the file.

    Fields of other numbers are skipped, as protobuf asks of a reader; a known one of another type is refused.
    """
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        value, at = _read_value(data, at, kind)
        expected = kinds.get(number)
        if expected is not None:
            if kind != expected:
                raise FormatError(f"expected field {number} of wire type {expected}, found type {kind}")
            found.setdefault(number, []).append(value)
    return found


def as_signed(value: int) -> int:
    """A varint as the int64 that it stands for."""
    return value - (1 << 64) if value >> 63 else value


def _read_value(data: bytes, at: int, kind: int) -> tuple[int | bytes, int]:
    if kind == VARINT:
        return read_varint(data, at)
    if kind == BYTES:
        size, at = read_varint(data, at)
    elif kind in (FIXED32, FIXED64):
        size = 4 if kind == FIXED32 else 8
    else:
        raise FormatError(f"expected a protobuf field at byte {at}, found wire type {kind}")
    if size > len(data) - at:
        raise FormatError(f"expected a field of {size} bytes at byte {at}, found {len(data) - at}")
    value = data[at : at + size]
    return (value if kind == BYTES else int.from_bytes(value, "little")), at + size
