"""Read datasets from an HDF5 file in pure Python, and create new files safely.

libhdf5 is a large C library that follows links to other files, and crafted files keep exposing memory errors
in it (CVE-2025-2915, -6750, -7067 and others). Models come from untrusted sources, and the weights of every
published ELMo use a small, simple part of HDF5: what h5py writes by default, superblock 0 and groups as
symbol tables. This module reads that part and checks every address and size first. Floats may be contiguous,
as in every published ELMo, or in chunks (gzip, shuffle, fletcher32). Anything else (links to other files, strings,
references, external and virtual storage, other filters) is rejected with an error that names it. Section numbers
refer to the HDF5 file format specification, version 3.
"""

from __future__ import annotations

import io
import math
import os
import signal
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from elmo.errors import FormatError
from elmo.storage.files import format_path, open_regular

if TYPE_CHECKING:
    import h5py

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_UNDEFINED = (1 << 64) - 1  # the address in HDF5 that means "not allocated"
_REPACK = "copy the file with h5py's default settings"

# Types of object header messages (section IV.A.2)
_SPACE, _TYPE, _LAYOUT, _FILTERS = 1, 3, 8, 11
_LINK_INFO, _LINK, _EXTERNAL, _ATTRIBUTE, _CONTINUE, _SYMBOLS = 2, 6, 7, 12, 16, 17
_SUPPORTED = (_SPACE, _TYPE, _LAYOUT, _FILTERS, _CONTINUE, _SYMBOLS)
_SOFT_LINK = 2  # cache type of a soft link in a symbol table entry

_MAX_HEADER = 1 << 18  # bytes of one object header
_MAX_HEAP = 1 << 24  # bytes of the names of one group
_MAX_NAME = 1 << 10
# Header messages, B-tree children and names read from one file, counted at every read because objects can
# share them. A gzipped biLM of 400 MB has about ten thousand.
_MAX_PARTS = 1 << 16
_MAX_CHUNKS = 1 << 15
_MAX_CHUNK = 1 << 26  # bytes
_MAX_EXPANSION = 20  # maximum ratio of decompressed data to file size; weights hardly compress
_FREE_EXPANSION = 1 << 26  # bytes of decompressed data that are always allowed

_CONTIGUOUS, _CHUNKED = 1, 2
_GZIP, _SHUFFLE, _FLETCHER32 = 1, 2, 3
# IEEE floats as described by a datatype message (section IV.A.2.d): size, bit offset, precision, exponent
# location and size, mantissa location and size, exponent bias
_FLOATS = {
    (2, 0, 16, 10, 5, 0, 10, 15): "f2",
    (4, 0, 32, 23, 8, 0, 23, 127): "f4",
    (8, 0, 64, 52, 11, 0, 52, 1023): "f8",
}


@dataclass(frozen=True)
class DatasetChunk:
    """One stored block of a dataset."""

    offset: tuple[int, ...]  # of its first element in the dataset
    address: int
    size: int  # in the file
    skipped: int  # bit mask of the filters that were not applied to it


@dataclass(frozen=True)
class Dataset:
    """The header of a dataset, checked against the file; ``Hdf5File.read`` reads its numbers."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_shape: tuple[int, ...]
    chunks: tuple[DatasetChunk, ...]  # a contiguous dataset is one chunk
    filters: tuple[int, ...]  # in the order of writing

    @property
    def n_bytes(self) -> int:
        """Decompressed size of all chunks; chunks at the edges may extend beyond the shape."""
        return len(self.chunks) * math.prod(self.chunk_shape) * self.dtype.itemsize


class Hdf5File:
    """An HDF5 file open for reading; every error is a ``FormatError`` that names the file."""

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
        """List the members of a group in file order; empty if there is no such group."""
        address = self._find(group)
        return list(self._members(address)) if address is not None and self._is_group(address) else []

    def dataset(self, name: str) -> Dataset | None:
        """Read the header of a dataset; None if the file has nothing with that name."""
        address, what = self._find(name), f"dataset {name}"
        if address is None:
            return None
        if self._is_group(address):
            self.refuse(f"{what}: expected numbers, found a group")
        messages = self._messages(address)
        shape = self._parse_shape(self._message(messages, _SPACE, what), what)
        dtype = self._parse_float_type(self._message(messages, _TYPE, what), what)
        n_bytes = math.prod(shape) * dtype.itemsize
        layout = self._message(messages, _LAYOUT, what)
        version, kind = self._unpack("<BB", layout[:2], what)
        if kind == _CONTIGUOUS and version in (3, 4):
            start, size = self._unpack("<QQ", layout[2:18], what)
            if size != n_bytes or start == _UNDEFINED or not size:
                actual = size if start != _UNDEFINED else 0
                self.refuse(f"{what}: expected {n_bytes} bytes for {shape}, found {actual}")
            self._check_inside(start, size, what)
            chunk = DatasetChunk((0,) * len(shape), start, size, skipped=0)
            return Dataset(name, shape, dtype, shape, (chunk,), ())
        if kind == _CHUNKED and version == 3:
            filters = self._parse_filters([body for key, body in messages if key == _FILTERS], what)
            chunk_shape, chunks = self._read_chunk_index(layout, shape, dtype.itemsize, what)
            chunk_bytes = math.prod(chunk_shape) * dtype.itemsize
            if not filters and any(chunk.size != chunk_bytes for chunk in chunks):
                self.refuse(f"{what}: expected chunks of {chunk_bytes} bytes, found another size")
            return Dataset(name, shape, dtype, chunk_shape, chunks, filters)
        return self.refuse(f"{what}: storage layout {version}.{kind} is not supported: {_REPACK}")

    def check_together(self, datasets: Sequence[Dataset]) -> None:
        """Reject datasets that share bytes, or whose decompressed size is out of proportion to the file."""
        ranges = sorted((c.address, c.address + c.size, d.name) for d in datasets for c in d.chunks)
        for (_, end, first), (begin, _, second) in pairwise(ranges):
            if begin < end:
                self.refuse(f"datasets {first} and {second} share bytes of the file")
        expanded = sum(dataset.n_bytes for dataset in datasets)
        if expanded > max(_FREE_EXPANSION, _MAX_EXPANSION * self.size):
            self.refuse(
                f"expected at most {_MAX_EXPANSION}-fold compression, found {expanded} bytes of data in {self.size}"
            )

    def read(self, dataset: Dataset) -> NDArray[np.float32]:
        """Read the numbers of a dataset as float32."""
        stored = np.empty(dataset.shape, dataset.dtype)
        if dataset.chunk_shape == dataset.shape and not dataset.filters:
            self._file.seek(dataset.chunks[0].address)
            target = stored.reshape(-1).view(np.uint8).data
            if self._file.readinto(target) != len(target):  # type: ignore[attr-defined]
                self.refuse(f"dataset {dataset.name} is truncated")
        else:
            for chunk in dataset.chunks:
                block = self._read_chunk(dataset, chunk)
                slices = tuple(slice(start, start + n) for start, n in zip(chunk.offset, block.shape, strict=True))
                part = stored[slices]  # smaller than the block at the edges
                part[...] = block[tuple(slice(n) for n in part.shape)]
        with np.errstate(over="ignore", invalid="ignore"):  # a double beyond float32 becomes infinite
            return stored.astype(np.float32, copy=False)

    def check_texts(self, address: int) -> None:
        """Reject an object with a text attribute that claims more bytes than the file has; libhdf5 allocates them.

        Args:
            address: Address of the object header, as in ``h5py.h5o.get_info``.
        """
        self._n_parts = 0  # a file of vectors has more objects than a model
        for kind, body in self._messages(address):
            if kind != _ATTRIBUTE:
                continue
            version, *sizes = self._unpack("<BxHHH", body[:8], "an attribute")  # of the name, the type and the space
            if version not in (1, 3):
                self.refuse(f"attributes of version {version} are not supported: {_REPACK}")
            # version 1 pads each part to 8 bytes; version 3 has a byte for the character set instead
            padded = [size + -size % 8 for size in sizes] if version == 1 else [1, *sizes]
            type_at = 8 + sum(padded) - sum(padded[-2:])
            if body[type_at : type_at + 1] not in (b"\x19", b"\x39"):  # variable length, version 1 or 3
                continue
            data = body[8 + sum(padded) :]
            n_bytes = self._unpack("<I", data[:4], "a text")[0]
            if n_bytes > self.size:
                self.refuse(f"a text must be in this file of {self.size} bytes; found a length of {n_bytes}")

    def refuse(self, message: str) -> NoReturn:
        """Raise a ``FormatError`` that names the file."""
        raise FormatError(f"{format_path(self.path)}: {message}")

    # --- bytes

    def _bytes_at(self, address: int, size: int, what: str) -> bytes:
        self._check_inside(address, size, what)
        self._file.seek(address)
        data = self._file.read(size)
        if len(data) != size:
            self.refuse(f"{what} is truncated")
        return data

    def _check_inside(self, address: int, size: int, what: str) -> None:
        if address > self.size or size > self.size - address:
            self.refuse(f"{what}: expected {size} bytes at byte {address}, found a file of {self.size} bytes")

    def _unpack(self, form: str, data: bytes, what: str) -> tuple[Any, ...]:
        try:
            return struct.unpack(form, data)
        except struct.error as error:
            raise FormatError(f"{format_path(self.path)}: {what} is truncated") from error

    def _count(self, n_parts: int) -> None:
        """Count the parts of the file that were read; reject a file with more parts than any model needs."""
        self._n_parts += n_parts
        if self._n_parts > _MAX_PARTS:
            self.refuse(f"the file has more than {_MAX_PARTS} names, chunks and header messages: {_REPACK}")

    # --- groups

    def _read_superblock(self) -> int:
        """Return the address of the root group (section II.A)."""
        head = self._file.read(100)
        if not head.startswith(_SIGNATURE):
            self.refuse("expected an HDF5 file, found another signature")
        if head[8:9] in (b"\2", b"\3"):
            self.refuse(f"superblock {head[8]} of newer HDF5 files is not supported: {_REPACK}")
        if len(head) < 100 or head[8] > 3:
            self.refuse("the HDF5 superblock is damaged")
        if head[13:15] != b"\x08\x08":
            self.refuse(f"expected offsets and lengths of 8 bytes, found {head[13]} and {head[14]} bytes: {_REPACK}")
        start = 24 if head[8] == 0 else 28  # version 1 has one more number in front
        base, _, end, _, _, root = struct.unpack_from("<6Q", head, start)
        if base != 0:
            self.refuse(f"expected a base address of 0, found {base}: {_REPACK}")
        if end > self.size:
            self.refuse(f"the file is truncated: expected {end} bytes, found {self.size}; download it again")
        return root

    def _find(self, name: str) -> int | None:
        """Return the address of the object header with this name; None if there is none."""
        address = self._root
        for part in filter(None, name.split("/")):
            if not self._is_group(address):
                return None
            child = self._members(address).get(part)
            if child is None:
                return None
            if child == _UNDEFINED:
                self.refuse(f"{name!r:.80} is a soft link: {_REPACK}")
            address = child
        return address

    def _is_group(self, address: int) -> bool:
        return address in self._groups or any(kind == _SYMBOLS for kind, _ in self._messages(address))

    def _members(self, address: int) -> dict[str, int]:
        """Return names and addresses of a group's members; a soft link's address is ``_UNDEFINED``."""
        if address in self._groups:
            return self._groups[address]
        symbols = self._message(self._messages(address), _SYMBOLS, f"the group at {address}")
        tree, heap = self._unpack("<QQ", symbols, "a symbol table")
        magic, version, size, start = struct.unpack("<4sB3xQ8xQ", self._bytes_at(heap, 32, "a name heap"))
        if magic != b"HEAP" or version != 0 or size > _MAX_HEAP:
            self.refuse(f"the name heap at {heap} is damaged")
        texts = self._bytes_at(start, size, "a name heap")
        members: dict[str, int] = {}
        for _, leaf in self._tree(tree, kind=0, key_size=8):
            magic, version, n = struct.unpack("<4sBxH", self._bytes_at(leaf, 8, "a symbol node"))
            if magic != b"SNOD" or version != 1:
                self.refuse(f"the symbol node at {leaf} is damaged")
            self._count(n)
            entries = self._bytes_at(leaf + 8, 40 * n, "a symbol node")
            for name_at, target, cache_type in struct.iter_unpack("<QQI20x", entries):
                name = self._name(texts, name_at)
                if name in members:
                    self.refuse(f"the name {name!r:.80} occurs twice in a group")
                members[name] = _UNDEFINED if cache_type == _SOFT_LINK else target
        self._groups[address] = members
        return members

    def _name(self, texts: bytes, at: int) -> str:
        end = texts.find(b"\0", at, at + _MAX_NAME) if at < len(texts) else -1
        try:
            name = texts[at:end].decode("utf-8") if end > at else ""
        except UnicodeDecodeError:
            name = ""
        if not name or "/" in name:
            self.refuse(f"the name at {at} of a name heap is damaged")
        return name

    def _tree(self, root: int, *, kind: int, key_size: int) -> Iterator[tuple[bytes, int]]:
        """Yield keys and children of the leaves of a version 1 B-tree, in order (section III.A.1)."""
        pending: list[tuple[int, int | None]] = [(root, None)]
        seen: set[int] = set()
        while pending:
            address, expected_level = pending.pop()
            head = self._bytes_at(address, 24, "a B-tree node")
            magic, node_kind, level, n = struct.unpack("<4sBBH16x", head)
            is_level = expected_level in (None, level)
            if magic != b"TREE" or node_kind != kind or not is_level or address in seen:
                self.refuse(f"the B-tree node at {address} is damaged")
            seen.add(address)
            self._count(n)
            pairs = self._bytes_at(address + 24, n * (key_size + 8), "a B-tree node")
            children = list(struct.iter_unpack(f"<{key_size}sQ", pairs))
            if level == 0:
                yield from children
            else:
                pending.extend((child, level - 1) for _, child in reversed(children))

    # --- object headers

    def _messages(self, address: int) -> list[tuple[int, bytes]]:
        """Return type and body of every message of a version 1 object header (section IV.A.1.a)."""
        prefix = self._bytes_at(address, 16, "an object header")
        if prefix[:4] == b"OHDR":
            self.refuse(f"object headers of newer HDF5 files are not supported: {_REPACK}")
        version, n_messages, size = struct.unpack_from("<BxH4xI", prefix)
        if version != 1:
            self.refuse(f"the object header at {address} is damaged")
        messages: list[tuple[int, bytes]] = []
        blocks, total = [(address + 16, size)], 0
        for begin, block_size in blocks:  # the list grows in the loop: a block may refer to a continuation block
            total += block_size
            if total > _MAX_HEADER or len(blocks) > 64:
                self.refuse(f"the object header at {address} is too long")
            block, at = self._bytes_at(begin, block_size, "an object header"), 0
            while at + 8 <= len(block) and len(messages) < n_messages:
                self._count(1)
                kind, length, flags = struct.unpack_from("<HHB", block, at)
                body = block[at + 8 : at + 8 + length]
                at += 8 + length
                is_shared = flags & 2
                if len(body) != length or (is_shared and kind in _SUPPORTED):
                    self.refuse(f"message {kind} of the object header at {address} is truncated or shared")
                if kind in (_EXTERNAL, _LINK, _LINK_INFO):
                    feature = "external files" if kind == _EXTERNAL else "links to files, or a newer layout"
                    self.refuse(f"the object at {address} uses {feature}: {_REPACK}")
                if kind == _CONTINUE:
                    next_begin, next_size = self._unpack("<QQ", body, "an object header")
                    blocks.append((next_begin, next_size))
                messages.append((kind, body))
        return messages

    def _message(self, messages: list[tuple[int, bytes]], kind: int, what: str) -> bytes:
        """Return the body of the only message of a type."""
        bodies = [body for key, body in messages if key == kind]
        if len(bodies) != 1:
            self.refuse(f"{what}: expected one header message of type {kind}, found {len(bodies)}")
        return bodies[0]

    def _parse_shape(self, body: bytes, what: str) -> tuple[int, ...]:
        version, rank, _, kind = self._unpack("<4B", body[:4], what)
        start = {1: 8, 2: 4}.get(version)
        if start is None or not 0 < rank <= 8 or (version == 2 and kind != 1):
            self.refuse(f"{what}: expected an array of 1 to 8 axes, found {rank} (dataspace {version}.{kind})")
        return self._unpack(f"<{rank}Q", body[start : start + 8 * rank], what)

    def _parse_float_type(self, body: bytes, what: str) -> np.dtype[Any]:
        kind, order, sign, _, size = self._unpack("<4BI", body[:8], what)
        if kind & 15 != 1 or not 1 <= kind >> 4 <= 3:
            self.refuse(f"{what}: expected floating-point numbers, found HDF5 type class {kind & 15}")
        name = _FLOATS.get((size, *self._unpack("<HHBBBBI", body[8:20], what)))
        # bit 0: most significant byte first; 0x20: the mantissa's leading 1 is implied
        if name is None or order & ~1 != 0x20 or sign != 8 * size - 1:
            self.refuse(f"{what}: expected float16, float32 or float64, found another floating-point type")
        return np.dtype(name).newbyteorder(">" if order & 1 else "<")

    def _parse_filters(self, pipelines: list[bytes], what: str) -> tuple[int, ...]:
        """Return the filter ids of a version 1 pipeline (section IV.A.2.l)."""
        if not pipelines:
            return ()
        body, filters, at = pipelines[0], [], 8
        version, n = self._unpack("<BB", body[:2], what)
        if len(pipelines) > 1 or version != 1:
            self.refuse(f"{what} must have one filter pipeline of version 1: {_REPACK}")
        for _ in range(n):
            filter_id, name_length, _, n_values = self._unpack("<4H", body[at : at + 8], what)
            filters.append(filter_id)
            at += 8 + name_length + 4 * (n_values + n_values % 2)
        if not set(filters) <= {_GZIP, _SHUFFLE, _FLETCHER32} or len(set(filters)) < len(filters):
            self.refuse(
                f"{what}: expected only gzip, shuffle and fletcher32, found filter ids {filters[:8]}: {_REPACK}"
            )
        return tuple(filters)

    # --- chunks

    def _read_chunk_index(
        self, layout: bytes, shape: tuple[int, ...], itemsize: int, what: str
    ) -> tuple[tuple[int, ...], tuple[DatasetChunk, ...]]:
        """Return the shape and the positions of a dataset's chunks (section IV.A.2.i, version 3)."""
        rank = len(shape)
        n_axes, tree = self._unpack("<BQ", layout[2:11], what)
        *axes, width = self._unpack(f"<{rank + 1}I", layout[11 : 15 + 4 * rank], what)
        if n_axes != rank + 1 or width != itemsize or not 0 < math.prod(axes) * itemsize <= _MAX_CHUNK:
            self.refuse(f"{what}: chunks of shape {tuple(axes)} do not fit a dataset of shape {shape}")
        n_expected = math.prod(-(-n // m) for n, m in zip(shape, axes, strict=True))
        if not 0 < n_expected <= _MAX_CHUNKS:
            self.refuse(f"{what}: expected at most {_MAX_CHUNKS} chunks, found {n_expected}: {_REPACK}")
        chunks: list[DatasetChunk] = []
        for key, address in self._tree(tree, kind=1, key_size=16 + 8 * rank):
            size, skipped, *offset, _ = struct.unpack(f"<II{rank + 1}Q", key)
            if any(start >= n or start % m for start, n, m in zip(offset, shape, axes, strict=True)):
                self.refuse(f"{what}: a chunk has the invalid offset {tuple(offset)} for shape {shape}")
            self._check_inside(address, size, what)
            chunks.append(DatasetChunk(tuple(offset), address, size, skipped))
        if len(chunks) != n_expected or len({chunk.offset for chunk in chunks}) != n_expected:
            self.refuse(f"{what}: expected {n_expected} different chunks, found {len(chunks)}")
        return tuple(axes), tuple(chunks)

    def _read_chunk(self, dataset: Dataset, chunk: DatasetChunk) -> NDArray[Any]:
        what = f"a chunk of dataset {dataset.name}"
        data = self._bytes_at(chunk.address, chunk.size, what)
        itemsize = dataset.dtype.itemsize
        n_bytes = math.prod(dataset.chunk_shape) * itemsize
        for i, filter_id in reversed(list(enumerate(dataset.filters))):
            if chunk.skipped >> i & 1:
                continue
            if filter_id == _GZIP:
                try:
                    data = zlib.decompressobj().decompress(
                        data, n_bytes + 5
                    )  # 4 bytes for a checksum, 1 to detect excess data
                except zlib.error as error:
                    raise FormatError(f"{format_path(self.path)}: {what} is damaged: {error}") from error
            elif filter_id == _SHUFFLE and len(data) == n_bytes:
                data = np.frombuffer(data, np.uint8).reshape(itemsize, -1).T.tobytes()
            elif filter_id == _FLETCHER32:
                data, stored = data[:-4], self._unpack("<HH", data[-4:], what)
                if _fletcher32(data) != tuple(n % 65535 for n in stored):
                    self.refuse(f"{what} has a wrong checksum")
        if len(data) != n_bytes:
            self.refuse(f"{what}: expected {n_bytes} bytes, found {len(data)}")
        return np.frombuffer(data, dataset.dtype).reshape(dataset.chunk_shape)


def _fletcher32(data: bytes) -> tuple[int, int]:
    """Compute both sums of Fletcher's checksum over big-endian 16-bit words, modulo 65535."""
    words = np.frombuffer(data + b"\0" * (len(data) % 2), ">u2")
    low = high = 0
    for i in range(0, len(words), 1 << 16):
        block = words[i : i + (1 << 16)].astype(np.uint64)
        weights = np.arange(len(block), 0, -1, dtype=np.uint64)
        high = (high + low * len(block) + int((block * weights).sum())) % 65535
        low = (low + int(block.sum())) % 65535
    return low, high


# --- writing -------------------------------------------------------------------------------------


@contextmanager
def create_hdf5(path: Path, *, libver: str | tuple[str, str] = "earliest") -> Iterator[tuple[h5py.File, FailSafeFile]]:
    """Create an HDF5 file; yield it and the file object that it writes to. A full disk raises an ``OSError``.

    The default is the oldest layout, which ``Hdf5File`` and every HDF5 library since 2008 can read.
    """
    import h5py

    with path.open("xb+", buffering=0) as raw:
        safe = FailSafeFile(raw)
        try:
            with safe.postponed_signals(), h5py.File(safe, "w", libver=libver) as file:
                yield file, safe
        finally:
            safe.raise_error()


class FailSafeFile:
    """A file object for HDF5 that postpones write errors and signals.

    On a full disk, HDF5 can neither finish nor close a file, prints errors until the process ends, and may
    crash it. So this class keeps the first error, discards all later writes, and raises the error at the end.
    The same happens to exceptions that signal handlers raise, such as ``KeyboardInterrupt``: in a function that HDF5
    calls, they would become a ``SystemError``.
    """

    def __init__(self, raw: io.FileIO) -> None:
        self._raw = raw
        self._error: OSError | None = None
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._signals: list[int] = []  # that were received
        # HDF5 looks these up by name, and only reads back what it has written
        self.seek, self.tell, self.read, self.readinto = raw.seek, raw.tell, raw.read, raw.readinto

    def write(self, data: memoryview) -> int:
        """Write all data, or store the error for ``raise_error``."""
        view = memoryview(data).cast("B")
        try:
            at = 0
            while at < len(view) and self._error is None:
                at += self._raw.write(view[at:]) or 0
        except OSError as error:
            self._error = error
        return len(view)

    def truncate(self, size: int) -> int:
        """Set the size of the file, or store the error for ``raise_error``."""
        try:
            return self._raw.truncate(size)
        except OSError as error:
            self._error = self._error or error
            return size

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def raise_error(self) -> None:
        """Raise the first error, if there was one, and call the handlers of signals that were received."""
        if self._error is not None:
            raise self._error
        while self._signals:
            number = self._signals.pop(0)
            self._handlers[number](number, None)

    @contextmanager
    def postponed_signals(self) -> Iterator[None]:
        """Postpone the handlers of SIGINT, SIGTERM and SIGHUP until ``raise_error`` is called."""
        if threading.current_thread() is not threading.main_thread():  # has no handlers
            yield
            return
        names = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
        for number in (getattr(signal, name) for name in names if hasattr(signal, name)):
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, lambda number, _: self._signals.append(number))
        try:
            yield
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
