"""An HDF5 file in, the names and object headers of its groups and datasets out, in Python alone.

libhdf5 is a large C library that follows links to other files, and in which crafted files keep finding memory
errors (CVE-2025-2915, -6750, -7067 among others). A model may come from anybody, and the weights of every
published ELMo use a small, plain part of HDF5 (what h5py writes unless told otherwise: superblock 0, groups
by symbol tables). So that part is read here, every address and size checked first. Everything else, links
that lead elsewhere among it, is refused by name. Section numbers are those of the HDF5 file format
specification, version 3.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Self

from elmo.errors import FormatError
from elmo.formats.files import open_regular, shown

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
            raise FormatError(f"{shown(self.path)}: {what} is cut short") from error

    def refuse(self, reason: str) -> NoReturn:
        """Raise ``FormatError``."""
        raise FormatError(f"{shown(self.path)}: {reason}")

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
