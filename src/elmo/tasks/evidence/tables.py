"""Results of runs in, the paper's tables, curves and mixes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from elmo.tasks.evidence.conditions import BASELINE, COMPARED, ELMO, TABLES, Run
from elmo.tasks.evidence.runs import RunResult
from elmo.tasks.evidence.statistics import Difference, Summary, difference, summary


@dataclass(frozen=True)
class Gain:
    """How much better a condition is than another one."""

    condition: str
    over: str
    gain: Difference


@dataclass(frozen=True)
class Row:
    """One task: a summary for each condition."""

    task: str
    cells: Mapping[str, Summary]
    gains: tuple[Gain, ...]


@dataclass(frozen=True)
class Table:
    """One of the paper's tables."""

    number: int
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Point:
    """Of a curve: so many examples, without and with ELMo."""

    n_examples: int
    baseline: Summary
    elmo: Summary
    gain: Difference


@dataclass(frozen=True)
class Curve:
    """Sample efficiency of one task (Figure 1)."""

    task: str
    points: tuple[Point, ...]

    @property
    def n_enough(self) -> int | None:
        """The fewest examples with which ELMo is as good as the baseline is with all; None: not reached."""
        goal = self.points[-1].baseline.mean
        return next((point.n_examples for point in self.points if point.elmo.mean >= goal), None)


@dataclass(frozen=True)
class Mix:
    """What shares of the layers a task has learned at one place (Figure 2): means over seeds."""

    task: str
    condition: str
    place: str
    shares: tuple[float, ...]
    spreads: tuple[float, ...] | None  # None: there is one seed only
    gamma: float


@dataclass(frozen=True)
class TaskAbout:
    """What was learned, and from how much."""

    task: str
    kind: str
    score: str  # the name of the main score
    scored_on: str  # dev or test
    n_train: int
    n_scored: int
    left_out: Mapping[str, int]


@dataclass(frozen=True)
class Evidence:
    """All that was gathered."""

    tasks: tuple[TaskAbout, ...]
    n_seeds: int
    sources: Mapping[str, str]  # fingerprints of the model and of the static vectors
    tables: tuple[Table, ...]
    curves: tuple[Curve, ...]
    mixes: tuple[Mix, ...]
    runs: tuple[Mapping[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """For a file; the same runs give the same bytes."""
        return {"format": "elmo evidence", "version": 1, **asdict(self)}


Results = Mapping[Run, RunResult]


def tables_of(results: Results, tasks: Sequence[str], numbers: Sequence[int]) -> tuple[Table, ...]:
    """The tables of these numbers."""
    return tuple(
        Table(number, tuple(_row(results, task, number) for task in tasks)) for number in sorted(set(numbers))
    )


def _row(results: Results, task: str, number: int) -> Row:
    cells = {name: _summary(results, task, name) for name in TABLES[number]}
    gains = tuple(
        Gain(name, other, difference(cells[name], cells[other])) for name, other in COMPARED[number]
    )
    return Row(task, cells, gains)


def _summary(results: Results, task: str, condition: str, n_examples: int | None = None) -> Summary:
    return summary(
        [
            result.score
            for run, result in results.items()
            if (run.task, run.condition, run.n_examples) == (task, condition, n_examples or run.n_all)
        ]
    )


def curves_of(results: Results, tasks: Sequence[str]) -> tuple[Curve, ...]:
    """A curve for each task."""
    found = []
    for task in tasks:
        points = []
        for size in sorted({run.n_examples for run in results if run.task == task}):
            without, with_elmo = (_summary(results, task, name, size) for name in (BASELINE, ELMO))
            points.append(Point(size, without, with_elmo, difference(with_elmo, without)))
        found.append(Curve(task, tuple(points)))
    return tuple(found)


def mixes_of(results: Results) -> tuple[Mix, ...]:
    """The mixes that runs with all examples have learned; of the last layer alone there is none."""
    grouped: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for run, result in results.items():
        if run.n_examples == run.n_all and run.condition != "top_only":
            for place, mix in result.mixes.items():
                grouped.setdefault((run.task, run.condition, place), []).append(mix)
    found = []
    for where, mixes in grouped.items():
        shares = np.array([mix["shares"] for mix in mixes])  # (seed, layer)
        spreads = tuple(np.std(shares, axis=0, ddof=1).tolist()) if len(mixes) > 1 else None
        gamma = float(np.mean([mix["gamma"] for mix in mixes]))
        found.append(Mix(*where, shares=tuple(shares.mean(axis=0).tolist()), spreads=spreads, gamma=gamma))
    return tuple(found)
