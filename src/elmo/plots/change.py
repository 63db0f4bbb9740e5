"""Draw the change of words between periods: a ranking of several words, or a map of the usages of one word."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from elmo.errors import DataError
from elmo.lexicon.change import Changes, WordChange
from elmo.plots.figure import draw_figure, new_figure, prepare_lines, style_axes
from elmo.plots.senses import (
    CAPTION_HEIGHT,
    COLORS,
    LINE_HEIGHT,
    MARKERS,
    format_map,
    label_points,
    project,
    sentence_line,
    write_lines,
)
from elmo.text.display import shorten, to_plain_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

N_RANKED = 40  # words in a ranking
N_LINES = 6  # words in the panel that shows the change between consecutive periods
MAX_Q = 0.05  # false discovery rate below which points are filled
TITLES = {
    "apd": "average cosine distance between the periods",
    "prt": "1 − cosine of the periods' mean vectors",
    "prt-inverted": "1 / cosine of the periods' mean vectors",
    "jsd": "Jensen-Shannon divergence of the senses' shares, in bits",
    "mmd": "maximum mean discrepancy of the periods, squared",
}


def draw_changes(changes: Changes, path: str | Path, *, seed: int = 0) -> None:
    """Draw a map of the usages if there is one word and its usages were kept; otherwise, draw a ranking.

    Args:
        changes: The changes of one or more words.
        path: Picture to write: .png, .pdf or .svg.
        seed: Seed of the t-SNE projection of the map.

    Example:
        >>> from elmo.lexicon import ChangeOptions, change_in_corpora
        >>> from elmo.jobs import EmbedJob
        >>> sentences = list(EmbedJob(("corpus.txt",)).sentences(elmo.tokenizer))
        >>> corpora = {"rivers": lambda: sentences[:3], "money": lambda: sentences[3:6]}
        >>> options = ChangeOptions(min_count=3, keep_usages=True)
        >>> draw_changes(change_in_corpora(elmo, corpora, words=["bank"], options=options), "change.png")
    """
    if not changes.words:
        raise DataError("cannot draw changes: there must be at least one word; found none")
    word = changes.words[0]
    is_map = len(changes.words) == 1 and word.usages is not None
    draw_figure(path, lambda: _draw_map(changes, word, seed=seed) if is_map else _draw_ranking(changes))


def _draw_ranking(changes: Changes) -> Figure:
    words = changes.words[:N_RANKED]
    shown = "" if len(words) == len(changes.words) else f", the first {len(words)} of {len(changes.words):,}"
    title = _title(changes, f"Words by their change{shown}")
    has_steps = len(changes.periods) > 2
    names = [shorten(to_plain_text(word.word), 24) for word in words]
    fonts, lines = prepare_lines([title, *names, *map(_short, changes.periods)])
    title, names, periods = lines[0], lines[1 : len(names) + 1], lines[len(names) + 1 :]
    width, top, below = 14.2 if has_steps else 8.2, 0.85, 0.95  # inches
    panel = max(0.27 * len(words), 2.4 if has_steps else 0.6)
    height = top + panel + below
    figure = new_figure(width, height)
    _write_headline(figure, title, fonts)
    bottom = below / height
    axes = figure.add_axes((2.0 / width, bottom, 4.2 / width, panel / height))
    for k, word in enumerate(words):
        step = word.overall
        color = COLORS[0] if step.q < MAX_Q else "#888888"
        axes.plot([step.low, step.high], [k, k], color=color, linewidth=1.4, zorder=1)
        face = color if step.q < MAX_Q else "white"
        axes.scatter([step.value], [k], s=34, facecolor=face, edgecolor=color, linewidths=1.4, zorder=2)
    axes.set_yticks(range(len(words)), names, family=fonts, fontsize=10)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set_ylim(len(words) - 0.4, -0.6)
    axes.set_xlabel(TITLES[changes.measure], fontsize=9)
    _format_axes(axes, "x")
    _add_legend(axes, panel, COLORS[0], "#888888")
    _add_frequencies(axes, words, changes.periods)
    if has_steps:
        panel_axes = figure.add_axes((9.1 / width, bottom, 3.3 / width, panel / height))
        _draw_steps(panel_axes, words[:N_LINES], names, periods, fonts=fonts, measure=changes.measure)
        _add_legend(panel_axes, panel, "#333333", "#333333")
    return figure


def _add_legend(axes: Axes, panel: float, filled: str, hollow: str) -> None:
    """Add a legend below the axes that explains filled and hollow points."""
    from matplotlib.lines import Line2D

    kinds = ((filled, filled, f"q < {MAX_Q:g}"), (hollow, "white", "may be chance"))
    handles = [
        Line2D([], [], color=edge, marker="o", markerfacecolor=face, markersize=6, label=label)
        for edge, face, label in kinds
    ]
    word_legend = axes.get_legend()
    axes.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.5 / panel), ncols=2, frameon=False,
        fontsize=9,
    )  # fmt: skip
    if word_legend is not None:
        axes.add_artist(word_legend)  # matplotlib has removed it for the second legend


def _add_frequencies(axes: Axes, words: Sequence[WordChange], periods: Sequence[str]) -> None:
    """Write the frequency of each word in the first and the last period to the right of the points."""
    first, last = periods[0], periods[-1]
    has_frequencies = all(word.per_million for word in words)
    heading = "per million, first → last" if has_frequencies else "usages, first → last"
    settings: dict[str, Any] = {"va": "center", "fontsize": 9, "color": "#333333"}
    # an offset in points does not depend on the height of a row
    axes.annotate(heading, (1.03, 1), xycoords="axes fraction", xytext=(0, 8), textcoords="offset points", **settings)
    for k, word in enumerate(words):
        counts = word.per_million or word.n_usages
        text = f"{_format_number(counts[first])} → {_format_number(counts[last])}"
        axes.text(1.03, k, text, transform=axes.get_yaxis_transform(), **settings)


def _draw_steps(
    axes: Axes,
    words: Sequence[WordChange],
    names: Sequence[str],
    periods: Sequence[str],
    *,
    fonts: list[str],
    measure: str,
) -> None:
    """Draw one line per word: its change between consecutive periods, with confidence intervals."""
    for k, word in enumerate(words):
        steps = word.steps[:-1]
        x = np.arange(len(steps)) + (k - (len(words) - 1) / 2) * 0.05  # side by side, because the intervals overlap
        values = np.array([step.value for step in steps])
        errors = np.array([(step.value - step.low, step.high - step.value) for step in steps]).T
        color, marker = COLORS[k % len(COLORS)], MARKERS[k % len(MARKERS)]
        axes.errorbar(x, values, yerr=np.maximum(errors, 0), color=color, linewidth=1.4, elinewidth=0.9, zorder=2)
        faces = [color if step.q < MAX_Q else "white" for step in steps]
        axes.scatter(x, values, s=36, marker=marker, facecolor=faces, edgecolor=color, linewidths=1.4, zorder=3)
        # an extra line for the legend, which would otherwise show the face color of the first step
        axes.plot([], [], color=color, marker=marker, markersize=6, label=shorten(names[k], 14))
    labels = [f"{a}\n→ {b}" for a, b in pairwise(periods)]
    axes.set_xticks(range(len(labels)), labels, family=fonts, fontsize=9)
    axes.set_xlim(-0.4, len(labels) - 0.6)
    subject = f"“{shorten(names[0], 14)}” " if len(words) == 1 else ""
    title = f"{subject}from each period to the next"
    axes.set_title(title, fontsize=10, loc="left", family=fonts, parse_math=False)
    axes.set_ylabel(fill(TITLES[measure], 34), fontsize=9)
    _format_axes(axes, "y")
    if len(words) > 1:
        legend = axes.legend(
            fontsize=9, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), prop={"family": fonts}
        )
        for text in legend.get_texts():
            text.set(parse_math=False, fontsize=9)


def _draw_map(changes: Changes, word: WordChange, *, seed: int) -> Figure:
    """Draw the usages of one word as points, with a color per period and a marker per sense."""
    from matplotlib.lines import Line2D

    if word.usages is None or word.labels is None:
        raise DataError("cannot draw a map: the usages of the word were not kept; measure it with keep_usages=True")
    step = word.overall
    title = _title(changes, f"“{shorten(to_plain_text(word.word), 30)}”")
    test = f"{step.value:.3f} (95 % interval {step.low:.3f} to {step.high:.3f}), p = {step.p:.3g}"
    keys = [f"{_short(period)}: {n:,} usages" for period, n in word.n_usages.items()]
    appeared = [f"+{k}  {sentence_line(usage, 86)}" for k, usage in enumerate(step.appeared[:3], start=1)]
    declined = [f"−{k}  {sentence_line(usage, 86)}" for k, usage in enumerate(step.declined[:3], start=1)]
    headings = [f"usages most typical of {_short(period)}:" for period in (step.later, step.earlier)]
    below = [headings[0], *appeared, headings[1], *declined] if appeared or declined else []
    n_keys, periods = len(keys), [_short(period) for period in changes.periods]
    fonts, lines = prepare_lines([title, to_plain_text(word.word), *keys, *periods, *below])
    title, name, keys = lines[0], lines[1], lines[2 : n_keys + 2]
    periods, below = lines[n_keys + 2 : n_keys + 2 + len(periods)], lines[n_keys + 2 + len(periods) :]

    has_steps = len(changes.periods) > 2
    n_senses = int(word.labels.max()) + 1
    width, top, panel = 12.6 if has_steps else 7.8, 0.85, 4.6  # inches
    n_rows = -(-(n_keys + n_senses) // 4)
    legend_height = CAPTION_HEIGHT + 0.15 + 0.24 * n_rows
    height = top + panel + max(legend_height + 0.25 + LINE_HEIGHT * len(below) + 0.1, 0.95)
    figure = new_figure(width, height)
    _write_headline(figure, title, fonts, test)
    axes = figure.add_axes((0.3 / width, 1 - (top + panel) / height, 7.2 / width, panel / height))
    points, caption = project(np.concatenate([usages.vectors for usages in word.usages.values()]), seed=seed)
    format_map(axes, caption)
    period_of = np.repeat(np.arange(n_keys), list(word.n_usages.values()))
    for k in range(n_keys):
        for sense in range(n_senses):
            own = points[(period_of == k) & (word.labels == sense)]
            marker = MARKERS[sense % len(MARKERS)]
            axes.scatter(*own.T, s=26, marker=marker, c=COLORS[k % len(COLORS)], alpha=0.7, linewidths=0)
    label_points(axes, points, _find_labels(word))
    handles = [
        Line2D([], [], linestyle="", marker="o", color=COLORS[k % len(COLORS)], label=key) for k, key in enumerate(keys)
    ] + [
        Line2D([], [], linestyle="", marker=MARKERS[k % len(MARKERS)], color="#666666", label=f"sense {k + 1}")
        for k in range(n_senses if n_senses > 1 else 0)
    ]
    legend = axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(-0.01, -CAPTION_HEIGHT / panel), ncols=4,
        frameon=False, prop={"family": fonts}, handletextpad=0.3, columnspacing=1.2,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set(parse_math=False, fontsize=9)
    write_lines(figure, below, fonts, top=top + panel + legend_height + 0.25, left=0.3)
    if has_steps:
        panel_axes = figure.add_axes((8.8 / width, 1 - (top + panel) / height, 3.4 / width, panel / height))
        _draw_steps(panel_axes, [word], [name], periods, fonts=fonts, measure=changes.measure)
        _add_legend(panel_axes, panel, COLORS[0], COLORS[0])
    return figure


def _find_labels(word: WordChange) -> dict[int, str]:
    """Return the labels of the usages whose sentences are below the map, by their row among all usages."""
    step, begins, begin = word.overall, {}, 0
    for period, n in word.n_usages.items():
        begins[period] = begin
        begin += n
    usages = word.usages or {}
    return {
        begins[period] + usages[period].items.index(usage): f"{sign}{k}"
        for period, sign, items in ((step.later, "+", step.appeared), (step.earlier, "−", step.declined))
        for k, usage in enumerate(items[:3], start=1)
    }


def _write_headline(figure: Figure, title: str, fonts: list[str], second: str = "") -> None:
    width, height = figure.get_size_inches()
    settings: dict[str, Any] = {"va": "center", "family": fonts, "parse_math": False}
    figure.text(0.3 / width, 1 - 0.27 / height, title, fontsize=12, **settings)
    figure.text(0.3 / width, 1 - 0.58 / height, second, fontsize=9, color="#333333", **settings)


def _title(changes: Changes, subject: str) -> str:
    return f"{subject}: {_short(changes.periods[0])} → {_short(changes.periods[-1])}"


def _short(period: str) -> str:
    return shorten(to_plain_text(period), 24)


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def _format_axes(axes: Axes, grid: Literal["x", "y"]) -> None:
    style_axes(axes, grid=grid, color="#dddddd")
    axes.tick_params(labelsize=9)
