"""Ids in, a learned vector of each out; id 0 is the mask, and its vector stays zero.

Character ids in, one context-free vector per token out: convolutions, max over positions, highways.

Character and word ids in, the vectors that both LSTM stacks read out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from elmo.errors import ShapeError


class IdEmbedding(nn.Embedding):
    """``nn.Embedding`` that loads fast."""

    def __init__(self, n_ids: int, width: int) -> None:
        """Vectors for ids 1 … ``n_ids``, and the mask's."""
        super().__init__(n_ids + 1, width, padding_idx=0)

    def reset_parameters(self) -> None:
        """Random numbers, unless weights are still to come: torch imports its compiler to draw no numbers."""
        if not self.weight.is_meta:
            super().reset_parameters()


class Highway(nn.Module):
    """y = g · relu(W_t x + b_t) + (1 − g) · x, with g = σ(W_g x + b_g) (Srivastava et al. 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, -2.0)  # starts out passing its input on, as bilm-tf's does

    def forward(self, x: Tensor) -> Tensor:
        """Map (token, width) to (token, width)."""
        gate = self.gate(x).sigmoid()
        return gate * self.transform(x).relu() + (1 - gate) * x


class CharCnn(nn.Module):
    """Convolutions of several widths over a token's characters (Kim et al. 2016)."""

    def __init__(
        self,
        *,
        n_characters: int,
        char_width: int,
        filters: Sequence[tuple[int, int]],
        n_highway: int,
        activation: Literal["relu", "tanh"],
    ) -> None:
        super().__init__()
        # Row 0 is the mask. The padding *character* is another id and has a learned vector, which
        # takes part in the max: every token is convolved as if it had max_characters characters.
        self.char_embed = IdEmbedding(n_characters, char_width)
        self.convolutions = nn.ModuleList(nn.Conv1d(char_width, count, width) for width, count in filters)
        n_filters = sum(count for _, count in filters)
        self.highways = nn.ModuleList(Highway(n_filters) for _ in range(n_highway))
        self.activation = torch.relu if activation == "relu" else torch.tanh

    def forward(self, char_ids: Tensor) -> Tensor:
        """Map ``char_ids`` (token, char) to (token, width)."""
        characters = self.char_embed(char_ids).transpose(1, 2)  # (token, width, char)
        pooled = [
            # the activation follows the max; both are monotone, and bilm-tf does it in this order
            self.activation(convolution(characters).amax(dim=2))
            for convolution in self.convolutions
        ]
        x = torch.cat(pooled, dim=1)  # (token, width)
        for highway in self.highways:
            x = highway(x)
        return x


class TokenLayer(nn.Module):
    """[word vector; character features] → projection; either part, and the projection, may be absent."""

    def __init__(
        self, *, cnn: CharCnn | None, word_embed: nn.Embedding | None, projection: nn.Linear | None
    ) -> None:
        super().__init__()
        self.cnn = cnn
        self.word_embed = word_embed
        self.projection = projection

    def forward(self, char_ids: Tensor | None, word_ids: Tensor | None) -> Tensor:
        """Map ``char_ids`` (…, char) and ``word_ids`` (…) to (…, width), for any leading axes."""
        parts: list[Tensor] = []
        if self.word_embed is not None:
            if word_ids is None:
                raise ShapeError("this model reads words, but was given no word_ids")
            parts.append(self.word_embed(word_ids))
        if self.cnn is not None:
            if char_ids is None:
                raise ShapeError("this model reads characters, but was given no char_ids")
            features = self.cnn(char_ids.flatten(end_dim=-2))
            parts.append(features.unflatten(0, char_ids.shape[:-1]))
        x = torch.cat(parts, dim=-1)
        return x if self.projection is None else self.projection(x)
