"""What task models learned of a biLM's layers in, a picture out: the shares s_j and γ, as in the paper.

Figure 2 of Peters et al. (2018): a column a model, a row a layer, a block for ELMo at the input and one for
ELMo at the output. Here each share also stands in its cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elmo.errors import DataError
from elmo.plots.figure import check, drawable, save
from elmo.text.display import shorten, text_width, to_plain_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from elmo.tasks.model import TaskModel

NAME_WIDTH = 14  # Latin letters
MAX_COLUMNS = 40
CELL_WIDTH, CELL_HEIGHT = 0.9, 0.42  # inches
_PLACES = {"input": "at the input", "output": "at the output"}
_GAP = 0.35  # inches, between the blocks


@dataclass(frozen=True)
class LearnedMix:
    """The mix of one model in one place."""

    name: str  # of the model
    place: str  # input or output
    shares: tuple[float, ...]  # s_j, of each layer from the token layer up
    gamma: float


def learned_mixes(model: TaskModel, name: str) -> list[LearnedMix]:
    """What a model learned, in each place where it has ELMo."""
    return [
        LearnedMix(name, place, tuple(mix.shares.tolist()), mix.gamma.item())
        for place, mix in model.network.words.mixes.items()
    ]


def draw_mixes(mixes: Sequence[LearnedMix], path: str | Path) -> None:
    """Write the picture of one or more models' mixes; the suffix says whether as PNG, PDF or SVG."""
    target = Path(path)
    check(target)
    blocks = {place: [mix for mix in mixes if mix.place == place] for place in _PLACES}
    blocks = {place: found for place, found in blocks.items() if found}
    if not blocks:
        raise DataError("expected a model that mixes layers of ELMo to draw, found none")
    if max(map(len, blocks.values())) > MAX_COLUMNS:
        raise DataError(f"expected at most {MAX_COLUMNS} models to draw, found more")
    save(_figure(blocks), target)


def _figure(blocks: dict[str, list[LearnedMix]]) -> Figure:
    from matplotlib.figure import Figure

    n_layers = max(len(mix.shares) for found in blocks.values() for mix in found)
    layers = ["tokens", *(f"LSTM {k}" for k in range(1, n_layers))]
    names = dict.fromkeys(mix.name for found in blocks.values() for mix in found)
    fonts, lines = drawable([shorten(to_plain_text(name), NAME_WIDTH) for name in names])
    labels = dict(zip(names, lines, strict=True))

    widest = max(map(text_width, lines))
    cell_width = max(CELL_WIDTH, 0.2 + 0.08 * widest)
    left, right, top, bottom = 0.85, 0.85, 0.8, 0.65
    map_height = CELL_HEIGHT * n_layers
    map_widths = [cell_width * len(found) for found in blocks.values()]
    width = max(left + sum(map_widths) + _GAP * (len(blocks) - 1) + right, 4.2)
    height = top + map_height + bottom
    figure = Figure(figsize=(width, height), facecolor="white")
    figure.text(0.15 / width, 1 - 0.12 / height, "Shares of the layers in ELMo", va="top", fontsize=12)
    at = left
    images = []
    for (place, found), map_width in zip(blocks.items(), map_widths, strict=True):
        axes = figure.add_axes((at / width, bottom / height, map_width / width, map_height / height))
        values = np.full((n_layers, len(found)), np.nan)  # (layer, model)
        for column, mix in enumerate(found):
            values[: len(mix.shares), column] = mix.shares
        # cividis runs evenly from dark to light, and looks the same with and without colour vision
        images.append(axes.imshow(values, cmap="cividis", vmin=0.0, vmax=1.0, aspect="auto", origin="lower"))
        axes.set_title(_PLACES[place], fontsize=10)
        heads = [f"{labels[mix.name]}\nγ = {mix.gamma:.2f}" for mix in found]
        axes.set_xticks(range(len(found)), heads, fontsize=8.5, family=fonts, parse_math=False)
        axes.set_yticks(range(n_layers), layers if at == left else [""] * n_layers, fontsize=9)
        axes.tick_params(length=0)
        _write_shares(axes, values)
        at += map_width + _GAP
    place_of_bar = ((at - _GAP + 0.2) / width, bottom / height, 0.14 / width, map_height / height)
    bar = figure.colorbar(images[0], cax=figure.add_axes(place_of_bar)).ax
    bar.set_yticks([0.0, 0.5, 1.0], ["0", "0.5", "1"], fontsize=8.5)
    return figure


def _write_shares(axes: Axes, values: np.ndarray) -> None:
    for layer, column in np.ndindex(values.shape):
        share = float(values[layer, column])
        if not np.isnan(share):
            colour = "black" if share > 0.48 else "white"
            axes.text(column, layer, f"{share:.2f}", ha="center", va="center", fontsize=9, color=colour)
