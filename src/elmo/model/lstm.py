"""One LSTM layer with a projection, one direction: vectors and a state in, vectors and a state out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class LstmState:
    """What an LSTM layer remembers of each row."""

    hidden: Tensor  # (batch, width)
    cell: Tensor  # (batch, cell)


class ProjectedLstm(nn.Module):
    """An LSTM whose cells are clipped and whose states are projected, then clipped (Sak et al. 2014).

    ``nn.LSTM`` projects but cannot clip, so the loop over time is our own. Gates are ordered i, f, j, o,
    where j is the candidate.
    """

    def __init__(
        self,
        *,
        input_width: int,
        state_width: int,
        cell_width: int,
        cell_clip: float | None,
        state_clip: float | None,
        forget_bias: float,
    ) -> None:
        super().__init__()
        self.cell_clip = cell_clip
        self.state_clip = state_clip
        self.forget_bias = forget_bias
        self.input_weight = nn.Parameter(torch.empty(4 * cell_width, input_width))
        self.state_weight = nn.Parameter(torch.empty(4 * cell_width, state_width))
        self.bias = nn.Parameter(torch.zeros(4 * cell_width))
        has_projection = state_width < cell_width
        self.projection = nn.Parameter(torch.empty(state_width, cell_width)) if has_projection else None
        for weight in (self.input_weight, self.state_weight, self.projection):
            if weight is not None:
                nn.init.xavier_uniform_(weight)

    def forward(self, inputs: Tensor, mask: Tensor, state: LstmState) -> tuple[Tensor, LstmState]:
        """Read ``inputs`` (batch, time, width); where ``mask`` (batch, time) is False nothing happens.

        Returns the states (batch, time, width), zero where masked, and each row's last state.
        """
        input_gates = F.linear(inputs, self.input_weight, self.bias)  # (batch, time, 4 · cell)
        outputs: list[Tensor] = []
        for t in range(inputs.size(1)):
            new = self.step(input_gates[:, t], state)
            is_true = mask[:, t, None]
            outputs.append(torch.where(is_true, new.hidden, 0))
            state = LstmState(
                torch.where(is_true, new.hidden, state.hidden),
                torch.where(is_true, new.cell, state.cell),
            )
        return torch.stack(outputs, dim=1), state

    def step(
        self, input_gates: Tensor, state: LstmState, *, linear: Callable[[Tensor, Tensor], Tensor] = F.linear
    ) -> LstmState:
        """One token: ``input_gates`` (batch, 4 · cell) already hold W x + b; ``linear`` is x · Wᵀ."""
        i, f, j, o = (input_gates + linear(state.hidden, self.state_weight)).chunk(4, dim=1)
        cell = (f + self.forget_bias).sigmoid() * state.cell + i.sigmoid() * j.tanh()
        if self.cell_clip is not None:
            cell = cell.clamp(-self.cell_clip, self.cell_clip)
        hidden = o.sigmoid() * cell.tanh()
        if self.projection is not None:
            hidden = linear(hidden, self.projection)
            if self.state_clip is not None:  # TensorFlow clips what it projects, and only that
                hidden = hidden.clamp(-self.state_clip, self.state_clip)
        return LstmState(hidden, cell)
