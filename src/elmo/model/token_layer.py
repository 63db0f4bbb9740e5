"""The token layer: a context-independent vector for each token.

The vector is computed from the characters of the token (convolutions, max over positions, highway layers;
Kim et al. 2016), looked up by its word id, or both, and then projected to the width of the LSTM layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from elmo.errors import ShapeError


class TokenLayer(nn.Module):
    """[word vector; character features] → projection. Each of the three parts is optional."""

    def __init__(self, *, cnn: CharCnn | None, word_embed: nn.Embedding | None, projection: nn.Linear | None) -> None:
        super().__init__()
        self.cnn = cnn
        self.word_embed = word_embed
        self.projection = projection

    def forward(self, char_ids: Tensor | None, word_ids: Tensor | None) -> Tensor:
        """Map ``char_ids`` (…, char) and ``word_ids`` (…) to (…, width), for any leading axes."""
        parts: list[Tensor] = []
        if self.word_embed is not None:
            if word_ids is None:
                raise ShapeError("this model reads words: expected word_ids, found none")
            parts.append(self.word_embed(word_ids))  # (…, word_width)
        if self.cnn is not None:
            if char_ids is None:
                raise ShapeError("this model reads characters: expected char_ids, found none")
            features = self.cnn(char_ids.flatten(end_dim=-2))  # (token, filter)
            parts.append(features.unflatten(0, char_ids.shape[:-1]))  # (…, filter)
        x = torch.cat(parts, dim=-1)
        return x if self.projection is None else self.projection(x)


class CharCnn(nn.Module):
    """Convolutions of several widths over the characters of a token (Kim et al. 2016)."""

    def __init__(
        self,
        *,
        n_characters: int,
        char_width: int,
        filters: Sequence[tuple[int, int]],
        n_highway: int,
        activation: Literal["relu", "tanh"],
    ) -> None:
        """Build the network; ``filters`` lists (width in characters, number of filters)."""
        super().__init__()
        # Row 0 is the mask. The padding character is a different id with a learned vector that takes part in
        # the max: every token is convolved as if it had max_characters characters.
        self.char_embed = IdEmbedding(n_characters, char_width)
        self.convolutions = nn.ModuleList(nn.Conv1d(char_width, count, width) for width, count in filters)
        n_filters = sum(count for _, count in filters)
        self.highways = nn.ModuleList(Highway(n_filters) for _ in range(n_highway))
        self.activation = torch.relu if activation == "relu" else torch.tanh

    def forward(self, char_ids: Tensor) -> Tensor:
        """Map ``char_ids`` (token, char) to (token, filter)."""
        characters = self.char_embed(char_ids).transpose(1, 2)  # (token, char_width, char)
        pooled = [
            # As in bilm-tf, the activation follows the max. Both are monotone, so the order is free.
            self.activation(convolution(characters).amax(dim=2))
            for convolution in self.convolutions
        ]
        x = torch.cat(pooled, dim=1)  # (token, filter)
        for highway in self.highways:
            x = highway(x)
        return x


class Highway(nn.Module):
    """y = g · relu(W_t x + b_t) + (1 − g) · x, where g = σ(W_g x + b_g) (Srivastava et al. 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, -2.0)  # as in bilm-tf: at first, most of the input passes through

    def forward(self, x: Tensor) -> Tensor:
        """Map (token, width) to (token, width)."""
        gate = self.gate(x).sigmoid()
        return gate * self.transform(x).relu() + (1 - gate) * x


class IdEmbedding(nn.Embedding):
    """Vectors for the ids 1 … ``n_ids``; id 0 is the mask, whose vector stays zero."""

    def __init__(self, n_ids: int, width: int) -> None:
        super().__init__(n_ids + 1, width, padding_idx=0)

    def reset_parameters(self) -> None:
        """Initialize the weights, except on the meta device, where torch would import its compiler."""
        if not self.weight.is_meta:
            super().reset_parameters()
