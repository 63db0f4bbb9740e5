"""A comparison in, a picture of it out: one heat map per layer, the sentences listed below."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING

from elmo.embed.compare import Comparison, Use
from elmo.embed.figure import INSTALL_FONTS, check, fonts_for, plain, save, shortened, text_width

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

LINE_WIDTH = 92  # of a sentence below the maps, in Latin letters


def draw(comparison: Comparison, path: str | Path) -> None:
    """Write the picture; the suffix of ``path`` says whether as PNG, PDF or SVG."""
    target = Path(path)
    check(target)
    save(_figure(comparison), target)


def _figure(comparison: Comparison) -> Figure:
    from matplotlib.figure import Figure

    labels = [f"S{k}" for k in range(1, len(comparison.uses) + 1)]
    lines = [f"{label}  {_line(use)}" for label, use in zip(labels, comparison.uses, strict=True)]
    title = f"“{shortened(plain(comparison.word), 60)}” in {len(labels)} sentences: cosine similarity"
    fonts, missing = fonts_for("".join([*lines, title]))
    if missing:
        logger.warning(
            "no installed font can draw %s: the sentences are shown as numbers only; "
            "%s", missing[:20], INSTALL_FONTS,
        )  # fmt: skip
        lines = []
        title = f"one word in {len(labels)} sentences: cosine similarity"

    n, n_panels = len(labels), len(comparison.matrices)
    n_columns = min(n_panels, 4 if n <= 8 else 2)
    n_rows = math.ceil(n_panels / n_columns)
    panel = min(max(0.62 * n, 2.2), 7.0)  # inches
    width = max(n_columns * (panel + 0.5) + 1.1, 7.6)
    top, below, line_height = 0.55, 0.25, 0.235  # inches
    maps = n_rows * (panel + 0.65)
    height = top + maps + below + line_height * len(lines)
    figure = Figure(figsize=(width, height), facecolor="white")
    figure.text(0.02, 1 - 0.2 / height, title, va="top", family=fonts, fontsize=12, parse_math=False)
    for k, line in enumerate(lines):
        y = (below / 2 + line_height * (len(lines) - k)) / height
        figure.text(0.02, y, line, va="top", family=fonts, fontsize=10, parse_math=False)

    # one scale for all maps, so that layers can be compared; cosines of real models seldom come near 0
    least = min(float(matrix.min()) for matrix in comparison.matrices.values())
    low = min(0.9, math.floor(least * 10) / 10)
    cells = figure.subplots(
        n_rows, n_columns, squeeze=False,
        gridspec_kw={
            "left": 0.5 / width, "right": 1 - 1.1 / width, "wspace": 0.5 / panel, "hspace": 0.65 / panel,
            "top": 1 - (top + 0.35) / height, "bottom": (height - top - maps + 0.3) / height,
        },
    )  # fmt: skip
    image = None
    for axes, (name, matrix) in zip(cells.flat, comparison.matrices.items(), strict=False):
        # cividis runs evenly from dark to light, for readers with and without colour vision
        image = axes.imshow(matrix, cmap="cividis", vmin=low, vmax=1.0)
        axes.set_title(f"layer {name}" if name.isdigit() else name, fontsize=11)
        axes.set_xticks(range(n), labels, fontsize=_size(panel, n, 9))
        axes.set_yticks(range(n), labels, fontsize=_size(panel, n, 9))
        axes.tick_params(length=0)
        if panel / n >= 0.3:  # inches: below that nobody could read a number in a cell
            for i in range(n):
                for j in range(n):
                    is_light = (matrix[i, j] - low) / (1.0 - low) > 0.55
                    axes.text(
                        j, i, f"{matrix[i, j]:.2f}", ha="center", va="center",
                        color="black" if is_light else "white", fontsize=_size(panel, n, 10),
                    )  # fmt: skip
    for axes in cells.flat[n_panels:]:
        axes.set_visible(False)
    if image is not None:
        bar_height = min(panel * 0.85, 3.0)
        bar = figure.add_axes(
            (
                1 - 0.85 / width,
                1 - (top + 0.35 + panel / 2 + bar_height / 2) / height,
                0.16 / width,
                bar_height / height,
            )
        )
        figure.colorbar(image, cax=bar).ax.tick_params(labelsize=8)
    return figure


def _size(panel: float, n: int, largest: float) -> float:
    """A font size whose four digits fit a cell."""
    return min(largest, 72 * panel / n / 3)


def _line(use: Use) -> str:
    """The sentence with its word in brackets, shortened on both sides of it."""
    begin, end = use.span
    before, word, after = (plain(part) for part in (use.text[:begin], use.text[begin:end], use.text[end:]))
    word = shortened(word, LINE_WIDTH // 2)
    room = LINE_WIDTH - text_width(word) - 2
    left = shortened(before[::-1], max(room // 2, room - text_width(after)))[::-1]
    return f"{left}[{word}]{shortened(after, room - text_width(left))}"
