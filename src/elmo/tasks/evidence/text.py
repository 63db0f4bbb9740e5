"""Evidence in, lines of text out: the tables as the paper prints them, scores in points of 100."""

from __future__ import annotations

from collections.abc import Sequence

from elmo.embed.figure import plain, shortened, text_width
from elmo.tasks.evidence.conditions import MAX_FACTOR, TABLES
from elmo.tasks.evidence.statistics import Difference, Summary
from elmo.tasks.evidence.tables import Curve, Evidence, Mix, Table

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
    return shortened(plain(name), _TASK)


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
