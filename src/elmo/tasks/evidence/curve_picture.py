"""Curves of sample efficiency in, a picture out, a panel a task (Figure 1 of the paper)."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from elmo.embed.figure import check, drawable, plain, save, shortened
from elmo.errors import DataError
from elmo.tasks.evidence.statistics import Summary
from elmo.tasks.evidence.tables import Curve

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
    save(_figure(curves, scores), target)


def _figure(curves: Sequence[Curve], scores: Mapping[str, str]) -> Figure:
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, len(curves))
    rows = math.ceil(len(curves) / columns)
    size = (max(_PANEL[0] * columns, 4.4), _PANEL[1] * rows + 0.7)
    figure = Figure(figsize=size, facecolor="white", layout="constrained")
    figure.suptitle("Scores with fewer training examples", fontsize=12, x=0.02, ha="left")
    cells = figure.subplots(rows, columns, squeeze=False).ravel()
    fonts, titles = drawable([shortened(plain(curve.task), _TITLE) for curve in curves])
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
