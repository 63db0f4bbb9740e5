"""A comparison in, a picture of it out: one heat map per layer, the sentences listed below."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from elmo.embed.compare import Comparison, Use
from elmo.errors import DataError
from elmo.plots.figure import INSTALL_FONTS, check, fonts_for, save
from elmo.text.display import shorten, text_width, to_plain_text

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

LINE_WIDTH = 92  # of a sentence below the maps, in Latin letters
LINE_HEIGHT = 0.235  # inches


def draw(comparison: Comparison, path: str | Path) -> None:
    """Write the picture; the suffix of ``path`` says whether as PNG, PDF or SVG."""
    target = Path(path)
    check(target)
    save(_figure(comparison), target)


def draw_words(comparisons: Sequence[Comparison], path: str | Path) -> None:
    """Write one picture of several words: a heat map of each one's average layer, its sentences below."""
    target = Path(path)
    if not comparisons or any("average" not in comparison.matrices for comparison in comparisons):
        raise DataError(
            "expected words that were compared by the average of their layers, found none or another"
        )
    check(target)
    save(_figure_of_words(comparisons), target)


def _figure_of_words(comparisons: Sequence[Comparison]) -> Figure:
    from matplotlib.figure import Figure

    lines, labels = list[str](), list[list[str]]()
    for comparison in comparisons:
        first = sum(map(len, labels)) + 1
        labels.append([str(first + k) for k in range(len(comparison.uses))])
        lines += [f"{label:>2}  {_line(use)}" for label, use in zip(labels[-1], comparison.uses, strict=True)]
    titles = [f"“{shorten(to_plain_text(comparison.word), 20)}”" for comparison in comparisons]
    fonts, missing = fonts_for("".join([*lines, *titles]))
    if missing:
        _warn_of(missing)
        lines = [line for line in lines if not set(line) & set(missing)]
        titles = ["a word" if set(title) & set(missing) else title for title in titles]
    panel, top, below = 2.5, 0.85, 0.3  # inches
    width = max(len(comparisons) * (panel + 0.6) + 1.1, 7.6)
    height = top + panel + 0.5 + LINE_HEIGHT * len(lines) + below
    figure = Figure(figsize=(width, height), facecolor="white")
    title = "The same word in different sentences: cosine similarity of its vectors"
    figure.text(0.02, 1 - 0.2 / height, title, va="top", family=fonts, fontsize=12)
    matrices = [comparison.matrices["average"] for comparison in comparisons]
    cells = figure.subplots(
        1, len(comparisons), squeeze=False,
        gridspec_kw={
            "left": 0.5 / width, "right": 1 - 1.1 / width, "wspace": 0.6 / panel,
            "top": 1 - top / height, "bottom": 1 - (top + panel) / height,
        },
    )  # fmt: skip
    images = [
        _heat_map(axes, matrix, name, numbers, low=_lowest(matrices), panel=panel)
        for axes, matrix, name, numbers in zip(cells.flat, matrices, titles, labels, strict=True)
    ]
    for axes in cells.flat:
        axes.title.set(family=fonts, parse_math=False)
    _colour_bar(figure, images[0], middle=top + panel / 2, size=panel * 0.85)
    _write_below(figure, lines, fonts, below=below)
    return figure


def _figure(comparison: Comparison) -> Figure:
    from matplotlib.figure import Figure

    labels = [f"S{k}" for k in range(1, len(comparison.uses) + 1)]
    lines = [f"{label}  {_line(use)}" for label, use in zip(labels, comparison.uses, strict=True)]
    title = f"“{shorten(to_plain_text(comparison.word), 60)}” in {len(labels)} sentences: cosine similarity"
    fonts, missing = fonts_for("".join([*lines, title]))
    if missing:
        _warn_of(missing)
        lines = []
        title = f"one word in {len(labels)} sentences: cosine similarity"

    n, n_panels = len(labels), len(comparison.matrices)
    n_columns = min(n_panels, 4 if n <= 8 else 2)
    n_rows = math.ceil(n_panels / n_columns)
    panel = min(max(0.62 * n, 2.2), 7.0)  # inches
    width = max(n_columns * (panel + 0.5) + 1.1, 7.6)
    top, below = 0.55, 0.25  # inches
    maps = n_rows * (panel + 0.65)
    height = top + maps + below + LINE_HEIGHT * len(lines)
    figure = Figure(figsize=(width, height), facecolor="white")
    figure.text(0.02, 1 - 0.2 / height, title, va="top", family=fonts, fontsize=12, parse_math=False)
    _write_below(figure, lines, fonts, below=below)
    low = _lowest(comparison.matrices.values())
    cells = figure.subplots(
        n_rows, n_columns, squeeze=False,
        gridspec_kw={
            "left": 0.5 / width, "right": 1 - 1.1 / width, "wspace": 0.5 / panel, "hspace": 0.65 / panel,
            "top": 1 - (top + 0.35) / height, "bottom": (height - top - maps + 0.3) / height,
        },
    )  # fmt: skip
    images = [
        _heat_map(axes, matrix, f"layer {name}" if name.isdigit() else name, labels, low=low, panel=panel)
        for axes, (name, matrix) in zip(cells.flat, comparison.matrices.items(), strict=False)
    ]
    for axes in cells.flat[n_panels:]:
        axes.set_visible(False)
    bar_height = min(panel * 0.85, 3.0)
    _colour_bar(figure, images[0], middle=top + 0.35 + panel / 2, size=bar_height)
    return figure


def _lowest(matrices: Iterable[NDArray[np.float64]]) -> float:
    """One scale for all maps, so that they can be compared; cosines of real models seldom come near 0."""
    return min(0.9, math.floor(min(float(matrix.min()) for matrix in matrices) * 10) / 10)


def _heat_map(
    axes: Axes, matrix: NDArray[np.float64], title: str, labels: list[str], *, low: float, panel: float
) -> AxesImage:
    """One matrix of cosines on axes of ``panel`` inches."""
    n = len(labels)
    # cividis runs evenly from dark to light, for readers with and without colour vision
    image = axes.imshow(matrix, cmap="cividis", vmin=low, vmax=1.0)
    axes.set_title(title, fontsize=11)
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
    return image


def _colour_bar(figure: Figure, image: AxesImage, *, middle: float, size: float) -> None:
    """At the right edge, ``middle`` inches below the top."""
    width, height = figure.get_size_inches()
    place = (1 - 0.85 / width, 1 - (middle + size / 2) / height, 0.16 / width, size / height)
    figure.colorbar(image, cax=figure.add_axes(place)).ax.tick_params(labelsize=8)


def _write_below(figure: Figure, lines: Sequence[str], fonts: list[str], *, below: float) -> None:
    """Lines at the bottom, ``below`` inches left free."""
    height = figure.get_size_inches()[1]
    for k, line in enumerate(lines):
        y = (below / 2 + LINE_HEIGHT * (len(lines) - k)) / height
        figure.text(0.02, y, line, va="top", family=fonts, fontsize=10, parse_math=False)


def _warn_of(missing: str) -> None:
    logger.warning(
        "no installed font can draw %s: the sentences are shown as numbers only; %s",
        missing[:20], INSTALL_FONTS,
    )  # fmt: skip


def _size(panel: float, n: int, largest: float) -> float:
    """A font size whose four digits fit a cell."""
    return min(largest, 72 * panel / n / 3)


def _line(use: Use) -> str:
    """The sentence with its word in brackets, shortened on both sides of it."""
    begin, end = use.span
    before, word, after = (to_plain_text(part) for part in (use.text[:begin], use.text[begin:end], use.text[end:]))
    word = shorten(word, LINE_WIDTH // 2)
    room = LINE_WIDTH - text_width(word) - 2
    left = shorten(before[::-1], max(room // 2, room - text_width(after)))[::-1]
    return f"{left}[{word}]{shorten(after, room - text_width(left))}"
