"""Draw the senses of a word as a map, on which similar usages are close together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmo.errors import importing_extra
from elmo.lexicon.clustering import reduce_dimensions
from elmo.lexicon.senses import Senses
from elmo.lexicon.usages import Usage
from elmo.plots.figure import draw_figure, format_in_context, new_figure, prepare_lines
from elmo.text.display import shorten, to_plain_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The colors of Okabe and Ito (2008) can be distinguished with every kind of color vision.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000", "#B8A800")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h", "*")
LINE_HEIGHT = 0.24  # inches
LINE_WIDTH = 92  # width of a sentence below the map, in Latin letters
CAPTION_HEIGHT = 0.24  # inches
N_SENTENCES = 12  # intended number of sentences below the map; each sense has one to three
MIN_TSNE_USAGES = 50  # with more usages, t-SNE is used, because it preserves neighborhoods better than PCA
PCA_CAPTION = "Each point is a usage. Axes: first two principal components of its vector; near points are similar."
TSNE_CAPTION = (
    "Each point is a usage, placed by t-SNE of its vector; near points are similar, but large distances mean little."
)


def draw_senses(senses: Senses, path: str | Path, *, seed: int = 0) -> None:
    """Draw a map of the usages of a word with a legend of its senses.

    Args:
        senses: The senses of a word.
        path: Picture to write: .png, .pdf or .svg.
        seed: Seed of the t-SNE projection.

    Example:
        >>> from elmo.lexicon import senses_in_corpus
        >>> from elmo.jobs import EmbedJob
        >>> sentences = list(EmbedJob(("corpus.txt",)).sentences(elmo.tokenizer))
        >>> draw_senses(senses_in_corpus(elmo, sentences, "bank", n_clusters=2), "senses.png")
    """
    draw_figure(path, lambda: _build_figure(senses, seed=seed))


def project(vectors: NDArray[np.floating[Any]], *, seed: int = 0) -> tuple[NDArray[np.float64], str]:
    """Project vectors to points (usage, 2), and return them with a caption that explains the projection.

    Uses PCA, or t-SNE (van der Maaten and Hinton 2008) for many usages.
    """
    points = reduce_dimensions(vectors, 20)
    if len(points) > MIN_TSNE_USAGES and points.shape[1] > 2:
        with importing_extra("a picture of many usages", extra="lexicon"):
            from sklearn.manifold import TSNE
        settings: dict[str, Any] = {"init": "pca", "learning_rate": "auto", "random_state": seed}
        tsne = TSNE(2, perplexity=min(30.0, len(points) / 4), **settings)
        return np.asarray(tsne.fit_transform(points), np.float64), TSNE_CAPTION
    plane = np.zeros((len(points), 2))
    plane[:, : min(points.shape[1], 2)] = points[:, :2]
    return plane, PCA_CAPTION


def sentence_line(usage: Usage, width: int = LINE_WIDTH) -> str:
    """Format the sentence of a usage with its word in brackets, shortened on both sides."""
    return format_in_context(*usage.parts(), width)


def format_map(axes: Axes, caption: str) -> None:
    """Remove the ticks of a map, whose axes have no units, and add a caption."""
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(caption, loc="left", fontsize=9, color="#333333")
    axes.spines[:].set_color("#bbbbbb")
    axes.margins(0.06)


def label_points(axes: Axes, points: NDArray[np.float64], labels: Mapping[int, str]) -> None:
    """Label some of the drawn ``points`` (usage, 2); each label is placed in the least crowded direction."""
    from matplotlib.patheffects import withStroke

    axes.autoscale_view()
    figure = axes.get_figure(root=True)
    if figure is None:
        return
    occupied = axes.transData.transform(points) * 72 / figure.dpi
    angles = np.arange(8) * np.pi / 4
    offsets = np.stack(
        [np.cos(angles) * 12, np.sin(angles) * 10], axis=1
    )  # in points; wider than high, like the labels
    weights = np.ones(len(occupied))
    weights[list(labels)] = 0.3  # labels keep a larger distance from labeled points and other labels
    for row, label in labels.items():
        distances = np.linalg.norm((occupied[row] + offsets)[:, None] - occupied, axis=2) * weights
        distances[:, row] = np.inf  # (offset, occupied)
        offset = offsets[int(distances.min(axis=1, initial=20.0).argmax())]
        occupied, weights = np.concatenate([occupied, [occupied[row] + offset]]), np.append(weights, 0.3)
        axes.scatter(*points[row], s=60, facecolor="none", edgecolor="black", linewidths=0.8)
        axes.annotate(
            label, tuple(points[row]), xytext=tuple(offset), textcoords="offset points", ha="center",
            va="center", fontsize=8, path_effects=[withStroke(linewidth=2, foreground="white")],
        )  # fmt: skip


def write_lines(figure: Figure, lines: Sequence[str], fonts: list[str], *, top: float, left: float) -> None:
    """Write lines of text, starting ``top`` inches below the upper edge and ``left`` inches from the left edge."""
    width, height = figure.get_size_inches()
    for k, line in enumerate(lines):
        y = 1 - (top + LINE_HEIGHT * k) / height
        figure.text(left / width, y, line, va="center", family=fonts, fontsize=9, color="#333333", parse_math=False)


def _build_figure(senses: Senses, *, seed: int) -> Figure:
    n = len(senses.usages)
    n_senses = "one sense" if len(senses) == 1 else f"{len(senses)} senses"
    title = f"“{shorten(to_plain_text(senses.word), 40)}”: {n_senses} in {n:,} usages"
    names = [
        f"{shorten(to_plain_text(sense.label), 60)} ({sense.share:.0%}, {len(sense.members):,} usages)"
        for sense in senses.items
    ]
    letters = "abc"[: max(N_SENTENCES // len(senses), 1)]
    examples = [
        {f"{sense.number}{letter}": usage for letter, usage in zip(letters, sense.examples, strict=False)}
        for sense in senses.items
    ]
    texts = [f"{name}  {sentence_line(usage, LINE_WIDTH - 5)}" for own in examples for name, usage in own.items()]
    fonts, lines = prepare_lines([title, *names, *texts])
    title, names, texts = lines[0], lines[1 : len(senses) + 1], lines[len(senses) + 1 :]

    width, top, panel, gap = 7.8, 0.6, 4.6, 0.3 + CAPTION_HEIGHT  # inches
    height = top + panel + gap + LINE_HEIGHT * (len(names) + len(texts)) + 0.15
    figure = new_figure(width, height)
    figure.text(0.3 / width, 1 - 0.3 / height, title, va="center", family=fonts, fontsize=12, parse_math=False)
    box = (0.3 / width, 1 - (top + panel) / height, 1 - 0.6 / width, panel / height)
    axes = figure.add_axes(box)
    points, caption = project(senses.usages.vectors, seed=seed)
    format_map(axes, caption)
    y_line = top + panel + gap
    for k, sense in enumerate(senses.items):
        style: dict[str, Any] = {"marker": MARKERS[k % len(MARKERS)], "c": COLORS[k % len(COLORS)]}
        own = points[senses.labels == sense.number]
        axes.scatter(own[:, 0], own[:, 1], s=26, alpha=0.75, linewidths=0, **style)
        key = figure.add_axes((0.3 / width, 1 - (y_line + 0.1) / height, 0.2 / width, 0.2 / height), frameon=False)
        key.set(xticks=[], yticks=[], xlim=(-1, 1), ylim=(-1, 1))
        key.scatter([0], [0], s=40, linewidths=0, **style)
        y = 1 - y_line / height
        figure.text(0.6 / width, y, names[k], va="center", family=fonts, fontsize=10, parse_math=False)
        own_texts, texts = texts[: len(examples[k])], texts[len(examples[k]) :]
        write_lines(figure, own_texts, fonts, top=y_line + LINE_HEIGHT, left=0.6)
        y_line += LINE_HEIGHT * (1 + len(own_texts))
    items = senses.usages.items
    label_points(axes, points, {items.index(usage): name for own in examples for name, usage in own.items()})
    return figure
