"""Write and read the logs of a training run: ``log.jsonl``, ``times.jsonl`` and TensorBoard files.

``log.jsonl`` has the same bytes no matter how often a run was interrupted, so it contains no times. The training
time in seconds, without pauses, is in ``times.jsonl``.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from elmo.errors import FormatError, importing_extra
from elmo.storage.atomic import atomic_file, cannot_write, make_folder, open_for_append, sync
from elmo.storage.files import format_path, read_bytes

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from elmo.train.loop import StepReport

LOG, TIMES, SUFFIX = "log.jsonl", "times.jsonl", ".training"
_LIMIT = 1 << 26  # bytes; enough for half a million entries
_log = logging.getLogger(__name__)


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` into an ``OutputError`` that names ``path``."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


class LogFile:
    """A file with one JSON object per line. A resumed run removes the lines after its checkpoint with ``cut``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, values: Mapping[str, Any]) -> None:
        """Append a line."""
        with _translate_errors(self.path), open_for_append(self.path) as file:
            file.write(json.dumps(dict(values)).encode("ascii") + b"\n")

    def synced_size(self) -> int:
        """Sync the file to disk and return its size. These bytes are kept even if the power fails."""
        with _translate_errors(self.path):
            sync(self.path)
            return self.path.stat().st_size

    def cut(self, n_bytes: int) -> None:
        """Remove everything after the first ``n_bytes`` bytes; 0 starts a new log."""
        with _translate_errors(self.path), open_for_append(self.path) as file:
            size = file.seek(0, os.SEEK_END)
            if size < n_bytes:  # truncate() would add zeros
                _log.warning("%s: the last entries are missing; continuing without them", format_path(self.path))
            file.truncate(min(size, n_bytes))


class Stopwatch:
    """Writes the training time to ``times.jsonl``. Pass it as ``on_report``. The time starts when it is created."""

    def __init__(self, folder: str | Path) -> None:
        self._file = LogFile(Path(folder) / TIMES)
        self._begin = time.monotonic()
        self._before: float | None = None  # training time before this process was started
        self._step = 0  # last step written

    def __call__(self, report: StepReport | LogEntry) -> None:
        """Write the training time at the first report of each step."""
        if self._before is None:
            self._before = self._restore(report.step)
        if report.step > self._step:
            self._step = report.step
            seconds = self._before + time.monotonic() - self._begin
            self._file.add({"step": report.step, "seconds": round(seconds, 3)})

    def _restore(self, step: int) -> float:
        """Return the training time before ``step`` in seconds, and remove the entries from ``step`` on."""
        path = self._file.path
        try:
            times = read_times(path) if path.exists() else {}
        except FormatError as error:  # not a reason to stop a run
            _log.warning("%s; counting the time from zero", error)
            times = {}
        kept = {earlier: seconds for earlier, seconds in times.items() if earlier < step}
        lines = [json.dumps({"step": earlier, "seconds": seconds}) + "\n" for earlier, seconds in kept.items()]
        with atomic_file(path) as temporary:
            temporary.write_text("".join(lines), encoding="ascii")
        return max(kept.values(), default=0.0)


TAGS = {
    "loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "gradient_norm": "train/gradient_norm",
    "heldout_forward": "heldout/forward",
    "heldout_backward": "heldout/backward",
}


class TensorBoard:
    """Writes TensorBoard event files. Pass it as ``on_report``, and its folder to ``tensorboard --logdir``.

    A run that resumes repeats the reports after its checkpoint. The first report of a ``TensorBoard`` therefore
    removes all existing entries of the same step and of later steps.

    Args:
        folder: Folder of the event files.

    Example:
        >>> board = TensorBoard("board")
        >>> folder = train_bilm("corpus.txt", "watched", preset="tiny", epochs=1, on_report=board)
    """

    def __init__(self, folder: str | Path) -> None:
        """Check that TensorBoard is installed. The first report creates the event file."""
        with importing_extra("TensorBoard", extra="tensorboard"):
            import torch.utils.tensorboard  # noqa: F401
        self._folder = Path(folder)
        self._writer: SummaryWriter | None = None

    def __call__(self, report: StepReport | LogEntry) -> None:
        """Write a report and flush it, so that it is on disk before the next checkpoint."""
        from torch.utils.tensorboard import SummaryWriter

        step = report.step * report.n_tokens
        with _translate_errors(self._folder):
            if self._writer is None:
                make_folder(self._folder)
                self._writer = SummaryWriter(str(self._folder), purge_step=step)
                weakref.finalize(self, self._writer.close)  # at the end of the Python process at the latest
            for name, tag in TAGS.items():
                if (value := getattr(report, name)) is not None:
                    self._writer.add_scalar(tag, value, step)
            self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of a log. Values that were not measured at this step are None.

    Attributes:
        step: Number of optimizer steps so far.
        n_tokens: Number of tokens in a step.
        epoch: Number of passes over the text so far, such as 0.82; earlier versions logged whole numbers.
        n_steps: Number of steps of the whole run.
        loss: Mean loss since the previous entry, in nats per token.
        heldout_forward: Held-out perplexity of the forward direction.
        heldout_backward: Held-out perplexity of the backward direction.
        learning_rate: Learning rate of this step.
        gradient_norm: Norm of the gradients of this step, before clipping.
        seconds: Seconds of training so far, without pauses.
    """

    step: int
    n_tokens: int
    epoch: float = 0.0
    n_steps: int | None = None
    loss: float | None = None
    heldout_forward: float | None = None
    heldout_backward: float | None = None
    learning_rate: float | None = None
    gradient_norm: float | None = None
    seconds: float | None = None

    @property
    def tokens(self) -> int:
        """Number of tokens read so far."""
        return self.step * self.n_tokens

    @property
    def heldout(self) -> float | None:
        """Geometric mean of the held-out perplexities; None if none was measured or one is not finite."""
        values = [value for value in (self.heldout_forward, self.heldout_backward) if value is not None]
        if not values or not all(math.isfinite(value) and value > 0 for value in values):
            return None
        return math.exp(sum(map(math.log, values)) / len(values))


@dataclass(frozen=True)
class TrainingLog:
    """The log of a training run.

    Attributes:
        name: Name of the run in plots and tables.
        path: Path of the log file.
        entries: Entries in the order of their steps.
    """

    name: str
    path: Path
    entries: tuple[LogEntry, ...]

    @property
    def best(self) -> LogEntry | None:
        """The entry with the lowest held-out perplexity. Its checkpoint becomes the model."""
        evaluated = [(entry.heldout, entry) for entry in self.entries if entry.heldout is not None]
        return min(evaluated, key=lambda pair: pair[0])[1] if evaluated else None


def read_log(source: str | Path) -> TrainingLog:
    """Read the log of a training run.

    An incomplete last line is ignored, because the run may have been killed. Any other damaged line raises
    ``FormatError``.

    Args:
        source: Folder ``OUT.training``, the model folder ``OUT`` next to it, or a ``log.jsonl`` file.

    Example:
        >>> log = read_log("run")
        >>> log.best.heldout > 1  # the lowest perplexity on held-out text
        True
    """
    path = _find_log(Path(source))
    times = path.with_name(TIMES)
    seconds = read_times(times) if times.is_file() else {}
    entries: list[LogEntry] = []
    for number, values in _read_lines(path):
        where = f"{format_path(path)}, line {number}"
        entry = _parse_entry(values, where)
        if entries and entry.step < entries[-1].step:
            before = entries[-1].step
            raise FormatError(
                f"{where}: step must be at least {before}; found {entry.step}; does the file contain two runs?"
            )
        if entry.seconds is None and entry.step in seconds:
            entry = replace(entry, seconds=seconds[entry.step])
        entries.append(entry)
    folder = path.absolute().parent
    name = folder.name.removesuffix(SUFFIX) if path.name == LOG else path.stem
    return TrainingLog(name or folder.name or path.stem, path, tuple(entries))


def read_logs(sources: Iterable[str | Path]) -> list[TrainingLog]:
    """Read several logs. Runs with equal names get the names of their parent folders as a prefix."""
    runs = [read_log(source) for source in sources]
    parents = [list(run.path.absolute().parent.parent.parts[1:]) for run in runs]
    names = [run.name for run in runs]
    while twins := [k for k, name in enumerate(names) if names.count(name) > 1 and parents[k]]:
        for k in twins:
            names[k] = f"{parents[k].pop()}/{names[k]}"
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def read_times(path: Path) -> dict[int, float]:
    """Read a ``times.jsonl`` file. Return the training time in seconds by step."""
    times: dict[int, float] = {}
    for number, values in _read_lines(path):
        entry = _parse_entry({"n_tokens": 1, **values}, f"{format_path(path)}, line {number}")
        if entry.seconds is not None and math.isfinite(entry.seconds):
            times[entry.step] = entry.seconds
    return times


def _find_log(source: Path) -> Path:
    absolute = source.absolute()
    for path in (source / LOG, absolute.with_name(f"{absolute.name}{SUFFIX}") / LOG):
        if path.is_file():
            return path
    if source.exists() and not source.is_dir():
        return source
    if not source.exists():
        raise FormatError(f"{format_path(source)}: no such file or folder; expected a training run")
    raise FormatError(
        f"{format_path(source)} must be a training run: a folder with {LOG}, a model next to its MODEL{SUFFIX} folder, "
        "or a log file"
    )


def _read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    lines = read_bytes(path, _LIMIT).split(b"\n")
    last = lines.pop()  # empty, unless the process was killed or the disk was full
    for number, line in enumerate([*lines, last], start=1):
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            if number > len(lines):
                return
            values = None
        if not isinstance(values, dict):
            raise FormatError(
                f"{format_path(path)}, line {number}: the entry must be a JSON object; found {line[:40]!r}"
            )
        yield number, values


_COUNTS = ("step", "n_tokens", "n_steps")
_FIELDS = tuple(field.name for field in fields(LogEntry))


def _parse_entry(values: dict[str, Any], where: str) -> LogEntry:
    """Parse an entry and check its values. Unknown fields are ignored, because other versions may write them."""
    known = {name: values[name] for name in _FIELDS if values.get(name) is not None}
    for name, value in known.items():
        if name in _COUNTS:
            kind, is_valid = "a whole number of at least 0", isinstance(value, int) and 0 <= value < 1 << 53
        else:  # a perplexity may be infinite; an integer must fit a float
            kind = "a number"
            is_valid = isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 53)
            known[name] = float(value) if is_valid else value
        if isinstance(value, bool) or not is_valid:
            raise FormatError(f"{where}: {name} must be {kind}; found {value!r:.40}")
    if missing := [name for name in ("step", "n_tokens") if name not in known]:
        raise FormatError(f"{where}: {' and '.join(missing)} must be present; found {str(values)!r:.60}")
    return LogEntry(**known)
