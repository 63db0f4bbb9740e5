"""Check outputs before the work starts, write files and folders atomically, and hold locks.

A reader never sees a half-written output: data is written to a temporary name, synced to disk and renamed.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from elmo.errors import OutputError
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


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; at the end, that file replaces ``path``, or is removed after an error.

    The temporary name is fixed, so processes that may write the same output must use ``hold_lock``.
    """
    temporary = path.with_name(temporary_name(path.name))
    try:
        temporary.unlink(missing_ok=True)
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


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
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
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


@contextmanager
def hold_lock(path: Path, *, subject: Path) -> Iterator[int]:
    """Hold the lock on a lock file; raise ``OutputError`` if another process holds it.

    The operating system releases the lock when the last process that holds it exits, for any reason. A killed
    process leaves the file behind, which is harmless.

    Args:
        path: The lock file. It is removed at the end.
        subject: The output that the lock protects, for messages.

    Yields:
        The file descriptor; child processes that inherit it share the lock.
    """
    descriptor = _open_locked(path, subject)
    try:
        yield descriptor
    finally:
        if os.name != "nt":
            path.unlink(missing_ok=True)  # while the lock is held, so that no other process can lock this file
        os.close(descriptor)
        if os.name == "nt":
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _open_locked(path: Path, subject: Path) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
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
                raise OutputError(
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
