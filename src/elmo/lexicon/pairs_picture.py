"""Similarities of word pairs in, a picture of their spread out: of pairs with one sense, and with two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elmo.embed.figure import check, save
from elmo.errors import DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from elmo.lexicon.word_pairs import PairJudgements, PairSimilarities, Truths

_SAME, _OTHER = "#0072B2", "#E69F00"  # apart for readers without red or green, too


def draw_pairs(
    found: PairSimilarities,
    path: str | Path,
    *,
    judged: Sequence[PairJudgements] = (),
    is_same: Truths | None = None,
) -> None:
    """Write the picture; the suffix of ``path`` says whether as PNG, PDF or SVG."""
    target = Path(path)
    if not found.pairs:
        raise DataError("expected pairs to draw, found none")
    check(target)
    save(_figure(found, judged, is_same), target)


def _figure(found: PairSimilarities, judged: Sequence[PairJudgements], is_same: Truths | None) -> Figure:
    from matplotlib.figure import Figure

    by_layer = {one.layer: one for one in judged}
    n = len(found.cosines)
    figure = Figure(figsize=(7.2, 0.9 + 1.75 * n), facecolor="white", layout="constrained")
    figure.suptitle(
        f"Cosines of a word's two uses, {len(found.pairs):,} pairs", fontsize=12, x=0.02, ha="left"
    )
    cells = figure.subplots(n, 1, squeeze=False)[:, 0]
    for axes, (layer, cosines) in zip(cells, found.cosines.items(), strict=True):
        edges = np.linspace(min(0.0, float(cosines.min())), 1.0, 41)
        if is_same is None:
            axes.hist(cosines, edges, color=_SAME)
        else:
            groups = {"one sense": (cosines[is_same], _SAME, None), "two": (cosines[~is_same], _OTHER, "///")}
            for name, (some, colour, hatch) in groups.items():
                axes.hist(some, edges, histtype="step", linewidth=1.8, color=colour, hatch=hatch, label=name)
        name = f"layer {layer}" if layer.isdigit() else layer
        if (one := by_layer.get(layer)) is not None:
            axes.axvline(one.threshold, color="black", linewidth=1, linestyle="--", label="threshold")
            name += "" if one.accuracy is None else f": {one.accuracy:.1%} right"
        axes.set_title(name, fontsize=10, loc="left")
        axes.tick_params(labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        if is_same is not None or by_layer:
            axes.legend(fontsize=8, frameon=False, loc="upper left")
    cells[-1].set_xlabel("cosine", fontsize=9)
    return figure
