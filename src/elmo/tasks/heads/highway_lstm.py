"""Padded sentences in, states of a deep stack of highway LSTMs of alternating direction out.

The layers are those of He et al. 2017 ("Deep Semantic Role Labeling: What Works and What's Next", section
2.1). The products of all inputs are one matrix product, the loop over time has a backward pass of its own:
autograd sees one operation a layer.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from elmo.errors import ConfigError
from elmo.model.dropout import kept_units
from elmo.tasks.heads.recurrent import turned_places


class HighwayLstm(nn.Module):
    """``n_layers`` of ``width`` units: the first reads forwards, the next backwards, and so on.

    ``dropout`` drops the same units of a layer's states at every time step (Gal and Ghahramani 2016): what
    is dropped reaches neither the next word nor the next layer.
    """

    def __init__(self, input_width: int, width: int, *, n_layers: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        if n_layers < 1 or not 0 <= dropout < 1:
            raise ConfigError(
                f"highway LSTM: expected 1 layer or more and dropout in 0..1, found {n_layers} and {dropout}"
            )
        self.width = width  # of what comes out
        self.layers = nn.ModuleList(
            HighwayLstmLayer(input_width if k == 0 else width, width, dropout=dropout)
            for k in range(n_layers)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """States (batch, time, width) of ``x`` (batch, time, width); zero where ``mask`` is false."""
        turned = turned_places(mask).t()  # (time, batch): padding comes last, the loop needs no mask
        states = x.transpose(0, 1)  # (time, batch, width)
        for k, layer in enumerate(self.layers):
            if k > 0:  # every layer reads against the direction of the one before
                states = states.gather(0, turned[:, :, None].expand_as(states))
            states = layer(states)
        if len(self.layers) % 2 == 0:
            states = states.gather(0, turned[:, :, None].expand_as(states))
        return states.transpose(0, 1).masked_fill(~mask[:, :, None], 0)


class HighwayLstmLayer(nn.Module):
    """An LSTM whose states are mixed with a linear map of its inputs, h = r ∘ h' + (1 − r) ∘ W_h x."""

    def __init__(self, input_width: int, width: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = width
        self.dropout = dropout
        # Blocks of rows: candidate, gates i, f, o, r, and of the inputs W_h, which has no bias.
        self.input_weight = nn.Parameter(torch.empty(6 * width, input_width))
        self.state_weight = nn.Parameter(torch.empty(5 * width, width))
        self.bias = nn.Parameter(torch.zeros(5 * width))
        for block in (*self.input_weight.data.chunk(6), *self.state_weight.data.chunk(5)):
            nn.init.orthogonal_(block)
        self.bias.data[2 * width : 3 * width] = 1.0  # at first all is remembered

    def forward(self, x: Tensor) -> Tensor:
        """States (time, batch, width) of ``x`` (time, batch, width), from a state of zeros on."""
        kept = None
        if self.training and self.dropout > 0.0:
            kept = kept_units((x.size(1), self.width), self.dropout, like=x)
        products = F.linear(
            x, self.input_weight, F.pad(self.bias, (0, self.width))
        )  # (time, batch, 6 · width)
        return _Loop.apply(products, self.state_weight, kept)  # pyright: ignore


class _Loop(torch.autograd.Function):
    """The loop over time, with W x + b (time, batch, 6 · width) at hand.

    The numbers that a gradient is multiplied by on its way back are worked out for all time steps at once,
    before the loop, so that few operations are left in it.
    """

    @staticmethod
    def forward(ctx: Any, products: Tensor, state_weight: Tensor, kept: Tensor | None) -> Tensor:
        time, batch, width = products.size(0), products.size(1), state_weight.size(1)
        blocks = products.clone(memory_format=torch.contiguous_format)  # gates are made where they lie
        cells, tanh_cells, states = (products.new_empty(time, batch, width) for _ in range(3))
        # Products of few rows are a third faster when the right factor lies as it is read.
        recurrent = state_weight.t().contiguous()
        j, i, f, o, r, carry = (block.unbind(0) for block in blocks.split(width, dim=2))
        with_state, gates = blocks[:, :, : 5 * width].unbind(0), blocks[:, :, width : 5 * width].unbind(0)
        c, tanh_c, h = cells.unbind(0), tanh_cells.unbind(0), states.unbind(0)
        for t in range(time):
            if t > 0:
                with_state[t].addmm_(h[t - 1], recurrent)
            j[t].tanh_()
            gates[t].sigmoid_()
            torch.mul(i[t], j[t], out=c[t])
            if t > 0:
                c[t].addcmul_(f[t], c[t - 1])
            torch.tanh(c[t], out=tanh_c[t])
            torch.mul(o[t], tanh_c[t], out=h[t])  # h'
            torch.lerp(carry[t], h[t], r[t], out=h[t])
            if kept is not None:
                h[t].mul_(kept)
        ctx.save_for_backward(blocks, cells, tanh_cells, states, state_weight, kept)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        blocks, cells, tanh_cells, states, state_weight, kept = ctx.saved_tensors
        time, batch, width = states.shape
        j, i, f, o, r, carry = blocks.split(width, dim=2)
        # Blocks j, i, f are reached by way of the cell, blocks o, r and W_h x by way of the state.
        factors = torch.empty_like(blocks)
        to_j, to_i, to_f, to_o, to_r, to_carry = factors.split(width, dim=2)
        torch.mul(i, 1 - j * j, out=to_j)
        torch.mul(j * i, 1 - i, out=to_i)
        to_f[0].zero_()
        torch.mul(cells[:-1] * f[1:], 1 - f[1:], out=to_f[1:])
        torch.mul(tanh_cells * r * o, 1 - o, out=to_o)
        torch.mul((o * tanh_cells - carry) * r, 1 - r, out=to_r)
        torch.sub(1, r, out=to_carry)
        to_cell = (r * o * (1 - tanh_cells * tanh_cells)).unbind(0)
        d_blocks = factors.view(time, batch, 6, width)  # each factor gives its place to its gradient
        by_cell, by_state = d_blocks[:, :, :3].unbind(0), d_blocks[:, :, 3:].unbind(0)
        with_state = factors[:, :, : 5 * width].unbind(0)
        forget, d_states = f.unbind(0), gradients[0].unbind(0)
        d_cell, d_state = torch.zeros_like(cells[0]), torch.zeros_like(cells[0])
        for t in range(time - 1, -1, -1):
            d_state.add_(d_states[t])
            if kept is not None:
                d_state.mul_(kept)
            d_cell.addcmul_(d_state, to_cell[t])
            by_cell[t].mul_(d_cell[:, None])
            by_state[t].mul_(d_state[:, None])
            if t > 0:
                d_cell.mul_(forget[t])
                torch.mm(with_state[t], state_weight, out=d_state)
        d_state_weight = None
        if ctx.needs_input_grad[1]:
            d_gates = factors[1:, :, : 5 * width].reshape(-1, 5 * width)
            d_state_weight = d_gates.t() @ states[:-1].reshape(-1, width)
        return factors, d_state_weight, None
