"""Options in, an optimiser and the learning rate of every step out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from elmo.errors import ConfigError, raise_all


@dataclass(frozen=True)
class Optimisation:
    """How weights follow their gradients; the defaults are bilm-tf's published ones."""

    optimiser: Literal["adagrad", "adamw"] = "adagrad"
    learning_rate: float = 0.2
    warm_up_steps: int = 0  # the rate rises from zero over so many steps
    decay: Literal["none", "linear", "cosine"] = "none"  # from then on to zero at the last step
    weight_decay: float = 0.0  # adamw's
    clip: float = 10.0  # of the gradients' norm, all weights together

    def __post_init__(self) -> None:
        problems = []
        if self.optimiser not in ("adagrad", "adamw"):
            problems.append(f"optimiser must be 'adagrad' or 'adamw', not {self.optimiser!r:.40}")
        if self.decay not in ("none", "linear", "cosine"):
            problems.append(f"decay must be 'none', 'linear' or 'cosine', not {self.decay!r:.40}")
        for name in ("learning_rate", "clip"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                problems.append(f"{name} must be a positive number, not {value!r:.40}")
        for name in ("warm_up_steps", "weight_decay"):
            if getattr(self, name) < 0:
                problems.append(f"{name} must not be negative, found {getattr(self, name)!r:.40}")
        if self.weight_decay and self.optimiser != "adamw":
            problems.append("weight_decay goes with adamw only")
        raise_all(problems, subject="optimisation", kind=ConfigError)

    def rate(self, step: int, n_steps: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warm_up_steps:
            return self.learning_rate * (step + 1) / self.warm_up_steps
        done = min(1.0, (step - self.warm_up_steps) / max(1, n_steps - self.warm_up_steps))
        if self.decay == "linear":
            return self.learning_rate * (1 - done)
        if self.decay == "cosine":
            return self.learning_rate * (1 + math.cos(math.pi * done)) / 2
        return self.learning_rate

    def make(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimiser of these weights."""
        if self.optimiser == "adagrad":
            # bilm-tf's accumulator starts at 1
            return torch.optim.Adagrad(parameters, lr=self.learning_rate, initial_accumulator_value=1.0)
        return torch.optim.AdamW(parameters, lr=self.learning_rate, weight_decay=self.weight_decay)
