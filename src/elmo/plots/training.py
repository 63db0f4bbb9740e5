"""Draw the learning curves of training runs: the training loss at the top, the held-out perplexity at the bottom.

``draw_curves`` reads the logs of one or more runs and writes a picture. ``summarize`` returns the last and the
best numbers of a run.
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
from elmo.plots.figure import INSTALL_FONTS, draw_figure, find_fonts, new_figure, style_axes
from elmo.storage.files import format_error, format_path
from elmo.text.display import shorten, text_width, to_plain_text
from elmo.train.log import LogEntry, TrainingLog, read_logs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Against = Literal["tokens", "hours", "steps"]
FILE_NAME = "curves.png"
# The colors of Okabe and Ito (2008), which color-blind readers can distinguish, without the pale yellow.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, FAINT, GRID = "#333333", "#777777", "#e6e6e6"
N_POINTS = 2000  # longer curves are thinned, because a picture has fewer pixels
PANEL_WIDTH, LABEL_HEIGHT = 6.6, 0.18  # inches
_NAME_WIDTH = 30  # maximum width of the name of a run, in Latin letters
_FEW_RUNS = 3  # with more runs, the mean of both directions is drawn instead of each direction
_LARGEST = 1e100  # larger values, which a diverged run may log, are not drawn
_SMOOTH_SHARE = 50  # by default, each point is the mean of 1/50 of all log entries
logger = logging.getLogger(__name__)


def draw_curves(
    runs: str | Path | TrainingLog | Sequence[str | Path | TrainingLog],
    path: str | Path = FILE_NAME,
    *,
    against: Against = "tokens",
    smooth: int | None = None,
) -> Path:
    """Draw the curves of one or more training runs to a PNG, PDF or SVG file.

    Args:
        runs: One or more runs, each given as a folder ``MODEL.training``, the model next to it, or a
            ``log.jsonl`` file.
        path: Picture to write.
        against: Quantity on the horizontal axis.
        smooth: Number of log entries to average for each point of the loss curve. Default: 1/50 of all entries.

    Example:
        >>> draw_curves("run", "curves.png").name
        'curves.png'
    """
    if against not in ("tokens", "hours", "steps"):
        raise ConfigError(f"against must be tokens, hours or steps; found {against!r:.40}")
    if smooth is not None and smooth < 1:
        raise ConfigError(f"smooth must be at least 1; found {smooth!r:.40}")
    return draw_figure(path, lambda: _build_figure(read_nonempty(runs), against, smooth))


def write_curves(folder: Path) -> Path | None:
    """Draw the curves of a training run into its folder; if this fails, log a warning and return None."""
    try:
        return draw_curves(folder, folder / FILE_NAME)
    except ElmoError as error:
        logger.warning("skipping the picture of the curves: %s", error)
    except (ArithmeticError, ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        # a problem in matplotlib must not stop a training run of several days
        logger.warning("%s: cannot draw the curves: %s", format_path(folder), format_error(error))
    return None


def read_nonempty(runs: str | Path | TrainingLog | Sequence[str | Path | TrainingLog]) -> list[TrainingLog]:
    """Read the logs of training runs; runs without log entries are left out with a warning.

    A ``TrainingLog`` in ``runs`` is used as it is.
    """
    sources = [runs] if isinstance(runs, str | Path | TrainingLog) else list(runs)
    read = iter(read_logs([run for run in sources if not isinstance(run, TrainingLog)]))
    logs = [run if isinstance(run, TrainingLog) else next(read) for run in sources]
    empty = [run for run in logs if not run.entries]
    if not logs:
        raise DataError("cannot draw curves: there must be at least one run; found none")
    if len(empty) == len(logs):
        raise DataError(f"cannot draw {format_path(logs[0].path)}: it has no log entries yet; try again later")
    for run in empty:
        logger.warning("skipping %s: it has no log entries yet", format_path(run.path))
    return [run for run in logs if run.entries]


@dataclass(frozen=True)
class RunSummary:
    """The latest numbers of a training run, and the log entry of its best checkpoint.

    Attributes:
        run: Name of the run.
        log: Path of the log file.
        step: Number of steps so far.
        n_steps: Number of steps of the whole run.
        tokens: Number of tokens that were read so far.
        epoch: Number of passes over the text so far.
        seconds: Training time so far, in seconds.
        loss: Training loss, smoothed as in the picture.
        heldout_forward: Last held-out perplexity of the forward direction.
        heldout_backward: Last held-out perplexity of the backward direction.
        best: Log entry with the lowest held-out perplexity.
    """

    run: str
    log: str
    step: int
    n_steps: int | None
    tokens: int
    epoch: float
    seconds: float | None
    loss: float | None
    heldout_forward: float | None
    heldout_backward: float | None
    best: LogEntry | None


def summarize(run: TrainingLog, smooth: int | None = None) -> RunSummary:
    """Return the latest and the best numbers of a run, which must have at least one log entry."""
    last = run.entries[-1]
    losses = _smooth_curve(_extract(run, 0, "loss", "steps", 1.0), smooth).y
    evaluated = [entry for entry in run.entries if entry.heldout is not None]
    seconds = [entry.seconds for entry in run.entries if entry.seconds is not None]
    return RunSummary(
        run=run.name,
        log=str(run.path),
        step=last.step,
        n_steps=last.n_steps,
        tokens=last.tokens,
        epoch=last.epoch,
        seconds=seconds[-1] if seconds else None,
        loss=float(losses[-1]) if len(losses) else None,
        heldout_forward=evaluated[-1].heldout_forward if evaluated else None,
        heldout_backward=evaluated[-1].heldout_backward if evaluated else None,
        best=run.best,
    )


# --- the figure ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LogCurve:
    """One curve of a panel; ``run`` is the index of the run and determines the color."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    run: int
    is_dashed: bool = False


@dataclass(frozen=True)
class EndLabel:
    """A label to the right of the end of a curve."""

    text: str
    y: float
    run: int


def _build_figure(runs: list[TrainingLog], against: Against, smooth: int | None) -> Figure:
    names, fonts = _display_names(runs)
    unit, scale = _unit(runs, against)
    entries = [curve for k, run in enumerate(runs) if len((curve := _extract(run, k, "loss", against, scale)).x)]
    losses = [_smooth_curve(curve, smooth) for curve in entries]
    heldout = _heldout_curves(runs, against, scale)
    panels = [panel for panel in (losses, heldout) if panel]
    if not panels:
        raise DataError(f"cannot draw {format_path(runs[0].path)}: it has neither losses nor perplexities")
    labels = [_heldout_labels(panel, names) if panel is heldout else _loss_labels(panel, names) for panel in panels]

    # in inches: all panels have the same size, with enough space for their labels
    left, gap, top, bottom = 0.8, 0.8, 0.5, 0.62
    right = 0.35 + 0.078 * max(text_width(label.text) for column in labels for label in column)
    panel_height = max(2.8, (LABEL_HEIGHT + 0.02) * max(map(len, labels)))
    width = left + PANEL_WIDTH + right
    height = top + len(panels) * panel_height + (len(panels) - 1) * gap + bottom
    figure = new_figure(width, height)
    cells = figure.subplots(
        len(panels), 1, squeeze=False, sharex=True,
        gridspec_kw={
            "left": left / width, "right": 1 - right / width, "hspace": gap / panel_height,
            "top": 1 - top / height, "bottom": bottom / height,
        },
    )[:, 0]  # fmt: skip
    line_width = 1.8 if len(runs) <= _FEW_RUNS else 1.3
    end = max(float(curve.x[-1]) for panel in panels for curve in panel)
    for axes, panel, column in zip(cells, panels, labels, strict=True):
        if panel is heldout:
            _draw_perplexities(axes, heldout, line_width=line_width, note=_legend(heldout, len(runs)))
            best = _best_position(runs, against)
            if best is not None:
                _mark_best(axes, best / scale, is_near_end=best / scale > 0.9 * end)
        else:
            _draw_losses(axes, entries, losses, line_width=line_width)
        _draw_labels(axes, column, fonts, panel_height)
    _scale_x(cells[-1], end, unit)
    return figure


def _unit(runs: list[TrainingLog], against: Against) -> tuple[str, float]:
    """Return the label of the horizontal axis, and the number by which its values are divided."""
    if against != "hours":
        return against, 1.0
    longest = 0.0
    for run in runs:
        times = [entry.seconds for entry in run.entries if entry.seconds is not None]
        if not times:
            raise DataError(f"cannot draw {format_path(run.path)} against hours: it has no times; use tokens or steps")
        longest = max(longest, *times)
    if longest >= 2 * 3600:
        return "hours of training", 3600.0
    return ("minutes of training", 60.0) if longest >= 120 else ("seconds of training", 1.0)


# --- curves -------------------------------------------------------------------------------------------------


def _extract(run: TrainingLog, number: int, name: str, against: Against, scale: float) -> LogCurve:
    """Return a curve of the finite values of a field; entries without a position are left out."""
    pairs = [(_position(entry, against), getattr(entry, name)) for entry in run.entries]
    least = -_LARGEST if name == "loss" else 1e-9
    points = [(x / scale, y) for x, y in pairs if x is not None and y is not None and least < y < _LARGEST]
    values = np.array(points, dtype=np.float64).reshape(-1, 2)
    return LogCurve(values[:, 0], values[:, 1], number)


def _position(entry: LogEntry, against: Against) -> float | None:
    return {"tokens": entry.tokens, "steps": entry.step, "hours": entry.seconds}[against]


def _smooth_curve(curve: LogCurve, smooth: int | None) -> LogCurve:
    """Smooth a curve, and thin it to fewer than ``2 * N_POINTS`` points."""
    n = len(curve.y)
    means = moving_average(curve.y, math.ceil(n / _SMOOTH_SHARE) if smooth is None else smooth)
    index = np.arange(n - 1, -1, -max(1, n // N_POINTS))[::-1]  # always including the last point
    return LogCurve(curve.x[index], means[index], curve.run)


def moving_average(values: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Average each value with its neighbors, ``n // 2`` on either side.

    At the start, fewer neighbors are used on both sides, which keeps the steep fall of a loss curve. At the end,
    only the later neighbors are missing, so that the last mean does not depend on a single value.
    """
    middle = np.arange(len(values))
    reach = np.minimum(middle, n // 2)
    end = np.minimum(middle + reach + 1, len(values))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return (sums[end] - sums[middle - reach]) / (end - middle + reach)


def _heldout_curves(runs: list[TrainingLog], against: Against, scale: float) -> list[LogCurve]:
    """Return the perplexity curves of both directions of each run, or of their mean if there are many runs."""
    names = {"heldout_forward": False, "heldout_backward": True}
    if len(runs) > _FEW_RUNS:
        names = {"heldout": False}
    curves = [
        replace(_extract(run, k, name, against, scale), is_dashed=is_dashed)
        for k, run in enumerate(runs)
        for name, is_dashed in names.items()
    ]
    return [curve for curve in curves if len(curve.x)]


def _best_position(runs: list[TrainingLog], against: Against) -> float | None:
    """Return the position of the best checkpoint, if there is one run and the best is not the last."""
    best = runs[0].best
    last = [entry.step for entry in runs[0].entries if entry.heldout is not None][-1:]
    return None if len(runs) > 1 or best is None or best.step in last else _position(best, against)


# --- panels -------------------------------------------------------------------------------------------------


def _draw_losses(axes: Axes, entries: list[LogCurve], means: list[LogCurve], *, line_width: float) -> None:
    """Draw the smoothed losses as lines, and the losses of all log entries as faint lines below them."""
    from matplotlib.ticker import MaxNLocator

    _style_axes(axes, "Training loss", "nats per token")
    for curve in map(_outline, entries):
        axes.plot(curve.x, curve.y, color=_color(curve.run), alpha=0.28, linewidth=0.8)
    for curve in means:
        _draw_curve(axes, curve, line_width, has_points=len(curve.x) == 1)
    # The first 2% may exceed the panel, because the steep fall at the start would compress the rest.
    end = max(float(curve.x[-1]) for curve in means)
    high = max(float(curve.y[curve.x >= min(0.02 * end, curve.x[-1])].max()) for curve in means)
    high = max(high, *(float(curve.y[len(curve.y) // 2 :].max()) for curve in entries))
    low = min(float(curve.y.min()) for curve in entries)
    span = max(high - low, 0.02 * abs(high), 1e-6)
    axes.set_ylim(low - 0.06 * span, high + 0.06 * span)
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))


def _outline(curve: LogCurve) -> LogCurve:
    """Reduce a curve with very many points to the minimum and the maximum of each section.

    The picture looks the same, and a run of millions of steps takes much less memory.
    """
    size = len(curve.x) // N_POINTS
    if size <= 2:
        return curve
    n = len(curve.x) // size * size
    x, y = curve.x[:n].reshape(-1, size), curve.y[:n].reshape(-1, size)
    ends = np.stack([y.min(axis=1), y.max(axis=1)], axis=1)  # (section, 2)
    return LogCurve(np.repeat(x[:, size // 2], 2), ends.reshape(-1), curve.run)


def _draw_perplexities(axes: Axes, curves: list[LogCurve], *, line_width: float, note: str) -> None:
    """Draw perplexity curves on a log scale with round tick values; ``note`` is shown at the top right."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    _style_axes(axes, "Held-out perplexity", f"{note}log scale")
    for curve in curves:
        _draw_curve(axes, curve, line_width, has_points=len(curve.x) <= 40)
    low = min(float(curve.y.min()) for curve in curves)
    high = max(float(curve.y.max()) for curve in curves)
    span = max(math.log(high / low), 0.02)
    low, high = low * math.exp(-0.07 * span), high * math.exp(0.07 * span)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)):
        ticks = [tick for power in powers for digit in digits if low <= (tick := digit * 10.0**power) <= high]
        if len(ticks) >= 4:
            break
    else:
        ticks = [tick for tick in MaxNLocator(5).tick_values(low, high) if low <= tick <= high]
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))


def _draw_curve(axes: Axes, curve: LogCurve, line_width: float, *, has_points: bool) -> None:
    # if there are more runs than colors, the others are dotted
    style: Any = "solid" if curve.run < len(COLORS) else (0, (1, 1.2))
    axes.plot(
        curve.x, curve.y, color=_color(curve.run), linewidth=line_width, solid_capstyle="round",
        linestyle=(0, (3, 1.6)) if curve.is_dashed else style,
        marker="o" if has_points else None, markersize=3.2,
    )  # fmt: skip


def _color(run: int) -> str:
    return COLORS[run % len(COLORS)]


def _style_axes(axes: Axes, title: str, note: str) -> None:
    style_axes(axes, grid="y", color=GRID, hidden=("top", "right", "left"))
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(axis="both", length=0, labelsize=9, labelcolor=INK)
    axes.tick_params(axis="x", labelbottom=True)  # matplotlib hides them in the upper panel
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=9)
    axes.annotate(
        note, (1, 1), xycoords="axes fraction", xytext=(0, 9), textcoords="offset points",
        ha="right", va="bottom", fontsize=9, color=FAINT,
    )  # fmt: skip


def _mark_best(axes: Axes, x: float, *, is_near_end: bool) -> None:
    """Mark the best checkpoint with a dotted vertical line."""
    axes.axvline(x, color=FAINT, linewidth=0.9, linestyle=(0, (1, 2)))
    axes.annotate(
        "best", (x, 1), xycoords=("data", "axes fraction"), xytext=(-4 if is_near_end else 4, -2),
        textcoords="offset points", ha="right" if is_near_end else "left", va="top", fontsize=9,
        color=FAINT,
    )  # fmt: skip


def _scale_x(axes: Axes, end: float, unit: str) -> None:
    """Scale the horizontal axis from 0 to ``end``, with round tick values and the label ``unit``."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_xlim(0, (end or 1.0) * 1.01)
    axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_short(value)))
    axes.set_xlabel(unit, fontsize=10, color=INK, labelpad=6)


def format_short(value: float) -> str:
    """Format a count in a short form, such as 950, 12.5k, 3M or 1.25B."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


# --- labels -------------------------------------------------------------------------------------------------


def _display_names(runs: list[TrainingLog]) -> tuple[list[str], list[str]]:
    """Return the names of the runs in the picture, and the fonts that can draw them."""
    names = [shorten(to_plain_text(run.name), _NAME_WIDTH) for run in runs]
    fonts, missing = find_fonts("".join(names))
    if missing:
        lost = [k for k, name in enumerate(names) if set(name) & set(missing)]
        logger.warning(
            "no font can draw %s: showing the runs as %s, in the given order; %s",
            missing[:20], ", ".join(f"run {k + 1}" for k in lost), INSTALL_FONTS,
        )  # fmt: skip
        names = [f"run {k + 1}" if k in lost else name for k, name in enumerate(names)]
    return names, fonts


def _loss_labels(panel: list[LogCurve], names: list[str]) -> list[EndLabel]:
    return [EndLabel(f"{names[c.run]}  {c.y[-1]:.2f}", float(c.y[-1]), c.run) for c in panel]


def _heldout_labels(panel: list[LogCurve], names: list[str]) -> list[EndLabel]:
    """Return one label per run, or one label per direction if there is one run."""
    if len(names) == 1:
        return [
            EndLabel(f"{'backward' if c.is_dashed else 'forward'}  {format_perplexity(c.y[-1])}", float(c.y[-1]), c.run)
            for c in panel
        ]
    labels = []
    for number in sorted({curve.run for curve in panel}):
        ends = [float(curve.y[-1]) for curve in panel if curve.run == number]
        text = f"{names[number]}  {' / '.join(map(format_perplexity, ends))}"
        labels.append(EndLabel(text, float(np.exp(np.mean(np.log(ends)))), number))
    return labels


def _legend(heldout: list[LogCurve], n_runs: int) -> str:
    """Return a text that explains the line styles of the directions, if the labels do not name them."""
    if n_runs == 1:
        return ""
    if n_runs > _FEW_RUNS:
        return "mean of the directions, "
    styles = {curve.is_dashed for curve in heldout}
    if len(styles) == 2:
        return "forward solid, backward dashed, "
    return "backward, " if True in styles else "forward, "


def format_perplexity(value: float) -> str:
    """Format a perplexity with about three digits, such as 8.13, 81.3, 813 or 8,130."""
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}" if value < 1e7 else f"{value:.1e}"


def _draw_labels(axes: Axes, labels: list[EndLabel], fonts: list[str], panel_height: float) -> None:
    """Draw labels next to the ends of their curves; labels that would overlap are moved apart."""
    bottom, top = axes.get_ylim()
    to_scale = math.log if axes.get_yscale() == "log" else float
    low, high = to_scale(bottom), to_scale(top)
    heights = [min(max((to_scale(label.y) - low) / (high - low), 0.0), 1.0) for label in labels]
    for label, y in zip(labels, spread(heights, LABEL_HEIGHT / panel_height), strict=True):
        axes.text(
            1 + 0.12 / PANEL_WIDTH, y, label.text, transform=axes.transAxes, va="center", ha="left",
            family=fonts, fontsize=9.5, color=_color(label.run), parse_math=False,
        )  # fmt: skip


def spread(positions: list[float], distance: float) -> list[float]:
    """Move positions in 0..1 as little as possible, so that any two are at least ``distance`` apart."""
    order = sorted(range(len(positions)), key=positions.__getitem__)
    groups: list[tuple[float, int]] = []  # middle and number of labels that touch each other
    for index in order:
        middle, size = _clamp(positions[index], 1, distance), 1
        while groups and middle - groups[-1][0] < distance * (size + groups[-1][1]) / 2:
            before, more = groups.pop()
            middle, size = (middle * size + before * more) / (size + more), size + more
            middle = _clamp(middle, size, distance)
        groups.append((middle, size))
    spots = [middle + distance * (k - (size - 1) / 2) for middle, size in groups for k in range(size)]
    moved = dict(zip(order, spots, strict=True))
    return [moved[k] for k in range(len(positions))]


def _clamp(middle: float, size: int, distance: float) -> float:
    half = distance * (size - 1) / 2
    return min(max(middle, half), max(1 - half, half))
