"""A path in; a file that is there whole or not at all, or a lock that dies with its process, out."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from elmo.errors import OutputError
from elmo.storage.files import cannot_write, shown, sync

__all__ = ["cannot_write", "locked", "replacing", "temporary_name"]


def temporary_name(name: str) -> str:
    """Where a file is written before it is whole: always the same name, so that a killed run leaves one."""
    return f".{name}.part"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to, which becomes ``path`` on leaving; after an error nothing is left of it.

    Only the holder of an output's lock writes there, so the temporary file needs no random name.
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


@contextmanager
def locked(path: Path, *, subject: Path) -> Iterator[int]:
    """Hold a lock file; ``OutputError`` when another process holds it.

    What it gives is the descriptor, by which children may share the lock. The system drops the lock when its
    last holder ends, however it ends. The file is removed on leaving; a
    killed process leaves it behind, which hinders nobody.
    """
    descriptor = _lock(path, subject)
    try:
        yield descriptor
    finally:
        if os.name != "nt":
            path.unlink(missing_ok=True)  # before the lock is gone: nobody else can hold this file
        os.close(descriptor)
        if os.name == "nt":
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _lock(path: Path, subject: Path) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        except OSError as error:
            raise cannot_write(subject, error) from error
        try:
            _try_lock(descriptor)
            found = os.fstat(descriptor)
            with suppress(FileNotFoundError):
                # its last holder may have removed the file between our opening and locking it
                if os.path.samestat(found, path.stat()):
                    return descriptor
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                raise OutputError(
                    f"{shown(subject)}: another process is writing this output; wait for it, or name another"
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
