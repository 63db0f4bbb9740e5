"""Download the files of published models.

Each file is tried at its addresses, one after the other. It gets its final name when it is complete and its checksum is
the one that the publisher states, or the one of the first download; the first download of a file without a published
checksum is trusted if its first bytes fit its name. One process downloads a model at a time; the others wait for it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from elmo.catalog.cache import FileRecord, ModelCache, ModelFiles, check_file, write_record
from elmo.catalog.models import CatalogFile, CatalogModel, get_model
from elmo.errors import ChecksumError, ConfigError, DownloadError, FormatError, OutputError
from elmo.storage.atomic import cannot_write, make_folder, sync
from elmo.storage.files import format_path

MAX_GB = 8.0  # the largest published archives have about 4 GB
MIRROR_VARIABLE = "ELMO_MIRROR"
_OFFLINE_VARIABLES = ("ELMO_OFFLINE", "HF_HUB_OFFLINE")
_LOG_SECONDS = 10.0  # between two log lines about progress
logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int | None], None]  # name of the file, bytes so far, size if known


def download_model(name: str | CatalogModel, *, max_gb: float = MAX_GB, progress: Progress | None = None) -> ModelFiles:
    """Download the files of a published model, or find them in the cache, and verify their checksums.

    A download that was interrupted continues. Nothing is downloaded if ELMO_OFFLINE or HF_HUB_OFFLINE is set. With
    ELMO_MIRROR, all files are downloaded from this address, as ``ELMO_MIRROR/name of the model/name of the file``.

    Args:
        name: Name of the model, or the model itself.
        max_gb: Largest size of a file in GB.
        progress: Called with the name of a file, the number of bytes so far and its size. Default: show a progress bar
            if stderr is a terminal, otherwise log the progress.

    Example:
        >>> download_model("allenai/small").folder  # doctest: +SKIP
    """
    model = get_model(name) if isinstance(name, str) else name
    if not 0 < max_gb < 1e6:
        raise ConfigError(f"max_gb must be above 0; found {max_gb!r:.40}")
    if model.unsupported is not None:
        raise FormatError(describe_unsupported(model))
    if model.hub is not None:
        raise ConfigError(f"{model.name} is on the Hugging Face Hub; load it as hf:{model.hub}")
    cache = ModelCache(model)
    if (files := cache.find()) is not None:
        return files
    if not model.files:
        raise DownloadError(f"{model.name} cannot be downloaded: {describe_by_hand(model)}")
    if (variable := offline_variable()) is not None:
        raise DownloadError(
            f"{model.name} is not in the cache {format_path(cache.root)}, and {variable} is set; unset it to download "
            f"the model, or put its files into {format_path(cache.by_hand)}"
        )
    with cache.locked():
        if (files := cache.find()) is not None:  # another process has downloaded it
            return files
        with _shown(progress) as report:
            return _download(model, cache, max_bytes=int(max_gb * 1e9), progress=report)


def offline_variable() -> str | None:
    """Return the environment variable that forbids downloads, if one is set."""
    for variable in _OFFLINE_VARIABLES:
        if os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE"):
            return variable
    return None


def describe_by_hand(model: CatalogModel) -> str:
    """Return what the user has to fetch, and where to put it; create this folder if possible."""
    what = model.by_hand or f"{', '.join(file.name for file in model.files)} from another place"
    folder = ModelCache(model).by_hand
    with suppress(OutputError):
        make_folder(folder)
    return f"fetch {what}, and put it into {format_path(folder)}"


def describe_unsupported(model: CatalogModel) -> str:
    """Return why a model cannot be loaded, and which one to load instead."""
    hint = f"; load {model.same_as}, which has the same weights" if model.same_as else ""
    return f"{model.name} is {model.unsupported}, which elmo cannot read{hint}"


def _download(model: CatalogModel, cache: ModelCache, *, max_bytes: int, progress: Progress) -> ModelFiles:
    from elmo.catalog import transfer  # imports urllib, which is slow

    for folder in (cache.folder, cache.unfinished):
        make_folder(folder)
    logger.info("downloading %s to %s", model.name, format_path(cache.folder))
    records = cache.read_record()
    for file in model.files:
        if cache.has_file(file.name, records):
            cache.verify_cached(file.name, records)
            continue
        target, partial = cache.folder / file.name, cache.unfinished / file.name
        record = _fetch(model, file, partial, known=records.get(file.name), max_bytes=max_bytes, progress=progress)
        if record != records.get(file.name):
            records = {**records, file.name: record}
            write_record(cache.record, model, records)
        try:
            partial.replace(target)
            transfer.remove_unfinished(partial)
            sync(target.parent)
        except OSError as error:
            raise cannot_write(target, error) from error
    try:
        cache.unfinished.rmdir()
    except OSError:  # it contains files of an earlier version of the table
        logger.debug("kept %s", cache.unfinished)
    return ModelFiles(model, cache.folder, tuple(file.name for file in model.files))


def _fetch(
    model: CatalogModel,
    file: CatalogFile,
    partial: Path,
    *,
    known: FileRecord | None,
    max_bytes: int,
    progress: Progress,
) -> FileRecord:
    """Fetch one file from the first address that provides it, and return its size and SHA-256."""
    from elmo.catalog import transfer

    problems: list[str] = []
    changed: list[str] = []
    for url in _addresses(model, file):
        host = "://".join(urlsplit(url)[:2])
        for is_continued in (partial.is_file(), False):
            try:
                transfer.fetch(url, partial, max_bytes=max_bytes, report=lambda n, size: progress(file.name, n, size))
            except DownloadError as error:
                problems.append(f"{host}: {error}")
                break
            record, problem = check_file(partial, known, published=file.checksum)
            has_checksum = known is not None or file.checksum is not None
            wrong = None if has_checksum else _content_problem(partial, file.name)
            if problem is None and wrong is None:
                return record
            transfer.remove_unfinished(partial)
            if not is_continued:  # otherwise, download it again from its beginning
                (changed if wrong is None else problems).append(f"{host}: {wrong or problem}")
                break
    what = f"{model.name}: cannot download {file.name}: {'; '.join([*problems, *changed])}"
    if changed and known is not None:
        raise ChecksumError(
            f"{what}; the file has changed on the server; if you trust the new one, run "
            f"'elmo cache --forget {model.name}'"
        )
    if changed:
        raise ChecksumError(f"{what}; the server sends another file than the one that was published")
    raise DownloadError(f"{what}; try again later, or {describe_by_hand(model)}")


_MAGIC = {
    (".zip",): b"PK",
    (".gz", ".tgz"): b"\x1f\x8b",
    (".bz2", ".tbz2", ".tbz"): b"BZh",
    (".xz", ".txz"): b"\xfd7zXZ\x00",
    (".hdf5", ".h5"): b"\x89HDF\r\n\x1a\n",
}  # the first bytes of files, by the ends of their names
_MAX_JSON = 1 << 24  # bytes; larger files are not checked


def _content_problem(path: Path, name: str) -> str | None:
    """Return why a file cannot be what its name says, for a file whose checksum is not known yet."""
    size = path.stat().st_size
    if size == 0:
        return "the server sends an empty file"
    for suffixes, magic in _MAGIC.items():
        if name.lower().endswith(suffixes):
            with path.open("rb") as file:
                found = file.read(len(magic))
            return None if found == magic else f"expected a {suffixes[0]} file, found one that starts with {found!r}"
    if name.lower().endswith(".json") and size <= _MAX_JSON:
        try:
            json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            return "expected a JSON file, found something else"
    return None


def _addresses(model: CatalogModel, file: CatalogFile) -> tuple[str, ...]:
    """Return the addresses of a file, or that of the user's mirror."""
    from elmo.catalog import transfer

    mirror = os.environ.get(MIRROR_VARIABLE)
    if not mirror:
        return file.urls
    if not transfer.is_http(mirror):
        raise ConfigError(
            f"{MIRROR_VARIABLE} must be an address that starts with http:// or https://; found {mirror!r:.80}"
        )
    return (f"{mirror.rstrip('/')}/{model.name}/{file.name}",)


# --- progress ------------------------------------------------------------------------------------


@contextmanager
def _shown(progress: Progress | None) -> Iterator[Progress]:
    """Yield a function that shows the progress: ``progress`` itself, a bar on a terminal, or log lines."""
    if progress is not None:
        yield progress
    elif sys.stderr.isatty() and logger.isEnabledFor(logging.WARNING):
        with _show_bars() as show:
            yield show
    else:
        yield _LogProgress()


class _LogProgress:
    """Logs how much of a file has arrived, every ``_LOG_SECONDS`` seconds."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, name: str, n_bytes: int, size: int | None) -> None:
        now = time.monotonic()
        if now - self._last >= _LOG_SECONDS:
            self._last = now
            total = "" if size is None else f" of {size / 1e6:,.0f}"
            logger.info("%s: %s%s MB", name, f"{n_bytes / 1e6:,.0f}", total)


@contextmanager
def _show_bars() -> Iterator[Progress]:
    from rich import progress as rich_progress
    from rich.console import Console

    bars = rich_progress.Progress(
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(),
        rich_progress.TransferSpeedColumn(),
        rich_progress.TimeRemainingColumn(),
        console=Console(stderr=True),  # stdout is for results
        redirect_stdout=False,
    )
    tasks: dict[str, rich_progress.TaskID] = {}
    with bars:

        def show(name: str, n_bytes: int, size: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=size)
            bars.update(tasks[name], completed=n_bytes, total=size)

        yield show
