"""An open tar file in, plain or gzipped, its members out, read once from front to back.

Python's ``tarfile`` takes a header's word for how much memory a name may need, so we read headers
ourselves: regular files and folders of POSIX, GNU and older tar, with long names.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from elmo.errors import FormatError
from elmo.formats.archive_limits import MAX_MEMBERS, Member, check_total

_BLOCK = 512
_NOTE_LIMIT = 1 << 16  # bytes of a long name or of extended attributes
_STEP = 1 << 16
_GZIP = 16 + zlib.MAX_WBITS  # zlib's way to say: with gzip's header and checksum
_KINDS = {b"1": "a link", b"2": "a link", b"K": "a link", b"3": "a device", b"4": "a device",
          b"6": "a pipe", b"S": "a sparse file"}  # fmt: skip


def is_header(block: bytes) -> bool:
    """Whether a block is a tar header: its checksum must fit."""
    if len(block) != _BLOCK or not any(block):
        return False
    try:
        return _number(block[148:156]) == sum(block) - sum(block[148:156]) + 8 * ord(" ")
    except FormatError:
        return False


def members(file: BinaryIO, size: int) -> Iterator[Member]:
    """The members of a plain tar file."""
    return _members(_Stream(file.read, size, file.tell))


def compressed_members(file: BinaryIO, size: int) -> Iterator[Member]:
    """The members of a gzipped tar file."""
    return _members(_Stream(_Unzipped(file).read, size, file.tell))


class _Unzipped:
    """The bytes of a gzip file, of one or a few parts.

    Python's ``gzip`` reads headers byte by byte and any number of parts: seconds for a few megabytes.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._part = zlib.decompressobj(_GZIP)
        self._packed = b""
        self._n_parts = 1

    def read(self, n_bytes: int) -> bytes:
        """At most so many bytes; none at the end."""
        while True:
            if self._part.eof and not self._begin_part():
                return b""
            packed = self._packed or self._file.read(_STEP)
            data = self._part.decompress(packed, n_bytes)
            self._packed = self._part.unconsumed_tail
            if data:
                return data
            if not packed and not self._part.eof:
                raise FormatError("expected the end of the gzip file, found it cut short")

    def _begin_part(self) -> bool:
        """Go on to what follows a part; zeros that pad the file are nothing."""
        packed = self._part.unused_data.lstrip(b"\0")
        while not packed and (more := self._file.read(_STEP)):
            packed = more.lstrip(b"\0")
        if not packed:
            return False
        self._n_parts += 1
        if self._n_parts > MAX_MEMBERS:
            raise FormatError(f"expected at most {MAX_MEMBERS} parts of a gzip file, found more")
        self._part, self._packed = zlib.decompressobj(_GZIP), packed
        return True


@dataclass
class _Stream:
    """Bytes read in order; those that come out are held against those that went in."""

    source: Callable[[int], bytes]
    packed_size: int
    packed_position: Callable[[], int]
    position: int = field(default=0, init=False)

    def read(self, n_bytes: int) -> bytes:
        data = self.source(n_bytes)
        self.position += len(data)
        check_total(self.position, self.packed_position())
        return data

    def exactly(self, n_bytes: int) -> bytes:
        parts = []
        while n_bytes and (part := self.read(min(n_bytes, _STEP))):
            parts.append(part)
            n_bytes -= len(part)
        if n_bytes:
            raise FormatError("expected more members or the end of the tar file, found it cut short")
        return b"".join(parts)

    def skip_to(self, position: int) -> None:
        while self.position < position:
            if not self.read(min(position - self.position, _STEP)):
                raise FormatError("expected more bytes of a member, found the tar file cut short")


def _members(stream: _Stream) -> Iterator[Member]:
    long_name: str | None = None
    long_size: int | None = None
    for _ in range(MAX_MEMBERS):
        block = stream.exactly(_BLOCK)
        if not any(block):
            while stream.read(_STEP):
                pass  # to the end, where gzip keeps its checksum
            return
        if not is_header(block):
            raise FormatError(f"expected a tar header at byte {stream.position - _BLOCK}, found none")
        kind, size = block[156:157], _number(block[124:136])
        if kind in (b"x", b"g", b"L"):
            if size > _NOTE_LIMIT:
                raise FormatError(
                    f"expected at most {_NOTE_LIMIT} bytes of attributes, found {size} declared"
                )
            note = stream.exactly(size)
            stream.skip_to(_rounded(stream.position))
            if kind == b"L":
                long_name = _text(note.split(b"\0")[0])
            elif kind == b"x":
                long_name, long_size = _attributes(note)
            continue
        name = _name(block) if long_name is None else long_name
        size = size if long_size is None else long_size
        if kind not in (b"0", b"\0", b"5"):
            found = _KINDS.get(kind, f"type {kind!r}")
            raise FormatError(f"{name!r:.80}: expected a file or a folder, found {found}")
        check_total(stream.position + size, stream.packed_size)
        end = stream.position + size
        yield Member(name, size, kind == b"5" or name.endswith("/"), _limited(stream, end))
        stream.skip_to(_rounded(end))
        long_name = long_size = None
    raise FormatError(f"expected at most {MAX_MEMBERS} members, found more")


def _limited(stream: _Stream, end: int) -> Callable[[int], bytes]:
    return lambda n_bytes: stream.read(min(n_bytes, end - stream.position)) if stream.position < end else b""


def _name(block: bytes) -> str:
    name = _text(block[:100].split(b"\0")[0])
    prefix = _text(block[345:500].split(b"\0")[0]) if block[257:265] == b"ustar\x0000" else ""
    return f"{prefix}/{name}" if prefix else name


def _attributes(note: bytes) -> tuple[str | None, int | None]:
    """Path and size of a POSIX extended header: lines ``length key=value``, the length counting itself."""
    found: dict[bytes, bytes] = {}
    position = 0
    while position < len(note):
        digits, space, _ = note[position : position + 20].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        record = note[position + len(digits) + 1 : position + length]
        key, equals, value = record.partition(b"=")
        if length <= len(digits) + 1 or position + length > len(note) or not equals or record[-1:] != b"\n":
            raise FormatError("expected lines 'length key=value' in a tar's extended header, found damage")
        found[key] = value[:-1]
        position += length
    if any(key.startswith(b"GNU.sparse") for key in found):
        raise FormatError("expected a plain file, found a sparse file")
    size = found.get(b"size")
    if size is not None and not (size.isdigit() and len(size) < 16):
        raise FormatError(f"expected a size in digits in a tar's extended header, found {size[:40]!r}")
    path = found.get(b"path")
    return None if path is None else _text(path), None if size is None else int(size)


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"expected names in UTF-8, found {raw[:60]!r}") from error


def _number(digits: bytes) -> int:
    """An octal number, or GNU's binary form of a large one."""
    if digits[:1] == b"\x80":
        return int.from_bytes(digits[1:], "big")
    text = digits.strip(b" \0")
    if any(digit not in b"01234567" for digit in text):
        raise FormatError(f"expected an octal number in a tar header, found {digits!r}")
    return int(text or b"0", 8)


def _rounded(position: int) -> int:
    return -(-position // _BLOCK) * _BLOCK
