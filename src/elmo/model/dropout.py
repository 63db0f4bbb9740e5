"""Vectors in, the same with some of their numbers dropped out (Srivastava et al. 2014).

On a processor torch draws a number in 32 bits for each one that may be dropped, which takes a tenth to a
quarter of a task's training. Here four are made of 64 bits: a share is met to 1/65536. (``train.dropout``
draws as torch does: it is a small part of a biLM's training, whose bytes must stay what they were.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from elmo.errors import ConfigError

_STEPS = 1 << 16  # of a draw
_DRAWS = 4  # of 64 bits


class Dropout(nn.Module):
    """Drops ``share`` of all numbers in training; the others grow, so that the mean stays as it was."""

    def __init__(self, share: float, *, is_locked: bool = False) -> None:
        """``is_locked``: of (batch, time, …) the same units at all times (Gal and Ghahramani 2016)."""
        super().__init__()
        if not 0.0 <= share < 1.0:
            raise ConfigError(f"dropout must lie in 0..1, below 1, found {share}")
        self.share = share
        self.is_locked = is_locked

    def forward(self, x: Tensor) -> Tensor:
        """``x`` of any shape, or (batch, time, …) where the units are locked."""
        if not self.training or self.share == 0.0:
            return x
        return x * kept_units(x[:, :1].shape if self.is_locked else x.shape, self.share, like=x)

    def extra_repr(self) -> str:
        """For those who print a network."""
        return f"{self.share}, is_locked={self.is_locked}"


def kept_units(shape: Sequence[int], share: float, *, like: Tensor) -> Tensor:
    """Zeros for ``share`` of the numbers, and for the rest what keeps the mean as it was."""
    if like.device.type != "cpu":
        kept = torch.empty(tuple(shape), device=like.device, dtype=like.dtype).bernoulli_(1 - share)
        return kept / (1 - share)
    n = torch.Size(shape).numel()
    bits = torch.empty(-(-n // _DRAWS), dtype=torch.int64, device=like.device)
    bits.random_(-(1 << 63), None)  # all 64 of them are drawn
    n_dropped = min(round(share * _STEPS), _STEPS - 1)
    is_kept = bits.view(torch.int16)[:n] >= n_dropped - _STEPS // 2
    return is_kept.to(like.dtype).mul_(_STEPS / (_STEPS - n_dropped)).view(tuple(shape))
