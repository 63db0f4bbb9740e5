"""Read a TensorFlow V2 checkpoint (``.index``, ``.data-0000i-of-0000N``) without TensorFlow.

The index is a LevelDB table of protobuf messages: the name of each tensor, its type and shape, and the bytes
of the data file that contain it. All of that is checked against the files before an array is allocated, and
the bytes of each tensor are checked against their CRC-32C. The parts of this module, in order: the bundle,
the LevelDB table, protobuf messages, and the checksum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmo.errors import FormatError, raise_all
from elmo.storage.files import find_member, format_path, open_regular, read_bytes

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # protobuf wire types
MAX_AXES = 8
MAX_LENGTH = 1 << 40  # maximum length of one axis
MAX_SLICES = 1 << 10  # maximum number of slices of one tensor
_VERSION = 1  # version of the bundle layout; unchanged since TensorFlow 0.12

# TensorFlow's ids of the supported types; tensors of other types are listed, but cannot be read
_TYPES = {1: "float32", 2: "float64", 3: "int32", 9: "int64", 14: "bfloat16", 19: "float16"}
_STORED = {
    "float32": "<f4", "float64": "<f8", "float16": "<f2", "bfloat16": "<u2", "int32": "<i4", "int64": "<i8",
}  # fmt: skip

# Fields of BundleEntryProto: type, shape, data file, offset, size, checksum, slices
_ENTRY = {2: BYTES, 6: FIXED32, 7: BYTES, **dict.fromkeys((1, 3, 4, 5), VARINT)}

SliceBox = tuple[tuple[int, int], ...]  # start and length on every axis
SliceExtents = tuple[tuple[int, int | None], ...]  # the same; a length of None is the whole axis


@dataclass(frozen=True)
class BundleEntry:
    """The type and shape of one tensor, and the position of its bytes in the data files."""

    dtype: str  # "other" for types that cannot be read, such as strings
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    slices: tuple[SliceExtents, ...]

    @property
    def n_bytes(self) -> int:
        """Number of bytes that the shape and the type require."""
        return math.prod(self.shape) * np.dtype(_STORED[self.dtype]).itemsize


@dataclass(frozen=True)
class Bundle:
    """The tensors of a checkpoint; only ``read`` opens the data files."""

    folder: Path
    prefix: str
    n_shards: int
    entries: Mapping[str, BundleEntry]
    parts: Mapping[str, tuple[tuple[SliceBox, BundleEntry], ...]]  # slices of partitioned tensors

    @property
    def names(self) -> list[str]:
        """Names of all tensors, sorted."""
        return list(self.entries)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor."""
        return {name: entry.shape for name, entry in self.entries.items()}

    def read(self, name: str) -> NDArray[np.generic]:
        """Read one tensor and join its slices; bfloat16, which NumPy does not support, is converted to float32."""
        entry = self.entries.get(name)
        if entry is None:
            raise FormatError(
                f"{self._subject}: expected a tensor {name!r}, found none among {len(self.entries)} tensors"
            )
        if entry.dtype == "other":
            raise FormatError(f"{self._subject}: expected {name!r} to contain numbers, found another type")
        parts = self.parts.get(name)
        if parts is None:
            array = self._read_entry(name, entry)
        else:
            array = np.empty(entry.shape, dtype=_STORED[entry.dtype])
            for box, part in parts:
                array[tuple(slice(start, start + length) for start, length in box)] = self._read_entry(name, part)
        if entry.dtype == "bfloat16":
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array

    def _read_entry(self, name: str, entry: BundleEntry) -> NDArray[np.generic]:
        file_name = data_name(self.prefix, entry.shard, self.n_shards)
        array = np.empty(entry.shape, dtype=_STORED[entry.dtype])
        raw = array.reshape(-1).view(np.uint8)
        with open_regular(find_member(self.folder, file_name)) as file:
            try:
                file.seek(entry.offset)
                n_read = file.readinto(memoryview(raw)) if raw.size else 0  # type: ignore[attr-defined]
            except OSError as error:
                raise FormatError(f"cannot read {format_path(self.folder / file_name)}: {error.strerror}") from error
        if n_read != entry.size:
            raise FormatError(f"{self._subject}: {name!r}: expected {entry.size} bytes, found {n_read}")
        actual = mask_crc(crc32c(raw))
        if actual != entry.crc:
            raise FormatError(
                f"{self._subject}: {name!r}: expected checksum {entry.crc:08x}, found {actual:08x}; "
                f"{format_path(file_name)} is damaged: download it again"
            )
        return array

    @property
    def _subject(self) -> str:
        return format_path(self.folder / self.prefix)


def data_name(prefix: str, shard: int, n_shards: int) -> str:
    """Return the name of a data file."""
    return f"{prefix}.data-{shard:05d}-of-{n_shards:05d}"


def read_index(folder: Path, prefix: str) -> Bundle:
    """Read the index of a checkpoint, without the numbers, and check it against the data files' sizes."""
    path = find_member(folder, f"{prefix}.index")
    try:
        table = read_table(read_bytes(path, MAX_BYTES))
        n_shards = _read_header(table.pop(b"", b""))
        entries: dict[bytes, BundleEntry] = {}
        n_slices = 0  # every slice has a key, so there cannot be more slices than keys
        for key, value in table.items():
            try:
                entries[key] = _read_entry(value, n_shards, max_slices=min(MAX_SLICES, len(table) - n_slices))
            except FormatError as error:
                raise FormatError(f"{key.decode('utf-8', 'replace')[:100]!r}: {error}") from error
            n_slices += len(entries[key].slices)
    except FormatError as error:
        message = str(error).removeprefix(f"{format_path(path)}: ")
        raise FormatError(f"{format_path(path)}: {message}") from error
    problems: list[str] = []
    named: dict[str, BundleEntry] = {}
    for key, entry in entries.items():
        if key[:1] != b"\0":  # the key of a slice starts with a zero byte
            named[_decode_name(key, problems)] = entry
    parts: dict[str, tuple[tuple[SliceBox, BundleEntry], ...]] = {}
    for name, entry in named.items():
        if entry.slices and entry.dtype != "other":
            try:
                parts[name] = _join_slices(name, entry, entries)
            except FormatError as error:
                problems.append(str(error))
    stored = [(name, entry) for name, entry in named.items() if not entry.slices]
    stored += [(f"a slice of {name}", part) for name, joined in parts.items() for _, part in joined]
    problems += _placement_problems(folder, prefix, n_shards, [(name, e) for name, e in stored if e.dtype != "other"])
    raise_all(problems, subject=format_path(path))
    return Bundle(folder, prefix, n_shards, named, parts)


def slice_key(name: str, box: Sequence[tuple[int, int | None]]) -> bytes:
    """Return the key of a slice, as TensorFlow's ``EncodeTensorNameSlice`` does."""
    escaped = name.encode().replace(b"\0", b"\0\xff")  # TensorFlow also escapes 0xff, which never occurs in UTF-8
    key = _ordered(0) + escaped + b"\0\1" + _ordered(len(box))
    for start, length in box:
        key += _ordered_signed(start) + _ordered_signed(-1 if length is None else length)
    return key


def _ordered(value: int) -> bytes:
    size = (value.bit_length() + 7) // 8
    return bytes([size]) + value.to_bytes(size, "big")


def _ordered_signed(value: int) -> bytes:
    """Encode a number as two's complement, with the number of bytes in the leading bits, as in UTF-8."""
    size = (value if value >= 0 else ~value).bit_length() // 7 + 1
    mark = ((1 << size) - 1) << 7 * size
    return ((value & ((1 << 8 * size) - 1)) ^ mark).to_bytes(size, "big")


def _decode_name(key: bytes, problems: list[str]) -> str:
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        problems.append(f"expected names in UTF-8, found {key[:40]!r}")
        return repr(key)


def _read_header(data: bytes) -> int:
    """Return the number of data files."""
    header = read_message(data, {1: VARINT, 2: VARINT, 3: BYTES})
    n_shards, endianness = header.get(1, [0])[-1], header.get(2, [0])[-1]
    version = read_message(header.get(3, [b""])[-1], {2: VARINT})
    if not 1 <= n_shards <= 99_999:
        raise FormatError(f"header: expected 1..99999 data files, found {n_shards}")
    if endianness != 0:
        raise FormatError(
            "header: big-endian checkpoints are not supported; save the checkpoint on a little-endian system"
        )
    if (needed := version.get(2, [0])[-1]) > _VERSION:
        raise FormatError(
            f"header: this checkpoint requires reader version {needed}, but only version {_VERSION} is supported"
        )
    return n_shards


def _read_entry(data: bytes, n_shards: int, *, max_slices: int) -> BundleEntry:
    fields = read_message(data, _ENTRY)

    def last(number: int) -> int:
        return as_signed(fields.get(number, [0])[-1])

    shard, offset, size = last(3), last(4), last(5)
    if not 0 <= shard < n_shards or offset < 0 or size < 0:
        raise FormatError(
            f"expected a data file in 0..{n_shards - 1} and a valid byte range, found data file {shard} and "
            f"bytes {offset}..{offset + size}"
        )
    slices = fields.get(7, [])
    if len(slices) > max_slices:
        raise FormatError(f"expected at most {max_slices} slices of a tensor, found {len(slices)}")
    return BundleEntry(
        dtype=_TYPES.get(last(1), "other"),
        shape=_read_shape(fields.get(2, [b""])[-1]),
        shard=shard,
        offset=offset,
        size=size,
        crc=last(6),
        slices=tuple(_read_slice(message) for message in slices),
    )


def _read_shape(data: bytes) -> tuple[int, ...]:
    fields = read_message(data, {2: BYTES, 3: VARINT})
    axes = fields.get(2, [])
    if any(fields.get(3, [])) or len(axes) > MAX_AXES:
        raise FormatError(f"expected a shape of at most {MAX_AXES} axes, found {len(axes) or 'an unknown number'}")
    shape = [as_signed(read_message(axis, {1: VARINT}).get(1, [0])[-1]) for axis in axes]
    if not all(0 <= length < MAX_LENGTH for length in shape):
        raise FormatError(f"expected axes with lengths in 0..{MAX_LENGTH - 1}, found shape {shape}")
    return tuple(shape)


def _read_slice(data: bytes) -> SliceExtents:
    axes = read_message(data, {1: BYTES}).get(1, [])
    if len(axes) > MAX_AXES:
        raise FormatError(f"expected a slice of at most {MAX_AXES} axes, found {len(axes)}")
    extents: list[tuple[int, int | None]] = []
    for axis in axes:
        fields = read_message(axis, {1: VARINT, 2: VARINT})
        start = as_signed(fields.get(1, [0])[-1])
        length = as_signed(fields[2][-1]) if 2 in fields else None
        if not 0 <= start < MAX_LENGTH or not (length is None or 0 < length < MAX_LENGTH):
            raise FormatError(f"expected a slice in 0..{MAX_LENGTH}, found start {start} and length {length}")
        extents.append((start, length))
    return tuple(extents)


def _join_slices(
    name: str, whole: BundleEntry, entries: Mapping[bytes, BundleEntry]
) -> tuple[tuple[SliceBox, BundleEntry], ...]:
    """Return the slices of a tensor with their positions; they must fill the tensor without overlaps or gaps."""
    joined: list[tuple[SliceBox, BundleEntry]] = []
    for extents in whole.slices:
        part = entries.get(slice_key(name, extents))
        if part is None:
            raise FormatError(f"{format_path(name)}: expected a slice at {_starts(extents)}, found none")
        if len(extents) != len(whole.shape):
            raise FormatError(f"{format_path(name)}: expected slices of {len(whole.shape)} axes, found {len(extents)}")
        box = tuple(
            (start, total - start if length is None else length)
            for (start, length), total in zip(extents, whole.shape, strict=True)
        )
        lengths = tuple(length for _, length in box)
        if any(start + length > total for (start, length), total in zip(box, whole.shape, strict=True)):
            raise FormatError(
                f"{format_path(name)}: expected slices within {whole.shape}, found {lengths} at {_starts(box)}"
            )
        if part.slices or part.shape != lengths or part.dtype != whole.dtype:
            raise FormatError(
                f"{format_path(name)}: expected a slice {whole.dtype} {lengths} at {_starts(box)}, "
                f"found {part.dtype} {part.shape}"
            )
        joined.append((box, part))
    _check_tiling(format_path(name), whole.shape, [box for box, _ in joined])
    return tuple(joined)


def _check_tiling(name: str, shape: tuple[int, ...], boxes: list[SliceBox]) -> None:
    ranges = np.array(boxes, dtype=np.int64).reshape(len(boxes), len(shape), 2)
    starts, ends = ranges[:, :, 0], ranges.sum(axis=2)
    for i in range(len(boxes) - 1):
        is_over = ((starts[i] < ends[i + 1 :]) & (starts[i + 1 :] < ends[i])).all(axis=1)
        if is_over.any():
            other = i + 1 + int(is_over.argmax())
            raise FormatError(f"{name}: slices at {_starts(boxes[i])} and {_starts(boxes[other])} overlap")
    covered = sum(math.prod(length for _, length in box) for box in boxes)
    if covered != math.prod(shape):
        raise FormatError(f"{name}: expected slices that fill {shape}, found {covered} of {math.prod(shape)} numbers")


def _starts(box: Sequence[tuple[int, int | None]]) -> tuple[int, ...]:
    return tuple(start for start, _ in box)


def _placement_problems(
    folder: Path, prefix: str, n_shards: int, stored: Sequence[tuple[str, BundleEntry]]
) -> list[str]:
    """List the tensors that do not fit into the data files."""
    problems: list[str] = []
    sizes: dict[int, int] = {}
    for shard in sorted({entry.shard for _, entry in stored}):
        try:
            sizes[shard] = find_member(folder, data_name(prefix, shard, n_shards)).stat().st_size
        except (FormatError, OSError) as error:
            problems.append(str(error))
    for name, entry in stored:
        if entry.size != entry.n_bytes:
            problems.append(
                f"{name!r}: expected {entry.n_bytes} bytes for {entry.dtype} {entry.shape}, found {entry.size}"
            )
        elif entry.shard in sizes and entry.offset + entry.size > sizes[entry.shard]:
            problems.append(
                f"{name!r}: expected bytes {entry.offset}..{entry.offset + entry.size} of data file "
                f"{entry.shard}, found a file of {sizes[entry.shard]} bytes"
            )
    # Tensors must not share bytes; then all arrays together are not larger than the files.
    in_order = sorted((entry.shard, entry.offset, entry.size, name) for name, entry in stored if entry.size)
    for (shard, offset, size, name), (next_shard, next_offset, _, other) in pairwise(in_order):
        if shard == next_shard and offset + size > next_offset:
            problems.append(f"{name!r} and {other!r}: expected separate bytes, found an overlap")
    return problems


# --- LevelDB table -------------------------------------------------------------------------------

MAX_BYTES = 1 << 20  # maximum size of a table, compressed and decompressed; the largest biLM needs a few thousand bytes
MAX_KEYS = 1 << 14
MAX_KEY_BYTES = 1 << 10
_FOOTER_BYTES = 48
_MAGIC = 0xDB4775248B80FB57
_TRAILER_BYTES = 5  # the compression of a block and its checksum
_RAW, _SNAPPY = 0, 1


def read_table(data: bytes) -> dict[bytes, bytes]:
    """Read all keys and values of a table, in the order of the keys."""
    if len(data) < _FOOTER_BYTES or int.from_bytes(data[-8:], "little") != _MAGIC:
        raise FormatError("expected a table that ends with LevelDB's magic number; the file may be truncated")
    footer = data[-_FOOTER_BYTES:-8]
    filters_handle, at = _read_handle(footer, 0)
    index_handle, at = _read_handle(footer, at)
    if any(footer[at:]):
        raise FormatError("expected two block handles and zeros in the footer, found more; the file may be damaged")
    # TensorFlow writes no filters; reading the block checks its checksum
    _read_block(data, *filters_handle, budget=MAX_BYTES)
    values: dict[bytes, bytes] = {}
    budget = MAX_BYTES
    end = 0  # blocks must be in file order, so that a hostile index cannot repeat a block a million times
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
                raise FormatError(f"expected keys in ascending order, found {key[:40]!r} after {last[:40]!r}")
            if len(values) == MAX_KEYS:
                raise FormatError(f"expected at most {MAX_KEYS} keys, found more")
            values[key] = value
            last = key
    return values


def _read_handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Read offset and size of a block; return them and the position after them."""
    offset, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return (offset, size), at


def _read_block(data: bytes, offset: int, size: int, *, budget: int) -> bytes:
    end = offset + size
    if end + _TRAILER_BYTES > len(data) - _FOOTER_BYTES:
        raise FormatError(f"expected a block in bytes {offset}..{end}, found a file of {len(data)} bytes")
    stored = int.from_bytes(data[end + 1 : end + _TRAILER_BYTES], "little")
    actual = mask_crc(crc32c(data[offset : end + 1]))
    if actual != stored:
        raise FormatError(f"block at byte {offset}: expected checksum {stored:08x}, found {actual:08x}")
    compression = data[end]
    if compression == _SNAPPY:
        return unpack_snappy(data[offset:end], limit=budget)
    if compression != _RAW:
        raise FormatError(f"block at byte {offset}: expected no compression or Snappy, found compression {compression}")
    return data[offset:end]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of a block; each key is stored as its difference from the previous key."""
    n_restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * n_restarts
    if len(block) < 4 or end < 0:
        raise FormatError(f"expected a block with {n_restarts} restart points, found only {len(block)} bytes")
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
    """Decompress a raw Snappy stream of at most ``limit`` bytes."""
    size, at = read_varint(data, 0)
    if size > limit:
        raise FormatError(f"expected at most {limit} bytes in a Snappy block, found {size}")
    out = bytearray()
    while at < len(data):
        tag = data[at]
        at += 1
        if tag & 3 == 0:  # literal bytes; a long run has its length in 1 to 4 bytes after the tag
            length, extra = (tag >> 2) + 1, max(0, (tag >> 2) - 59)
            if extra:
                length = int.from_bytes(data[at : at + extra], "little") + 1
            at += extra
            piece = data[at : at + length]
            at += length
        else:  # a copy of earlier output
            if tag & 3 == 1:
                length, extra, high = ((tag >> 2) & 7) + 4, 1, tag >> 5 << 8
            else:
                length, extra, high = (tag >> 2) + 1, 2 if tag & 3 == 2 else 4, 0
            back = high | int.from_bytes(data[at : at + extra], "little")
            at += extra
            if not 0 < back <= len(out):
                raise FormatError(f"Snappy block: expected a copy distance in 1..{len(out)}, found {back}")
            start = len(out) - back
            # a copy may extend into its own output, which then repeats
            piece = (bytes(out[start : start + length]) * (length // back + 1))[:length]
        if len(piece) != length or len(out) + length > size:
            break
        out += piece
    if len(out) != size or at != len(data):
        raise FormatError(f"Snappy block: expected {size} bytes, found {len(out)}")
    return bytes(out)


# --- protobuf messages ---------------------------------------------------------------------------


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read the number at ``at``; return it and the position after it."""
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + i + 1
    raise FormatError(f"expected a number of at most 64 bits at byte {at}, found a longer or truncated one")


def read_message(data: bytes, kinds: Mapping[int, int]) -> dict[int, list[Any]]:
    """Read all values of the fields in ``kinds`` (field number to wire type), in file order.

    Unknown fields are skipped, as protobuf requires; a field with another wire type than in ``kinds`` is rejected.
    """
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        value, at = _read_value(data, at, kind)
        expected = kinds.get(number)
        if expected is not None:
            if kind != expected:
                raise FormatError(f"expected field {number} of wire type {expected}, found type {kind}")
            fields.setdefault(number, []).append(value)
    return fields


def as_signed(value: int) -> int:
    """Convert a varint to the int64 that it represents."""
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
        raise FormatError(f"expected a field of {size} bytes at byte {at}, found only {len(data) - at} bytes")
    value = data[at : at + size]
    return (value if kind == BYTES else int.from_bytes(value, "little")), at + size


# --- CRC-32C -------------------------------------------------------------------------------------
# A Python loop over a checkpoint of 400 MB would take minutes, so NumPy does most of the work. A CRC is the
# remainder of the message, as a polynomial over GF(2), divided by the polynomial P of the checksum. Adding a
# multiple of P to the message does not change the remainder. P = 0x11EDC6F41 divides
#
#     x^290 + x^136 + x^113 + x^107 + x^32 + 1
#
# and, by repeated squaring, the same sum with every exponent multiplied by any power of two. So a block at
# the front of the message can be removed if it is XORed into the message 290, 258, 183, 177 and 154 strides
# later: five XORs of whole arrays, repeated until about 290 bytes are left for the lookup table.

_REFLECTED = 0x82F63B78  # P without its leading term, lowest power in the highest bit
_DEGREE = 290
_TARGETS = (154, 177, 183, 258, 290)  # 290 minus each of the lower exponents
_CHUNK = 1 << 21  # bytes folded at a time, so that they stay in the processor's cache
_MASK_DELTA = 0xA282EAD8


def crc32c(data: bytes | memoryview | NDArray[np.uint8], crc: int = 0) -> int:
    """Compute the CRC-32C of ``data``; ``crc`` is the CRC-32C of the preceding bytes."""
    view = np.frombuffer(data, dtype=np.uint8)
    register = crc ^ 0xFFFFFFFF
    for start in range(0, len(view), _CHUNK):
        register = _update(register, view[start : start + _CHUNK])
    return register ^ 0xFFFFFFFF


def mask_crc(crc: int) -> int:
    """Return the CRC as TensorFlow and LevelDB store it: rotated by 15 bits, plus a constant."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _update(register: int, chunk: NDArray[np.uint8]) -> int:
    if len(chunk) > 2 * _DEGREE:
        chunk = chunk.copy()
        chunk[:4] ^= np.frombuffer(register.to_bytes(4, "little"), dtype=np.uint8)
        register = 0
        chunk = _fold(chunk)
    table = _table()
    for byte in chunk.tobytes():
        register = table[(register ^ byte) & 0xFF] ^ (register >> 8)
    return register


def _fold(chunk: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a short message with the same remainder; ``chunk`` is overwritten."""
    stride = 1 << (len(chunk) // _DEGREE).bit_length()
    while stride > 1:
        stride >>= 1
        start, reach = 0, _DEGREE * stride
        while (left := len(chunk) - start - reach) > 0:
            # a block must not reach its nearest target, or it would overwrite itself
            length = min(left, _TARGETS[0] * stride)
            block = chunk[start : start + length]
            for target in _TARGETS:
                begin = start + target * stride
                chunk[begin : begin + length] ^= block
            start += length
        chunk = chunk[start:]
    return chunk


@cache
def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [(value >> 1) ^ (_REFLECTED if value & 1 else 0) for value in table]
    return table
