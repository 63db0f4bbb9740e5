"""Senses of a word in, a picture of its usages out: a point for each, near what it is like."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmo.embed.figure import check, drawable, plain, save, shortened, text_width
from elmo.lexicon.clustering import reduced
from elmo.lexicon.senses import Senses
from elmo.lexicon.usages import Usage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito (2008): told apart with every kind of colour vision; markers differ, too
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000", "#B8A800")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h", "*")
LINE_HEIGHT = 0.24  # inches
LINE_WIDTH = 92  # of a sentence below the points, in Latin letters
MANY = 50  # usages, above which t-SNE keeps neighbours together better than PCA does


def draw_senses(found: Senses, path: str | Path, *, seed: int = 0) -> None:
    """Write the picture; the suffix of ``path`` says whether as PNG, PDF or SVG."""
    target = Path(path)
    check(target)
    save(_figure(found, seed=seed), target)


def flat(vectors: NDArray[np.floating[Any]], *, seed: int = 0) -> NDArray[np.float64]:
    """Places (usage, 2) on paper: by PCA, or t-SNE (van der Maaten and Hinton 2008) for many usages."""
    points = reduced(vectors, 20)
    if len(points) > MANY and points.shape[1] > 2:
        from elmo.errors import MissingExtraError

        try:
            from sklearn.manifold import TSNE
        except ImportError as error:
            raise MissingExtraError("a picture of many usages", extra="lexicon") from error
        settings: dict[str, Any] = {"init": "pca", "learning_rate": "auto", "random_state": seed}
        return np.asarray(TSNE(2, perplexity=min(30.0, len(points) / 4), **settings).fit_transform(points))
    found = np.zeros((len(points), 2))
    found[:, : min(points.shape[1], 2)] = points[:, :2]
    return found


def sentence_line(usage: Usage, width: int = LINE_WIDTH) -> str:
    """A usage's sentence with its word in brackets, shortened on both sides of it."""
    before, word, after = (plain(part) for part in usage.parts())
    word = shortened(word, width // 2)
    room = width - text_width(word) - 2
    left = shortened(before[::-1], max(room // 2, room - text_width(after)))[::-1]
    return f"{left}[{word}]{shortened(after, room - text_width(left))}"


def bare(axes: Axes) -> None:
    """Axes of a map: its directions and distances have no unit."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color("#bbbbbb")
    axes.margins(0.06)


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
    title = f"“{shortened(plain(found.word), 40)}”: {how} in {n:,} usages"
    names = [
        f"{shortened(plain(sense.label), 60)} ({sense.share:.0%}, {len(sense.members):,} usages)"
        for sense in found.items
    ]
    examples = [sentence_line(sense.examples[0]) if sense.examples else "" for sense in found.items]
    fonts, lines = drawable([title, *names, *examples])
    title, names, examples = lines[0], lines[1 : len(found) + 1], lines[len(found) + 1 :]

    width, top, panel, gap = 7.8, 0.6, 4.6, 0.3  # inches
    height = top + panel + gap + 2 * LINE_HEIGHT * len(found) + 0.15
    figure = Figure(figsize=(width, height), facecolor="white")
    figure.text(
        0.3 / width, 1 - 0.3 / height, title, va="center", family=fonts, fontsize=12, parse_math=False
    )
    place = (0.3 / width, 1 - (top + panel) / height, 1 - 0.6 / width, panel / height)
    axes = figure.add_axes(place)
    bare(axes)
    points = flat(found.usages.vectors, seed=seed)
    for k, sense in enumerate(found.items):
        style: dict[str, Any] = {"marker": MARKERS[k % len(MARKERS)], "c": COLOURS[k % len(COLOURS)]}
        own = points[found.labels == sense.number]
        axes.scatter(own[:, 0], own[:, 1], s=26, alpha=0.75, linewidths=0, **style)
        at = top + panel + gap + 2 * LINE_HEIGHT * k
        key = figure.add_axes(
            (0.3 / width, 1 - (at + 0.1) / height, 0.2 / width, 0.2 / height), frameon=False
        )
        key.set(xticks=[], yticks=[], xlim=(-1, 1), ylim=(-1, 1))
        key.scatter([0], [0], s=40, linewidths=0, **style)
        y = 1 - at / height
        figure.text(0.6 / width, y, names[k], va="center", family=fonts, fontsize=10, parse_math=False)
        write_lines(figure, [examples[k]], fonts, top=at + LINE_HEIGHT, left=0.6)
    return figure
