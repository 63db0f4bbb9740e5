from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.config import BiLmConfig, parameter_shapes
from elmo.errors import ShapeError
from elmo.model.bilm import BiLm, BiLmState
from tests import oracle
from tests.model.options import CONFIGS, TRANSFORMERS, random_bilm, random_ids

LENGTHS = [5, 2, 3]
every_option = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
BOTH = CONFIGS | TRANSFORMERS
every_encoder = pytest.mark.parametrize("config", BOTH.values(), ids=BOTH.keys())


def arrays(bilm: BiLm) -> dict[str, np.ndarray]:
    return {name: weight.detach().numpy() for name, weight in bilm.state_dict().items()}


def oracle_tokens(config: BiLmConfig, w: dict[str, np.ndarray], ids: tuple, row: int, length: int) -> list[np.ndarray]:
    char_ids, word_ids = ids
    return [
        oracle.token_vector(
            config,
            w,
            characters=None if char_ids is None else char_ids[row, t].tolist(),
            word=None if word_ids is None else int(word_ids[row, t]),
        )
        for t in range(length)
    ]


def random_state(bilm: BiLm, batch: int) -> BiLmState:
    zero = bilm.zero_state(batch)
    generator = torch.Generator().manual_seed(3)
    hidden, cell = (torch.rand(x.shape, generator=generator, dtype=x.dtype) - 0.5 for x in (zero.hidden, zero.cell))
    return BiLmState(hidden, cell)


@every_encoder
def test_the_declared_parameters_match_the_network(config: BiLmConfig) -> None:
    state = BiLm.from_config(config).state_dict()
    assert {name: tuple(weight.shape) for name, weight in state.items()} == parameter_shapes(config)


@every_encoder
def test_layers_and_last_state_agree_with_the_oracle(config: BiLmConfig) -> None:
    bilm = random_bilm(config)
    ids = random_ids(config, LENGTHS)
    start = random_state(bilm, len(LENGTHS))
    with torch.no_grad():
        out = bilm(*ids, lengths=torch.tensor(LENGTHS), state=start)
    w = arrays(bilm)
    for row, length in enumerate(LENGTHS):
        expected, hidden, cell = oracle.layers(
            config,
            w,
            oracle_tokens(config, w, ids, row, length),
            hidden=start.hidden[:, :, row].numpy(),
            cell=start.cell[:, :, row].numpy(),
        )
        np.testing.assert_allclose(out.layers.states[row, :, :length], expected, rtol=0, atol=1e-10)
        np.testing.assert_allclose(out.state.hidden[:, :, row], hidden, rtol=0, atol=1e-10)
        np.testing.assert_allclose(out.state.cell[:, :, row], cell, rtol=0, atol=1e-10)
        assert not out.layers.states[row, :, length:].any()
        assert out.layers.mask[row].tolist() == [t < length for t in range(max(LENGTHS))]


@every_option
def test_the_random_weights_reach_the_clips(config: BiLmConfig) -> None:
    bilm = random_bilm(config)
    out = bilm(*random_ids(config, LENGTHS), lengths=torch.tensor(LENGTHS))
    if config.lstm.cell_clip is not None:
        assert (out.state.cell.abs() == config.lstm.cell_clip).any()
    if config.lstm.state_clip is not None and config.lstm.has_projection:
        assert (out.layers.states[:, 1].abs() == config.lstm.state_clip).any()


@pytest.mark.slow
@every_option
def test_gradients_agree_with_finite_differences(config: BiLmConfig) -> None:
    bilm = random_bilm(config)
    ids = random_ids(config, [3, 2])
    names = [name for name, _ in bilm.named_parameters()]

    def layers(*weights: torch.Tensor) -> torch.Tensor:
        out = torch.func.functional_call(
            bilm, dict(zip(names, weights, strict=True)), ids, {"lengths": torch.tensor([3, 2])}
        )
        return out.layers.states

    weights = tuple(weight.detach().clone().requires_grad_() for _, weight in bilm.named_parameters())
    # row 0 of the tables is padding: it gets no gradient, and no id refers to it
    assert torch.autograd.gradcheck(layers, weights, eps=1e-6, atol=1e-6, fast_mode=True)


@every_option
def test_gradients_agree_with_the_slope_of_the_oracle(config: BiLmConfig) -> None:
    bilm = random_bilm(config)
    ids = random_ids(config, [4])
    out = bilm(*ids, lengths=torch.tensor([4])).layers.states[0]
    generator = torch.Generator().manual_seed(7)
    direction = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    (out * direction).sum().backward()
    step = {n: torch.randn(p.shape, generator=generator, dtype=torch.float64) for n, p in bilm.named_parameters()}
    for name, change in step.items():
        if name.endswith("embed.weight"):
            change[0] = 0
    slope = sum(float((p.grad * step[n]).sum()) for n, p in bilm.named_parameters() if p.grad is not None)
    zero = bilm.zero_state(1)

    def value(epsilon: float) -> float:
        w = {n: a + epsilon * step[n].numpy() for n, a in arrays(bilm).items()}
        states, _, _ = oracle.layers(
            config,
            w,
            oracle_tokens(config, w, ids, 0, 4),
            hidden=zero.hidden[:, :, 0].numpy(),
            cell=zero.cell[:, :, 0].numpy(),
        )
        return float((states * direction.numpy()).sum())

    epsilon = 1e-7
    assert slope == pytest.approx((value(epsilon) - value(-epsilon)) / (2 * epsilon), rel=1e-5, abs=1e-5)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 5), st.randoms(use_true_random=False))
def test_padding_and_order_change_nothing(lengths: list[int], padding: int, generator) -> None:
    config = CONFIGS["2 layers, skip, relu, 1 highways"]
    bilm = random_bilm(config)
    char_ids, _ = random_ids(config, lengths)
    order = list(range(len(lengths)))
    generator.shuffle(order)
    widened = torch.nn.functional.pad(char_ids, (0, 0, 0, padding))[order]
    with torch.no_grad():
        plain = bilm(char_ids).layers.states
        moved = bilm(widened).layers.states
    for position, row in enumerate(order):
        torch.testing.assert_close(
            moved[position, :, : lengths[row]], plain[row, :, : lengths[row]], rtol=0, atol=1e-12
        )


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 7), st.data())
def test_a_forward_state_depends_on_no_later_word_and_a_backward_state_on_no_earlier_one(
    length: int, data: st.DataObject
) -> None:
    config = CONFIGS["3 layers, skip, relu, 1 highways"]
    bilm = random_bilm(config)
    at = data.draw(st.integers(0, length - 1))
    char_ids, _ = random_ids(config, [length])
    changed = char_ids.clone()
    changed[0, at] = changed[0, at].flip(0) % 261 + 1
    with torch.no_grad():
        before, after = bilm(char_ids).layers.states[0], bilm(changed).layers.states[0]
    half = before.size(-1) // 2
    assert torch.equal(before[1:, :at, :half], after[1:, :at, :half])
    assert torch.equal(before[1:, at + 1 :, half:], after[1:, at + 1 :, half:])
    assert not torch.equal(before[1:, at], after[1:, at])


def test_two_parts_with_the_state_passed_on_equal_the_whole_in_forward_direction() -> None:
    config = CONFIGS["2 layers, skip, relu, 1 highways"]
    bilm = random_bilm(config)
    char_ids, _ = random_ids(config, [7])
    with torch.no_grad():
        whole = bilm(char_ids).layers.states
        first = bilm(char_ids[:, :4])
        second = bilm(char_ids[:, 4:], state=first.state)
    half = whole.size(-1) // 2
    joined = torch.cat([first.layers.states, second.layers.states], dim=2)
    torch.testing.assert_close(joined[..., :half], whole[..., :half], rtol=0, atol=1e-12)


def test_a_frozen_bilm_gets_no_gradient_and_an_unfrozen_one_does() -> None:
    bilm = random_bilm(CONFIGS["2 layers, skip, relu, 1 highways"])
    char_ids, _ = random_ids(CONFIGS["2 layers, skip, relu, 1 highways"], [3])
    bilm.requires_grad_(False)
    assert not bilm(char_ids).layers.states.requires_grad
    bilm.requires_grad_(True)
    bilm(char_ids).layers.states.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in bilm.parameters())


def test_arrays_in_place_of_tensors_are_reported() -> None:
    bilm = random_bilm(CONFIGS["words"])
    _, word_ids = random_ids(CONFIGS["words"], [3, 2])
    with pytest.raises(
        ShapeError, match=r"word_ids must be a tensor, such as torch.as_tensor\(word_ids\); found ndarray"
    ):
        bilm(None, word_ids.numpy())  # pyright: ignore[reportArgumentType]
    with pytest.raises(ShapeError, match=r"lengths must be a tensor, .* found list"):
        bilm(None, word_ids, lengths=[3, 2])  # pyright: ignore[reportArgumentType]


def test_missing_ids_and_wrong_states_are_reported() -> None:
    config = CONFIGS["words"]
    bilm = random_bilm(config)
    _, word_ids = random_ids(config, [3, 2])
    with pytest.raises(ShapeError, match="pass char_ids, word_ids or both"):
        bilm()
    with pytest.raises(ShapeError, match="word_ids must be passed"):
        bilm(torch.ones(1, 2, 6, dtype=torch.long))
    with pytest.raises(ShapeError, match="2 layers and 2 rows; found 2 layers and 5 rows"):
        bilm(None, word_ids, state=bilm.zero_state(5))
    with pytest.raises(ShapeError, match="lengths must have shape"):
        bilm(None, word_ids, lengths=torch.tensor([3]))
