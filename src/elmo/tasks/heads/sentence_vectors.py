"""What a head is given: the vectors of a batch of sentences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
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


@dataclass(frozen=True)
class SentenceGroups:
    """A document's sentences in groups of like length, each padded for itself."""

    groups: tuple[SentenceVectors, ...]
    places: Tensor  # (sentence,): where each stands in the groups, counted through all of them

    @property
    def lengths(self) -> Tensor:
        """Words of each sentence, in the document's order, (sentence,)."""
        return torch.cat([group.lengths for group in self.groups])[self.places]

    @property
    def words(self) -> Tensor:
        """Where each word of the document stands among the words of all groups, (token,)."""
        grouped = torch.cat([group.lengths for group in self.groups])  # (sentence,), as the groups have them
        lengths = grouped[self.places]
        begins = (grouped.cumsum(0) - grouped)[self.places]  # of a sentence, in the groups
        moves = begins - (lengths.cumsum(0) - lengths)  # from the document to the groups
        return torch.arange(int(lengths.sum()), device=lengths.device) + moves.repeat_interleave(lengths)
