"""Reports of a run in, lines of ``log.jsonl`` out; cut back to a checkpoint when the run goes on from it.

Reports of a run in, ``times.jsonl`` out: the seconds that training took up to each, pauses left out.

They have a file of their own because ``log.jsonl`` is the same to the byte however often a run was stopped,
and no clock is.

A training run's folder in, what it logged out: a ``Run`` of ``Entry`` after ``Entry``.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo.errors import FormatError
from elmo.storage.atomic import atomic_file, cannot_write, sync
from elmo.storage.files import format_path, read_bytes

if TYPE_CHECKING:
    from elmo.train.loop import Report


_log = logging.getLogger(__name__)


class RunLog:
    """A growing file of JSON lines, the same for every run of the same command: no times are in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, values: Mapping[str, Any]) -> None:
        """Append a line."""
        try:
            with self.path.open("a", encoding="ascii") as file:
                file.write(json.dumps(dict(values)) + "\n")
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def kept_bytes(self) -> int:
        """Its size, once it is on the disk: no power cut may leave less than a checkpoint knows of."""
        try:
            sync(self.path)
            return self.path.stat().st_size
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def cut(self, n_bytes: int) -> None:
        """Forget what was added after it had so many bytes; 0 begins a new log."""
        try:
            with self.path.open("ab") as file:
                found = file.seek(0, os.SEEK_END)
                if found < n_bytes:  # to fill it up with zeros would make it unreadable
                    _log.warning("%s: lines are missing at its end; going on without them", format_path(self.path))
                file.truncate(min(found, n_bytes))
        except OSError as error:
            raise cannot_write(self.path, error) from error


class Stopwatch:
    """Give it to a run as ``on_report``; it runs from when it is made."""

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / TIMES
        self._begin = time.monotonic()
        self._before: float | None = None  # what the processes before this one took
        self._step = 0  # the last that was written

    def __call__(self, report: Report | Entry) -> None:
        """Write the time of a report; that of another report of the same step stands already."""
        try:
            if self._before is None:
                self._before = self._take_up(report.step)
            if report.step <= self._step:
                return
            self._step = report.step
            seconds = self._before + time.monotonic() - self._begin
            with self._path.open("a", encoding="ascii") as file:
                file.write(json.dumps({"step": report.step, "seconds": round(seconds, 3)}) + "\n")
        except OSError as error:
            raise cannot_write(self._path, error) from error

    def _take_up(self, step: int) -> float:
        """What was spent before ``step``; what was written after the checkpoint that led here is dropped."""
        try:
            times = read_times(self._path) if self._path.exists() else {}
        except FormatError as error:  # no reason to stop a run
            _log.warning("%s; its times are counted anew", error)
            times = {}
        kept = {earlier: seconds for earlier, seconds in times.items() if earlier < step}
        lines = [
            json.dumps({"step": earlier, "seconds": seconds}) + "\n" for earlier, seconds in kept.items()
        ]
        with atomic_file(self._path) as part:
            part.write_text("".join(lines), encoding="ascii")
        return max(kept.values(), default=0.0)


LOG, TIMES, SUFFIX = "log.jsonl", "times.jsonl", ".training"
_LIMIT = 1 << 26  # bytes: half a million reports


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a log; what a run did not measure at that step, or not at all, is None."""

    step: int
    n_tokens: int  # of a window, which is one step
    epoch: int = 0
    n_windows: int | None = None  # of the whole run
    loss: float | None = None  # mean since the entry before, in nats
    heldout_forward: float | None = None  # perplexities
    heldout_backward: float | None = None
    learning_rate: float | None = None
    gradient_norm: float | None = None
    seconds: float | None = None  # spent on training up to here, pauses left out

    @property
    def tokens(self) -> int:
        """How many tokens the run had read."""
        return self.step * self.n_tokens

    @property
    def heldout(self) -> float | None:
        """The geometric mean of the directions' perplexities, or that of the one there is."""
        found = [value for value in (self.heldout_forward, self.heldout_backward) if value is not None]
        if not found or not all(math.isfinite(value) and value > 0 for value in found):
            return None
        return math.exp(sum(map(math.log, found)) / len(found))


@dataclass(frozen=True)
class Run:
    """A run's log, and the name it goes by beside others."""

    name: str
    path: Path  # of the log
    entries: tuple[Entry, ...]

    @property
    def best(self) -> Entry | None:
        """Where the held-out text was predicted best: the checkpoint that became the model."""
        measured = [(entry.heldout, entry) for entry in self.entries if entry.heldout is not None]
        return min(measured, key=lambda pair: pair[0])[1] if measured else None


def read_run(source: str | Path) -> Run:
    """Read a run by its folder ``OUT.training``, by the model ``OUT`` beside it, or by its ``log.jsonl``.

    A last line that a kill cut short is left out; a line that is damaged is a ``FormatError`` that names it.
    """
    path = _log_of(Path(source))
    times = path.with_name(TIMES)
    seconds = read_times(times) if times.is_file() else {}
    entries: list[Entry] = []
    for number, values in _read_lines(path):
        where = f"{format_path(path)}, line {number}"
        entry = _entry(values, where)
        if entries and entry.step < entries[-1].step:
            raise FormatError(
                f"{where}: expected a step after {entries[-1].step}, found {entry.step}: is it of two runs?"
            )
        if entry.seconds is None and entry.step in seconds:
            entry = replace(entry, seconds=seconds[entry.step])
        entries.append(entry)
    folder = path.absolute().parent
    name = folder.name.removesuffix(SUFFIX) if path.name == LOG else path.stem
    return Run(name or folder.name or path.stem, path, tuple(entries))


def read_runs(sources: Iterable[str | Path]) -> list[Run]:
    """Read several runs; those of one name are told apart by the folders they lie in."""
    runs = [read_run(source) for source in sources]
    parents = [list(run.path.absolute().parent.parent.parts[1:]) for run in runs]
    names = [run.name for run in runs]
    while twins := [k for k, name in enumerate(names) if names.count(name) > 1 and parents[k]]:
        for k in twins:
            names[k] = f"{parents[k].pop()}/{names[k]}"
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def _log_of(source: Path) -> Path:
    beside = source.absolute()
    for path in (source / LOG, beside.with_name(f"{beside.name}{SUFFIX}") / LOG):
        if path.is_file():
            return path
    if source.exists() and not source.is_dir():
        return source
    raise FormatError(
        f"{format_path(source)}: expected a run (a folder with {LOG}, a model with its MODEL{SUFFIX} beside it, or "
        "the log itself), found none"
    )


def _read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    lines = read_bytes(path, _LIMIT).split(b"\n")
    last = lines.pop()  # empty, unless the process was killed, or the disk full, as it wrote
    for number, line in enumerate([*lines, last], start=1):
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number > len(lines):
                return
            raise FormatError(
                f"{format_path(path)}, line {number}: expected a JSON object, found {line[:40]!r}"
            ) from error
        if not isinstance(values, dict):
            raise FormatError(f"{format_path(path)}, line {number}: expected a JSON object, found {line[:40]!r}")
        yield number, values


_COUNTS = ("step", "n_tokens", "epoch", "n_windows")
_FIELDS = tuple(field.name for field in fields(Entry))


def _entry(values: dict[str, Any], where: str) -> Entry:
    """The fields that we know, each a number; others may come from newer versions."""
    known = {name: values[name] for name in _FIELDS if values.get(name) is not None}
    for name, value in known.items():
        is_right = isinstance(value, int) and 0 <= value < 1 << 53
        if name not in _COUNTS:
            # infinite ones, too, for a perplexity may be; but no whole number that no float can hold
            is_right = isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 53)
        if isinstance(value, bool) or not is_right:
            kind = "a count" if name in _COUNTS else "a number"
            raise FormatError(f"{where}: expected {kind} as {name!r}, found {value!r:.40}")
    if missing := [name for name in ("step", "n_tokens") if name not in known]:
        raise FormatError(f"{where}: expected {' and '.join(map(repr, missing))}, found {str(values)!r:.60}")
    typed: dict[str, Any] = {k: value if k in _COUNTS else float(value) for k, value in known.items()}
    return Entry(**typed)


def read_times(path: Path) -> dict[int, float]:
    """The seconds of a ``times.jsonl`` by step."""
    times: dict[int, float] = {}
    for number, values in _read_lines(path):
        entry = _entry({"n_tokens": 1, **values}, f"{format_path(path)}, line {number}")
        if entry.seconds is not None and math.isfinite(entry.seconds):
            times[entry.step] = entry.seconds
    return times
