"""The token layer, which computes a context-independent vector for each token.

The vector is computed from the characters of the token (convolutions, max over positions, highway layers;
Kim et al. 2016), or looked up by its word id, or both. It is then projected to the width of the layers above. The
transformer ELMo may project before the highway layers instead, and normalize the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from elmo.errors import ShapeError
from elmo.model.transformer import LayerNorm


class TokenLayer(nn.Module):
    """Concatenates the word vector and the character features of a token, and projects and normalizes the result.

    Each of the four parts is optional.

    Args:
        cnn: Network that reads characters.
        word_embed: Table of word vectors.
        projection: Projection to the width of the layers.
        norm: Layer norm of the result.

    Example:
        >>> ids = torch.from_numpy(elmo.batch([["The", "bank"]]).char_ids)
        >>> elmo.bilm.token_layer(ids, None).shape == (1, 4, elmo.width // 2)  # with the boundaries
        True
    """

    def __init__(
        self,
        *,
        cnn: CharCnn | None,
        word_embed: nn.Embedding | None,
        projection: nn.Linear | None,
        norm: LayerNorm | None = None,
    ) -> None:
        super().__init__()
        self.cnn = cnn
        self.word_embed = word_embed
        self.projection = projection
        self.norm = norm

    def forward(self, char_ids: Tensor | None, word_ids: Tensor | None) -> Tensor:
        """Compute token vectors (…, width) from ``char_ids`` (…, char) and ``word_ids`` (…)."""
        parts: list[Tensor] = []
        if self.word_embed is not None:
            if word_ids is None:
                raise ShapeError("word_ids must be passed to a model that reads words; found None")
            parts.append(self.word_embed(word_ids))  # (…, word_width)
        if self.cnn is not None:
            if char_ids is None:
                raise ShapeError("char_ids must be passed to a model that reads characters; found None")
            features = self.cnn(char_ids.flatten(end_dim=-2))  # (token, width)
            parts.append(features.unflatten(0, char_ids.shape[:-1]))  # (…, width)
        x = torch.cat(parts, dim=-1)
        if self.projection is not None:
            x = self.projection(x)
        return x if self.norm is None else self.norm(x)


class CharCnn(nn.Module):
    """Convolutions of several widths over the characters of a token (Kim et al. 2016).

    Args:
        n_characters: Number of character ids.
        char_width: Width of the character vectors.
        filters: Width in characters and number of filters of each convolution.
        n_highway: Number of highway layers.
        activation: Activation after the maximum.
        highway_width: Width of the highway layers, with a projection before them. Default: the number of filters,
            without one.

    Example:
        >>> cnn = elmo.bilm.token_layer.cnn
        >>> len(cnn.convolutions) == len(elmo.config.chars.filters)
        True
    """

    def __init__(
        self,
        *,
        n_characters: int,
        char_width: int,
        filters: Sequence[tuple[int, int]],
        n_highway: int,
        activation: Literal["relu", "tanh"],
        highway_width: int | None = None,
    ) -> None:
        """Build the network; ``filters`` is a list of (width in characters, number of filters)."""
        super().__init__()
        # Row 0 is the mask. The padding character has another id and a learned vector, and is not masked:
        # every token is convolved as if it had max_characters characters.
        self.char_embed = IdEmbedding(n_characters, char_width)
        self.convolutions = nn.ModuleList(nn.Conv1d(char_width, count, width) for width, count in filters)
        n_filters = sum(count for _, count in filters)
        self.projection = None if highway_width is None else nn.Linear(n_filters, highway_width)
        self.highways = nn.ModuleList(Highway(highway_width or n_filters) for _ in range(n_highway))
        self.activation = torch.relu if activation == "relu" else torch.tanh

    def forward(self, char_ids: Tensor) -> Tensor:
        """Compute features (token, width) from ``char_ids`` (token, char)."""
        characters = self.char_embed(char_ids).transpose(1, 2)  # (token, char_width, char)
        pooled = [
            # As in bilm-tf, the activation follows the max. It is monotone, so the order does not matter.
            self.activation(convolution(characters).amax(dim=2))
            for convolution in self.convolutions
        ]
        x = torch.cat(pooled, dim=1)  # (token, filter)
        if self.projection is not None:
            x = self.projection(x)
        for highway in self.highways:
            x = highway(x)
        return x


class Highway(nn.Module):
    """A highway layer (Srivastava et al. 2015): y = g · relu(W_t x + b_t) + (1 − g) · x, g = σ(W_g x + b_g).

    Args:
        width: Width of the input and the output.

    Example:
        >>> Highway(8)(torch.zeros(2, 8)).shape
        torch.Size([2, 8])
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, -2.0)  # as in bilm-tf: before training, most of the input passes through

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to ``x`` (token, width); the result has the same shape."""
        gate = self.gate(x).sigmoid()
        return gate * self.transform(x).relu() + (1 - gate) * x


class IdEmbedding(nn.Embedding):
    """An embedding table for the ids 1 to ``n_ids``; id 0 is the mask, and its vector stays zero."""

    def __init__(self, n_ids: int, width: int) -> None:
        super().__init__(n_ids + 1, width, padding_idx=0)

    def reset_parameters(self) -> None:
        """Initialize the weights; skip the meta device, on which torch would import its compiler."""
        if not self.weight.is_meta:
            super().reset_parameters()
