from __future__ import annotations

import pytest
import torch

from elmo.errors import ConfigError
from elmo.model.dropout import Dropout, dropout_mask


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
def test_the_rate_is_met_at_every_position(rate: float) -> None:
    torch.manual_seed(1)
    kept = dropout_mask((50_000, 8), rate, like=torch.zeros(()))
    by_position = (kept == 0).float().mean(dim=0)  # eight draws come from two numbers of 64 bits
    assert (by_position - rate).abs().max() < 5 * (rate * (1 - rate) / 50_000) ** 0.5
    assert kept.unique().numel() == 2
    assert kept.max().item() == pytest.approx(1 / (1 - rate), rel=1e-3)


def test_neighbors_are_dropped_independently() -> None:
    torch.manual_seed(2)
    is_dropped = (dropout_mask((400_000,), 0.5, like=torch.zeros(())) == 0).double()
    for lag in range(1, 9):
        pairs = torch.corrcoef(torch.stack([is_dropped[:-lag], is_dropped[lag:]]))
        assert abs(pairs[0, 1].item()) < 5 / 400_000**0.5


def test_the_mean_is_kept_and_gradients_flow_where_numbers_are_kept() -> None:
    torch.manual_seed(3)
    x = torch.ones(1000, 301, requires_grad=True)  # not a multiple of four
    dropped = Dropout(0.3)(x)
    assert dropped.mean().item() == pytest.approx(1, abs=0.01)
    dropped.sum().backward()
    assert torch.equal(x.grad, dropped.detach())  # pyright: ignore


def test_locked_units_are_the_same_at_every_time() -> None:
    torch.manual_seed(4)
    dropped = Dropout(0.5, is_locked=True)(torch.ones(6, 5, 40))
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert not torch.equal(dropped[0], dropped[1])


def test_nothing_is_dropped_in_eval_mode_or_at_rate_zero() -> None:
    x = torch.randn(3, 4)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_a_seed_gives_the_same_draws() -> None:
    masks = []
    for _ in range(2):
        torch.manual_seed(5)
        masks.append(dropout_mask((33,), 0.5, like=torch.zeros(())))
    assert torch.equal(*masks)


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_rate_out_of_range_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match=r"dropout must be at least 0 and below 1"):
        Dropout(rate)
