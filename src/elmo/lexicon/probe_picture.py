"""Probes of a model's layers in, a picture of them out: a heat map of F1, a row a label, a column a layer."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elmo.embed.figure import INSTALL_FONTS, check, fonts_for, plain, save, shortened, text_width
from elmo.lexicon.probe import Probing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

MAX_LABELS = 40  # rows; the most frequent are drawn
LABEL_WIDTH = 24  # Latin letters
CELL_WIDTH, CELL_HEIGHT = 0.72, 0.27  # inches


def draw_probing(found: Probing, path: str | Path, *, column: str = "labels") -> None:
    """Write the picture; the suffix of ``path`` says whether as PNG, PDF or SVG."""
    target = Path(path)
    check(target)
    save(_figure(found, column), target)


def _figure(found: Probing, column: str) -> Figure:
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
