"""A module in, whether its weights have changed since out: quick enough to ask before every call."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_SAMPLES = 16  # numbers of each weight that are compared


class WeightWatch:
    """What the weights were: which memory, how often written to, and a few of the numbers in it.

    torch counts writes to a tensor, but not those that go through ``weight.data`` or numpy; an optimizer that
    writes there changes all of a weight, so a few numbers tell.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._stamps = _stamps(module)
        with torch.inference_mode(False), torch.no_grad():
            weights = [weight.detach().flatten() for weight in module.parameters()]
            self._samples = [weight[:: max(1, len(weight) // _SAMPLES)] for weight in weights]
            self._were = torch.cat(self._samples)

    def is_unchanged(self) -> bool:
        """Whether the weights are what they were when this watch was made."""
        if _stamps(self._module) != self._stamps:
            return False
        with torch.no_grad():
            return torch.equal(torch.cat(self._samples), self._were)


def _stamps(module: nn.Module) -> list[tuple[int, int]]:
    return [(weight.data_ptr(), _version(weight)) for weight in module.parameters()]


def _version(weight: Tensor) -> int:
    return -1 if weight.is_inference() else weight._version
