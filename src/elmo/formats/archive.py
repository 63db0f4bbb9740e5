"""Unpack a zip or tar archive with a model into a temporary folder.

A tar archive may be compressed with gzip, bzip2 or xz. An archive may consist of numbered parts, and may contain
another archive with the model.

Archives are untrusted. Members that point outside the folder, links and devices are refused, and so is an
archive that unpacks to far more than its size: trained weights hardly compress. The module has four parts:
unpacking, archives in parts, the tar reader and the zip reader. Both readers yield ``ArchiveMember`` objects.
"""

from __future__ import annotations

import bisect
import bz2
import errno
import io
import itertools
import lzma
import re
import shutil
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, cast

from elmo.errors import ElmoError, FormatError, OutputError
from elmo.storage.atomic import temporary_folder
from elmo.storage.files import BoundedReads, find_member, format_error, format_path, list_names, open_regular

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tbz", ".tar.xz", ".txz")
MAX_MEMBERS = 4096
MAX_RATIO = 20  # largest ratio of unpacked to packed size; trained weights reach 1.1, vocabularies 4
FREE_BYTES = 1 << 24  # a member below this size may have any ratio
FREE_TOTAL = 1 << 26  # an archive that unpacks to less than this size may have any ratio

# Files that a format reader may open. As in huggingface_hub, a star also matches folders.
PATTERNS = ("*.json", "*.hdf5", "*.h5", "*.safetensors", "*[vV]ocab*.txt", "*.dic", "*.pkl", "*weights.th", "*.pb",
            "*.index", "*.data-*-of-*", "*checkpoint", "*SHA256SUMS", "*.model")  # fmt: skip

_MAX_INNER = 4  # archives in an archive
_BLOCK = 1 << 20
_DAMAGE_ERRORS = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError,
                  NotImplementedError, RuntimeError, OverflowError, struct.error)  # fmt: skip


@dataclass(frozen=True)
class ArchiveMember:
    """A file or folder in an archive; its bytes can be read until the next member is requested."""

    name: str  # as the archive spells it: not safe to use as a path
    size: int  # as declared
    is_folder: bool
    read: Callable[[int], bytes]


def is_model_file(name: str) -> bool:
    """Return whether a file in a folder, an archive or a repository may be part of a model, judging by its name."""
    path = PurePosixPath(name)
    if path.name.startswith("._") or path.parts[:1] == ("__MACOSX",):  # added to zips by macOS
        return False
    return any(fnmatchcase(name, pattern) for pattern in PATTERNS)


def is_archive(path: Path) -> bool:
    """Return whether a file has the name or the first bytes of an archive, or is a part of one."""
    if path.name.lower().endswith(SUFFIXES) or _split_part_name(path.name) is not None:
        return True
    try:
        with open_regular(path) as file:
            return _member_reader(file) is not None
    except (ElmoError, OSError):
        return False


def find_archives(folder: Path) -> list[Path]:
    """List the archives in a folder, judging by their names; of an archive in parts, the part that comes first."""
    parts: set[str] = set()
    archives = []
    for name in list_names(folder):
        part = _split_part_name(name)
        if name.lower().endswith(SUFFIXES) or (part is not None and part.stem not in parts):
            archives.append(find_member(folder, name))
        if part is not None:
            parts.add(part.stem)
    return archives


@contextmanager
def unpacked(path: Path, *, is_complete: Callable[[Path], bool] = lambda folder: True) -> Iterator[Path]:
    """Unpack the model files of an archive into a temporary folder, which is removed on exit.

    Files must not stay mapped into memory after the context ends.

    Args:
        path: The archive, or any of its parts.
        is_complete: Returns whether the unpacked folder contains a model. If it does not, the archives in the archive
            are unpacked too, but none in these.
    """
    with temporary_folder("elmo-unpacked-", subject=f"unpack {format_path(path)}") as folder:
        with _open_archive(path) as file, _archive_errors(path, folder):
            size = file.seek(0, 2)
            inner = _unpack(file, folder, packed_size=size)
            if inner and not is_complete(folder):
                _unpack_inner(file, folder, packed_size=size)
        yield folder


@contextmanager
def _archive_errors(path: Path, folder: Path) -> Iterator[None]:
    """Turn what goes wrong in an archive into a typed error that names it."""
    try:
        yield
    except ElmoError as error:
        raise type(error)(f"{format_path(path)}: {error}") from error
    except _DAMAGE_ERRORS as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError(f"{format_path(path)}: no space left in {folder.parent} to unpack it") from error
        raise FormatError(f"{format_path(path)}: the archive is damaged: {format_error(error)}") from error


def _unpack(
    file: BinaryIO, folder: Path, *, packed_size: int, is_wanted: Callable[[str], bool] = is_model_file
) -> list[str]:
    """Write the members of an archive that are wanted to a folder; return the names of the archives in it.

    ``packed_size`` is the size of the outermost archive, which limits what the archives in it unpack to.
    """
    size = min(file.seek(0, 2), packed_size)
    read_members = _member_reader(file)
    if read_members is None:
        raise FormatError("expected a zip or tar archive, found another kind of file")
    seen: set[str] = set()
    inner = []
    for member in read_members(file, size):
        name = str(_safe_name(member.name))
        if member.is_folder:
            continue
        if _is_inner_archive(name):
            inner.append(name)
        if is_wanted(name):
            _extract(member, folder, seen)
    return inner


def _is_inner_archive(name: str) -> bool:
    path = PurePosixPath(name)
    return path.name.lower().endswith(SUFFIXES) and not path.name.startswith("._") and path.parts[0] != "__MACOSX"


def _unpack_inner(file: BinaryIO, folder: Path, *, packed_size: int) -> None:
    """Unpack the archives in an archive, each into its own folder."""
    with temporary_folder("elmo-unpacked-", subject="unpack an archive in it", parent=folder.parent) as scratch:
        names = _unpack(file, scratch, packed_size=packed_size, is_wanted=_is_inner_archive)
        if len(names) > _MAX_INNER:
            raise FormatError(f"expected at most {_MAX_INNER} archives in the archive, found {len(names)}")
        for name in names:
            target = folder / name.replace("/", "-")
            if target.exists():
                raise FormatError(f"{name!r:.80}: expected an archive, found a file or folder with the same name")
            target.mkdir()
            try:
                with open_regular(scratch / name) as inner:
                    _unpack(inner, target, packed_size=packed_size)
            except ElmoError as error:
                raise type(error)(f"{name!r:.80} in the archive: {error}") from error


def _member_reader(file: BinaryIO) -> Callable[[BinaryIO, int], Iterator[ArchiveMember]] | None:
    """Choose the reader by the first bytes of a file; None if it is not an archive."""
    file.seek(0)
    start = file.read(512)
    file.seek(0)
    if start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return _read_zip
    for magic, stream in _COMPRESSIONS.items():
        if start.startswith(magic):
            return partial(_read_compressed_tar, stream=stream)
    return _read_tar if _is_tar_header(start) else None


def _extract(member: ArchiveMember, folder: Path, seen: set[str]) -> None:
    name = _safe_name(member.name)
    # some file systems ignore case, or treat composed and decomposed letters as equal
    alias = unicodedata.normalize("NFC", str(name)).casefold()
    if alias in seen:
        raise FormatError(
            f"expected unique names, found {str(name)!r:.80} twice (ignoring case and Unicode normalization)"
        )
    seen.add(alias)
    free = shutil.disk_usage(folder).free
    if member.size > free:
        raise OutputError(
            f"unpacking {str(name)!r:.80} takes {member.size} bytes, but {folder.parent} has {free} free; "
            "set TMPDIR to a folder on a larger disk"
        )
    target = folder / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        out = target.open("xb")
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise FormatError(f"{str(name)!r:.80}: expected a file, found a folder with the same name") from error
    n_bytes = 0
    with out:
        while block := member.read(_BLOCK):
            n_bytes += len(block)
            if n_bytes > member.size:
                break
            out.write(block)
    if n_bytes != member.size:
        raise FormatError(f"{str(name)!r:.80}: expected {member.size} bytes, found a different number of bytes")


def _safe_name(name: str) -> PurePosixPath:
    """Return the name of a member as a relative path; reject a name that could leave the folder on any system."""
    parts = name.split("/")
    is_safe = (
        not name.startswith("/")
        and not any(character in '\\:\x7f' or ord(character) < 32 for character in name)
        and not any("\ud800" <= character <= "\udfff" for character in name)
        # Windows drops trailing dots and spaces, so ".. " means ".." there
        and all(part in ("", ".") or part.rstrip(". ") for part in parts)
        and len(parts) <= 16
        and len(name) <= 1024
        and all(len(part.encode("utf-8", "replace")) <= 255 for part in parts)
    )  # fmt: skip
    if not is_safe or not name:
        raise FormatError(f"the file name {name!r:.80} is unsafe or too long")
    return PurePosixPath(name)


def _check_total(n_bytes: int, packed: int) -> None:
    """Reject an archive that unpacks to far more than its size."""
    if n_bytes > MAX_RATIO * packed + FREE_TOTAL:
        raise FormatError(
            f"the archive must unpack to at most {MAX_RATIO} times its size; found {n_bytes} bytes or "
            f"more from {packed} packed bytes"
        )


# --- archives in parts ---------------------------------------------------------------------------

_PART = re.compile(r"(.+?)(?:(\.part[-_.]?)(\d{1,4}|[a-z]{2})|(\.)(\d{2,4}|[a-z]{2}))", re.ASCII)
_MAX_PARTS = 1000


@dataclass(frozen=True)
class _PartName:
    """The name of a part, such as ``model.tgz.part-00``: stem, separator and number."""

    stem: str
    separator: str
    number: str


def _split_part_name(name: str) -> _PartName | None:
    """Split the name of a part of an archive; return None for other names."""
    match = _PART.fullmatch(name)
    if match is None or name.lower().endswith(SUFFIXES) or not match[1].lower().endswith(SUFFIXES):
        return None
    return _PartName(match[1], match[2] or match[4], match[3] or match[5])


@contextmanager
def _open_archive(path: Path) -> Iterator[BinaryIO]:
    """Open an archive; the parts of one are read as a single file."""
    part = _split_part_name(path.name)
    if part is None:
        with open_regular(path) as file:
            yield file
        return
    with ExitStack() as stack:
        files = [stack.enter_context(open_regular(name)) for name in _list_parts(path, part)]
        yield cast("BinaryIO", io.BufferedReader(_JoinedFiles(files), _READ_SIZE))


def _list_parts(path: Path, part: _PartName) -> list[Path]:
    """List all parts of an archive in order; raise ``FormatError`` if one in the middle is missing."""
    names: dict[int, str] = {}
    for name in list_names(path.parent):
        other = _split_part_name(name)
        if other is None or (other.stem, other.separator) != (part.stem, part.separator):
            continue
        if other.number.isdigit() != part.number.isdigit():
            continue
        index = _part_index(other.number)
        if index in names:
            found = f"{names[index]!r:.80} and {name!r:.80}"
            raise FormatError(f"{format_path(path)}: expected one file for each part of the archive, found {found}")
        names[index] = name
    if len(names) > _MAX_PARTS:
        raise FormatError(f"{format_path(path)}: expected at most {_MAX_PARTS} parts, found {len(names)}")
    values = sorted(names)
    if values[0] > 1 or (values[0] == 1 and not part.number.isdigit()):
        raise FormatError(f"{format_path(path)}: the first part of the archive is missing")
    for value, index in zip(values, range(values[0], values[0] + len(values)), strict=True):
        if value != index:
            raise FormatError(f"{format_path(path)}: a part of the archive before {names[values[-1]]!r:.80} is missing")
    # links must not lead from a folder of somebody else to other files; the user may name a link
    return [path if name == path.name else find_member(path.parent, name) for name in map(names.__getitem__, values)]


def _part_index(number: str) -> int:
    """Return the position of a part: 0 for ``00`` and ``aa``."""
    return int(number) if number.isdigit() else (ord(number[0]) - ord("a")) * 26 + ord(number[1]) - ord("a")


class _JoinedFiles(io.RawIOBase):
    """Files that are read as if their bytes were in one file."""

    def __init__(self, files: list[io.BufferedReader]) -> None:
        super().__init__()
        self._files = files
        self._ends = list(itertools.accumulate(file.seek(0, 2) for file in files))
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._ends[-1]}[whence]
        if base + offset < 0:
            raise ValueError("negative position")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        k = bisect.bisect_right(self._ends, self._position)
        if k == len(self._files):
            return 0
        start = self._ends[k - 1] if k else 0
        self._files[k].seek(self._position - start)
        data = self._files[k].read(min(len(buffer), self._ends[k] - self._position))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


# --- tar -----------------------------------------------------------------------------------------
# Python's tarfile allocates as much memory for a name as a header declares. This reader supports regular files
# and folders of POSIX, GNU and older tar, with long names, and reads the archive once from front to back.

_TAR_BLOCK = 512
_MAX_ATTRIBUTES = 1 << 16  # bytes of a long name or of extended attributes
_READ_SIZE = 1 << 16
_GZIP_WBITS = 16 + zlib.MAX_WBITS  # makes zlib expect gzip's header and checksum
_XZ_MEMORY = 1 << 27  # bytes; xz -9 needs 65 MB
_REFUSED_TYPES = {b"1": "a link", b"2": "a link", b"K": "a link", b"3": "a device", b"4": "a device",
                  b"6": "a pipe", b"S": "a sparse file"}  # fmt: skip


def _read_tar(file: BinaryIO, size: int) -> Iterator[ArchiveMember]:
    return _tar_members(_BoundedStream(file.read, size, lambda: min(file.tell(), size)))


def _read_compressed_tar(file: BinaryIO, size: int, *, stream: type[_PackedStream]) -> Iterator[ArchiveMember]:
    return _tar_members(_BoundedStream(stream(file).read, size, lambda: min(file.tell(), size)))


class _PackedStream:
    """The decompressed bytes of a gzip, bzip2 or xz file, which may consist of several parts.

    Python's ``gzip`` reads headers byte by byte and accepts any number of parts, so that a crafted file of a few
    megabytes could take seconds.
    """

    name: str

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._part: Any = self._new_part()
        self._packed = b""
        self._n_parts = 1

    def _new_part(self) -> Any:
        """Return a new decompressor, as of ``bz2``."""
        raise NotImplementedError

    def _decompress(self, packed: bytes, n_bytes: int) -> bytes:
        # the decompressor keeps what it has not decompressed
        return self._part.decompress(packed, n_bytes)

    def _needs_input(self) -> bool:
        return self._part.needs_input

    def read(self, n_bytes: int) -> bytes:
        """Read at most ``n_bytes``; return ``b""`` at the end."""
        if not n_bytes:
            return b""
        while True:
            if self._part.eof and not self._next_part():
                return b""
            needs_input = not self._packed and self._needs_input()
            packed = self._file.read(_READ_SIZE) if needs_input else self._packed
            self._packed = b""
            if data := self._decompress(packed, n_bytes):
                return data
            if needs_input and not packed and not self._part.eof:
                raise FormatError(f"the {self.name} file is truncated")

    def _next_part(self) -> bool:
        """Start the next part, skipping zeros that pad the file."""
        packed = self._part.unused_data.lstrip(b"\0")
        while not packed and (more := self._file.read(_READ_SIZE)):
            packed = more.lstrip(b"\0")
        if not packed:
            return False
        self._n_parts += 1
        if self._n_parts > MAX_MEMBERS:
            raise FormatError(f"expected at most {MAX_MEMBERS} parts in a {self.name} file, found more")
        self._part, self._packed = self._new_part(), packed
        return True


class _GzipStream(_PackedStream):
    name = "gzip"

    def _new_part(self) -> Any:
        return zlib.decompressobj(_GZIP_WBITS)

    def _decompress(self, packed: bytes, n_bytes: int) -> bytes:
        data = self._part.decompress(packed, n_bytes)
        self._packed = self._part.unconsumed_tail
        return data

    def _needs_input(self) -> bool:
        return True


class _Bzip2Stream(_PackedStream):
    name = "bzip2"

    def _new_part(self) -> Any:
        return bz2.BZ2Decompressor()


class _XzStream(_PackedStream):
    name = "xz"

    def _new_part(self) -> Any:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)


_COMPRESSIONS: dict[bytes, type[_PackedStream]] = {
    b"\x1f\x8b": _GzipStream, b"BZh": _Bzip2Stream, b"\xfd7zXZ\x00": _XzStream,
}  # fmt: skip


@dataclass
class _BoundedStream:
    """Reads the unpacked data of an archive from front to back.

    Raises ``FormatError`` if it is far larger than the part of the file read so far (a decompression bomb).
    """

    source: Callable[[int], bytes]
    packed_size: int
    packed_position: Callable[[], int]
    position: int = field(default=0, init=False)

    def read(self, n_bytes: int) -> bytes:
        data = self.source(n_bytes)
        self.position += len(data)
        _check_total(self.position, self.packed_position())
        return data

    def read_exactly(self, n_bytes: int) -> bytes:
        parts = []
        while n_bytes and (part := self.read(min(n_bytes, _READ_SIZE))):
            parts.append(part)
            n_bytes -= len(part)
        if n_bytes:
            raise FormatError("the tar file is truncated")
        return b"".join(parts)

    def skip_to(self, position: int) -> None:
        while self.position < position:
            if not self.read(min(position - self.position, _READ_SIZE)):
                raise FormatError("the tar file is truncated inside a member")


def _tar_members(stream: _BoundedStream) -> Iterator[ArchiveMember]:
    long_name: str | None = None
    long_size: int | None = None
    for _ in range(MAX_MEMBERS):
        block = stream.read_exactly(_TAR_BLOCK)
        if not any(block):
            while stream.read(_READ_SIZE):
                pass  # read to the end, where gzip's checksum is verified
            return
        if not _is_tar_header(block):
            raise FormatError(f"expected a tar header at byte {stream.position - _TAR_BLOCK}, found none")
        kind, size = block[156:157], _tar_number(block[124:136])
        if kind in (b"x", b"g", b"L"):
            if size > _MAX_ATTRIBUTES:
                raise FormatError(f"expected at most {_MAX_ATTRIBUTES} bytes of attributes, found {size}")
            attributes = stream.read_exactly(size)
            stream.skip_to(_next_block(stream.position))
            if kind == b"L":
                long_name = _decode(attributes.split(b"\0")[0])
            elif kind == b"x":
                long_name, long_size = _extended_attributes(attributes)
            continue
        name = _tar_name(block) if long_name is None else long_name
        size = size if long_size is None else long_size
        if kind not in (b"0", b"\0", b"5"):
            type_name = _REFUSED_TYPES.get(kind, f"type {kind!r}")
            raise FormatError(f"{name!r:.80}: expected a file or a folder, found {type_name}")
        end = stream.position + size
        _check_total(end, stream.packed_size)
        yield ArchiveMember(name, size, kind == b"5" or name.endswith("/"), _read_until(stream, end))
        stream.skip_to(_next_block(end))
        long_name = long_size = None
    raise FormatError(f"expected at most {MAX_MEMBERS} members, found more")


def _read_until(stream: _BoundedStream, end: int) -> Callable[[int], bytes]:
    return lambda n_bytes: stream.read(min(n_bytes, end - stream.position)) if stream.position < end else b""


def _is_tar_header(block: bytes) -> bool:
    """Return whether a block is a tar header with a correct checksum."""
    if len(block) != _TAR_BLOCK or not any(block):
        return False
    try:
        return _tar_number(block[148:156]) == sum(block) - sum(block[148:156]) + 8 * ord(" ")
    except FormatError:
        return False


def _tar_name(block: bytes) -> str:
    name = _decode(block[:100].split(b"\0")[0])
    prefix = _decode(block[345:500].split(b"\0")[0]) if block[257:265] == b"ustar\x0000" else ""
    return f"{prefix}/{name}" if prefix else name


def _extended_attributes(data: bytes) -> tuple[str | None, int | None]:
    """Read path and size from a POSIX extended header: lines ``length key=value``, where length is that of the line."""
    attributes: dict[bytes, bytes] = {}
    position = 0
    while position < len(data):
        digits, space, _ = data[position : position + 20].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        record = data[position + len(digits) + 1 : position + length]
        key, equals, value = record.partition(b"=")
        if length <= len(digits) + 1 or position + length > len(data) or not equals or record[-1:] != b"\n":
            raise FormatError("expected lines 'length key=value' in an extended tar header, found other content")
        attributes[key] = value[:-1]
        position += length
    if any(key.startswith(b"GNU.sparse") for key in attributes):
        raise FormatError("expected a plain file, found a sparse file")
    path, size = attributes.get(b"path"), attributes.get(b"size")
    if size is not None and not (size.isdigit() and len(size) < 16):
        raise FormatError(f"expected a decimal size in an extended tar header, found {size[:40]!r}")
    return None if path is None else _decode(path), None if size is None else int(size)


def _decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"expected names in UTF-8, found {raw[:60]!r}") from error


def _tar_number(digits: bytes) -> int:
    """Read an octal number, or a large number in GNU's binary form."""
    if digits[:1] == b"\x80":
        return int.from_bytes(digits[1:], "big")
    text = digits.strip(b" \0")
    if any(digit not in b"01234567" for digit in text):
        raise FormatError(f"expected an octal number in a tar header, found {digits!r}")
    return int(text or b"0", 8)


def _next_block(position: int) -> int:
    return -(-position // _TAR_BLOCK) * _TAR_BLOCK


# --- zip -----------------------------------------------------------------------------------------
# zipfile does the reading; the whole directory is checked before the first member is read.

_MAX_DIRECTORY = 1 << 20  # bytes; enough for 4096 members with names of 200 characters
_LOCAL_HEADER_SIZE = 30


def _read_zip(file: BinaryIO, size: int) -> Iterator[ArchiveMember]:
    try:
        archive = zipfile.ZipFile(cast("IO[bytes]", BoundedReads(file, _MAX_DIRECTORY)))
    except zipfile.BadZipFile as error:
        raise FormatError(
            f"expected a zip directory at the end of the file, found none ({error}); the file may be truncated"
        ) from error
    with archive:
        entries = archive.infolist()
        if len(entries) > MAX_MEMBERS:
            raise FormatError(f"expected at most {MAX_MEMBERS} members, found {len(entries)}")
        for entry in entries:
            _check_entry(entry)
        _check_total(sum(entry.file_size for entry in entries), size)
        _check_overlaps(entries, end=archive.start_dir)
        for entry in entries:
            with archive.open(entry) as data:
                yield ArchiveMember(entry.orig_filename, entry.file_size, entry.is_dir(), data.read)


def _check_entry(entry: zipfile.ZipInfo) -> None:
    name = f"{entry.orig_filename!r:.80}"
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise FormatError(f"{name}: expected a file or a folder, found a link or a device")
    if entry.flag_bits & 0x41:
        raise FormatError(f"{name} is encrypted; unpack the archive and load the folder")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FormatError(
            f"{name}: expected a stored or deflated entry, found compression type {entry.compress_type}; unpack the "
            "archive and load the folder"
        )
    if entry.file_size > FREE_BYTES and entry.file_size > MAX_RATIO * entry.compress_size:
        raise FormatError(
            f"{name} must unpack to at most {MAX_RATIO} times its packed size; "
            f"found {entry.file_size} bytes from {entry.compress_size}"
        )


def _check_overlaps(entries: list[zipfile.ZipInfo], *, end: int) -> None:
    """Reject members that share bytes, because a small file could then unpack to any size."""
    entries = sorted(entries, key=lambda entry: entry.header_offset)
    starts = [entry.header_offset for entry in entries] + [end]
    for entry, next_start in zip(entries, starts[1:], strict=True):
        if not 0 <= entry.header_offset <= next_start - _LOCAL_HEADER_SIZE - entry.compress_size:
            raise FormatError(f"the bytes of {entry.orig_filename!r:.80} overlap those of another member")
