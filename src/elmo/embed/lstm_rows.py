"""Vectors in lanes in, one LSTM layer's states out: ``model.lstm.ProjectedLstm``, fast.

Gates and cells are torch's, or by ``compiled`` loops where those are at hand; these also read a sentence that
comes alone, to the same bits.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from elmo.embed import compiled
from elmo.embed.gate_weights import GateWeights
from elmo.embed.kernels import Kernels
from elmo.embed.lanes import Lanes, Switch
from elmo.embed.products import InexactError
from elmo.model.lstm import LstmState, ProjectedLstm

# Inputs and states of a step go through one product when its weights are few enough for a cache: that is
# faster for many lanes. Larger ones are read from memory, where a lone sentence should meet them once; eight
# bits are a quarter of that, and cost less to be rounded to once.
JOINED_BYTES = 1 << 23
# Sentences that come alone before weights are copied for them: the copy takes as long as some of them.
FEW_ALONE = 4


class LstmRows:
    """One layer of one direction, its weights as they were when it was made."""

    def __init__(self, lstm: ProjectedLstm, kernels: Kernels) -> None:
        self._kernels = kernels
        self._lstm = lstm
        self.not_compiled = compiled.missing(kernels)  # why gates are torch's own; None: compiled
        self.not_alone = self.not_compiled  # why sentences that come alone are read as others are, once known
        self._alone: compiled.LoneLstm | None = None
        self._n_alone = 0
        self._lock = threading.Lock()
        weights = GateWeights.of(lstm)
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

    def read(self, inputs: Tensor, lanes: Lanes, start: LstmState, *, outputs: Tensor) -> LstmState:
        """Fill ``outputs`` (token, width) as ``lanes`` has them; each sentence's last state is returned.

        ``inputs`` (token, width) go on behind the last token with rows of any finite content, as many as the
        products' fixed shapes reach into: ``Lanes.n_rows``.
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

    def _read_lanes(self, inputs: Tensor, lanes: Lanes, start: LstmState, *, outputs: Tensor) -> LstmState:
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
            compiled.cells(gates, cell, merged=merged, clip=self._cell_clip)
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

    def _for_one(self) -> compiled.LoneLstm | None:
        """What reads a sentence alone, prepared when some have come; None: it is read as others are."""
        if self._alone is not None or self.not_alone is not None:
            return self._alone
        with self._lock:  # of callers at the same time, one prepares it
            self._n_alone += 1
            if self._alone is None and self.not_alone is None and self._n_alone > FEW_ALONE:
                try:
                    self._alone = compiled.LoneLstm(
                        GateWeights.of(self._lstm),
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
