"""Ids in, a learned vector of each out; id 0 is the mask, and its vector stays zero."""

from __future__ import annotations

from torch import nn


class IdEmbedding(nn.Embedding):
    """``nn.Embedding`` that loads fast."""

    def __init__(self, n_ids: int, width: int) -> None:
        """Vectors for ids 1 … ``n_ids``, and the mask's."""
        super().__init__(n_ids + 1, width, padding_idx=0)

    def reset_parameters(self) -> None:
        """Random numbers, unless weights are still to come: torch imports its compiler to draw no numbers."""
        if not self.weight.is_meta:
            super().reset_parameters()
