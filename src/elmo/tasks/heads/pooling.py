"""States of a padded sentence in, one vector out; padding changes nothing.

Every sentence needs a word.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmo.tasks.heads.attention import masked_softmax


def masked_max(states: Tensor, mask: Tensor) -> Tensor:
    """The largest of each unit over the words: (batch, time, width) to (batch, width)."""
    return states.masked_fill(~mask.unsqueeze(-1), float("-inf")).amax(dim=1)


def masked_min(states: Tensor, mask: Tensor) -> Tensor:
    """The smallest of each unit over the words: (batch, time, width) to (batch, width)."""
    return states.masked_fill(~mask.unsqueeze(-1), float("inf")).amin(dim=1)


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """The mean of each unit over the words: (batch, time, width) to (batch, width)."""
    total = states.masked_fill(~mask.unsqueeze(-1), 0.0).sum(dim=1)
    return total / mask.sum(dim=1, keepdim=True)


class SelfAttentivePooling(nn.Module):
    """Σ_t β_t · x_t, where β = softmax(X v) and v is learned (McCann et al. 2017, section 5).

    The paper's bias is left out: it is the same for every word, so the softmax takes it away.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Pool ``states`` (batch, time, width) into (batch, width)."""
        weights = masked_softmax(self.score(states).squeeze(-1), mask)  # (batch, time)
        return torch.einsum("bt,btw->bw", weights, states.masked_fill(~mask.unsqueeze(-1), 0.0))
