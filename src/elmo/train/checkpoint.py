"""A training run's whole state in, a folder that outlives any crash out; and back, to the bit.

``checkpoints/step-000001200/`` holds safetensors files, ``progress.json``, ``best.json`` and ``SHA256SUMS``.
It is written beside its place, handed to the disk, and renamed; older ones go only when it stands. So
whatever happens, the newest folder whose checksums hold is a state to go on from. It also tells which
checkpoint was the best until then: no crash can come between the two.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo.errors import FormatError, OutputError
from elmo.storage import atomic, checksums, files
from elmo.storage.atomic import temporary_name

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

        place = self._place(step)
        self._make_way(step)
        best = step if is_best else self._best_at([before for before in self.steps() if before < step])
        with atomic.atomic_folder(place) as new:
            for name, tensors in snapshot.tensors.items():
                try:
                    save_file(_apart(tensors), new / f"{name}{_SUFFIX}")
                except SafetensorError as error:  # what the library makes of a full disk
                    raise atomic.cannot_write(place, error) from error
            for name, values in ((_PROGRESS, dict(snapshot.progress)), (_BEST, {"step": best})):
                text = json.dumps(values, indent=1, sort_keys=True) + "\n"
                (new / name).write_text(text, encoding="utf-8")
            names = sorted(path.name for path in new.iterdir())
            sums = {name: checksums.sha256(new / name) for name in names}
            (new / checksums.NAME).write_text(checksums.to_text(sums, names), encoding="ascii")
        self._forget_old(step, best)
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
        return self._best_at(self.steps())

    def steps(self) -> list[int]:
        """The steps of all checkpoints, rising."""
        found = (_STEP.fullmatch(name) for name in files.list_names(self.folder))
        return sorted(int(match[1]) for match in found if match)

    def load(self, step: int) -> Snapshot:
        """Read one checkpoint; ``FormatError`` when a byte of it is not as it was written."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        place = self._place(step)
        sums = _sums(place)
        for name, expected in sums.items():
            checksums.verify(files.find_member(place, name), expected)
        try:
            tensors = {
                name.removesuffix(_SUFFIX): load_file(place / name) for name in sums if name.endswith(_SUFFIX)
            }
        except SafetensorError as error:
            raise FormatError(f"{files.format_path(place)}: {error}") from error
        return Snapshot(tensors, files.read_json(place / _PROGRESS))

    def remove_strays(self) -> None:
        """Remove what a killed run left half-written or half-removed."""
        for name in files.list_names(self.folder):
            if name.startswith(".") and name.endswith(".part"):
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def _place(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}"

    def _best_at(self, steps: Sequence[int]) -> int | None:
        """What the newest of these checkpoints that can be read tells of the best one."""
        for step in reversed(steps):
            place = self._place(step)
            try:
                sums = _sums(place)
                checksums.verify(files.find_member(place, _BEST), sums.get(_BEST, ""))
                best = files.read_json(place / _BEST)["step"]
            except FormatError:
                continue
            return best if best in steps else None
        return None

    def _make_way(self, step: int) -> None:
        """Remove a damaged checkpoint that stands where the run, gone back for its sake, has come again."""
        if step not in self.steps():
            return
        try:
            self.load(step)
        except FormatError:
            self._remove(step)

    def _forget_old(self, step: int, best: int | None) -> None:
        # A newer one is damaged, and stays until the run comes there again: somebody may want to look at it.
        for old in [old for old in self.steps() if old <= step][: -self.keep]:
            if old != best:
                self._remove(old)

    def _remove(self, step: int) -> None:
        # Renamed first: a folder that lost only some of its files must not look like a checkpoint.
        place = self._place(step)
        gone = place.with_name(temporary_name(place.name))
        try:
            place.rename(gone)
        except OSError as error:
            raise OutputError(f"{files.format_path(place)}: cannot be removed: {error.strerror}") from error
        shutil.rmtree(gone, ignore_errors=True)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that can be written: safetensors refuses those that share memory, such as tied weights."""
    apart: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        if value.untyped_storage().data_ptr() in seen:
            value = value.clone()
        seen.add(value.untyped_storage().data_ptr())
        apart[name] = value
    return apart


def _sums(place: Path) -> dict[str, str]:
    """SHA-256 by name of every file of a checkpoint; ``FormatError`` when one is not listed."""
    names = sorted(name for name in files.list_names(place) if name != checksums.NAME)
    sums = checksums.read(place, names)
    missing = [name for name in (_PROGRESS, *names) if name not in sums]
    if missing:
        raise FormatError(
            f"{files.format_path(place)}: expected {missing[0]} among its {checksums.NAME}, found none"
        )
    return sums


def optimiser_tensors(state: Mapping[int, Mapping[str, Any]]) -> dict[str, Tensor]:
    """An optimiser's state as named tensors: ``3.exp_avg`` is that of the fourth weight."""
    import torch

    return {
        f"{index}.{name}": torch.as_tensor(value)
        for index, values in state.items()
        for name, value in values.items()
    }


def optimiser_state(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """What ``optimiser_tensors`` was given."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    return state
