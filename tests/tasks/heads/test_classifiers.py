"""Heads for text classification."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from elmo.errors import ShapeError
from elmo.tasks.heads.classifiers import BiattentiveHead, FinalLayers, LinearHead, Maxout
from elmo.tasks.heads.layers import FeatureVectors, FeatureWidths
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


def frequent_words(rng: random.Random, n: int) -> tuple[list[list[int]], Tensor]:
    """Return texts with word 0, 1 or 2 twice among others; the label is this word."""
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
        return head.loss(build_features(texts), labels=labels)

    train(head, loss, n_steps=40, rate=0.1)
    texts, labels = frequent_words(rng, 100)
    probabilities = head.predict(build_features(texts))
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(100))
    assert (probabilities.argmax(dim=1) == labels).float().mean() > 0.9


@pytest.mark.parametrize("use_max", [False, True])
def test_a_prediction_of_the_linear_head_does_not_depend_on_the_batch(use_max: bool) -> None:
    head = LinearHead(WIDTHS, n_labels=3, use_max=use_max).eval()
    assert_same_alone(head.predict, [[1, 2, 3, 4, 5], [6], [7, 8]])


def test_scores_are_a_linear_function_of_the_mean() -> None:
    head = LinearHead(FeatureWidths(inputs=WIDTHS.inputs), n_labels=3).eval()
    plain = build_features([[1, 2]])
    expected = head.linear.weight @ (INPUTS[1] + INPUTS[2]) / 2 + head.linear.bias
    torch.testing.assert_close(head(FeatureVectors(plain.inputs, plain.mask))[0], expected)


def test_gradients_of_the_linear_head_reach_every_parameter() -> None:
    torch.manual_seed(0)
    head = LinearHead(WIDTHS, n_labels=3, use_max=True)
    assert_all_learn(head, head.loss(build_features([[1, 2], [3]]), labels=torch.tensor([0, 2])))


BOTH: list[FinalLayers] = ["relu", "maxout"]


def ordered_words(rng: random.Random, n: int) -> tuple[list[list[int]], Tensor]:
    """Return texts with the words 0 and 1 among others; the label is whether 0 comes first."""
    texts = []
    for _ in range(n):
        text = [0, 1, *(rng.randrange(2, N_WORDS) for _ in range(rng.randrange(4)))]
        rng.shuffle(text)
        texts.append(text)
    return texts, torch.tensor([int(text.index(0) < text.index(1)) for text in texts])


@pytest.mark.parametrize("final_layers", BOTH)
def test_it_learns_the_order_of_two_words(final_layers: FinalLayers) -> None:
    torch.manual_seed(0)
    rng = random.Random(0)
    head = BiattentiveHead(WIDTHS, n_labels=2, hidden_width=12, dropout=0.05, final_layers=final_layers)

    def loss() -> Tensor:
        texts, labels = ordered_words(rng, 32)
        return head.loss(build_features(texts), labels=labels)

    train(head, loss, n_steps=45, rate=0.02)
    texts, labels = ordered_words(rng, 100)
    probabilities = head.predict(build_features(texts))
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(100))
    assert (probabilities.argmax(dim=1) == labels).float().mean() > 0.9


@pytest.mark.parametrize("final_layers", BOTH)
def test_a_prediction_does_not_depend_on_the_batch(final_layers: FinalLayers) -> None:
    torch.manual_seed(0)
    head = BiattentiveHead(WIDTHS, n_labels=3, hidden_width=6, final_layers=final_layers).eval()
    assert_same_alone(head.predict, [[1, 2, 3, 4, 5], [6], [7, 8]])


@pytest.mark.parametrize("final_layers", BOTH)
def test_gradients_reach_every_parameter_even_with_one_text_of_one_word(final_layers: FinalLayers) -> None:
    torch.manual_seed(0)
    head = BiattentiveHead(WIDTHS, n_labels=3, hidden_width=16, dropout=0.0, final_layers=final_layers)
    assert head.loss(build_features([[1]]), labels=torch.tensor([2])).isfinite()
    assert_all_learn(head, head.loss(build_features([[1, 2, 3], [3, 4]]), labels=torch.tensor([0, 2])))


def test_biattention_and_poolings_agree_with_the_papers_equations() -> None:
    torch.manual_seed(0)
    head = BiattentiveHead(WIDTHS, n_labels=2, hidden_width=5).double().eval()
    seen: dict[str, np.ndarray] = {}

    def keep(name: str) -> None:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen[f"{name} in"], seen[name] = inputs[0][0].numpy(), output[0].numpy()

        getattr(head, name).register_forward_hook(hook)

    for name in ("encoder", "integrator", "final"):
        keep(name)
    text = build_features([[1, 2, 3, 4]])
    assert text.outputs is not None
    head.predict(FeatureVectors(text.inputs.double(), text.mask, text.outputs.double()))

    x = np.concatenate([seen["encoder"], OUTPUTS[1:5].double().numpy()], axis=1)  # (time, width)
    a = x @ x.T  # A = X Yᵀ, where Y is X
    a_y = np.exp(a.T) / np.exp(a.T).sum(axis=0)  # columns add up to 1
    c_y = a_y.T @ x
    np.testing.assert_allclose(seen["integrator in"], np.concatenate([x, x - c_y, x * c_y], axis=1), atol=1e-9)

    integrated = seen["integrator"]
    v = head.self_attentive.score.weight.detach().numpy()[0]
    beta = np.exp(integrated @ v) / np.exp(integrated @ v).sum()
    pooled = [integrated.max(axis=0), integrated.mean(axis=0), integrated.min(axis=0), integrated.T @ beta]
    np.testing.assert_allclose(seen["final in"], np.concatenate(pooled), atol=1e-9)


def test_maxout_takes_the_maximum_of_its_pieces() -> None:
    layer = Maxout(1, 2, n_pieces=2)
    with torch.no_grad():
        layer.linear.weight.copy_(torch.tensor([[1.0], [-1.0], [2.0], [3.0]]))
        layer.linear.bias.zero_()
    assert layer(torch.tensor([[2.0], [-2.0]])).tolist() == [[2.0, 6.0], [2.0, -4.0]]


def test_output_features_are_optional_but_must_match_the_head() -> None:
    head = BiattentiveHead(FeatureWidths(inputs=WIDTHS.inputs), n_labels=2, hidden_width=4).eval()
    text = build_features([[1, 2]])
    assert head.predict(FeatureVectors(text.inputs, text.mask)).shape == (1, 2)
    with pytest.raises(ShapeError, match="must have width 0; found width 3"):
        head.predict(text)
