"""Curves in, a panel of a picture out: its axes, its colours, and labels beside the ends of its lines.

Runs in, a picture of how they learned out: training loss above, held-out perplexity below.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError, ElmoError
from elmo.plots.figure import INSTALL_FONTS, check, fonts_for, save
from elmo.storage.files import format_error, format_path
from elmo.text.display import shorten, text_width, to_plain_text
from elmo.train.log import Entry, Run, read_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


logger = logging.getLogger(__name__)

Against = Literal["tokens", "hours", "steps"]
NAME = "curves.png"
_NAME_WIDTH = 30  # of a run's name, in Latin letters
_FEW = 3  # runs; of more, both directions would be a tangle, and their mean is drawn
_LARGEST = 1e100  # of what is drawn: a run that went astray may log anything
_SMOOTH_SHARE = 50  # without another wish, a mean goes over one part in so many of the reports


def draw_curves(
    runs: str | Path | Run | Sequence[str | Path | Run],
    path: str | Path = NAME,
    *,
    against: Against = "tokens",
    smooth: int | None = None,
) -> Path:
    """Draw one or more runs to a PNG, PDF or SVG file, as its suffix says.

    A run is named by its folder ``OUT.training``, by the model ``OUT`` or by its ``log.jsonl``. ``smooth`` is
    how many reports the line of the training loss is a mean of; the reports themselves are drawn faintly.
    """
    target = Path(path)
    check(target)
    if against not in ("tokens", "hours", "steps"):
        raise ConfigError(f"against must be tokens, hours or steps, not {against!r:.40}")
    if smooth is not None and smooth < 1:
        raise ConfigError(f"smooth must be at least 1, found {smooth!r:.40}")
    save(_figure(with_entries(runs), against, smooth), target)
    return target


def leave_curves(folder: Path) -> Path | None:
    """Draw the run of a training folder into it; where that fails, say why in one line and go on."""
    try:
        return draw_curves(folder, folder / NAME)
    except ElmoError as error:
        logger.warning("the curves were not drawn: %s", error)
    except (ArithmeticError, ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        # a matplotlib that is broken, or newer than any we know, must not harm a model that took days
        logger.warning("%s: the curves were not drawn: %s", format_path(folder), format_error(error))
    return None


def with_entries(runs: str | Path | Run | Sequence[str | Path | Run]) -> list[Run]:
    """The runs, read where they are named only; those that have nothing to show yet are left out, aloud."""
    given = [runs] if isinstance(runs, str | Path | Run) else list(runs)
    read = iter(read_runs([run for run in given if not isinstance(run, Run)]))
    found = [run if isinstance(run, Run) else next(read) for run in given]
    empty = [run for run in found if not run.entries]
    if not found:
        raise DataError("expected at least one run to draw, found none")
    if len(empty) == len(found):
        raise DataError(f"{format_path(found[0].path)}: holds no report yet; wait until the run has logged one")
    for run in empty:
        logger.warning("%s: holds no report yet, and is left out", format_path(run.path))
    return [run for run in found if run.entries]


def smoothed(values: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Means over ``n`` neighbours, as many on either side, so that none lags.

    The first steep fall is kept by taking fewer there; at the end only those to come are wanting, so that
    the last mean, which is the run's figure, is not one report's chance.
    """
    middle = np.arange(len(values))
    reach = np.minimum(middle, n // 2)
    end = np.minimum(middle + reach + 1, len(values))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return (sums[end] - sums[middle - reach]) / (end - middle + reach)


@dataclass(frozen=True)
class Figures:
    """Where a run stands: its last figures, and those of its best checkpoint."""

    run: str
    log: str
    step: int
    n_windows: int | None
    tokens: int
    epoch: int
    seconds: float | None
    loss: float | None  # smoothed as in the picture
    heldout_forward: float | None
    heldout_backward: float | None
    best: Entry | None


def figures(run: Run, smooth: int | None = None) -> Figures:
    """The figures of a run that has at least one entry."""
    last = run.entries[-1]
    losses = _means(_curve(run, 0, "loss", "steps", 1.0), smooth).y
    evaluated = [entry for entry in run.entries if entry.heldout is not None]
    seconds = [entry.seconds for entry in run.entries if entry.seconds is not None]
    return Figures(
        run=run.name,
        log=str(run.path),
        step=last.step,
        n_windows=last.n_windows,
        tokens=last.tokens,
        epoch=last.epoch,
        seconds=seconds[-1] if seconds else None,
        loss=float(losses[-1]) if len(losses) else None,
        heldout_forward=evaluated[-1].heldout_forward if evaluated else None,
        heldout_backward=evaluated[-1].heldout_backward if evaluated else None,
        best=run.best,
    )


def _figure(runs: list[Run], against: Against, smooth: int | None) -> Figure:
    from matplotlib.figure import Figure

    names, fonts = _names(runs)
    unit, scale = _unit(runs, against)
    reports = [
        curve for k, run in enumerate(runs) if len((curve := _curve(run, k, "loss", against, scale)).x)
    ]
    losses = [_means(curve, smooth) for curve in reports]
    heldout = _heldout(runs, against, scale)
    curves = [panel for panel in (losses, heldout) if panel]
    if not curves:
        raise DataError(f"{format_path(runs[0].path)}: holds no loss and no perplexity to draw")
    labels = [
        _heldout_labels(panel, names) if panel is heldout else _loss_labels(panel, names) for panel in curves
    ]

    # in inches: panels of one size, as high as their labels need, beside them room for the longest
    left, gap, top, bottom = 0.8, 0.8, 0.5, 0.62
    right = 0.35 + 0.078 * max(text_width(label.text) for column in labels for label in column)
    panel_height = max(2.8, (LABEL_HEIGHT + 0.02) * max(map(len, labels)))
    width = left + ACROSS + right
    height = top + len(curves) * panel_height + (len(curves) - 1) * gap + bottom
    figure = Figure(figsize=(width, height), facecolor="white")
    cells = figure.subplots(
        len(curves), 1, squeeze=False, sharex=True,
        gridspec_kw={
            "left": left / width, "right": 1 - right / width, "hspace": gap / panel_height,
            "top": 1 - top / height, "bottom": bottom / height,
        },
    )[:, 0]  # fmt: skip
    thickness = 1.8 if len(runs) <= _FEW else 1.3
    end = max(float(curve.x[-1]) for panel in curves for curve in panel)
    for axes, panel, column in zip(cells, curves, labels, strict=True):
        if panel is heldout:
            draw_perplexities(axes, heldout, thickness=thickness, note=_note(heldout, len(runs)))
            best = _best_place(runs, against)
            if best is not None:
                mark(axes, best / scale, "best", is_near_the_end=best / scale > 0.9 * end)
        else:
            draw_losses(axes, reports, losses, thickness=thickness)
        write_labels(axes, column, fonts, panel_height)
    scale_across(cells[-1], end, unit)
    return figure


# --- curves -----------------------------------------------------------------------------------------------


def _curve(run: Run, number: int, name: str, against: Against, scale: float) -> Curve:
    """What can be drawn of a figure: a perplexity may be infinite, and a report may have no time."""
    pairs = [(_place(entry, against), getattr(entry, name)) for entry in run.entries]
    least = -_LARGEST if name == "loss" else 1e-9
    numbers = [(x / scale, y) for x, y in pairs if x is not None and y is not None and least < y < _LARGEST]
    values = np.array(numbers, dtype=np.float64).reshape(-1, 2)
    return Curve(values[:, 0], values[:, 1], number)


def _means(reports: Curve, smooth: int | None) -> Curve:
    """The smoothed curve, of no more points than a picture can show."""
    n = len(reports.y)
    means = smoothed(reports.y, math.ceil(n / _SMOOTH_SHARE) if smooth is None else smooth)
    shown_points = np.arange(n - 1, -1, -max(1, n // N_POINTS))[::-1]  # the last always
    return Curve(reports.x[shown_points], means[shown_points], reports.run)


def _heldout(runs: list[Run], against: Against, scale: float) -> list[Curve]:
    """Both directions of each run, or of many runs the mean."""
    names = {"heldout_forward": False, "heldout_backward": True} if len(runs) <= _FEW else {"heldout": False}
    curves = [
        replace(_curve(run, k, name, against, scale), is_dashed=is_dashed)
        for k, run in enumerate(runs)
        for name, is_dashed in names.items()
    ]
    return [curve for curve in curves if len(curve.x)]


def _place(entry: Entry, against: Against) -> float | None:
    return {"tokens": entry.tokens, "steps": entry.step, "hours": entry.seconds}[against]


def _best_place(runs: list[Run], against: Against) -> float | None:
    """Where the model of a single run was taken from, unless that is the end."""
    best = runs[0].best
    last = [entry.step for entry in runs[0].entries if entry.heldout is not None][-1:]
    return None if len(runs) > 1 or best is None or best.step in last else _place(best, against)


def _unit(runs: list[Run], against: Against) -> tuple[str, float]:
    """The name of the horizontal axis, and what its values are divided by."""
    if against != "hours":
        return against, 1.0
    longest = 0.0
    for run in runs:
        times = [entry.seconds for entry in run.entries if entry.seconds is not None]
        if not times:
            raise DataError(f"{format_path(run.path)}: holds no times; draw it against tokens or steps")
        longest = max(longest, *times)
    if longest >= 2 * 3600:
        return "hours of training", 3600.0
    return ("minutes of training", 60.0) if longest >= 120 else ("seconds of training", 1.0)


# --- words ------------------------------------------------------------------------------------------------


def _names(runs: list[Run]) -> tuple[list[str], list[str]]:
    """What the runs are called in the picture, and the fonts that draw it."""
    names = [shorten(to_plain_text(run.name), _NAME_WIDTH) for run in runs]
    fonts, missing = fonts_for("".join(names))
    if missing:
        lost = [k for k, name in enumerate(names) if set(name) & set(missing)]
        logger.warning(
            "no installed font can draw %s: shown as %s, in the order given; %s",
            missing[:20], ", ".join(f"run {k + 1}" for k in lost), INSTALL_FONTS,
        )  # fmt: skip
        names = [f"run {k + 1}" if k in lost else name for k, name in enumerate(names)]
    return names, fonts


def _loss_labels(panel: list[Curve], names: list[str]) -> list[Label]:
    return [Label(f"{names[c.run]}  {c.y[-1]:.2f}", float(c.y[-1]), c.run) for c in panel]


def _heldout_labels(panel: list[Curve], names: list[str]) -> list[Label]:
    """One for each run; a run that is alone has one for each direction."""
    if len(names) == 1:
        return [
            Label(
                f"{'backward' if c.is_dashed else 'forward'}  {perplexity_text(c.y[-1])}",
                float(c.y[-1]),
                c.run,
            )
            for c in panel
        ]
    labels = []
    for number in sorted({curve.run for curve in panel}):
        ends = [float(curve.y[-1]) for curve in panel if curve.run == number]
        text = f"{names[number]}  {' / '.join(map(perplexity_text, ends))}"
        labels.append(Label(text, float(np.exp(np.mean(np.log(ends)))), number))
    return labels


def _note(heldout: list[Curve], n_runs: int) -> str:
    """Which line is which direction, where the labels do not say it."""
    if n_runs == 1:
        return ""
    if n_runs > _FEW:
        return "mean of the directions, "
    kinds = {curve.is_dashed for curve in heldout}
    if len(kinds) == 2:
        return "forward solid, backward dashed, "
    return "backward, " if True in kinds else "forward, "


def perplexity_text(value: float) -> str:
    """A perplexity in the digits that count: 8.13, 81.3, 813, 8,130."""
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}" if value < 1e7 else f"{value:.1e}"
