from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from elmo.engine import softmax as engine_softmax
from elmo.engine.compiled import find_library
from elmo.engine.softmax import FrozenSoftmax, compute_loss, compute_token_losses
from elmo.errors import ShapeError
from elmo.model.softmax import AdaptiveSoftmax, LogUniformSampler, Samples, Softmax
from tests.engine.cases import assert_close_in_float32, autograd_functions, is_compiled
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


# --- compiled: float32, whole vectors ------------------------------------------------------------------------

VECTOR_WORDS, VECTOR_WIDTH = 80, 32  # whole vectors, but not whole panels
SAMPLE_IDS = {
    "distinct": sorted({*range(0, 64, 4), 1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 70}),
    "repeated": sorted([0] * 20 + [1] * 10 + [4, 4] + [7] * 16),
    "one word": [3] * 16,
}


def wide_softmax(n: int) -> tuple[Softmax, Tensor, Tensor]:
    softmax = random_softmax(VECTOR_WORDS, VECTOR_WIDTH)
    states, targets = random_tokens(n, n_words=VECTOR_WORDS, width=VECTOR_WIDTH)
    return softmax, states, targets


def loss_and_gradients(
    softmax: Softmax, states: Tensor, targets: Tensor, samples: Samples | None, **options: bool
) -> tuple[dict[str, Tensor], set[str]]:
    """A loss and its gradients, and the functions that computed it."""
    states = states.detach().requires_grad_()
    softmax.zero_grad()
    loss = compute_loss(softmax, states, targets, samples=samples, **options)
    (3 * loss).backward()  # a loss is rarely the end of a graph
    assert softmax.weight is not None
    gradients = {"states": states.grad, "weight": softmax.weight.grad, "bias": softmax.bias.grad}
    result = {name: x.to_dense().clone() for name, x in gradients.items() if x is not None}
    assert len(result) == 3
    return {"loss": loss.detach(), **result}, autograd_functions(loss)


@pytest.mark.parametrize("n", [1, 13, 300])
@pytest.mark.parametrize("ids", [None, *SAMPLE_IDS.values()], ids=["full", *SAMPLE_IDS])
@pytest.mark.parametrize("has_sparse_gradient", [False, True])
def test_the_compiled_loss_has_the_values_and_gradients_of_float64(
    n: int, ids: list[int] | None, has_sparse_gradient: bool, variant: str
) -> None:
    softmax, states, targets = wide_softmax(n)
    samples = None if ids is None else Samples(torch.tensor(ids), len(ids) + 5, VECTOR_WORDS)
    assert samples is None or n < 300 or len(samples.find_hits(targets)[0])  # some targets are samples
    exact, functions = loss_and_gradients(softmax, states, targets, samples)
    assert functions == {"_SumLogSumExp"}
    result, functions = loss_and_gradients(
        softmax.float(), states.float(), targets, samples, has_sparse_gradient=has_sparse_gradient
    )
    assert functions == {"_SumLogSumExp" if variant == "0" else "_CompiledSumLogSumExp"}
    assert_close_in_float32(result, exact)


@pytest.mark.parametrize("has_samples", [False, True], ids=["full", "sampled"])
def test_bfloat16_products_are_close(has_samples: bool, variant: str) -> None:
    softmax, states, targets = wide_softmax(300)
    ids = torch.tensor(SAMPLE_IDS["distinct"])
    samples = Samples(ids, 40, VECTOR_WORDS) if has_samples else None
    exact, _ = loss_and_gradients(softmax, states, targets, samples)
    result, functions = loss_and_gradients(softmax.float(), states.float(), targets, samples, has_bf16_products=True)
    assert functions == {"_CompiledSumLogSumExp" if is_compiled(variant, "bfloat16") else "_SumLogSumExp"}
    for name, x in exact.items():
        assert result[name].dtype == torch.float32
        assert 0 < (result[name] - x).norm() < 0.02 * x.norm(), name


@pytest.mark.parametrize("has_extra", [False, True], ids=["without an extra logit", "with an extra logit"])
def test_excluded_pairs_are_left_out_with_and_without_an_extra_logit(has_extra: bool, variant: str) -> None:
    generator = torch.Generator().manual_seed(0)
    n, n_words, width = 150, 48, 16
    shapes = ((n, width), (n_words, width), (n_words,), (n,))
    leaves = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    states, rows, bias, extra = leaves
    is_hit = torch.rand(n, n_words, generator=generator) < 0.1
    if has_extra:
        is_hit[[5, 149]] = True  # nothing but the extra logit
    token, word = is_hit.nonzero(as_tuple=True)
    total = engine_softmax._sum_log_sum_exp(
        states, rows, bias, extra=extra if has_extra else None, excluded=(token, word)
    )
    assert autograd_functions(total) == {"_SumLogSumExp" if variant == "0" else "_CompiledSumLogSumExp"}
    logits = (states.double() @ rows.double().t() + bias).masked_fill(is_hit, -torch.inf)
    if has_extra:
        logits = torch.cat([logits, extra[:, None].double()], dim=1)
    expected = logits.logsumexp(dim=1).sum()
    used = leaves if has_extra else leaves[:3]
    torch.testing.assert_close(total.double(), expected, rtol=1e-6, atol=0)
    for gradient, exact in zip(torch.autograd.grad(total, used), torch.autograd.grad(expected, used), strict=True):
        torch.testing.assert_close(gradient, exact, rtol=0, atol=2e-5)


@pytest.mark.usefixtures("variant")
def test_a_row_of_hits_without_an_extra_logit_has_no_finite_sum() -> None:
    states, rows, bias = torch.randn(2, 16), torch.randn(16, 16), torch.randn(16)
    excluded = (torch.zeros(16, dtype=torch.int64), torch.arange(16))
    assert not engine_softmax._sum_log_sum_exp(states, rows, bias, excluded=excluded).isfinite()


@pytest.mark.usefixtures("variant")
def test_nan_is_not_hidden() -> None:
    for bad in range(3):
        inputs = [torch.randn(5, 16), torch.randn(16, 16), torch.randn(16)]
        inputs[bad][-1] = torch.nan
        assert engine_softmax._sum_log_sum_exp(*inputs).isnan()
        assert engine_softmax._sum_log_sum_exp(*inputs, extra=torch.zeros(5)).isnan()


@pytest.mark.usefixtures("compiled_variant")
def test_exp_is_accurate_and_zero_far_below_the_highest_logit() -> None:
    x = torch.cat([-torch.logspace(-6, 1.85, 4096 - 16), torch.tensor([0, -0.5, -100, -1e30] * 4)])  # down to -70.8
    assert find_library("float32", x) is not None
    bias = x.clone().requires_grad_()
    total = engine_softmax._sum_log_sum_exp(torch.zeros(1, 16), torch.zeros(len(x), 16), bias)
    total.backward()  # the gradient is exp(x) / Σ exp(x)
    assert bias.grad is not None
    exact = x.double().exp()
    result = bias.grad.double() / bias.grad.sum().double() * exact.sum()
    assert ((result / exact)[x > -99] - 1).abs().max() < 1e-6
    assert (bias.grad[x < -99] == 0).all()


@pytest.mark.usefixtures("variant")
def test_more_words_than_the_compiled_code_takes_use_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_softmax, "MAX_COMPILED_WORDS", VECTOR_WORDS - 1)
    softmax, states, targets = wide_softmax(20)
    loss = compute_loss(softmax.float(), states.float(), targets)
    assert autograd_functions(loss) == {"_SumLogSumExp"}


def test_compiled_gradients_are_computed_only_if_required(variant: str) -> None:
    softmax, states, targets = wide_softmax(300)
    softmax, states = softmax.float(), states.detach().float()
    expected = compute_loss(softmax, states, targets)
    with torch.no_grad():
        loss = compute_loss(softmax, states, targets)
    assert not loss.requires_grad
    assert torch.equal(loss, expected)
    softmax.requires_grad_(False)
    compute_loss(softmax, states.requires_grad_(), targets).backward()
    assert states.grad is not None
    assert softmax.weight is not None
    assert softmax.weight.grad is None
    assert softmax.bias.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n_samples", "width"), [(1, 5), (16, 16)])
@pytest.mark.usefixtures("variant")
def test_a_token_whose_only_sample_is_its_target_has_no_loss(n_samples: int, width: int, dtype: torch.dtype) -> None:
    softmax, (states, _) = random_softmax(N_WORDS, width).to(dtype), random_tokens(2, width=width)
    states = states.detach().to(dtype).requires_grad_()
    samples = Samples(torch.tensor([3] * n_samples), 1, N_WORDS)
    loss = compute_loss(softmax, states, torch.tensor([3, 3]), samples=samples)
    loss.backward()
    assert loss.item() == 0
    assert states.grad is not None
    assert not states.grad.any()


# --- all kinds of kernels ------------------------------------------------------------------------------------


def test_sampling_every_word_with_equal_counts_is_the_full_softmax() -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(40)
    samples = EqualCounts(torch.arange(N_WORDS), 100, N_WORDS)
    torch.testing.assert_close(
        compute_loss(softmax, states, targets, samples=samples),
        compute_loss(softmax, states, targets),
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_logits_neither_overflow_nor_vanish(shift: float, dtype: torch.dtype) -> None:
    softmax, (states, targets) = random_softmax(32, 16).to(dtype), random_tokens(50, n_words=32, width=16)
    states = states.detach().to(dtype).requires_grad_()
    with torch.no_grad():
        softmax.bias += shift
    for samples in (None, Samples(torch.arange(0, 32, 2), 20, 32)):
        loss = compute_loss(softmax, states, targets, samples=samples)
        loss.backward()
        assert loss.isfinite()
        assert 0 < loss < 100
    assert states.grad is not None
    assert states.grad.isfinite().all()


@pytest.mark.usefixtures("variant")
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
