from __future__ import annotations

import numpy as np
import pytest
import torch

from elmo.model.lstm import LstmState
from elmo.model.transformer import LayerNorm, TransformerLayer, encode_positions
from tests import oracle
from tests.model.options import TRANSFORMERS, random_bilm, random_ids

LENGTH = 5


@pytest.mark.parametrize("n_heads", [1, 2, 4])
def test_the_gradients_of_a_layer_are_those_of_the_oracle(n_heads: int) -> None:
    layer = TransformerLayer(width=8, n_heads=n_heads, feed_forward_width=6, is_last=False).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64) / 2)
    inputs, d_outputs = torch.randn(2, 1, LENGTH, 8, generator=generator, dtype=torch.float64)
    inputs.requires_grad_()
    state = LstmState(torch.zeros(1, 0), torch.zeros(1, 0))
    outputs, _ = layer(inputs, torch.ones(1, LENGTH, dtype=torch.bool), state)
    (outputs * d_outputs).sum().backward()

    w = {name: weight.detach().numpy() for name, weight in layer.named_parameters()}
    xs = list(inputs[0].detach().numpy())
    np.testing.assert_allclose(outputs[0].detach(), oracle.transformer_layer(n_heads, w, "", xs), rtol=0, atol=1e-10)
    d_inputs, gradients = oracle.transformer_layer_gradient(n_heads, w, "", xs, d_outputs[0].numpy())
    assert inputs.grad is not None
    np.testing.assert_allclose(inputs.grad[0], d_inputs, rtol=0, atol=1e-10)
    assert set(gradients) == set(w)
    for name, weight in layer.named_parameters():
        assert weight.grad is not None
        np.testing.assert_allclose(weight.grad, gradients[name], rtol=0, atol=1e-10, err_msg=name)


def test_the_gradients_of_the_norm_are_those_of_the_oracle() -> None:
    norm = LayerNorm(6).double()
    x, d_y = torch.randn(2, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x.requires_grad_()
    norm(x).backward(d_y)
    w = {name: weight.detach().numpy() for name, weight in norm.named_parameters()}
    d_x, gradients = oracle.normalize_gradient(w, "", x.detach().numpy(), d_y.numpy())
    assert x.grad is not None
    np.testing.assert_allclose(x.grad, d_x, rtol=0, atol=1e-10)
    for name, weight in norm.named_parameters():
        assert weight.grad is not None
        np.testing.assert_allclose(weight.grad, gradients[name], rtol=0, atol=1e-10)


def test_positions_are_those_of_the_oracle() -> None:
    encoded = encode_positions(300, like=torch.zeros(6, dtype=torch.float64))
    expected = [oracle.position(k, 6) for k in range(300)]
    np.testing.assert_allclose(encoded, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("config", TRANSFORMERS.values(), ids=TRANSFORMERS.keys())
def test_padding_and_other_sentences_change_nothing(config) -> None:
    bilm = random_bilm(config)
    lengths = [4, 2, 5]
    ids = random_ids(config, lengths)
    with torch.no_grad():
        together = bilm(*ids).layers.states
        for row, length in enumerate(lengths):
            alone = bilm(*(None if part is None else part[row : row + 1, :length] for part in ids)).layers.states[0]
            torch.testing.assert_close(together[row, :, :length], alone, rtol=0, atol=1e-12)


def test_a_forward_state_depends_on_no_later_word_and_a_backward_state_on_no_earlier_one() -> None:
    config = TRANSFORMERS["3 layers, 4 heads"]
    bilm = random_bilm(config)
    char_ids, _ = random_ids(config, [6])
    assert char_ids is not None
    for at in range(6):
        changed = char_ids.clone()
        changed[0, at] = changed[0, at].flip(0) % 261 + 1
        with torch.no_grad():
            before, after = bilm(char_ids).layers.states[0], bilm(changed).layers.states[0]
        half = before.size(-1) // 2
        torch.testing.assert_close(before[1:, :at, :half], after[1:, :at, :half], rtol=0, atol=1e-12)
        torch.testing.assert_close(before[1:, at + 1 :, half:], after[1:, at + 1 :, half:], rtol=0, atol=1e-12)
        assert not torch.equal(before[1:, at], after[1:, at])


def test_a_word_of_equal_values_has_a_finite_norm() -> None:
    norm = LayerNorm(4)
    assert torch.equal(norm(torch.full((1, 4), 3.0)), torch.zeros(1, 4))
