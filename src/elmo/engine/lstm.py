"""The LSTM layer of ``elmo.model.lstm.ProjectedLstm``, fast, in three variants.

- Encoding: ``FrozenLstm`` reads sentences as a ``BatchSchedule`` arranges them, with packed weights and no
  gradients. A sentence that comes alone goes through the compiled loops of ``SingleSentenceLstm``, if numba
  is installed, and gets the same bits.
- Prediction: ``run_lstm_rows`` reads padded rows in products of one fixed shape. It prepares nothing, so it
  suits callers that read a few rows from time to time.
- Training: ``run_lstm_window`` reads full windows with gradients.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import platform
import threading
import time
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmo.engine.buffers import UNPOOLED, BufferPool
from elmo.engine.matmul import (
    FIXED_ROWS,
    InexactError,
    Kernels,
    Product,
    add_matmul,
    aligned_linear,
    split_size,
    state_dtype,
    write_matmul,
)
from elmo.engine.schedule import BatchSchedule, SlotChange
from elmo.errors import ShapeError
from elmo.model.lstm import LstmState, ProjectedLstm

_log = logging.getLogger(__name__)

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


# Inputs and states share one product if the weights fit into a cache, which is faster for large batches.
# Larger weights are read from memory, where a single sentence should read the input weights only once. int8
# weights are a quarter of the size, and rounding the inputs once is cheaper.
JOINED_BYTES = 1 << 23
# Number of single sentences before weights are copied for them: the copy takes as long as a few sentences.
MIN_SINGLE_SENTENCES = 4


class FrozenLstm:
    """One layer of one direction with a packed copy of its weights."""

    def __init__(self, lstm: ProjectedLstm, kernels: Kernels) -> None:
        self._kernels = kernels
        self._lstm = lstm
        # Why the gates (or single sentences) do not use compiled loops; None if they do.
        self.compiled_gates_problem = check_compiled_support(kernels)
        self.single_sentence_problem = self.compiled_gates_problem
        self._single: SingleSentenceLstm | None = None
        self._n_single = 0
        self._lock = threading.Lock()
        gates = PackedGates.pack(lstm)
        self._cell_clip, self._state_clip = gates.cell_clip, gates.state_clip
        n_bytes = gates.inputs.nbytes + gates.states.nbytes
        self._is_joined = n_bytes <= JOINED_BYTES or kernels.precision == "int8"
        if self._is_joined:
            joined = torch.cat([gates.inputs, gates.states], dim=1)
            self._states = kernels.product(joined, gates.bias, with_tanh=self.compiled_gates_problem is not None)
        else:
            self._inputs = kernels.product(gates.inputs, gates.bias)
            self._states = kernels.product(gates.states)
        self._projection = None
        if gates.projection is not None:  # long sums, whose errors affect all later tokens
            self._projection = kernels.accurate_product(gates.projection)

    def run(self, inputs: Tensor, schedule: BatchSchedule, start: LstmState, *, outputs: Tensor) -> LstmState:
        """Read ``inputs`` (row, width) in the order of ``schedule``; return the last state of each sentence.

        Writes to ``outputs`` (row, width). Both tensors have ``schedule.n_rows`` rows; those after the last
        token may contain any finite numbers. ``start`` has one row per sentence.
        """
        single = self._single_sentence_lstm() if len(schedule.lengths) == 1 else None
        if single is None:
            return self._run_schedule(inputs, schedule, start, outputs=outputs)
        hidden, cell = start.hidden[0].clone(), start.cell[0].clone()
        for steps, n_rows in schedule.blocks(self._kernels):
            first = steps.start
            single.run(inputs[first : first + n_rows], hidden=hidden, cell=cell, outputs=outputs[first : steps.stop])
        return LstmState(hidden[None], cell[None])

    def _run_schedule(self, inputs: Tensor, schedule: BatchSchedule, start: LstmState, *, outputs: Tensor) -> LstmState:
        kernels, n_in = self._kernels, inputs.size(1)
        n_slots = kernels.padded_rows(schedule.batch_sizes[0])
        joined = inputs.new_zeros(n_slots, n_in + start.hidden.size(1))  # [input; hidden] of each slot
        hidden, cell = joined[:, n_in:], inputs.new_zeros(n_slots, start.cell.size(1))
        for state, first_state in ((hidden, start.hidden), (cell, start.cell)):
            state[: schedule.batch_sizes[0]] = first_state[schedule.first_sentences]
        cell_output = torch.empty_like(cell)
        last = LstmState(torch.empty_like(start.hidden), torch.empty_like(start.cell))
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
                    cell_output = cell_output[:n]
                if step in changes:
                    _change_sentences(changes[step], LstmState(hidden, cell), last=last, start=start)
                if self._is_joined:
                    joined[:, :n_in] = inputs[row : row + n]
                    gates = self._states(joined)
                else:
                    gates = self._states(hidden, input_gates[row : row + n])
                h = self._update_cells(gates, cell, cell_output)
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
        return last

    def _update_cells(self, gates: Tensor, cell: Tensor, output: Tensor) -> Tensor:
        """Update ``cell`` (row, cell) with ``gates`` (row, 4 · cell); write o · tanh(c) to ``output``."""
        if self.compiled_gates_problem is None:
            update_cells(gates, cell, output=output, clip=self._cell_clip)
            return output
        if not self._is_joined:  # otherwise the product has applied tanh
            gates.tanh_()
        n_cells = cell.size(1)
        gates[:, : 3 * n_cells].add_(1).mul_(0.5)
        i, f, o, j = gates.split(n_cells, dim=1)
        cell.mul_(f).add_(i.mul_(j))
        if self._cell_clip is not None:
            cell.clamp_(-self._cell_clip, self._cell_clip)
        return torch.tanh(cell, out=output).mul_(o)

    def _single_sentence_lstm(self) -> SingleSentenceLstm | None:
        """The compiled layer for single sentences, built after a few of them; None if not available."""
        if self._single is not None or self.single_sentence_problem is not None:
            return self._single
        with self._lock:
            self._n_single += 1
            is_needed = self._single is None and self.single_sentence_problem is None
            if is_needed and self._n_single > MIN_SINGLE_SENTENCES:
                try:
                    self._single = SingleSentenceLstm(
                        PackedGates.pack(self._lstm),
                        self._kernels,
                        inputs=None if self._is_joined else self._inputs,
                        states=self._states,
                        projection=self._projection,
                    )
                except InexactError as error:
                    self.single_sentence_problem = str(error)
            return self._single


def _change_sentences(change: SlotChange, now: LstmState, *, last: LstmState, start: LstmState) -> None:
    """Save the states of the sentences that ended and start the next ones in their slots."""
    for saved, state, first in zip(
        (last.hidden, last.cell), (now.hidden, now.cell), (start.hidden, start.cell), strict=True
    ):
        saved[change.ended] = state[change.slots]
        state[change.slots] = first[change.started]


# --- encoding with compiled loops ---------------------------------------------------------------------------

DISABLE_VARIABLE = "ELMO_COMPILED"  # set this environment variable to 0 to disable compiled loops
MAX_THREADS = 4  # per direction: compiled loops use one thread; with more, torch's own gates are as fast
_CHAIN_LENGTHS = (512, 1024, 256, 384, 2048)  # number of inputs that a library may add in one sum
_SLOW_SECONDS = 1.0


def check_compiled_support(kernels: Kernels) -> str | None:
    """Return why this thread cannot use compiled loops with ``kernels``, or None if it can."""
    if os.environ.get(DISABLE_VARIABLE) == "0":
        return f"disabled by {DISABLE_VARIABLE}=0"
    if not kernels.is_packed:
        return f"compiled loops require packed weights: {kernels.reason}"
    if kernels.precision == "bfloat16":  # rounds before tanh; the loops would round after it
        return "bfloat16 products include tanh"
    n_threads = torch.get_num_threads()
    if n_threads > MAX_THREADS:
        return f"compiled loops use one thread, but torch may use {n_threads}"
    loops = _load_loops()
    return loops if isinstance(loops, str) else None


@functools.cache
def _load_loops() -> ModuleType | str:
    """Import the loops, compiling them or reading numba's cache; or return why this is not possible."""
    is_x86 = platform.machine().lower() in {"x86_64", "amd64"}
    if is_x86 and torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        return "this CPU has no fused multiply-add"
    begin = time.perf_counter()
    try:
        import numba.core.errors  # pyright: ignore[reportMissingImports] -- an extra
    except ModuleNotFoundError:
        return "numba is not installed; to install it: pip install 'pyelmo[fast]'"
    except (ImportError, SystemError) as error:  # for example, built for another version of NumPy
        return f"numba cannot be imported: {str(error).splitlines()[0]:.100}"
    try:
        from elmo.engine import compiled_loops
    except numba.core.errors.NumbaError as error:
        return f"numba cannot compile the loops: {str(error).splitlines()[0]:.100}"
    seconds = time.perf_counter() - begin
    if seconds > _SLOW_SECONDS:
        _log.info("compiled the LSTM loops in %.1f s; numba caches them for other processes", seconds)
    return compiled_loops


def _loops() -> ModuleType:
    loops = _load_loops()
    if isinstance(loops, str):
        raise RuntimeError(f"compiled loops are not available: {loops}")
    return loops


def update_cells(gates: Tensor, cell: Tensor, *, output: Tensor, clip: float | None) -> None:
    """Update ``cell`` (row, cell) and write o · tanh(c) to ``output`` (row, cell), compiled.

    ``gates`` (row, 4 · cell) are those of ``PackedGates``, before tanh.
    """
    _loops().update_cells(gates.numpy(), cell.numpy(), output.numpy(), _limit(clip))


class SingleSentenceLstm:
    """One layer that reads one sentence at a time in compiled loops, to the bits of packed products.

    A single sentence is limited by reading weights from memory and by the cost of Python per step. Here a
    step reads the weights once and in order, and a layer is one call. The order of additions in the packed
    products is found by trying; if it is not found, single sentences use the packed products too. Holds a
    second copy of the weights.
    """

    def __init__(
        self,
        gates: PackedGates,
        kernels: Kernels,
        *,
        inputs: Product | None,
        states: Product,
        projection: Product | None,
    ) -> None:
        """Copy ``gates`` and match the bits of the given products.

        ``states`` multiplies the states and adds the result of ``inputs``. If ``inputs`` is None, ``states``
        multiplies inputs and states in one row. Raises ``InexactError`` if the order of sums is not found.
        """
        if kernels.precision != "float32":
            raise InexactError(f"compiled products are float32, but these are {kernels.precision}")
        self._clips = _limit(gates.cell_clip), _limit(gates.state_clip)
        self._bias = gates.bias.float().numpy()
        n_in, n_states = gates.inputs.size(1), gates.states.size(1)
        self._is_joined = inputs is None
        if inputs is None:  # a sum starts with the inputs: that part of all steps is one product
            inputs = kernels.product(gates.inputs)
            x, state = _random_rows(n_in), _random_rows(n_states)
            self._states = _PanelWeight.match(
                states(torch.cat([x, state], dim=1)),
                gates.states, state, start=inputs(x), added=gates.bias.float().expand(2, -1),
            )  # fmt: skip
        else:
            state, added = _random_rows(n_states), _random_rows(len(gates.bias))
            self._states = _PanelWeight.match(states(state, added), gates.states, state, added=added)
        self._inputs = inputs
        self._projection = _PanelWeight(np.empty((0, 0, _loops().PANEL), np.float32), 1)  # no projection
        if gates.projection is not None and projection is not None:
            x = _random_rows(gates.projection.size(1))
            self._projection = _PanelWeight.match(projection(x), gates.projection, x)

    def run(self, inputs: Tensor, *, hidden: Tensor, cell: Tensor, outputs: Tensor) -> None:
        """Write ``outputs`` (time, width) and update ``hidden`` (width,) and ``cell`` (cell,).

        ``inputs`` (row, width) are those of ``outputs``, padded to a number of rows that the kernels take.
        """
        gates = self._inputs(inputs)
        _loops().run_sentence(
            gates.numpy(), self._bias, self._is_joined, self._states.panels, self._states.chain_length,
            self._projection.panels, self._projection.chain_length, *self._clips,
            hidden.numpy(), cell.numpy(), outputs.numpy(),
        )  # fmt: skip


@dataclass(frozen=True)
class _PanelWeight:
    """A weight (out, in) in panels, and the number of inputs that are added in one chain of sums."""

    panels: NDArray[np.float32]
    chain_length: int

    @classmethod
    def match(
        cls, expected: Tensor, weight: Tensor, x: Tensor, *, start: Tensor | None = None, added: Tensor | None = None
    ) -> _PanelWeight:
        """Find the chain length with which start + weight · x + added has the bits of ``expected``."""
        panels = _split_panels(weight)
        zeros = torch.zeros_like(expected)
        rows = [x, zeros if start is None else start, zeros if added is None else added, expected]
        x_row, first, last, target = (row[0].numpy() for row in rows)
        result = np.empty_like(target)
        n_in = len(x_row)
        candidates = (n_in, split_size(n_in), *_CHAIN_LENGTHS)
        for length in dict.fromkeys(min(length, n_in) for length in candidates):
            _loops().multiply(panels, x_row, length, first, last, result)
            if np.array_equal(result, target):
                return cls(panels, length)
        raise InexactError(f"the order of sums is unknown for weights of shape {tuple(weight.shape)}")


def _split_panels(weight: Tensor) -> NDArray[np.float32]:
    """Rearrange (out, in) to (panel, in, output of the panel); the last panel is filled with zeros."""
    size = _loops().PANEL
    n_out, n_in = weight.shape
    n_full = n_out // size
    panels = np.zeros((-(-n_out // size), n_in, size), np.float32)  # numpy requests huge pages
    target = torch.from_numpy(panels)
    target[:n_full] = weight[: n_full * size].view(n_full, size, n_in).transpose(1, 2)
    if n_out > n_full * size:
        target[n_full, :, : n_out - n_full * size] = weight[n_full * size :].T
    return panels


def _limit(clip: float | None) -> float:
    return math.inf if clip is None else clip


def _random_rows(width: int) -> Tensor:
    """Two rows, the minimum for packed products."""
    return torch.randn(2, width, generator=torch.Generator().manual_seed(width))


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
        keep=None if resets is None else (~resets).t()[:, :, None].to(inputs.dtype),
    )
    outputs, hidden, cell = _LstmWindow.apply(
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

    def factor(self, x: Tensor) -> Tensor:
        """Convert a factor of a matrix product to its type."""
        return x.bfloat16() if self.is_bf16 else x


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
