"""Scores of several seeds in, mean, spread and the difference of two conditions with its interval out.

Results of runs in, the paper's tables, curves and mixes out.

Evidence in, lines of text out: the tables as the paper prints them, scores in points of 100.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from elmo.evidence.runs import BASELINE, COMPARED, ELMO, MAX_FACTOR, TABLES, Run, RunResult
from elmo.text.display import shorten, text_width, to_plain_text

CONFIDENCE = 0.95
_STEPS = 100_000


@dataclass(frozen=True)
class Summary:
    """Scores of one condition, a seed each."""

    mean: float
    spread: float | None  # standard deviation of a sample; None: there is one score only
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Difference:
    """What one condition is better than another by."""

    difference: float
    interval: tuple[float, float] | None  # 95 %; None: a condition has one score only
    error_reduction: float | None  # share of what the other lacks to 1; None: it lacks nothing


def summary(scores: Sequence[float]) -> Summary:
    """Mean and standard deviation."""
    spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else None
    return Summary(float(np.mean(scores)), spread, tuple(scores))


def difference(better: Summary, other: Summary) -> Difference:
    """Of the means, with Welch's t interval (Welch 1947) and the relative reduction of errors."""
    found = better.mean - other.mean
    lack = 1 - other.mean
    return Difference(found, _interval(found, better, other), found / lack if lack > 0 else None)


def _interval(found: float, one: Summary, two: Summary) -> tuple[float, float] | None:
    if one.spread is None or two.spread is None:
        return None
    parts = [each.spread**2 / len(each.scores) for each in (one, two) if each.spread is not None]
    variance = sum(parts)
    if variance == 0:
        return (found, found)
    freedom = variance**2 / sum(
        part**2 / (len(each.scores) - 1) for part, each in zip(parts, (one, two), strict=True)
    )
    reach = t_quantile(freedom) * math.sqrt(variance)
    return (found - reach, found + reach)


def t_quantile(freedom: float) -> float:
    """Which Student's t stays below in size in 95 of 100 cases, for any real number of degrees of freedom.

    With t = √ν · tan θ the density is proportional to cos^(ν-1) θ, which is summed up numerically.
    """
    angles = np.linspace(0, np.pi / 2, _STEPS + 1)
    heights = np.cos(angles[:-1] + angles[1] / 2) ** (freedom - 1)  # in the middle of each step
    shares = np.concatenate([[0.0], np.cumsum(heights) / heights.sum()])
    return math.sqrt(freedom) * math.tan(float(np.interp(CONFIDENCE, shares, angles)))


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


_NAMES = {
    1: {"baseline": "baseline", "input": "ELMo"},
    2: {"baseline": "baseline", "top_only": "last only", "lambda_1": "all, λ=1", "input": "all, λ=0.001"},
    3: {"input": "input", "output": "output", "both": "both"},
}
_GAINS = {1: "ELMo over baseline", 2: "all over last only", 3: "both over input"}  # the first of COMPARED
_TITLES = {
    1: "Table 1. What ELMo adds at the input of a task's network",
    2: "Table 2. The last layer only, or all layers, with little (λ=0.001) or much (λ=1) of a penalty",
    3: "Table 3. ELMo at a network's input, at its output, or at both",
}
_TASK = 24  # Latin letters


def lines_of(evidence: Evidence) -> list[str]:
    """All of it, a line each."""
    lines: list[str] = []
    for table in evidence.tables:
        lines += [_TITLES[table.number], *_columns(_table(table, evidence)), ""]
    if evidence.curves:
        lines += ["Figure 1. Fewer examples"]
        for curve in evidence.curves:
            lines += [*_columns(_curve(curve)), *_enough(curve), ""]
    if evidence.mixes:
        lines += ["Figure 2. Shares of the layers in what was learned", *_columns(_mixes(evidence.mixes)), ""]
    return [*lines, *_notes(evidence)]


def _table(table: Table, evidence: Evidence) -> list[list[str]]:
    names = _NAMES[table.number]
    head = ["task", "score", "train", *(names[name] for name in TABLES[table.number])]
    rows = [[*head, _GAINS[table.number], "fewer errors"]]
    about = {one.task: one for one in evidence.tasks}
    for row in table.rows:
        gain = row.gains[0].gain
        cells = [_shown(row.cells[name]) for name in TABLES[table.number]]
        task = about[row.task]
        rows.append([_task(row.task), task.score, f"{task.n_train:,}", *cells, _gain(gain), _relative(gain)])
    return rows


def _curve(curve: Curve) -> list[list[str]]:
    rows = [[_task(curve.task), "examples", "baseline", "ELMo", "ELMo over baseline"]]
    n_all = curve.points[-1].n_examples
    for point in curve.points:
        share = f"{point.n_examples / n_all:.0%}"
        cells = [_shown(point.baseline), _shown(point.elmo), _gain(point.gain)]
        rows.append([share, f"{point.n_examples:,}", *cells])
    return rows


def _enough(curve: Curve) -> list[str]:
    enough, n_all = curve.n_enough, curve.points[-1].n_examples
    if enough is None or enough == n_all:
        return []
    return [f"  With ELMo, {enough:,} examples are as good as {n_all:,} without ({enough / n_all:.0%})."]


def _mixes(mixes: Sequence[Mix]) -> list[list[str]]:
    n_layers = max(len(mix.shares) for mix in mixes)
    names = {"input": "λ=0.001", "lambda_1": "λ=1", "output": "output only", "both": "at both places"}
    rows = [["task", "mix of the", "run", *(f"layer {k}" for k in range(n_layers)), "gamma"]]
    for mix in mixes:
        shares = [f"{share:.3f}" for share in mix.shares]
        rows.append([_task(mix.task), mix.place, names[mix.condition], *shares, f"{mix.gamma:.2f}"])
    return rows


def _notes(evidence: Evidence) -> list[str]:
    notes = ["Scores in points of 100, of one seed."]
    if evidence.n_seeds > 1:
        notes = [f"Scores in points of 100: mean and standard deviation over {evidence.n_seeds} seeds."]
        notes.append("In brackets the 95 % interval of a difference, Welch's t over seeds.")
    notes.append("Fewer errors: the difference as a share of what is lacking to 100.")
    if any(one.scored_on == "dev" for one in evidence.tasks):
        notes.append("Scored on dev, whose best epoch is taken; a test in the plan would be scored instead.")
    if evidence.curves:
        notes.append(
            f"With a share s of the examples there are 1/√s times the epochs, {MAX_FACTOR:.0f} times at most."
        )
    return notes


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, columns as wide as their widest cell; the first one begins, the others end, together."""
    widths = [max(text_width(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = []
    for row in rows:
        first = row[0] + " " * (widths[0] - text_width(row[0]))
        rest = [
            " " * (wide - text_width(cell)) + cell for cell, wide in zip(row[1:], widths[1:], strict=True)
        ]
        lines.append("  ".join(["", first, *rest]).rstrip())
    return lines


def _task(name: str) -> str:
    return shorten(to_plain_text(name), _TASK)


def _shown(one: Summary) -> str:
    return f"{100 * one.mean:.2f}" + ("" if one.spread is None else f" ± {100 * one.spread:.2f}")


def _gain(one: Difference) -> str:
    shown = f"{100 * one.difference:+.2f}"
    if one.interval is None:
        return shown
    low, high = one.interval
    return f"{shown} [{100 * low:+.2f}, {100 * high:+.2f}]"


def _relative(one: Difference) -> str:
    return "-" if one.error_reduction is None else f"{one.error_reduction:+.1%}"
