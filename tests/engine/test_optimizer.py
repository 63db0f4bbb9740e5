from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from elmo.engine.optimizer import OptimizerStep

CLIP = 5.0
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.01, weight_decay=0.1, fused=True),
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.1, initial_accumulator_value=1.0, fused=True),
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, fused=True),
}


def random_weights() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in ((2500, 64), (300,), (33, 7), (1,))]


def random_gradients(weights: list[nn.Parameter], seed: int) -> tuple[list[Tensor], Tensor]:
    """Gradients of all weights; that of the first weight is zero except in the returned rows."""
    generator = torch.Generator().manual_seed(seed)
    gradients = [torch.randn(weight.shape, generator=generator) for weight in weights]
    rows = torch.randperm(len(gradients[0]), generator=generator)[:700].sort().values
    sparse = torch.zeros_like(gradients[0])
    sparse[rows] = gradients[0][rows]
    return [sparse, *gradients[1:]], rows


@pytest.mark.parametrize("kernels", ["compiled", "torch"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_torch_and_leave_no_gradient(
    name: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels == "torch":
        monkeypatch.setenv("ELMO_KERNELS", "0")
    weights, expected = random_weights(), random_weights()
    optimizer, reference = OPTIMIZERS[name](weights), OPTIMIZERS[name](expected)
    step = OptimizerStep(optimizer)
    assert (step._library is not None) == (kernels == "compiled" and name != "sgd")
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    for k in range(20):
        gradients, rows = random_gradients(weights, k)
        for weight, other, gradient in zip(weights, expected, gradients, strict=True):
            assert weight.grad is not None
            weight.grad += gradient
            other.grad = gradient.clone()
        norm = step.compute_norm({weights[0]: rows})
        step.update({weights[0]: rows}, rate=0.01 * (k + 1), norm=norm, clip=CLIP)
        assert norm == pytest.approx(float(nn.utils.clip_grad_norm_(expected, CLIP)), rel=1e-6)
        for group in reference.param_groups:
            group["lr"] = 0.01 * (k + 1)
        reference.step()
        assert all(weight.grad is not None and not weight.grad.any() for weight in weights)
    step.close()
    for weight, other in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-4, atol=2e-5)
    state, other_state = optimizer.state_dict()["state"], reference.state_dict()["state"]
    for number, values in other_state.items():
        assert values.keys() == state[number].keys()
        for key, value in values.items():
            torch.testing.assert_close(state[number][key], value, rtol=1e-4, atol=1e-5)


def test_a_step_is_seen_by_code_that_watches_the_version_of_a_weight() -> None:
    weight = nn.Parameter(torch.randn(16, 16))
    weight.grad = torch.randn(16, 16)
    step = OptimizerStep(torch.optim.AdamW([weight], lr=0.1))
    before = weight._version
    step.update({}, rate=0.1, norm=1.0, clip=1.0)
    assert weight._version > before


def test_a_norm_that_is_not_finite_is_reported() -> None:
    weight = nn.Parameter(torch.randn(16, 16))
    weight.grad = torch.full((16, 16), torch.nan)
    assert OptimizerStep(torch.optim.AdamW([weight], lr=0.1)).compute_norm({}) != pytest.approx(0, nan_ok=False)
