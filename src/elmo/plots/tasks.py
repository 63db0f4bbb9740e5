"""Draw the layer weights of task models, as in Figure 2 of Peters et al. (2018).

The figure shows the share s_j of each layer and the scale γ. It has one column per model, one row per layer, and
a separate block for ELMo at the input and at the output of the task model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elmo.errors import DataError
from elmo.plots.figure import draw_figure, new_figure, prepare_lines, write_values
from elmo.text.display import shorten, text_width, to_plain_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from elmo.tasks.model import TaskModel

NAME_WIDTH = 14  # maximum width of a model name in Latin letters
MAX_COLUMNS = 40
CELL_WIDTH, CELL_HEIGHT = 0.9, 0.42  # inches
_TITLES = {"input": "at the input", "output": "at the output"}
_GAP = 0.35  # inches, between the blocks


@dataclass(frozen=True)
class LearnedMix:
    """The layer weights that one model has learned at one position."""

    name: str  # name of the model
    position: str  # input or output
    shares: tuple[float, ...]  # s_j of each layer, from the token layer up
    gamma: float


def learned_mixes(model: TaskModel, name: str) -> list[LearnedMix]:
    """Return the layer weights that a task model has learned, one mix for each position of ELMo."""
    return [
        LearnedMix(name, position, tuple(mix.shares.tolist()), mix.gamma.item())
        for position, mix in model.network.words.mixes.items()
    ]


def draw_mixes(mixes: Sequence[LearnedMix], path: str | Path) -> None:
    """Draw the mixes of one or more models; the suffix of ``path`` selects PNG, PDF or SVG."""
    blocks = {position: [mix for mix in mixes if mix.position == position] for position in _TITLES}
    blocks = {position: block for position, block in blocks.items() if block}
    if not blocks:
        raise DataError("cannot draw layer weights: no model uses ELMo")
    if max(map(len, blocks.values())) > MAX_COLUMNS:
        raise DataError(f"cannot draw more than {MAX_COLUMNS} models; found {max(map(len, blocks.values()))}")
    draw_figure(path, lambda: _figure(blocks))


def _figure(blocks: dict[str, list[LearnedMix]]) -> Figure:
    n_layers = max(len(mix.shares) for block in blocks.values() for mix in block)
    layers = ["tokens", *(f"LSTM {k}" for k in range(1, n_layers))]
    names = dict.fromkeys(mix.name for block in blocks.values() for mix in block)
    fonts, lines = prepare_lines([shorten(to_plain_text(name), NAME_WIDTH) for name in names])
    labels = dict(zip(names, lines, strict=True))

    widest = max(map(text_width, lines))
    cell_width = max(CELL_WIDTH, 0.2 + 0.08 * widest)
    left, right, top, bottom = 0.85, 0.85, 0.8, 0.65
    map_height = CELL_HEIGHT * n_layers
    map_widths = [cell_width * len(block) for block in blocks.values()]
    width = max(left + sum(map_widths) + _GAP * (len(blocks) - 1) + right, 4.2)
    height = top + map_height + bottom
    figure = new_figure(width, height)
    figure.text(0.15 / width, 1 - 0.12 / height, "Layer weights of ELMo", va="top", fontsize=12)
    x = left
    images = []
    for (position, block), map_width in zip(blocks.items(), map_widths, strict=True):
        axes = figure.add_axes((x / width, bottom / height, map_width / width, map_height / height))
        values = np.full((n_layers, len(block)), np.nan)  # (layer, model)
        for column, mix in enumerate(block):
            values[: len(mix.shares), column] = mix.shares
        # the brightness of cividis increases evenly, also for color-blind readers
        images.append(axes.imshow(values, cmap="cividis", vmin=0.0, vmax=1.0, aspect="auto", origin="lower"))
        axes.set_title(_TITLES[position], fontsize=10)
        heads = [f"{labels[mix.name]}\nγ = {mix.gamma:.2f}" for mix in block]
        axes.set_xticks(range(len(block)), heads, fontsize=8.5, family=fonts, parse_math=False)
        axes.set_yticks(range(n_layers), layers if x == left else [""] * n_layers, fontsize=9)
        axes.tick_params(length=0)
        write_values(axes, values, light=0.48, fontsize=9)
        x += map_width + _GAP
    bar_box = ((x - _GAP + 0.2) / width, bottom / height, 0.14 / width, map_height / height)
    bar = figure.colorbar(images[0], cax=figure.add_axes(bar_box)).ax
    bar.set_yticks([0.0, 0.5, 1.0], ["0", "0.5", "1"], fontsize=8.5)
    return figure
