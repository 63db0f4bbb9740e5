"""What training leaves out, and how: rates in, vectors and weights with some of their numbers dropped out."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from elmo.errors import ConfigError, raise_all


@dataclass(frozen=True)
class Dropout:
    """Rates; the defaults are bilm-tf's published ones. Small corpora want more, of every kind."""

    layers: float = 0.1  # of what each LSTM layer and the softmax read
    inputs: float | None = None  # of what the first layer reads; None: as ``layers``
    outputs: float | None = None  # of what the softmax reads; None: as ``layers``
    words: float = 0.0  # whole words, wherever they stand in a window (Gal & Ghahramani 2016)
    weights: float = 0.0  # of the state-to-state weights: weight-drop (Merity et al. 2018)
    is_variational: bool = False  # the same dimensions for all tokens of a row's window, not anew for each

    def __post_init__(self) -> None:
        problems = [
            f"{name} must lie in 0..1, not {rate!r:.40}"
            for name in ("layers", "inputs", "outputs", "words", "weights")
            if (rate := getattr(self, name)) is not None and not 0 <= rate < 1
        ]
        raise_all(problems, subject="dropout", kind=ConfigError)

    @property
    def is_off(self) -> bool:
        """Whether nothing is left out."""
        return not any(getattr(self, field.name) for field in fields(self) if field.name != "is_variational")

    def at_layer(self, index: int) -> float:
        """The rate of what a layer reads."""
        return self.inputs if index == 0 and self.inputs is not None else self.layers

    @property
    def at_softmax(self) -> float:
        """The rate of what the softmax reads."""
        return self.layers if self.outputs is None else self.outputs

    def of_vectors(self, x: Tensor, rate: float, generator: torch.Generator) -> Tensor:
        """``x`` (batch, time, width), a share of its numbers zero and the rest raised to make up for it."""
        if not rate:
            return x
        like = x[:, :1] if self.is_variational else x
        return x * _mask(like, rate, generator)

    def of_rows(self, table: Tensor, generator: torch.Generator) -> Tensor:
        """``table`` (word, width) without a share of its rows."""
        return table * _mask(table[:, :1], self.words, generator) if self.words else table

    def of_weights(self, weight: Tensor, generator: torch.Generator) -> Tensor:
        """A state-to-state weight without a share of its numbers."""
        return weight * _mask(weight, self.weights, generator) if self.weights else weight


def _mask(like: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    # drawn where the generator lives, in the layout of what it is multiplied with
    mask = torch.empty_like(like, device=generator.device).bernoulli_(1 - rate, generator=generator)
    return mask.div_(1 - rate).to(like.device)
