"""Write and check the ``SHA256SUMS`` file of a model folder, in the format of ``sha256sum``."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from elmo.errors import ChecksumError, FormatError
from elmo.storage.files import find_member, format_error, format_path, open_regular, read_bytes

NAME = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9_.]+)\n")
_MAX_BYTES = 1 << 14


def sha256(path: Path) -> str:
    """Compute the SHA-256 of a file, in hexadecimal."""
    with open_regular(path) as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise FormatError(f"{format_path(path)}: cannot be read: {format_error(error)}") from error


def to_text(sums: Mapping[str, str], order: Sequence[str]) -> str:
    """Return the content of a ``SHA256SUMS`` file, with one line per name in ``order``."""
    return "".join(f"{sums[name]}  {name}\n" for name in order if name in sums)


def read(folder: Path, order: Sequence[str]) -> dict[str, str]:
    """Read the SHA-256 of each file that ``SHA256SUMS`` lists.

    No checksum protects this file itself, so it must be exactly what ``to_text`` writes; any damage then
    shows. The caller detects a truncated file, because the last name of ``order`` is missing.
    """
    path = find_member(folder, NAME)
    raw = read_bytes(path, _MAX_BYTES)
    sums = {name: digest for digest, name in _LINE.findall(raw.decode("ascii", "replace"))}
    if to_text(sums, order).encode() != raw:
        raise FormatError(
            f"{format_path(path)}: expected one line 'SHA-256  name' per file of the model, found other "
            "content; download the model again (or remove this file if you changed the model)"
        )
    return sums


def verify(path: Path, expected: str) -> None:
    """Raise ``ChecksumError`` if a file does not have the expected SHA-256."""
    actual = sha256(path)
    if actual != expected:
        raise ChecksumError(
            f"{format_path(path)}: expected SHA-256 {expected[:16]}…, found {actual[:16]}…; the file is "
            f"damaged or was changed: download it again (or remove {NAME} if you changed the file)"
        )
