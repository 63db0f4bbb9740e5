from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from elmo.errors import ConfigError, ShapeError
from elmo.model.softmax import AdaptiveSoftmax, LogUniformSampler, Samples, Softmax
from tests import oracle
from tests.model.softmax_cases import (
    N_WORDS,
    WIDTH,
    EqualCounts,
    all_samples,
    check_against_oracle,
    random_softmax,
    random_tokens,
)


@pytest.mark.parametrize("n", [1, 7, 300])
def test_the_full_loss_and_its_gradients_agree_with_the_oracle(n: int) -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(n)
    check_against_oracle(softmax(states, targets), softmax, states, targets)


@pytest.mark.parametrize("n", [1, 7, 300])
@all_samples
def test_the_sampled_loss_and_its_gradients_agree_with_the_oracle(n: int, ids: list[int], n_tries: int) -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(n)
    samples = Samples(torch.tensor(ids), n_tries, N_WORDS)
    loss = softmax.sampled_loss(states, targets, samples)
    check_against_oracle(loss, softmax, states, targets, samples)


def test_a_token_whose_only_sample_is_its_target_has_no_loss() -> None:
    softmax, (states, _) = random_softmax(), random_tokens(2)
    samples = Samples(torch.tensor([3]), 1, N_WORDS)
    assert softmax.sampled_loss(states, torch.tensor([3, 3]), samples).item() == 0


def test_sampling_every_word_with_equal_counts_is_the_full_softmax() -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(40)
    samples = EqualCounts(torch.arange(N_WORDS), 100, N_WORDS)
    torch.testing.assert_close(
        softmax.sampled_loss(states, targets, samples), softmax(states, targets), rtol=0, atol=1e-12
    )


def test_token_losses_agree_with_the_mean_and_with_log_probabilities() -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(300)
    losses, logs = softmax.token_losses(states, targets), softmax.log_probabilities(states)
    torch.testing.assert_close(losses.mean(), softmax(states, targets), rtol=0, atol=1e-12)
    torch.testing.assert_close(losses, F.nll_loss(logs, targets, reduction="none"), rtol=0, atol=1e-12)
    torch.testing.assert_close(logs.exp().sum(dim=1), torch.ones(300).double(), rtol=0, atol=1e-12)


def test_tied_weights_belong_to_the_table_and_are_saved_once() -> None:
    table = nn.Embedding(N_WORDS + 1, WIDTH, padding_idx=0).double()
    tied, separate = random_softmax(tied_to=table), random_softmax()
    assert [name for name, _ in tied.named_parameters()] == ["bias"]
    assert list(tied.state_dict()) == ["bias"]
    separate.load_state_dict({"weight": table.weight.detach()[1:], "bias": tied.bias.detach()})
    states, targets = random_tokens(30)
    torch.testing.assert_close(tied(states, targets), separate(states, targets), rtol=0, atol=1e-12)


def test_wrong_shapes_are_reported() -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(3)
    with pytest.raises(ShapeError, match=r"states must have shape \(token, 5\) .* found \(3, 4\) and \(3,\)"):
        softmax(states[:, :4], targets)
    with pytest.raises(ShapeError, match=r"found \(3, 5\) and \(2,\)"):
        softmax.token_losses(states, targets[:2])
    with pytest.raises(ShapeError, match=r"a table of shape \(24, 5\) .* found \(23, 5\)"):
        Softmax(n_words=23, width=5, tied_to=nn.Embedding(23, 5))


@settings(deadline=None, max_examples=20)
@given(st.sets(st.integers(1, 39), min_size=1, max_size=3), st.sampled_from([1.0, 2.0, 4.0]))
def test_the_adaptive_softmax_is_a_distribution_and_agrees_with_its_losses(cutoffs: set[int], narrowing: float) -> None:
    torch.manual_seed(0)
    softmax = AdaptiveSoftmax(n_words=40, width=64, cutoffs=sorted(cutoffs), narrowing=narrowing).double()
    states, targets = random_tokens(50, n_words=40, width=64)
    logs = softmax.log_probabilities(states)
    torch.testing.assert_close(logs.exp().sum(dim=1), torch.ones(50).double(), rtol=0, atol=1e-12)
    expected = F.nll_loss(logs, targets, reduction="none")
    torch.testing.assert_close(softmax.token_losses(states, targets), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(softmax(states, targets), expected.mean(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("cutoffs", [[], [0, 5], [5, 5], [9, 5], [40]])
def test_cutoffs_outside_the_vocabulary_or_out_of_order_are_refused(cutoffs: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"cutoffs must increase and be in 1\.\.39"):
        AdaptiveSoftmax(n_words=40, width=64, cutoffs=cutoffs)


def test_cutoffs_that_leave_a_part_of_width_zero_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"width must be at least 64 for 3 cutoffs .* found 60"):
        AdaptiveSoftmax(n_words=40, width=60, cutoffs=[1, 2, 3])


# --- sampler ------------------------------------------------------------------------------------------------


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 300), st.data(), st.integers(0, 99))
def test_unique_samples_are_distinct_words_in_increasing_order(n_words: int, data, seed: int) -> None:
    n_samples = data.draw(st.integers(1, n_words))
    samples = LogUniformSampler(n_words, n_samples).draw(generator(seed))
    assert len(samples.ids) == n_samples
    assert (samples.ids.diff() > 0).all()
    assert samples.ids[0] >= 0
    assert samples.ids[-1] < n_words
    assert samples.n_tries >= n_samples


def test_tries_are_counted_as_if_words_were_drawn_one_at_a_time() -> None:
    sampler = LogUniformSampler(100, 30)
    samples = sampler.draw(generator(5))
    seen: set[int] = set()
    tries = 0
    for word in sampler._draw_words(generator(5)).tolist():
        seen.add(word)
        tries += 1
        if len(seen) == 30:
            break
    assert (sorted(seen), tries) == (samples.ids.tolist(), samples.n_tries)


def test_the_same_state_of_the_generator_gives_the_same_samples() -> None:
    sampler, source = LogUniformSampler(1000, 100), generator()
    first = sampler.draw(source)
    state = source.get_state()
    second = sampler.draw(source)
    source.set_state(state)
    again = sampler.draw(source)
    assert not torch.equal(first.ids, second.ids)
    assert torch.equal(second.ids, again.ids)
    assert second.n_tries == again.n_tries


def test_words_occur_as_often_as_their_probability_says() -> None:
    n_words, n_samples = 50, 200_000
    samples = LogUniformSampler(n_words, n_samples, unique=False).draw(generator())
    assert samples.n_tries == n_samples
    counts = np.bincount(samples.ids, minlength=n_words)
    expected = np.exp(samples.log_expected(torch.arange(n_words)).numpy())
    assert expected.sum() == pytest.approx(n_samples)
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()  # five standard deviations


def test_unique_words_occur_as_often_as_expected_for_the_number_of_tries() -> None:
    sampler, source = LogUniformSampler(60, 15), generator()
    draws = [sampler.draw(source) for _ in range(3000)]
    frequency = np.bincount(torch.cat([samples.ids for samples in draws]), minlength=60) / len(draws)
    expected = np.mean([samples.log_expected(torch.arange(60)).exp().numpy() for samples in draws], axis=0)
    np.testing.assert_allclose(frequency, expected, rtol=0, atol=0.04)


@pytest.mark.parametrize("n_tries", [5, 6, 40])
def test_expected_counts_agree_with_the_oracle(n_tries: int) -> None:
    samples = Samples(torch.tensor([0, 1, 2, 5, 9]), n_tries, 30)
    expected = [np.log(oracle.expected_count(k, 30, 5, n_tries)) for k in range(30)]
    np.testing.assert_allclose(samples.log_expected(torch.arange(30)), expected, rtol=0, atol=1e-12)


def test_expected_counts_of_rare_words_are_accurate() -> None:
    samples = Samples(torch.arange(2), 3, 50_000_000)
    word = 49_999_999
    p = 1 / (word + 1.5) / np.log(50_000_001)  # log((k + 2) / (k + 1)) ≈ 1 / (k + 1.5)
    assert samples.log_expected(torch.tensor([word])).item() == pytest.approx(np.log(3 * p), rel=1e-9)


def test_hits_are_all_pairs_of_equal_target_and_sample() -> None:
    samples = Samples(torch.tensor([1, 1, 3, 7, 7, 7]), 6, 10)
    targets = torch.tensor([7, 0, 1, 9, 3, 7])
    token, sample = samples.find_hits(targets)
    expected = [(t, k) for t, x in enumerate(targets) for k, y in enumerate(samples.ids) if x == y]
    assert list(zip(token.tolist(), sample.tolist(), strict=True)) == expected


@pytest.mark.parametrize(("n_words", "n_samples"), [(10, 11), (10, 0), (0, 0)])
def test_impossible_numbers_of_samples_are_refused(n_words: int, n_samples: int) -> None:
    with pytest.raises(ConfigError, match=f"n_samples must be in 1..{n_words}"):
        LogUniformSampler(n_words, n_samples)
