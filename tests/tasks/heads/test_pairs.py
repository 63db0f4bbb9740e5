"""Heads for entailment and similarity."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from elmo.errors import ConfigError, DataError
from elmo.tasks.heads.layers import FeatureVectors
from elmo.tasks.heads.pairs import EsimHead, SentenceEncoder, SimilarityHead, build_score_distribution
from tests.tasks.heads.toy_words import (
    INPUTS,
    N_WORDS,
    OUTPUTS,
    WIDTHS,
    assert_all_learn,
    assert_same_alone,
    build_features,
    train,
)

Pairs = tuple[list[list[int]], list[list[int]], Tensor]


def matching_pairs(rng: random.Random, n: int) -> Pairs:
    """Return pairs; the label is 1 if all words of the second are in the first, and 0 if one is not."""
    first, second, labels = [], [], [rng.randrange(2) for _ in range(n)]
    for label in labels:
        *words, other = rng.sample(range(N_WORDS), rng.randrange(4, 6))
        first.append(words)
        second.append(rng.sample(words, 2) if label else rng.sample([rng.choice(words), other], 2))
    return first, second, torch.tensor(labels)


@pytest.mark.slow
def test_it_learns_whether_the_words_of_two_sentences_match() -> None:
    torch.manual_seed(0)
    rng = random.Random(0)
    head = EsimHead(WIDTHS, n_labels=2, hidden_width=12, dropout=0.05)

    def loss() -> Tensor:
        first, second, labels = matching_pairs(rng, 32)
        return head.loss(build_features(first), build_features(second), labels=labels)

    train(head, loss, n_steps=60, rate=0.03)
    first, second, labels = matching_pairs(rng, 100)
    probabilities = head.predict(build_features(first), build_features(second))
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(100))
    assert (probabilities.argmax(dim=1) == labels).float().mean() > 0.9


def test_a_prediction_does_not_depend_on_the_batch() -> None:
    torch.manual_seed(0)
    head = EsimHead(WIDTHS, n_labels=3, hidden_width=6).eval()
    assert_same_alone(head.predict, [[1, 2, 3, 4, 5], [6], [7, 8]], [[1], [2, 3], [4, 5, 6, 7]])


def test_gradients_of_esim_reach_every_parameter() -> None:
    torch.manual_seed(0)
    head = EsimHead(WIDTHS, n_labels=3, hidden_width=16, dropout=0.0)
    first, second = build_features([[1, 2, 3], [3]]), build_features([[1], [4, 5]])
    assert_all_learn(head, head.loss(first, second, labels=torch.tensor([0, 2])))


def test_alignment_and_pooling_agree_with_the_papers_equations() -> None:
    torch.manual_seed(0)
    head = EsimHead(WIDTHS, n_labels=2, hidden_width=5).double().eval()
    seen: dict[str, list[np.ndarray]] = {"encoder": [], "projection": [], "composition": [], "final": []}

    def keep(name: str) -> None:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            is_output = name in ("encoder", "composition")
            seen[name].append((output if is_output else inputs[0])[0].numpy())

        getattr(head, name).register_forward_hook(hook)

    for name in seen:
        keep(name)
    first, second = [1, 2, 3, 4], [5, 1, 7]
    head.predict(*(_double(build_features([one])) for one in (first, second)))

    outputs = [OUTPUTS[one].double().numpy() for one in (first, second)]
    a, b = (np.concatenate(both, axis=1) for both in zip(seen["encoder"], outputs, strict=True))
    e = np.array([[a_i @ b_j for b_j in b] for a_i in a])  # e_ij
    a_tilde = np.array([sum(np.exp(e[i, j]) * b[j] for j in range(3)) / np.exp(e[i]).sum() for i in range(4)])
    b_tilde = np.array([sum(np.exp(e[i, j]) * a[i] for i in range(4)) / np.exp(e[:, j]).sum() for j in range(3)])
    m_a = np.concatenate([a, a_tilde, a - a_tilde, a * a_tilde], axis=1)
    m_b = np.concatenate([b, b_tilde, b - b_tilde, b * b_tilde], axis=1)
    for found, expected in zip(seen["projection"], (m_a, m_b), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)
    pooled = [pool for v in seen["composition"] for pool in (v.mean(axis=0), v.max(axis=0))]
    np.testing.assert_allclose(seen["final"][0], np.concatenate(pooled), atol=1e-9)


def _double(vectors: FeatureVectors) -> FeatureVectors:
    assert vectors.outputs is not None
    return FeatureVectors(vectors.inputs.double(), vectors.mask, vectors.outputs.double())


def test_output_features_reach_the_alignment() -> None:
    torch.manual_seed(0)
    head = EsimHead(WIDTHS, n_labels=2, hidden_width=5).eval()
    first, second = build_features([[1, 2]]), build_features([[3, 4]])
    other = FeatureVectors(INPUTS[[1, 2]].unsqueeze(0), first.mask, OUTPUTS[[5, 6]].unsqueeze(0))
    assert not torch.allclose(head.predict(first, second), head.predict(other, second))


BOTH: list[SentenceEncoder] = ["lstm", "mean"]


def overlapping_pairs(rng: random.Random, n: int) -> tuple[list[list[int]], list[list[int]], Tensor]:
    """Return sentences of three or four words; the score from 1 to 5 is the share of common words."""
    first, second, scores = [], [], []
    for _ in range(n):
        length = rng.choice((3, 4))
        words = rng.sample(range(N_WORDS), 2 * length)
        same = rng.randrange(length + 1)
        first.append(words[:length])
        second.append(rng.sample(words[length - same : 2 * length - same], length))
        scores.append(1 + 4 * same / length)
    return first, second, torch.tensor(scores)


@pytest.mark.parametrize("encoder", BOTH)
def test_it_learns_how_many_words_two_sentences_share(encoder: SentenceEncoder) -> None:
    torch.manual_seed(0)
    rng = random.Random(0)
    head = SimilarityHead(WIDTHS, low=1, high=5, encoder=encoder, hidden_width=16, dropout=0.0)

    def loss() -> Tensor:
        first, second, scores = overlapping_pairs(rng, 64)
        return head.loss(build_features(first), build_features(second), scores)

    train(head, loss, n_steps=50, rate=0.03)
    first, second, scores = overlapping_pairs(rng, 200)
    predicted = head.predict(build_features(first), build_features(second))
    assert predicted.shape == (200,)
    assert predicted.min() >= 1
    assert predicted.max() <= 5
    assert torch.corrcoef(torch.stack([predicted, scores]))[0, 1] > 0.8


@pytest.mark.parametrize("encoder", BOTH)
def test_a_score_does_not_depend_on_the_batch_or_the_order(encoder: SentenceEncoder) -> None:
    torch.manual_seed(0)
    head = SimilarityHead(WIDTHS, low=0, high=1, encoder=encoder, hidden_width=6).eval()
    first, second = [[1, 2, 3, 4, 5], [6], [7, 8]], [[1], [2, 3], [4, 5, 6, 7]]
    assert_same_alone(head.predict, first, second)
    a, b = build_features(first), build_features(second)
    torch.testing.assert_close(head.predict(a, b), head.predict(b, a))


@pytest.mark.parametrize("encoder", BOTH)
def test_gradients_reach_every_parameter(encoder: SentenceEncoder) -> None:
    torch.manual_seed(0)
    head = SimilarityHead(WIDTHS, low=1, high=5, encoder=encoder, hidden_width=6)
    first, second = build_features([[1, 2, 3], [3]]), build_features([[1], [4, 5]])
    assert_all_learn(head, head.loss(first, second, torch.tensor([1.5, 4.0])))


def test_the_loss_is_zero_for_the_true_distribution() -> None:
    head = SimilarityHead(WIDTHS, low=1, high=5, hidden_width=6).eval()
    with torch.no_grad():
        head.final.weight.zero_()
        head.final.bias.copy_(torch.tensor([0.0, 0.0, 0.8, 0.2, 0.0]).log().clamp(min=-100))
    pair = build_features([[1, 2]]), build_features([[3]])
    assert head.predict(*pair).item() == pytest.approx(3.2, abs=1e-5)
    assert head.loss(*pair, torch.tensor([3.2])).item() == pytest.approx(0.0, abs=1e-5)
    assert head.loss(*pair, torch.tensor([3.5])).item() > 0.1


def test_a_score_is_distributed_over_the_integers_around_it() -> None:
    found = build_score_distribution(torch.tensor([3.2, 5.0, 1.0, 2.0]), low=1, high=5)
    expected = [[0, 0, 0.8, 0.2, 0], [0, 0, 0, 0, 1], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0]]
    torch.testing.assert_close(found, torch.tensor(expected))


@given(low=st.integers(-3, 3), n=st.integers(1, 6), share=st.floats(0, 1))
def test_the_mean_of_a_distribution_is_the_score(low: int, n: int, share: float) -> None:
    score = low + share * n
    shares = build_score_distribution(torch.tensor([score]), low=low, high=low + n)[0]
    assert shares.sum().item() == pytest.approx(1.0, abs=1e-5)
    assert shares.min() >= 0
    assert (shares @ torch.arange(low, low + n + 1.0)).item() == pytest.approx(score, abs=1e-5)


def test_scores_may_be_integers() -> None:
    assert build_score_distribution(torch.tensor([2]), low=1, high=3).tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize("score", [0.9, 5.1, float("nan")])
def test_a_score_out_of_range_raises_an_error(score: float) -> None:
    with pytest.raises(DataError, match=rf"score must be a number from 1 to 5; found {score:g}"):
        build_score_distribution(torch.tensor([3.0, score]), low=1, high=5)


def test_an_invalid_range_raises_an_error() -> None:
    with pytest.raises(ConfigError, match="the lowest score must be below the highest; found 5 and 1"):
        SimilarityHead(WIDTHS, low=5, high=1)
