"""Check outputs before the work starts, write files and folders atomically, and hold locks.

A reader never sees a half-written output: data is written to a temporary name, synced to disk and renamed.

The folder that the user names may be a link. Below it, and for names that are derived from it (``OUT.training``,
``OUT.parts``, locks, logs), links are never followed, and files of other users are never changed: somebody else may
have put them there, and their targets are not outputs. ``atomic_file``, ``atomic_folder``, ``hold_lock``,
``make_folder`` and ``open_for_append`` are the only ways to write.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from elmo.errors import OutputError
from elmo.storage import remote
from elmo.storage.files import RUST_ERROR, format_error, format_path, list_names


def check_output_file(
    path: Path, *, suffixes: Collection[str] = (), inputs: Iterable[str | Path] = (), overwrite: bool = True
) -> None:
    """Check that a file can be written; call this before the work starts.

    Args:
        path: The output file.
        suffixes: Allowed suffixes, in lower case; if empty, any suffix is allowed.
        inputs: Input files, which the output must not replace. ``-`` (stdin) is ignored.
        overwrite: Whether an existing file may be replaced.
    """
    name = format_path(path)
    if suffixes and path.suffix.lower() not in suffixes:
        raise OutputError(f"the output name must end in {' or '.join(suffixes)}; found {name}")
    if path.is_dir():
        raise OutputError(f"{name}: expected a file name, found a folder")
    parents = path.absolute().parents
    nearest = next((parent for parent in parents if parent.exists() or parent.is_symlink()), None)
    if nearest is not None and not nearest.is_dir():
        problem = "is a broken link" if nearest.is_symlink() else "is a file, not a folder"
        raise OutputError(f"cannot write {name}: {format_path(nearest)} {problem}")
    if path.resolve() in (Path(source).resolve() for source in inputs if source != "-"):
        raise OutputError(f"{name} is one of the inputs; choose another output")
    if path.exists() and not overwrite:
        raise OutputError(f"{name} already exists; pass --overwrite to replace it, or choose another name")


def check_output_folder(folder: Path) -> None:
    """Check that a folder is new or empty; call this before the work starts."""
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise OutputError(f"{format_path(folder)} already exists; choose a new folder, or remove it first")


def make_parents(path: Path) -> None:
    """Create the parent folders of an output file; call this only after all checks have passed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise cannot_write(path, error) from error


def make_folder(folder: Path) -> None:
    """Create a folder that belongs to an output, and its parents; an existing one must not be a link or another user's.

    Use it for folders whose names the user has not chosen.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_own(folder)
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except (OSError, ValueError) as error:
        raise cannot_write(folder, error) from error


def check_own(path: Path) -> None:
    """Raise ``OutputError`` if a path is a link, or belongs neither to the user nor to the owner of its folder."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode):
        raise OutputError(f"cannot write {format_path(path)}: it is a link; remove it, or choose another output")
    _check_owner(path, status)


def _check_owner(path: Path, status: os.stat_result) -> None:
    if os.name == "nt" or status.st_uid in (os.geteuid(), path.parent.stat().st_uid):
        return
    raise OutputError(f"cannot write {format_path(path)}: it belongs to another user; choose another output")


def open_for_append(path: Path) -> BinaryIO:
    """Open a file of an output to add bytes at its end; create it if it does not exist."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    check_own(path)
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    try:
        status = os.fstat(descriptor)
        _check_owner(path, status)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:  # with two names, it is also another file
            kind = "has a second name (a hard link)" if stat.S_ISREG(status.st_mode) else "is not a regular file"
            raise OutputError(f"cannot write {format_path(path)}: it {kind}; remove it, or choose another output")
        return os.fdopen(descriptor, "ab+")
    except BaseException:
        os.close(descriptor)
        raise


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; at the end, that file replaces ``path``, or is removed after an error.

    The temporary name is fixed, so processes that may write the same output must use ``hold_lock``. The file gets the
    permissions of a new file, also if a library restricts them. If ``path`` is in an object store, the temporary file
    is local, and is stored at the end.
    """
    if not isinstance(path, Path):
        try:
            with temporary_folder("elmo-upload-", subject=f"write {format_path(path)}") as folder:
                yield folder / path.name
                remote.upload(folder / path.name, path)
        except OSError as error:
            raise cannot_write(path, error) from error
        return
    temporary = path.with_name(temporary_name(path.name))
    try:
        temporary.unlink(missing_ok=True)
        mode = _probe_mode(temporary)
        if path.exists() and not path.is_symlink():  # a link is replaced, its target stays
            check_own(path)
        yield temporary
        _check_written(temporary, mode)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _probe_mode(temporary: Path) -> int:
    """Return the permissions of a new file in this folder, without leaving one there."""
    if not temporary.parent.is_dir():
        return 0  # a writer creates the folder
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        return stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)


def _check_written(file: Path, mode: int) -> None:
    """Check that a written file is not a link, and give it these permissions unless they are 0."""
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise OutputError(f"cannot write {format_path(file)}: another process has replaced it")
    if mode and os.name != "nt" and stat.S_IMODE(status.st_mode) != mode:
        file.chmod(mode)


def temporary_name(name: str) -> str:
    """Return the temporary name of a file while it is written; a fixed name, so killed runs leave at most one."""
    return f".{name}.part"


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty temporary folder; at the end, it is renamed to ``folder``, or removed after an error.

    ``folder`` must be new or empty. Temporary folders of killed processes are removed first.
    """
    try:
        check_output_folder(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{folder.name[:40]}."
        _remove_abandoned(folder.parent, prefix)
        temporary = folder.parent / f"{prefix}{secrets.token_hex(4)}.part"
        temporary.mkdir()
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot create the folder {format_path(folder)}: {format_error(error)}") from error
    lock = _lock_folder(temporary)
    try:
        mode = temporary.stat().st_mode & 0o666
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
            if not path.is_dir():
                _check_written(path, mode)
            sync(path)
        temporary.rename(folder)
        sync(folder.parent)
    except OSError as error:
        raise cannot_write(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # after a success it no longer exists
        if lock is not None:
            os.close(lock)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove temporary folders of killed processes; a running process holds a lock on its folder."""
    for name in list_names(parent):
        if name.startswith(prefix) and re.fullmatch(r"[0-9a-f]{8}\.part", name[len(prefix) :]):
            lock = _lock_folder(parent / name)
            if lock is not None:
                shutil.rmtree(parent / name, ignore_errors=True)
                os.close(lock)


_STALE_SECONDS = 60  # a younger folder may not be locked yet


@contextmanager
def temporary_folder(prefix: str, *, subject: str, parent: Path | None = None) -> Iterator[Path]:
    """Yield a new temporary folder; it is removed at the end.

    A killed process cannot remove its folder. The next process of the same user that needs one does: a process holds a
    lock on its folder while it lives.

    Args:
        prefix: Start of the name; all folders with this prefix belong to this function.
        subject: What the folder is for, for messages.
        parent: Folder that contains it. Default: the system's folder for temporary files.
    """
    import tempfile

    try:
        parent = parent or Path(tempfile.gettempdir())
        _remove_stale(parent, prefix)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    except OSError as error:
        raise OutputError(f"cannot {subject}: cannot create a temporary folder: {format_error(error)}") from error
    lock = _lock_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _remove_stale(parent: Path, prefix: str) -> None:
    """Remove the temporary folders that killed processes of this user have left."""
    if os.name == "nt":
        return  # folders cannot be locked there
    for name in list_names(parent):
        if not name.startswith(prefix):
            continue
        folder = parent / name
        with suppress(OSError):
            status = folder.lstat()
            is_stale = time.time() - status.st_mtime > _STALE_SECONDS
            if is_stale and status.st_uid == os.geteuid() and (lock := _lock_folder(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _lock_folder(folder: Path) -> int | None:
    """Lock a folder until the returned descriptor is closed; return None if it is locked or cannot be locked."""
    if os.name == "nt":
        return None  # Windows cannot open folders
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        _try_lock(descriptor)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


class LockedError(OutputError):
    """Another process holds the lock."""


@contextmanager
def hold_lock(path: Path, *, subject: Path, is_waiting: bool = False) -> Iterator[int]:
    """Hold the lock on a lock file; raise ``LockedError`` if another process holds it.

    The operating system releases the lock when the last process that holds it exits, for any reason. A killed
    process leaves the file behind, which is harmless.

    Args:
        path: The lock file. It is removed at the end.
        subject: The output that the lock protects, for messages.
        is_waiting: Whether to wait for the other process instead.

    Yields:
        The file descriptor; child processes that inherit it share the lock.
    """
    descriptor = _open_locked(path, subject, is_waiting=is_waiting)
    try:
        yield descriptor
    finally:
        if os.name != "nt":
            path.unlink(missing_ok=True)  # while the lock is held, so that no other process can lock this file
        os.close(descriptor)
        if os.name == "nt":
            with suppress(OSError):
                path.unlink(missing_ok=True)


_WAIT_SECONDS = 0.1  # between two attempts to get a lock


def _open_locked(path: Path, subject: Path, *, is_waiting: bool) -> int:
    while True:
        try:
            check_own(path)
            flags = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
        except OSError as error:
            raise cannot_write(subject, error) from error
        try:
            _try_lock(descriptor)
            with suppress(FileNotFoundError):
                # the previous holder may have removed the file between our open and our lock; then try again
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                if is_waiting:
                    time.sleep(_WAIT_SECONDS)
                    continue
                raise LockedError(
                    f"{format_path(subject)}: another process is writing this output; "
                    "wait until it finishes, or choose another output"
                ) from error
            raise cannot_write(subject, error) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _try_lock(descriptor: int) -> None:
    if os.name == "nt":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sync(path: Path) -> None:
    """Flush a file or folder to the disk, so that a power failure after the rename does not lose it."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open folders
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(path: Path, error: BaseException) -> OutputError:
    """Return the ``OutputError`` for a failed write, in one line."""
    number = getattr(error, "errno", None)
    if match := RUST_ERROR.search(str(error)):
        number = int(match[2])
    hint = "; free some disk space and try again" if number == errno.ENOSPC else ""
    return OutputError(f"cannot write {format_path(path)}: {format_error(error)}{hint}")
