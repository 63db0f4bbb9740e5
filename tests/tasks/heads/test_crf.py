"""The conditional random field."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import Tensor

from elmo.errors import ConfigError
from elmo.tasks.data.schemes import Transitions
from elmo.tasks.heads.crf import Chain, ChainSums, Crf

N_TAGS = 3
LENGTHS = (4, 1, 3, 2)


def build_crf(seed: int, rules: Transitions | None = None) -> Crf:
    torch.manual_seed(seed)
    crf = Crf(N_TAGS, rules=rules).double()
    for scores in crf.parameters():
        torch.nn.init.normal_(scores)
    return crf


def build_batch(seed: int, lengths: tuple[int, ...] = LENGTHS) -> tuple[Tensor, Tensor, Tensor]:
    """Return random emissions, tags and a mask; padding has random values."""
    torch.manual_seed(1000 + seed)
    emissions = 2 * torch.randn(len(lengths), max(lengths), N_TAGS, dtype=torch.float64)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return emissions, torch.randint(N_TAGS, mask.shape), mask


def bio() -> Transitions:
    """Rules for O, B, I: I follows only B or I and does not start; B does not end a sentence."""
    return Transitions(
        between=np.array([[1, 1, 0], [1, 1, 1], [1, 1, 1]], bool),
        start=np.array([1, 1, 0], bool),
        end=np.array([1, 0, 1], bool),
    )


def decode(chain: Chain, emissions: Tensor, mask: Tensor) -> list[list[int]]:
    """Return the best tags of each sentence without padding."""
    paths = chain.best_paths(emissions, mask).tags.tolist()
    return [path[:length] for path, length in zip(paths, mask.sum(dim=1).tolist(), strict=True)]


def all_scores(crf: Crf, emissions: Tensor, *, is_constrained: bool) -> dict[tuple[int, ...], Tensor]:
    """Compute the score of every sequence of one sentence, ``emissions`` (time, tag), one by one."""
    found = {}
    for path in product(range(N_TAGS), repeat=len(emissions)):
        steps = list(pairwise(path))
        is_allowed = (
            bool(crf.allowed_starts[path[0]])
            and bool(crf.allowed_ends[path[-1]])
            and all(bool(crf.allowed_steps[a, b]) for a, b in steps)
        )
        if is_constrained and not is_allowed:
            continue
        score = crf.starts[path[0]] + crf.ends[path[-1]]
        score = score + sum(crf.steps[a, b] for a, b in steps)
        found[path] = score + sum(emissions[t, tag] for t, tag in enumerate(path))
    return found


def likelihood(crf: Crf, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
    """Return the log-likelihood in training, which ignores the rules."""
    return crf.chain(is_constrained=False).log_likelihood(emissions, tags, mask)


def log_z(scores: dict[tuple[int, ...], Tensor]) -> Tensor:
    return torch.stack(list(scores.values())).logsumexp(dim=0)


@pytest.mark.parametrize("is_constrained", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_sums_best_paths_and_marginals_agree_with_enumeration(seed: int, is_constrained: bool) -> None:
    crf = build_crf(seed, bio() if is_constrained else None)
    emissions, _, mask = build_batch(seed)
    sums = crf.chain().log_partition(emissions, mask)
    best = crf.chain().best_paths(emissions, mask)
    decoded = decode(crf.chain(), emissions, mask)
    chances = crf.chain().path_probabilities(emissions, best.tags, mask)
    marginals = crf.chain().marginals(emissions, mask)
    for k, length in enumerate(LENGTHS):
        scores = all_scores(crf, emissions[k, :length], is_constrained=is_constrained)
        right = max(scores, key=lambda path: float(scores[path].detach()))
        whole = log_z(scores)
        torch.testing.assert_close(sums[k], whole, rtol=0, atol=1e-9)
        assert tuple(decoded[k]) == right
        assert best.tags[k].tolist() == [*right, *[-1] * (max(LENGTHS) - length)]
        torch.testing.assert_close(chances[k], (scores[right] - whole).exp(), rtol=0, atol=1e-9)
        expected = torch.zeros_like(marginals[k])
        for path, score in scores.items():
            for t, tag in enumerate(path):
                expected[t, tag] += (score - whole).exp()
        torch.testing.assert_close(marginals[k], expected, rtol=0, atol=1e-9)


def test_marginals_are_the_gradient_of_log_z() -> None:
    crf = build_crf(7, bio())
    emissions, _, mask = build_batch(7)
    emissions.requires_grad_()
    (gradient,) = torch.autograd.grad(crf.chain().log_partition(emissions, mask).sum(), emissions)
    torch.testing.assert_close(crf.chain().marginals(emissions, mask), gradient, rtol=0, atol=1e-9)


@pytest.mark.parametrize("spread", [1.0, 30.0, 300.0, 3000.0])
def test_fast_sums_agree_with_sums_of_logarithms(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """If scores differ too much for fast sums, logarithms are used."""
    crf = build_crf(12, bio())
    emissions, tags, mask = build_batch(12, lengths=(9, 1, 5, 7))
    emissions = (spread * emissions).requires_grad_()
    parameters = [emissions, *crf.parameters()]

    def found() -> list[Tensor]:
        likelihood = crf.chain().log_likelihood(emissions, tags, mask)
        gradients = torch.autograd.grad(likelihood.sum(), parameters)
        return [likelihood, crf.chain().marginals(emissions, mask), *gradients]

    quick = found()
    monkeypatch.setattr(Chain, "_compute_sums", lambda *_: None)
    for one, other in zip(quick, found(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_inexact_fast_sums_are_detected() -> None:
    crf, (emissions, _, mask) = build_crf(13), build_batch(13)
    parts = {"starts": crf.starts, "steps": crf.steps, "ends": crf.ends}
    assert ChainSums.compute(emissions, mask, **parts).is_exact
    extreme = emissions.clone()
    extreme[0, 1], extreme[0, 2] = torch.tensor([0.0, -1e4, -1e4]), torch.tensor([-1e4, 0.0, -1e4])
    never = crf.steps.detach().clone()
    never[0, 1] = -1e4  # the step that both words need
    assert not ChainSums.compute(extreme, mask, **parts | {"steps": never}).is_exact


@pytest.mark.parametrize("starts", [[True, True], [True, False]])
def test_small_sums_that_matter_later_are_not_lost(starts: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """If tags cannot follow each other, a tag that is unlikely at first may be the only one later."""
    crf = Crf(2, rules=Transitions(np.eye(2, dtype=bool), np.array(starts), np.ones(2, bool))).double()
    emissions = torch.zeros(1, 60, 2, dtype=torch.float64)
    emissions[0, :20, 0], emissions[0, 20:, 1] = 40.0, 40.0
    emissions.requires_grad_()
    mask = torch.ones(1, 60, dtype=torch.bool)
    tags = torch.zeros(1, 60, dtype=torch.long)
    parameters = [emissions, crf.steps]

    def found() -> list[Tensor]:
        sums = crf.chain().log_partition(emissions, mask)
        gradients = torch.autograd.grad(crf.chain().log_likelihood(emissions, tags, mask).sum(), parameters)
        return [sums, crf.chain().marginals(emissions, mask), *gradients]

    quick = found()
    monkeypatch.setattr(Chain, "_compute_sums", lambda *_: None)
    for one, other in zip(quick, found(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n_words", [30, 500, 2000])
def test_the_probability_of_a_long_path_is_at_most_one(n_words: int) -> None:
    torch.manual_seed(14)
    crf = Crf(9)
    torch.nn.init.normal_(crf.steps)
    emissions = torch.randn(4, n_words, 9)
    emissions.scatter_add_(2, torch.randint(9, (4, n_words, 1)), torch.full((4, n_words, 1), 30.0))
    mask = torch.ones(4, n_words, dtype=torch.bool)
    found = crf.chain().path_probabilities(emissions, crf.chain().best_paths(emissions, mask).tags, mask)
    assert found.dtype == torch.float32
    assert (found <= 1).all()
    assert (found > 0.99).all()


def test_likelihood_and_its_gradients_agree_with_enumeration() -> None:
    crf = build_crf(3)
    emissions, tags, mask = build_batch(3)
    emissions.requires_grad_()
    parameters = [emissions, *crf.parameters()]
    found = likelihood(crf, emissions, tags, mask)
    expected = []
    for k, length in enumerate(LENGTHS):
        scores = all_scores(crf, emissions[k, :length], is_constrained=False)
        expected.append(scores[tuple(tags[k, :length].tolist())] - log_z(scores))
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-9)
    weights = torch.tensor([1.0, 2.0, -3.0, 0.5], dtype=torch.float64)
    found_gradients = torch.autograd.grad((found * weights).sum(), parameters)
    expected_gradients = torch.autograd.grad((torch.stack(expected) * weights).sum(), parameters)
    for one, other in zip(found_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_padding_changes_nothing() -> None:
    crf = build_crf(4, bio())
    emissions, tags, mask = build_batch(4)
    likelihoods, marginals = (likelihood(crf, emissions, tags, mask), crf.chain().marginals(emissions, mask))
    padded_tags = tags.masked_fill(~mask, -1)
    assert torch.equal(likelihood(crf, emissions, padded_tags, mask), likelihoods)
    for k, length in enumerate(LENGTHS):
        one = slice(k, k + 1)
        alone = (emissions[one, :length], mask[one, :length])
        torch.testing.assert_close(
            likelihood(crf, alone[0], tags[one, :length], alone[1])[0], likelihoods[k], rtol=0, atol=1e-12
        )
        torch.testing.assert_close(crf.chain().marginals(*alone)[0], marginals[k, :length], rtol=0, atol=1e-12)
        assert not marginals[k, length:].any()
        assert decode(crf.chain(), *alone) == [decode(crf.chain(), emissions, mask)[k]]


def test_an_empty_sentence_has_no_tags_and_no_loss() -> None:
    crf = build_crf(5)
    emissions, tags, mask = build_batch(5)
    mask[1] = False
    assert decode(crf.chain(), emissions, mask)[1] == []
    assert float(likelihood(crf, emissions, tags, mask)[1].detach()) == 0.0
    assert not crf.chain().marginals(emissions, mask)[1].any()


def test_tags_that_break_a_rule_have_a_finite_loss_and_gradient() -> None:
    emissions, tags, mask = build_batch(6)
    tags[0] = torch.tensor([2, 0, 2, 1])  # starts with I, I after O, ends with B
    tags[2] = torch.tensor([0, 1, 2, 0])
    crf = build_crf(6, bio())
    free = likelihood(crf, emissions, tags, mask)
    assert torch.equal(free, build_crf(6).chain().log_likelihood(emissions, tags, mask))  # rules are ignored
    assert crf.chain().log_likelihood(emissions, tags, mask)[2] > free[2]  # Z sums over fewer sequences
    free.sum().backward()
    assert all(torch.isfinite(one.grad).all() for one in crf.parameters() if one.grad is not None)


def test_a_constrained_likelihood_sums_over_allowed_sequences() -> None:
    crf = build_crf(8, bio())
    emissions, _, mask = build_batch(8, lengths=(3,))
    tags = torch.tensor([[1, 2, 0]])
    scores = all_scores(crf, emissions[0], is_constrained=True)
    expected = scores[1, 2, 0] - log_z(scores)
    torch.testing.assert_close(crf.chain().log_likelihood(emissions, tags, mask)[0], expected, rtol=0, atol=1e-9)


def test_an_unknown_tag_sums_over_all_tags() -> None:
    crf = build_crf(9)
    emissions, _, mask = build_batch(9, lengths=(3,))
    scores = all_scores(crf, emissions[0], is_constrained=False)
    some = {path: score for path, score in scores.items() if path[0] == 1 and path[2] == 0}
    found = likelihood(crf, emissions, torch.tensor([[1, -1, 0]]), mask)[0]
    torch.testing.assert_close(found, log_z(some) - log_z(scores), rtol=0, atol=1e-9)


def test_without_transitions_a_crf_is_a_softmax() -> None:
    crf = Crf(N_TAGS, has_transitions=False).double()
    emissions, tags, mask = build_batch(10)
    assert not any(scores.requires_grad for scores in crf.parameters())
    softmax = torch.where(mask[:, :, None], emissions.softmax(dim=2), 0)
    torch.testing.assert_close(crf.chain().marginals(emissions, mask), softmax, rtol=0, atol=1e-12)
    chosen = emissions.log_softmax(dim=2).gather(2, tags[:, :, None])[:, :, 0]
    torch.testing.assert_close(
        likelihood(crf, emissions, tags, mask), torch.where(mask, chosen, 0).sum(dim=1), rtol=0, atol=1e-12
    )


def test_rules_are_saved_with_the_scores() -> None:
    emissions, _, mask = build_batch(11)
    crf, other = build_crf(11, bio()), Crf(N_TAGS).double()
    other.load_state_dict(crf.state_dict())
    assert decode(other.chain(), emissions, mask) == decode(crf.chain(), emissions, mask)
    assert torch.equal(other.chain().marginals(emissions, mask), crf.chain().marginals(emissions, mask))


def test_rules_that_allow_nothing_are_refused() -> None:
    for n_tags, starts in ((3, np.zeros(3, bool)), (0, np.zeros(0, bool))):
        rules = Transitions(np.ones((n_tags, n_tags), bool), starts, np.ones(n_tags, bool))
        with pytest.raises(ConfigError, match="cannot build a CRF: the tag rules forbid all starts of a sequence"):
            Crf(n_tags, rules=rules)
