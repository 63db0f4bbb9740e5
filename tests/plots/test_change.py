"""Figures of change: all text is on the canvas, and insignificant changes are hollow points."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from elmo.lexicon.change import Changes, PeriodChange, WordChange
from elmo.lexicon.usages import Usage, Usages
from elmo.text.tokenizers import Tokens

pytest.importorskip("matplotlib")
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from elmo.plots import change as change_picture

PERIODS = ("1850s", "1900s", "1950s")


def word(name: str, n_periods: int, *, q: float = 0.5, is_kept: bool = False) -> WordChange:
    """Return a change whose first step has the false discovery rate ``q``; the others are insignificant."""
    periods = PERIODS[:n_periods]
    usages = {period: build_usages(name, period, seed=k) for k, period in enumerate(periods)}
    pairs = [*pairwise(periods), (periods[0], periods[-1])][: 3 if n_periods > 2 else 1]
    steps = tuple(
        PeriodChange(a, b, 0.3, 0.2, 0.4, p=0.5, q=0.5 if k else q,
                     appeared=usages[b].items[:2], declined=usages[a].items[3:5])
        for k, (a, b) in enumerate(pairs)
    )  # fmt: skip
    change = WordChange(name, steps, dict.fromkeys(periods, 6), dict.fromkeys(periods, 123_456.0))
    if not is_kept:
        return change
    labels = np.arange(6 * n_periods) % 2
    return WordChange(name, steps, change.n_usages, change.per_million, usages, labels)


def build_usages(name: str, period: str, *, seed: int) -> Usages:
    items = tuple(Usage(Tokens.from_words(["the", name, period, str(k)]), 1, 2) for k in range(6))
    return Usages(items, 5 + np.random.default_rng(seed).normal(size=(6, 8)))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Figure]:
    def draw(*words: WordChange, measure: str = "apd") -> Figure:
        figures: list[Figure] = []

        def keep(_: Path, build: Callable[[], Figure]) -> None:
            figures.append(build())

        monkeypatch.setattr(change_picture, "draw_figure", keep)
        periods = tuple(words[0].n_usages)
        change_picture.draw_changes(Changes(measure, periods, words), "x.png")
        return figures[0]

    return draw


def texts(figure: Figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text().strip()]


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["apd", "jsd"])
@pytest.mark.parametrize("n_periods", [2, 3])
@pytest.mark.parametrize("names", [["mouse"], ["mouse", "house"], ["电脑" * 12] * 50])
@pytest.mark.parametrize("is_kept", [False, True])
def test_all_text_is_on_the_canvas(
    drawn: Callable[..., Figure], *, measure: str, n_periods: int, names: list[str], is_kept: bool
) -> None:
    figure = drawn(*(word(name, n_periods, is_kept=is_kept) for name in names), measure=measure)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    width, height = canvas.get_width_height()
    outside = [
        text.get_text()
        for text in texts(figure)
        for box in [text.get_window_extent()]
        if text.get_visible() and (box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height)
    ]
    assert outside == []


@pytest.mark.parametrize("is_kept", [False, True])
def test_insignificant_steps_are_hollow_and_the_panel_names_its_word(
    drawn: Callable[..., Figure], *, is_kept: bool
) -> None:
    figure = drawn(word("mouse", 3, q=0.01, is_kept=is_kept))
    panel = figure.axes[-1]
    faces = [to_hex(face) for points in panel.collections for face in to_rgba_array(points.get_facecolor())]
    assert faces == [change_picture.COLORS[0].lower(), "#ffffff"]
    assert panel.get_title(loc="left") == "“mouse” from each period to the next"
    assert panel.get_ylabel().replace("\n", " ") == change_picture.TITLES["apd"]
    legend = panel.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["q < 0.05", "may be chance"]


def test_the_map_has_a_caption_and_labels_the_sentences_below(drawn: Callable[..., Figure]) -> None:
    figure = drawn(word("mouse", 3, is_kept=True))
    axes, usages = figure.axes[0], word("mouse", 3, is_kept=True).usages
    assert usages is not None
    assert "principal components" in axes.get_xlabel()
    assert [text.get_text() for text in axes.texts] == ["+1", "+2", "−1", "−2"]
    points, _ = change_picture.project(np.concatenate([items.vectors for items in usages.values()]))
    positions = [text.xy for text in axes.texts if isinstance(text, Annotation)]
    np.testing.assert_allclose(positions, points[[12, 13, 3, 4]])
