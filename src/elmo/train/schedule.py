"""Options in, an optimiser and the learning rate of every step out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import nn

from elmo.errors import ConfigError, raise_all

Optimiser = Literal["adagrad", "adamw", "sgd"]
OPTIMISERS: tuple[Optimiser, ...] = get_args(Optimiser)
USUAL_RATES: dict[Optimiser, float] = {"adagrad": 0.2, "adamw": 0.001, "sgd": 1.0}


@dataclass(frozen=True)
class Optimisation:
    """How weights follow their gradients; the defaults are bilm-tf's published ones."""

    optimiser: Optimiser = "adagrad"
    learning_rate: float = 0.2
    warm_up_steps: int = 0  # the rate rises from zero over so many steps
    decay: Literal["none", "linear", "cosine"] = "none"  # from then on to ``final_rate``
    final_rate: float = 0.0  # where decay ends, as a share of the learning rate
    weight_decay: float = 0.0
    momentum: float = 0.0  # sgd's
    clip: float = 10.0  # of the gradients' norm, all weights together

    def __post_init__(self) -> None:
        problems = []
        if self.optimiser not in OPTIMISERS:
            problems.append(f"optimiser must be one of {', '.join(OPTIMISERS)}, not {self.optimiser!r:.40}")
        if self.decay not in ("none", "linear", "cosine"):
            problems.append(f"decay must be 'none', 'linear' or 'cosine', not {self.decay!r:.40}")
        for name in ("learning_rate", "clip"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                problems.append(f"{name} must be a positive number, not {value!r:.40}")
        for name in ("warm_up_steps", "weight_decay"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                problems.append(f"{name} must be zero or a positive number, not {value!r:.40}")
        if not 0 <= self.momentum < 1:
            problems.append(f"momentum must lie in 0..1, not {self.momentum!r:.40}")
        if not 0 <= self.final_rate <= 1:
            problems.append(f"final_rate must lie in 0..1, not {self.final_rate!r:.40}")
        if self.weight_decay and self.optimiser == "adagrad":
            problems.append("weight_decay goes with adamw and sgd, not with adagrad")
        if self.momentum and self.optimiser != "sgd":
            problems.append("momentum goes with sgd only")
        raise_all(problems, subject="optimisation", kind=ConfigError)

    def rate(self, step: int, n_steps: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warm_up_steps:
            return self.learning_rate * (step + 1) / self.warm_up_steps
        done = min(1.0, (step - self.warm_up_steps) / max(1, n_steps - self.warm_up_steps))
        left = {"none": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[self.decay]
        return self.learning_rate * (self.final_rate + (1 - self.final_rate) * left)

    def make(self, weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimiser of these weights; fused, so that each is read and written once."""
        rate, decay = self.learning_rate, self.weight_decay
        weights = list(weights)
        if self.optimiser == "adagrad":
            # bilm-tf's accumulator starts at 1
            is_cpu = all(weight.device.type == "cpu" for weight in weights)
            return torch.optim.Adagrad(weights, lr=rate, initial_accumulator_value=1.0, fused=is_cpu)
        if self.optimiser == "sgd":
            return torch.optim.SGD(weights, lr=rate, momentum=self.momentum, weight_decay=decay, fused=True)
        return torch.optim.AdamW(weights, lr=rate, weight_decay=decay, fused=True)
