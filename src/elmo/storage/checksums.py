"""A model's files in, their ``SHA256SUMS`` out; and back, checked line by line, as ``sha256sum -c`` does."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from elmo.errors import ChecksumError, FormatError
from elmo.storage.files import member, open_regular, read_bytes, shown

NAME = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9_.]+)\n")
_LIMIT = 1 << 14  # bytes


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open_regular(path) as file:
        try:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
            return digest.hexdigest()
        except OSError as error:
            raise FormatError(f"{shown(path)}: cannot be read: {error.strerror}") from error


def to_text(sums: Mapping[str, str], order: Sequence[str]) -> str:
    """The file's content, its lines in ``order``."""
    return "".join(f"{sums[name]}  {name}\n" for name in order if name in sums)


def read(folder: Path, order: Sequence[str]) -> dict[str, str]:
    """Name and SHA-256 of each file that the folder's ``SHA256SUMS`` lists.

    Nothing covers this file itself, so it must be exactly what ``to_text`` writes: of every damage, something
    is then out of place. Lines cut off at its end are seen by who misses the last name of ``order``.
    """
    path = member(folder, NAME)
    raw = read_bytes(path, _LIMIT)
    sums: dict[str, str] = {}
    try:
        for digest, name in _LINE.findall(raw.decode("ascii")):
            sums[name] = digest
    except UnicodeDecodeError:
        sums = {}
    if to_text(sums, order).encode() != raw:
        raise FormatError(
            f"{shown(path)}: expected a line 'SHA-256  name' for each file of the model, found damage; fetch "
            "the model again (or, after a change of your own, remove this file)"
        )
    return sums


def verify(path: Path, expected: str) -> None:
    """Refuse a file that does not have the recorded SHA-256."""
    found = sha256(path)
    if found != expected:
        raise ChecksumError(
            f"{shown(path)}: expected SHA-256 {expected[:16]}…, found {found[:16]}…: the file is damaged or "
            f"was changed; fetch it again (or, after a change of your own, remove {NAME})"
        )
