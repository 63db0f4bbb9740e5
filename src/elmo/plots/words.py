"""Draw results about words in context: scores, substitutes, explanations, nearest neighbors, word pairs and probes.

Every ``draw_`` function writes a picture; the suffix of its path selects PNG, PDF or SVG.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elmo.errors import DataError
from elmo.plots.figure import INSTALL_FONTS, draw_figure, find_fonts, new_figure, prepare_lines, write_values
from elmo.text.display import shorten, text_width, to_plain_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    from elmo.lexicon.explain import Explanation
    from elmo.lexicon.neighbors import Neighbors
    from elmo.lexicon.probe import ProbeResults
    from elmo.lexicon.substitutes import Substitutes
    from elmo.lexicon.word_pairs import PairSimilarities

logger = logging.getLogger(__name__)

BLUE, ORANGE = "#0072B2", "#E69F00"  # color-blind readers can distinguish them

# --- Bars -------------------------------------------------------------------------------------------

_BAR_LINE_HEIGHT = (0.24, 0.34)  # inches, for one series and for two
_MAX_TITLE, _MAX_BAR_LABEL = 100, 70  # maximum widths in Latin letters


@dataclass(frozen=True)
class Panel:
    """The bars of one sentence: the labels and, for each series, a number or None for each label."""

    title: str
    labels: Sequence[str]
    series: Sequence[Sequence[float | None]]


def draw_substitutes(results: Sequence[Substitutes], path: str | Path) -> None:
    """Draw the probabilities of substitutes, one panel per usage; unknown candidates are left out.

    Args:
        results: The usages and their substitutes.
        path: File to write; its suffix selects PNG, PDF or SVG.

    Example:
        >>> from elmo.lexicon import find_substitutes
        >>> draw_substitutes(find_substitutes(elmo, ["The [[bank]] lent her money."]), "substitutes.png")
    """
    panels = []
    for result in results:
        known = [item for item in result.items if item.is_known]
        title = "{}[{}]{}".format(*result.usage.parts())
        panels.append(Panel(title, [item.word for item in known], [[item.probability for item in known]]))
    draw_bars(panels, path, title="Substitutes", form="{:.1%}")


def draw_bars(
    panels: Sequence[Panel], path: str | Path, *, title: str, names: Sequence[str] = (), form: str = "{:.2f}"
) -> None:
    """Draw panels of horizontal bars.

    Args:
        panels: The panels, from top to bottom.
        path: Picture to write.
        title: Title of the figure.
        names: Names of the series, if there are several.
        form: Format string of the numbers.
    """
    if not panels:
        raise DataError("cannot draw bars: there must be at least one panel; found none")
    draw_figure(path, lambda: _bars_figure(panels, title, names, form))


def _bars_figure(panels: Sequence[Panel], title: str, names: Sequence[str], form: str) -> Figure:
    texts = [title, *(shorten(to_plain_text(panel.title), _MAX_TITLE) for panel in panels)]
    texts += [shorten(to_plain_text(label), _MAX_BAR_LABEL) for panel in panels for label in panel.labels]
    fonts, lines = prepare_lines(texts)
    title, panel_titles, rest = lines[0], lines[1 : len(panels) + 1], iter(lines[len(panels) + 1 :])
    line_height = _BAR_LINE_HEIGHT[min(max(len(panel.series) for panel in panels), 2) - 1]
    panel_labels = [[next(rest) for _ in panel.labels] for panel in panels]
    left = 0.4 + 0.085 * max((text_width(label) for labels in panel_labels for label in labels), default=4)
    tops, height = list[float](), 0.75 + (0.25 if names else 0.0)
    for labels in panel_labels:
        tops.append(height)
        height += 0.45 + line_height * max(len(labels), 1) + 0.25
    height += 0.1
    width = max(left + 5.2, 0.6 + 0.085 * max(map(text_width, panel_titles)))
    figure = new_figure(width, height)
    style = {"family": fonts, "parse_math": False, "va": "top"}
    figure.text(0.15 / width, 1 - 0.2 / height, title, fontsize=12, **style)
    colors = (BLUE, ORANGE)
    for k, name in enumerate(names):
        x, y = 0.2 / width + k * 1.5 / width, 1 - 0.55 / height
        figure.text(x, y, f"■ {name}", fontsize=9, color=colors[k], **style)
    numbers = [x for panel in panels for values in panel.series for x in values if x is not None]
    highest = max([*numbers, 1e-9])
    for panel, labels, panel_title, top in zip(panels, panel_labels, panel_titles, tops, strict=True):
        figure.text(0.15 / width, 1 - top / height, panel_title, fontsize=10, weight="bold", **style)
        n_lines = max(len(labels), 1)
        box_height = line_height * n_lines
        box = (left / width, 1 - (top + 0.35 + box_height) / height, 4.2 / width, box_height / height)
        axes = figure.add_axes(box)
        axes.set(xlim=(0, highest * 1.18), ylim=(n_lines - 0.5, -0.5))
        axes.set_yticks(range(len(labels)), labels, fontsize=9, family=fonts, parse_math=False)
        axes.set_xticks([])
        axes.tick_params(length=0)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        bar_height = 0.7 / len(panel.series)
        for k, values in enumerate(panel.series):
            for row, value in enumerate(values):
                if value is None:
                    continue
                y = row - 0.35 + bar_height * (k + 0.5)
                axes.barh(y, value, height=bar_height, color=colors[k])
                axes.text(value + highest * 0.01, y, form.format(value), va="center", fontsize=7.5)
    return figure


# --- Explanations -----------------------------------------------------------------------------------

_TEXT_WIDTH = 9.0  # maximum, in inches
_TEXT_LINE_HEIGHT = 0.62
_MAX_TOKEN = 24  # maximum width of a token in Latin letters


def draw_explanation(explanation: Explanation, path: str | Path) -> None:
    """Draw the sentences of an explanation; the color of a word and the number below it show its score.

    Args:
        explanation: The explanation.
        path: File to write; its suffix selects PNG, PDF or SVG.

    Example:
        >>> draw_explanation(explain(elmo, "I sat by the [[bank]] of the river."), "explanation.png")
    """
    draw_figure(path, lambda: _explanation_figure(explanation))


def _explanation_figure(explanation: Explanation) -> Figure:
    from matplotlib.patches import Rectangle

    parts = [explanation] if explanation.other is None else [explanation, explanation.other]
    rows = [list(range(*part.scope)) for part in parts]
    texts = [
        shorten(to_plain_text(part.tokens[k]), _MAX_TOKEN) for part, row in zip(parts, rows, strict=True) for k in row
    ]
    fonts, lines = prepare_lines(texts)
    tokens = iter(lines)
    strongest = max([abs(word.score) for part in parts for word in part.context] + [1e-12])
    if explanation.similarity is None:
        title = f"Words that determine the vector ({explanation.method})"
    else:
        effect = f"raise (orange) and lower (blue) the similarity {explanation.similarity:.3f}"
        title = f"Words that {effect} ({explanation.method})"
    style = {"family": fonts, "fontsize": 12, "parse_math": False, "va": "center"}
    ruler = new_figure(_TEXT_WIDTH, 1.0)
    places: list[tuple[float, int, float, str, float | None]] = []  # left, line, width, token, score
    line = 0
    for part, row in zip(parts, rows, strict=True):
        left = 0.3
        for k in row:
            token = next(tokens)
            is_target = part.target[0] <= k < part.target[1]
            text = ruler.text(0, 0, token, weight="bold" if is_target else "normal", **style)
            width = max(_measure_width(ruler, text) + 0.12, 0.42)
            text.remove()
            if left + width > _TEXT_WIDTH - 0.3 and left > 0.3:
                left, line = 0.3, line + 1
            places.append((left, line, width, token, None if is_target else part.scores[k]))
            left += width + 0.06
        line += 1
    title_width = _measure_width(ruler, ruler.text(0, 0, title, fontsize=11))
    full_width = max([0.3 + title_width, *(left + width for left, _, width, _, _ in places)]) + 0.3
    height = 0.7 + _TEXT_LINE_HEIGHT * line + 0.1
    figure = new_figure(full_width, height)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(0, full_width), ylim=(0, height))
    axes.text(0.3, height - 0.3, title, va="center", fontsize=11)
    for left, number, width, token, score in places:
        y = height - 0.7 - _TEXT_LINE_HEIGHT * number - 0.1
        if score is None:
            box = Rectangle((left, y - 0.15), width, 0.3, fill=False, edgecolor="black", linewidth=1.2)
        else:
            color = ORANGE if score > 0 else BLUE
            box = Rectangle((left, y - 0.15), width, 0.3, color=color, alpha=0.7 * abs(score) / strongest, linewidth=0)
            axes.text(left + width / 2, y - 0.25, f"{score:.3f}", ha="center", va="center", fontsize=7, color="0.35")
        axes.add_patch(box)
        weight = "bold" if score is None else "normal"
        axes.text(left + width / 2, y, token, ha="center", weight=weight, **style)
    return figure


# --- Neighbors --------------------------------------------------------------------------------------

_NEIGHBOR_LINE_HEIGHT = 0.27  # inches
_MAX_CONTEXT, _MAX_WORD = 46, 24  # maximum widths in Latin letters: of the text on each side, and of the word
_WORD_COLOR = "#B34700"


def draw_neighbors(results: Sequence[Neighbors], path: str | Path) -> None:
    """Draw usages and their nearest neighbors as sentences that are aligned at the word, with cosines as bars.

    Args:
        results: The usages and their neighbors.
        path: File to write; its suffix selects PNG, PDF or SVG.

    Example:
        >>> from elmo.lexicon import IndexJob, build_index, find_neighbors
        >>> index = build_index(IndexJob(("corpus.txt",), Path("drawn")), elmo)
        >>> draw_neighbors(find_neighbors(elmo, index, ["My [[bank]] lent me money."]), "neighbors.png")
    """
    if not results:
        raise DataError("cannot draw neighbors: there must be at least one usage; found none")
    draw_figure(path, lambda: _neighbors_figure(results))


def _neighbors_figure(results: Sequence[Neighbors]) -> Figure:
    from matplotlib.patches import Rectangle

    rows: list[tuple[float | None, tuple[str, str, str]] | None] = []  # cosine and text, or None for an empty line
    for result in results:
        rows += [None] if rows else []
        rows.append((None, _shorten_parts(result.usage.parts())))
        rows += [(near.similarity, _shorten_parts(near.usage.parts())) for near in result.items]
    fonts, texts = prepare_lines([part for row in rows if row for part in row[1]])
    parts = iter(texts)
    width, top, center = 11.5, 0.6, 6.0  # inches
    height = top + _NEIGHBOR_LINE_HEIGHT * len(rows) + 0.3
    figure = new_figure(width, height)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.text(0.25, height - 0.3, "Nearest usages, by cosine", va="center", fontsize=12)
    style = {"va": "center", "family": fonts, "fontsize": 9, "parse_math": False}
    for k, row in enumerate(rows):
        if row is None:
            continue
        y = height - top - _NEIGHBOR_LINE_HEIGHT * (k + 0.5)
        cosine = row[0]
        before, word, after = (next(parts) for _ in row[1])
        if cosine is not None:
            axes.text(0.7, y, f"{cosine:.2f}", va="center", ha="right", fontsize=9)
            axes.add_patch(Rectangle((0.8, y - 0.07), max(cosine, 0) * 0.9, 0.14, color=BLUE, linewidth=0))
        weight = "bold" if cosine is None else "normal"
        text = axes.text(center, y, word, ha="center", color=_WORD_COLOR, fontweight="bold", **style)
        half = _measure_width(figure, text) / 2
        axes.text(center - half - 0.07, y, before, ha="right", fontweight=weight, **style)
        axes.text(center + half + 0.07, y, after, ha="left", fontweight=weight, **style)
    return figure


def _shorten_parts(parts: tuple[str, str, str]) -> tuple[str, str, str]:
    before, word, after = (to_plain_text(part) for part in parts)
    return (
        shorten(before.strip()[::-1], _MAX_CONTEXT)[::-1],
        shorten(word, _MAX_WORD),
        shorten(after.strip(), _MAX_CONTEXT),
    )


def _measure_width(figure: Figure, text: Text) -> float:
    """Return the width of a text in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    return text.get_window_extent(FigureCanvasAgg(figure).get_renderer()).width / figure.dpi


# --- Word pairs -------------------------------------------------------------------------------------


def draw_pairs(result: PairSimilarities, path: str | Path) -> None:
    """Draw a histogram of the cosines for each layer, split by label, with the threshold that separates them.

    Args:
        result: The cosines of labeled pairs.
        path: File to write; its suffix selects PNG, PDF or SVG.

    Example:
        >>> from elmo.lexicon import compare_pairs, read_pairs
        >>> data = read_pairs("pairs.tsv", tokenizer=elmo.tokenizer)
        >>> draw_pairs(compare_pairs(elmo, data, tune=data), "pairs.png")
    """
    if not result.data.pairs:
        raise DataError("cannot draw word pairs: there must be at least one pair; found none")
    draw_figure(path, lambda: _pairs_figure(result))


def _pairs_figure(result: PairSimilarities) -> Figure:
    is_same = result.data.is_same
    n_layers = len(result.cosines)
    figure = new_figure(7.2, 0.9 + 1.75 * n_layers, layout="constrained")
    title = f"Cosine similarity of word pairs ({len(result.data.pairs):,} pairs)"
    figure.suptitle(title, fontsize=12, x=0.02, ha="left")
    subplots = figure.subplots(n_layers, 1, squeeze=False)[:, 0]
    for axes, (layer, cosines) in zip(subplots, result.cosines.items(), strict=True):
        edges = np.linspace(min(0.0, float(cosines.min())), 1.0, 41)
        if is_same is None:
            axes.hist(cosines, edges, color=BLUE)
        else:
            style = {"histtype": "step", "linewidth": 1.8}
            axes.hist(cosines[is_same], edges, color=BLUE, label="same sense", **style)
            axes.hist(cosines[~is_same], edges, color=ORANGE, hatch="///", label="different", **style)
        layer_title = f"layer {layer}" if layer.isdigit() else layer
        if (judged := result.judgments.get(layer)) is not None:
            axes.axvline(judged.threshold, color="black", linewidth=1, linestyle="--", label="threshold")
            layer_title += "" if judged.accuracy is None else f": {judged.accuracy:.1%} accuracy"
        axes.set_title(layer_title, fontsize=10, loc="left")
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        if is_same is not None or result.judgments:
            axes.legend(fontsize=8, frameon=False, loc="upper left")
    subplots[-1].set_xlabel("cosine", fontsize=9)
    return figure


# --- Probes -----------------------------------------------------------------------------------------

MAX_LABELS = 40  # the most frequent labels are drawn
LABEL_WIDTH = 24  # maximum width of a label in Latin letters
CELL_WIDTH, CELL_HEIGHT = 0.72, 0.27  # inches


def draw_probing(probing: ProbeResults, path: str | Path, *, column: str = "labels") -> None:
    """Draw a heat map of F1 scores, with one row per label and one column per layer.

    ``column`` names the labels in the title.

    Args:
        probing: The scores.
        path: File to write; its suffix selects PNG, PDF or SVG.
        column: What the labels are, for the title.

    Example:
        >>> from elmo.lexicon import probe_layers, read_labels
        >>> results = probe_layers(elmo, read_labels("train.conll", 2), read_labels("dev.conll", 2))
        >>> draw_probing(results, "probing.png")
    """
    draw_figure(path, lambda: _probe_figure(probing, column))


def _probe_figure(probing: ProbeResults, column: str) -> Figure:
    labels = list(probing.labels)[:MAX_LABELS]
    names = [shorten(to_plain_text(label), LABEL_WIDTH) for label in labels]
    title = f"{shorten(to_plain_text(column), 30)}: F1 of linear probes"
    fonts, missing = find_fonts("".join([*names, title]))
    if missing:
        logger.warning("no font can draw %s: showing numbers instead of these labels; %s", missing[:20], INSTALL_FONTS)
        names = [f"label {k}" if set(name) & set(missing) else name for k, name in enumerate(names, start=1)]
        title = "labels: F1 of linear probes" if set(title) & set(missing) else title
    counts = [f"{probing.labels[label]:,}" for label in labels]

    values = np.array([[layer.f1[label].mean for layer in probing.layers] for label in labels])
    count_width = 0.2 + 0.08 * max(map(len, [*counts, "words"]))  # inches
    left = 0.3 + 0.09 * max(map(text_width, names)) + count_width
    top, bottom, right = 1.15, 0.2, 0.95
    map_width, map_height = CELL_WIDTH * len(probing.layers), CELL_HEIGHT * len(labels)
    width, height = max(left + map_width + right, 4.6), top + map_height + bottom
    figure = new_figure(width, height)
    limit = f", the {len(labels)} most frequent labels" if len(labels) < len(probing.labels) else ""
    subtitle = f"on {probing.n_dev:,} words{limit}; the accuracy is below the name of each layer"
    for text, size, down in ((title, 12, 0.14), (subtitle, 9, 0.42)):
        x, y = 0.15 / width, 1 - down / height
        figure.text(x, y, text, va="top", family=fonts, fontsize=size, parse_math=False)
    axes = figure.add_axes((left / width, bottom / height, map_width / width, map_height / height))
    # the brightness of viridis increases evenly, also for color-blind readers
    image = axes.imshow(values, cmap="viridis", vmin=0.0, vmax=1.0, aspect="auto")
    heads = [
        f"{'mix' if layer.layer == 'mix' else f'layer {layer.layer}'}\n{layer.accuracy.mean:.1%}"
        for layer in probing.layers
    ]
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(heads)), heads, fontsize=8.5, family=fonts)
    axes.set_yticks(range(len(names)), names, fontsize=9, family=fonts, parse_math=False)
    axes.tick_params(length=0)
    axes.tick_params(axis="y", pad=72 * count_width)  # points, to leave space for the counts
    for row, count in enumerate(["words", *counts], start=-1):
        axes.annotate(
            count, (0, row), xycoords=("axes fraction", "data"), xytext=(-6, 0), textcoords="offset points",
            ha="right", va="center", fontsize=8.5, color="0.35", family=fonts, annotation_clip=False,
        )  # fmt: skip
    write_values(axes, values, light=0.6, fontsize=8.5, family=fonts)
    bar_height = min(2.6, map_height)
    box = (1 - 0.75 / width, 1 - (top + bar_height) / height, 0.14 / width, bar_height / height)
    bar = figure.colorbar(image, cax=figure.add_axes(box)).ax
    bar.set_yticks([0.0, 0.5, 1.0], ["0", "0.5", "1"], fontsize=8.5, family=fonts)
    return figure
