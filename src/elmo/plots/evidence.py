"""Curves of sample efficiency in, a picture out, a panel a task (Figure 1 of the paper).

Table 1 in, a picture out: how many points ELMo adds to each task, with intervals and the seeds' spread.

Evidence and a folder in, its pictures out; without matplotlib, the names of those that were left out.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from elmo.errors import DataError, MissingExtraError
from elmo.evidence.runs import BASELINE, ELMO
from elmo.evidence.tables import Curve, Evidence, Mix, Summary, Table
from elmo.plots.figure import check, drawable, save
from elmo.text.display import shorten, text_width, to_plain_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# blue and vermilion, circles and squares: apart for readers without red or green, and in print
_STYLES = {"ELMo": ("#0072B2", "o", "-"), "baseline": ("#D55E00", "s", "--")}
_COLUMNS = 3
_PANEL = (3.4, 2.7)  # inches
_TITLE = 28  # Latin letters
_LETTERS = 14  # of the smallest print in an inch


def draw_curves(curves: Sequence[Curve], path: str | Path, *, scores: Mapping[str, str]) -> None:
    """Write the picture; ``scores`` names each task's score."""
    target = Path(path)
    if not curves:
        raise DataError("expected curves to draw, found none")
    check(target)
    save(_curves_figure(curves, scores), target)


def _curves_figure(curves: Sequence[Curve], scores: Mapping[str, str]) -> Figure:
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, len(curves))
    rows = math.ceil(len(curves) / columns)
    size = (max(_PANEL[0] * columns, 4.4), _PANEL[1] * rows + 0.7)
    figure = Figure(figsize=size, facecolor="white", layout="constrained")
    figure.suptitle("Scores with fewer training examples", fontsize=12, x=0.02, ha="left")
    cells = figure.subplots(rows, columns, squeeze=False).ravel()
    fonts, titles = drawable([shorten(to_plain_text(curve.task), _TITLE) for curve in curves])
    for axes, curve, title in zip(cells, curves, titles, strict=False):
        _draw(axes, curve)
        axes.set_title(title, fontsize=10, loc="left", family=fonts, parse_math=False)
        axes.set_ylabel(f"{scores[curve.task]}, points", fontsize=8.5)
    for axes in cells[len(curves) :]:
        axes.set_visible(False)
    lines, names = cells[0].get_legend_handles_labels()
    figure.legend(
        lines, names, loc="outside lower left", ncols=2, fontsize=9, frameon=False,
        title=_under(curves, 0.9 * size[0]), title_fontsize=8.5, alignment="left",
    )  # fmt: skip
    return figure


def _under(curves: Sequence[Curve], inches: float) -> str:
    """What the lines mean, in as many lines as fit into so many inches."""
    n_seeds = len(curves[0].points[0].baseline.scores)
    band = f"bands: one standard deviation over {n_seeds} seeds" if n_seeds > 1 else "one seed"
    text = f"{band}; dotted: the baseline with all examples; the axis of examples is logarithmic"
    return textwrap.fill(text, int(inches * _LETTERS))


def _draw(axes: Axes, curve: Curve) -> None:
    sizes = [point.n_examples for point in curve.points]
    lines: dict[str, list[Summary]] = {
        "ELMo": [point.elmo for point in curve.points],
        "baseline": [point.baseline for point in curve.points],
    }
    for name, summaries in lines.items():
        colour, marker, dash = _STYLES[name]
        means = [100 * one.mean for one in summaries]
        axes.plot(
            sizes, means, dash, color=colour, marker=marker, markersize=4, linewidth=1.6, label=name, zorder=3
        )
        reach = [100 * (one.spread or 0.0) for one in summaries]
        low, high = ([m + sign * r for m, r in zip(means, reach, strict=True)] for sign in (-1, 1))
        axes.fill_between(sizes, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.axhline(100 * curve.points[-1].baseline.mean, color="0.6", linewidth=0.8, linestyle=":", zorder=1)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=8, rotation=45)
    axes.minorticks_off()
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="y", color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


_BLUE = "#0072B2"
_NAME = 30  # Latin letters
_LINE = 0.42  # inches


def draw_gains(table: Table, path: str | Path, *, scores: Mapping[str, str]) -> None:
    """Write the picture of Table 1; ``scores`` names each task's score."""
    target = Path(path)
    if not table.rows:
        raise DataError("expected tasks to draw, found none")
    check(target)
    save(_gains_figure(table, scores), target)


def _gains_figure(table: Table, scores: Mapping[str, str]) -> Figure:
    from matplotlib.figure import Figure

    names = [f"{shorten(to_plain_text(row.task), _NAME)} ({scores[row.task]})" for row in table.rows]
    fonts, names = drawable(names)
    n = len(names)
    left, right, top, bottom = 0.35 + 0.085 * max(map(text_width, names)), 1.75, 0.75, 0.6
    width, height = left + 4.2 + right, top + _LINE * n + bottom
    figure = Figure(figsize=(width, height), facecolor="white")
    n_seeds = len(table.rows[0].cells[ELMO].scores)
    under = f"dots: means over {n_seeds} seeds; bars: 95 % intervals" if n_seeds > 1 else "one seed"
    figure.text(0.15 / width, 1 - 0.12 / height, "What ELMo adds to the baseline", va="top", fontsize=12)
    figure.text(0.15 / width, 1 - 0.4 / height, under, va="top", fontsize=9, color="0.35")
    axes = figure.add_axes((left / width, bottom / height, 4.2 / width, _LINE * n / height))
    axes.axvline(0, color="0.4", linewidth=1)
    for place, row in enumerate(table.rows):
        gain = row.gains[0].gain
        if gain.interval is not None:
            low, high = gain.interval
            axes.plot([100 * low, 100 * high], [place, place], color=_BLUE, linewidth=2)
        axes.plot([100 * gain.difference], [place], "o", color=_BLUE, markersize=7)
        without, with_elmo = (100 * row.cells[name].mean for name in (BASELINE, ELMO))
        axes.annotate(
            f"{without:.1f} → {with_elmo:.1f}", (1, place), xycoords=("axes fraction", "data"),
            xytext=(10, 0), textcoords="offset points", va="center", fontsize=9, annotation_clip=False,
        )  # fmt: skip
    axes.set_ylim(n - 0.5, -0.5)
    axes.set_yticks(range(n), names, fontsize=9, family=fonts, parse_math=False)
    axes.set_xlabel("points of 100", fontsize=9)
    axes.tick_params(axis="x", labelsize=8.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return figure


CURVES, MIXES, GAINS = "sample-efficiency.png", "mixes.png", "gains.png"
_DRAWN = (("input", ("input", "both")), ("output", ("output", "both")))  # a place, and runs to take it from


def draw_pictures(evidence: Evidence, folder: Path) -> tuple[list[str], list[str]]:
    """Names of the pictures that were drawn, and of those that were not because matplotlib is missing."""
    drawn: list[str] = []
    left_out: list[str] = []
    for name, draw in _pictures(evidence).items():
        try:
            draw(folder / name)
            drawn.append(name)
        except MissingExtraError:
            left_out.append(name)
    return drawn, left_out


def _pictures(evidence: Evidence) -> dict[str, Callable[[Path], None]]:
    """What there is to draw."""
    scores = {one.task: one.score for one in evidence.tasks}
    found: dict[str, Callable[[Path], None]] = {}

    def curves(path: Path) -> None:
        draw_curves(evidence.curves, path, scores=scores)

    def gains(path: Path) -> None:
        draw_gains(next(table for table in evidence.tables if table.number == 1), path, scores=scores)

    def mixes(path: Path) -> None:
        from elmo.plots.tasks import MAX_COLUMNS, LearnedMix, draw_mixes

        chosen = [one for one in _chosen(evidence) if one.place == "input"][:MAX_COLUMNS]
        chosen += [one for one in _chosen(evidence) if one.place == "output"][:MAX_COLUMNS]
        draw_mixes([LearnedMix(one.task, one.place, one.shares, one.gamma) for one in chosen], path)

    if evidence.curves:
        found[CURVES] = curves
    if any(table.number == 1 for table in evidence.tables):
        found[GAINS] = gains
    if _chosen(evidence):
        found[MIXES] = mixes
    return found


def _chosen(evidence: Evidence) -> list[Mix]:
    """One mix for each task and place."""
    found = []
    for task in evidence.tasks:
        for place, conditions in _DRAWN:
            mixes = {
                mix.condition: mix for mix in evidence.mixes if (mix.task, mix.place) == (task.task, place)
            }
            found += [mixes[name] for name in conditions if name in mixes][:1]
    return found
