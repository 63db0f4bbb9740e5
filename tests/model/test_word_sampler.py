from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.errors import ConfigError
from elmo.model.softmax import LogUniformSampler, Samples
from tests import oracle


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 300), st.data(), st.integers(0, 99))
def test_distinct_samples_are_distinct_words_in_rising_order(n_words: int, data, seed: int) -> None:
    n_samples = data.draw(st.integers(1, n_words))
    samples = LogUniformSampler(n_words, n_samples).draw(generator(seed))
    assert len(samples.ids) == n_samples
    assert (samples.ids.diff() > 0).all()
    assert samples.ids[0] >= 0
    assert samples.ids[-1] < n_words
    assert samples.n_tries >= n_samples


def test_tries_are_counted_as_if_words_were_drawn_one_by_one() -> None:
    sampler = LogUniformSampler(100, 30)
    samples = sampler.draw(generator(5))
    seen: set[int] = set()
    tries = 0
    for word in sampler._words(generator(5)).tolist():
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


def test_words_come_as_often_as_their_probability_says() -> None:
    n_words, n_samples = 50, 200_000
    samples = LogUniformSampler(n_words, n_samples, unique=False).draw(generator())
    assert samples.n_tries == n_samples
    counts = np.bincount(samples.ids, minlength=n_words)
    expected = np.exp(samples.log_expected(torch.arange(n_words)).numpy())
    assert expected.sum() == pytest.approx(n_samples)
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()  # five standard deviations


def test_distinct_words_come_as_often_as_expected_with_the_number_of_tries() -> None:
    sampler, source = LogUniformSampler(60, 15), generator()
    draws = [sampler.draw(source) for _ in range(3000)]
    found = np.bincount(torch.cat([samples.ids for samples in draws]), minlength=60) / len(draws)
    expected = np.mean([samples.log_expected(torch.arange(60)).exp().numpy() for samples in draws], axis=0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.04)


@pytest.mark.parametrize("n_tries", [5, 6, 40])
def test_expected_counts_agree_with_the_oracle(n_tries: int) -> None:
    samples = Samples(torch.tensor([0, 1, 2, 5, 9]), n_tries, 30)
    expected = [np.log(oracle.expected_count(k, 30, 5, n_tries)) for k in range(30)]
    np.testing.assert_allclose(samples.log_expected(torch.arange(30)), expected, rtol=0, atol=1e-12)


def test_rare_words_of_large_vocabularies_keep_their_digits() -> None:
    samples = Samples(torch.arange(2), 3, 50_000_000)
    word = 49_999_999
    p = 1 / (word + 1.5) / np.log(50_000_001)  # log((k + 2) / (k + 1)) ≈ 1 / (k + 1.5)
    assert samples.log_expected(torch.tensor([word])).item() == pytest.approx(np.log(3 * p), rel=1e-9)


def test_hits_are_every_pair_of_equal_target_and_sample() -> None:
    samples = Samples(torch.tensor([1, 1, 3, 7, 7, 7]), 6, 10)
    targets = torch.tensor([7, 0, 1, 9, 3, 7])
    token, place = samples.hits(targets)
    expected = [(t, k) for t, x in enumerate(targets) for k, y in enumerate(samples.ids) if x == y]
    assert list(zip(token.tolist(), place.tolist(), strict=True)) == expected


@pytest.mark.parametrize(("n_words", "n_samples"), [(10, 11), (10, 0), (0, 0)])
def test_impossible_numbers_are_refused(n_words: int, n_samples: int) -> None:
    with pytest.raises(ConfigError, match=f"expected 1 to {n_words} samples"):
        LogUniformSampler(n_words, n_samples)
