"""The highway LSTM."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.model.dropout import dropout_mask
from elmo.tasks.heads.highway_lstm import HighwayLstm, HighwayLstmLayer

Array = NDArray[np.float64]
LENGTHS = (5, 1, 3)


def build_stack(*, n_layers: int = 3, dropout: float = 0.0) -> HighwayLstm:
    torch.manual_seed(1)
    stack = HighwayLstm(4, 3, n_layers=n_layers, dropout=dropout).double()
    for weights in stack.parameters():
        torch.nn.init.normal_(weights, std=0.7)
    return stack


def build_batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    return torch.randn(len(LENGTHS), max(LENGTHS), 4, dtype=torch.float64), mask


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def slow_layer(layer: HighwayLstmLayer, x: Array, *, is_backward: bool, kept: Array | float = 1.0) -> Array:
    """He et al. 2017, equations 1 to 7, for one sentence (time, width), one gate at a time."""
    w, u = (one.detach().numpy() for one in (layer.input_weight, layer.state_weight))
    w_c, w_i, w_f, w_o, w_r, w_h = np.split(w, 6)
    u_c, u_i, u_f, u_o, u_r = np.split(u, 5)
    b_c, b_i, b_f, b_o, b_r = np.split(layer.bias.detach().numpy(), 5)
    h = c = np.zeros(layer.width)
    states = np.zeros((len(x), layer.width))
    for t in reversed(range(len(x))) if is_backward else range(len(x)):
        i = sigmoid(w_i @ x[t] + u_i @ h + b_i)
        o = sigmoid(w_o @ x[t] + u_o @ h + b_o)
        f = sigmoid(w_f @ x[t] + u_f @ h + b_f)
        candidate = np.tanh(w_c @ x[t] + u_c @ h + b_c)
        r = sigmoid(w_r @ x[t] + u_r @ h + b_r)
        c = i * candidate + f * c
        h = (r * (o * np.tanh(c)) + (1 - r) * (w_h @ x[t])) * kept
        states[t] = h
    return states


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_a_stack_agrees_with_the_equations(n_layers: int) -> None:
    stack = build_stack(n_layers=n_layers)
    x, mask = build_batch()
    found = stack(x, mask)
    for k, length in enumerate(LENGTHS):
        states = x[k, :length].numpy()
        for number, layer in enumerate(stack.layers):
            assert isinstance(layer, HighwayLstmLayer)
            states = slow_layer(layer, states, is_backward=number % 2 == 1)
        np.testing.assert_allclose(found[k, :length].detach().numpy(), states, rtol=0, atol=1e-12)
        assert not found[k, length:].any()


def test_dropout_drops_the_same_units_at_every_word() -> None:
    layer = HighwayLstmLayer(4, 3, dropout=0.5).double()
    x, _ = build_batch()
    torch.manual_seed(11)
    found = layer(x.transpose(0, 1)).detach().numpy()  # (time, batch, width)
    torch.manual_seed(11)
    kept = dropout_mask((3, 3), 0.5, like=x).numpy()
    assert 0 < (kept == 0).sum() < 9
    for k in range(3):
        expected = slow_layer(layer, x[k].numpy(), is_backward=False, kept=kept[k])
        np.testing.assert_allclose(found[:, k], expected, rtol=0, atol=1e-12)


def test_padding_changes_neither_states_nor_gradients() -> None:
    stack = build_stack()
    x, mask = build_batch()
    x.requires_grad_()
    found = stack(x, mask)
    together = torch.autograd.grad(found.square().sum(), [x, *stack.parameters()])
    alone = [torch.zeros_like(one) for one in together]
    for k, length in enumerate(LENGTHS):
        one = slice(k, k + 1)
        states = stack(x[one, :length], mask[one, :length])
        torch.testing.assert_close(states[0], found[k, :length], rtol=0, atol=1e-12)
        parts = torch.autograd.grad(states.square().sum(), [x, *stack.parameters()])
        alone = [total + part for total, part in zip(alone, parts, strict=True)]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradients_agree_with_finite_differences(dropout: float) -> None:
    stack = build_stack(n_layers=2, dropout=dropout)
    x, mask = build_batch()
    names = [name for name, _ in stack.named_parameters()]

    def states(x: Tensor, *weights: Tensor) -> Tensor:
        torch.manual_seed(5)  # drop the same units each time
        return torch.func.functional_call(stack, dict(zip(names, weights, strict=True)), (x, mask))

    weights = [one.detach().requires_grad_() for one in stack.parameters()]
    assert torch.autograd.gradcheck(states, (x.requires_grad_(), *weights), fast_mode=True)


def test_eval_mode_drops_nothing() -> None:
    x, mask = build_batch()
    without = build_stack(dropout=0.0)(x, mask)
    dropping = build_stack(dropout=0.5)
    assert not torch.allclose(dropping(x, mask), without)
    assert torch.equal(dropping.eval()(x, mask), without)


def test_gradients_can_be_computed_twice() -> None:
    stack = build_stack()
    x, mask = build_batch()
    loss = stack(x, mask).square().sum()
    weights = list(stack.parameters())
    first = torch.autograd.grad(loss, weights, retain_graph=True)
    again = torch.autograd.grad(loss, weights)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
