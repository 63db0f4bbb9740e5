"""An open HDF5 file and a dataset's name in; its shape, and then its numbers as float32, out.

Read are floats that lie in one stretch of bytes, as in every published ELMo, or in chunks (gzip, shuffle,
fletcher32). Strings, references, external and virtual storage and other filters are refused by name. Sizes
are checked against the file before any memory is taken.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmo.errors import FormatError
from elmo.formats.containers.plain_hdf5 import FILTERS, LAYOUT, NOWHERE, REPACK, SPACE, TYPE, PlainHdf5
from elmo.formats.files import shown

_MAX_CHUNKS = 1 << 15
_MAX_CHUNK = 1 << 26  # bytes
_MAX_EXPANSION = 20  # of a file by its compressed datasets; weights hardly shrink at all
_FREE_EXPANSION = 1 << 26  # bytes to which any file may expand
_CONTIGUOUS, _CHUNKED = 1, 2
_GZIP, _SHUFFLE, _FLETCHER32 = 1, 2, 3

# IEEE floats as a datatype message describes them (section IV.A.2.d): size, bit offset, precision, exponent's
# place and size, mantissa's place and size, exponent bias.
_FLOATS = {
    (2, 0, 16, 10, 5, 0, 10, 15): "f2",
    (4, 0, 32, 23, 8, 0, 23, 127): "f4",
    (8, 0, 64, 52, 11, 0, 52, 1023): "f8",
}


@dataclass(frozen=True)
class Chunk:
    """One stored block of a dataset."""

    offset: tuple[int, ...]  # of its first element in the dataset
    address: int
    size: int  # in the file
    skipped: int  # bits: the filters that were not applied to it


@dataclass(frozen=True)
class Dataset:
    """What a dataset's header says of it, checked against the file; no numbers yet."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]  # a contiguous dataset is one chunk
    filters: tuple[int, ...]  # in the order of writing

    @property
    def n_bytes(self) -> int:
        """Size of its chunks without compression: no less than its numbers, as chunks reach over edges."""
        return len(self.chunks) * math.prod(self.chunk_shape) * self.dtype.itemsize


def describe(file: PlainHdf5, name: str) -> Dataset | None:
    """What the file says of a dataset; None when it holds nothing of that name."""
    address, what = file.find(name), f"dataset {name}"
    if address is None:
        return None
    if file.is_group(address):
        file.refuse(f"{what}: expected numbers, found a group")
    messages = file.messages(address)
    shape = _shape(file, file.message(messages, SPACE, what), what)
    dtype = _float_type(file, file.message(messages, TYPE, what), what)
    n_bytes = math.prod(shape) * dtype.itemsize
    layout = file.message(messages, LAYOUT, what)
    version, kind = file.unpack("<BB", layout[:2], what)
    if kind == _CONTIGUOUS and version in (3, 4):
        start, size = file.unpack("<QQ", layout[2:18], what)
        if size != n_bytes or start == NOWHERE or not size:
            file.refuse(
                f"{what}: expected {n_bytes} bytes for {shape}, found {size if start != NOWHERE else 0}"
            )
        file.check_inside(start, size, what)
        return Dataset(name, shape, dtype, shape, (Chunk((0,) * len(shape), start, size, 0),), ())
    if kind == _CHUNKED and version == 3:
        filters = _filters(file, [body for found, body in messages if found == FILTERS], what)
        chunk_shape, chunks = _chunks(file, layout, shape=shape, itemsize=dtype.itemsize, what=what)
        chunk_bytes = math.prod(chunk_shape) * dtype.itemsize
        if not filters and any(chunk.size != chunk_bytes for chunk in chunks):
            file.refuse(f"{what}: expected chunks of {chunk_bytes} bytes, found another size")
        return Dataset(name, shape, dtype, chunk_shape, chunks, filters)
    return file.refuse(
        f"{what}: is stored in a way that is not read here (layout {version}.{kind}): {REPACK}"
    )


def check_together(file: PlainHdf5, datasets: Sequence[Dataset]) -> None:
    """Refuse datasets that lie on the same bytes, or that would expand to an absurd size."""
    spans = sorted((c.address, c.address + c.size, d.name) for d in datasets for c in d.chunks)
    for (_, end, first), (begin, _, second) in pairwise(spans):
        if begin < end:
            file.refuse(f"datasets {first} and {second}: expected bytes of their own, found the same ones")
    expanded = sum(dataset.n_bytes for dataset in datasets)
    if expanded > max(_FREE_EXPANSION, _MAX_EXPANSION * file.size):
        file.refuse(
            f"expected at most {_MAX_EXPANSION}-fold compression, found {expanded} from {file.size} bytes"
        )


def read(file: PlainHdf5, dataset: Dataset) -> NDArray[np.float32]:
    """The numbers of a dataset."""
    stored = np.empty(dataset.shape, dataset.dtype)
    if dataset.chunk_shape == dataset.shape and not dataset.filters:
        file.read_into(stored.reshape(-1).view(np.uint8).data, dataset.chunks[0].address)
    else:
        for chunk in dataset.chunks:
            block = _read_chunk(file, dataset, chunk)
            place = tuple(slice(start, start + n) for start, n in zip(chunk.offset, block.shape, strict=True))
            part = stored[place]  # chunks at the far edges reach over them
            part[...] = block[tuple(slice(n) for n in part.shape)]
    with np.errstate(over="ignore", invalid="ignore"):  # a double too large becomes infinite: refused as that
        return stored.astype(np.float32, copy=False)


def _shape(file: PlainHdf5, body: bytes, what: str) -> tuple[int, ...]:
    version, rank, _, kind = file.unpack("<4B", body[:4], what)
    start = {1: 8, 2: 4}.get(version)
    if start is None or not 0 < rank <= 8 or (version == 2 and kind != 1):
        file.refuse(f"{what}: expected an array of 1 to 8 axes, found {rank} (dataspace {version}.{kind})")
    return file.unpack(f"<{rank}Q", body[start : start + 8 * rank], what)


def _float_type(file: PlainHdf5, body: bytes, what: str) -> np.dtype[Any]:
    kind, order, sign, _, size = file.unpack("<4BI", body[:8], what)
    if kind & 15 != 1 or not 1 <= kind >> 4 <= 3:
        file.refuse(f"{what}: expected floating-point numbers, found HDF5's type class {kind & 15}")
    numbers = _FLOATS.get((size, *file.unpack("<HHBBBBI", body[8:20], what)))
    # bit 0: most significant byte first; 0x20: the mantissa's leading 1 is implied
    if numbers is None or order & ~1 != 0x20 or sign != 8 * size - 1:
        file.refuse(f"{what}: expected float16, float32 or float64, found another floating-point type")
    return np.dtype(numbers).newbyteorder(">" if order & 1 else "<")


def _filters(file: PlainHdf5, pipelines: list[bytes], what: str) -> tuple[int, ...]:
    """Ids of the filters of a version 1 pipeline (section IV.A.2.l)."""
    if not pipelines:
        return ()
    body, found, at = pipelines[0], [], 8
    version, n = file.unpack("<BB", body[:2], what)
    if len(pipelines) > 1 or version != 1:
        file.refuse(f"{what}: expected one filter pipeline of version 1: {REPACK}")
    for _ in range(n):
        identity, name_length, _, n_values = file.unpack("<4H", body[at : at + 8], what)
        found.append(identity)
        at += 8 + name_length + 4 * (n_values + n_values % 2)
    if not set(found) <= {_GZIP, _SHUFFLE, _FLETCHER32} or len(set(found)) < len(found):
        file.refuse(f"{what}: expected filters gzip, shuffle, fletcher32, found ids {found[:8]}: {REPACK}")
    return tuple(found)


def _chunks(
    file: PlainHdf5, layout: bytes, *, shape: tuple[int, ...], itemsize: int, what: str
) -> tuple[tuple[int, ...], tuple[Chunk, ...]]:
    """The shape and the places of a dataset's chunks (section IV.A.2.i, version 3)."""
    rank = len(shape)
    n_axes, tree = file.unpack("<BQ", layout[2:11], what)
    *axes, width = file.unpack(f"<{rank + 1}I", layout[11 : 15 + 4 * rank], what)
    if n_axes != rank + 1 or width != itemsize or not 0 < math.prod(axes) * itemsize <= _MAX_CHUNK:
        file.refuse(f"{what}: chunks of {tuple(axes)} do not fit {shape}")
    n_expected = math.prod(-(-n // m) for n, m in zip(shape, axes, strict=True))
    if not 0 < n_expected <= _MAX_CHUNKS:
        file.refuse(f"{what}: expected at most {_MAX_CHUNKS} chunks, found {n_expected}: {REPACK}")
    chunks: list[Chunk] = []
    for key, address in file.tree(tree, kind=1, key_size=16 + 8 * rank):
        size, skipped, *offset, _ = struct.unpack(f"<II{rank + 1}Q", key)
        if any(start >= n or start % m for start, n, m in zip(offset, shape, axes, strict=True)):
            file.refuse(f"{what}: a chunk lies at {tuple(offset)} of {shape}")
        file.check_inside(address, size, what)
        chunks.append(Chunk(tuple(offset), address, size, skipped))
    if len(chunks) != n_expected or len({chunk.offset for chunk in chunks}) != n_expected:
        file.refuse(f"{what}: expected {n_expected} different chunks, found {len(chunks)}")
    return tuple(axes), tuple(chunks)


def _read_chunk(file: PlainHdf5, dataset: Dataset, chunk: Chunk) -> NDArray[Any]:
    what = f"a chunk of dataset {dataset.name}"
    data = file.bytes_at(chunk.address, chunk.size, what)
    itemsize = dataset.dtype.itemsize
    n_bytes = math.prod(dataset.chunk_shape) * itemsize
    for i, identity in reversed(list(enumerate(dataset.filters))):
        if chunk.skipped >> i & 1:
            continue
        if identity == _GZIP:
            try:
                data = zlib.decompressobj().decompress(data, n_bytes + 5)  # a checksum may follow the numbers
            except zlib.error as error:
                raise FormatError(f"{shown(file.path)}: {what} is damaged: {error}") from error
        elif identity == _SHUFFLE and len(data) == n_bytes:
            data = np.frombuffer(data, np.uint8).reshape(itemsize, -1).T.tobytes()
        elif identity == _FLETCHER32:
            data, stored = data[:-4], file.unpack("<HH", data[-4:], what)
            if _fletcher32(data) != tuple(n % 65535 for n in stored):
                file.refuse(f"{what} does not have its checksum")
    if len(data) != n_bytes:
        file.refuse(f"{what}: expected {n_bytes} bytes, found {len(data)}")
    return np.frombuffer(data, dataset.dtype).reshape(dataset.chunk_shape)


def _fletcher32(data: bytes) -> tuple[int, int]:
    """Both sums of Fletcher's checksum over big-endian 16-bit words, each modulo 65535."""
    words = np.frombuffer(data + b"\0" * (len(data) % 2), ">u2")
    low = high = 0
    for i in range(0, len(words), 1 << 16):
        block = words[i : i + (1 << 16)].astype(np.uint64)
        weights = np.arange(len(block), 0, -1, dtype=np.uint64)
        high = (high + low * len(block) + int((block * weights).sum())) % 65535
        low = (low + int(block.sum())) % 65535
    return low, high
