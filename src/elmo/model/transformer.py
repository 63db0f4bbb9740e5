"""One layer of the transformer ELMo, in one direction (Peters et al. 2018b, Vaswani et al. 2017).

A layer takes the place of a ``ProjectedLstm``: it reads the tokens of a sentence in the order of its direction, and a
token attends to itself and to the tokens before it. It has no recurrent state; the position of a token is part of the
input of the first layer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from elmo.config import NORM_EPSILON
from elmo.model.lstm import LstmState


class TransformerLayer(nn.Module):
    """Self-attention and a feed-forward network. Each reads a normalized input and adds its output to the input.

    ``output_norm`` of the last layer normalizes the output of the stack.
    """

    def __init__(self, *, width: int, n_heads: int, feed_forward_width: int, is_last: bool) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.state_widths = 0, 0  # it has no recurrent state
        self.attention_norm = LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.context = nn.Linear(width, width)
        self.feed_forward_norm = LayerNorm(width)
        self.hidden = nn.Linear(width, feed_forward_width)
        self.output = nn.Linear(feed_forward_width, width)
        self.output_norm = LayerNorm(width) if is_last else None
        for linear in (self.query, self.key, self.value, self.context, self.hidden, self.output):
            nn.init.xavier_uniform_(linear.weight)

    def forward(self, inputs: Tensor, mask: Tensor, state: LstmState) -> tuple[Tensor, LstmState]:
        """Read ``inputs`` (batch, time, width); ``mask`` (batch, time) is False for padding, which follows the tokens.

        Returns the outputs (batch, time, width), zero where masked, and ``state``, which is empty.
        """
        x = inputs + self.attend(self.attention_norm(inputs))
        x = x + self.output(self.hidden(self.feed_forward_norm(x)).relu())
        if self.output_norm is not None:
            x = self.output_norm(x)
        return torch.where(mask[:, :, None], x, 0), state

    def attend(self, x: Tensor) -> Tensor:
        """Compute scaled dot-product attention to the same and earlier tokens of ``x`` (batch, time, width)."""
        query, key, value = (
            linear(x).unflatten(2, (self.n_heads, -1)).transpose(1, 2)  # (batch, head, time, head width)
            for linear in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(2, 3) / math.sqrt(query.size(3))  # (batch, head, time, time)
        time = x.size(1)
        is_later = torch.ones(time, time, dtype=torch.bool, device=x.device).triu(diagonal=1)
        shares = scores.masked_fill(is_later, -math.inf).softmax(dim=3)
        return self.context((shares @ value).transpose(1, 2).flatten(2))  # (batch, time, width)


class LayerNorm(nn.Module):
    """y = γ · (x − mean) / (deviation + ε) + β over the last axis; ``nn.LayerNorm`` adds ε to the variance instead."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))
        self.beta = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``x`` (…, width)."""
        mean = x.mean(dim=-1, keepdim=True)
        deviation = x.std(dim=-1, correction=0, keepdim=True)
        return self.gamma * (x - mean) / (deviation + NORM_EPSILON) + self.beta


def encode_positions(n_positions: int, *, like: Tensor) -> Tensor:
    """Compute sines and cosines of the positions 0 to n − 1, (position, width), with the width and type of ``like``.

    Both directions count from the start of the sentence. In float32, angles are rounded as in the table of AllenNLP,
    which ends at position 5,000.
    """
    width, dtype = like.size(-1), torch.float64 if like.dtype == torch.float64 else torch.float32
    positions = torch.arange(n_positions, device=like.device, dtype=dtype)[:, None]
    even = torch.arange(0, width, 2, device=like.device, dtype=dtype)
    rates = torch.exp(even * (-math.log(10000.0) / width))  # from 1 down to almost 1/10000
    angles = positions * rates  # (position, width / 2)
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1).to(like.dtype)
