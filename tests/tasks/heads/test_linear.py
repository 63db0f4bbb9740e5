"""The plain text classifier."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from elmo.tasks.heads.classifiers import LinearHead
from elmo.tasks.heads.layers import FeatureVectors, FeatureWidths
from tests.tasks.heads.test_attention import (
    INPUTS,
    N_WORDS,
    WIDTHS,
    assert_all_learn,
    assert_same_alone,
    train,
    vectors_of,
)


def frequent_words(rng: random.Random, n: int) -> tuple[list[list[int]], Tensor]:
    """Texts with word 0, 1 or 2 twice among others, and which of them it is."""
    texts, labels = [], [rng.randrange(3) for _ in range(n)]
    for label in labels:
        texts.append([label, label, *(rng.randrange(3, N_WORDS) for _ in range(rng.randrange(4)))])
        rng.shuffle(texts[-1])
    return texts, torch.tensor(labels)


@pytest.mark.parametrize("use_max", [False, True])
def test_it_learns_which_words_a_text_has(use_max: bool) -> None:
    torch.manual_seed(0)
    rng = random.Random(0)
    head = LinearHead(WIDTHS, n_labels=3, use_max=use_max)

    def loss() -> Tensor:
        texts, labels = frequent_words(rng, 64)
        return head.loss(vectors_of(texts), labels)

    train(head, loss, n_steps=40, rate=0.1)
    texts, labels = frequent_words(rng, 100)
    probabilities = head.predict(vectors_of(texts))
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(100))
    assert (probabilities.argmax(dim=1) == labels).float().mean() > 0.9


@pytest.mark.parametrize("use_max", [False, True])
def test_a_prediction_depends_neither_on_batch_mates_nor_on_padding(use_max: bool) -> None:
    head = LinearHead(WIDTHS, n_labels=3, use_max=use_max).eval()
    assert_same_alone(head.predict, [[1, 2, 3, 4, 5], [6], [7, 8]])


def test_its_scores_are_a_linear_function_of_the_mean() -> None:
    head = LinearHead(FeatureWidths(inputs=WIDTHS.inputs), n_labels=3).eval()
    plain = vectors_of([[1, 2]])
    expected = head.linear.weight @ (INPUTS[1] + INPUTS[2]) / 2 + head.linear.bias
    torch.testing.assert_close(head(FeatureVectors(plain.inputs, plain.mask))[0], expected)


def test_gradients_reach_every_parameter() -> None:
    torch.manual_seed(0)
    head = LinearHead(WIDTHS, n_labels=3, use_max=True)
    assert_all_learn(head, head.loss(vectors_of([[1, 2], [3]]), torch.tensor([0, 2])))
