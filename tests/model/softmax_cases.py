"""Softmax layers, states and samples for tests of the reference and of the engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from elmo.model.softmax import Samples, Softmax
from tests import oracle

N_WORDS, WIDTH = 23, 5

all_samples = pytest.mark.parametrize(
    ("ids", "n_tries"),
    [([0, 1, 4, 9, 17], 12), ([0, 1, 4, 9, 17], 5), ([0, 0, 0, 1, 4, 4, 22], 7), ([3], 1)],
    ids=["distinct", "distinct without a rejection", "repeated", "single"],
)


def random_softmax(n_words: int = N_WORDS, width: int = WIDTH, **options) -> Softmax:
    softmax = Softmax(n_words=n_words, width=width, **options).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        softmax.bias.normal_(generator=generator)
        if softmax.weight is not None:
            softmax.weight.normal_(generator=generator)
    return softmax


def random_tokens(n: int, *, n_words: int = N_WORDS, width: int = WIDTH) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    states = torch.randn(n, width, generator=generator, dtype=torch.float64).requires_grad_()
    return states, torch.randint(0, n_words, (n,), generator=generator)


class EqualCounts(Samples):
    """Samples whose words all have the expected count 1."""

    def log_expected(self, ids: Tensor) -> Tensor:
        return torch.zeros(len(ids), dtype=torch.float64)


def check_against_oracle(
    loss: Tensor, softmax: Softmax, states: Tensor, targets: Tensor, samples: Samples | None = None
) -> None:
    """Compare a loss and its gradients with the equations in NumPy."""
    assert softmax.weight is not None
    arrays = (x.detach().numpy() for x in (states, softmax.weight, softmax.bias))
    if samples is None:
        value, gradient = oracle.softmax_loss(*arrays, targets.tolist())
    else:
        value, gradient = oracle.sampled_softmax_loss(*arrays, targets.tolist(), samples.ids.tolist(), samples.n_tries)
    assert loss.item() == pytest.approx(value, rel=0, abs=1e-10)
    (3 * loss).backward()  # a loss is rarely the end of a graph
    for name, x in (("states", states), ("weight", softmax.weight), ("bias", softmax.bias)):
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.to_dense() / 3, gradient[name], rtol=0, atol=1e-10, err_msg=name)
