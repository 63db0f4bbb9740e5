"""What a head is given: the vectors of a batch of sentences."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Widths:
    """How wide the vectors of the input are, and those that join the output (0: none do)."""

    inputs: int
    outputs: int = 0


@dataclass(frozen=True)
class SentenceVectors:
    """Padded sentences: [x; ELMo] for the input and, where a task wants it, ELMo for the output."""

    inputs: Tensor  # (batch, time, width)
    mask: Tensor  # (batch, time), true for words
    outputs: Tensor | None = None  # (batch, time, width), mixed with weights of its own

    @property
    def lengths(self) -> Tensor:
        """Words of each sentence, (batch,)."""
        return self.mask.sum(dim=1)
