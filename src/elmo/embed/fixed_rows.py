"""Padded rows of vectors in, one LSTM layer's states out, in products of one fixed shape.

For those who have one layer at a time to read, and only here and there: nothing is prepared beforehand.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from elmo.embed.products import aligned_linear
from elmo.model.lstm import LstmState, ProjectedLstm

# Rows of a product come in multiples of 32, the floats that torch's vector loops take at a time. Fewer
# could leave a remainder to its scalar code, whose sigmoid differs from the vector code's in the last bit.
ROWS = 32  # sentences in one LSTM step
STEPS = 8  # time steps whose input products are taken at once


def read_layer(
    lstm: ProjectedLstm, inputs: Tensor, lengths: list[int], start: LstmState
) -> tuple[Tensor, LstmState]:
    """What ``ProjectedLstm.forward`` computes, for rows of falling length, in products of fixed shape."""
    time, n_rows, width = inputs.shape
    outputs = inputs.new_zeros(time, n_rows, start.hidden.size(1))
    last = LstmState(start.hidden.clone(), start.cell.clone())
    state = LstmState(_padded(start.hidden, ROWS), _padded(start.cell, ROWS))
    block = inputs.new_zeros(STEPS, ROWS, width)
    for begin in range(0, time, STEPS):
        size = min(STEPS, time - begin)
        block[:size, :n_rows] = inputs[begin : begin + size]
        rows = block.view(STEPS * ROWS, width)
        gates = aligned_linear(rows, lstm.input_weight, lstm.bias).view(STEPS, ROWS, -1)
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
