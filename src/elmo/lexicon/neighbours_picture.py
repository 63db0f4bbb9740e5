"""Neighbours in, a picture out: each usage in its sentence, word below word, its cosine as a bar."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from elmo.embed.figure import check, drawable, plain, save, shortened
from elmo.errors import DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from elmo.lexicon.neighbours import Neighbours

_LINE_HEIGHT = 0.27  # inches
_SIDE = 46  # of the text on either side of a word, in Latin letters
_BAR, _WORD = "#0072B2", "#B34700"  # blue and a dark orange, apart for readers without red or green, too


def draw_neighbours(found: Sequence[Neighbours], path: str | Path) -> None:
    """Write the picture; the suffix of ``path`` says whether as PNG, PDF or SVG."""
    target = Path(path)
    if not found:
        raise DataError("expected neighbours to draw, found none")
    check(target)
    save(_figure(found), target)


def _figure(found: Sequence[Neighbours]) -> Figure:
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
