"""Write and read checkpoints: the complete state of a run, which survives crashes and is restored bit for bit.

A checkpoint is a folder such as ``checkpoints/step-000001200/`` with safetensors files, ``progress.json``,
``best.json`` and ``SHA256SUMS``. It is written to a temporary folder, synced to disk and renamed; only then
are old checkpoints removed. After any crash, a run can therefore resume from the newest folder with valid checksums.
Each checkpoint also records which checkpoint is the best so far.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    """The state of a run: everything that is needed to resume it.

    Attributes:
        tensors: Tensors of each file ("weights", "optimizer", …), by name.
        progress: Step, position in the text and other values that are stored as JSON.
    """

    tensors: Mapping[str, Mapping[str, Tensor]]
    progress: Mapping[str, Any]


class Checkpoints:
    """The checkpoints of one run. The best one and the last ``keep`` ones are kept.

    Args:
        folder: Folder of the checkpoints.
        keep: Number of the last checkpoints to keep.

    Example:
        >>> checkpoints = Checkpoints(Path("run.training/checkpoints"))
        >>> checkpoints.best() is not None
        True
    """

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        self.folder = folder
        self.keep = max(keep, 1)

    def save(self, snapshot: Snapshot, *, step: int, is_best: bool = False) -> Path:
        """Write a checkpoint atomically and remove old checkpoints."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        path = self._path(step)
        if step in self.steps():
            try:
                self.load(step)
            except FormatError:  # damaged, so the run has resumed from an earlier checkpoint
                self._remove(step)
        best = step if is_best else self._read_best([before for before in self.steps() if before < step])
        atomic.make_folder(self.folder)
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
        # Checkpoints of later steps are damaged, or the run would have resumed from them. They are replaced later.
        for old in [old for old in self.steps() if old <= step][: -self.keep]:
            if old != best:
                self._remove(old)
        return path

    def latest(self) -> tuple[int, Snapshot] | None:
        """Return the step and the state of the newest intact checkpoint, or None if there is none."""
        for step in reversed(self.steps()):
            try:
                return step, self.load(step)
            except FormatError as error:
                _log.warning("%s; using the previous checkpoint", error)
        return None

    def best(self) -> int | None:
        """Return the step of the best checkpoint so far, or None if there is none."""
        return self._read_best(self.steps())

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints in increasing order."""
        matches = (_STEP.fullmatch(name) for name in files.list_names(self.folder))
        return sorted(int(match[1]) for match in matches if match)

    def load(self, step: int) -> Snapshot:
        """Load the checkpoint of a step; raise ``FormatError`` if it is damaged."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self._path(step)
        sums = _read_sums(path)
        for name, expected in sums.items():
            files.verify_checksum(files.find_member(path, name), expected)
        try:
            tensors = {name.removesuffix(_SUFFIX): load_file(path / name) for name in sums if name.endswith(_SUFFIX)}
        except SafetensorError as error:
            raise FormatError(f"cannot read {files.format_path(path)}: {error}") from error
        progress = files.read_json(path / _PROGRESS)
        if not isinstance(progress, dict):
            raise FormatError(f"{files.format_path(path / _PROGRESS)}: expected a JSON object, found {progress!r:.40}")
        return Snapshot(tensors, progress)

    def remove_temporary(self) -> None:
        """Remove the temporary folders of a run that was killed."""
        for name in files.list_names(self.folder):
            if name.startswith(".") and name.endswith(".part"):
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}"

    def _read_best(self, steps: Sequence[int]) -> int | None:
        """Return the step of the best checkpoint, as recorded in the newest readable checkpoint of ``steps``."""
        for step in reversed(steps):
            path = self._path(step)
            try:
                sums = _read_sums(path)
                files.verify_checksum(files.find_member(path, _BEST), sums.get(_BEST, ""))
                values = files.read_json(path / _BEST)
            except FormatError:
                continue
            best = values.get("step") if isinstance(values, dict) else None
            return best if best in steps else None
        return None

    def _remove(self, step: int) -> None:
        # Rename the folder first: if the removal is interrupted, the rest must not look like a checkpoint.
        path = self._path(step)
        temporary = path.with_name(atomic.temporary_name(path.name))
        try:
            path.rename(temporary)
        except OSError as error:
            raise OutputError(f"cannot remove {files.format_path(path)}: {error.strerror}") from error
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def checking_content(folder: Path) -> Iterator[None]:
    """Raise ``FormatError`` if the content of a checkpoint, whose checksums are correct, does not fit the run."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise FormatError(
            f"the checkpoints in {files.format_path(folder)} do not fit this run: {files.format_error(error)}; use "
            "another output folder"
        ) from error


def _unshare(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory, such as tied weights, because safetensors refuses to write them."""
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
    """Read the SHA-256 of every file of a checkpoint; raise ``FormatError`` if a file is not listed."""
    names = sorted(name for name in files.list_names(path) if name != files.CHECKSUMS_NAME)
    sums = files.read_checksums(path, names)
    if missing := [name for name in (_PROGRESS, *names) if name not in sums]:
        raise FormatError(
            f"{files.format_path(path / files.CHECKSUMS_NAME)} must list all files; found no entry for {missing[0]}"
        )
    return sums


def optimizer_tensors(state: Mapping[int, Mapping[str, Any]]) -> dict[str, Tensor]:
    """Flatten the state of an optimizer to named tensors, such as ``3.exp_avg`` for the fourth weight."""
    import torch

    return {
        f"{index}.{name}": torch.as_tensor(value) for index, values in state.items() for name, value in values.items()
    }


def optimizer_state(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Rebuild the state of an optimizer from the result of ``optimizer_tensors``."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    return state
