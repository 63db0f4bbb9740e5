"""One vector for a padded sentence, by every way of pooling."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from elmo.tasks.heads.layers import SelfAttentivePooling, masked_max, masked_mean, masked_min
from tests.tasks.heads.test_attention import INPUTS, WIDTHS, vectors_of

POOLINGS = [masked_max, masked_min, masked_mean, SelfAttentivePooling(WIDTHS.inputs)]
Pooling = Callable[[Tensor, Tensor], Tensor]


def test_poolings_take_the_largest_smallest_and_mean_of_the_words_alone() -> None:
    states = torch.tensor([[[-1.0, 4.0], [-3.0, 2.0], [99.0, -99.0]]])
    mask = torch.tensor([[True, True, False]])
    assert masked_max(states, mask).tolist() == [[-1.0, 4.0]]
    assert masked_min(states, mask).tolist() == [[-3.0, 2.0]]
    assert masked_mean(states, mask).tolist() == [[-2.0, 3.0]]


def test_self_attention_weighs_words_by_the_softmax_of_their_scores() -> None:
    pooling = SelfAttentivePooling(2)
    with torch.no_grad():
        pooling.score.weight.copy_(torch.tensor([[1.0, 0.0]]))
    states = torch.tensor([[[0.0, 8.0], [math.log(3.0), 4.0], [50.0, 50.0]]])
    found = pooling(states, torch.tensor([[True, True, False]]))
    torch.testing.assert_close(found, torch.tensor([[0.75 * math.log(3.0), 0.25 * 8 + 0.75 * 4]]))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_padding_changes_no_pooling(pooling: Pooling) -> None:
    sentences = [[1, 2, 3, 4, 5], [6, 7], [8]]
    plain, padded = vectors_of(sentences), vectors_of(sentences, garbage=float("nan"), extra=4)
    expected, found = pooling(plain.inputs, plain.mask), pooling(padded.inputs, padded.mask)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_sentence_of_one_word_is_that_word(pooling: Pooling) -> None:
    vectors = vectors_of([[8], [1, 2]])
    torch.testing.assert_close(pooling(vectors.inputs, vectors.mask)[0], INPUTS[8])


@pytest.mark.parametrize("pooling", POOLINGS)
def test_no_gradient_goes_to_padding(pooling: Pooling) -> None:
    vectors = vectors_of([[8], [1, 2]], garbage=3.0)
    states = vectors.inputs.requires_grad_()
    pooling(states, vectors.mask).square().sum().backward()
    assert states.grad is not None
    assert states.grad[0, 0].abs().sum() > 0
    assert states.grad[0, 1].abs().sum() == 0
