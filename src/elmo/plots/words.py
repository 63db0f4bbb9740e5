"""Lists of words or senses with a number each in, a picture of bars out, a panel for each sentence.

Neighbors in, a picture out: each usage in its sentence, word below word, its cosine as a bar.

Similarities of word pairs in, a picture of their spread out: of pairs with one sense, and with two.

Probes of a model's layers in, a picture of them out: a heat map of F1, a row a label, a column a layer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elmo.errors import DataError
from elmo.lexicon.probe import Probing
from elmo.plots.figure import INSTALL_FONTS, check, drawable, fonts_for, save
from elmo.text.display import plain, shortened, text_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from elmo.lexicon.neighbors import Neighbors
    from elmo.lexicon.word_pairs import PairJudgments, PairSimilarities, Truths


COLOURS = ("#0072B2", "#E69F00")  # blue and orange, apart for readers without red or green, too
_BAR_LINE_HEIGHT = (0.24, 0.34)  # inches, of one bar and of two
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
    save(_bars_figure(panels, title, names, form), target)


def _bars_figure(panels: Sequence[Panel], title: str, names: Sequence[str], form: str) -> Figure:
    from matplotlib.figure import Figure

    texts = [title, *(shortened(plain(panel.title), _TITLE) for panel in panels)]
    texts += [shortened(plain(label), _LABEL) for panel in panels for label in panel.labels]
    fonts, lines = drawable(texts)
    title, heads, rest = lines[0], lines[1 : len(panels) + 1], iter(lines[len(panels) + 1 :])
    line = _BAR_LINE_HEIGHT[min(max(len(panel.series) for panel in panels), 2) - 1]
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


_LINE_HEIGHT = 0.27  # inches
_SIDE = 46  # of the text on either side of a word, in Latin letters
_BAR, _WORD = "#0072B2", "#B34700"  # blue and a dark orange, apart for readers without red or green, too


def draw_neighbors(found: Sequence[Neighbors], path: str | Path) -> None:
    """Write the picture; the suffix of ``path`` says whether as PNG, PDF or SVG."""
    target = Path(path)
    if not found:
        raise DataError("expected neighbours to draw, found none")
    check(target)
    save(_neighbors_figure(found), target)


def _neighbors_figure(found: Sequence[Neighbors]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    rows: list[tuple[float | None, tuple[str, str, str]] | None] = []  # None: a line left free
    for one in found:
        rows += [None] if rows else []
        rows.append((None, _parts(one.usage.parts())))
        rows += [(near.similarity, _parts(near.usage.parts())) for near in one.found]
    fonts, shown = drawable([part for row in rows if row for part in row[1]])
    parts = iter(shown)
    width, top = 11.5, 0.6  # inches
    height = top + _LINE_HEIGHT * len(rows) + 0.3
    figure = Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.text(0.25, height - 0.3, "Nearest usages, by cosine", va="center", fontsize=12)
    middle = 6.0
    for k, row in enumerate(rows):
        if row is None:
            continue
        y = height - top - _LINE_HEIGHT * (k + 0.5)
        cosine = row[0]
        before, word, after = (next(parts) for _ in row[1])
        if cosine is not None:
            axes.text(0.7, y, f"{cosine:.2f}", va="center", ha="right", fontsize=9)
            axes.add_patch(Rectangle((0.8, y - 0.07), max(cosine, 0) * 0.9, 0.14, color=_BAR, linewidth=0))
        style = {"va": "center", "family": fonts, "fontsize": 9, "parse_math": False}
        weight = "bold" if cosine is None else "normal"
        drawn = axes.text(middle, y, word, ha="center", color=_WORD, fontweight="bold", **style)
        half = _half_width(figure, drawn)
        axes.text(middle - half - 0.07, y, before, ha="right", fontweight=weight, **style)
        axes.text(middle + half + 0.07, y, after, ha="left", fontweight=weight, **style)
    return figure


def _half_width(figure: Figure, drawn: object) -> float:
    """Of a text, in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    box = drawn.get_window_extent(FigureCanvasAgg(figure).get_renderer())  # pyright: ignore
    return box.width / figure.dpi / 2


def _parts(parts: tuple[str, str, str]) -> tuple[str, str, str]:
    before, word, after = (plain(part) for part in parts)
    return shortened(before.strip()[::-1], _SIDE)[::-1], shortened(word, 24), shortened(after.strip(), _SIDE)


_SAME, _OTHER = "#0072B2", "#E69F00"  # apart for readers without red or green, too


def draw_pairs(
    found: PairSimilarities,
    path: str | Path,
    *,
    judged: Sequence[PairJudgments] = (),
    is_same: Truths | None = None,
) -> None:
    """Write the picture; the suffix of ``path`` says whether as PNG, PDF or SVG."""
    target = Path(path)
    if not found.pairs:
        raise DataError("expected pairs to draw, found none")
    check(target)
    save(_pairs_figure(found, judged, is_same), target)


def _pairs_figure(
    found: PairSimilarities, judged: Sequence[PairJudgments], is_same: Truths | None
) -> Figure:
    from matplotlib.figure import Figure

    by_layer = {one.layer: one for one in judged}
    n = len(found.cosines)
    figure = Figure(figsize=(7.2, 0.9 + 1.75 * n), facecolor="white", layout="constrained")
    figure.suptitle(
        f"Cosines of a word's two uses, {len(found.pairs):,} pairs", fontsize=12, x=0.02, ha="left"
    )
    cells = figure.subplots(n, 1, squeeze=False)[:, 0]
    for axes, (layer, cosines) in zip(cells, found.cosines.items(), strict=True):
        edges = np.linspace(min(0.0, float(cosines.min())), 1.0, 41)
        if is_same is None:
            axes.hist(cosines, edges, color=_SAME)
        else:
            groups = {"one sense": (cosines[is_same], _SAME, None), "two": (cosines[~is_same], _OTHER, "///")}
            for name, (some, colour, hatch) in groups.items():
                axes.hist(some, edges, histtype="step", linewidth=1.8, color=colour, hatch=hatch, label=name)
        name = f"layer {layer}" if layer.isdigit() else layer
        if (one := by_layer.get(layer)) is not None:
            axes.axvline(one.threshold, color="black", linewidth=1, linestyle="--", label="threshold")
            name += "" if one.accuracy is None else f": {one.accuracy:.1%} right"
        axes.set_title(name, fontsize=10, loc="left")
        axes.tick_params(labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        if is_same is not None or by_layer:
            axes.legend(fontsize=8, frameon=False, loc="upper left")
    cells[-1].set_xlabel("cosine", fontsize=9)
    return figure


logger = logging.getLogger(__name__)

MAX_LABELS = 40  # rows; the most frequent are drawn
LABEL_WIDTH = 24  # Latin letters
CELL_WIDTH, CELL_HEIGHT = 0.72, 0.27  # inches


def draw_probing(found: Probing, path: str | Path, *, column: str = "labels") -> None:
    """Write the picture; the suffix of ``path`` says whether as PNG, PDF or SVG."""
    target = Path(path)
    check(target)
    save(_probe_figure(found, column), target)


def _probe_figure(found: Probing, column: str) -> Figure:
    from matplotlib.figure import Figure

    labels = list(found.labels)[:MAX_LABELS]
    names = [shortened(plain(label), LABEL_WIDTH) for label in labels]
    title = f"{shortened(plain(column), 30)}: F1 of linear probes"
    fonts, missing = fonts_for("".join([*names, title]))
    if missing:
        logger.warning(
            "no installed font can draw %s: such labels are numbered; %s", missing[:20], INSTALL_FONTS
        )
        lost = set(missing)
        names = [f"label {k}" if set(name) & lost else name for k, name in enumerate(names, start=1)]
        title = "labels: F1 of linear probes" if set(title) & lost else title
    counts = [f"{found.labels[label]:,}" for label in labels]

    values = np.array([[layer.f1[label].mean for layer in found.layers] for label in labels])
    count_width = 0.2 + 0.08 * max(map(len, [*counts, "words"]))  # inches
    left = 0.3 + 0.09 * max(map(text_width, names)) + count_width
    top, bottom, right = 1.15, 0.2, 0.95
    map_width, map_height = CELL_WIDTH * len(found.layers), CELL_HEIGHT * len(labels)
    width, height = max(left + map_width + right, 4.6), top + map_height + bottom
    figure = Figure(figsize=(width, height), facecolor="white")
    rest = f", the {len(labels)} most frequent labels" if len(labels) < len(found.labels) else ""
    under = f"on {found.n_dev:,} words{rest}; below each layer its accuracy"
    for text, size, down in ((title, 12, 0.14), (under, 9, 0.42)):
        place = (0.15 / width, 1 - down / height)
        figure.text(*place, text, va="top", family=fonts, fontsize=size, parse_math=False)
    axes = figure.add_axes((left / width, bottom / height, map_width / width, map_height / height))
    # viridis runs evenly from dark to light, for readers with and without colour vision
    image = axes.imshow(values, cmap="viridis", vmin=0.0, vmax=1.0, aspect="auto")
    heads = [
        f"{'mix' if layer.layer == 'mix' else f'layer {layer.layer}'}\n{layer.accuracy.mean:.1%}"
        for layer in found.layers
    ]
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(heads)), heads, fontsize=8.5, family=fonts)
    axes.set_yticks(range(len(names)), names, fontsize=9, family=fonts, parse_math=False)
    axes.tick_params(length=0)
    axes.tick_params(axis="y", pad=72 * count_width)  # points: counts stand between
    for row, count in enumerate(["words", *counts], start=-1):
        axes.annotate(
            count, (0, row), xycoords=("axes fraction", "data"), xytext=(-6, 0), textcoords="offset points",
            ha="right", va="center", fontsize=8.5, color="0.35", family=fonts, annotation_clip=False,
        )  # fmt: skip
    _write_values(axes, values, fonts)
    bar_height = min(2.6, map_height)
    place = (1 - 0.75 / width, 1 - (top + bar_height) / height, 0.14 / width, bar_height / height)
    bar = figure.colorbar(image, cax=figure.add_axes(place)).ax
    bar.set_yticks([0.0, 0.5, 1.0], ["0", "0.5", "1"], fontsize=8.5, family=fonts)
    return figure


def _write_values(axes: Axes, values: np.ndarray, fonts: list[str]) -> None:
    for row, column in np.ndindex(values.shape):
        value = float(values[row, column])
        colour = "black" if value > 0.6 else "white"
        axes.text(
            column, row, f"{value:.2f}", ha="center", va="center", fontsize=8.5, color=colour, family=fonts
        )
