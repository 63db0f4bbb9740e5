"""Open and read files from unknown sources, with limits.

Models come from untrusted sources: a file in the folder of a model may be a link to a private file, a pipe
that never ends, or a gigabyte of nested brackets. Every reader opens files with the functions of this module.
The checksums in ``SHA256SUMS`` detect damage.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from elmo.errors import ChecksumError, FormatError
from elmo.storage import remote

JSON_LIMIT = 1 << 20  # bytes; the options of published models need at most a hundredth of this
LINES_LIMIT = 1 << 25  # bytes; Python needs up to four times as much memory, if every line has an emoji
MAX_DEPTH = 64  # levels of nested JSON values; Python can parse deeper values than it can print
MAX_LINES = 1 << 20  # Python needs about 200 bytes per word and id; published vocabularies have up to 0.8 million words
_MIN_SPARSE_SIZE = 1 << 26  # bytes; smaller files may be sparse
_SHARED_BLOB = re.compile(r"[0-9a-f]{2}/[0-9a-f]{64}")  # in the part of the Hugging Face cache that models share
RUST_ERROR = re.compile(r"I/O error: (.+) \(os error (\d+)\)")  # how safetensors reports system errors


def user_cache() -> Path:
    """Return the folder of elmo in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "elmo"


def format_path(path: str | Path) -> str:
    """Format a path for a one-line message; a path with unprintable characters is escaped."""
    text = str(path)
    for folder, name in _shown_folders.get():
        if text == folder or text.startswith(folder + os.sep):
            text = name + text[len(folder) :]
    return text if text.isprintable() else repr(text)


_shown_folders: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("shown_folders", default=())


@contextmanager
def show_as(folder: Path, name: Path) -> Iterator[None]:
    """Show a temporary folder under another name in all messages of the ``with`` block."""
    token = _shown_folders.set((*_shown_folders.get(), (str(folder), str(name))))
    try:
        yield
    finally:
        _shown_folders.reset(token)


def format_error(error: BaseException) -> str:
    """Format the message of an error on one line; the message of an ``OSError`` is shown without its path."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if match := RUST_ERROR.search(text):
        text = match[1]
    return " ".join(text.split())[:200] or type(error).__name__


def list_names(folder: Path) -> list[str]:
    """List the names in a folder, sorted; return an empty list if it is not a folder or cannot be read.

    Names that start with ``._`` are left out: macOS stores metadata in such files on other file systems. A folder in an
    object store raises ``OSError`` if it cannot be read.
    """
    if not isinstance(folder, Path):
        return remote.list_names(folder)
    try:
        return sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith("._"))
    except (OSError, ValueError):
        return []


def find_member(folder: Path, name: str) -> Path:
    """Return the path of a regular file in a model's folder; raise ``FormatError`` for anything else.

    ``name`` may contain folders (``variables/variables.index``), but neither it nor a link may leave the
    folder. Links inside a Hugging Face cache (``models--…/snapshots/<revision>/name -> ../../blobs/<hash>``, which may
    be a link to ``blobs/<two digits>/<hash>`` next to ``models--…``) are allowed.
    """
    parts = PurePosixPath(name)
    if not name or "\0" in name or "\\" in name or parts.is_absolute() or ".." in parts.parts:
        raise FormatError(f"{format_path(folder)}: expected the name of a file in this folder, found {name!r:.80}")
    path = folder / parts
    try:
        real, root = path.resolve(strict=True), folder.resolve(strict=True)
        is_regular = stat.S_ISREG(real.stat().st_mode)
    except FileNotFoundError as error:
        raise FormatError(f"{format_path(folder)}: expected a file {format_path(name)}, found none") from error
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a loop of links before Python 3.13
        raise FormatError(f"cannot open {format_path(path)}: {format_error(error)}") from error
    if not is_regular:
        raise FormatError(f"{format_path(path)}: expected a regular file, found a folder, pipe or device")
    if not real.is_relative_to(root) and not _is_hub_blob(real, root):
        raise FormatError(f"{format_path(path)} links to a file outside its folder; copy the file into the folder")
    return path


def _is_hub_blob(real: Path, root: Path) -> bool:
    """Return whether a file is in a ``blobs`` folder of the Hugging Face cache that a model's folder belongs to.

    ``blobs`` itself is never a link in a real cache; in an untrusted folder it could point anywhere.
    """
    for up in root.parents:
        model = up.parent
        if up.name == "snapshots" and model.name.startswith("models--"):
            own, shared = model / "blobs", model.parent / "blobs"
            if real.is_relative_to(own) and not own.is_symlink():
                return True
            if real.is_relative_to(shared) and not shared.is_symlink():
                return _SHARED_BLOB.fullmatch(real.relative_to(shared).as_posix()) is not None
    return False


def open_regular(path: Path, limit: int | None = None) -> io.BufferedReader:
    """Open a regular file of at most ``limit`` bytes for reading; raise ``FormatError`` for anything else.

    Large sparse files are rejected too: their zeros take no disk space, but they would fill memory.
    """
    try:
        # without O_NONBLOCK, opening a pipe would wait for a writer forever
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        raise FormatError(f"cannot open {format_path(path)}: {format_error(error)}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(f"{format_path(path)}: expected a regular file, found a folder, pipe or device")
        if limit is not None and status.st_size > limit:
            raise FormatError(f"{format_path(path)}: expected at most {limit} bytes, found {status.st_size}")
        if status.st_size > _MIN_SPARSE_SIZE and _is_sparse(descriptor, status.st_size):
            raise FormatError(
                f"{format_path(path)} has {status.st_size} bytes, but most were never written; download it again"
            )
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _is_sparse(descriptor: int, size: int) -> bool:
    """Return whether most of a file was never written to disk, as in an unfinished download or an attack."""
    if not hasattr(os, "SEEK_HOLE"):
        return False
    position = filled = 0
    for _ in range(4096):
        try:
            begin = os.lseek(descriptor, position, os.SEEK_DATA)
            position = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError:  # no data after this position
            position = size
            break
        filled += position - begin
        if position >= size:
            break
    os.lseek(descriptor, 0, os.SEEK_SET)
    return filled < position // 64


class BoundedReads:
    """A file object for ``zipfile`` that rejects single reads of more than ``limit`` bytes.

    ``zipfile`` reads the whole directory of an archive at once. The place where a zip file declares the size
    of its directory depends on the reader (there are two records, and Python versions differ in where they
    look for the second), so the read itself is bounded, not the declared size.
    """

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file, self._limit = file, limit
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, n_bytes: int = -1) -> bytes:
        """Read at most ``n_bytes``; without a number, at most the limit."""
        if n_bytes > self._limit:
            raise FormatError(f"zip directory must have at most {self._limit} bytes; found {n_bytes}")
        return self._file.read(n_bytes if n_bytes >= 0 else self._limit)


def read_bytes(path: Path, limit: int) -> bytes:
    """Read a regular file of at most ``limit`` bytes."""
    if not isinstance(path, Path):
        try:
            return remote.read_bytes(path, limit)
        except OSError as error:
            raise FormatError(f"cannot read {format_path(path)}: {format_error(error)}") from error
    with open_regular(path, limit) as file:
        try:
            # request the size of the file, not the limit: Python allocates as many bytes as are requested
            return file.read(min(limit, os.fstat(file.fileno()).st_size))
        except OSError as error:
            raise FormatError(f"cannot read {format_path(path)}: {format_error(error)}") from error


def read_text(path: Path, limit: int) -> str:
    """Read a UTF-8 file of at most ``limit`` bytes."""
    return _decode(read_bytes(path, limit), path)


def read_json(path: Path, limit: int = JSON_LIMIT) -> Any:
    """Read a JSON file of at most ``limit`` bytes.

    NaN, infinities and repeated keys with different values are rejected.
    """
    text = _decode(read_bytes(path, limit).removeprefix(b"\xef\xbb\xbf"), path)
    try:
        value = json.loads(
            text, object_pairs_hook=_reject_duplicate_keys, parse_constant=_parse_finite, parse_float=_parse_finite
        )
    except RecursionError as error:
        raise FormatError(f"{format_path(path)}: not valid JSON: too many nested brackets") from error
    except ValueError as error:
        raise FormatError(f"{format_path(path)}: not valid JSON: {format_error(error)}") from error
    if _is_deeper(value, MAX_DEPTH):
        raise FormatError(f"{format_path(path)}: expected JSON with at most {MAX_DEPTH} levels of nesting, found more")
    return value


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values and values[key] != value:
            raise ValueError(f"key {key!r:.40} occurs twice with different values")
        values[key] = value
    return values


def _parse_finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"number {digits[:20]} is not finite")
    return value


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        below = (item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list))
        level = [inner for items in below for inner in items]
    return bool(level)


def read_lines(path: Path, limit: int = LINES_LIMIT, *, max_lines: int = MAX_LINES) -> list[str]:
    r"""Read the lines of a UTF-8 file of at most ``limit`` bytes, split only at ``\n``."""
    data = read_bytes(path, limit)
    n_lines = data.count(b"\n") + (data[-1:] not in (b"", b"\n"))
    if n_lines > max_lines:
        raise FormatError(f"{format_path(path)}: expected at most {max_lines} lines, found {n_lines}")
    try:
        # line by line: with a single emoji, Python stores four bytes for every character of a string
        return [line.removesuffix(b"\n").decode("utf-8") for line in io.BytesIO(data)]
    except UnicodeDecodeError:
        _decode(data, path)  # raises an error with the line number
        raise


def _decode(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError(
            f"{format_path(path)}: expected UTF-8, found byte 0x{data[error.start]:02x} in line {line}, "
            f"at offset {error.start}"
        ) from error


# SHA256SUMS: the checksums of a model folder, in the format of sha256sum

CHECKSUMS_NAME = "SHA256SUMS"
_CHECKSUM_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9_.]+)\n")
_MAX_CHECKSUM_BYTES = 1 << 14


def compute_sha256(path: Path) -> str:
    """Compute the SHA-256 of a file, in hexadecimal."""
    try:
        with open_regular(path) if isinstance(path, Path) else remote.open_file(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FormatError(f"cannot read {format_path(path)}: {format_error(error)}") from error


def format_checksums(sums: Mapping[str, str], order: Sequence[str]) -> str:
    """Return the content of a ``SHA256SUMS`` file, with one line per name in ``order``."""
    return "".join(f"{sums[name]}  {name}\n" for name in order if name in sums)


def read_checksums(folder: Path, order: Sequence[str]) -> dict[str, str]:
    """Read the SHA-256 of each file that ``SHA256SUMS`` lists.

    No checksum protects ``SHA256SUMS`` itself, so its content must be exactly what ``format_checksums`` writes.
    The caller detects a truncated file, because the last name of ``order`` is missing.
    """
    path = find_member(folder, CHECKSUMS_NAME)
    raw = read_bytes(path, _MAX_CHECKSUM_BYTES)
    sums = {name: digest for digest, name in _CHECKSUM_LINE.findall(raw.decode("ascii", "replace"))}
    if format_checksums(sums, order).encode() != raw:
        raise FormatError(
            f"{format_path(path)}: expected one line 'SHA-256  name' per file of the model, found other "
            "content; download the model again (or remove this file if you changed the model)"
        )
    return sums


def verify_checksum(path: Path, expected: str) -> None:
    """Raise ``ChecksumError`` if a file does not have the expected SHA-256."""
    compare_checksums(path, actual=compute_sha256(path), expected=expected)


def compare_checksums(path: Path, *, actual: str, expected: str) -> None:
    """Raise ``ChecksumError`` if the SHA-256 of a file, which the caller has computed, is not the expected one."""
    if actual != expected:
        raise ChecksumError(
            f"{format_path(path)}: expected SHA-256 {expected[:16]}…, found {actual[:16]}…; the file is "
            f"damaged or was changed: download it again (or remove {CHECKSUMS_NAME} if you changed the file)"
        )
