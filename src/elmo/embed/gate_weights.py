"""An LSTM layer in, its weights out as the engine multiplies with them: gates in another order, some halved.

σ(x) = ½ tanh(½x) + ½: a tanh can be had that gives a number the same bits wherever it stands, while torch's
sigmoid has another one for what is left over at the end of a vector loop. The halves of x are in the weights
beforehand, where halving is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from elmo.embed.products import state_dtype
from elmo.model.lstm import ProjectedLstm


@dataclass(frozen=True)
class GateWeights:
    """Gates i, f, o, j, the first three halved: their sigmoids lie side by side. Limits as they apply."""

    inputs: Tensor  # (4 · cell, width)
    states: Tensor  # (4 · cell, width)
    bias: Tensor  # (4 · cell,), the forget bias in it
    projection: Tensor | None  # (width, cell)
    cell_clip: float | None
    state_clip: float | None

    @classmethod
    def of(cls, lstm: ProjectedLstm) -> GateWeights:
        """The layer's weights as they are now."""
        bias = lstm.bias.detach().to(state_dtype(lstm.bias), copy=True)
        n_cells = len(bias) // 4
        bias[n_cells : 2 * n_cells] += lstm.forget_bias
        projection = None if lstm.projection is None else lstm.projection.detach()
        return cls(
            inputs=_halved(lstm.input_weight),
            states=_halved(lstm.state_weight),
            bias=_halved(bias).to(lstm.bias.dtype),
            projection=projection,
            cell_clip=lstm.cell_clip,
            # TensorFlow clips what it projects, and only that
            state_clip=None if projection is None else lstm.state_clip,
        )


def _halved(weight: Tensor) -> Tensor:
    """Gates i, f, j, o to i, f, o, j, the first three halved."""
    i, f, j, o = weight.detach().chunk(4)
    return torch.cat([i * 0.5, f * 0.5, o * 0.5, j])
