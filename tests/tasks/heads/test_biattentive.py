"""The biattentive classification network."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from elmo.errors import ConfigError, ShapeError
from elmo.tasks.heads.classifiers import BiattentiveHead, FinalLayers, Maxout
from elmo.tasks.heads.layers import FeatureVectors, FeatureWidths
from tests.tasks.heads.test_attention import (
    N_WORDS,
    OUTPUTS,
    WIDTHS,
    assert_all_learn,
    assert_same_alone,
    train,
    vectors_of,
)

BOTH: list[FinalLayers] = ["relu", "maxout"]


def ordered_words(rng: random.Random, n: int) -> tuple[list[list[int]], Tensor]:
    """Texts with the words 0 and 1 among others, and whether 0 comes first."""
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
        return head.loss(vectors_of(texts), labels)

    train(head, loss, n_steps=45, rate=0.02)
    texts, labels = ordered_words(rng, 100)
    probabilities = head.predict(vectors_of(texts))
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(100))
    assert (probabilities.argmax(dim=1) == labels).float().mean() > 0.9


@pytest.mark.parametrize("final_layers", BOTH)
def test_a_prediction_depends_neither_on_batch_mates_nor_on_padding(final_layers: FinalLayers) -> None:
    torch.manual_seed(0)
    head = BiattentiveHead(WIDTHS, n_labels=3, hidden_width=6, final_layers=final_layers).eval()
    assert_same_alone(head.predict, [[1, 2, 3, 4, 5], [6], [7, 8]])


@pytest.mark.parametrize("final_layers", BOTH)
def test_gradients_reach_every_parameter_even_with_one_text_of_one_word(final_layers: FinalLayers) -> None:
    torch.manual_seed(0)
    head = BiattentiveHead(WIDTHS, n_labels=3, hidden_width=16, dropout=0.0, final_layers=final_layers)
    assert head.loss(vectors_of([[1]]), torch.tensor([2])).isfinite()
    assert_all_learn(head, head.loss(vectors_of([[1, 2, 3], [3, 4]]), torch.tensor([0, 2])))


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
    text = vectors_of([[1, 2, 3, 4]])
    assert text.outputs is not None
    head.predict(FeatureVectors(text.inputs.double(), text.mask, text.outputs.double()))

    x = np.concatenate([seen["encoder"], OUTPUTS[1:5].double().numpy()], axis=1)  # (time, width)
    a = x @ x.T  # A = X Yᵀ, where Y is X
    a_y = np.exp(a.T) / np.exp(a.T).sum(axis=0)  # columns add up to 1
    c_y = a_y.T @ x
    np.testing.assert_allclose(
        seen["integrator in"], np.concatenate([x, x - c_y, x * c_y], axis=1), atol=1e-9
    )

    integrated = seen["integrator"]
    v = head.self_attentive.score.weight.detach().numpy()[0]
    beta = np.exp(integrated @ v) / np.exp(integrated @ v).sum()
    pooled = [integrated.max(axis=0), integrated.mean(axis=0), integrated.min(axis=0), integrated.T @ beta]
    np.testing.assert_allclose(seen["final in"], np.concatenate(pooled), atol=1e-9)


def test_maxout_takes_the_largest_of_its_pieces() -> None:
    layer = Maxout(1, 2, n_pieces=2)
    with torch.no_grad():
        layer.linear.weight.copy_(torch.tensor([[1.0], [-1.0], [2.0], [3.0]]))
        layer.linear.bias.zero_()
    assert layer(torch.tensor([[2.0], [-2.0]])).tolist() == [[2.0, 6.0], [2.0, -4.0]]


def test_it_works_without_vectors_for_the_output_and_refuses_them_then() -> None:
    head = BiattentiveHead(FeatureWidths(inputs=WIDTHS.inputs), n_labels=2, hidden_width=4).eval()
    text = vectors_of([[1, 2]])
    assert head.predict(FeatureVectors(text.inputs, text.mask)).shape == (1, 2)
    with pytest.raises(ShapeError, match="built for width 0, found 3"):
        head.predict(text)


def test_unknown_final_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be relu or maxout, not 'tanh'"):
        BiattentiveHead(WIDTHS, n_labels=2, final_layers="tanh")  # pyright: ignore[reportArgumentType]
