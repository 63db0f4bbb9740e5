from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elmo.engine.threads import BufferPool
from elmo.engine.token_layer import ROWS, run_highway
from elmo.model.token_layer import Highway


def layer_and_input(n_words: int, width: int = 6) -> tuple[Highway, Tensor]:
    torch.manual_seed(0)
    highway = Highway(width).double()
    for weight in highway.parameters():
        torch.nn.init.normal_(weight)
    return highway, torch.randn(n_words, width, dtype=torch.float64, requires_grad=True)


def gradients(y: Tensor, highway: Highway, x: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    return [*torch.autograd.grad((y * torch.randn_like(y)).sum(), [x, *highway.parameters()])]


@pytest.mark.parametrize("n_words", [0, 1, ROWS, ROWS + 1, 3 * ROWS - 1])
def test_values_and_gradients_are_the_references(n_words: int) -> None:
    highway, x = layer_and_input(n_words)
    buffers = BufferPool()
    for _ in range(3):  # the second time in memory that was used before
        y = run_highway(highway, x, buffers=buffers)
        torch.testing.assert_close(y, highway(x), rtol=0, atol=1e-12)
        expected = gradients(highway(x), highway, x)
        torch.testing.assert_close(gradients(y, highway, x), expected, rtol=0, atol=1e-12)


def test_gradients_are_those_of_small_differences() -> None:
    highway, x = layer_and_input(3)
    weights = tuple(highway.parameters())
    assert torch.autograd.gradcheck(lambda *_: run_highway(highway, x), (x, *weights), eps=1e-6, atol=1e-6)


def test_two_windows_may_be_read_before_the_gradients_of_the_first() -> None:
    highway, x = layer_and_input(5)
    buffers = BufferPool()
    first, second = run_highway(highway, x, buffers=buffers), run_highway(highway, 2 * x, buffers=buffers)
    expected = gradients(highway(x), highway, x), gradients(highway(2 * x), highway, x)
    found = gradients(first, highway, x), gradients(second, highway, x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_rounded_products_are_near_the_exact_ones() -> None:
    highway, x = layer_and_input(40, width=64)
    y = run_highway(highway.float(), x.float(), has_bf16_products=True)
    assert y.dtype == torch.float32
    assert 0 < (y - highway(x.float())).abs().mean() < 0.02
