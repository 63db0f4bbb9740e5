"""The folder of downloaded models.

The layout, for a model ``nlpl/166``::

    nlpl/166/166.zip           complete files; a file has its name only if its checksum is right
    nlpl/166.json              sizes and SHA-256 of its files, from the first download; kept if the files are removed
    nlpl/.166.unfinished/      unfinished files, which the next download continues
    nlpl/.166.lock             locked while a process downloads
    by-hand/nlpl/166/          files that the user has put there
    by-hand/nlpl/166.json      their sizes and SHA-256, from the first use

Every use of a model verifies its checksums.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from elmo.catalog.models import CatalogModel, find_model, get_model
from elmo.errors import ChecksumError, FormatError, OutputError
from elmo.storage.atomic import LockedError, atomic_file, check_own, hold_lock, make_folder
from elmo.storage.files import compute_sha256, format_path, read_json, user_cache

VARIABLE = "ELMO_DOWNLOADS"
_BY_HAND = "by-hand"
_MAX_FILES = 1000  # that the user may add by hand for one model
_UNFINISHED = (".crdownload", ".part", ".partial", ".download", ".tmp", ".opdownload")  # of browsers
_FORMAT_VERSION = 1
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileRecord:
    """Size and SHA-256 of a file, as remembered from its first download or use."""

    size: int
    sha256: str


@dataclass(frozen=True)
class ModelFiles:
    """The verified files of a model.

    Args:
        model: The entry of the table.
        folder: The folder that contains them.
        names: Their names below the folder.
        is_by_hand: Whether the user has put them there.
    """

    model: CatalogModel
    folder: Path
    names: tuple[str, ...]
    is_by_hand: bool = False


@dataclass(frozen=True)
class CachedModel:
    """A model in the cache.

    Args:
        name: Name of the model.
        folder: Folder with its files.
        state: Whether all files are there, a download is unfinished, or the files were added by hand.
        n_files: Number of files.
        n_bytes: Their size, including unfinished files.
    """

    name: str
    folder: Path
    state: str
    n_files: int
    n_bytes: int


def cache_folder() -> Path:
    """Return the folder of downloaded models: ELMO_DOWNLOADS, or elmo/models in the user's cache folder.

    Example:
        >>> cache_folder().name
        'models'
    """
    chosen = os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else user_cache() / "models"


class ModelCache:
    """The places of one model in the cache."""

    def __init__(self, model: CatalogModel) -> None:
        self.model = model
        self.root = cache_folder()
        self.folder = self.root / model.name
        self.record = self.folder.with_name(f"{self.folder.name}.json")
        self.unfinished = self.folder.with_name(f".{self.folder.name}.unfinished")
        self.by_hand = self.root / _BY_HAND / model.name
        self.by_hand_record = self.by_hand.with_name(f"{self.by_hand.name}.json")

    @contextmanager
    def locked(self, *, is_waiting: bool = True) -> Iterator[None]:
        """Hold the lock of the model; wait while another process holds it, or raise ``LockedError``."""
        make_folder(self.folder.parent)
        with hold_lock(self.folder.with_name(f".{self.folder.name}.lock"), subject=self.folder, is_waiting=is_waiting):
            yield

    def find(self) -> ModelFiles | None:
        """Return the files of the model if all are there; raise ``ChecksumError`` if one was changed."""
        try:
            return self._find_by_hand() or self._find_downloaded()
        except FileNotFoundError:  # another process has just removed a file
            return None

    def _find_downloaded(self) -> ModelFiles | None:
        names, known = tuple(file.name for file in self.model.files), self.read_record()
        if not names or not all(self.has_file(name, known) for name in names):
            return None
        for name in names:
            self.verify_cached(name, known)
        return ModelFiles(self.model, self.folder, names)

    def has_file(self, name: str, known: Mapping[str, FileRecord]) -> bool:
        """Return whether a file was downloaded; one without a remembered checksum, or a link, was not."""
        path = self.folder / name
        return name in known and path.is_file() and not path.is_symlink()

    def verify_cached(self, name: str, known: Mapping[str, FileRecord]) -> None:
        """Raise ``ChecksumError`` if a downloaded file was changed."""
        hint = f"to download it again, run 'elmo cache --remove {self.model.name}'"
        self.verify(self.folder / name, known[name], hint=hint)

    def _find_by_hand(self) -> ModelFiles | None:
        paths = sorted(
            path for path in self.by_hand.rglob("*") if path.is_file() and not _is_hidden(path, self.by_hand)
        )
        if not paths:
            return None
        if len(paths) > _MAX_FILES:
            raise FormatError(f"{format_path(self.by_hand)}: expected at most {_MAX_FILES} files, found {len(paths)}")
        for path in paths:
            if path.name.lower().endswith(_UNFINISHED):
                raise FormatError(f"{format_path(path)}: this download is not finished; wait for it, or remove it")
        names = tuple(path.relative_to(self.by_hand).as_posix() for path in paths)
        known = read_record(self.by_hand_record) or self.read_record()
        published = {file.name: file.checksum for file in self.model.files if file.checksum}
        hint = f"replace the file, or run 'elmo cache --forget {self.model.name}' if you trust the new one"
        records = {}
        for name, path in zip(names, paths, strict=True):
            records[name] = self.verify(path, known.get(name), published=published.get(path.name), hint=hint)
        if records != read_record(self.by_hand_record):
            try:
                write_record(self.by_hand_record, self.model, records)
            except OutputError as error:  # a cache that others maintain
                logger.debug("cannot remember the checksums: %s", error)
        return ModelFiles(self.model, self.by_hand, names, is_by_hand=True)

    def verify(
        self, path: Path, known: FileRecord | None, *, published: str | None = None, hint: str = ""
    ) -> FileRecord:
        """Raise ``ChecksumError`` if a file is not the expected one; return its size and SHA-256."""
        record, problem = check_file(path, known, published=published)
        if problem is not None:
            raise ChecksumError(f"{format_path(path)}: {problem}; {hint}")
        return record

    def read_record(self) -> dict[str, FileRecord]:
        """Read the checksums of the downloaded files."""
        return read_record(self.record)


def check_file(path: Path, known: FileRecord | None, *, published: str | None) -> tuple[FileRecord, str | None]:
    """Compare a file with the remembered checksum, or else with the published one, such as "sha1:…".

    Returns its size and SHA-256, and the problem, if there is one. Raises ``FileNotFoundError`` if the file is gone.
    """
    size = path.stat().st_size
    try:
        record = FileRecord(size, compute_sha256(path))
    except FormatError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise error.__cause__ from error
        raise
    if known is not None:
        if record == known:
            return record, None
        return record, (
            f"expected {known.size:,} bytes with SHA-256 {known.sha256[:16]}…, as at the first use, found "
            f"{record.size:,} bytes with {record.sha256[:16]}…"
        )
    if published is None:
        return record, None
    algorithm, _, expected = published.partition(":")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    if digest == expected:
        return record, None
    return record, f"expected the published {algorithm} {expected[:16]}…, found {digest[:16]}…"


def read_record(path: Path) -> dict[str, FileRecord]:
    """Read sizes and checksums; return an empty dict if there is no such file."""
    if not path.is_file():
        return {}
    values = read_json(path)
    try:
        if values["format_version"] != _FORMAT_VERSION:
            raise FormatError(f"{format_path(path)} was written by another version of elmo; remove it")
        return {name: FileRecord(int(file["size"]), str(file["sha256"])) for name, file in values["files"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{format_path(path)}: expected sizes and checksums of files; remove this file") from error


def write_record(path: Path, model: CatalogModel, records: Mapping[str, FileRecord]) -> None:
    """Write sizes and checksums."""
    files = {name: {"size": record.size, "sha256": record.sha256} for name, record in sorted(records.items())}
    values = {"format_version": _FORMAT_VERSION, "model": model.name, "files": files}
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


# --- the whole cache -----------------------------------------------------------------------------


def list_cached() -> list[CachedModel]:
    """List the models in the cache, by name.

    Example:
        >>> list_cached()  # nothing was downloaded yet
        []
    """
    found = []
    for model in _models_with_files():
        cache = ModelCache(model)
        for folder, is_by_hand in ((cache.folder, False), (cache.by_hand, True)):
            sizes = _file_sizes(folder)
            unfinished = [] if is_by_hand else _file_sizes(cache.unfinished)
            if not sizes and not unfinished:
                continue
            is_complete = all((folder / file.name).is_file() for file in model.files)
            state = "by hand" if is_by_hand else "complete" if is_complete else "unfinished"
            found.append(CachedModel(model.name, folder, state, len(sizes), sum(sizes) + sum(unfinished)))
    return sorted(found, key=lambda cached: (cached.name, cached.state))


def _file_sizes(folder: Path) -> list[int]:
    """List the sizes of the files below a folder; files that another process removes meanwhile are left out."""
    sizes = []
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                sizes.append(Path(path, name).stat().st_size)
    return sizes


def _models_with_files() -> list[CatalogModel]:
    root = cache_folder()
    names: set[str] = set()
    for top in (root, root / _BY_HAND):
        for folder in top.glob("*/*"):
            if folder.is_dir():
                name = folder.name.removeprefix(".").removesuffix(".unfinished")
                names.add(f"{folder.parent.name}/{name}")
    return [model for name in sorted(names) if (model := find_model(name)) is not None]


def remove_cached(names: Sequence[str], *, forget: bool = False, unfinished_only: bool = False) -> int:
    """Remove models from the cache, and return how many bytes were freed.

    Files that the user has added by hand are kept. If there is nothing to remove, a warning says why. Unfinished
    downloads that continue in another process are kept; with ``unfinished_only=False``, they are an ``OutputError``.

    Args:
        names: Names of the models.
        forget: Also forget the checksums, to accept other files from the publisher.
        unfinished_only: Remove unfinished downloads only.

    Example:
        >>> remove_cached(["allenai/transformer-elmo"])  # it was not downloaded
        0
    """
    n_bytes = 0
    for model in [get_model(name) for name in names]:
        cache = ModelCache(model)
        folders = (cache.unfinished,) if unfinished_only else (cache.folder, cache.unfinished)
        records = (cache.record, cache.by_hand_record) if forget else ()
        if not any(os.path.lexists(path) for path in (*folders, *records)):
            if not unfinished_only:
                logger.warning("%s", _why_nothing_is_removed(cache))
            continue
        try:
            with cache.locked(is_waiting=False):
                check_own(cache.record)
                for folder in folders:
                    n_bytes += sum(_file_sizes(folder))
                    _remove_folder(folder)
                for record in records:
                    record.unlink(missing_ok=True)
        except LockedError as error:
            if not unfinished_only:
                raise OutputError(f"cannot remove {model.name}: another process is downloading it") from error
            logger.warning("%s is kept: another process is downloading it", model.name)
    return n_bytes


def forget_by_hand(model: CatalogModel) -> None:
    """Forget the checksums of files that the user has added, so that other files are accepted."""
    with suppress(OSError):  # a cache that others maintain
        ModelCache(model).by_hand_record.unlink(missing_ok=True)


def _why_nothing_is_removed(cache: ModelCache) -> str:
    if _file_sizes(cache.by_hand):
        return f"{cache.model.name} was added by hand; remove its files yourself: {format_path(cache.by_hand)}"
    return f"{cache.model.name} is not in the cache {format_path(cache.root)}"


def _remove_folder(folder: Path) -> None:
    if folder.is_symlink():
        raise OutputError(f"cannot remove {format_path(folder)}: it is a link; remove it yourself")
    try:
        if folder.is_dir():
            shutil.rmtree(folder)
    except FileNotFoundError:  # removed by hand meanwhile
        logger.debug("%s was removed by another process", folder)
    except OSError as error:
        raise OutputError(f"cannot remove {format_path(folder)}: {error.strerror}") from error
