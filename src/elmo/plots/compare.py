"""Draw the similarity of a word in different sentences as heat maps, with the sentences below."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from elmo.embed.comparison import Comparison, Use
from elmo.errors import DataError
from elmo.plots.figure import INSTALL_FONTS, draw_figure, find_fonts, format_in_context, new_figure, write_values
from elmo.text.display import shorten, to_plain_text

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

LINE_WIDTH = 92  # width of a sentence below the maps, in Latin letters
LINE_HEIGHT = 0.235  # inches


def draw_comparison(comparison: Comparison, path: str | Path) -> None:
    """Draw the similarities between the usages of one word, as one heat map per layer.

    The suffix of ``path`` selects PNG, PDF or SVG.

    Args:
        comparison: The similarities.
        path: File to write; its suffix selects PNG, PDF or SVG.

    Example:
        >>> from elmo.embed import compare
        >>> draw_comparison(compare(elmo, "bank", ["The bank of the river.", "A bank lent it."]), "comparison.png")
    """
    draw_figure(path, lambda: _layers_figure(comparison))


def draw_words(comparisons: Sequence[Comparison], path: str | Path) -> None:
    """Draw several words with one heat map each, for ``layers="sense"``.

    Args:
        comparisons: The similarities of each word.
        path: File to write; its suffix selects PNG, PDF or SVG.

    Example:
        >>> from elmo.embed import compare
        >>> words = {"bank": ["The bank of the river.", "A bank lent it."], "play": ["A play.", "They play."]}
        >>> draw_words([compare(elmo, word, sentences) for word, sentences in words.items()], "words.png")
    """
    if not comparisons or any("sense" not in comparison.matrices for comparison in comparisons):
        raise DataError("cannot draw words: there must be at least one comparison, and each must have layers='sense'")
    draw_figure(path, lambda: _words_figure(comparisons))


def _layers_figure(comparison: Comparison) -> Figure:
    labels = [f"S{k}" for k in range(1, len(comparison.uses) + 1)]
    lines = [f"{label}  {_format_use(use)}" for label, use in zip(labels, comparison.uses, strict=True)]
    title = f"“{shorten(to_plain_text(comparison.word), 60)}” in {len(labels)} sentences: cosine similarity"
    fonts, missing = find_fonts("".join([*lines, title]))
    if missing:
        _warn_about_fonts(missing)
        lines = []
        title = f"one word in {len(labels)} sentences: cosine similarity"

    n, n_panels = len(labels), len(comparison.matrices)
    n_columns = min(n_panels, 4 if n <= 8 else 2)
    n_rows = math.ceil(n_panels / n_columns)
    panel = min(max(0.62 * n, 2.2), 7.0)  # inches
    width = max(n_columns * (panel + 0.5) + 1.1, 7.6)
    top, bottom = 0.55, 0.25  # inches
    maps = n_rows * (panel + 0.65)
    height = top + maps + bottom + LINE_HEIGHT * len(lines)
    figure = new_figure(width, height)
    figure.text(0.02, 1 - 0.2 / height, title, va="top", family=fonts, fontsize=12, parse_math=False)
    _write_lines(figure, lines, fonts, bottom=bottom)
    low = _scale_minimum(comparison.matrices.values())
    grid = figure.subplots(
        n_rows, n_columns, squeeze=False,
        gridspec_kw={
            "left": 0.5 / width, "right": 1 - 1.1 / width, "wspace": 0.5 / panel, "hspace": 0.65 / panel,
            "top": 1 - (top + 0.35) / height, "bottom": (height - top - maps + 0.3) / height,
        },
    )  # fmt: skip
    images = [
        _draw_heat_map(axes, matrix, f"layer {name}" if name.isdigit() else name, labels, low=low, panel=panel)
        for axes, (name, matrix) in zip(grid.flat, comparison.matrices.items(), strict=False)
    ]
    for axes in grid.flat[n_panels:]:
        axes.set_visible(False)
    _draw_color_bar(figure, images[0], middle=top + 0.35 + panel / 2, size=min(panel * 0.85, 3.0))
    return figure


def _words_figure(comparisons: Sequence[Comparison]) -> Figure:
    lines, labels = list[str](), list[list[str]]()
    for comparison in comparisons:
        first = sum(map(len, labels)) + 1
        labels.append([str(first + k) for k in range(len(comparison.uses))])
        lines += [f"{label:>2}  {_format_use(use)}" for label, use in zip(labels[-1], comparison.uses, strict=True)]
    titles = [f"“{shorten(to_plain_text(comparison.word), 20)}”" for comparison in comparisons]
    fonts, missing = find_fonts("".join([*lines, *titles]))
    if missing:
        _warn_about_fonts(missing)
        lines = [line for line in lines if not set(line) & set(missing)]
        titles = ["a word" if set(title) & set(missing) else title for title in titles]
    panel, top, bottom = 2.5, 0.85, 0.3  # inches
    width = max(len(comparisons) * (panel + 0.6) + 1.1, 7.6)
    height = top + panel + 0.5 + LINE_HEIGHT * len(lines) + bottom
    figure = new_figure(width, height)
    title = "The same word in different sentences: cosine similarity of its vectors"
    figure.text(0.02, 1 - 0.2 / height, title, va="top", family=fonts, fontsize=12)
    matrices = [comparison.matrices["sense"] for comparison in comparisons]
    grid = figure.subplots(
        1, len(comparisons), squeeze=False,
        gridspec_kw={
            "left": 0.5 / width, "right": 1 - 1.1 / width, "wspace": 0.6 / panel,
            "top": 1 - top / height, "bottom": 1 - (top + panel) / height,
        },
    )  # fmt: skip
    images = [
        _draw_heat_map(axes, matrix, name, numbers, low=_scale_minimum(matrices), panel=panel)
        for axes, matrix, name, numbers in zip(grid.flat, matrices, titles, labels, strict=True)
    ]
    for axes in grid.flat:
        axes.title.set(family=fonts, parse_math=False)
    _draw_color_bar(figure, images[0], middle=top + panel / 2, size=panel * 0.85)
    _write_lines(figure, lines, fonts, bottom=bottom)
    return figure


def _scale_minimum(matrices: Iterable[NDArray[np.float64]]) -> float:
    """Return the minimum of the color scale that all maps share; cosines are rarely near 0."""
    return min(0.9, math.floor(min(float(matrix.min()) for matrix in matrices) * 10) / 10)


def _draw_heat_map(
    axes: Axes, matrix: NDArray[np.float64], title: str, labels: list[str], *, low: float, panel: float
) -> AxesImage:
    """Draw a matrix of cosines; ``panel`` is the width of the axes in inches."""
    n = len(labels)
    # the brightness of cividis increases evenly, also for color-blind readers
    image = axes.imshow(matrix, cmap="cividis", vmin=low, vmax=1.0)
    axes.set_title(title, fontsize=11)
    axes.set_xticks(range(n), labels, fontsize=_font_size(panel, n, 9))
    axes.set_yticks(range(n), labels, fontsize=_font_size(panel, n, 9))
    axes.tick_params(length=0)
    if panel / n >= 0.3:  # inches; numbers in smaller cells are unreadable
        write_values(axes, matrix, light=low + 0.55 * (1.0 - low), fontsize=_font_size(panel, n, 10))
    return image


def _font_size(panel: float, n: int, largest: float) -> float:
    """Return a font size of at most ``largest`` at which four digits fit into one of ``n`` cells."""
    return min(largest, 72 * panel / n / 3)


def _draw_color_bar(figure: Figure, image: AxesImage, *, middle: float, size: float) -> None:
    """Draw a color bar at the right edge; its middle is ``middle`` inches below the top."""
    width, height = figure.get_size_inches()
    bounds = (1 - 0.85 / width, 1 - (middle + size / 2) / height, 0.16 / width, size / height)
    figure.colorbar(image, cax=figure.add_axes(bounds)).ax.tick_params(labelsize=8)


def _write_lines(figure: Figure, lines: Sequence[str], fonts: list[str], *, bottom: float) -> None:
    """Write lines of text at the bottom of a figure, above a margin of ``bottom`` inches."""
    height = figure.get_size_inches()[1]
    for k, line in enumerate(lines):
        y = (bottom / 2 + LINE_HEIGHT * (len(lines) - k)) / height
        figure.text(0.02, y, line, va="top", family=fonts, fontsize=10, parse_math=False)


def _warn_about_fonts(missing: str) -> None:
    logger.warning("no font can draw %s: showing numbers instead of sentences; %s", missing[:20], INSTALL_FONTS)


def _format_use(use: Use) -> str:
    begin, end = use.span
    return format_in_context(use.text[:begin], use.word, use.text[end:], LINE_WIDTH)
