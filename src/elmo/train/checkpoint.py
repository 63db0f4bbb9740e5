"""A training run's whole state in, a folder that outlives any crash out; and back, to the bit.

``checkpoints/step-000001200/`` holds safetensors files, ``progress.json`` and ``SHA256SUMS``. It is written
beside its place, handed to the disk, and renamed; older ones go only when it stands. So whatever happens,
the newest folder whose checksums hold is a state to go on from.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo.embed.atomic import replacing, temporary_name
from elmo.errors import FormatError, OutputError
from elmo.formats import checksums, files

if TYPE_CHECKING:
    from torch import Tensor

_STEP = re.compile(r"step-(\d{9})")
_BEST = "best.json"
_PROGRESS = "progress.json"
_SUFFIX = ".safetensors"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """Everything that a run needs to go on as if it had never stopped."""

    tensors: Mapping[str, Mapping[str, Tensor]]  # by file ("weights", "optimiser", …), then by name
    progress: Mapping[str, Any]  # counters, data position: JSON values


class Checkpoints:
    """The checkpoints of one run: the last ``keep`` and the best."""

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        self.folder = folder
        self.keep = max(keep, 1)

    def save(self, snapshot: Snapshot, *, step: int, is_best: bool = False) -> Path:
        """Write a checkpoint, whole or not at all, and let the ones that are too old go."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        place = self.folder / f"step-{step:09d}"
        with files.new_folder(place) as new:
            for name, tensors in snapshot.tensors.items():
                detached = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
                try:
                    save_file(detached, new / f"{name}{_SUFFIX}")
                except SafetensorError as error:  # what the library makes of a full disk
                    raise OutputError(
                        f"{files.shown(place)}: cannot be written: {files.reason(error)}"
                    ) from error
            text = json.dumps(dict(snapshot.progress), indent=1, sort_keys=True)
            (new / _PROGRESS).write_text(text + "\n", encoding="utf-8")
            names = sorted(path.name for path in new.iterdir())
            sums = {name: checksums.sha256(new / name) for name in names}
            (new / checksums.NAME).write_text(checksums.to_text(sums, names), encoding="ascii")
        if is_best:
            with replacing(self.folder / _BEST) as temporary:
                temporary.write_text(json.dumps({"step": step}) + "\n", encoding="ascii")
        self._forget_old()
        return place

    def latest(self) -> tuple[int, Snapshot] | None:
        """The newest checkpoint that is whole, with its step; None when there is none."""
        for step in reversed(self.steps()):
            try:
                return step, self.load(step)
            except FormatError as error:
                _log.warning("%s; going back to the checkpoint before it", error)
        return None

    def best(self) -> int | None:
        """The step of the best checkpoint so far."""
        path = self.folder / _BEST
        if not path.is_file():
            return None
        found = files.read_json(path)
        step = found.get("step") if isinstance(found, dict) else None
        return step if isinstance(step, int) and step in self.steps() else None

    def steps(self) -> list[int]:
        """The steps of all checkpoints, rising."""
        found = (_STEP.fullmatch(name) for name in files.names(self.folder))
        return sorted(int(match[1]) for match in found if match)

    def load(self, step: int) -> Snapshot:
        """Read one checkpoint; ``FormatError`` when a byte of it is not as it was written."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        place = self.folder / f"step-{step:09d}"
        names = sorted(name for name in files.names(place) if name != checksums.NAME)
        sums = checksums.read(place, names)
        missing = [name for name in {_PROGRESS, *names} if name not in sums]
        if missing:
            raise FormatError(
                f"{files.shown(place)}: expected {missing[0]} among its {checksums.NAME}, found none"
            )
        for name, expected in sums.items():
            checksums.verify(files.member(place, name), expected)
        try:
            tensors = {
                name.removesuffix(_SUFFIX): load_file(place / name)
                for name in names
                if name.endswith(_SUFFIX)
            }
        except SafetensorError as error:
            raise FormatError(f"{files.shown(place)}: {error}") from error
        return Snapshot(tensors, files.read_json(place / _PROGRESS))

    def remove_strays(self) -> None:
        """Remove what a killed run left half-written or half-removed."""
        for name in files.names(self.folder):
            if name.startswith(".") and name.endswith(".part"):
                path = self.folder / name
                shutil.rmtree(path, ignore_errors=True)
                path.unlink(missing_ok=True)

    def _forget_old(self) -> None:
        best = self.best()
        for step in self.steps()[: -self.keep]:
            if step != best:
                # Renamed first: a folder that lost only some of its files must not look like a checkpoint.
                place = self.folder / f"step-{step:09d}"
                gone = place.with_name(temporary_name(place.name))
                try:
                    place.rename(gone)
                except OSError as error:
                    raise OutputError(f"{files.shown(place)}: cannot be removed: {error.strerror}") from error
                shutil.rmtree(gone, ignore_errors=True)
