"""The LSTM layer of ``elmo.model.lstm.ProjectedLstm``, fast, in three variants.

- Encoding: ``freeze_lstm`` packs the weights. The packed layer reads sentences as a ``BatchSchedule`` arranges
  them, without gradients, in compiled code (``CompiledLstm``) or with torch (``TorchLstm``).
- Prediction: ``run_lstm_rows`` reads padded rows in products of one fixed shape. It prepares nothing, so it
  suits callers that read a few rows from time to time.
- Training: ``run_lstm_window`` reads full windows with gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmo.engine.buffers import UNPOOLED, BufferPool
from elmo.engine.compiled import (
    Library,
    LstmWeights,
    LstmWindow,
    PackedWeight,
    States,
    Weight,
    find_library,
    join_gates,
)
from elmo.engine.matmul import FIXED_ROWS, Kernels, add_matmul, aligned_linear, state_dtype, write_matmul
from elmo.engine.schedule import BatchSchedule, SlotChange
from elmo.errors import ShapeError
from elmo.model.lstm import LstmState, ProjectedLstm

# --- encoding -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackedGates:
    """The weights of a layer with gates in the order i, f, o, j, where i, f and o are halved.

    σ(x) = ½ tanh(½x) + ½. A tanh gives a number the same bits at every position, but torch's sigmoid uses
    different code for the remainder of a vector loop. Halving the weights is exact. In this order the three
    sigmoid gates are adjacent.
    """

    inputs: Tensor  # (4 · cell, width)
    states: Tensor  # (4 · cell, width)
    bias: Tensor  # (4 · cell,), including the forget bias
    projection: Tensor | None  # (width, cell)
    cell_clip: float | None
    state_clip: float | None

    @classmethod
    def pack(cls, lstm: ProjectedLstm) -> PackedGates:
        """Copy the current weights of a layer."""
        bias = lstm.bias.detach().to(state_dtype(lstm.bias), copy=True)
        n_cells = len(bias) // 4
        bias[n_cells : 2 * n_cells] += lstm.forget_bias
        projection = None if lstm.projection is None else lstm.projection.detach()
        return cls(
            inputs=_halve_gates(lstm.input_weight),
            states=_halve_gates(lstm.state_weight),
            bias=_halve_gates(bias).to(lstm.bias.dtype),
            projection=projection,
            cell_clip=lstm.cell_clip,
            # TensorFlow clips a hidden state only if it is projected
            state_clip=None if projection is None else lstm.state_clip,
        )


def _halve_gates(weight: Tensor) -> Tensor:
    """Reorder gates i, f, j, o to i, f, o, j and halve the first three."""
    i, f, j, o = weight.detach().chunk(4)
    return torch.cat([i * 0.5, f * 0.5, o * 0.5, j])


class FrozenLstm(Protocol):
    """One layer of one direction with a packed copy of its weights."""

    def run(
        self, inputs: Tensor, schedule: BatchSchedule, start: LstmState, *, outputs: Tensor, last: LstmState
    ) -> None:
        """Read ``inputs`` (row, width) in the order of ``schedule``, and write ``outputs`` (row, width).

        Both tensors have ``schedule.n_rows`` rows; those after the last token may contain any finite numbers.
        ``start`` and ``last`` have one row per sentence; the state after each sentence is written to ``last``.
        """
        ...


def freeze_lstm(lstm: ProjectedLstm, kernels: Kernels) -> FrozenLstm:
    """Pack the current weights of ``lstm`` for ``kernels``."""
    if kernels.library is not None:
        return CompiledLstm(lstm, kernels.library, kernels.precision)
    return TorchLstm(lstm, kernels)


class CompiledLstm:
    """A layer that reads whole schedules in compiled code; see ``kernels.c``."""

    def __init__(self, lstm: ProjectedLstm, library: Library, precision: str) -> None:
        self._library = library
        gates = PackedGates.pack(lstm)
        inputs, states = (
            PackedWeight(library, join_gates(library, weight), precision) for weight in (gates.inputs, gates.states)
        )
        projection = None if gates.projection is None else PackedWeight(library, gates.projection, precision)
        bias = states.pad(join_gates(library, gates.bias))
        self._memory = (inputs, states, projection, bias)  # what the structure below points to
        self._weights = LstmWeights(
            inputs=inputs.struct,
            states=states.struct,
            projection=Weight() if projection is None else projection.struct,
            bias=bias.data_ptr(),
            n_in=gates.inputs.size(1),
            width=gates.states.size(1),
            n_cells=len(gates.bias) // 4,
            has_projection=projection is not None,
            cell_clip=math.inf if gates.cell_clip is None else gates.cell_clip,
            state_clip=math.inf if gates.state_clip is None else gates.state_clip,
        )

    def run(
        self, inputs: Tensor, schedule: BatchSchedule, start: LstmState, *, outputs: Tensor, last: LstmState
    ) -> None:
        """See ``FrozenLstm.run``."""
        # One row that all sentences share has a stride of 0.
        first = [state if state.stride(1) == 1 else state.contiguous() for state in (start.hidden, start.cell)]
        states = States(
            start_hidden=first[0].data_ptr(),
            start_cell=first[1].data_ptr(),
            hidden_stride=first[0].stride(0),
            cell_stride=first[1].stride(0),
            last_hidden=last.hidden.data_ptr(),
            last_cell=last.cell.data_ptr(),
        )
        self._library.call("elmo_lstm", self._weights, schedule.compiled, states, inputs.data_ptr(), outputs.data_ptr())


# Inputs and states share one product if the weights fit into a cache, which is faster for large batches.
# Larger weights are read from memory, where a single sentence should read the input weights only once. int8
# weights are a quarter of the size, and rounding the inputs once is cheaper.
JOINED_BYTES = 1 << 23


class TorchLstm:
    """A layer that reads a schedule step by step with torch."""

    def __init__(self, lstm: ProjectedLstm, kernels: Kernels) -> None:
        self._kernels = kernels
        gates = PackedGates.pack(lstm)
        self._cell_clip, self._state_clip = gates.cell_clip, gates.state_clip
        n_bytes = gates.inputs.nbytes + gates.states.nbytes
        self._is_joined = n_bytes <= JOINED_BYTES or kernels.precision == "int8"
        if self._is_joined:
            self._states = kernels.product(torch.cat([gates.inputs, gates.states], dim=1), gates.bias, with_tanh=True)
        else:
            self._inputs = kernels.product(gates.inputs, gates.bias)
            self._states = kernels.product(gates.states)
        self._projection = None
        if gates.projection is not None:  # long sums, whose errors affect all later tokens
            self._projection = kernels.accurate_product(gates.projection)

    def run(
        self, inputs: Tensor, schedule: BatchSchedule, start: LstmState, *, outputs: Tensor, last: LstmState
    ) -> None:
        """See ``FrozenLstm.run``."""
        kernels, n_in = self._kernels, inputs.size(1)
        n_slots = kernels.padded_rows(schedule.batch_sizes[0])
        joined = inputs.new_zeros(n_slots, n_in + start.hidden.size(1))  # [input; hidden] of each slot
        hidden, cell = joined[:, n_in:], inputs.new_zeros(n_slots, start.cell.size(1))
        for state, first_state in ((hidden, start.hidden), (cell, start.cell)):
            state[: schedule.batch_sizes[0]] = first_state[schedule.first_sentences]
        batch_sizes, offsets, changes = [*schedule.batch_sizes, 0], schedule.offsets, schedule.slot_changes
        input_gates, first_row = inputs, 0
        for steps, n_rows in schedule.blocks(kernels):
            if not self._is_joined:
                first_row = offsets[steps.start]
                input_gates = self._inputs(inputs[first_row : first_row + n_rows])  # (row, 4 · cell)
            for step in steps:
                batch_size, row = batch_sizes[step], offsets[step] - first_row
                n = kernels.padded_rows(batch_size)
                if n < len(cell):  # make new views only when the batch shrinks, which is rare
                    joined, hidden, cell = joined[:n], hidden[:n], cell[:n]
                if step in changes:
                    _change_sentences(changes[step], LstmState(hidden, cell), last=last, start=start)
                if self._is_joined:
                    joined[:, :n_in] = inputs[row : row + n]
                    gates = self._states(joined)
                else:
                    gates = self._states(hidden, input_gates[row : row + n]).tanh_()
                h = self._update_cells(gates, cell)
                if self._projection is not None:
                    h = self._projection(h)
                    if self._state_clip is not None:
                        h.clamp_(-self._state_clip, self._state_clip)
                hidden.copy_(h)
                outputs[offsets[step] : offsets[step] + batch_size] = h[:batch_size]
                next_size = batch_sizes[step + 1]
                if next_size < batch_size:  # the slots that end are the last ones
                    ended = schedule.last_sentences[next_size:batch_size]
                    last.hidden[ended] = h[next_size:batch_size]
                    last.cell[ended] = cell[next_size:batch_size]

    def _update_cells(self, gates: Tensor, cell: Tensor) -> Tensor:
        """Update ``cell`` (row, cell) with the tanh of ``gates`` (row, 4 · cell); return o · tanh(c)."""
        n_cells = cell.size(1)
        gates[:, : 3 * n_cells].add_(1).mul_(0.5)
        i, f, o, j = gates.split(n_cells, dim=1)
        cell.mul_(f).add_(i.mul_(j))
        if self._cell_clip is not None:
            cell.clamp_(-self._cell_clip, self._cell_clip)
        return cell.tanh().mul_(o)


def _change_sentences(change: SlotChange, now: LstmState, *, last: LstmState, start: LstmState) -> None:
    """Save the states of the sentences that ended and start the next ones in their slots."""
    for saved, state, first in zip(
        (last.hidden, last.cell), (now.hidden, now.cell), (start.hidden, start.cell), strict=True
    ):
        saved[change.ended] = state[change.slots]
        state[change.slots] = first[change.started]


# --- prediction ---------------------------------------------------------------------------------------------

BLOCK_STEPS = 8  # steps whose input products are computed at once


def run_lstm_rows(
    lstm: ProjectedLstm, inputs: Tensor, lengths: list[int], start: LstmState
) -> tuple[Tensor, LstmState]:
    """Read ``inputs`` (time, row, width), at most ``FIXED_ROWS`` rows of falling length.

    Returns the hidden states (time, row, width), zero after the end of a row, and the last states.
    """
    time, n_rows, width = inputs.shape
    outputs = inputs.new_zeros(time, n_rows, start.hidden.size(1))
    last = LstmState(start.hidden.clone(), start.cell.clone())
    padding = (0, 0, 0, FIXED_ROWS - n_rows)
    state = LstmState(F.pad(start.hidden, padding), F.pad(start.cell, padding))
    block = inputs.new_zeros(BLOCK_STEPS, FIXED_ROWS, width)
    for begin in range(0, time, BLOCK_STEPS):
        size = min(BLOCK_STEPS, time - begin)
        block[:size, :n_rows] = inputs[begin : begin + size]
        gates = aligned_linear(block.view(BLOCK_STEPS * FIXED_ROWS, width), lstm.input_weight, lstm.bias)
        gates = gates.view(BLOCK_STEPS, FIXED_ROWS, -1)
        for t in range(begin, begin + size):
            state = lstm.step(gates[t - begin], state, linear=aligned_linear)
            n_active = _count_active(lengths, t)
            outputs[t, :n_active] = state.hidden[:n_active]
            ended = slice(_count_active(lengths, t + 1), n_active)
            last.hidden[ended], last.cell[ended] = state.hidden[ended], state.cell[ended]
    return outputs, last


def _count_active(lengths: list[int], t: int) -> int:
    """Number of rows of falling length that have a token at step ``t``."""
    n = len(lengths)
    while n and lengths[n - 1] <= t:
        n -= 1
    return n


# --- training -----------------------------------------------------------------------------------------------


def run_lstm_window(
    lstm: ProjectedLstm,
    inputs: Tensor,
    state: LstmState,
    *,
    state_weight: Tensor | None = None,
    resets: Tensor | None = None,
    has_bf16_products: bool = False,
    buffers: BufferPool = UNPOOLED,
) -> tuple[Tensor, LstmState]:
    """Read a full window ``inputs`` (batch, time, width) with gradients.

    All input products are one matrix product, and so is the gradient of each weight after the loop over time.
    Autograd sees one operation instead of about twenty per token.

    Args:
        lstm: The reference module with the weights.
        inputs: Token vectors (batch, time, width), without padding.
        state: The state before the first token.
        state_weight: Used in place of ``lstm.state_weight``, for example with dropout applied.
        resets: Boolean mask (batch, time). Where it is True, the state is set to zero before the token is read.
        has_bf16_products: Round matrix products and their factors to bfloat16; sums over time, states and
            gradients of weights keep their type.
        buffers: A pool for intermediate results. With a pool that reuses memory, only one backward pass is
            possible.

    Returns:
        The hidden states (batch, time, width), stored with time first, which is fastest for the next layer,
        and the last state of each row.
    """
    batch, time, width = inputs.shape
    expected = ((batch, lstm.state_weight.size(1)), (batch, lstm.bias.size(0) // 4))
    found = (tuple(state.hidden.shape), tuple(state.cell.shape))
    if found != expected or width != lstm.input_weight.size(1) or time == 0:
        raise ShapeError(
            f"expected inputs of shape (batch, time, {lstm.input_weight.size(1)}) and a state of {expected}, "
            f"found {tuple(inputs.shape)} and {found}"
        )
    options = _WindowOptions(
        cell_clip=lstm.cell_clip,
        state_clip=lstm.state_clip if lstm.projection is not None else None,
        forget_bias=lstm.forget_bias,
        is_bf16=has_bf16_products,
        buffers=buffers,
        has_backward=torch.is_grad_enabled(),
        keep=None if resets is None else (~resets).t()[:, :, None].to(inputs.dtype).contiguous(),
        library=find_library(
            "bfloat16" if has_bf16_products else "float32", inputs, lstm.input_weight, state.hidden, state.cell
        ),
    )
    function = _LstmWindow if options.library is None else _CompiledLstmWindow
    outputs, hidden, cell = function.apply(
        inputs.transpose(0, 1),
        state.hidden,
        state.cell,
        lstm.input_weight,
        lstm.state_weight if state_weight is None else state_weight,
        lstm.bias,
        lstm.projection,
        options,
    )  # pyright: ignore
    return outputs.transpose(0, 1), LstmState(hidden, cell)


@dataclass(frozen=True)
class _WindowOptions:
    cell_clip: float | None
    state_clip: float | None
    forget_bias: float
    is_bf16: bool
    buffers: BufferPool
    has_backward: bool  # keep intermediate results for the backward pass
    keep: Tensor | None  # (time, batch, 1): 0 where the state is reset before the token, otherwise 1
    library: Library | None  # the compiled kernels, if they can be used

    def factor(self, x: Tensor) -> Tensor:
        """Convert a factor of a matrix product to its type."""
        return x.bfloat16() if self.is_bf16 else x


class _CompiledLstmWindow(torch.autograd.Function):
    """``_LstmWindow`` in compiled code; the products over all steps remain torch's."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        inputs, hidden, cell, input_weight, state_weight, bias, projection, options = arguments
        (time, batch, n_in), (width, n_cells) = inputs.shape, (state_weight.size(1), cell.size(1))
        inputs = inputs.contiguous()
        weights = [None if w is None else w.contiguous() for w in (input_weight, state_weight, bias, projection)]
        like = inputs.new_empty(0, dtype=torch.bfloat16 if options.is_bf16 else torch.float32)
        take = options.buffers.take
        hiddens = inputs.new_empty(time + 1, batch, width)  # returned, so not from the pool
        hiddens[0] = hidden
        free_cells = take((time + 1, batch, n_cells), inputs)
        free_cells[0] = cell
        memory = {
            "factors": take((time, batch, n_in + width), like),
            "outputs": take((time, batch, n_cells), like),
            "gates": take((time, batch, 4 * n_cells), inputs),
            "free_cells": free_cells,
            "free_hidden": take((time, batch, width), inputs),
        }
        window = LstmWindow(
            type=options.is_bf16,
            time=time,
            batch=batch,
            n_in=n_in,
            width=width,
            n_cells=n_cells,
            has_projection=projection is not None,
            forget_bias=options.forget_bias,
            cell_clip=math.inf if options.cell_clip is None else options.cell_clip,
            state_clip=math.inf if options.state_clip is None else options.state_clip,
            inputs=inputs.data_ptr(),
            hidden=hiddens.data_ptr(),
            keep=None if options.keep is None else options.keep.data_ptr(),
            **{name: tensor.data_ptr() for name, tensor in memory.items()},
            **{
                name: None if weight is None else weight.data_ptr()
                for name, weight in zip(("input_weight", "state_weight", "bias", "projection"), weights, strict=True)
            },
        )
        cast("Library", options.library).call("elmo_lstm_forward", window)
        last_cell = free_cells[-1].clone()
        if options.cell_clip is not None:
            last_cell.clamp_(-options.cell_clip, options.cell_clip)
        if not options.has_backward:
            options.buffers.release(*memory.values())
        ctx.options, ctx.window, ctx.memory = options, window, memory
        ctx.weights = weights  # what the structure points to
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(input_weight, state_weight, projection)
        return hiddens[1:], hiddens[-1].clone(), last_cell

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        d_outputs, d_hidden, d_cell = gradients
        input_weight, *_ = ctx.saved_tensors
        options: _WindowOptions = ctx.options
        window: LstmWindow = ctx.window
        factors, outputs = ctx.memory["factors"], ctx.memory["outputs"]
        time, batch, n_cells = outputs.shape
        width = window.width
        d_outputs = None if d_outputs is None else d_outputs.contiguous()
        d_state = input_weight.new_zeros(batch, width) if d_hidden is None else d_hidden.contiguous().clone()
        d_cells = input_weight.new_zeros(batch, n_cells) if d_cell is None else d_cell.contiguous().clone()
        d_bias = input_weight.new_zeros(4 * n_cells)
        d_gates = options.buffers.take((time, batch, 4 * n_cells), factors)
        d_free_hidden = options.buffers.take((time, batch, width), factors)
        window.d_hidden = None if d_outputs is None else d_outputs.data_ptr()
        window.d_state, window.d_cells = d_state.data_ptr(), d_cells.data_ptr()
        window.d_bias, window.d_gates = d_bias.data_ptr(), d_gates.data_ptr()
        window.d_free_hidden = d_free_hidden.data_ptr()
        cast("Library", options.library).call("elmo_lstm_backward", window)

        # The remaining gradients are sums over all steps, one product each.
        needs_inputs, needs_hidden, needs_cell, *needs_weights, needs_projection, _ = ctx.needs_input_grad
        d_inputs = d_input_weight = d_state_weight = d_projection = None
        if needs_inputs:
            d_inputs = (_flatten(d_gates) @ options.factor(input_weight)).float().view(time, batch, -1)
        if any(needs_weights):
            d_joined = (_flatten(d_gates).t() @ _flatten(factors)).float()  # (4 · cell, input + state)
            d_input_weight, d_state_weight = d_joined.split((window.n_in, width), dim=1)
        if needs_projection:
            d_projection = (_flatten(d_free_hidden).t() @ _flatten(outputs)).float()
        options.buffers.release(d_gates, d_free_hidden, *ctx.memory.values())
        return (
            d_inputs,
            d_state if needs_hidden else None,
            d_cells if needs_cell else None,
            d_input_weight,
            d_state_weight,
            d_bias,
            d_projection,
            None,
        )


class _LstmWindow(torch.autograd.Function):
    """Map inputs (time, batch, width) to outputs (time, batch, width); time is the first axis everywhere."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd passes tensors by position)
        ctx: Any,
        inputs: Tensor,
        hidden: Tensor,
        cell: Tensor,
        input_weight: Tensor,
        state_weight: Tensor,
        bias: Tensor,
        projection: Tensor | None,
        options: _WindowOptions,
    ) -> tuple[Tensor, Tensor, Tensor]:
        time, batch, _ = inputs.shape
        width, n_cells = state_weight.size(1), cell.size(1)
        inputs = inputs.contiguous()
        # Products of few rows are a third faster if the right factor is contiguous.
        recurrent = options.factor(state_weight).t().contiguous()
        by_cell, take = (time, batch, n_cells), options.buffers.take
        gates = take((time, batch, 4 * n_cells), inputs)
        write_matmul(gates.view(-1, 4 * n_cells), _flatten(options.factor(inputs)), options.factor(input_weight).t())
        full_bias = bias.clone()
        full_bias[n_cells : 2 * n_cells] += options.forget_bias
        tanh_cells = take(by_cell, inputs)
        cells = take((time + 1, batch, n_cells), inputs)  # before each step, and after the last
        hiddens = inputs.new_empty(time + 1, batch, width)  # returned, so not from the pool
        # Unclipped values are kept too: they show where the gradient is zero.
        free_cells = cells[1:] if options.cell_clip is None else take(by_cell, inputs)
        free_hiddens = hiddens[1:] if options.state_clip is None else torch.empty_like(hiddens[1:])
        cell_outputs = free_hiddens if projection is None else take(by_cell, inputs)
        down = None if projection is None else options.factor(projection).t().contiguous()
        cells[0], hiddens[0] = cell, hidden
        # The state that each step reads: the one after the step before, unless it is reset.
        starts = hiddens[:-1] if options.keep is None else torch.empty_like(hiddens[:-1])
        for t in range(time):
            if options.keep is not None:
                torch.mul(hiddens[t], options.keep[t], out=starts[t])
                cells[t] *= options.keep[t]
            # Adding the bias here, not with the inputs, saves a pass over all gates.
            add_matmul(gates[t].add_(full_bias), options.factor(starts[t]), recurrent)
            i_f, j, o = gates[t].split((2 * n_cells, n_cells, n_cells), dim=1)
            i, f = i_f.sigmoid_().chunk(2, dim=1)
            j.tanh_()
            o.sigmoid_()
            torch.mul(f, cells[t], out=free_cells[t]).addcmul_(i, j)
            if options.cell_clip is not None:
                torch.clamp(free_cells[t], -options.cell_clip, options.cell_clip, out=cells[t + 1])
            torch.tanh(cells[t + 1], out=tanh_cells[t])
            torch.mul(o, tanh_cells[t], out=cell_outputs[t])
            if down is not None:
                write_matmul(free_hiddens[t], options.factor(cell_outputs[t]), down)
            if options.state_clip is not None:
                torch.clamp(free_hiddens[t], -options.state_clip, options.state_clip, out=hiddens[t + 1])
        ctx.options = options
        ctx.pooled = [gates, tanh_cells, cells]
        if options.cell_clip is not None:
            ctx.pooled.append(free_cells)
        if projection is not None:
            ctx.pooled.append(cell_outputs)
        last = hiddens[-1].clone(), cells[-1].clone()
        if not options.has_backward:
            options.buffers.release(*ctx.pooled)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            inputs, input_weight, state_weight, projection,
            gates, cells, free_cells, tanh_cells, cell_outputs, starts, free_hiddens,
        )  # fmt: skip
        return hiddens[1:], *last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        d_outputs, d_hidden, d_cell = gradients
        (
            inputs, input_weight, state_weight, projection,
            gates, cells, free_cells, tanh_cells, cell_outputs, starts, free_hiddens,
        ) = ctx.saved_tensors  # fmt: skip
        options: _WindowOptions = ctx.options
        time, batch, n_cells = tanh_cells.shape
        recurrent = options.factor(state_weight)
        up = None if projection is None else options.factor(projection)
        d_gates = options.buffers.take(gates.shape, gates)
        d_hiddens = torch.empty_like(free_hiddens)
        d_bias = torch.zeros_like(gates[0, 0])
        # Gradients of the state after step t, then of the state before it.
        d_state: Tensor = torch.zeros_like(starts[0]) if d_hidden is None else d_hidden.clone()
        d_cells: Tensor = torch.zeros_like(cells[0]) if d_cell is None else d_cell.clone()
        d_cell_output = d_state if up is None else torch.empty_like(d_cells)
        for t in range(time - 1, -1, -1):
            i_f, j, o = gates[t].split((2 * n_cells, n_cells, n_cells), dim=1)
            i, f = i_f.chunk(2, dim=1)
            d_i_f, d_j, d_o = d_gates[t].split((2 * n_cells, n_cells, n_cells), dim=1)
            d_i, d_f = d_i_f.chunk(2, dim=1)
            if d_outputs is not None:
                d_state += d_outputs[t]
            _clip_backward_(d_state, free_hiddens[t], options.state_clip)
            if up is not None:
                d_hiddens[t] = d_state
                write_matmul(d_cell_output, options.factor(d_state), up)
            torch.mul(d_cell_output, tanh_cells[t], out=d_o)
            _sigmoid_backward_(d_o, o)
            d_cells += _tanh_backward_(d_cell_output.mul_(o), tanh_cells[t])
            _clip_backward_(d_cells, free_cells[t], options.cell_clip)
            torch.mul(d_cells, j, out=d_i)
            torch.mul(d_cells, cells[t], out=d_f)
            _sigmoid_backward_(d_i_f, i_f)
            _tanh_backward_(torch.mul(d_cells, i, out=d_j), j)
            d_cells *= f
            d_bias += d_gates[t].sum(dim=0)
            write_matmul(d_state, options.factor(d_gates[t]), recurrent)
            if options.keep is not None:
                d_state *= options.keep[t]
                d_cells *= options.keep[t]

        # The remaining gradients are sums over all steps, one product each.
        needs_inputs, needs_hidden, needs_cell, *needs_weights, needs_projection, _ = ctx.needs_input_grad
        factors = options.factor(d_gates.view(time * batch, -1))
        d_inputs = d_input_weight = d_state_weight = d_projection = None
        if needs_inputs:
            d_inputs = (factors @ options.factor(input_weight)).to(inputs.dtype).view_as(inputs)
        if any(needs_weights):
            joined = torch.cat([inputs, starts], dim=2).view(time * batch, -1)
            d_joined = (factors.t() @ options.factor(joined)).to(inputs.dtype)  # (4 · cell, input + state)
            d_input_weight, d_state_weight = d_joined.split((inputs.size(2), starts.size(2)), dim=1)
        if needs_projection:
            d_projection = _flatten(options.factor(d_hiddens)).t() @ _flatten(options.factor(cell_outputs))
        options.buffers.release(d_gates, *ctx.pooled)
        return (
            d_inputs,
            d_state if needs_hidden else None,
            d_cells if needs_cell else None,
            d_input_weight,
            d_state_weight,
            d_bias,
            None if d_projection is None else d_projection.to(inputs.dtype),
            None,
        )


def _flatten(x: Tensor) -> Tensor:
    """(time, batch, width) to (token, width)."""
    return x.reshape(-1, x.size(2))


def _sigmoid_backward_(gradient: Tensor, y: Tensor) -> Tensor:
    """Compute gradient · y · (1 − y) in place."""
    return torch.ops.aten.sigmoid_backward.grad_input(gradient, y, grad_input=gradient)


def _tanh_backward_(gradient: Tensor, y: Tensor) -> Tensor:
    """Compute gradient · (1 − y²) in place."""
    return torch.ops.aten.tanh_backward.grad_input(gradient, y, grad_input=gradient)


_NUMPY_TYPES = {torch.float32: np.float32, torch.float64: np.float64}


def _clip_backward_(gradient: Tensor, free: Tensor, clip: float | None) -> None:
    """Set the gradient to zero in place where ``free`` is beyond ±clip, as torch.clamp does."""
    if clip is not None:
        # hardtanh stops gradients at ±clip itself, where clamp lets them pass: use the next larger number.
        dtype = _NUMPY_TYPES[free.dtype]
        beyond = float(np.nextafter(np.array(clip, dtype), np.inf, dtype=dtype))
        torch.ops.aten.hardtanh_backward.grad_input(gradient, free, -beyond, beyond, grad_input=gradient)
