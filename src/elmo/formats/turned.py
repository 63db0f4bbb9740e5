"""A model and a matrix in, the same language model in other coordinates out.

Nothing but matrices reads the state h of an LSTM layer: those of its own next step, of the layer above and of
the softmax. So M h can take its place, and M⁻¹ be multiplied into each of them: every probability stays what
it was, but for rounding and where a state was clipped, and only the angles between vectors are others.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from elmo.errors import ConfigError, ShapeError
from elmo.formats.pretrained import Pretrained, SoftmaxWeights, WarmState

STACKS = ("forward_stack", "backward_stack")
_ROWS = 1 << 14


def turned(model: Pretrained, turn: Tensor) -> Pretrained:
    """``model`` with M h for the states h of all LSTM layers; ``turn`` is M (width, width).

    Skip connections add the states of two layers and one softmax reads both directions, so all of them are
    turned by the same matrix. States are no longer clipped: a box that was upright would lie aslant.
    """
    lstm = model.config.lstm
    if not lstm.has_projection:
        raise ConfigError("this model's states are not projected: what comes out of a cell cannot be turned")
    if tuple(turn.shape) != (lstm.state_width, lstm.state_width):
        raise ShapeError(f"expected a matrix of {lstm.state_width} x {lstm.state_width}, found {turn.shape}")
    forth = turn.double()
    back = torch.linalg.inv(forth)
    weights = dict(model.weights)
    for stack in STACKS:
        for layer in range(lstm.n_layers):
            name = f"{stack}.{layer}"
            readers = [f"{name}.state_weight"] + [f"{name}.input_weight"] * (layer > 0)
            for reader in readers:  # the first layer reads tokens, which stay as they are
                weights[reader] = _product(weights[reader], back)
            projection = weights[f"{name}.projection"]
            weights[f"{name}.projection"] = (forth @ projection.double()).to(projection.dtype)
    softmax, warm = model.softmax, model.warm
    if softmax is not None:
        softmax = SoftmaxWeights(_product(softmax.weight, back), softmax.bias)
    if warm is not None:
        warm = WarmState(_product(warm.hidden, forth.t()), warm.cell)
    config = replace(model.config, lstm=replace(lstm, state_clip=None))
    return replace(model, config=config, weights=weights, softmax=softmax, warm=warm)


def _product(rows: Tensor, matrix: Tensor) -> Tensor:
    """In double precision, some rows at a time: a softmax may have a million."""
    found = torch.empty_like(rows)
    for part, out in zip(rows.split(_ROWS), found.split(_ROWS), strict=True):
        out.copy_(part.double() @ matrix)
    return found
