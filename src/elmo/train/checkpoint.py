"""Checkpoints: the complete state of a run, safe against crashes and restored bit for bit.

``checkpoints/step-000001200/`` has safetensors files, ``progress.json``, ``best.json`` and ``SHA256SUMS``. It
is written to a temporary folder, synced and renamed; older checkpoints are removed afterwards. So after any
crash, the newest folder with valid checksums is a state to resume from. Each checkpoint also records which
one is the best so far, so both are always consistent.
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
from elmo.storage import atomic, files

if TYPE_CHECKING:
    from torch import Tensor

_STEP = re.compile(r"step-(\d{9})")
_BEST = "best.json"
_PROGRESS = "progress.json"
_SUFFIX = ".safetensors"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """Everything that a run needs to continue.

    Attributes:
        tensors: Tensors by file ("weights", "optimizer", …), then by name.
        progress: Counters and data position, as JSON values.
    """

    tensors: Mapping[str, Mapping[str, Tensor]]
    progress: Mapping[str, Any]


class Checkpoints:
    """The checkpoints of one run: the last ``keep`` and the best."""

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        self.folder = folder
        self.keep = max(keep, 1)

    def save(self, snapshot: Snapshot, *, step: int, is_best: bool = False) -> Path:
        """Write a checkpoint atomically and remove old ones."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        path = self._path(step)
        self._remove_damaged(step)
        best = step if is_best else self._read_best([before for before in self.steps() if before < step])
        with atomic.atomic_folder(path) as new:
            for name, tensors in snapshot.tensors.items():
                try:
                    save_file(_unshare(tensors), new / f"{name}{_SUFFIX}")
                except SafetensorError as error:  # a full disk, for example
                    raise atomic.cannot_write(path, error) from error
            for name, values in ((_PROGRESS, dict(snapshot.progress)), (_BEST, {"step": best})):
                text = json.dumps(values, indent=1, sort_keys=True) + "\n"
                (new / name).write_text(text, encoding="utf-8")
            names = sorted(file.name for file in new.iterdir())
            sums = {name: files.compute_sha256(new / name) for name in names}
            (new / files.CHECKSUMS_NAME).write_text(files.format_checksums(sums, names), encoding="ascii")
        # Checkpoints after this step are damaged. They stay until the run reaches them again, for inspection.
        for old in [old for old in self.steps() if old <= step][: -self.keep]:
            if old != best:
                self._remove(old)
        return path

    def latest(self) -> tuple[int, Snapshot] | None:
        """Load the newest intact checkpoint, with its step; None if there is no checkpoint."""
        for step in reversed(self.steps()):
            try:
                return step, self.load(step)
            except FormatError as error:
                _log.warning("%s; using the checkpoint before it", error)
        return None

    def best(self) -> int | None:
        """Return the step of the best checkpoint so far."""
        return self._read_best(self.steps())

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints in increasing order."""
        matches = (_STEP.fullmatch(name) for name in files.list_names(self.folder))
        return sorted(int(match[1]) for match in matches if match)

    def load(self, step: int) -> Snapshot:
        """Load one checkpoint; ``FormatError`` if any byte of it has changed."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self._path(step)
        sums = _read_sums(path)
        for name, expected in sums.items():
            files.verify_checksum(files.find_member(path, name), expected)
        try:
            tensors = {name.removesuffix(_SUFFIX): load_file(path / name) for name in sums if name.endswith(_SUFFIX)}
        except SafetensorError as error:
            raise FormatError(f"{files.format_path(path)}: {error}") from error
        return Snapshot(tensors, files.read_json(path / _PROGRESS))

    def remove_temporary(self) -> None:
        """Remove folders that a killed run left half written or half removed."""
        for name in files.list_names(self.folder):
            if name.startswith(".") and name.endswith(".part"):
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}"

    def _read_best(self, steps: Sequence[int]) -> int | None:
        """Read the step of the best checkpoint from the newest of these that is readable."""
        for step in reversed(steps):
            path = self._path(step)
            try:
                sums = _read_sums(path)
                files.verify_checksum(files.find_member(path, _BEST), sums.get(_BEST, ""))
                best = files.read_json(path / _BEST)["step"]
            except FormatError:
                continue
            return best if best in steps else None
        return None

    def _remove_damaged(self, step: int) -> None:
        """Remove a damaged checkpoint of this step. The run has resumed from an earlier one."""
        if step not in self.steps():
            return
        try:
            self.load(step)
        except FormatError:
            self._remove(step)

    def _remove(self, step: int) -> None:
        # Rename it first: a folder that lost some of its files must not look like a checkpoint.
        path = self._path(step)
        temporary = path.with_name(atomic.temporary_name(path.name))
        try:
            path.rename(temporary)
        except OSError as error:
            raise OutputError(f"cannot remove {files.format_path(path)}: {error.strerror}") from error
        shutil.rmtree(temporary, ignore_errors=True)


def _unshare(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory, such as tied weights; safetensors does not write them."""
    separate: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        if value.untyped_storage().data_ptr() in seen:
            value = value.clone()
        seen.add(value.untyped_storage().data_ptr())
        separate[name] = value
    return separate


def _read_sums(path: Path) -> dict[str, str]:
    """Read the SHA-256 of every file of a checkpoint; ``FormatError`` if one is not listed."""
    names = sorted(name for name in files.list_names(path) if name != files.CHECKSUMS_NAME)
    sums = files.read_checksums(path, names)
    missing = [name for name in (_PROGRESS, *names) if name not in sums]
    if missing:
        raise FormatError(
            f"{files.format_path(path)}: expected a checksum of {missing[0]} in {files.CHECKSUMS_NAME}, found none"
        )
    return sums


def optimizer_tensors(state: Mapping[int, Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return the state of an optimizer as named tensors: ``3.exp_avg`` belongs to the fourth weight."""
    import torch

    return {
        f"{index}.{name}": torch.as_tensor(value) for index, values in state.items() for name, value in values.items()
    }


def optimizer_state(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Invert ``optimizer_tensors``."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    return state
