"""A model's folder and a file name in; a safe path, JSON values or lines out; and folders written whole.

A model may come from anybody: a member of its folder may be a link to a secret, a pipe that never ends, or
a gigabyte of brackets. Every reader opens its files by these functions.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from elmo.errors import FormatError, OutputError

JSON_LIMIT = 1 << 20  # bytes; the options of every published model fit a hundred times over
LINES_LIMIT = 1 << 25  # bytes; Python takes up to four times as many, should each line hold an emoji
MAX_DEPTH = 64  # of JSON brackets; what Python reads it may still fail to print
MAX_LINES = 1 << 20  # Python takes some 200 bytes for a word and its id; the published have 0.8 million
_FREE_HOLES = 1 << 26  # bytes of a file that need not be on disk
_RUST_ERROR = re.compile(r"I/O error: (.+) \(os error (\d+)\)")  # what safetensors makes of the system's own


def shown(path: str | Path) -> str:
    """A path as an error message shows it: on one line, whatever its name holds."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def reason(error: BaseException) -> str:
    """An error of the system or of a library, on one line and without the path that we name ourselves."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if found := _RUST_ERROR.search(text):
        text = found[1]
    return " ".join(text.split())[:200] or type(error).__name__


def cannot_write(path: Path, error: BaseException) -> OutputError:
    """The error of a library or of the system as one line of ours."""
    number = getattr(error, "errno", None)
    if found := _RUST_ERROR.search(str(error)):
        number = int(found[2])
    rest = "; free some space and run it again" if number == errno.ENOSPC else ""
    return OutputError(f"{shown(path)}: cannot be written: {reason(error)}{rest}")


def check_parents(path: Path) -> None:
    """Refuse, before work begins, a file whose folders cannot be made because something else is there."""
    parents = path.absolute().parents
    nearest = next((parent for parent in parents if parent.exists() or parent.is_symlink()), None)
    if nearest is not None and not nearest.is_dir():
        what = "leads nowhere" if nearest.is_symlink() else "is a file"
        raise OutputError(f"{shown(path)}: expected a folder, but {shown(nearest)} {what}")


def make_parents(path: Path) -> None:
    """Make the folders that an output lies in; done as it is written, so that most refusals leave none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise cannot_write(path, error) from error


def names(folder: Path) -> list[str]:
    """Names of a folder's members, sorted; none when it is no folder or cannot be read.

    ``._name`` is left out: macOS keeps its own notes on a file there, on disks that are not its own.
    """
    try:
        return sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith("._"))
    except (OSError, ValueError):
        return []


def member(folder: Path, name: str) -> Path:
    """The path of a regular file of a model's folder; ``FormatError`` for anything else.

    ``name`` may hold folders (``variables/variables.index``) but not lead out, and neither may links. The
    links of a Hugging Face cache, ``models--…/snapshots/<revision>/name -> ../../blobs/<hash>``, are its
    usual layout.
    """
    parts = PurePosixPath(name)
    if not name or "\0" in name or "\\" in name or parts.is_absolute() or ".." in parts.parts:
        raise FormatError(f"{shown(folder)}: expected the name of a file in this folder, found {name!r:.80}")
    path = folder / parts
    try:
        real, root = path.resolve(strict=True), folder.resolve(strict=True)
        is_regular = stat.S_ISREG(real.stat().st_mode)
    except FileNotFoundError as error:
        raise FormatError(f"{shown(folder)}: expected a file {shown(name)}, found none") from error
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a loop of links, in older Pythons
        raise FormatError(f"{shown(path)}: cannot be opened: {reason(error)}") from error
    if not is_regular:
        raise FormatError(f"{shown(path)}: expected a regular file, found a folder, pipe or device")
    if not any(real.is_relative_to(allowed) for allowed in (root, *_hub_blobs(root))):
        raise FormatError(f"{shown(path)}: is a link out of the model's folder; put the file itself there")
    return path


def open_regular(path: Path, limit: int | None = None) -> BinaryIO:
    """Open a regular file of at most ``limit`` bytes for reading; ``FormatError`` for anything else.

    A large file that is nearly all a hole is refused too: its zeros cost its author nothing, but us memory.
    """
    try:
        # without O_NONBLOCK, opening a pipe waits for a writer for ever
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        raise FormatError(f"{shown(path)}: cannot be opened: {reason(error)}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise FormatError(f"{shown(path)}: expected a regular file, found a folder, pipe or device")
        if limit is not None and found.st_size > limit:
            raise FormatError(f"{shown(path)}: expected at most {limit} bytes, found {found.st_size}")
        if found.st_size > _FREE_HOLES and _is_hollow(descriptor, found.st_size):
            raise FormatError(
                f"{shown(path)}: has {found.st_size} bytes, but most were never written: download it again"
            )
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, limit: int) -> bytes:
    """All of a regular file of at most ``limit`` bytes."""
    with open_regular(path, limit) as file:
        try:
            # no more than it had when its size was checked; to ask for the limit would have Python take it
            return file.read(min(limit, os.fstat(file.fileno()).st_size))
        except OSError as error:
            raise FormatError(f"{shown(path)}: cannot be read: {reason(error)}") from error


def read_json(path: Path, limit: int = JSON_LIMIT) -> Any:
    """The value of a JSON file of at most ``limit`` bytes.

    NaN, infinities and a key that stands twice with different values are no JSON that one can rely on.
    """
    text = _decoded(read_bytes(path, limit).removeprefix(b"\xef\xbb\xbf"), path)
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite_float
        )
    except RecursionError as error:
        raise FormatError(f"{shown(path)}: expected JSON, found brackets nested too deep") from error
    except ValueError as error:
        raise FormatError(f"{shown(path)}: expected JSON, found an error: {reason(error)}") from error
    if _is_deeper(value, MAX_DEPTH):
        raise FormatError(f"{shown(path)}: expected JSON, found brackets nested deeper than {MAX_DEPTH}")
    return value


def read_lines(path: Path, limit: int = LINES_LIMIT, *, max_lines: int = MAX_LINES) -> list[str]:
    r"""The lines of a UTF-8 file of at most ``limit`` bytes, split at ``\n`` and at nothing else."""
    data = read_bytes(path, limit)
    n_lines = data.count(b"\n") + (data[-1:] not in (b"", b"\n"))
    if n_lines > max_lines:
        raise FormatError(f"{shown(path)}: expected at most {max_lines} lines, found {n_lines}")
    try:
        # one by one: a single emoji would have Python take four bytes for every letter of the file
        return [line.removesuffix(b"\n").decode("utf-8") for line in io.BytesIO(data)]
    except UnicodeDecodeError:
        _decoded(data, path)  # says where
        raise


def refuse_what_is_there(folder: Path) -> None:
    """``OutputError`` where ``new_folder`` would refuse: to be asked before hours of work."""
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise OutputError(f"{shown(folder)}: exists already; name a new folder, or remove it first")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``folder`` on leaving, whole or not at all.

    ``OutputError`` when something stands there already, an empty folder apart. What a killed process left of
    an earlier try is removed.
    """
    try:
        refuse_what_is_there(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        begin = f".{folder.name[:40]}."
        _remove_dead(folder.parent, begin)
        temporary = folder.parent / f"{begin}{secrets.token_hex(4)}.part"
        temporary.mkdir()
    except (OSError, ValueError) as error:
        raise OutputError(f"{shown(folder)}: cannot be made: {reason(error)}") from error
    lock = _locked(temporary)
    try:
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
            sync(path)
        temporary.rename(folder)
        sync(folder.parent)
    except OSError as error:
        raise cannot_write(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # gone already when all went well
        if lock is not None:
            os.close(lock)


def _remove_dead(parent: Path, begin: str) -> None:
    """Remove what killed processes left of such folders; a living one holds a lock on its own."""
    for name in names(parent):
        if name.startswith(begin) and re.fullmatch(r"[0-9a-f]{8}\.part", name[len(begin) :]):
            lock = _locked(parent / name)
            if lock is not None:
                shutil.rmtree(parent / name, ignore_errors=True)
                os.close(lock)


def _locked(folder: Path) -> int | None:
    """A lock on a folder, which the system drops when its process ends; None when there can be none."""
    if os.name == "nt":
        return None  # Windows opens no folders
    import fcntl

    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held by its owner, or a disk that knows no locks
        os.close(descriptor)
        return None
    return descriptor


def _is_hollow(descriptor: int, size: int) -> bool:
    """Whether next to nothing of a file is on disk: a download just begun, or a bomb."""
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


def _hub_blobs(root: Path) -> list[Path]:
    """Where links may point from a folder, resolved, of the Hugging Face cache; nowhere for any other.

    ``blobs`` itself is never a link there; in a stranger's folder of that layout it could lead anywhere.
    """
    repositories = [up.parent for up in root.parents if up.name == "snapshots"]
    blobs = [path / "blobs" for path in repositories if path.name.startswith("models--")]
    return [path for path in blobs if not path.is_symlink()]


def _decoded(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError(
            f"{shown(path)}: expected UTF-8, found byte 0x{data[error.start]:02x} in line {line}, "
            f"at offset {error.start} of the file"
        ) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values and values[key] != value:
            raise ValueError(f"key {key!r:.40} stands twice with different values")
        values[key] = value
    return values


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        below = (
            item.values() if isinstance(item, dict) else item
            for item in level
            if isinstance(item, dict | list)
        )
        level = [inner for items in below for inner in items]
    return bool(level)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"number {digits[:20]} is too large")
    return value


def sync(path: Path) -> None:
    """Hand a file or folder to the disk, so that a power cut after the rename cannot lose it."""
    if path.is_dir() and os.name == "nt":
        return  # Windows opens no folders
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
