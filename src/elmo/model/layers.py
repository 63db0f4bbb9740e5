"""All layers of a biLM for a batch of sentences, with the mask that says which tokens are true."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layers:
    """Layer 0 is the token layer, doubled; layer l is [forward_l; backward_l]. Padding is zero."""

    states: Tensor  # (batch, layer, time, width)
    mask: Tensor  # (batch, time), True for true tokens, the boundaries among them
    has_boundaries: bool = True

    @property
    def lengths(self) -> Tensor:
        """True tokens of each sentence, (batch,)."""
        return self.mask.sum(dim=1)

    def without_boundaries(self) -> Layers:
        """The same sentences without the tokens that open and close them."""
        if not self.has_boundaries:
            return self
        mask = self.mask[:, 2:]  # a sentence of n tokens and two boundaries has n true tokens left
        states = torch.where(mask[:, None, :, None], self.states[:, :, 1:-1], 0)
        return Layers(states, mask, has_boundaries=False)
