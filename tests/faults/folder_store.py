"""An object store of fsspec in a folder, so that its objects survive the process and faults can hit its files.

As in S3, an object appears at once and as a whole. The store replaces that of ``memory://`` in the process.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.registry import register_implementation

UPLOADED = ".upload"  # suffix of objects that are not complete, which only the store sees


class FolderStore(AbstractFileSystem):
    """Keeps the objects of ``memory://bucket`` in a folder."""

    protocol = "memory"
    root = Path()

    def _place(self, path: str) -> Path:
        return self.root / str(self._strip_protocol(path)).lstrip("/")

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return the name, the size and the type of an object."""
        place = self._place(path)
        status = place.stat()
        return {"name": path, "size": status.st_size, "type": "directory" if place.is_dir() else "file"}

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        """List a folder, without incomplete objects."""
        names = sorted(file.name for file in Path(self._place(path)).iterdir() if not file.name.endswith(UPLOADED))
        found = [f"{path.rstrip('/')}/{name}" for name in names]
        return [self.info(name) for name in found] if detail else found

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Return the bytes of an object."""
        return self._place(path).read_bytes()[start:end]

    def get_file(self, rpath: str, lpath: str, **_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Copy an object to a local file."""
        shutil.copyfile(self._place(rpath), lpath)

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Copy a local file to a hidden name, and rename it."""
        place = self._place(rpath)
        place.parent.mkdir(parents=True, exist_ok=True)
        hidden = place.with_name(f".{place.name}.{os.getpid()}{UPLOADED}")
        try:
            shutil.copyfile(lpath, hidden)
            hidden.replace(place)
        except BaseException:
            hidden.unlink(missing_ok=True)
            raise

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy an object."""
        self.put_file(str(self._place(path1)), path2)

    def rm_file(self, path: str) -> None:
        """Remove an object."""
        self._place(path).unlink()


def use_folder_store(root: Path) -> None:
    """Let ``memory://`` be a store in this folder."""
    FolderStore.root = root.absolute()
    FolderStore.clear_instance_cache()
    register_implementation("memory", FolderStore, clobber=True)
