"""The folder of a whole index in, a place beside it out, where a new one is made that then takes its place.

Until the new index is whole, the old one is as it was, whatever happens: a full disk, Ctrl-C, a kill.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elmo.embed.atomic import cannot_write, locked
from elmo.embed.manifest import read_manifest
from elmo.embed.output_files import OutputFiles
from elmo.errors import DataError, OutputError
from elmo.formats.files import shown, sync
from elmo.lexicon.index import MANIFEST, SHARDS, Index
from elmo.text.source import expand

ANEW = ".anew"  # within the old index's folder: on the same disk, and known to be ours


def is_whole(folder: Path) -> bool:
    """Whether an index is there and can be read."""
    try:
        return len(Index(folder).words) >= 0
    except DataError:
        return False


@contextmanager
def beside(folder: Path, *, inputs: tuple[str, ...]) -> Iterator[Path]:
    """Where to make the new index; on leaving it takes the place of the old, after an error it is gone."""
    place = folder.resolve()
    if any(path != "-" and place in path.resolve().parents for path in expand(inputs)):
        raise OutputError(f"{shown(folder)}: lies among the input, which would then change; put it elsewhere")
    aside = folder / ANEW
    with locked(OutputFiles(folder / SHARDS).lock, subject=folder):
        settle(folder)
        try:
            yield aside
        except OutputError as error:
            _forget(aside)
            raise OutputError(f"{error}; the old index is as it was") from error
        except BaseException:
            _forget(aside)
            raise
        _take_over(aside, folder)


def settle(folder: Path) -> None:
    """Finish what a killed run had all but done, and forget what it had not; call it with the lock held."""
    aside = folder / ANEW
    if (aside / MANIFEST).exists():
        _take_over(aside, folder)
    _forget(aside)


def _take_over(aside: Path, folder: Path) -> None:
    """Move the new files over the old; killed at any instant, it may be done again from its beginning."""
    files = OutputFiles(folder / SHARDS)
    try:
        (folder / MANIFEST).unlink(missing_ok=True)  # so that nobody reads half of each
        for path in sorted(aside.iterdir()):
            if path.name not in (MANIFEST, files.lock.name):  # the lock that is held stays where it is
                path.replace(folder / path.name)
        files.remove_strays(folder / record.file for record in read_manifest(files.manifest).shards)
        sync(folder)
        (aside / MANIFEST).replace(folder / MANIFEST)
        sync(folder)
        _forget(aside)
    except OSError as error:
        raise cannot_write(folder, error) from error


def _forget(aside: Path) -> None:
    shutil.rmtree(aside, ignore_errors=True)
