from __future__ import annotations

import numpy as np
import pytest
import torch

from elmo.errors import ConfigError, ShapeError
from elmo.model.bilm import Layers
from elmo.model.mix import LayerMix, LayerMixes
from tests import oracle

LENGTHS = torch.tensor([6, 4])


def sentences() -> Layers:
    """Two sentences of four and two words between their boundaries; padding is zero."""
    states = torch.randn(2, 3, 6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.arange(6) < LENGTHS[:, None]
    return Layers(states * mask[:, None, :, None], mask)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("keep_boundaries", [False, True])
def test_the_mix_is_equation_1(layer_norm: bool, keep_boundaries: bool) -> None:
    w = [0.3, -1.0, 2.0]
    mix = LayerMix(3, weights=w, gamma=1.7, layer_norm=layer_norm, keep_boundaries=keep_boundaries).double()
    layers = sentences()
    mixed = mix(layers).detach()
    edge = 0 if keep_boundaries else 1
    for row, length in enumerate(LENGTHS.tolist()):
        inner = layers.states[row, :, edge : length - edge].numpy()
        expected = oracle.mix(inner, mix.w.detach().numpy(), float(mix.gamma.detach()), layer_norm=layer_norm)
        np.testing.assert_allclose(mixed[row, : length - 2 * edge], expected, rtol=0, atol=1e-10)
        assert not mixed[row, length - 2 * edge :].any()


def test_every_layer_starts_with_an_equal_share() -> None:
    layers = sentences()
    torch.testing.assert_close(LayerMix(3)(layers), layers.without_boundaries().states.mean(dim=1).to(torch.float64))


def test_gradients_of_the_mix_agree_with_finite_differences() -> None:
    layers = sentences()
    for layer_norm in (False, True):
        mix = LayerMix(3, weights=[0.1, 0.2, -0.3], gamma=0.5, layer_norm=layer_norm).double()

        def mixed(w: torch.Tensor, gamma: torch.Tensor, states: torch.Tensor, mix: LayerMix = mix) -> torch.Tensor:
            changed = Layers(states, layers.mask)
            return torch.func.functional_call(mix, {"w": w, "gamma": gamma}, (changed,))

        inputs = [x.detach().clone().requires_grad_() for x in (mix.w, mix.gamma, layers.states)]
        assert torch.autograd.gradcheck(mixed, inputs)


def test_layer_norm_of_a_sentence_does_not_depend_on_its_neighbors_in_the_batch() -> None:
    layers = sentences()
    mix = LayerMix(3, layer_norm=True).double()
    alone = mix(Layers(layers.states[1:, :, :4], layers.mask[1:, :4]))
    torch.testing.assert_close(mix(layers)[1:, :2], alone, rtol=0, atol=1e-14)


def test_a_fixed_mix_learns_nothing_and_a_top_mix_learns_only_gamma() -> None:
    assert not any(p.requires_grad for p in LayerMix(3, is_fixed=True).parameters())
    top = LayerMix(3, top_only=True)
    assert [name for name, p in top.named_parameters() if p.requires_grad] == ["gamma"]
    layers = sentences()
    torch.testing.assert_close(top(layers), layers.without_boundaries().states[:, -1])


def test_dropout_acts_in_training_only() -> None:
    layers, mix = sentences(), LayerMix(3, dropout=0.5)
    assert torch.equal(mix.eval()(layers), LayerMix(3)(layers))
    torch.manual_seed(0)
    dropped = mix.train()(layers)[0]
    assert 0.2 < (dropped == 0).double().mean() < 0.8


def test_several_mixes_have_separate_weights() -> None:
    layers = sentences()
    mixes = LayerMixes([LayerMix(3, weights=[9.0, -9.0, -9.0]), LayerMix(3, top_only=True, keep_boundaries=True)])
    first, second = mixes(layers)
    torch.testing.assert_close(first, layers.without_boundaries().states[:, 0], rtol=0, atol=1e-4)
    torch.testing.assert_close(second, layers.states[:, -1])
    assert len(list(mixes.parameters())) == 4


def test_wrong_options_and_shapes_are_reported() -> None:
    with pytest.raises(ShapeError, match="this mix must have 2 layers; found 3"):
        LayerMix(2)(sentences())
    with pytest.raises(ConfigError, match="weights must have 3 values, one per layer; found 2"):
        LayerMix(3, weights=[0.0, 1.0])
    with pytest.raises(ConfigError, match="either top_only or weights"):
        LayerMix(3, weights=[0.0, 1.0, 2.0], top_only=True)
    with pytest.raises(ConfigError, match=r"dropout must be at least 0 and below 1"):
        LayerMix(3, dropout=1.5)
    with pytest.raises(ConfigError, match="at least one LayerMix"):
        LayerMixes([])
