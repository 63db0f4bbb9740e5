"""The path of ``--out`` in, the name of every file that a job may write out."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from elmo.embed.atomic import cannot_write, temporary_name
from elmo.embed.writers import HDF5_SUFFIXES, SUFFIXES
from elmo.errors import OutputError
from elmo.formats.files import names, shown


class OutputFiles:
    """``vectors.npz``: that file, or ``vectors-00000.npz``, …, and ``vectors.npz.manifest.json`` beside it.

    ``vectors.hdf5``: that file; its shards are staged in ``vectors.hdf5.parts/`` until the last is there.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.suffix = out.suffix.lower()
        if self.suffix not in SUFFIXES:
            raise OutputError(
                f"{shown(out)}: expected a name that ends in {', '.join(SUFFIXES)}, found {out.suffix!r}"
            )
        self.is_assembled = self.suffix in HDF5_SUFFIXES
        self.folder = out.parent
        self.manifest = _manifest(out)
        self.lock = out.with_name(f".{out.name}.lock")
        self.shard_folder = out.with_name(f"{out.name}.parts") if self.is_assembled else out.parent
        self.shard_suffix = ".safetensors" if self.is_assembled else out.suffix
        self._prefix = "part" if self.is_assembled else out.stem

    def shard(self, index: int, *, is_only: bool) -> Path:
        """Where a shard goes; ``is_only``: the job has no other."""
        if is_only and not self.is_assembled:
            return self.out
        return self.shard_folder / f"{self._prefix}-{index:05d}{self.shard_suffix}"

    def make_folders(self) -> None:
        """Make the folders that are not there yet."""
        try:
            if self.out.is_dir():
                raise OutputError(f"{shown(self.out)}: expected the name of a file, found a folder")
            self.folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise cannot_write(self.out, error) from error

    def is_known(self) -> bool:
        """Whether a job has begun to write here."""
        return self.manifest.exists() or self.lock.exists()

    def existing(self) -> list[Path]:
        """Files of earlier runs: whole shards and the file asked for itself, the manifest apart."""
        found = [self.shard_folder / name for name in names(self.shard_folder) if self._is_shard(name)]
        return [self.out, *found] if self.out.is_file() else found

    def remove_strays(self, keep: Iterable[Path]) -> None:
        """Remove what killed runs left: temporary files, and whole shards that are not to ``keep``.

        Call it with the lock held.
        """
        kept = set(keep)
        try:
            for path in [*self.existing(), *self._temporaries()]:
                if path not in kept:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise cannot_write(self.out, error) from error

    def remove_parts(self) -> None:
        """Remove the staged shards of a file that has been put together."""
        if self.is_assembled:
            shutil.rmtree(self.shard_folder, ignore_errors=True)

    def _is_shard(self, name: str) -> bool:
        pattern = rf"{re.escape(self._prefix)}-\d{{5,}}{re.escape(self.shard_suffix)}"
        # "a-00000.npz" may be the whole output of another job, which then has a manifest of its own
        return re.fullmatch(pattern, name) is not None and not _manifest(self.shard_folder / name).exists()

    def _temporaries(self) -> list[Path]:
        found = [self.folder / temporary_name(path.name) for path in (self.out, self.manifest)]
        for name in names(self.shard_folder):
            inner = name.removeprefix(".").removesuffix(".part")
            if name == temporary_name(inner) and self._is_shard(inner):
                found.append(self.shard_folder / name)
        return found


def _manifest(out: Path) -> Path:
    return out.with_name(f"{out.name}.manifest.json")
