"""The place of a corpus in, a folder to fill out, which stands there once it is whole; leftovers are removed.

::

    .corpus.lock    held by the one process that builds
    .corpus.part    the new corpus, while it is filled
    .corpus.old     the one it takes the place of, until that is done

A kill can come between any two steps. What it leaves beside the place is cleared away by whoever opens the
corpus or builds it next, so nothing of it stays even when the corpus itself turns out to be finished.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from elmo.embed.atomic import cannot_write, locked
from elmo.errors import OutputError
from elmo.formats.files import shown, sync
from elmo.train.corpus_folder import FILES, MANIFEST


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``folder`` on leaving, if it has a manifest; else it is gone.

    Only one process fills it at a time, so its name is always the same and a killed run leaves one at most.
    """
    temporary, old, lock = _beside(folder)
    made = [parent for parent in folder.parents if not parent.exists()]  # innermost first
    is_done = False
    try:
        _refuse_other_files(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock, subject=folder):
            try:
                _settle(folder)
                temporary.mkdir()
                yield temporary
                if (temporary / MANIFEST).is_file():
                    _move(temporary, folder, old)
                is_done = True
            finally:
                _remove(temporary, old)
    except OSError as error:
        raise cannot_write(folder, error) from error
    finally:
        if not is_done:
            for parent in made:
                with suppress(OSError):
                    parent.rmdir()


def tidy(folder: Path) -> None:
    """Clear away what a killed build left beside ``folder``; what a living one has there is not touched."""
    *_, lock = beside = _beside(folder)
    if any(path.exists() for path in beside):
        # a build is at work, or nobody may write here: a corpus can be read all the same
        with suppress(OutputError, OSError):
            _refuse_other_files(folder)
            with locked(lock, subject=folder):
                _settle(folder)


def _beside(folder: Path) -> tuple[Path, Path, Path]:
    temporary, old, lock = (folder.with_name(f".{folder.name}.{kind}") for kind in ("part", "old", "lock"))
    return temporary, old, lock


def _settle(folder: Path) -> None:
    """Finish a move that was cut short, and remove what else is left; for the holder of the lock only."""
    temporary, old, _ = _beside(folder)
    if old.exists() and not folder.exists() and (temporary / MANIFEST).is_file():
        temporary.rename(folder)  # it was whole before the old one made way for it
        sync(folder.parent)
    _remove(temporary, old)


def _remove(*folders: Path) -> None:
    for left in folders:
        shutil.rmtree(left, ignore_errors=True)


def _refuse_other_files(folder: Path) -> None:
    """Nothing may be lost in the place of a corpus but an older corpus."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise OutputError(f"{shown(folder)}: expected a folder for the corpus, found something else")
    strange = sorted({path.name for path in folder.iterdir()} - {*FILES, MANIFEST}) if folder.exists() else []
    if strange:
        raise OutputError(
            f"{shown(folder)}: expected a corpus or a new folder, found {shown(strange[0])}; name another"
        )


def _move(temporary: Path, folder: Path, old: Path) -> None:
    with (temporary / MANIFEST).open("rb") as file:
        os.fsync(file.fileno())
    sync(temporary)
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    sync(folder.parent)
