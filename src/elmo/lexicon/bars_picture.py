"""Lists of words or senses with a number each in, a picture of bars out, a panel for each sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elmo.embed.figure import check, drawable, plain, save, shortened, text_width
from elmo.errors import DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00")  # blue and orange, apart for readers without red or green, too
_LINE_HEIGHT = (0.24, 0.34)  # inches, of one bar and of two
_TITLE, _LABEL = 100, 70  # at most so many Latin letters


@dataclass(frozen=True)
class Panel:
    """What belongs to one sentence: a label and, for each series, a number a line; None: there is none."""

    title: str
    labels: Sequence[str]
    series: Sequence[Sequence[float | None]]


def draw_bars(
    panels: Sequence[Panel], path: str | Path, *, title: str, names: Sequence[str] = (), form: str = "{:.2f}"
) -> None:
    """Write the picture; ``names`` are those of the series, where there are several."""
    target = Path(path)
    if not panels:
        raise DataError("expected something to draw, found nothing")
    check(target)
    save(_figure(panels, title, names, form), target)


def _figure(panels: Sequence[Panel], title: str, names: Sequence[str], form: str) -> Figure:
    from matplotlib.figure import Figure

    texts = [title, *(shortened(plain(panel.title), _TITLE) for panel in panels)]
    texts += [shortened(plain(label), _LABEL) for panel in panels for label in panel.labels]
    fonts, lines = drawable(texts)
    title, heads, rest = lines[0], lines[1 : len(panels) + 1], iter(lines[len(panels) + 1 :])
    line = _LINE_HEIGHT[min(max(len(panel.series) for panel in panels), 2) - 1]
    labels = [[next(rest) for _ in panel.labels] for panel in panels]
    left = 0.4 + 0.085 * max((text_width(label) for some in labels for label in some), default=4)
    width = left + 5.2
    tops, down = list[float](), 0.75 + (0.25 if names else 0.0)
    for some in labels:
        tops.append(down)
        down += 0.45 + line * max(len(some), 1) + 0.25
    width = max(width, 0.6 + 0.085 * max(map(text_width, heads)))
    height = down + 0.1
    figure = Figure(figsize=(width, height), facecolor="white")
    style = {"family": fonts, "parse_math": False}
    figure.text(0.15 / width, 1 - 0.2 / height, title, va="top", fontsize=12, **style)
    for k, name in enumerate(names):
        place = (0.2 / width + k * 1.5 / width, 1 - 0.55 / height)
        figure.text(*place, f"■ {name}", va="top", fontsize=9, color=COLOURS[k], **style)
    numbers = [x for panel in panels for some in panel.series for x in some if x is not None]
    most = max([*numbers, 1e-9])
    for panel, some, head, top in zip(panels, labels, heads, tops, strict=True):
        figure.text(0.15 / width, 1 - top / height, head, va="top", fontsize=10, weight="bold", **style)
        size = line * max(len(some), 1)
        box = (left / width, 1 - (top + 0.35 + size) / height, 4.2 / width, size / height)
        axes = figure.add_axes(box)
        axes.set(xlim=(0, most * 1.18), ylim=(max(len(some), 1) - 0.5, -0.5))
        axes.set_yticks(range(len(some)), some, fontsize=9, **style)
        axes.set_xticks([])
        axes.tick_params(length=0)
        for side in ("top", "right", "bottom"):
            axes.spines[side].set_visible(False)
        bar = 0.7 / len(panel.series)
        for number, values in enumerate(panel.series):
            for row, value in enumerate(values):
                if value is None:
                    continue
                y = row - 0.35 + bar * (number + 0.5)
                axes.barh(y, value, height=bar, color=COLOURS[number])
                axes.text(value + most * 0.01, y, form.format(value), va="center", fontsize=7.5)
    return figure
