"""Table 1 in, a picture out: how many points ELMo adds to each task, with intervals and the seeds' spread."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from elmo.embed.figure import check, drawable, plain, save, shortened, text_width
from elmo.errors import DataError
from elmo.tasks.evidence.conditions import BASELINE, ELMO
from elmo.tasks.evidence.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BLUE = "#0072B2"
_NAME = 30  # Latin letters
_LINE = 0.42  # inches


def draw_gains(table: Table, path: str | Path, *, scores: Mapping[str, str]) -> None:
    """Write the picture of Table 1; ``scores`` names each task's score."""
    target = Path(path)
    if not table.rows:
        raise DataError("expected tasks to draw, found none")
    check(target)
    save(_figure(table, scores), target)


def _figure(table: Table, scores: Mapping[str, str]) -> Figure:
    from matplotlib.figure import Figure

    names = [f"{shortened(plain(row.task), _NAME)} ({scores[row.task]})" for row in table.rows]
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
