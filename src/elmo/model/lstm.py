"""One LSTM layer with a projection and clipping, in one direction (Sak et al. 2014)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class LstmState:
    """The recurrent state of one LSTM layer.

    Attributes:
        hidden: Hidden state, (batch, width).
        cell: Cells, (batch, cell).
    """

    hidden: Tensor
    cell: Tensor


class ProjectedLstm(nn.Module):
    """An LSTM layer that clips its cells, projects its hidden state, and clips the projection.

    ``nn.LSTM`` has a projection but no clipping, so this module loops over time. The gates are in the order i,
    f, j, o, where j is the candidate. There is no projection if ``state_width`` equals ``cell_width``.

    Args:
        input_width: Width of the input.
        state_width: Width of the state and the output.
        cell_width: Number of cells.
        cell_clip: Largest absolute value of a cell; None does not clip.
        state_clip: Largest absolute value of the projected state; None does not clip.
        forget_bias: Number that is added to the input of the forget gate.

    Example:
        >>> lstm = ProjectedLstm(
        ...     input_width=4, state_width=4, cell_width=8, cell_clip=3.0, state_clip=3.0, forget_bias=1.0
        ... )
        >>> lstm.projection.shape
        torch.Size([4, 8])
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

    @property
    def state_widths(self) -> tuple[int, int]:
        """Widths of the hidden state and of the cell."""
        return self.state_weight.size(1), self.state_weight.size(0) // 4

    def forward(self, inputs: Tensor, mask: Tensor, state: LstmState) -> tuple[Tensor, LstmState]:
        """Read ``inputs`` (batch, time, width); tokens are skipped where ``mask`` (batch, time) is False.

        Returns the hidden states (batch, time, width), zero where masked, and the last state of each row.
        """
        input_gates = F.linear(inputs, self.input_weight, self.bias)  # (batch, time, 4 · cell)
        outputs: list[Tensor] = []
        for t in range(inputs.size(1)):
            new = self.step(input_gates[:, t], state)
            is_token = mask[:, t, None]  # (batch, 1)
            outputs.append(torch.where(is_token, new.hidden, 0))
            state = LstmState(
                torch.where(is_token, new.hidden, state.hidden), torch.where(is_token, new.cell, state.cell)
            )
        return torch.stack(outputs, dim=1), state

    def step(
        self, input_gates: Tensor, state: LstmState, *, linear: Callable[[Tensor, Tensor], Tensor] = F.linear
    ) -> LstmState:
        """Read one token per row and return the new state.

        ``input_gates`` (batch, 4 · cell) is W x + b of the token; ``linear`` computes x · Wᵀ.
        """
        gates = input_gates + linear(state.hidden, self.state_weight)  # (batch, 4 · cell)
        i, f, j, o = gates.chunk(4, dim=1)  # (batch, cell) each
        cell = (f + self.forget_bias).sigmoid() * state.cell + i.sigmoid() * j.tanh()
        if self.cell_clip is not None:
            cell = cell.clamp(-self.cell_clip, self.cell_clip)
        hidden = o.sigmoid() * cell.tanh()  # (batch, cell)
        if self.projection is not None:
            hidden = linear(hidden, self.projection)  # (batch, width)
            if self.state_clip is not None:  # as in TensorFlow, only a projected state is clipped
                hidden = hidden.clamp(-self.state_clip, self.state_clip)
        return LstmState(hidden, cell)
