"""Draw results of experiments: sample efficiency (Figure 1 of the paper), gains (Table 1), layer weights (Figure 2)."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from elmo.errors import DataError, MissingExtraError
from elmo.evidence.runs import BASELINE, ELMO
from elmo.evidence.tables import Curve, Evidence, ScoreSummary, ScoreTable
from elmo.plots.figure import draw_figure, new_figure, prepare_lines, style_axes
from elmo.plots.tasks import MAX_COLUMNS, LearnedMix, draw_mixes
from elmo.text.display import shorten, text_width, to_plain_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# these colors and markers can be distinguished by color-blind readers and in print
_STYLES = {"ELMo": ("#0072B2", "o", "-"), "baseline": ("#D55E00", "s", "--")}
_COLUMNS = 3
_PANEL = (3.4, 2.7)  # width and height in inches
_TITLE = 28  # maximum width of a title in Latin letters
_LETTERS = 14  # letters per inch in the smallest font
_BLUE = "#0072B2"
_NAME = 30  # maximum width of a task name in Latin letters
_LINE = 0.42  # height of a line in inches
CURVES, MIXES, GAINS = "sample-efficiency.png", "mixes.png", "gains.png"
# for each position of ELMo, the conditions whose mix can be drawn; the first one that exists is drawn
_POSITIONS = (("input", ("input", "both")), ("output", ("output", "both")))


def draw_curves(curves: Sequence[Curve], path: str | Path, *, scores: Mapping[str, str]) -> None:
    """Draw the scores against the number of training examples, one panel per task.

    ``scores`` maps each task to the name of its score, such as "F1".
    """
    if not curves:
        raise DataError("cannot draw curves: there must be at least one curve; found none")
    draw_figure(path, lambda: _curves_figure(curves, scores))


def _curves_figure(curves: Sequence[Curve], scores: Mapping[str, str]) -> Figure:
    columns = min(_COLUMNS, len(curves))
    rows = math.ceil(len(curves) / columns)
    width = max(_PANEL[0] * columns, 4.4)
    figure = new_figure(width, _PANEL[1] * rows + 0.7, layout="constrained")
    figure.suptitle("Scores with fewer training examples", fontsize=12, x=0.02, ha="left")
    cells = figure.subplots(rows, columns, squeeze=False).ravel()
    fonts, titles = prepare_lines([shorten(to_plain_text(curve.task), _TITLE) for curve in curves])
    for axes, curve, title in zip(cells, curves, titles, strict=False):
        _draw(axes, curve)
        axes.set_title(title, fontsize=10, loc="left", family=fonts, parse_math=False)
        axes.set_ylabel(f"{scores[curve.task]} (%)", fontsize=8.5)
    for axes in cells[len(curves) :]:
        axes.set_visible(False)
    lines, names = cells[0].get_legend_handles_labels()
    figure.legend(
        lines, names, loc="outside lower left", ncols=2, fontsize=9, frameon=False,
        title=_explain_lines(curves, 0.9 * width), title_fontsize=8.5, alignment="left",
    )  # fmt: skip
    return figure


def _explain_lines(curves: Sequence[Curve], inches: float) -> str:
    """Return a text that explains the lines of the figure, wrapped to a width in inches."""
    n_seeds = len(curves[0].points[0].baseline.scores)
    band = f"bands: one standard deviation over {n_seeds} seeds" if n_seeds > 1 else "one seed"
    text = f"{band}; dotted: baseline with all examples; logarithmic axis"
    return textwrap.fill(text, int(inches * _LETTERS))


def _draw(axes: Axes, curve: Curve) -> None:
    sizes = [point.n_examples for point in curve.points]
    lines: dict[str, list[ScoreSummary]] = {
        "ELMo": [point.elmo for point in curve.points],
        "baseline": [point.baseline for point in curve.points],
    }
    for name, summaries in lines.items():
        color, marker, dash = _STYLES[name]
        means = [100 * summary.mean for summary in summaries]
        axes.plot(sizes, means, dash, color=color, marker=marker, markersize=4, linewidth=1.6, label=name, zorder=3)
        reach = [100 * (summary.spread or 0.0) for summary in summaries]
        low, high = ([m + sign * r for m, r in zip(means, reach, strict=True)] for sign in (-1, 1))
        axes.fill_between(sizes, low, high, color=color, alpha=0.18, linewidth=0)
    axes.axhline(100 * curve.points[-1].baseline.mean, color="0.6", linewidth=0.8, linestyle=":", zorder=1)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=8, rotation=45)
    axes.minorticks_off()
    axes.tick_params(axis="y", labelsize=8)
    style_axes(axes, grid="y", color="0.92")


def draw_gains(table: ScoreTable, path: str | Path, *, scores: Mapping[str, str]) -> None:
    """Draw the gain of ELMo over the baseline for each task (Table 1 of the paper), with confidence intervals.

    ``scores`` maps each task to the name of its score, such as "F1".
    """
    if not table.rows:
        raise DataError("cannot draw gains: the table must have at least one task; found none")
    draw_figure(path, lambda: _gains_figure(table, scores))


def _gains_figure(table: ScoreTable, scores: Mapping[str, str]) -> Figure:
    names = [f"{shorten(to_plain_text(row.task), _NAME)} ({scores[row.task]})" for row in table.rows]
    fonts, names = prepare_lines(names)
    n = len(names)
    left, right, top, bottom = 0.35 + 0.085 * max(map(text_width, names)), 1.75, 0.75, 0.6
    width, height = left + 4.2 + right, top + _LINE * n + bottom
    figure = new_figure(width, height)
    n_seeds = len(table.rows[0].cells[ELMO].scores)
    under = f"dots: means over {n_seeds} seeds; bars: 95 % intervals" if n_seeds > 1 else "one seed"
    figure.text(0.15 / width, 1 - 0.12 / height, "Gain of ELMo over the baseline", va="top", fontsize=12)
    figure.text(0.15 / width, 1 - 0.4 / height, under, va="top", fontsize=9, color="0.35")
    axes = figure.add_axes((left / width, bottom / height, 4.2 / width, _LINE * n / height))
    axes.axvline(0, color="0.4", linewidth=1)
    for y, row in enumerate(table.rows):
        gain = row.gains[0].gain
        if gain.interval is not None:
            low, high = gain.interval
            axes.plot([100 * low, 100 * high], [y, y], color=_BLUE, linewidth=2)
        axes.plot([100 * gain.difference], [y], "o", color=_BLUE, markersize=7)
        without, with_elmo = (100 * row.cells[name].mean for name in (BASELINE, ELMO))
        axes.annotate(
            f"{without:.1f} → {with_elmo:.1f}", (1, y), xycoords=("axes fraction", "data"),
            xytext=(10, 0), textcoords="offset points", va="center", fontsize=9, annotation_clip=False,
        )  # fmt: skip
    axes.set_ylim(n - 0.5, -0.5)
    axes.set_yticks(range(n), names, fontsize=9, family=fonts, parse_math=False)
    axes.set_xlabel("percentage points", fontsize=9)
    axes.tick_params(axis="x", labelsize=8.5)
    axes.tick_params(axis="y", length=0)
    style_axes(axes, grid="x", color="0.92", hidden=("top", "right", "left"))
    return figure


def draw_pictures(evidence: Evidence, folder: Path) -> tuple[list[str], list[str]]:
    """Draw all figures of the evidence into a folder.

    Returns the file names of the figures that were drawn, and of those that were skipped because matplotlib is not
    installed.
    """
    scores = {task.task: task.score for task in evidence.tasks}
    figures: dict[str, Callable[[Path], None]] = {}
    if evidence.curves:
        figures[CURVES] = partial(draw_curves, evidence.curves, scores=scores)
    for table in evidence.tables:
        if table.number == 1:
            figures[GAINS] = partial(draw_gains, table, scores=scores)
    if mixes := _select_mixes(evidence):
        figures[MIXES] = partial(draw_mixes, mixes)
    drawn: list[str] = []
    skipped: list[str] = []
    for name, draw in figures.items():
        try:
            draw(folder / name)
            drawn.append(name)
        except MissingExtraError:
            skipped.append(name)
    return drawn, skipped


def _select_mixes(evidence: Evidence) -> list[LearnedMix]:
    """Select one mix per position and task, for as many tasks as fit into the figure."""
    selected = []
    for position, conditions in _POSITIONS:
        own = []
        for task in evidence.tasks:
            mixes = {mix.condition: mix for mix in evidence.mixes if (mix.task, mix.place) == (task.task, position)}
            own += [mixes[name] for name in conditions if name in mixes][:1]
        selected += [LearnedMix(mix.task, mix.place, mix.shares, mix.gamma) for mix in own[:MAX_COLUMNS]]
    return selected
