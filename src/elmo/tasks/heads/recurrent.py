"""Padded sentences in, states of a bidirectional LSTM out; padding changes nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class LockedDropout(nn.Module):
    """Dropout that drops the same units at every time step of a sentence (Gal and Ghahramani 2016)."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        """Drop from (batch, time, width)."""
        if not self.training or self.share == 0.0:
            return x
        kept = torch.empty_like(x[:, :1]).bernoulli_(1 - self.share)  # (batch, 1, width)
        return x * (kept / (1 - self.share))


class BiLstm(nn.Module):
    """``n_layers`` of bidirectional LSTMs, ``width`` units a direction, dropout before each layer."""

    def __init__(self, input_width: int, width: int, *, n_layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = 2 * width  # of what comes out
        self.dropout = LockedDropout(dropout)
        widths = [input_width] + [2 * width] * (n_layers - 1)
        self.layers = nn.ModuleList(
            nn.LSTM(layer_width, width, batch_first=True, bidirectional=True) for layer_width in widths
        )
        for layer in self.layers:
            _start_well(layer)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """States (batch, time, 2 · width) of ``x`` (batch, time, width); zero where ``mask`` is false."""
        lengths = mask.sum(dim=1).clamp(min=1).cpu()
        for layer in self.layers:
            packed = pack_padded_sequence(self.dropout(x), lengths, batch_first=True, enforce_sorted=False)
            x, _ = pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=mask.size(1))
        return x


def _start_well(lstm: nn.Module) -> None:
    """Orthogonal recurrent weights, input weights after Glorot, a forget bias of 1."""
    for name, weights in lstm.named_parameters():
        if "weight_hh" in name:
            for gate in weights.data.chunk(4):
                nn.init.orthogonal_(gate)
        elif "weight_ih" in name:
            nn.init.xavier_uniform_(weights)
        else:
            nn.init.zeros_(weights)
            if "bias_ih" in name:
                weights.data.chunk(4)[1].fill_(1.0)
