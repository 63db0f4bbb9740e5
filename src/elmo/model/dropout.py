"""Dropout for task models (Srivastava et al. 2014), with fewer random bits than torch uses.

On a CPU, torch draws 32 random bits per element, which takes 10 to 25 percent of the training time of a task.
This module draws 16 bits per element, so a rate is accurate to 1/65536. The training of a biLM
(``elmo.train``) uses torch's random numbers instead, because dropout takes little of its time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from elmo.errors import ConfigError

_LEVELS = 1 << 16  # number of values that a 16-bit draw can have
_DRAWS_PER_INT64 = 4


class Dropout(nn.Module):
    """Set a fraction ``rate`` of the elements to zero during training, and scale up the other elements.

    Example:
        >>> dropout = Dropout(0.5)
        >>> dropout.eval()(torch.ones(3))
        tensor([1., 1., 1.])
    """

    def __init__(self, rate: float, *, is_locked: bool = False) -> None:
        """Build the layer.

        Args:
            rate: Fraction of the elements to drop.
            is_locked: Drop the same units for all tokens of a row of the input (batch, time, …). This is also known
                as variational dropout (Gal and Ghahramani 2016).
        """
        super().__init__()
        if not 0.0 <= rate < 1.0:
            raise ConfigError(f"dropout must be at least 0 and below 1; found {rate}")
        self.rate = rate
        self.is_locked = is_locked

    def forward(self, x: Tensor) -> Tensor:
        """Apply dropout to ``x``, which has any shape, or (batch, time, …) if dropout is locked."""
        if not self.training or self.rate == 0.0:
            return x
        return x * dropout_mask(x[:, :1].shape if self.is_locked else x.shape, self.rate, like=x)

    def extra_repr(self) -> str:
        """Return the options to show in the ``repr`` of a network."""
        return f"{self.rate}, is_locked={self.is_locked}"


def dropout_mask(shape: Sequence[int], rate: float, *, like: Tensor) -> Tensor:
    """Draw a dropout mask: 0 for a fraction ``rate`` of the elements, and about 1 / (1 - rate) for the others.

    The expected value of a masked element stays the same. The mask has the dtype and the device of ``like``.
    """
    if like.device.type != "cpu":
        mask = torch.empty(tuple(shape), device=like.device, dtype=like.dtype).bernoulli_(1 - rate)
        return mask / (1 - rate)
    n = torch.Size(shape).numel()
    bits = torch.empty(-(-n // _DRAWS_PER_INT64), dtype=torch.int64, device=like.device)
    bits.random_(-(1 << 63), None)  # all 64 bits are random
    n_dropped = min(round(rate * _LEVELS), _LEVELS - 1)
    is_kept = bits.view(torch.int16)[:n] >= n_dropped - _LEVELS // 2
    return is_kept.to(like.dtype).mul_(_LEVELS / (_LEVELS - n_dropped)).view(tuple(shape))
