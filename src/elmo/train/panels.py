"""Curves in, a panel of a picture out: its axes, its colours, and labels beside the ends of its lines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart with and without colour vision; their yellow is too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, FAINT, GRID = "#333333", "#777777", "#e6e6e6"
N_POINTS = 2000  # more than a curve is wide in dots
ACROSS, LABEL_HEIGHT = 6.6, 0.18  # inches: a panel, a line of text beside it


@dataclass(frozen=True)
class Curve:
    """One line of a panel."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    run: int  # which run's colour it has
    is_dashed: bool = False


@dataclass(frozen=True)
class Label:
    """What stands to the right of a curve's end."""

    text: str
    y: float
    run: int


def draw_losses(axes: Axes, reports: list[Curve], means: list[Curve], *, thickness: float) -> None:
    """Means as lines, the reports that they are means of faint behind them."""
    from matplotlib.ticker import MaxNLocator

    _dress(axes, "Training loss", "nats a token")
    for curve in map(_outline, reports):
        axes.plot(curve.x, curve.y, color=_colour(curve.run), alpha=0.28, linewidth=0.8)
    for curve in means:
        _draw(axes, curve, thickness, has_points=len(curve.x) == 1)
    # The first steep fall would squeeze all the rest: what lies in the first 2% may leave the panel above.
    end = max(float(curve.x[-1]) for curve in means)
    high = max(float(curve.y[curve.x >= min(0.02 * end, curve.x[-1])].max()) for curve in means)
    high = max(high, *(float(curve.y[len(curve.y) // 2 :].max()) for curve in reports))
    low = min(float(curve.y.min()) for curve in reports)
    room = max(high - low, 0.02 * abs(high), 1e-6)
    axes.set_ylim(low - 0.06 * room, high + 0.06 * room)
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))


def draw_perplexities(axes: Axes, curves: list[Curve], *, thickness: float, note: str) -> None:
    """Lines on a log scale, with a point for each evaluation unless there are very many."""
    _dress(axes, "Held-out perplexity", f"{note}log scale")
    for curve in curves:
        _draw(axes, curve, thickness, has_points=len(curve.x) <= 40)
    _scale_perplexities(axes, curves)


def mark(axes: Axes, x: float, text: str, *, is_near_the_end: bool) -> None:
    """A dotted line from top to bottom, with a word beside it."""
    axes.axvline(x, color=FAINT, linewidth=0.9, linestyle=(0, (1, 2)))
    axes.annotate(
        text, (x, 1), xycoords=("data", "axes fraction"), xytext=(-4 if is_near_the_end else 4, -2),
        textcoords="offset points", ha="right" if is_near_the_end else "left", va="top", fontsize=9,
        color=FAINT,
    )  # fmt: skip


def _outline(curve: Curve) -> Curve:
    """The curve, or of one with more points than a picture is wide the least and greatest of each stretch.

    It looks the same, and spares a gigabyte for the strokes of a run of millions of steps.
    """
    size = len(curve.x) // N_POINTS
    if size <= 2:
        return curve
    n = len(curve.x) // size * size
    x, y = curve.x[:n].reshape(-1, size), curve.y[:n].reshape(-1, size)
    ends = np.stack([y.min(axis=1), y.max(axis=1)], axis=1)  # (stretch, 2)
    return Curve(np.repeat(x[:, size // 2], 2), ends.reshape(-1), curve.run)


def _draw(axes: Axes, curve: Curve, thickness: float, *, has_points: bool) -> None:
    # the runs that come when the colours are used up are dotted
    style: Any = "solid" if curve.run < len(COLOURS) else (0, (1, 1.2))
    axes.plot(
        curve.x, curve.y, color=_colour(curve.run), linewidth=thickness, solid_capstyle="round",
        linestyle=(0, (3, 1.6)) if curve.is_dashed else style,
        marker="o" if has_points else None, markersize=3.2,
    )  # fmt: skip


def _colour(run: int) -> str:
    return COLOURS[run % len(COLOURS)]


def _dress(axes: Axes, title: str, note: str) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", length=0, labelsize=9, labelcolor=INK)
    axes.tick_params(axis="x", labelbottom=True)  # a panel above another would have none
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=9)
    axes.annotate(
        note, (1, 1), xycoords="axes fraction", xytext=(0, 9), textcoords="offset points",
        ha="right", va="bottom", fontsize=9, color=FAINT,
    )  # fmt: skip


def _scale_perplexities(axes: Axes, curves: list[Curve]) -> None:
    """A log scale marked with plain round numbers."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    low = min(float(curve.y.min()) for curve in curves)
    high = max(float(curve.y.max()) for curve in curves)
    room = max(math.log(high / low), 0.02)
    low, high = low * math.exp(-0.07 * room), high * math.exp(0.07 * room)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks: list[float] = []
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)):
        marks = [mark for power in powers for digit in digits if low <= (mark := digit * 10.0**power) <= high]
        if len(marks) >= 4:
            break
    else:
        marks = [mark for mark in MaxNLocator(5).tick_values(low, high) if low <= mark <= high]
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator(marks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))


def scale_across(axes: Axes, end: float, unit: str) -> None:
    """The horizontal axis, from 0 to ``end``, with short round numbers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_xlim(0, (end or 1.0) * 1.01)
    axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_count(value)))
    axes.set_xlabel(unit, fontsize=10, color=INK, labelpad=6)


def short_count(value: float) -> str:
    """A count in few letters: 950, 12.5k, 3M, 1.25B."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def write_labels(axes: Axes, labels: list[Label], fonts: list[str], panel_height: float) -> None:
    """Beside the ends of their curves, moved apart where they would cover one another."""
    bottom, top = axes.get_ylim()
    to_scale = math.log if axes.get_yscale() == "log" else float
    low, high = to_scale(bottom), to_scale(top)
    wanted = [min(max((to_scale(label.y) - low) / (high - low), 0.0), 1.0) for label in labels]
    for label, place in zip(labels, apart(wanted, LABEL_HEIGHT / panel_height), strict=True):
        axes.text(
            1 + 0.12 / ACROSS, place, label.text, transform=axes.transAxes, va="center", ha="left",
            family=fonts, fontsize=9.5, color=_colour(label.run), parse_math=False,
        )  # fmt: skip


def apart(places: list[float], distance: float) -> list[float]:
    """Places in 0..1, in their order, each moved as little as keeps ``distance`` between any two."""
    order = sorted(range(len(places)), key=places.__getitem__)
    groups: list[tuple[float, int]] = []  # middle and size of labels that touch
    for index in order:
        middle, size = _inside(places[index], 1, distance), 1
        while groups and middle - groups[-1][0] < distance * (size + groups[-1][1]) / 2:
            before, more = groups.pop()
            middle, size = (middle * size + before * more) / (size + more), size + more
            middle = _inside(middle, size, distance)
        groups.append((middle, size))
    spots = [middle + distance * (k - (size - 1) / 2) for middle, size in groups for k in range(size)]
    moved = dict(zip(order, spots, strict=True))
    return [moved[k] for k in range(len(places))]


def _inside(middle: float, size: int, distance: float) -> float:
    half = distance * (size - 1) / 2
    return min(max(middle, half), max(1 - half, half))
