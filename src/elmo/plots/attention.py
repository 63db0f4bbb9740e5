"""Draw the attention of a translation: how much each target unit depends on each source word."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elmo.errors import DataError
from elmo.plots.figure import draw_figure, new_figure, prepare_lines
from elmo.text.display import shorten, text_width, to_plain_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_CELLS = 120  # words or units in one direction
_CELL = 0.26  # inches
_LETTER = 0.085  # width of a Latin letter in inches
_WIDTH = 18  # maximum width of a word in Latin letters


def draw_attention(
    words: Sequence[str], units: Sequence[str], attention: Sequence[Sequence[float]], path: str | Path
) -> None:
    """Draw the attention of a translation, with a column for each source word and a row for each target unit.

    Args:
        words: The source words.
        units: The target units.
        attention: For each unit, the attention to each source word.
        path: File to write; its suffix selects PNG, PDF or SVG.

    Example:
        >>> draw_attention(["Two", "men"], ["Zwei", "Männer"], [[0.9, 0.1], [0.2, 0.8]], "attention.png")
    """
    if not units:
        raise DataError("cannot draw the attention: the translation has no words")
    if max(len(words), len(units)) > MAX_CELLS:
        raise DataError(
            f"cannot draw the attention of a text with more than {MAX_CELLS} words; "
            f"found {len(words)} words and {len(units)} units"
        )
    draw_figure(path, lambda: _figure(words, units, np.array(attention)))


def _figure(words: Sequence[str], units: Sequence[str], attention: np.ndarray) -> Figure:
    fonts, lines = prepare_lines([shorten(to_plain_text(text), _WIDTH) for text in [*words, *units]])
    columns, rows = lines[: len(words)], lines[len(words) :]
    left, top = (0.3 + _LETTER * max(map(text_width, names)) for names in (rows, columns))
    right, bottom, title = 0.75, 0.15, 0.35
    map_width, map_height = _CELL * len(columns), _CELL * len(rows)
    width, height = max(left + map_width + right, 3.0), title + top + map_height + bottom
    figure = new_figure(width, height)
    figure.text(0.12 / width, 1 - 0.1 / height, "Attention to the source words", va="top", fontsize=11)
    axes = figure.add_axes((left / width, bottom / height, map_width / width, map_height / height))
    image = axes.imshow(attention, cmap="cividis", vmin=0.0, vmax=1.0, aspect="auto")
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize=9, family=fonts, parse_math=False)
    axes.set_yticks(range(len(rows)), rows, fontsize=9, family=fonts, parse_math=False)
    axes.tick_params(length=0)
    bar_box = ((left + map_width + 0.15) / width, bottom / height, 0.12 / width, map_height / height)
    bar = figure.colorbar(image, cax=figure.add_axes(bar_box)).ax
    bar.set_yticks([0.0, 0.5, 1.0], ["0", "0.5", "1"], fontsize=8)
    return figure
