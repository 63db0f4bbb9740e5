"""Full windows of vectors through one LSTM layer, as ``model.lstm.ProjectedLstm`` reads them, only faster.

What is saved: the products of all inputs are one matrix product, and so are the gradients of each weight
after the loop over time; autograd sees one operation instead of some twenty for each token; every
intermediate result has its place in a buffer from the start, and the next window's are in the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmo.errors import ShapeError
from elmo.model.lstm import LstmState, ProjectedLstm
from elmo.train.products import add_product, set_product
from elmo.train.scratch import FRESH, Scratch


def read_layer(
    lstm: ProjectedLstm,
    inputs: Tensor,
    state: LstmState,
    *,
    state_weight: Tensor | None = None,
    starts: Tensor | None = None,
    has_bf16_products: bool = False,
    scratch: Scratch = FRESH,
) -> tuple[Tensor, LstmState]:
    """Read ``inputs`` (batch, time, width), all of them true tokens.

    Returns the states (batch, time, width) and each row's last state. ``state_weight`` stands in for the
    layer's own, for instance with some of its numbers dropped. The state is reset to zero before each token that
    ``starts`` (batch, time) marks. With ``has_bf16_products`` the factors of
    matrix products are rounded to bfloat16, and the products as well; sums over time, states and gradients of
    weights stay as they are. The results are laid out with time first: the next layer's fastest. With
    ``scratch`` of one's own, gradients may be taken once only: what they need is given back then.
    """
    batch, time, width = inputs.shape
    expected = ((batch, lstm.state_weight.size(1)), (batch, lstm.bias.size(0) // 4))
    found = (tuple(state.hidden.shape), tuple(state.cell.shape))
    if found != expected or width != lstm.input_weight.size(1) or time == 0:
        raise ShapeError(
            f"expected inputs of shape (batch, time, {lstm.input_weight.size(1)}) and a state of {expected}, "
            f"found {tuple(inputs.shape)} and {found}"
        )
    rules = _Rules(
        cell_clip=lstm.cell_clip,
        state_clip=lstm.state_clip if lstm.projection is not None else None,
        forget_bias=lstm.forget_bias,
        is_bf16=has_bf16_products,
        scratch=scratch,
        is_kept=torch.is_grad_enabled(),
        keeps=None if starts is None else (~starts).t()[:, :, None].to(inputs.dtype),
    )
    outputs, hidden, cell = _Layer.apply(
        inputs.transpose(0, 1),
        state.hidden,
        state.cell,
        lstm.input_weight,
        lstm.state_weight if state_weight is None else state_weight,
        lstm.bias,
        lstm.projection,
        rules,
    )  # pyright: ignore
    return outputs.transpose(0, 1), LstmState(hidden, cell)


@dataclass(frozen=True)
class _Rules:
    cell_clip: float | None
    state_clip: float | None
    forget_bias: float
    is_bf16: bool
    scratch: Scratch
    is_kept: bool  # for gradients, until they are taken
    keeps: Tensor | None = None  # (time, batch, 1): 0 where the state is reset before the token, else 1

    def factor(self, x: Tensor) -> Tensor:
        """``x`` as it enters a matrix product."""
        return x.bfloat16() if self.is_bf16 else x


class _Layer(torch.autograd.Function):
    """Time comes first in every tensor: inputs (time, batch, width) to outputs (time, batch, width)."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd takes tensors by position)
        ctx: Any,
        inputs: Tensor,
        hidden: Tensor,
        cell: Tensor,
        input_weight: Tensor,
        state_weight: Tensor,
        bias: Tensor,
        projection: Tensor | None,
        rules: _Rules,
    ) -> tuple[Tensor, Tensor, Tensor]:
        time, batch, _ = inputs.shape
        width, n_cells = state_weight.size(1), cell.size(1)
        inputs = inputs.contiguous()
        # Products of few rows are a third faster when the right factor lies as it is read.
        recurrent = rules.factor(state_weight).t().contiguous()
        gates = rules.scratch.take((time, batch, 4 * n_cells), inputs)
        set_product(gates.view(-1, 4 * n_cells), _flat(rules.factor(inputs)), rules.factor(input_weight).t())
        whole_bias = bias.clone()
        whole_bias[n_cells : 2 * n_cells] += rules.forget_bias
        by_cell, take = (time, batch, n_cells), rules.scratch.take
        tanh_cells = take(by_cell, inputs)
        cells = take((time + 1, batch, n_cells), inputs)  # what each step starts from, and the last leaves
        hiddens = inputs.new_empty(time + 1, batch, width)  # the outputs: not for others to write in
        # What is clipped is kept unclipped too: only that tells where a gradient ends.
        free_cells = cells[1:] if rules.cell_clip is None else take(by_cell, inputs)
        free_hiddens = hiddens[1:] if rules.state_clip is None else torch.empty_like(hiddens[1:])
        merged = free_hiddens if projection is None else take(by_cell, inputs)
        down = None if projection is None else rules.factor(projection).t().contiguous()
        cells[0], hiddens[0] = cell, hidden
        # What each step starts from: the state before it, but for resets.
        starts = hiddens[:-1] if rules.keeps is None else torch.empty_like(hiddens[:-1])
        for t in range(time):
            if rules.keeps is not None:
                torch.mul(hiddens[t], rules.keeps[t], out=starts[t])
                cells[t] *= rules.keeps[t]
            # the bias here and not with the inputs: there it would be one more pass over all gates
            add_product(gates[t].add_(whole_bias), rules.factor(starts[t]), recurrent)
            i_f, j, o = gates[t].split((2 * n_cells, n_cells, n_cells), dim=1)
            i, f = i_f.sigmoid_().chunk(2, dim=1)
            j.tanh_()
            o.sigmoid_()
            torch.mul(f, cells[t], out=free_cells[t]).addcmul_(i, j)
            if rules.cell_clip is not None:
                torch.clamp(free_cells[t], -rules.cell_clip, rules.cell_clip, out=cells[t + 1])
            torch.tanh(cells[t + 1], out=tanh_cells[t])
            torch.mul(o, tanh_cells[t], out=merged[t])
            if down is not None:
                set_product(free_hiddens[t], rules.factor(merged[t]), down)
            if rules.state_clip is not None:
                torch.clamp(free_hiddens[t], -rules.state_clip, rules.state_clip, out=hiddens[t + 1])
        ctx.rules = rules
        ctx.borrowed = [gates, tanh_cells, cells]
        if rules.cell_clip is not None:
            ctx.borrowed.append(free_cells)
        if projection is not None:
            ctx.borrowed.append(merged)
        last = hiddens[-1].clone(), cells[-1].clone()
        if not rules.is_kept:
            rules.scratch.give(*ctx.borrowed)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            inputs, input_weight, state_weight, projection,
            gates, cells, free_cells, tanh_cells, merged, starts, free_hiddens,
        )  # fmt: skip
        return hiddens[1:], *last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        d_outputs, d_hidden, d_cell = gradients
        (
            inputs, input_weight, state_weight, projection,
            gates, cells, free_cells, tanh_cells, merged, starts, free_hiddens,
        ) = ctx.saved_tensors  # fmt: skip
        rules: _Rules = ctx.rules
        time, batch, n_cells = tanh_cells.shape
        recurrent = rules.factor(state_weight)
        up = None if projection is None else rules.factor(projection)
        d_gates = rules.scratch.take(gates.shape, gates)
        d_hiddens = torch.empty_like(free_hiddens)
        d_bias = torch.zeros_like(gates[0, 0])
        # What flows back from the step after, then from this one.
        d_state: Tensor = torch.zeros_like(starts[0]) if d_hidden is None else d_hidden.clone()
        d_cells: Tensor = torch.zeros_like(cells[0]) if d_cell is None else d_cell.clone()
        d_merged = d_state if up is None else torch.empty_like(d_cells)
        for t in range(time - 1, -1, -1):
            i_f, j, o = gates[t].split((2 * n_cells, n_cells, n_cells), dim=1)
            i, f = i_f.chunk(2, dim=1)
            d_i_f, d_j, d_o = d_gates[t].split((2 * n_cells, n_cells, n_cells), dim=1)
            d_i, d_f = d_i_f.chunk(2, dim=1)
            if d_outputs is not None:
                d_state += d_outputs[t]
            _stop_at_clip(d_state, free_hiddens[t], rules.state_clip)
            if up is not None:
                d_hiddens[t] = d_state
                set_product(d_merged, rules.factor(d_state), up)
            torch.mul(d_merged, tanh_cells[t], out=d_o)
            _through_sigmoid(d_o, o)
            d_cells += _through_tanh(d_merged.mul_(o), tanh_cells[t])
            _stop_at_clip(d_cells, free_cells[t], rules.cell_clip)
            torch.mul(d_cells, j, out=d_i)
            torch.mul(d_cells, cells[t], out=d_f)
            _through_sigmoid(d_i_f, i_f)
            _through_tanh(torch.mul(d_cells, i, out=d_j), j)
            d_cells *= f
            d_bias += d_gates[t].sum(dim=0)
            set_product(d_state, rules.factor(d_gates[t]), recurrent)
            if rules.keeps is not None:
                d_state *= rules.keeps[t]
                d_cells *= rules.keeps[t]

        # What remains are sums over all steps, one product each.
        wants_inputs, wants_hidden, wants_cell, *wants_weights, wants_projection, _ = ctx.needs_input_grad
        by_token = d_gates.view(time * batch, -1)
        factors = rules.factor(by_token)
        d_inputs = d_input_weight = d_state_weight = d_projection = None
        if wants_inputs:
            d_inputs = (factors @ rules.factor(input_weight)).to(inputs.dtype).view_as(inputs)
        if any(wants_weights):
            read = torch.cat([inputs, starts], dim=2).view(time * batch, -1)
            both = (factors.t() @ rules.factor(read)).to(inputs.dtype)  # (4 · cell, input + state)
            d_input_weight, d_state_weight = both.split((inputs.size(2), starts.size(2)), dim=1)
        if wants_projection:
            d_projection = _flat(rules.factor(d_hiddens)).t() @ _flat(rules.factor(merged))
        rules.scratch.give(d_gates, *ctx.borrowed)
        return (
            d_inputs,
            d_state if wants_hidden else None,
            d_cells if wants_cell else None,
            d_input_weight,
            d_state_weight,
            d_bias,
            None if d_projection is None else d_projection.to(inputs.dtype),
            None,
        )


def _flat(x: Tensor) -> Tensor:
    """(time, batch, width) to (token, width)."""
    return x.reshape(-1, x.size(2))


def _through_sigmoid(gradient: Tensor, y: Tensor) -> Tensor:
    """In place: gradient · y · (1 − y)."""
    return torch.ops.aten.sigmoid_backward.grad_input(gradient, y, grad_input=gradient)


def _through_tanh(gradient: Tensor, y: Tensor) -> Tensor:
    """In place: gradient · (1 − y²)."""
    return torch.ops.aten.tanh_backward.grad_input(gradient, y, grad_input=gradient)


def _stop_at_clip(gradient: Tensor, free: Tensor, clip: float | None) -> None:
    """In place: zero where ``free`` lies beyond ±clip; on the very edge torch.clamp lets gradients pass."""
    if clip is not None:
        # hardtanh's gradient already ends on the edge, so the edge is moved to the next number
        beyond = float(np.nextafter(np.array(clip, _NUMPY[free.dtype]), np.inf, dtype=_NUMPY[free.dtype]))
        torch.ops.aten.hardtanh_backward.grad_input(gradient, free, -beyond, beyond, grad_input=gradient)


_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}
