"""Runs in, a picture of how they learned out: training loss above, held-out perplexity below."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from elmo.embed.figure import INSTALL_FONTS, check, fonts_for, plain, save, shortened, text_width
from elmo.errors import ConfigError, DataError, ElmoError
from elmo.formats.files import reason, shown
from elmo.train import panels
from elmo.train.log import Entry, Run, read_runs
from elmo.train.panels import Curve, Label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
        logger.warning("%s: the curves were not drawn: %s", shown(folder), reason(error))
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
        raise DataError(f"{shown(found[0].path)}: holds no report yet; wait until the run has logged one")
    for run in empty:
        logger.warning("%s: holds no report yet, and is left out", shown(run.path))
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
        raise DataError(f"{shown(runs[0].path)}: holds no loss and no perplexity to draw")
    labels = [
        _heldout_labels(panel, names) if panel is heldout else _loss_labels(panel, names) for panel in curves
    ]

    # in inches: panels of one size, as high as their labels need, beside them room for the longest
    left, gap, top, bottom = 0.8, 0.8, 0.5, 0.62
    right = 0.35 + 0.078 * max(text_width(label.text) for column in labels for label in column)
    panel_height = max(2.8, (panels.LABEL_HEIGHT + 0.02) * max(map(len, labels)))
    width = left + panels.ACROSS + right
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
            panels.draw_perplexities(axes, heldout, thickness=thickness, note=_note(heldout, len(runs)))
            best = _best_place(runs, against)
            if best is not None:
                panels.mark(axes, best / scale, "best", is_near_the_end=best / scale > 0.9 * end)
        else:
            panels.draw_losses(axes, reports, losses, thickness=thickness)
        panels.write_labels(axes, column, fonts, panel_height)
    panels.scale_across(cells[-1], end, unit)
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
    shown_points = np.arange(n - 1, -1, -max(1, n // panels.N_POINTS))[::-1]  # the last always
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
            raise DataError(f"{shown(run.path)}: holds no times; draw it against tokens or steps")
        longest = max(longest, *times)
    if longest >= 2 * 3600:
        return "hours of training", 3600.0
    return ("minutes of training", 60.0) if longest >= 120 else ("seconds of training", 1.0)


# --- words ------------------------------------------------------------------------------------------------


def _names(runs: list[Run]) -> tuple[list[str], list[str]]:
    """What the runs are called in the picture, and the fonts that draw it."""
    names = [shortened(plain(run.name), _NAME_WIDTH) for run in runs]
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
