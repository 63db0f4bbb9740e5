"""Character and word ids in, the vectors that both LSTM stacks read out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmo.errors import ShapeError
from elmo.model.char_cnn import CharCnn


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
