"""A path in, a new HDF5 file to fill out; a full disk ends in an ``OSError``, and in nothing worse."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import h5py


@contextmanager
def new_hdf5(path: Path, *, libver: str | tuple[str, str] = "earliest") -> Iterator[tuple[h5py.File, Shield]]:
    """A file to fill and the shield it is written through.

    By default in the oldest layout, which every HDF5 library since 2008 reads, and our own reader too.
    """
    import h5py

    with path.open("xb+", buffering=0) as raw:
        shield = Shield(raw)
        try:
            with h5py.File(shield, "w", libver=libver) as file:
                yield file, shield
        finally:
            shield.raise_error()


class Shield:
    """A file for HDF5 that seems never to fail.

    When the disk is full, HDF5 can neither finish nor close a file, complains until the process ends, and may
    end it. So the first error is kept here, what is written after it is dropped, and the error is raised at
    the end.
    """

    def __init__(self, raw: io.FileIO) -> None:
        self._raw = raw
        self._error: OSError | None = None
        # HDF5 asks for these by name, and only reads what it has written
        self.seek, self.tell, self.read, self.readinto = raw.seek, raw.tell, raw.read, raw.readinto

    def write(self, data: memoryview) -> int:
        """Write all of it, or keep the error."""
        view = memoryview(data).cast("B")
        try:
            at = 0
            while at < len(view) and self._error is None:
                at += self._raw.write(view[at:]) or 0
        except OSError as error:
            self._error = error
        return len(view)

    def truncate(self, size: int) -> int:
        """Set the file's size, or keep the error."""
        try:
            return self._raw.truncate(size)
        except OSError as error:
            self._error = self._error or error
            return size

    def flush(self) -> None:
        """Nothing is held back."""

    def raise_error(self) -> None:
        """Raise the first error, if there was one."""
        if self._error is not None:
            raise self._error
