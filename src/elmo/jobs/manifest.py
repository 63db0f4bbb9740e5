"""The files of a job on disk: their names, and the manifest that lists the complete shards.

The manifest is a JSON file next to the output. It is replaced atomically after each shard. Shards that it does
not list are incomplete and are written again. It contains no dates or machine names, so that two runs of the
same job write the same bytes.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from elmo.errors import DataError, ElmoError, OutputError
from elmo.jobs.writers import HDF5_SUFFIXES, SUFFIXES
from elmo.storage import remote
from elmo.storage.atomic import atomic_file, cannot_write, check_own, temporary_name
from elmo.storage.files import compute_sha256, format_path, list_names, read_json

VERSION = 1
_MAX_BYTES = 1 << 28  # about a million shards
_SPLIT_HINTS = {"true": "add --split", "false": "add --no-split", "null": "leave out --split and --no-split"}
_SHA256 = re.compile(r"[0-9a-f]{64}")


class OutputFiles:
    """Names of all files that a job may write.

    A job with the output ``vectors.npz`` writes that file if there is one shard, or ``vectors-00000.npz``,
    ``vectors-00001.npz``, … if there are several, and ``vectors.npz.manifest.json``. A job with the output
    ``vectors.hdf5`` first writes its shards to the folder ``vectors.hdf5.parts`` and then assembles the file.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.suffix = out.suffix.lower()
        if self.suffix not in SUFFIXES:
            raise OutputError(
                f"{format_path(out)}: the file name must end in {', '.join(SUFFIXES)}; found {out.suffix!r}"
            )
        self.is_assembled = self.suffix in HDF5_SUFFIXES
        self.is_remote = remote.is_remote(out)
        if self.is_remote and self.is_assembled:
            others = ", ".join(suffix for suffix in SUFFIXES if suffix not in HDF5_SUFFIXES)
            raise OutputError(f"{format_path(out)}: in an object store, the file name must end in {others}")
        self.folder = out.parent
        self.manifest = _manifest_path(out)
        self.lock = remote.local_name(out, ".lock") if self.is_remote else out.with_name(f".{out.name}.lock")
        self.shard_folder = out.with_name(f"{out.name}.parts") if self.is_assembled else out.parent
        self.shard_suffix = ".safetensors" if self.is_assembled else out.suffix
        self._prefix = "part" if self.is_assembled else out.stem

    def shard(self, index: int, *, is_only: bool) -> Path:
        """Return the path of a shard; ``is_only`` means that the job has one shard."""
        if is_only and not self.is_assembled:
            return self.out
        return self.shard_folder / f"{self._prefix}-{index:05d}{self.shard_suffix}"

    def make_folders(self) -> None:
        """Create the folder of the output if it does not exist; an object store has no folders."""
        if self.is_remote:
            return
        try:
            if self.out.is_dir():
                raise OutputError(f"{format_path(self.out)}: the output must be a file; found a folder")
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.is_assembled:
                check_own(self.shard_folder)
        except (OSError, ValueError) as error:
            raise cannot_write(self.out, error) from error

    def is_known(self) -> bool:
        """Return whether a job has started to write this output."""
        return self.has_manifest() or self.lock.exists()

    def has_manifest(self) -> bool:
        """Return whether there is a manifest."""
        return self._is_file(self.manifest)

    def has_shard(self, path: Path, sha256: str) -> bool:
        """Return whether a file exists and has this SHA-256."""
        return self._is_file(path) and compute_sha256(path) == sha256

    def _is_file(self, path: Path) -> bool:
        try:
            return remote.is_file(path)
        except OSError as error:
            raise cannot_write(path, error) from error

    def existing(self) -> list[Path]:
        """Return the files of earlier runs that exist: the output and complete shards, but not the manifest."""
        names = self._names()
        shards = [self.shard_folder / name for name in sorted(names) if self._is_shard(name, names)]
        return [self.out, *shards] if self._is_file(self.out) else shards

    def remove_strays(self, keep: Iterable[Path]) -> None:
        """Remove temporary files and shards of earlier runs, except ``keep``; the caller must hold the lock."""
        kept = set(keep)
        try:
            for path in [*self.existing(), *self._temporaries()]:
                if path not in kept:
                    self.remove(path)
        except OSError as error:
            raise cannot_write(self.out, error) from error

    def remove(self, path: Path) -> None:
        """Remove a file, if it exists."""
        if self.is_remote:
            remote.remove_file(path)
        else:
            path.unlink(missing_ok=True)

    def rename(self, path: Path, target: Path) -> None:
        """Give a file another name."""
        if self.is_remote:
            remote.rename(path, target)
        else:
            path.replace(target)

    def remove_parts(self) -> None:
        """Remove the shards that an HDF5 file was assembled from."""
        if self.is_assembled:
            shutil.rmtree(self.shard_folder, ignore_errors=True)

    def _names(self) -> frozenset[str]:
        try:
            return frozenset(list_names(self.shard_folder))
        except OSError as error:
            raise cannot_write(self.out, error) from error

    def _is_shard(self, name: str, names: frozenset[str]) -> bool:
        # at most seven digits: eight are a date, in files that are not ours
        pattern = rf"{re.escape(self._prefix)}-(?:\d{{5}}|[1-9]\d{{5,6}}){re.escape(self.shard_suffix)}"
        # a file such as "a-00000.npz" can also be the output of another job, which then has a manifest
        is_output = _manifest_path(Path(name)).name in names
        return re.fullmatch(pattern, name) is not None and not is_output

    def _temporaries(self) -> list[Path]:
        if self.is_remote:
            return []  # an object is stored as a whole
        paths = [self.folder / temporary_name(path.name) for path in (self.out, self.manifest)]
        names = self._names()
        for name in sorted(names):
            inner = name.removeprefix(".").removesuffix(".part")
            if name == temporary_name(inner) and self._is_shard(inner, names):
                paths.append(self.shard_folder / name)
        return paths


def _manifest_path(out: Path) -> Path:
    return out.with_name(f"{out.name}.manifest.json")


@dataclass(frozen=True)
class ShardRecord:
    """The entry of a complete shard in the manifest.

    Attributes:
        file: File name of the shard, in the folder of the output (for HDF5, in the folder ``OUT.parts``).
        sha256: SHA-256 of the file.
        first: Index of the first sentence.
        sentences: Number of sentences.
        tokens: Number of tokens.
        input: SHA-256 of all sentences of the job up to the end of this shard.
    """

    file: str
    sha256: str
    first: int
    sentences: int
    tokens: int
    input: str


@dataclass(frozen=True)
class Manifest:
    """The options of a job and its complete shards.

    Attributes:
        out: Name of the output file.
        model: Fingerprint of the model.
        options: All options that change the bytes of the output.
        shards: The complete shards.
        is_complete: Whether the job is finished.
        sha256: SHA-256 of the output, if it was assembled from the shards.
    """

    out: str
    model: str
    options: dict[str, Any]
    shards: tuple[ShardRecord, ...] = ()
    is_complete: bool = False
    sha256: str | None = None

    def write(self, path: Path) -> None:
        """Replace the manifest at ``path`` atomically."""
        values = {"version": VERSION, **asdict(self)}
        with atomic_file(path) as temporary:
            temporary.write_text(json.dumps(values, indent=1) + "\n", encoding="ascii")

    def differences(self, other: Manifest) -> list[str]:
        """Describe each option that differs in the manifest of another run."""
        differences = ["the model"] if self.model != other.model else []
        for name in sorted(self.options.keys() | other.options.keys()):
            before, now = (json.dumps(options.get(name)) for options in (self.options, other.options))
            if before != now:
                hint = f"; {_SPLIT_HINTS[before]}" if name == "split" and before in _SPLIT_HINTS else ""
                differences.append(f"{name.replace('_', ' ')} (was {before[:80]}, now {now[:80]}{hint})")
        return differences


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest; raise ``DataError`` if the file is damaged or not a manifest."""
    subject = format_path(path)
    try:
        values = read_json(path, _MAX_BYTES)
    except ElmoError as error:
        raise DataError(str(error)) from error
    if not isinstance(values, dict) or values.pop("version", None) != VERSION:
        raise DataError(f"cannot read {subject}: it is not the manifest of an embedding job (version {VERSION})")
    types = {"out": str, "model": str, "options": dict, "shards": list, "is_complete": bool, "sha256": str | None}
    if values.keys() != types.keys() or not all(isinstance(values[name], types[name]) for name in types):
        raise DataError(f"{subject}: a manifest must have the keys {', '.join(types)}; found {', '.join(values)[:80]}")
    values["shards"] = shards = tuple(_read_record(shard, subject) for shard in values["shards"])
    checksums = [shard.sha256 for shard in shards] + [values["sha256"] or "0" * 64]
    file_names = [shard.file for shard in shards] + [values["out"]]
    if not all(map(_SHA256.fullmatch, checksums)) or not all(map(_is_plain_name, file_names)):
        raise DataError(
            f"{subject}: each file must have a plain name without a folder and a SHA-256; found other values"
        )
    n_sentences = 0
    for shard in shards:
        if shard.first != n_sentences or shard.sentences < 0 or shard.tokens < 0:
            raise DataError(
                f"{subject}: a shard must have first = {n_sentences} and counts of at least 0; "
                f"found first = {shard.first}, sentences = {shard.sentences}, tokens = {shard.tokens}"
            )
        n_sentences += shard.sentences
    return Manifest(**values)


def _read_record(values: Any, subject: str) -> ShardRecord:
    types = {field.name: int if field.type == "int" else str for field in fields(ShardRecord)}
    if not isinstance(values, dict) or {name: type(value) for name, value in values.items()} != types:
        raise DataError(f"{subject}: a shard must have the keys {', '.join(types)}; found {str(values)[:80]}")
    return ShardRecord(**values)


def _is_plain_name(name: str) -> bool:
    """Return whether a file name has no folder part."""
    return name not in ("", ".", "..") and "\0" not in name and Path(name).name == name
