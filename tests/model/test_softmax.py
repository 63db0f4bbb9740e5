from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from elmo.errors import ConfigError, ShapeError
from elmo.model import softmax as module
from elmo.model.softmax import AdaptiveSoftmax, LogUniformSampler, Samples, Softmax
from tests import oracle

N_WORDS, WIDTH = 23, 5


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


class Watch(TorchFunctionMode):
    """Names and sizes of all that torch computes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.sizes: list[int] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.names.append(func.__name__)
            self.sizes.append(result.numel())
        return result


def check(loss: Tensor, softmax: Softmax, states: Tensor, expected: tuple[float, dict]) -> None:
    value, gradient = expected
    assert loss.item() == pytest.approx(value, rel=0, abs=1e-10)
    (3 * loss).backward()  # a loss is rarely the end of a graph
    for name, x in (("states", states), ("weight", softmax.weight), ("bias", softmax.bias)):
        assert x is not None
        assert x.grad is not None
        grad = x.grad.to_dense() / 3
        np.testing.assert_allclose(grad, gradient[name], rtol=0, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("n", [1, 7, 300])  # within a chunk, and over several with a part of one left
def test_the_full_loss_and_its_gradients_agree_with_the_oracle(n: int) -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(n)
    assert softmax.weight is not None
    expected = oracle.softmax_loss(
        states.detach().numpy(),
        softmax.weight.detach().numpy(),
        softmax.bias.detach().numpy(),
        targets.tolist(),
    )
    check(softmax(states, targets), softmax, states, expected)


@pytest.mark.parametrize("n", [1, 7, 300])
@pytest.mark.parametrize(
    ("ids", "n_tries"),
    [([0, 1, 4, 9, 17], 12), ([0, 1, 4, 9, 17], 5), ([0, 0, 0, 1, 4, 4, 22], 7), ([3], 1)],
    ids=["distinct", "distinct at once", "repeated", "one"],
)
@pytest.mark.parametrize("has_sparse_gradient", [False, True])
def test_the_sampled_loss_and_its_gradients_agree_with_the_oracle(
    n: int, ids: list[int], n_tries: int, has_sparse_gradient: bool
) -> None:
    softmax, (states, targets) = (
        random_softmax(has_sparse_gradient=has_sparse_gradient),
        random_tokens(n),
    )
    assert softmax.weight is not None
    expected = oracle.sampled_softmax_loss(
        states.detach().numpy(),
        softmax.weight.detach().numpy(),
        softmax.bias.detach().numpy(),
        targets.tolist(),
        ids,
        n_tries,
    )
    loss = softmax.sampled(states, targets, Samples(torch.tensor(ids), n_tries, N_WORDS))
    check(loss, softmax, states, expected)
    assert softmax.weight.grad is not None
    assert softmax.weight.grad.is_sparse == has_sparse_gradient


def test_a_token_whose_only_sample_is_its_own_target_loses_nothing() -> None:
    softmax, (states, _) = random_softmax(), random_tokens(2)
    loss = softmax.sampled(states, torch.tensor([3, 3]), Samples(torch.tensor([3]), 1, N_WORDS))
    loss.backward()
    assert loss.item() == 0
    assert states.grad is not None
    assert not states.grad.any()


def test_sampling_every_word_with_equal_counts_is_the_full_softmax() -> None:
    class Certain(Samples):
        def log_expected(self, ids: Tensor) -> Tensor:
            return torch.zeros(len(ids), dtype=torch.float64)

    softmax, (states, targets) = random_softmax(), random_tokens(40)
    samples = Certain(torch.arange(N_WORDS), 100, N_WORDS)
    torch.testing.assert_close(
        softmax.sampled(states, targets, samples), softmax(states, targets), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
def test_large_logits_neither_overflow_nor_vanish(shift: float) -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(50)
    with torch.no_grad():
        softmax.bias += shift
    samples = Samples(torch.arange(0, N_WORDS, 2), 20, N_WORDS)
    for loss in (softmax(states, targets), softmax.sampled(states, targets, samples)):
        loss.backward()
        assert loss.isfinite()
        assert 0 < loss < 100
    assert states.grad is not None
    assert states.grad.isfinite().all()


def test_in_float32_the_loss_keeps_its_digits() -> None:
    softmax, (states, targets) = random_softmax(2000, 64), random_tokens(600, n_words=2000, width=64)
    exact = softmax(states, targets).item()
    assert softmax.float()(states.float(), targets).item() == pytest.approx(exact, rel=1e-6)


def test_losses_by_token_and_log_probabilities_agree_with_the_mean() -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(300)
    losses, logs = softmax.token_losses(states, targets), softmax.log_probabilities(states)
    torch.testing.assert_close(losses.mean(), softmax(states, targets), rtol=0, atol=1e-12)
    torch.testing.assert_close(losses, F.nll_loss(logs, targets, reduction="none"), rtol=0, atol=1e-12)
    torch.testing.assert_close(logs.exp().sum(dim=1), torch.ones(300).double(), rtol=0, atol=1e-12)
    assert softmax.token_losses(states[:0], targets[:0]).shape == (0,)


def test_the_logits_of_all_tokens_never_exist_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_LOGITS", 10 * N_WORDS)
    softmax, (states, targets) = random_softmax(), random_tokens(1000)
    with Watch() as watch:
        softmax(states, targets).backward()
        softmax.token_losses(states, targets)
    assert 10 * N_WORDS in watch.sizes
    assert max(watch.sizes) == states.numel()
    assert max(watch.sizes) < 1000 * N_WORDS


def test_without_gradients_none_are_computed() -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(300)
    with Watch() as watch:
        expected = softmax(states, targets)
    assert {"addmm_", "addmv_"} <= set(watch.names)
    with torch.no_grad(), Watch() as watch:
        loss = softmax(states, targets)
    assert not {"addmm_", "addmv_"} & set(watch.names)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, expected.detach(), rtol=0, atol=1e-12)
    softmax.requires_grad_(False)
    softmax(states, targets).backward()
    assert states.grad is not None
    assert softmax.weight is not None
    assert softmax.weight.grad is None
    assert softmax.bias.grad is None


def test_weights_tied_to_a_table_are_the_tables_and_are_kept_once() -> None:
    table = nn.Embedding(N_WORDS + 1, WIDTH, padding_idx=0).double()
    tied, own = random_softmax(tied_to=table), random_softmax()
    assert [name for name, _ in tied.named_parameters()] == ["bias"]
    assert list(tied.state_dict()) == ["bias"]
    assert own.weight is not None
    own.load_state_dict({"weight": table.weight.detach()[1:], "bias": tied.bias.detach()})
    states, targets = random_tokens(300)
    samples = LogUniformSampler(N_WORDS, 6).draw(torch.Generator().manual_seed(0))
    for loss in ("forward", "sampled"):
        rest = (samples,) if loss == "sampled" else ()
        for softmax in (tied, own):
            getattr(softmax, loss)(states, targets, *rest).backward()
        assert table.weight.grad is not None
        assert not table.weight.grad[0].any()
        torch.testing.assert_close(table.weight.grad[1:], own.weight.grad, rtol=0, atol=1e-12)
        torch.testing.assert_close(tied.bias.grad, own.bias.grad, rtol=0, atol=1e-12)


def test_what_does_not_fit_is_named() -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(3)
    with pytest.raises(
        ShapeError, match=r"expected states of shape \(token, 5\) .* found \(3, 4\) and \(3,\)"
    ):
        softmax(states[:, :4], targets)
    with pytest.raises(ShapeError, match=r"found \(3, 5\) and \(2,\)"):
        softmax.token_losses(states, targets[:2])
    with pytest.raises(ShapeError, match=r"table of shape \(24, 5\) to be tied to, found \(23, 5\)"):
        Softmax(n_words=23, width=5, tied_to=nn.Embedding(23, 5))


@settings(deadline=None, max_examples=20)
@given(st.sets(st.integers(1, 39), min_size=1, max_size=3), st.sampled_from([1.0, 2.0, 4.0]))
def test_the_adaptive_softmax_is_a_distribution_that_its_losses_come_from(
    cutoffs: set[int], narrowing: float
) -> None:
    torch.manual_seed(0)
    softmax = AdaptiveSoftmax(n_words=40, width=64, cutoffs=sorted(cutoffs), narrowing=narrowing).double()
    states, targets = random_tokens(50, n_words=40, width=64)
    logs = softmax.log_probabilities(states)
    torch.testing.assert_close(logs.exp().sum(dim=1), torch.ones(50).double(), rtol=0, atol=1e-12)
    expected = F.nll_loss(logs, targets, reduction="none")
    torch.testing.assert_close(softmax.token_losses(states, targets), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(softmax(states, targets), expected.mean(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("cutoffs", [[], [0, 5], [5, 5], [9, 5], [40]])
def test_cutoffs_that_do_not_divide_the_vocabulary_are_refused(cutoffs: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"cutoffs must rise and lie in 1\.\.39"):
        AdaptiveSoftmax(n_words=40, width=64, cutoffs=cutoffs)


def test_cutoffs_that_leave_a_part_without_width_are_refused() -> None:
    with pytest.raises(ConfigError, match="leave nothing of width 60"):
        AdaptiveSoftmax(n_words=40, width=60, cutoffs=[1, 2, 3])
