"""A zip or tar file in, a temporary folder with the model's files out; it is gone when the caller is done.

An archive may come from anybody. Members that lead elsewhere, links and devices are refused, and so is
what unpacks to far more than it holds: numbers of a trained model hardly compress.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from elmo.errors import ElmoError, FormatError, OutputError
from elmo.formats import archive_tar, archive_zip
from elmo.formats.archive_limits import Member
from elmo.formats.files import open_regular, reason, shown
from elmo.formats.wanted import is_wanted

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
_BLOCK = 1 << 20
# What zipfile, gzip and zlib raise for damaged archives.
_DAMAGE = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, OSError, ValueError,
           NotImplementedError, RuntimeError, OverflowError, archive_zip.StructError)  # fmt: skip


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
        return archive_zip.members
    if start[:2] == b"\x1f\x8b":
        return archive_tar.compressed_members
    return archive_tar.members if archive_tar.is_header(start) else None


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
