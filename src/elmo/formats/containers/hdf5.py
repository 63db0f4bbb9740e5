"""An HDF5 file in, the names and object headers of its groups and datasets out, in Python alone.

libhdf5 is a large C library that follows links to other files, and in which crafted files keep finding memory
errors (CVE-2025-2915, -6750, -7067 among others). A model may come from anybody, and the weights of every
published ELMo use a small, plain part of HDF5 (what h5py writes unless told otherwise: superblock 0, groups
by symbol tables). So that part is read here, every address and size checked first. Everything else, links
that lead elsewhere among it, is refused by name. Section numbers are those of the HDF5 file format
specification, version 3.

An open HDF5 file and a dataset's name in; its shape, and then its numbers as float32, out.

Read are floats that lie in one stretch of bytes, as in every published ELMo, or in chunks (gzip, shuffle,
fletcher32). Strings, references, external and virtual storage and other filters are refused by name. Sizes
are checked against the file before any memory is taken.

A path in, a new HDF5 file to fill out; a full disk ends in an ``OSError``, and in nothing worse.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from elmo.errors import FormatError
from elmo.storage.files import format_path, open_regular

if TYPE_CHECKING:
    import h5py


SIGNATURE = b"\x89HDF\r\n\x1a\n"
NOWHERE = (1 << 64) - 1  # the address of what was never written
REPACK = "copy the file with h5py's default settings"

# Kinds of object header messages (section IV.A.2)
SPACE, TYPE, LAYOUT, FILTERS = 1, 3, 8, 11
_LINK_INFO, _LINK, _EXTERNAL, _CONTINUE, _SYMBOLS = 2, 6, 7, 16, 17
_READ_HERE = (SPACE, TYPE, LAYOUT, FILTERS, _CONTINUE, _SYMBOLS)
_SOFT_LINK = 2  # how an entry of a symbol table says so

_MAX_HEADER = 1 << 18  # bytes of one object header
_MAX_HEAP = 1 << 24  # bytes of the names of one group
_MAX_NAME = 1 << 10
# Header messages, children of B-trees and names, of a whole file and as often as they are looked at: any
# number of objects may share them. A gzipped biLM of 400 MB has some ten thousand.
_MAX_PARTS = 1 << 16


class PlainHdf5:
    """An HDF5 file, open for reading; every fault is a ``FormatError`` that names the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = open_regular(path)
        self._groups: dict[int, dict[str, int]] = {}
        self._n_parts = 0
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self._root = self._read_superblock()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def children(self, group: str = "") -> list[str]:
        """Names of what a group holds, in the file's order; none when there is no such group."""
        address = self.find(group)
        return list(self._links(address)) if address is not None and self.is_group(address) else []

    def find(self, name: str) -> int | None:
        """The address of the object header of that name; None when there is none."""
        address = self._root
        for part in filter(None, name.split("/")):
            if not self.is_group(address):
                return None
            found = self._links(address).get(part)
            if found is None:
                return None
            if found == NOWHERE:
                self.refuse(f"{name!r:.80} is a soft link: {REPACK}")
            address = found
        return address

    def is_group(self, address: int) -> bool:
        """Whether an object has members."""
        return address in self._groups or any(kind == _SYMBOLS for kind, _ in self.messages(address))

    def messages(self, address: int) -> list[tuple[int, bytes]]:
        """Kind and body of every message of an object header, version 1 (section IV.A.1.a)."""
        prefix = self.bytes_at(address, 16, "an object header")
        if prefix[:4] == b"OHDR":
            self.refuse(f"object headers of newer HDF5 files are not read here: {REPACK}")
        version, n_messages, size = struct.unpack_from("<BxH4xI", prefix)
        if version != 1:
            self.refuse(f"the object header at {address} is damaged")
        found: list[tuple[int, bytes]] = []
        blocks, total = [(address + 16, size)], 0
        for begin, block_size in blocks:  # grows as it goes: a block may announce another
            total += block_size
            if total > _MAX_HEADER or len(blocks) > 64:
                self.refuse(f"the object header at {address} has no end")
            block, at = self.bytes_at(begin, block_size, "an object header"), 0
            while at + 8 <= len(block) and len(found) < n_messages:
                self._count(1)
                kind, length, flags = struct.unpack_from("<HHB", block, at)
                body = block[at + 8 : at + 8 + length]
                at += 8 + length
                if len(body) != length or (flags & 2 and kind in _READ_HERE):  # 2: shared with another object
                    self.refuse(
                        f"message {kind} of the object header at {address} is cut or stored elsewhere"
                    )
                if kind in (_EXTERNAL, _LINK, _LINK_INFO):
                    what = "external files" if kind == _EXTERNAL else "links to files, or a newer layout"
                    self.refuse(f"the object at {address} uses {what}: {REPACK}")
                if kind == _CONTINUE:
                    begin_next, next_size = self.unpack("<QQ", body, "an object header")
                    blocks.append((begin_next, next_size))
                found.append((kind, body))
        return found

    def message(self, messages: list[tuple[int, bytes]], kind: int, what: str) -> bytes:
        """The body of the one message of that kind."""
        bodies = [body for found, body in messages if found == kind]
        if len(bodies) != 1:
            self.refuse(f"{what}: expected one header message of kind {kind}, found {len(bodies)}")
        return bodies[0]

    def tree(self, root: int, *, kind: int, key_size: int) -> Iterator[tuple[bytes, int]]:
        """Keys and children of the leaves of a version 1 B-tree, in order (section III.A.1)."""
        waiting: list[tuple[int, int | None]] = [(root, None)]
        seen: set[int] = set()
        while waiting:
            address, expected_level = waiting.pop()
            head = self.bytes_at(address, 24, "a B-tree node")
            magic, found, level, n = struct.unpack("<4sBBH16x", head)
            if magic != b"TREE" or found != kind or expected_level not in (None, level) or address in seen:
                self.refuse(f"the B-tree node at {address} is damaged")
            seen.add(address)
            self._count(n)
            pairs = self.bytes_at(address + 24, n * (key_size + 8), "a B-tree node")
            children = list(struct.iter_unpack(f"<{key_size}sQ", pairs))
            if level == 0:
                yield from children
            else:
                waiting.extend((child, level - 1) for _, child in reversed(children))

    def bytes_at(self, address: int, size: int, what: str) -> bytes:
        """A stretch of the file."""
        self.check_inside(address, size, what)
        self._file.seek(address)
        data = self._file.read(size)
        if len(data) != size:
            self.refuse(f"{what} ends early")
        return data

    def read_into(self, target: memoryview, address: int) -> None:
        """Fill bytes with those that begin at an address."""
        self._file.seek(address)
        if self._file.readinto(target) != len(target):  # type: ignore[attr-defined]
            self.refuse("a dataset ends early")

    def check_inside(self, address: int, size: int, what: str) -> None:
        """Refuse a stretch that is not wholly in the file."""
        if address > self.size or size > self.size - address:
            self.refuse(f"{what}: expected {size} bytes at {address}, found a file of {self.size}")

    def unpack(self, form: str, data: bytes, what: str) -> tuple[Any, ...]:
        """``struct.unpack``, with our error for data that is too short."""
        try:
            return struct.unpack(form, data)
        except struct.error as error:
            raise FormatError(f"{format_path(self.path)}: {what} is cut short") from error

    def refuse(self, reason: str) -> NoReturn:
        """Raise ``FormatError``."""
        raise FormatError(f"{format_path(self.path)}: {reason}")

    def _read_superblock(self) -> int:
        """The address of the root group (section II.A)."""
        head = self._file.read(100)
        if not head.startswith(SIGNATURE):
            self.refuse("expected an HDF5 file, found another signature")
        if head[8:9] in (b"\2", b"\3"):
            self.refuse(f"superblock {head[8]} of newer HDF5 files is not read here: {REPACK}")
        if len(head) < 100 or head[8] > 3:
            self.refuse("the HDF5 superblock is damaged")
        if head[13:15] != b"\x08\x08":
            self.refuse(f"expected addresses of 8 bytes, found {head[13]} and {head[14]}: {REPACK}")
        start = 24 if head[8] == 0 else 28  # version 1 puts one more number in front
        base, _, end, _, _, root = struct.unpack_from("<6Q", head, start)
        if base != 0:
            self.refuse(f"expected a base address of 0, found {base}: {REPACK}")
        if end > self.size:
            self.refuse(f"expected {end} bytes, found {self.size}: download it again")
        return root

    def _links(self, address: int) -> dict[str, int]:
        """Names and addresses of a group's members; a soft link's address is ``NOWHERE``."""
        if address in self._groups:
            return self._groups[address]
        symbols = self.message(self.messages(address), _SYMBOLS, f"the group at {address}")
        tree, heap = self.unpack("<QQ", symbols, "a symbol table")
        magic, version, size, start = struct.unpack("<4sB3xQ8xQ", self.bytes_at(heap, 32, "a heap of names"))
        if magic != b"HEAP" or version != 0 or size > _MAX_HEAP:
            self.refuse(f"the heap of names at {heap} is damaged")
        texts = self.bytes_at(start, size, "a heap of names")
        links: dict[str, int] = {}
        for _, leaf in self.tree(tree, kind=0, key_size=8):
            magic, version, n = struct.unpack("<4sBxH", self.bytes_at(leaf, 8, "a symbol node"))
            if magic != b"SNOD" or version != 1:
                self.refuse(f"the symbol node at {leaf} is damaged")
            self._count(n)
            entries = self.bytes_at(leaf + 8, 40 * n, "a symbol node")
            for name_at, target, cached in struct.iter_unpack("<QQI20x", entries):
                name = self._name(texts, name_at)
                if name in links:
                    self.refuse(f"the name {name!r:.80} stands twice in a group")
                links[name] = NOWHERE if cached == _SOFT_LINK else target
        self._groups[address] = links
        return links

    def _count(self, n_parts: int) -> None:
        """Refuse a file that has us look at more than any model needs."""
        self._n_parts += n_parts
        if self._n_parts > _MAX_PARTS:
            self.refuse(f"has more than {_MAX_PARTS} names, chunks and header messages: {REPACK}")

    def _name(self, texts: bytes, at: int) -> str:
        end = texts.find(b"\0", at, at + _MAX_NAME) if at < len(texts) else -1
        try:
            name = texts[at:end].decode("utf-8") if end > at else ""
        except UnicodeDecodeError:
            name = ""
        if not name or "/" in name:
            self.refuse(f"the name at {at} of a heap of names is damaged")
        return name


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
                raise FormatError(f"{format_path(file.path)}: {what} is damaged: {error}") from error
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


@contextmanager
def new_hdf5(path: Path, *, libver: str | tuple[str, str] = "earliest") -> Iterator[tuple[h5py.File, Shield]]:
    """A file to fill and the shield it is written through.

    By default in the oldest layout, which every HDF5 library since 2008 reads, and our own reader too.
    """
    import h5py

    with path.open("xb+", buffering=0) as raw:
        shield = Shield(raw)
        try:
            with h5py.File(shield, "w", libver=libver) as file:
                yield file, shield
        finally:
            shield.raise_error()


class Shield:
    """A file for HDF5 that seems never to fail.

    When the disk is full, HDF5 can neither finish nor close a file, complains until the process ends, and may
    end it. So the first error is kept here, what is written after it is dropped, and the error is raised at
    the end.
    """

    def __init__(self, raw: io.FileIO) -> None:
        self._raw = raw
        self._error: OSError | None = None
        # HDF5 asks for these by name, and only reads what it has written
        self.seek, self.tell, self.read, self.readinto = raw.seek, raw.tell, raw.read, raw.readinto

    def write(self, data: memoryview) -> int:
        """Write all of it, or keep the error."""
        view = memoryview(data).cast("B")
        try:
            at = 0
            while at < len(view) and self._error is None:
                at += self._raw.write(view[at:]) or 0
        except OSError as error:
            self._error = error
        return len(view)

    def truncate(self, size: int) -> int:
        """Set the file's size, or keep the error."""
        try:
            return self._raw.truncate(size)
        except OSError as error:
            self._error = self._error or error
            return size

    def flush(self) -> None:
        """Nothing is held back."""

    def raise_error(self) -> None:
        """Raise the first error, if there was one."""
        if self._error is not None:
            raise self._error
