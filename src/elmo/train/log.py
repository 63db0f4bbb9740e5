"""A training run's folder in, what it logged out: a ``Run`` of ``Entry`` after ``Entry``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from elmo.errors import FormatError
from elmo.formats.files import read_bytes, shown

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
        where = f"{shown(path)}, line {number}"
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
        f"{shown(source)}: expected a run (a folder with {LOG}, a model with its MODEL{SUFFIX} beside it, or "
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
                f"{shown(path)}, line {number}: expected a JSON object, found {line[:40]!r}"
            ) from error
        if not isinstance(values, dict):
            raise FormatError(f"{shown(path)}, line {number}: expected a JSON object, found {line[:40]!r}")
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
        entry = _entry({"n_tokens": 1, **values}, f"{shown(path)}, line {number}")
        if entry.seconds is not None and math.isfinite(entry.seconds):
            times[entry.step] = entry.seconds
    return times
