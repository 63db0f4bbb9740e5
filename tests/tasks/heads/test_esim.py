"""ESIM: the relation of two sentences."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn

from elmo.tasks.heads.layers import FeatureVectors
from elmo.tasks.heads.pairs import EsimHead
from tests.tasks.heads.test_attention import (
    INPUTS,
    N_WORDS,
    OUTPUTS,
    WIDTHS,
    assert_all_learn,
    assert_same_alone,
    train,
    vectors_of,
)

Pairs = tuple[list[list[int]], list[list[int]], Tensor]


def matching_pairs(rng: random.Random, n: int) -> Pairs:
    """Pairs of which the second has only words of the first (1), or one that is not there (0)."""
    first, second, labels = [], [], [rng.randrange(2) for _ in range(n)]
    for label in labels:
        *words, stranger = rng.sample(range(N_WORDS), rng.randrange(4, 6))
        first.append(words)
        second.append(rng.sample(words, 2) if label else rng.sample([rng.choice(words), stranger], 2))
    return first, second, torch.tensor(labels)


def test_it_learns_whether_the_words_of_two_sentences_match() -> None:
    torch.manual_seed(0)
    rng = random.Random(0)
    head = EsimHead(WIDTHS, n_labels=2, hidden_width=12, dropout=0.05)

    def loss() -> Tensor:
        first, second, labels = matching_pairs(rng, 32)
        return head.loss(vectors_of(first), vectors_of(second), labels)

    train(head, loss, n_steps=60, rate=0.03)
    first, second, labels = matching_pairs(rng, 100)
    probabilities = head.predict(vectors_of(first), vectors_of(second))
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(100))
    assert (probabilities.argmax(dim=1) == labels).float().mean() > 0.9


def test_a_prediction_depends_neither_on_batch_mates_nor_on_padding() -> None:
    torch.manual_seed(0)
    head = EsimHead(WIDTHS, n_labels=3, hidden_width=6).eval()
    assert_same_alone(head.predict, [[1, 2, 3, 4, 5], [6], [7, 8]], [[1], [2, 3], [4, 5, 6, 7]])


def test_gradients_reach_every_parameter() -> None:
    torch.manual_seed(0)
    head = EsimHead(WIDTHS, n_labels=3, hidden_width=16, dropout=0.0)
    first, second = vectors_of([[1, 2, 3], [3]]), vectors_of([[1], [4, 5]])
    assert_all_learn(head, head.loss(first, second, torch.tensor([0, 2])))


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
    head.predict(*(_double(vectors_of([one])) for one in (first, second)))

    beside = [OUTPUTS[one].double().numpy() for one in (first, second)]
    a, b = (np.concatenate(both, axis=1) for both in zip(seen["encoder"], beside, strict=True))
    e = np.array([[a_i @ b_j for b_j in b] for a_i in a])  # e_ij
    a_tilde = np.array([sum(np.exp(e[i, j]) * b[j] for j in range(3)) / np.exp(e[i]).sum() for i in range(4)])
    b_tilde = np.array(
        [sum(np.exp(e[i, j]) * a[i] for i in range(4)) / np.exp(e[:, j]).sum() for j in range(3)]
    )
    m_a = np.concatenate([a, a_tilde, a - a_tilde, a * a_tilde], axis=1)
    m_b = np.concatenate([b, b_tilde, b - b_tilde, b * b_tilde], axis=1)
    for found, expected in zip(seen["projection"], (m_a, m_b), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)
    pooled = [pool for v in seen["composition"] for pool in (v.mean(axis=0), v.max(axis=0))]
    np.testing.assert_allclose(seen["final"][0], np.concatenate(pooled), atol=1e-9)


def _double(vectors: FeatureVectors) -> FeatureVectors:
    assert vectors.outputs is not None
    return FeatureVectors(vectors.inputs.double(), vectors.mask, vectors.outputs.double())


def test_vectors_for_the_output_reach_the_alignment() -> None:
    torch.manual_seed(0)
    head = EsimHead(WIDTHS, n_labels=2, hidden_width=5).eval()
    first, second = vectors_of([[1, 2]]), vectors_of([[3, 4]])
    other = FeatureVectors(INPUTS[[1, 2]].unsqueeze(0), first.mask, OUTPUTS[[5, 6]].unsqueeze(0))
    assert not torch.allclose(head.predict(first, second), head.predict(other, second))
