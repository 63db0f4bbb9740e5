"""An open zip file in, its members out, the whole directory checked before the first of them."""

from __future__ import annotations

import stat
import struct
import zipfile
from collections.abc import Iterator
from typing import BinaryIO

from elmo.errors import FormatError
from elmo.formats.archive_limits import FREE_BYTES, MAX_MEMBERS, MAX_RATIO, Member, check_total

StructError = struct.error
_DIRECTORY_LIMIT = 1 << 20  # bytes; 4096 members with names of 200 letters
_LOCAL_HEADER_SIZE = 30


def members(file: BinaryIO, size: int) -> Iterator[Member]:
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
