"""Pooling, attention and output features."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from elmo.errors import ShapeError
from elmo.tasks.heads import layers
from elmo.tasks.heads.layers import (
    FeatureVectors,
    SelfAttentivePooling,
    align,
    join_outputs,
    masked_max,
    masked_mean,
    masked_min,
    masked_softmax,
)
from tests.tasks.heads.toy_words import INPUTS, OUTPUTS, WIDTHS, build_features, largest_kept


def test_the_softmax_sums_to_one_over_words_and_is_zero_for_padding() -> None:
    scores = torch.tensor([[1.0, 1.0, 50.0], [2.0, 9.0, -9.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    torch.testing.assert_close(
        masked_softmax(scores, mask), torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), atol=0, rtol=0
    )


def test_alignment_agrees_with_the_equations() -> None:
    first, second = [[1, 2, 3], [4]], [[5, 6], [7, 8, 9, 1]]
    a, b = build_features(first, garbage=5.0), build_features(second, garbage=-5.0)
    found = align(a.inputs, b.inputs, mask=b.mask)
    words = INPUTS.double().numpy()
    for row, (one, other) in enumerate(zip(first, second, strict=True)):
        for i, word in enumerate(one):
            e = np.array([words[word] @ words[j] for j in other])
            weights = np.exp(e) / np.exp(e).sum()
            expected = sum(w * words[j] for w, j in zip(weights, other, strict=True))
            np.testing.assert_allclose(found[row, i].numpy(), expected, atol=1e-5)


def test_alignment_does_not_depend_on_padding() -> None:
    sentences = [[1, 2, 3, 4], [5]]
    plain, padded = build_features(sentences), build_features(sentences, garbage=float("nan"), extra=3)
    queries = torch.randn(2, 2, WIDTHS.inputs)
    torch.testing.assert_close(
        align(queries, padded.inputs, mask=padded.mask),
        align(queries, plain.inputs, mask=plain.mask),
        atol=1e-6,
        rtol=0,
    )


def test_output_features_are_joined_to_states_and_padding_is_zero() -> None:
    vectors = build_features([[1, 2], [3]], garbage=9.0)
    states = torch.ones(2, 2, 5)
    joined = join_outputs(states, vectors, width=WIDTHS.outputs)
    assert torch.equal(joined[0, 1], torch.cat([torch.ones(5), OUTPUTS[2]]))
    assert torch.equal(joined[1, 1], torch.zeros(5 + WIDTHS.outputs))


@pytest.mark.parametrize(("width", "message"), [(0, "width 0; found width 3"), (4, "width 4; found width 3")])
def test_output_features_of_another_width_raise_an_error(width: int, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        join_outputs(torch.ones(1, 1, 5), build_features([[1]]), width=width)


def test_missing_output_features_raise_an_error() -> None:
    vectors = FeatureVectors(torch.ones(1, 1, 5), torch.ones(1, 1, dtype=torch.bool))
    with pytest.raises(ShapeError, match="width 3; found width 0"):
        join_outputs(torch.ones(1, 1, 5), vectors, width=3)


def test_alignment_in_chunks_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, keys = (torch.randn(2, n, 4, dtype=torch.float64, requires_grad=True) for n in (7, 5))
    mask = torch.arange(5) < torch.tensor([[5], [3]])

    def results() -> list[Tensor]:
        found = align(queries, keys, mask=mask)
        return [found, *torch.autograd.grad(found.square().sum(), [queries, keys])]

    whole = results()
    monkeypatch.setattr(layers, "MAX_SCORES", 20)  # those of two rows
    for one, other in zip(results(), whole, strict=True):
        torch.testing.assert_close(one, other)


def test_alignment_of_a_long_text_does_not_store_all_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "MAX_SCORES", 1 << 16)
    text = torch.randn(1, 2000, 3, requires_grad=True)
    mask = torch.ones(1, 2000, dtype=torch.bool)
    assert largest_kept(lambda: align(text, text, mask=mask)) <= 1 << 16


POOLINGS = [masked_max, masked_min, masked_mean, SelfAttentivePooling(WIDTHS.inputs)]
Pooling = Callable[[Tensor, Tensor], Tensor]


def test_pooling_ignores_padding() -> None:
    states = torch.tensor([[[-1.0, 4.0], [-3.0, 2.0], [99.0, -99.0]]])
    mask = torch.tensor([[True, True, False]])
    assert masked_max(states, mask).tolist() == [[-1.0, 4.0]]
    assert masked_min(states, mask).tolist() == [[-3.0, 2.0]]
    assert masked_mean(states, mask).tolist() == [[-2.0, 3.0]]


def test_self_attentive_pooling_weights_words_by_a_softmax() -> None:
    pooling = SelfAttentivePooling(2)
    with torch.no_grad():
        pooling.score.weight.copy_(torch.tensor([[1.0, 0.0]]))
    states = torch.tensor([[[0.0, 8.0], [math.log(3.0), 4.0], [50.0, 50.0]]])
    found = pooling(states, torch.tensor([[True, True, False]]))
    torch.testing.assert_close(found, torch.tensor([[0.75 * math.log(3.0), 0.25 * 8 + 0.75 * 4]]))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_does_not_depend_on_padding(pooling: Pooling) -> None:
    sentences = [[1, 2, 3, 4, 5], [6, 7], [8]]
    plain, padded = build_features(sentences), build_features(sentences, garbage=float("nan"), extra=4)
    expected, found = pooling(plain.inputs, plain.mask), pooling(padded.inputs, padded.mask)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_of_one_word_is_that_word(pooling: Pooling) -> None:
    vectors = build_features([[8], [1, 2]])
    torch.testing.assert_close(pooling(vectors.inputs, vectors.mask)[0], INPUTS[8])


@pytest.mark.parametrize("pooling", POOLINGS)
def test_padding_gets_no_gradient_from_pooling(pooling: Pooling) -> None:
    vectors = build_features([[8], [1, 2]], garbage=3.0)
    states = vectors.inputs.requires_grad_()
    pooling(states, vectors.mask).square().sum().backward()
    assert states.grad is not None
    assert states.grad[0, 0].abs().sum() > 0
    assert states.grad[0, 1].abs().sum() == 0
