"""A file's name in, whether some reader may open it out: all that is unpacked, and all that is downloaded.

What an archive may hold: the bounds that its readers keep, and the members that they hand out.

An open tar file in, plain or gzipped, its members out, read once from front to back.

Python's ``tarfile`` takes a header's word for how much memory a name may need, so we read headers
ourselves: regular files and folders of POSIX, GNU and older tar, with long names.

An open zip file in, its members out, the whole directory checked before the first of them.

A zip or tar file in, a temporary folder with the model's files out; it is gone when the caller is done.

An archive may come from anybody. Members that lead elsewhere, links and devices are refused, and so is
what unpacks to far more than it holds: numbers of a trained model hardly compress.
"""

from __future__ import annotations

import errno
import shutil
import stat
import struct
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from elmo.errors import ElmoError, FormatError, OutputError
from elmo.storage.files import open_regular, reason, shown

# As huggingface_hub matches them: a star may also stand for folders.
PATTERNS = (
    "*.json",
    "*.hdf5",
    "*.h5",
    "*.safetensors",
    "*[vV]ocab*.txt",
    "*.dic",
    "*.pkl",
    "*.pb",
    "*.index",
    "*.data-*-of-*",
    "*checkpoint",
    "*SHA256SUMS",
)


def is_wanted(name: str) -> bool:
    """Whether a member of an archive or a repository may be part of a model."""
    path = PurePosixPath(name)
    if path.name.startswith("._") or path.parts[:1] == ("__MACOSX",):  # what macOS adds to its zips
        return False
    return any(fnmatchcase(name, pattern) for pattern in PATTERNS)


MAX_MEMBERS = 4096
MAX_RATIO = 20  # of unpacked to packed size; trained weights reach 1.1, vocabularies 4
FREE_BYTES = 1 << 24  # a member below this may have any ratio
FREE_TOTAL = 1 << 26  # and an archive below this


@dataclass(frozen=True)
class Member:
    """A file or folder of an archive; its bytes can be read until the next member is asked for."""

    name: str  # as the archive spells it: not safe to use as a path
    size: int  # as declared
    is_folder: bool
    read: Callable[[int], bytes]


def check_total(n_bytes: int, packed: int) -> None:
    """Refuse an archive that unpacks to far more than it holds."""
    if n_bytes > MAX_RATIO * packed + FREE_TOTAL:
        raise FormatError(
            f"expected at most {MAX_RATIO} times its {packed} bytes when unpacked, found {n_bytes} or more"
        )


_TAR_BLOCK = 512
_NOTE_LIMIT = 1 << 16  # bytes of a long name or of extended attributes
_STEP = 1 << 16
_GZIP = 16 + zlib.MAX_WBITS  # zlib's way to say: with gzip's header and checksum
_KINDS = {b"1": "a link", b"2": "a link", b"K": "a link", b"3": "a device", b"4": "a device",
          b"6": "a pipe", b"S": "a sparse file"}  # fmt: skip


def is_header(block: bytes) -> bool:
    """Whether a block is a tar header: its checksum must fit."""
    if len(block) != _TAR_BLOCK or not any(block):
        return False
    try:
        return _number(block[148:156]) == sum(block) - sum(block[148:156]) + 8 * ord(" ")
    except FormatError:
        return False


def tar_members(file: BinaryIO, size: int) -> Iterator[Member]:
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
        block = stream.exactly(_TAR_BLOCK)
        if not any(block):
            while stream.read(_STEP):
                pass  # to the end, where gzip keeps its checksum
            return
        if not is_header(block):
            raise FormatError(f"expected a tar header at byte {stream.position - _TAR_BLOCK}, found none")
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
    return -(-position // _TAR_BLOCK) * _TAR_BLOCK


StructError = struct.error
_DIRECTORY_LIMIT = 1 << 20  # bytes; 4096 members with names of 200 letters
_LOCAL_HEADER_SIZE = 30


def zip_members(file: BinaryIO, size: int) -> Iterator[Member]:
    """The members in the order of the directory."""
    with _opened(file) as archive:
        entries = archive.infolist()
        if len(entries) > MAX_MEMBERS:
            raise FormatError(f"expected at most {MAX_MEMBERS} members, found {len(entries)}")
        for entry in entries:
            _check(entry)
        check_total(sum(entry.file_size for entry in entries), size)
        _check_overlaps(entries, end=archive.start_dir)
        for entry in entries:
            with archive.open(entry) as data:
                yield Member(entry.orig_filename, entry.file_size, entry.is_dir(), data.read)


def _opened(file: BinaryIO) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(_InSmallBites(file))
    except zipfile.BadZipFile as error:
        raise FormatError(
            f"expected a zip directory at the end of the file, found none that is sound ({error}): it may be "
            "cut short"
        ) from error


class _InSmallBites:
    """A file that ``zipfile`` reads: it takes the whole directory at once, however large it is said to be.

    Where a zip declares that size depends on the reader (there are two records, and Pythons differ in where
    they look for the second), so what is asked for is bounded, and not what is declared.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, n_bytes: int = -1) -> bytes:
        if n_bytes > _DIRECTORY_LIMIT:
            raise FormatError(
                f"expected a zip directory of at most {_DIRECTORY_LIMIT} bytes, found {n_bytes} declared"
            )
        return self._file.read(n_bytes if n_bytes >= 0 else _DIRECTORY_LIMIT)


def _check(entry: zipfile.ZipInfo) -> None:
    name = f"{entry.orig_filename!r:.80}"
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise FormatError(f"{name}: expected a file or a folder, found a link or a device")
    if entry.flag_bits & 0x41:
        raise FormatError(f"{name}: is encrypted; unpack the archive yourself and give the folder")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FormatError(
            f"{name}: expected it stored or deflated, found compression {entry.compress_type}; unpack the "
            "archive yourself and give the folder"
        )
    if entry.file_size > FREE_BYTES and entry.file_size > MAX_RATIO * entry.compress_size:
        raise FormatError(
            f"{name}: expected at most {MAX_RATIO} times its {entry.compress_size} packed bytes, "
            f"found {entry.file_size} declared"
        )


def _check_overlaps(entries: list[zipfile.ZipInfo], *, end: int) -> None:
    """Refuse members that share bytes: a few megabytes could unpack to any size that way."""
    entries = sorted(entries, key=lambda entry: entry.header_offset)
    starts = [entry.header_offset for entry in entries] + [end]
    for entry, following in zip(entries, starts[1:], strict=True):
        if not 0 <= entry.header_offset <= following - _LOCAL_HEADER_SIZE - entry.compress_size:
            raise FormatError(f"{entry.orig_filename!r:.80}: expected bytes of its own, found an overlap")


SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
_BLOCK = 1 << 20
# What zipfile, gzip and zlib raise for damaged archives.
_DAMAGE = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, OSError, ValueError,
           NotImplementedError, RuntimeError, OverflowError, StructError)  # fmt: skip


def is_archive(path: Path) -> bool:
    """Whether a file is named, or begins, like an archive; never raises for odd files."""
    if path.name.lower().endswith(SUFFIXES):
        return True
    try:
        with open_regular(path) as file:
            return _kind(file) is not None
    except (ElmoError, OSError):
        return False


@contextmanager
def opened(path: Path) -> Iterator[Path]:
    """Unpack the files that a reader may want into a temporary folder, and remove it afterwards.

    What is read from there must be in memory, not mapped, when the folder goes.
    """
    try:
        temporary = tempfile.TemporaryDirectory(prefix="elmo-", ignore_cleanup_errors=True)
    except OSError as error:
        raise OutputError(f"{shown(path)}: no temporary folder to unpack it: {error.strerror}") from error
    with temporary as folder:
        _unpack(path, Path(folder))
        yield Path(folder)


def _unpack(path: Path, folder: Path) -> None:
    with open_regular(path) as file:
        try:
            size = file.seek(0, 2)
            kind = _kind(file)
            if kind is None:
                raise FormatError("expected a zip or tar archive, found neither")
            seen: set[str] = set()
            for member in kind(file, size):
                _extract(member, folder, seen)
        except ElmoError as error:
            raise type(error)(f"{shown(path)}: {error}") from error
        except _DAMAGE as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OutputError(f"{shown(path)}: no space left in {folder.parent} to unpack it") from error
            raise FormatError(
                f"{shown(path)}: expected a sound archive, found damage: {reason(error)}"
            ) from error


def _kind(file: BinaryIO) -> Callable[[BinaryIO, int], Iterator[Member]] | None:
    """The reader for what a file begins with."""
    file.seek(0)
    start = file.read(512)
    file.seek(0)
    if start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return zip_members
    if start[:2] == b"\x1f\x8b":
        return compressed_members
    return tar_members if is_header(start) else None


def _extract(member: Member, folder: Path, seen: set[str]) -> None:
    name = _safe_name(member.name)
    if member.is_folder or not is_wanted(str(name)):
        return
    # one name for file systems that do not tell case or composed letters apart
    alias = unicodedata.normalize("NFC", str(name)).casefold()
    if alias in seen:
        raise FormatError(f"expected each name once, found {str(name)!r:.80} twice")
    seen.add(alias)
    free = shutil.disk_usage(folder).free
    if member.size > free:
        raise OutputError(
            f"unpacking {str(name)!r:.80} takes {member.size} bytes, but {folder.parent} has {free} free; "
            "set TMPDIR to a larger disk"
        )
    target = folder / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        out = target.open("xb")
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise FormatError(f"{str(name)!r:.80}: expected a file, found a folder of that name too") from error
    n_bytes = 0
    with out:
        while block := member.read(_BLOCK):
            n_bytes += len(block)
            if n_bytes > member.size:
                break
            out.write(block)
    if n_bytes != member.size:
        raise FormatError(f"{str(name)!r:.80}: expected {member.size} bytes, found fewer or more")


def _safe_name(name: str) -> PurePosixPath:
    """The name as a path below the folder; ``FormatError`` when it leads elsewhere on any system."""
    parts = name.split("/")
    is_safe = (
        not name.startswith("/")
        and not any(character in '\\:\x7f' or ord(character) < 32 for character in name)
        and not any("\ud800" <= character <= "\udfff" for character in name)
        # Windows drops dots and spaces at a part's end, so ".. " leads up there
        and all(part in ("", ".") or part.rstrip(". ") for part in parts)
        and len(parts) <= 16
        and len(name) <= 1024
        and all(len(part.encode("utf-8", "replace")) <= 255 for part in parts)
    )  # fmt: skip
    if not is_safe or not name:
        raise FormatError(f"expected short, plain names below the archive's own folder, found {name!r:.80}")
    return PurePosixPath(name)
