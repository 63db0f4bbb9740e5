"""Files in object stores: ``s3://``, ``gs://`` and ``hf://``, and ``memory://`` for tests.

A path is a ``UPath`` of universal-pathlib, which has the names and methods of a ``Path``. Files are accessed with the
functions of this module only. A request that fails is repeated, because object stores fail now and then, and because
methods such as ``UPath.is_file`` treat a failure as a missing file. An object that is written is visible at once and as
a whole. An error is an ``OSError`` with a message of one line.

Credentials come from the environment or the configuration files of each store, never from paths.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from elmo.errors import ConfigError, MissingExtraError, importing_extra

ATTEMPTS = 6  # per request, in addition to those of the library of the store
RETRY_SECONDS = 0.25  # before the second attempt; doubled for each further one
BLOCK_BYTES = 1 << 23  # bytes per read request
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_URL_AS_PATH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # "s3://bucket" as a Path; a drive has one letter
_STORES = {"s3": "s3", "gs": "gs", "hf": "hf", "memory": "hf"}  # and the extra for each
_FINAL: dict[type[OSError], str] = {  # failures that are not temporary, and how they are described
    FileNotFoundError: "no such bucket or file", PermissionError: "Permission denied", IsADirectoryError: "",
    NotADirectoryError: "", FileExistsError: "",
}  # fmt: skip

_T = TypeVar("_T")


def is_url(text: str | os.PathLike[str]) -> bool:
    """Return whether a string is an address such as ``s3://bucket/file``, not the path of a local file."""
    return isinstance(text, str) and _URL.match(text) is not None


def is_remote(path: Any) -> bool:
    """Return whether a path is in an object store."""
    return not isinstance(path, Path) and bool(getattr(path, "protocol", ""))


def parse_path(text: str | Path) -> Path:
    """Return the path of a local file, or of a file in an object store; the latter only looks like a ``Path``."""
    if not isinstance(text, str):
        if _URL_AS_PATH.match(text.as_posix()):
            raise ConfigError(
                f"{text.as_posix()[:200]}: expected a local path; the address of an object store must be a string"
            )
        return text
    match = _URL.match(text)
    if match is None:
        return Path(text)
    protocol, place = match[1], text[match.end() :]
    if protocol not in _STORES:
        raise ConfigError(f"cannot use {protocol}:// paths; use a local path or one of {', '.join(_STORES)}")
    if "@" in place and ":" in place.partition("@")[0]:
        raise ConfigError(f"a {protocol}:// path must not contain a password; use the environment of the store")
    if "//" in place or ".." in place.split("/"):
        raise ConfigError(f"{text[:200]}: the path must not contain // or ..")
    with importing_extra(f"reading and writing {protocol}://", extra=_STORES[protocol]):
        from upath import UPath  # pyright: ignore[reportMissingImports] -- an extra
    try:
        path = UPath(text, use_listings_cache=False)  # listings are kept otherwise, while other processes add files
        path.fs  # noqa: B018 -- imports the library of the store
    except ImportError as error:
        raise MissingExtraError(f"reading and writing {protocol}://", extra=_STORES[protocol]) from error
    except Exception as error:
        raise ConfigError(f"cannot use {text[:200]!r} as a path: {' '.join(str(error).split())[:200]}") from error
    return cast("Path", path)


def _request(function: Callable[[], _T]) -> _T:
    """Send a request; repeat it after a failure that may be temporary."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return function()
        except tuple(_FINAL) as error:
            kind = next(kind for kind in _FINAL if isinstance(error, kind))  # subclasses have other arguments
            raise kind(error.errno or 0, _FINAL[kind] or _describe(error)) from error
        except Exception as error:  # libraries of stores raise many classes
            number = getattr(error, "errno", None) or 0
            if attempt == ATTEMPTS or number == errno.ENOSPC or "Credentials" in type(error).__name__:
                raise OSError(number, _describe(error)) from error
        time.sleep(RETRY_SECONDS * 2 ** (attempt - 1))
    raise AssertionError  # not reached


def _describe(error: BaseException) -> str:
    text = " ".join(str(getattr(error, "strerror", None) or error).split())
    return text[:200] or type(error).__name__


def _store(path: Path) -> tuple[Any, str]:
    """Return the file system of a path, and its name there."""
    place = cast("Any", path)
    return place.fs, place.path


def read_status(path: Path) -> dict[str, Any] | None:
    """Return the description of a file or folder by fsspec; None if there is none."""
    store, name = _store(path)
    try:
        return _request(lambda: store.info(name))
    except FileNotFoundError:
        return None


def is_file(path: Path) -> bool:
    """Return whether a file exists, local or not."""
    if not is_remote(path):
        return path.is_file()
    status = read_status(path)
    return status is not None and status["type"] == "file"


def list_files(text: str) -> list[Path] | None:
    """Return the files of an address, sorted: of a file, a folder or a glob; None if there are none."""
    path = parse_path(text)
    store, name = _store(path)
    status = read_status(path)
    if status is None and re.search(r"[*?\[]", name):
        found = _request(lambda: store.glob(name, detail=True))
        names = sorted(file for file, status in found.items() if status["type"] == "file")
    elif status is None:
        return None
    elif status["type"] == "file":
        return [path]
    else:
        start = len(name.rstrip("/")) + 1
        every = _request(lambda: store.find(name))
        names = sorted(file for file in every if not any(p.startswith(".") for p in file[start:].split("/")))
    return [parse_path(store.unstrip_protocol(file)) for file in names] or None


def list_names(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; an empty list if it does not exist."""
    store, name = _store(folder)
    try:
        return sorted(item.rstrip("/").rpartition("/")[2] for item in _request(lambda: store.ls(name, detail=False)))
    except FileNotFoundError:
        return []


def read_bytes(path: Path, limit: int) -> bytes:
    """Read a file of at most ``limit`` bytes."""
    store, name = _store(path)
    size = _request(lambda: store.info(name))["size"]
    if size > limit:
        raise OSError(0, f"expected at most {limit} bytes, found {size}")
    return _request(lambda: store.cat_file(name))


def open_file(path: Path) -> io.BufferedReader:
    """Open a file for reading from the beginning to the end."""
    return io.BufferedReader(_RemoteStream(path), BLOCK_BYTES)


class _RemoteStream(io.RawIOBase):
    """Reads a file in blocks, each with one request."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._store, self._name = _store(path)
        self._size: int = _request(lambda: self._store.info(self._name))["size"]
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        begin, end = self._position, min(self._position + len(buffer), self._size)
        if begin == end:
            return 0
        data = _request(lambda: self._store.cat_file(self._name, start=begin, end=end))
        if len(data) != end - begin:
            raise OSError(0, "the file has changed while it was read")
        buffer[: len(data)] = data
        self._position = end
        return len(data)


def upload(local: Path, path: Path) -> None:
    """Store a local file."""
    store, name = _store(path)
    _request(lambda: store.put_file(str(local), name))


def upload_folder(local: Path, folder: Path) -> None:
    """Store the files of a local folder, which has no subfolders."""
    for file in sorted(local.iterdir()):
        upload(file, folder / file.name)


def download_folder(folder: Path, local: Path) -> None:
    """Copy the files of a folder, which has no subfolders, to an existing local folder."""
    store, name = _store(folder)
    names = list_names(folder)
    if not names:
        raise FileNotFoundError(0, "no such bucket or file")
    for file in names:
        _request(lambda file=file: store.get_file(f"{name.rstrip('/')}/{file}", str(local / file)))


def remove_file(path: Path) -> None:
    """Remove a file, if it exists."""
    store, name = _store(path)

    def remove() -> None:
        try:
            store.rm_file(name)
        except FileNotFoundError:
            return

    _request(remove)


def remove_folder(folder: Path) -> None:
    """Remove the files of a folder, which has no subfolders."""
    for name in list_names(folder):
        remove_file(folder / name)


def rename(path: Path, target: Path) -> None:
    """Copy a file to another name in the same store, and remove the original."""
    store, name = _store(path)
    _request(lambda: store.cp_file(name, _store(target)[1]))
    remove_file(path)


def local_name(path: Path, suffix: str) -> Path:
    """Return a path in the folder for temporary files that belongs to a remote path and this user."""
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    digest = hashlib.sha256(f"{user} {path}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"elmo-{digest}{suffix}"
