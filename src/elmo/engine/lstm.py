"""An LSTM layer in, its weights out as the engine multiplies with them: gates in another order, some halved.

σ(x) = ½ tanh(½x) + ½: a tanh can be had that gives a number the same bits wherever it stands, while torch's
sigmoid has another one for what is left over at the end of a vector loop. The halves of x are in the weights
beforehand, where halving is exact.

An LSTM layer's weights in; its gates, and whole lone sentences, by compiled loops out, where numba is.

A lone sentence is bound by reading weights, and by what Python costs per step. Here a step reads them once
and in order, and a layer is one call. Sums are added up in the order of packed products, which is found by
trying: a sentence gets the same bits alone as among others, or else it is read as others are.

Vectors in lanes in, one LSTM layer's states out: ``model.lstm.ProjectedLstm``, fast.

Gates and cells are torch's, or by ``compiled`` loops where those are at hand; these also read a sentence that
comes alone, to the same bits.

Padded rows of vectors in, one LSTM layer's states out, in products of one fixed shape.

For those who have one layer at a time to read, and only here and there: nothing is prepared beforehand.

Full windows of vectors through one LSTM layer, as ``model.lstm.ProjectedLstm`` reads them, only faster.

What is saved: the products of all inputs are one matrix product, and so are the gradients of each weight
after the loop over time; autograd sees one operation instead of some twenty for each token; every
intermediate result has its place in a buffer from the start, and the next window's are in the same memory.
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

from elmo.engine.batches import BatchSchedule, Switch
from elmo.engine.matmul import (
    InexactError,
    Kernels,
    Product,
    add_matmul,
    aligned_linear,
    part_size,
    write_matmul,
    state_dtype,
)
from elmo.engine.threads import UNPOOLED, BufferPool
from elmo.errors import ShapeError
from elmo.model.lstm import LstmState, ProjectedLstm


@dataclass(frozen=True)
class PackedGates:
    """Gates i, f, o, j, the first three halved: their sigmoids lie side by side. Limits as they apply."""

    inputs: Tensor  # (4 · cell, width)
    states: Tensor  # (4 · cell, width)
    bias: Tensor  # (4 · cell,), the forget bias in it
    projection: Tensor | None  # (width, cell)
    cell_clip: float | None
    state_clip: float | None

    @classmethod
    def of(cls, lstm: ProjectedLstm) -> PackedGates:
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


SWITCH = "ELMO_COMPILED"  # this environment variable as 0 keeps to torch
MAX_THREADS = 4  # of one direction: compiled loops have one thread, and torch's own gates catch up with more
_CHAINS = (512, 1024, 256, 384, 2048)  # inputs that a library may add up in one go, likely ones first
_PARTS = (1, 4, 2, 3)  # or in how many parts, see ``PartedProduct``
_SLOW_SECONDS = 1.0

_log = logging.getLogger(__name__)


def missing(kernels: Kernels) -> str | None:
    """Why compiled loops are not used with ``kernels`` by this thread; None if they are."""
    if os.environ.get(SWITCH) == "0":
        return f"switched off by {SWITCH}=0"
    if not kernels.is_packed:
        return f"compiled loops go with packed weights: {kernels.reason}"
    if kernels.precision == "bfloat16":  # which would be rounded to before the tanh, not after
        return "products of bfloat16 have their own tanh"
    n_threads = torch.get_num_threads()
    if n_threads > MAX_THREADS:
        return f"compiled loops have one thread, and torch may use {n_threads}"
    found = _loops()
    return found if isinstance(found, str) else None


def cells(gates: Tensor, cell: Tensor, *, merged: Tensor, clip: float | None) -> None:
    """Gates (row, 4 · cell) as ``PackedGates`` has them, before any tanh: ``merged`` is o · tanh(c).

    ``cell`` (row, cell) moves on, within ``clip``.
    """
    _ready().cells(gates.numpy(), cell.numpy(), merged.numpy(), _limit(clip))


class SingleSentenceLstm:
    """One layer, one sentence at a time, to the bits of packed products. Its weights are a second copy."""

    def __init__(
        self,
        weights: PackedGates,
        kernels: Kernels,
        *,
        inputs: Product | None,
        states: Product,
        projection: Product | None,
    ) -> None:
        """Products are those that others go through: ``states`` adds what ``inputs`` give, or without them
        is over inputs and states in one row. ``InexactError``: the order of their sums was not found.
        """
        if kernels.precision != "float32":
            raise InexactError(f"compiled products are of float32, and these of {kernels.precision}")
        self._clips = _limit(weights.cell_clip), _limit(weights.state_clip)
        self._bias = weights.bias.float().numpy()
        n_in, n_states = weights.inputs.size(1), weights.states.size(1)
        self._is_continued = inputs is None
        if inputs is None:  # sums begin with the inputs: that part of all steps is one product
            inputs = kernels.product(weights.inputs)
            x, state = _random_rows(n_in), _random_rows(n_states)
            self._states = _Chained.like(
                states(torch.cat([x, state], dim=1)),
                weights.states, state, start=inputs(x), added=weights.bias.float().expand(2, -1),
            )  # fmt: skip
        else:
            state, added = _random_rows(n_states), _random_rows(len(weights.bias))
            self._states = _Chained.like(states(state, added), weights.states, state, added=added)
        self._inputs = inputs
        self._projection = _Chained(np.empty((0, 0, _ready().PANEL), np.float32), 1)  # none
        if weights.projection is not None and projection is not None:
            x = _random_rows(weights.projection.size(1))
            self._projection = _Chained.like(projection(x), weights.projection, x)

    def read(self, inputs: Tensor, *, hidden: Tensor, cell: Tensor, outputs: Tensor) -> None:
        """Fill ``outputs`` (time, width); ``hidden`` (width,) and ``cell`` (cell,) move on.

        ``inputs`` (row, width) are as many as a product takes, those of ``outputs`` first.
        """
        gates = self._inputs(inputs)
        _ready().read_lane(
            gates.numpy(), self._bias, self._is_continued, self._states.panels, self._states.length,
            self._projection.panels, self._projection.length, *self._clips,
            hidden.numpy(), cell.numpy(), outputs.numpy(),
        )  # fmt: skip


@dataclass(frozen=True)
class _Chained:
    """A weight (out, in) in panels, and how many inputs are added up in one chain of sums."""

    panels: NDArray[np.float32]
    length: int

    @classmethod
    def like(
        cls,
        expected: Tensor,
        weight: Tensor,
        x: Tensor,
        *,
        start: Tensor | None = None,
        added: Tensor | None = None,
    ) -> _Chained:
        """The length of chains with which start + weight · x + added has every bit of ``expected``."""
        panels = _panels(weight)
        nothing = torch.zeros_like(expected)
        rows = [x, nothing if start is None else start, nothing if added is None else added, expected]
        row, first, last, wanted = (part[0].numpy() for part in rows)
        found = np.empty_like(wanted)
        n_in = len(row)
        for length in dict.fromkeys(min(length, n_in) for length in (n_in, part_size(n_in), *_CHAINS)):
            _ready().product(panels, row, length, first, last, found)
            if np.array_equal(found, wanted):
                return cls(panels, length)
        raise InexactError(f"the order of sums is unknown for weights of {tuple(weight.shape)}")


def _panels(weight: Tensor) -> NDArray[np.float32]:
    """(out, in) to (panel, in, out of the panel), the last one filled up with zeros."""
    size = _ready().PANEL
    n_out, n_in = weight.shape
    n_whole = n_out // size
    panels = np.zeros((-(-n_out // size), n_in, size), np.float32)  # numpy asks for large pages
    into = torch.from_numpy(panels)
    into[:n_whole] = weight[: n_whole * size].view(n_whole, size, n_in).transpose(1, 2)
    if n_out > n_whole * size:
        into[n_whole, :, : n_out - n_whole * size] = weight[n_whole * size :].T
    return panels


def _limit(clip: float | None) -> float:
    return math.inf if clip is None else clip


def _random_rows(width: int) -> Tensor:
    """Two of them, as packed products are never of one."""
    return torch.randn(2, width, generator=torch.Generator().manual_seed(width))


def _ready() -> ModuleType:
    found = _loops()
    if isinstance(found, str):
        raise RuntimeError(f"compiled loops are not to be used here: {found}")
    return found


@functools.cache
def _loops() -> ModuleType | str:
    """The loops, compiled or read from numba's cache, or why there are none."""
    is_x86 = platform.machine().lower() in {"x86_64", "amd64"}
    if is_x86 and torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        return "this processor has no fused multiply-and-add"
    begin = time.perf_counter()
    try:
        import numba.core.errors  # pyright: ignore[reportMissingImports] -- an extra
    except ModuleNotFoundError:
        return "numba is not installed; to install it: pip install 'pyelmo[fast]'"
    except (ImportError, SystemError) as error:  # made for another version of NumPy, for instance
        return f"numba does not load here: {str(error).splitlines()[0]:.100}"
    try:
        from elmo.engine import compiled_loops
    except numba.core.errors.NumbaError as error:
        return f"numba does not compile here: {str(error).splitlines()[0]:.100}"
    seconds = time.perf_counter() - begin
    if seconds > _SLOW_SECONDS:
        _log.info("compiled loops for LSTM layers in %.1f s; numba keeps them for other processes", seconds)
    return compiled_loops


# Inputs and states of a step go through one product when its weights are few enough for a cache: that is
# faster for many lanes. Larger ones are read from memory, where a lone sentence should meet them once; eight
# bits are a quarter of that, and cost less to be rounded to once.
JOINED_BYTES = 1 << 23
# Sentences that come alone before weights are copied for them: the copy takes as long as some of them.
FEW_ALONE = 4


class FrozenLstm:
    """One layer of one direction, its weights as they were when it was made."""

    def __init__(self, lstm: ProjectedLstm, kernels: Kernels) -> None:
        self._kernels = kernels
        self._lstm = lstm
        self.not_compiled = missing(kernels)  # why gates are torch's own; None: compiled
        self.not_alone = self.not_compiled  # why sentences that come alone are read as others are, once known
        self._alone: SingleSentenceLstm | None = None
        self._n_alone = 0
        self._lock = threading.Lock()
        weights = PackedGates.of(lstm)
        self._cell_clip, self._state_clip = weights.cell_clip, weights.state_clip
        n_bytes = weights.inputs.nbytes + weights.states.nbytes
        self._is_joined = n_bytes <= JOINED_BYTES or kernels.precision == "int8"
        if self._is_joined:
            both = torch.cat([weights.inputs, weights.states], dim=1)
            self._states = kernels.product(both, weights.bias, with_tanh=self.not_compiled is not None)
        else:
            self._inputs = kernels.product(weights.inputs, weights.bias)
            self._states = kernels.product(weights.states)
        self._projection = None
        if weights.projection is not None:  # long sums, whose errors go into every token to come
            self._projection = kernels.fine_product(weights.projection)

    def read(self, inputs: Tensor, lanes: BatchSchedule, start: LstmState, *, outputs: Tensor) -> LstmState:
        """Fill ``outputs`` (token, width) as ``lanes`` has them; each sentence's last state is returned.

        ``inputs`` (token, width) go on behind the last token with rows of any finite content, as many as the
        products' fixed shapes reach into: ``BatchSchedule.n_rows``.
        """
        alone = self._for_one() if len(lanes.lengths) == 1 else None
        if alone is None:
            return self._read_lanes(inputs, lanes, start, outputs=outputs)
        hidden, cell = start.hidden[0].clone(), start.cell[0].clone()
        for steps, n_rows in lanes.blocks(self._kernels):
            first = steps.start
            alone.read(
                inputs[first : first + n_rows], hidden=hidden, cell=cell, outputs=outputs[first : steps.stop]
            )
        return LstmState(hidden[None], cell[None])

    def _read_lanes(self, inputs: Tensor, lanes: BatchSchedule, start: LstmState, *, outputs: Tensor) -> LstmState:
        kernels, n_in = self._kernels, inputs.size(1)
        n_lanes = kernels.rows(lanes.counts[0])
        both = inputs.new_zeros(n_lanes, n_in + start.hidden.size(1))  # what a token is, and what was before
        hidden, cell = both[:, n_in:], inputs.new_zeros(n_lanes, start.cell.size(1))
        for state, begun in ((hidden, start.hidden), (cell, start.cell)):
            state[: lanes.counts[0]] = begun[lanes.opening]
        merged = torch.empty_like(cell)
        last = LstmState(torch.empty_like(start.hidden), torch.empty_like(start.cell))
        counts, begins, switches = [*lanes.counts, 0], lanes.begins, lanes.switches
        input_gates, first = inputs, 0
        for steps, n_rows in lanes.blocks(kernels):
            if not self._is_joined:
                first = begins[steps.start]
                input_gates = self._inputs(inputs[first : first + n_rows])  # (row, 4 · cell)
            for step in steps:
                count, begin = counts[step], begins[step] - first
                n = kernels.rows(count)
                if n < len(cell):  # views, made when lanes fall away: that is seldom
                    both, hidden, cell, merged = both[:n], hidden[:n], cell[:n], merged[:n]
                if step in switches:
                    _change_over(switches[step], LstmState(hidden, cell), last=last, start=start)
                if self._is_joined:
                    both[:, :n_in] = inputs[begin : begin + n]
                    gates = self._states(both)
                else:
                    gates = self._states(hidden, input_gates[begin : begin + n])
                h = self._merge(gates, cell, merged)
                if self._projection is not None:
                    h = self._projection(h)
                    if self._state_clip is not None:
                        h.clamp_(-self._state_clip, self._state_clip)
                hidden.copy_(h)
                outputs[begins[step] : begins[step] + count] = h[:count]
                n_left = counts[step + 1]
                if n_left < count:  # lanes that end stand last
                    last.hidden[lanes.closing[n_left:count]] = h[n_left:count]
                    last.cell[lanes.closing[n_left:count]] = cell[n_left:count]
        return last

    def _merge(self, gates: Tensor, cell: Tensor, merged: Tensor) -> Tensor:
        """``cell`` (row, cell) moves on by ``gates`` (row, 4 · cell); o · tanh(c), in ``merged``."""
        if self.not_compiled is None:
            cells(gates, cell, merged=merged, clip=self._cell_clip)
            return merged
        if not self._is_joined:  # or else the product has done it
            gates.tanh_()
        n_cells = cell.size(1)
        gates[:, : 3 * n_cells].add_(1).mul_(0.5)
        i, f, o, j = gates.split(n_cells, dim=1)
        cell.mul_(f).add_(i.mul_(j))
        if self._cell_clip is not None:
            cell.clamp_(-self._cell_clip, self._cell_clip)
        return torch.tanh(cell, out=merged).mul_(o)

    def _for_one(self) -> SingleSentenceLstm | None:
        """What reads a sentence alone, prepared when some have come; None: it is read as others are."""
        if self._alone is not None or self.not_alone is not None:
            return self._alone
        with self._lock:  # of callers at the same time, one prepares it
            self._n_alone += 1
            if self._alone is None and self.not_alone is None and self._n_alone > FEW_ALONE:
                try:
                    self._alone = SingleSentenceLstm(
                        PackedGates.of(self._lstm),
                        self._kernels,
                        inputs=None if self._is_joined else self._inputs,
                        states=self._states,
                        projection=self._projection,
                    )
                except InexactError as error:
                    self.not_alone = str(error)
            return self._alone


def _change_over(switch: Switch, now: LstmState, *, last: LstmState, start: LstmState) -> None:
    """Keep what the sentences that ended have left, and let the next ones begin in their lanes."""
    for kept, state, fresh in zip(
        (last.hidden, last.cell), (now.hidden, now.cell), (start.hidden, start.cell), strict=True
    ):
        kept[switch.ended] = state[switch.lanes]
        state[switch.lanes] = fresh[switch.begun]


# Rows of a product come in multiples of 32, the floats that torch's vector loops take at a time. Fewer
# could leave a remainder to its scalar code, whose sigmoid differs from the vector code's in the last bit.
FIXED_ROWS = 32  # sentences in one LSTM step
STEPS = 8  # time steps whose input products are taken at once


def run_lstm_rows(
    lstm: ProjectedLstm, inputs: Tensor, lengths: list[int], start: LstmState
) -> tuple[Tensor, LstmState]:
    """What ``ProjectedLstm.forward`` computes, for rows of falling length, in products of fixed shape."""
    time, n_rows, width = inputs.shape
    outputs = inputs.new_zeros(time, n_rows, start.hidden.size(1))
    last = LstmState(start.hidden.clone(), start.cell.clone())
    state = LstmState(_padded(start.hidden, FIXED_ROWS), _padded(start.cell, FIXED_ROWS))
    block = inputs.new_zeros(STEPS, FIXED_ROWS, width)
    for begin in range(0, time, STEPS):
        size = min(STEPS, time - begin)
        block[:size, :n_rows] = inputs[begin : begin + size]
        rows = block.view(STEPS * FIXED_ROWS, width)
        gates = aligned_linear(rows, lstm.input_weight, lstm.bias).view(STEPS, FIXED_ROWS, -1)
        for t in range(begin, begin + size):
            state = lstm.step(gates[t - begin], state, linear=aligned_linear)
            n_true = _count_longer(lengths, t)
            outputs[t, :n_true] = state.hidden[:n_true]
            ending = slice(_count_longer(lengths, t + 1), n_true)  # at the tail of the true ones
            last.hidden[ending], last.cell[ending] = state.hidden[ending], state.cell[ending]
    return outputs, last


def _padded(rows: Tensor, n: int) -> Tensor:
    return F.pad(rows, (0, 0, 0, n - len(rows)))


def _count_longer(lengths: list[int], t: int) -> int:
    """How many rows of falling length still have a token at step ``t``."""
    n = len(lengths)
    while n and lengths[n - 1] <= t:
        n -= 1
    return n


def run_lstm_window(
    lstm: ProjectedLstm,
    inputs: Tensor,
    state: LstmState,
    *,
    state_weight: Tensor | None = None,
    starts: Tensor | None = None,
    has_bf16_products: bool = False,
    buffers: BufferPool = UNPOOLED,
) -> tuple[Tensor, LstmState]:
    """Read ``inputs`` (batch, time, width), all of them true tokens.

    Returns the states (batch, time, width) and each row's last state. ``state_weight`` stands in for the
    layer's own, for instance with some of its numbers dropped. The state is reset to zero before
    each token that ``starts`` (batch, time) marks. With ``has_bf16_products`` the factors of
    matrix products are rounded to bfloat16, and the products as well; sums over time, states and gradients of
    weights stay as they are. The results are laid out with time first: the next layer's fastest. With
    ``buffers`` of one's own, gradients may be taken once only: what they need is given back then.
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
        buffers=buffers,
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
    buffers: BufferPool
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
        gates = rules.buffers.take((time, batch, 4 * n_cells), inputs)
        write_matmul(gates.view(-1, 4 * n_cells), _flat(rules.factor(inputs)), rules.factor(input_weight).t())
        whole_bias = bias.clone()
        whole_bias[n_cells : 2 * n_cells] += rules.forget_bias
        by_cell, take = (time, batch, n_cells), rules.buffers.take
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
            add_matmul(gates[t].add_(whole_bias), rules.factor(starts[t]), recurrent)
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
                write_matmul(free_hiddens[t], rules.factor(merged[t]), down)
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
            rules.buffers.release(*ctx.borrowed)
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
        d_gates = rules.buffers.take(gates.shape, gates)
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
                write_matmul(d_merged, rules.factor(d_state), up)
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
            write_matmul(d_state, rules.factor(d_gates[t]), recurrent)
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
        rules.buffers.release(d_gates, *ctx.borrowed)
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
