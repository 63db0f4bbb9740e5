"""Senses of a word in, a picture of its usages out: a point for each, near what it is like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmo.lexicon.clustering import reduce_dimensions
from elmo.lexicon.senses import Senses
from elmo.lexicon.usages import Usage
from elmo.plots.figure import check_picture, prepare_lines, save_figure
from elmo.text.display import shorten, text_width, to_plain_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito (2008): told apart with every kind of colour vision; markers differ, too
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000", "#B8A800")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h", "*")
LINE_HEIGHT = 0.24  # inches
LINE_WIDTH = 92  # of a sentence below the points, in Latin letters
CAPTION_HEIGHT = 0.24  # inches
N_SENTENCES = 12  # below the points, up to three of each sense; of many senses, one
MANY = 50  # usages, above which t-SNE keeps neighbours together better than PCA does
BY_PCA = "A point is a usage, placed by the first two principal components of its vector: near is alike."
BY_TSNE = "A point is a usage, placed by t-SNE of its vector: near is alike, long distances mean little."


def draw_senses(found: Senses, path: str | Path, *, seed: int = 0) -> None:
    """Write the picture; the suffix of ``path`` says whether as PNG, PDF or SVG."""
    target = Path(path)
    check_picture(target)
    save_figure(_figure(found, seed=seed), target)


def flat(vectors: NDArray[np.floating[Any]], *, seed: int = 0) -> tuple[NDArray[np.float64], str]:
    """Places (usage, 2) on paper, by PCA or for many usages by t-SNE, and a line that says what they mean.

    t-SNE is that of van der Maaten and Hinton (2008).
    """
    points = reduce_dimensions(vectors, 20)
    if len(points) > MANY and points.shape[1] > 2:
        from elmo.errors import MissingExtraError

        try:
            from sklearn.manifold import TSNE
        except ImportError as error:
            raise MissingExtraError("a picture of many usages", extra="lexicon") from error
        settings: dict[str, Any] = {"init": "pca", "learning_rate": "auto", "random_state": seed}
        tsne = TSNE(2, perplexity=min(30.0, len(points) / 4), **settings)
        return np.asarray(tsne.fit_transform(points), np.float64), BY_TSNE
    found = np.zeros((len(points), 2))
    found[:, : min(points.shape[1], 2)] = points[:, :2]
    return found, BY_PCA


def sentence_line(usage: Usage, width: int = LINE_WIDTH) -> str:
    """A usage's sentence with its word in brackets, shortened on both sides of it."""
    before, word, after = (to_plain_text(part) for part in usage.parts())
    word = shorten(word, width // 2)
    room = width - text_width(word) - 2
    left = shorten(before[::-1], max(room // 2, room - text_width(after)))[::-1]
    return f"{left}[{word}]{shorten(after, room - text_width(left))}"


def bare(axes: Axes, caption: str) -> None:
    """Axes of a map, whose directions and distances have no unit: ``caption`` says what places mean."""
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(caption, loc="left", fontsize=9, color="#333333")
    axes.spines[:].set_color("#bbbbbb")
    axes.margins(0.06)


def mark(axes: Axes, points: NDArray[np.float64], names: Mapping[int, str]) -> None:
    """Names beside some of the ``points`` (usage, 2) that are drawn, by their row, where most room is."""
    from matplotlib.patheffects import withStroke

    axes.autoscale_view()
    figure = axes.get_figure(root=True)
    if figure is None:
        return
    taken = axes.transData.transform(points) * 72 / figure.dpi
    angles = np.arange(8) * np.pi / 4
    offsets = np.stack([np.cos(angles) * 12, np.sin(angles) * 10], axis=1)  # in points; names are wide
    weights = np.ones(len(taken))
    weights[list(names)] = 0.3  # names keep farther away from rings and names than from other points
    for row, name in names.items():
        away = np.linalg.norm((taken[row] + offsets)[:, None] - taken, axis=2) * weights  # (offset, taken)
        away[:, row] = np.inf
        offset = offsets[int(away.min(axis=1, initial=20.0).argmax())]
        taken, weights = np.concatenate([taken, [taken[row] + offset]]), np.append(weights, 0.3)
        axes.scatter(*points[row], s=60, facecolor="none", edgecolor="black", linewidths=0.8)
        axes.annotate(
            name, tuple(points[row]), xytext=tuple(offset), textcoords="offset points", ha="center",
            va="center", fontsize=8, path_effects=[withStroke(linewidth=2, foreground="white")],
        )  # fmt: skip


def write_lines(figure: Figure, lines: Sequence[str], fonts: list[str], *, top: float, left: float) -> None:
    """Lines of text from ``top`` inches below the upper edge, ``left`` inches from the left one."""
    width, height = figure.get_size_inches()
    for k, line in enumerate(lines):
        y = 1 - (top + LINE_HEIGHT * k) / height
        figure.text(
            left / width, y, line, va="center", family=fonts, fontsize=9, color="#333333", parse_math=False
        )


def _figure(found: Senses, *, seed: int) -> Figure:
    from matplotlib.figure import Figure

    n = len(found.usages)
    how = "one sense" if len(found) == 1 else f"{len(found)} senses"
    title = f"“{shorten(to_plain_text(found.word), 40)}”: {how} in {n:,} usages"
    names = [
        f"{shorten(to_plain_text(sense.label), 60)} ({sense.share:.0%}, {len(sense.members):,} usages)"
        for sense in found.items
    ]
    letters = "abc"[: max(N_SENTENCES // len(found), 1)]
    marks = [
        {f"{sense.number}{x}": usage for x, usage in zip(letters, sense.examples, strict=False)}
        for sense in found.items
    ]
    texts = [f"{name}  {sentence_line(one, LINE_WIDTH - 5)}" for own in marks for name, one in own.items()]
    fonts, lines = prepare_lines([title, *names, *texts])
    title, names, texts = lines[0], lines[1 : len(found) + 1], lines[len(found) + 1 :]

    width, top, panel, gap = 7.8, 0.6, 4.6, 0.3 + CAPTION_HEIGHT  # inches
    height = top + panel + gap + LINE_HEIGHT * (len(names) + len(texts)) + 0.15
    figure = Figure(figsize=(width, height), facecolor="white")
    figure.text(
        0.3 / width, 1 - 0.3 / height, title, va="center", family=fonts, fontsize=12, parse_math=False
    )
    place = (0.3 / width, 1 - (top + panel) / height, 1 - 0.6 / width, panel / height)
    axes = figure.add_axes(place)
    points, caption = flat(found.usages.vectors, seed=seed)
    bare(axes, caption)
    at = top + panel + gap
    for k, sense in enumerate(found.items):
        style: dict[str, Any] = {"marker": MARKERS[k % len(MARKERS)], "c": COLOURS[k % len(COLOURS)]}
        own = points[found.labels == sense.number]
        axes.scatter(own[:, 0], own[:, 1], s=26, alpha=0.75, linewidths=0, **style)
        key = figure.add_axes(
            (0.3 / width, 1 - (at + 0.1) / height, 0.2 / width, 0.2 / height), frameon=False
        )
        key.set(xticks=[], yticks=[], xlim=(-1, 1), ylim=(-1, 1))
        key.scatter([0], [0], s=40, linewidths=0, **style)
        y = 1 - at / height
        figure.text(0.6 / width, y, names[k], va="center", family=fonts, fontsize=10, parse_math=False)
        own_texts, texts = texts[: len(marks[k])], texts[len(marks[k]) :]
        write_lines(figure, own_texts, fonts, top=at + LINE_HEIGHT, left=0.6)
        at += LINE_HEIGHT * (1 + len(own_texts))
    items = found.usages.items
    mark(axes, points, {items.index(usage): name for own in marks for name, usage in own.items()})
    return figure
