"""A deep stack of highway LSTM layers with alternating directions (He et al. 2017, section 2.1).

Each layer multiplies the inputs of all time steps by its weights in one matrix product. The loop over time has a
custom backward pass, so autograd sees one operation per layer.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from elmo.model.dropout import dropout_mask
from elmo.tasks.heads.layers import reverse_positions


class HighwayLstm(nn.Module):
    """Stack of ``n_layers`` layers with ``width`` units; the first reads forward, the second backward, etc.

    ``dropout`` is applied to the states of each layer, for the next time step and for the next layer. It drops
    the same units at every time step (Gal and Ghahramani 2016).
    """

    def __init__(self, input_width: int, width: int, *, n_layers: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            HighwayLstmLayer(input_width if k == 0 else width, width, dropout=dropout) for k in range(n_layers)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Compute the states (batch, time, width) of ``x`` (batch, time, width); padding is zero."""
        positions = reverse_positions(mask).t()  # (time, batch); padding stays last, so the loop needs no mask
        states = x.transpose(0, 1)  # (time, batch, width)
        for k, layer in enumerate(self.layers):
            if k > 0:  # change the direction
                states = states.gather(0, positions[:, :, None].expand_as(states))
            states = layer(states)
        if len(self.layers) % 2 == 0:
            states = states.gather(0, positions[:, :, None].expand_as(states))
        return states.transpose(0, 1).masked_fill(~mask[:, :, None], 0)


class HighwayLstmLayer(nn.Module):
    """LSTM layer that mixes its states h' with a linear map of its inputs: h = r ∘ h' + (1 − r) ∘ W_h x."""

    def __init__(self, input_width: int, width: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = width
        self.dropout = dropout
        # blocks of rows: candidate j, gates i, f, o, r; the input weight also has W_h, which has no bias
        self.input_weight = nn.Parameter(torch.empty(6 * width, input_width))
        self.state_weight = nn.Parameter(torch.empty(5 * width, width))
        self.bias = nn.Parameter(torch.zeros(5 * width))
        for block in (*self.input_weight.data.chunk(6), *self.state_weight.data.chunk(5)):
            nn.init.orthogonal_(block)
        self.bias.data[2 * width : 3 * width] = 1.0  # the forget gate starts open

    def forward(self, x: Tensor) -> Tensor:
        """Compute the states (time, batch, width) of ``x`` (time, batch, width), starting from zero."""
        mask = None
        if self.training and self.dropout > 0.0:
            mask = dropout_mask((x.size(1), self.width), self.dropout, like=x)  # (batch, width)
        bias = F.pad(self.bias, (0, self.width))
        products = F.linear(x, self.input_weight, bias)  # (time, batch, 6 · width)
        return _HighwayLoop.apply(products, self.state_weight, mask)  # pyright: ignore


class _HighwayLoop(torch.autograd.Function):
    """Run the loop over time on the input products W x + b (time, batch, 6 · width).

    The backward pass computes the factors of the gradients for all time steps at once, so that its loop has few
    operations.
    """

    @staticmethod
    def forward(ctx: Any, products: Tensor, state_weight: Tensor, mask: Tensor | None) -> Tensor:
        time, batch, width = products.size(0), products.size(1), state_weight.size(1)
        blocks = products.clone(memory_format=torch.contiguous_format)  # the loop computes the gates in place
        cells, tanh_cells, states = (products.new_empty(time, batch, width) for _ in range(3))
        recurrent = state_weight.t().contiguous()  # makes products with few rows a third faster
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
            if mask is not None:
                h[t].mul_(mask)
        ctx.save_for_backward(blocks, cells, tanh_cells, states, state_weight, mask)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        blocks, cells, tanh_cells, states, state_weight, mask = ctx.saved_tensors
        time, batch, width = states.shape
        j, i, f, o, r, carry = blocks.split(width, dim=2)
        # the gradients of j, i, f come from the cell; those of o, r and W_h x from the state
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
        d_blocks = factors.view(time, batch, 6, width)  # the loop replaces factors by gradients
        by_cell, by_state = d_blocks[:, :, :3].unbind(0), d_blocks[:, :, 3:].unbind(0)
        with_state = factors[:, :, : 5 * width].unbind(0)
        forget, d_states = f.unbind(0), gradients[0].unbind(0)
        d_cell, d_state = torch.zeros_like(cells[0]), torch.zeros_like(cells[0])
        for t in range(time - 1, -1, -1):
            d_state.add_(d_states[t])
            if mask is not None:
                d_state.mul_(mask)
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
