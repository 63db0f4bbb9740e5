"""Draw the layer weights of task models: the shares s_j and γ, as in Figure 2 of Peters et al. (2018).

One column per model, one row per layer, and one block each for ELMo at the input and at the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elmo.errors import DataError
from elmo.plots.figure import check_picture, prepare_lines, save_figure
from elmo.text.display import shorten, text_width, to_plain_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from elmo.tasks.model import TaskModel

NAME_WIDTH = 14  # Latin letters
MAX_COLUMNS = 40
CELL_WIDTH, CELL_HEIGHT = 0.9, 0.42  # inches
_TITLES = {"input": "at the input", "output": "at the output"}
_GAP = 0.35  # inches, between the blocks


@dataclass(frozen=True)
class LearnedMix:
    """The mix of one model at one position."""

    name: str  # name of the model
    position: str  # input or output
    shares: tuple[float, ...]  # s_j of each layer, from the token layer up
    gamma: float


def learned_mixes(model: TaskModel, name: str) -> list[LearnedMix]:
    """Return the mixes of a model, one for each position of ELMo."""
    return [
        LearnedMix(name, position, tuple(mix.shares.tolist()), mix.gamma.item())
        for position, mix in model.network.words.mixes.items()
    ]


def draw_mixes(mixes: Sequence[LearnedMix], path: str | Path) -> None:
    """Draw the mixes of one or more models; the suffix selects PNG, PDF or SVG."""
    target = Path(path)
    check_picture(target)
    blocks = {position: [mix for mix in mixes if mix.position == position] for position in _TITLES}
    blocks = {position: block for position, block in blocks.items() if block}
    if not blocks:
        raise DataError("expected a model with ELMo to draw, found none")
    if max(map(len, blocks.values())) > MAX_COLUMNS:
        raise DataError(f"expected at most {MAX_COLUMNS} models, found {max(map(len, blocks.values()))}")
    save_figure(_figure(blocks), target)


def _figure(blocks: dict[str, list[LearnedMix]]) -> Figure:
    from matplotlib.figure import Figure

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
    figure = Figure(figsize=(width, height), facecolor="white")
    figure.text(0.15 / width, 1 - 0.12 / height, "Layer weights of ELMo", va="top", fontsize=12)
    x = left
    images = []
    for (position, block), map_width in zip(blocks.items(), map_widths, strict=True):
        axes = figure.add_axes((x / width, bottom / height, map_width / width, map_height / height))
        values = np.full((n_layers, len(block)), np.nan)  # (layer, model)
        for column, mix in enumerate(block):
            values[: len(mix.shares), column] = mix.shares
        # cividis has uniform brightness steps and looks the same to color-blind readers
        images.append(axes.imshow(values, cmap="cividis", vmin=0.0, vmax=1.0, aspect="auto", origin="lower"))
        axes.set_title(_TITLES[position], fontsize=10)
        heads = [f"{labels[mix.name]}\nγ = {mix.gamma:.2f}" for mix in block]
        axes.set_xticks(range(len(block)), heads, fontsize=8.5, family=fonts, parse_math=False)
        axes.set_yticks(range(n_layers), layers if x == left else [""] * n_layers, fontsize=9)
        axes.tick_params(length=0)
        _write_shares(axes, values)
        x += map_width + _GAP
    bar_box = ((x - _GAP + 0.2) / width, bottom / height, 0.14 / width, map_height / height)
    bar = figure.colorbar(images[0], cax=figure.add_axes(bar_box)).ax
    bar.set_yticks([0.0, 0.5, 1.0], ["0", "0.5", "1"], fontsize=8.5)
    return figure


def _write_shares(axes: Axes, values: np.ndarray) -> None:
    for layer, column in np.ndindex(values.shape):
        share = float(values[layer, column])
        if not np.isnan(share):
            color = "black" if share > 0.48 else "white"
            axes.text(column, layer, f"{share:.2f}", ha="center", va="center", fontsize=9, color=color)
