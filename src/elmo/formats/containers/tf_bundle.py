"""A TensorFlow V2 checkpoint (``.index``, ``.data-0000i-of-0000N``) in, named arrays out, without TensorFlow.

The index is a LevelDB table of protobufs: what a tensor is called, its type and shape, and which bytes of
which data file hold it. All of that is checked against the files before an array is made, and the bytes of
each tensor against their checksum after they are read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmo.errors import FormatError, raise_all
from elmo.formats.containers import wire
from elmo.formats.containers.crc32c import crc32c, masked
from elmo.formats.containers.tf_table import MAX_BYTES, read_table
from elmo.formats.files import member, open_regular, read_bytes, shown

MAX_AXES = 8
MAX_LENGTH = 1 << 40  # of one axis
MAX_SLICES = 1 << 10  # of one tensor
_VERSION = 1  # of the bundle's layout; unchanged since TensorFlow 0.12

# TensorFlow's numbers of the types that a language model stores; strings and the rest can be listed only.
_TYPES = {1: "float32", 2: "float64", 3: "int32", 9: "int64", 14: "bfloat16", 19: "float16"}
_STORED = {
    "float32": "<f4", "float64": "<f8", "float16": "<f2", "bfloat16": "<u2", "int32": "<i4", "int64": "<i8",
}  # fmt: skip

# Fields of BundleEntryProto: type, shape, data file, offset, size, checksum, slices
_ENTRY = {2: wire.BYTES, 6: wire.FIXED32, 7: wire.BYTES, **dict.fromkeys((1, 3, 4, 5), wire.VARINT)}

Box = tuple[tuple[int, int], ...]  # start and length on every axis


@dataclass(frozen=True)
class Entry:
    """One tensor: its type and shape, and where its bytes are."""

    dtype: str  # "other" for what cannot be read, such as strings
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    slices: tuple[
        tuple[tuple[int, int | None], ...], ...
    ]  # start and length; a length of None is the whole axis

    @property
    def n_bytes(self) -> int:
        """What its shape and type ask for."""
        return math.prod(self.shape) * np.dtype(_STORED[self.dtype]).itemsize


@dataclass(frozen=True)
class Bundle:
    """The tensors of a checkpoint; ``read`` alone touches the data files."""

    folder: Path
    prefix: str
    n_shards: int
    entries: Mapping[str, Entry]
    parts: Mapping[str, tuple[tuple[Box, Entry], ...]]  # of the tensors that are stored in slices

    @property
    def names(self) -> list[str]:
        """Names of all tensors, sorted."""
        return list(self.entries)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return {name: entry.shape for name, entry in self.entries.items()}

    @property
    def dtypes(self) -> dict[str, str]:
        """The type of every tensor; "other" cannot be read."""
        return {name: entry.dtype for name, entry in self.entries.items()}

    def read(self, name: str) -> NDArray[np.generic]:
        """One tensor, its slices joined; bfloat16, which NumPy lacks, becomes float32 and loses nothing."""
        entry = self.entries.get(name)
        if entry is None:
            raise FormatError(
                f"{self._shown}: expected tensor {name!r}, found none among {len(self.entries)}"
            )
        if entry.dtype == "other":
            raise FormatError(f"{self._shown}: expected {name!r} to hold numbers, found another type")
        parts = self.parts.get(name)
        if parts is None:
            array = self._read_entry(name, entry)
        else:
            array = np.empty(entry.shape, dtype=_STORED[entry.dtype])
            for box, part in parts:
                array[tuple(slice(start, start + length) for start, length in box)] = self._read_entry(
                    name, part
                )
        if entry.dtype == "bfloat16":
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array

    def _read_entry(self, name: str, entry: Entry) -> NDArray[np.generic]:
        file_name = data_name(self.prefix, entry.shard, self.n_shards)
        array = np.empty(entry.shape, dtype=_STORED[entry.dtype])
        raw = array.reshape(-1).view(np.uint8)
        with open_regular(member(self.folder, file_name)) as file:
            try:
                file.seek(entry.offset)
                n_read = file.readinto(memoryview(raw)) if raw.size else 0  # type: ignore[attr-defined]
            except OSError as error:
                raise FormatError(
                    f"{shown(self.folder / file_name)}: cannot be read: {error.strerror}"
                ) from error
        if n_read != entry.size:
            raise FormatError(f"{self._shown}: {name!r}: expected {entry.size} bytes, found {n_read}")
        found = masked(crc32c(raw))
        if found != entry.crc:
            raise FormatError(
                f"{self._shown}: {name!r}: expected checksum {entry.crc:08x}, found {found:08x}: "
                f"{shown(file_name)} is damaged, fetch it again"
            )
        return array

    @property
    def _shown(self) -> str:
        return shown(self.folder / self.prefix)


def data_name(prefix: str, shard: int, n_shards: int) -> str:
    """The name of one data file."""
    return f"{prefix}.data-{shard:05d}-of-{n_shards:05d}"


def read_index(folder: Path, prefix: str) -> Bundle:
    """What ``prefix`` (in ``folder``) holds: everything but the numbers, checked against the files' sizes."""
    path = member(folder, f"{prefix}.index")
    try:
        table = read_table(read_bytes(path, MAX_BYTES))
        n_shards = _read_header(table.pop(b"", b""))
        entries: dict[bytes, Entry] = {}
        n_slices = 0  # every slice has a key of its own, so there cannot be more of them
        for key, value in table.items():
            try:
                entries[key] = _read_entry(value, n_shards, max_slices=min(MAX_SLICES, len(table) - n_slices))
            except FormatError as error:
                raise FormatError(f"{key.decode('utf-8', 'replace')[:100]!r}: {error}") from error
            n_slices += len(entries[key].slices)
    except FormatError as error:
        message = str(error).removeprefix(f"{shown(path)}: ")
        raise FormatError(f"{shown(path)}: {message}") from error
    problems: list[str] = []
    named: dict[str, Entry] = {}
    for key, entry in entries.items():
        if key[:1] != b"\0":  # the key of a slice starts with a zero byte
            named[_decoded(key, problems)] = entry
    parts: dict[str, tuple[tuple[Box, Entry], ...]] = {}
    for name, entry in named.items():
        if entry.slices and entry.dtype != "other":
            try:
                parts[name] = _join(name, entry, entries)
            except FormatError as error:
                problems.append(str(error))
    stored = [(name, entry) for name, entry in named.items() if not entry.slices]
    stored += [(f"a slice of {name}", part) for name, joined in parts.items() for _, part in joined]
    problems += _misplaced(folder, prefix, n_shards, [(name, e) for name, e in stored if e.dtype != "other"])
    raise_all(problems, subject=shown(path))
    return Bundle(folder, prefix, n_shards, named, parts)


def slice_key(name: str, box: Sequence[tuple[int, int | None]]) -> bytes:
    """The key of one slice, as TensorFlow's ``EncodeTensorNameSlice`` makes it: keys sort as their places."""
    escaped = name.encode().replace(b"\0", b"\0\xff")  # UTF-8 has no byte 0xff, which would be escaped too
    key = _ordered(0) + escaped + b"\0\1" + _ordered(len(box))
    for start, length in box:
        key += _ordered_signed(start) + _ordered_signed(-1 if length is None else length)
    return key


def _ordered(value: int) -> bytes:
    size = (value.bit_length() + 7) // 8
    return bytes([size]) + value.to_bytes(size, "big")


def _ordered_signed(value: int) -> bytes:
    """Two's complement, the number of bytes marked in the leading bits, as UTF-8 does."""
    size = (value if value >= 0 else ~value).bit_length() // 7 + 1
    mark = ((1 << size) - 1) << 7 * size
    return ((value & ((1 << 8 * size) - 1)) ^ mark).to_bytes(size, "big")


def _decoded(key: bytes, problems: list[str]) -> str:
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        problems.append(f"expected names in UTF-8, found {key[:40]!r}")
        return repr(key)


def _read_header(data: bytes) -> int:
    """The number of data files."""
    header = wire.read_message(data, {1: wire.VARINT, 2: wire.VARINT, 3: wire.BYTES})
    n_shards, endianness = header.get(1, [0])[-1], header.get(2, [0])[-1]
    version = wire.read_message(header.get(3, [b""])[-1], {2: wire.VARINT})
    if not 1 <= n_shards <= 99_999:
        raise FormatError(f"header: expected 1..99999 data files, found {n_shards}")
    if endianness != 0:
        raise FormatError("header: expected little-endian numbers, found big-endian ones; save it on a PC")
    if (needed := version.get(2, [0])[-1]) > _VERSION:
        raise FormatError(f"header: expected layout {_VERSION}, found one that asks for a reader of {needed}")
    return n_shards


def _read_entry(data: bytes, n_shards: int, *, max_slices: int) -> Entry:
    fields = wire.read_message(data, _ENTRY)

    def last(number: int) -> int:
        return wire.as_signed(fields.get(number, [0])[-1])

    shard, offset, size = last(3), last(4), last(5)
    if not 0 <= shard < n_shards or offset < 0 or size < 0:
        raise FormatError(
            f"expected a data file of {n_shards} and bytes in it, found file {shard}, "
            f"bytes {offset}..{offset + size}"
        )
    slices = fields.get(7, [])
    if len(slices) > max_slices:
        raise FormatError(f"expected at most {max_slices} slices of a tensor, found {len(slices)}")
    return Entry(
        dtype=_TYPES.get(last(1), "other"),
        shape=_read_shape(fields.get(2, [b""])[-1]),
        shard=shard,
        offset=offset,
        size=size,
        crc=last(6),
        slices=tuple(_read_slice(message) for message in slices),
    )


def _read_shape(data: bytes) -> tuple[int, ...]:
    fields = wire.read_message(data, {2: wire.BYTES, 3: wire.VARINT})
    axes = fields.get(2, [])
    if any(fields.get(3, [])) or len(axes) > MAX_AXES:
        raise FormatError(
            f"expected a shape of at most {MAX_AXES} axes, found {len(axes) or 'an unknown number'}"
        )
    shape = [wire.as_signed(wire.read_message(axis, {1: wire.VARINT}).get(1, [0])[-1]) for axis in axes]
    if not all(0 <= length < MAX_LENGTH for length in shape):
        raise FormatError(f"expected a shape of sizes in 0..{MAX_LENGTH}, found {shape}")
    return tuple(shape)


def _read_slice(data: bytes) -> tuple[tuple[int, int | None], ...]:
    axes = wire.read_message(data, {1: wire.BYTES}).get(1, [])
    if len(axes) > MAX_AXES:
        raise FormatError(f"expected a slice of at most {MAX_AXES} axes, found {len(axes)}")
    found: list[tuple[int, int | None]] = []
    for axis in axes:
        fields = wire.read_message(axis, {1: wire.VARINT, 2: wire.VARINT})
        start = wire.as_signed(fields.get(1, [0])[-1])
        length = wire.as_signed(fields[2][-1]) if 2 in fields else None
        if not 0 <= start < MAX_LENGTH or not (length is None or 0 < length < MAX_LENGTH):
            raise FormatError(f"expected a slice in 0..{MAX_LENGTH}, found start {start} and length {length}")
        found.append((start, length))
    return tuple(found)


def _join(name: str, whole: Entry, entries: Mapping[bytes, Entry]) -> tuple[tuple[Box, Entry], ...]:
    """The slices of a tensor with their places, which must fill it without overlap or gap."""
    joined: list[tuple[Box, Entry]] = []
    for extents in whole.slices:
        part = entries.get(slice_key(name, extents))
        if part is None:
            raise FormatError(f"{shown(name)}: expected its slice at {_starts(extents)}, found none")
        if len(extents) != len(whole.shape):
            raise FormatError(
                f"{shown(name)}: expected slices of {len(whole.shape)} axes, found {len(extents)}"
            )
        box = tuple(
            (start, total - start if length is None else length)
            for (start, length), total in zip(extents, whole.shape, strict=True)
        )
        lengths = tuple(length for _, length in box)
        if any(start + length > total for (start, length), total in zip(box, whole.shape, strict=True)):
            raise FormatError(
                f"{shown(name)}: expected slices within {whole.shape}, found {lengths} at {_starts(box)}"
            )
        if part.slices or part.shape != lengths or part.dtype != whole.dtype:
            raise FormatError(
                f"{shown(name)}: expected a slice {whole.dtype} {lengths} at {_starts(box)}, "
                f"found {part.dtype} {part.shape}"
            )
        joined.append((box, part))
    _check_tiling(shown(name), whole.shape, [box for box, _ in joined])
    return tuple(joined)


def _check_tiling(name: str, shape: tuple[int, ...], boxes: list[Box]) -> None:
    places = np.array(boxes, dtype=np.int64).reshape(len(boxes), len(shape), 2)
    starts, ends = places[:, :, 0], places.sum(axis=2)
    for i in range(len(boxes) - 1):
        is_over = ((starts[i] < ends[i + 1 :]) & (starts[i + 1 :] < ends[i])).all(axis=1)
        if is_over.any():
            other = i + 1 + int(is_over.argmax())
            raise FormatError(f"{name}: slices at {_starts(boxes[i])} and {_starts(boxes[other])} overlap")
    covered = sum(math.prod(length for _, length in box) for box in boxes)
    if covered != math.prod(shape):
        raise FormatError(
            f"{name}: expected slices that fill {shape}, found {covered} of {math.prod(shape)} numbers"
        )


def _starts(box: Sequence[tuple[int, int | None]]) -> tuple[int, ...]:
    return tuple(start for start, _ in box)


def _misplaced(folder: Path, prefix: str, n_shards: int, stored: Sequence[tuple[str, Entry]]) -> list[str]:
    """What the data files cannot hold, or not in that many bytes."""
    problems: list[str] = []
    sizes: dict[int, int] = {}
    for shard in sorted({entry.shard for _, entry in stored}):
        try:
            sizes[shard] = member(folder, data_name(prefix, shard, n_shards)).stat().st_size
        except (FormatError, OSError) as error:
            problems.append(str(error))
    for name, entry in stored:
        if entry.size != entry.n_bytes:
            problems.append(
                f"{name!r}: expected {entry.n_bytes} bytes for {entry.dtype} {entry.shape}, "
                f"found {entry.size}"
            )
        elif entry.shard in sizes and entry.offset + entry.size > sizes[entry.shard]:
            problems.append(
                f"{name!r}: expected bytes {entry.offset}..{entry.offset + entry.size} of data file "
                f"{entry.shard}, found a file of {sizes[entry.shard]}"
            )
    # No byte belongs to two tensors, so that all arrays together are no larger than the files.
    in_order = sorted((entry.shard, entry.offset, entry.size, name) for name, entry in stored if entry.size)
    for (shard, offset, size, name), (next_shard, next_offset, _, other) in pairwise(in_order):
        if shard == next_shard and offset + size > next_offset:
            problems.append(f"{name!r} and {other!r}: expected bytes of their own, found them to overlap")
    return problems
