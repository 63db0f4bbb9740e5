from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from elmo.engine import softmax as engine_softmax
from elmo.engine.softmax import FrozenSoftmax, compute_loss, compute_token_losses
from elmo.errors import ShapeError
from elmo.model.softmax import AdaptiveSoftmax, LogUniformSampler, Samples
from tests.model.softmax_cases import (
    N_WORDS,
    WIDTH,
    EqualCounts,
    all_samples,
    check_against_oracle,
    random_softmax,
    random_tokens,
)

SIZES = [1, 7, 300]  # less than a chunk, and several chunks of which the last is not full


class Recorder(TorchFunctionMode):
    """Records the names and result sizes of all torch operations."""

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


@pytest.mark.parametrize("n", SIZES)
def test_the_full_loss_and_its_gradients_agree_with_the_oracle(n: int) -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(n)
    check_against_oracle(compute_loss(softmax, states, targets), softmax, states, targets)


@pytest.mark.parametrize("n", SIZES)
@all_samples
@pytest.mark.parametrize("has_sparse_gradient", [False, True])
def test_the_sampled_loss_and_its_gradients_agree_with_the_oracle(
    n: int, ids: list[int], n_tries: int, has_sparse_gradient: bool
) -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(n)
    samples = Samples(torch.tensor(ids), n_tries, N_WORDS)
    loss = compute_loss(softmax, states, targets, samples=samples, has_sparse_gradient=has_sparse_gradient)
    check_against_oracle(loss, softmax, states, targets, samples)
    assert softmax.weight is not None
    assert softmax.weight.grad is not None
    assert softmax.weight.grad.is_sparse == has_sparse_gradient


def test_a_token_whose_only_sample_is_its_target_has_no_loss() -> None:
    softmax, (states, _) = random_softmax(), random_tokens(2)
    samples = Samples(torch.tensor([3]), 1, N_WORDS)
    loss = compute_loss(softmax, states, torch.tensor([3, 3]), samples=samples)
    loss.backward()
    assert loss.item() == 0
    assert states.grad is not None
    assert not states.grad.any()


def test_sampling_every_word_with_equal_counts_is_the_full_softmax() -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(40)
    samples = EqualCounts(torch.arange(N_WORDS), 100, N_WORDS)
    torch.testing.assert_close(
        compute_loss(softmax, states, targets, samples=samples),
        compute_loss(softmax, states, targets),
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
def test_large_logits_neither_overflow_nor_vanish(shift: float) -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(50)
    with torch.no_grad():
        softmax.bias += shift
    for samples in (None, Samples(torch.arange(0, N_WORDS, 2), 20, N_WORDS)):
        loss = compute_loss(softmax, states, targets, samples=samples)
        loss.backward()
        assert loss.isfinite()
        assert 0 < loss < 100
    assert states.grad is not None
    assert states.grad.isfinite().all()


def test_the_loss_is_accurate_in_float32() -> None:
    softmax, (states, targets) = random_softmax(2000, 64), random_tokens(600, n_words=2000, width=64)
    exact = compute_loss(softmax, states, targets).item()
    assert compute_loss(softmax.float(), states.float(), targets).item() == pytest.approx(exact, rel=1e-6)


def test_token_losses_agree_with_the_mean_and_with_log_probabilities() -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(300)
    losses, logs = compute_token_losses(softmax, states, targets), softmax.log_probabilities(states)
    torch.testing.assert_close(losses.mean(), compute_loss(softmax, states, targets), rtol=0, atol=1e-12)
    torch.testing.assert_close(losses, F.nll_loss(logs, targets, reduction="none"), rtol=0, atol=1e-12)
    torch.testing.assert_close(logs.exp().sum(dim=1), torch.ones(300).double(), rtol=0, atol=1e-12)
    assert compute_token_losses(softmax, states[:0], targets[:0]).shape == (0,)


def test_an_adaptive_softmax_computes_its_own_losses() -> None:
    softmax = AdaptiveSoftmax(n_words=N_WORDS, width=WIDTH, cutoffs=[4]).double()
    states, targets = random_tokens(30)
    assert torch.equal(compute_loss(softmax, states, targets), softmax(states, targets))
    losses = compute_token_losses(softmax, states, targets)
    assert not losses.requires_grad
    assert torch.equal(losses, softmax.token_losses(states, targets))


def test_the_logits_of_all_tokens_never_exist_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_softmax, "CHUNK_LOGITS", 10 * N_WORDS)
    softmax, (states, targets) = random_softmax(), random_tokens(1000)
    with Recorder() as recorder:
        compute_loss(softmax, states, targets).backward()
        compute_token_losses(softmax, states, targets)
    assert 10 * N_WORDS in recorder.sizes
    assert max(recorder.sizes) == states.numel()
    assert max(recorder.sizes) < 1000 * N_WORDS


def test_gradients_are_computed_only_if_required() -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(300)
    with Recorder() as recorder:
        expected = compute_loss(softmax, states, targets)
    assert {"addmm_", "addmv_"} <= set(recorder.names)
    with torch.no_grad(), Recorder() as recorder:
        loss = compute_loss(softmax, states, targets)
    assert not {"addmm_", "addmv_"} & set(recorder.names)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, expected.detach(), rtol=0, atol=1e-12)
    softmax.requires_grad_(False)
    compute_loss(softmax, states, targets).backward()
    assert states.grad is not None
    assert softmax.weight is not None
    assert softmax.weight.grad is None
    assert softmax.bias.grad is None


def test_tied_weights_get_the_gradients_of_separate_weights() -> None:
    table = nn.Embedding(N_WORDS + 1, WIDTH, padding_idx=0).double()
    tied, separate = random_softmax(tied_to=table), random_softmax()
    assert separate.weight is not None
    separate.load_state_dict({"weight": table.weight.detach()[1:], "bias": tied.bias.detach()})
    states, targets = random_tokens(300)
    for samples in (None, LogUniformSampler(N_WORDS, 6).draw(torch.Generator().manual_seed(0))):
        for softmax in (tied, separate):
            compute_loss(softmax, states, targets, samples=samples).backward()
        assert table.weight.grad is not None
        assert not table.weight.grad[0].any()
        torch.testing.assert_close(table.weight.grad[1:], separate.weight.grad, rtol=0, atol=1e-12)
        torch.testing.assert_close(tied.bias.grad, separate.bias.grad, rtol=0, atol=1e-12)


def test_wrong_shapes_are_reported() -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(3)
    with pytest.raises(ShapeError, match=r"states must have shape \(token, 5\) .* found \(3, 4\) and \(3,\)"):
        compute_loss(softmax, states[:, :4], targets)
    with pytest.raises(ShapeError, match=r"found \(3, 5\) and \(2,\)"):
        compute_token_losses(softmax, states, targets[:2])


@torch.no_grad()
def test_log_probabilities_for_prediction_have_the_same_bits_in_any_batch() -> None:
    softmax, (states, targets) = random_softmax().float(), random_tokens(300)
    states = states.float()
    assert softmax.weight is not None
    frozen = FrozenSoftmax(softmax.weight, softmax.bias)
    logs, target_logs = frozen.log_probabilities(states), frozen.target_log_probabilities(states, targets)
    torch.testing.assert_close(logs, softmax.log_probabilities(states))
    torch.testing.assert_close(target_logs, -softmax.token_losses(states, targets))
    for k in (0, 5, 299):
        assert torch.equal(frozen.log_probabilities(states[k : k + 1])[0], logs[k])
        single = frozen.target_log_probabilities(states[k : k + 1], targets[k : k + 1])
        assert torch.equal(single[0], target_logs[k])
