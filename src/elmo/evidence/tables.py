"""Compute the tables and figures of the paper from the results of runs, and format them as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from elmo.evidence.runs import BASELINE, COMPARED, ELMO, MAX_FACTOR, SIZES, TABLES, EvidenceRun, RunResult
from elmo.text.display import shorten, text_width, to_plain_text

CONFIDENCE = 0.95
_STEPS = 100_000


@dataclass(frozen=True)
class ScoreSummary:
    """Scores of one condition over all seeds."""

    mean: float
    spread: float | None  # sample standard deviation; None for one seed
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Difference:
    """Difference between the mean scores of two conditions."""

    difference: float
    interval: tuple[float, float] | None  # 95 % confidence interval; None for one seed
    error_reduction: float | None  # as a fraction of the error of the second condition; None if that error is 0


def summarize(scores: Sequence[float]) -> ScoreSummary:
    """Compute the mean and the standard deviation of scores."""
    spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else None
    return ScoreSummary(float(np.mean(scores)), spread, tuple(scores))


def compare(first: ScoreSummary, second: ScoreSummary) -> Difference:
    """Compute the difference ``first`` - ``second`` of two means, with Welch's t interval (Welch 1947)."""
    difference, error = first.mean - second.mean, 1 - second.mean
    interval = None
    if first.spread is not None and second.spread is not None:
        sizes = [len(first.scores), len(second.scores)]
        parts = [first.spread**2 / sizes[0], second.spread**2 / sizes[1]]
        variance, margin = sum(parts), 0.0
        if variance > 0:
            freedom = variance**2 / sum(part**2 / (size - 1) for part, size in zip(parts, sizes, strict=True))
            margin = t_quantile(freedom) * math.sqrt(variance)
        interval = (difference - margin, difference + margin)
    return Difference(difference, interval, difference / error if error > 0 else None)


def t_quantile(freedom: float) -> float:
    """Return the value that |t| does not exceed with probability 0.95, for any real number of degrees of freedom.

    With t = √ν · tan θ, the density is proportional to cos^(ν-1) θ, which is integrated numerically.
    """
    angles = np.linspace(0, np.pi / 2, _STEPS + 1)
    heights = np.cos(angles[:-1] + angles[1] / 2) ** (freedom - 1)  # at the midpoint of each step
    cumulative = np.concatenate([[0.0], np.cumsum(heights) / heights.sum()])
    return math.sqrt(freedom) * math.tan(float(np.interp(CONFIDENCE, cumulative, angles)))


@dataclass(frozen=True)
class Gain:
    """Gain of one condition over another condition."""

    condition: str
    over: str
    gain: Difference


@dataclass(frozen=True)
class TableRow:
    """A row of a table: the scores of one task under each condition."""

    task: str
    cells: Mapping[str, ScoreSummary]
    gains: tuple[Gain, ...]


@dataclass(frozen=True)
class ScoreTable:
    """One of the tables of the paper."""

    number: int
    rows: tuple[TableRow, ...]


@dataclass(frozen=True)
class SizeRow:
    """Scores of random vectors, static vectors and ELMo for one number of training examples."""

    n_examples: int
    cells: Mapping[str, ScoreSummary]
    gains: tuple[Gain, ...]


@dataclass(frozen=True)
class SizeTable:
    """Table 4 for one task."""

    task: str
    rows: tuple[SizeRow, ...]


@dataclass(frozen=True)
class CurvePoint:
    """Scores with and without ELMo for one number of training examples."""

    n_examples: int
    baseline: ScoreSummary
    elmo: ScoreSummary
    gain: Difference


@dataclass(frozen=True)
class Curve:
    """Sample efficiency of one task (Figure 1)."""

    task: str
    points: tuple[CurvePoint, ...]

    @property
    def n_enough(self) -> int | None:
        """Smallest number of examples with which ELMo reaches the baseline with all examples; None if it does not."""
        goal = self.points[-1].baseline.mean
        return next((point.n_examples for point in self.points if point.elmo.mean >= goal), None)


@dataclass(frozen=True)
class MixSummary:
    """Learned layer weights of one task at one position (Figure 2), averaged over seeds."""

    task: str
    condition: str
    place: str  # input or output
    shares: tuple[float, ...]
    spreads: tuple[float, ...] | None  # None for one seed
    gamma: float


@dataclass(frozen=True)
class TaskSummary:
    """A task, its score and the sizes of its data."""

    task: str
    kind: str
    score: str  # name of the main score
    scored_on: str  # dev or test
    n_train: int
    n_scored: int
    left_out: Mapping[str, int]


@dataclass(frozen=True)
class Evidence:
    """The results of a plan: tables, curves and layer mixes, and the runs that they are computed from.

    Attributes:
        tasks: A summary of each task.
        n_seeds: Number of runs per condition.
        sources: Fingerprints of the model and of the static vectors.
        tables: The tables of scores.
        curves: The scores by number of training examples.
        mixes: The learned mixes of layers.
        runs: The results of all runs.
        sizes: The scores by number of training examples and kind of vectors (table 4).
    """

    tasks: tuple[TaskSummary, ...]
    n_seeds: int
    sources: Mapping[str, str]
    tables: tuple[ScoreTable, ...]
    curves: tuple[Curve, ...]
    mixes: tuple[MixSummary, ...]
    runs: tuple[Mapping[str, Any], ...]
    sizes: tuple[SizeTable, ...] = ()

    def __repr__(self) -> str:
        tasks, tables = [task.task for task in self.tasks], [table.number for table in self.tables]
        return f"Evidence(tasks={tasks}, tables={tables}, n_seeds={self.n_seeds}, {len(self.runs)} runs)"

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``evidence.json``; the same runs give the same content."""
        values = {"format": "elmo evidence", "version": 1, **asdict(self)}
        if not self.sizes:
            values.pop("sizes")
        return values


Results = Mapping[EvidenceRun, RunResult]


def build_tables(results: Results, tasks: Sequence[str], numbers: Sequence[int]) -> tuple[ScoreTable, ...]:
    """Build the tables of the paper with these numbers."""
    return tuple(
        ScoreTable(number, tuple(_row(results, task, number) for task in tasks)) for number in sorted(set(numbers))
    )


def build_size_tables(results: Results, sizes: Mapping[str, Sequence[int]]) -> tuple[SizeTable, ...]:
    """Build table 4 for each task, with a row for each number of training examples in ``sizes``."""
    tables = []
    for task, own in sizes.items():
        rows = []
        for size in own:
            cells = {name: _summary(results, task, name, size) for name in TABLES[SIZES]}
            gains = tuple(Gain(name, other, compare(cells[name], cells[other])) for name, other in COMPARED[SIZES])
            rows.append(SizeRow(size, cells, gains))
        tables.append(SizeTable(task, tuple(rows)))
    return tuple(tables)


def _row(results: Results, task: str, number: int) -> TableRow:
    cells = {name: _summary(results, task, name) for name in TABLES[number]}
    gains = tuple(Gain(name, other, compare(cells[name], cells[other])) for name, other in COMPARED[number])
    return TableRow(task, cells, gains)


def _summary(results: Results, task: str, condition: str, n_examples: int | None = None) -> ScoreSummary:
    return summarize(
        [
            result.score
            for run, result in results.items()
            if (run.task, run.condition, run.n_examples) == (task, condition, n_examples or run.n_all)
        ]
    )


def build_curves(results: Results, tasks: Sequence[str]) -> tuple[Curve, ...]:
    """Build the curve of Figure 1 for each task."""
    curves = []
    for task in tasks:
        points = []
        for size in sorted({run.n_examples for run in results if (run.task, run.condition) == (task, ELMO)}):
            without, with_elmo = (_summary(results, task, name, size) for name in (BASELINE, ELMO))
            points.append(CurvePoint(size, without, with_elmo, compare(with_elmo, without)))
        curves.append(Curve(task, tuple(points)))
    return tuple(curves)


def build_mixes(results: Results) -> tuple[MixSummary, ...]:
    """Average the layer weights over seeds, for runs with all examples and a learned mix."""
    grouped: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for run, result in results.items():
        if run.n_examples == run.n_all and run.condition != "top_only":
            for position, mix in result.mixes.items():
                grouped.setdefault((run.task, run.condition, position), []).append(mix)
    summaries = []
    for group, mixes in grouped.items():
        shares = np.array([mix["shares"] for mix in mixes])  # (seed, layer)
        spreads = tuple(np.std(shares, axis=0, ddof=1).tolist()) if len(mixes) > 1 else None
        gamma = float(np.mean([mix["gamma"] for mix in mixes]))
        summaries.append(MixSummary(*group, shares=tuple(shares.mean(axis=0).tolist()), spreads=spreads, gamma=gamma))
    return tuple(summaries)


_NAMES = {
    1: {"baseline": "baseline", "input": "ELMo"},
    2: {"baseline": "baseline", "top_only": "last only", "lambda_1": "all, λ=1", "input": "all, λ=0.001"},
    3: {"input": "input", "output": "output", "both": "both"},
    SIZES: {"random": "random vectors", "baseline": "static vectors", "elmo_only": "ELMo"},
}
_GAIN_TITLES = {  # for the first pair of COMPARED
    1: "ELMo over baseline",
    2: "all over last only",
    3: "both over input",
}
_TITLES = {
    1: "Table 1. ELMo at the input, compared with the baseline",
    2: "Table 2. The last layer only, or all layers with a small (λ=0.001) or large (λ=1) penalty",
    3: "Table 3. ELMo at the input, at the output, or at both",
}
_TASK = 24  # maximum width of the name of a task, in terminal columns


def format_evidence(evidence: Evidence) -> list[str]:
    """Format all tables and figures as lines of text; scores are in percent.

    Args:
        evidence: The results.

    Example:
        >>> evidence = collect_evidence("examples/evidence.toml", "evidence", tasks=["pos"])  # doctest: +SKIP
        >>> lines = format_evidence(evidence)  # doctest: +SKIP
    """
    lines: list[str] = []
    for table in evidence.tables:
        lines += [_TITLES[table.number], *_align(_table_rows(table, evidence)), ""]
    for sizes in evidence.sizes:
        title = f"Table {SIZES}. Random vectors, static vectors and ELMo by number of training examples"
        lines += [title, *_align(_size_rows(sizes, evidence)), ""]
    if evidence.curves:
        lines += ["Figure 1. Fewer training examples"]
        for curve in evidence.curves:
            lines += _align(_curve_rows(curve))
            enough, n_all = curve.n_enough, curve.points[-1].n_examples
            if enough is not None and enough < n_all:
                share = f"{enough / n_all:.0%}"
                lines.append(f"  With ELMo, {enough:,} examples are as good as {n_all:,} without it ({share}).")
            lines.append("")
    if evidence.mixes:
        lines += ["Figure 2. Learned layer weights", *_align(_mix_rows(evidence.mixes)), ""]
    return [*lines, *_notes(evidence)]


def _table_rows(table: ScoreTable, evidence: Evidence) -> list[list[str]]:
    names = _NAMES[table.number]
    head = ["task", "score", "train", *(names[name] for name in TABLES[table.number])]
    rows = [[*head, _GAIN_TITLES[table.number], "error reduction"]]
    about = {task.task: task for task in evidence.tasks}
    for row in table.rows:
        gain = row.gains[0].gain
        cells = [_format_summary(row.cells[name]) for name in TABLES[table.number]]
        cells += [_format_gain(gain), "-" if gain.error_reduction is None else f"{gain.error_reduction:+.1%}"]
        task = about[row.task]
        rows.append([_task(row.task), task.score, f"{task.n_train:,}", *cells])
    return rows


def _size_rows(table: SizeTable, evidence: Evidence) -> list[list[str]]:
    score = next(task.score for task in evidence.tasks if task.task == table.task)
    names = [_NAMES[SIZES][name] for name in TABLES[SIZES]]
    rows = [[_task(table.task), "score", *names, "ELMo over static", "ELMo over random"]]
    for row in table.rows:
        cells = [_format_summary(row.cells[name]) for name in TABLES[SIZES]]
        rows.append([f"{row.n_examples:,}", score, *cells, *(_format_gain(gain.gain) for gain in row.gains)])
    return rows


def _curve_rows(curve: Curve) -> list[list[str]]:
    rows = [[_task(curve.task), "examples", "baseline", "ELMo", "ELMo over baseline"]]
    n_all = curve.points[-1].n_examples
    for point in curve.points:
        share = f"{point.n_examples / n_all:.0%}"
        cells = [_format_summary(point.baseline), _format_summary(point.elmo), _format_gain(point.gain)]
        rows.append([share, f"{point.n_examples:,}", *cells])
    return rows


def _mix_rows(mixes: Sequence[MixSummary]) -> list[list[str]]:
    n_layers = max(len(mix.shares) for mix in mixes)
    names = {"input": "λ=0.001", "lambda_1": "λ=1", "output": "output only", "both": "both", "elmo_only": "ELMo only"}
    rows = [["task", "position", "condition", *(f"layer {k}" for k in range(n_layers)), "gamma"]]
    for mix in mixes:
        shares = [f"{share:.3f}" for share in mix.shares]
        rows.append([_task(mix.task), mix.place, names[mix.condition], *shares, f"{mix.gamma:.2f}"])
    return rows


def _notes(evidence: Evidence) -> list[str]:
    notes = ["Scores in percent, one seed."]
    if evidence.n_seeds > 1:
        notes = [f"Scores in percent: mean and standard deviation over {evidence.n_seeds} seeds."]
        notes.append("In brackets: 95 % confidence interval of the difference (Welch's t over seeds).")
    if evidence.tables:
        notes.append("Error reduction: the difference divided by the distance to 100 %.")
    if any(task.scored_on == "dev" for task in evidence.tasks):
        notes.append("Tasks without a test set are scored on the dev set, which also selects the best epoch.")
    if evidence.curves or evidence.sizes:
        limit = f"at most {MAX_FACTOR:.0f} times as many"
        notes.append(f"Runs with a fraction s of the examples have 1/√s times as many epochs, {limit}.")
    return notes


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align the cells of rows: the first column to the left, the others to the right."""
    widths = [max(text_width(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = []
    for row in rows:
        first = row[0] + " " * (widths[0] - text_width(row[0]))
        rest = [" " * (wide - text_width(cell)) + cell for cell, wide in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(["", first, *rest]).rstrip())
    return lines


def _task(name: str) -> str:
    return shorten(to_plain_text(name), _TASK)


def _format_summary(summary: ScoreSummary) -> str:
    spread = "" if summary.spread is None else f" ± {100 * summary.spread:.2f}"
    return f"{100 * summary.mean:.2f}{spread}"


def _format_gain(gain: Difference) -> str:
    text = f"{100 * gain.difference:+.2f}"
    if gain.interval is None:
        return text
    low, high = gain.interval
    return f"{text} [{100 * low:+.2f}, {100 * high:+.2f}]"
