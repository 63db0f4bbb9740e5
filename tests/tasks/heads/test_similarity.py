"""Scores of how alike two sentences are."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from elmo.errors import ConfigError, DataError
from elmo.tasks.heads.pairs import SentenceEncoder, SimilarityHead, build_score_distribution
from tests.tasks.heads.test_attention import (
    N_WORDS,
    WIDTHS,
    assert_all_learn,
    assert_same_alone,
    train,
    vectors_of,
)

BOTH: list[SentenceEncoder] = ["lstm", "mean"]


def overlapping_pairs(rng: random.Random, n: int) -> tuple[list[list[int]], list[list[int]], Tensor]:
    """Sentences of three or four words; the score is 1 to 5 by the share of words in common."""
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
        return head.loss(vectors_of(first), vectors_of(second), scores)

    train(head, loss, n_steps=50, rate=0.03)
    first, second, scores = overlapping_pairs(rng, 200)
    predicted = head.predict(vectors_of(first), vectors_of(second))
    assert predicted.shape == (200,)
    assert predicted.min() >= 1
    assert predicted.max() <= 5
    assert torch.corrcoef(torch.stack([predicted, scores]))[0, 1] > 0.8


@pytest.mark.parametrize("encoder", BOTH)
def test_a_score_depends_neither_on_batch_mates_nor_on_padding_nor_on_the_order(encoder: SentenceEncoder) -> None:
    torch.manual_seed(0)
    head = SimilarityHead(WIDTHS, low=0, high=1, encoder=encoder, hidden_width=6).eval()
    first, second = [[1, 2, 3, 4, 5], [6], [7, 8]], [[1], [2, 3], [4, 5, 6, 7]]
    assert_same_alone(head.predict, first, second)
    a, b = vectors_of(first), vectors_of(second)
    torch.testing.assert_close(head.predict(a, b), head.predict(b, a))


@pytest.mark.parametrize("encoder", BOTH)
def test_gradients_reach_every_parameter(encoder: SentenceEncoder) -> None:
    torch.manual_seed(0)
    head = SimilarityHead(WIDTHS, low=1, high=5, encoder=encoder, hidden_width=6)
    first, second = vectors_of([[1, 2, 3], [3]]), vectors_of([[1], [4, 5]])
    assert_all_learn(head, head.loss(first, second, torch.tensor([1.5, 4.0])))


def test_the_loss_is_nothing_where_the_distribution_is_right() -> None:
    head = SimilarityHead(WIDTHS, low=1, high=5, hidden_width=6).eval()
    with torch.no_grad():
        head.final.weight.zero_()
        head.final.bias.copy_(torch.tensor([0.0, 0.0, 0.8, 0.2, 0.0]).log().clamp(min=-100))
    pair = vectors_of([[1, 2]]), vectors_of([[3]])
    assert head.predict(*pair).item() == pytest.approx(3.2, abs=1e-5)
    assert head.loss(*pair, torch.tensor([3.2])).item() == pytest.approx(0.0, abs=1e-5)
    assert head.loss(*pair, torch.tensor([3.5])).item() > 0.1


def test_a_score_is_shared_by_the_whole_ones_around_it() -> None:
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


def test_whole_numbers_are_scores_too() -> None:
    assert build_score_distribution(torch.tensor([2]), low=1, high=3).tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize("score", [0.9, 5.1, float("nan")])
def test_a_score_out_of_range_is_refused(score: float) -> None:
    with pytest.raises(DataError, match=rf"expected 1 to 5, found {score:g}"):
        build_score_distribution(torch.tensor([3.0, score]), low=1, high=5)


def test_a_range_or_encoder_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="found 5 and 1"):
        SimilarityHead(WIDTHS, low=5, high=1)
    with pytest.raises(ConfigError, match="must be lstm or mean, not 'cnn'"):
        SimilarityHead(WIDTHS, low=1, high=5, encoder="cnn")  # pyright: ignore[reportArgumentType]
