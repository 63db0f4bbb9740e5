"""Attention over padded sentences, and the toy words that the tests of the heads share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from elmo.errors import ShapeError
from elmo.tasks.heads import layers as attention
from elmo.tasks.heads.layers import FeatureVectors, FeatureWidths, align, join_outputs, masked_softmax

N_WORDS = 12
WIDTHS = FeatureWidths(inputs=8, outputs=3)
_random = torch.Generator().manual_seed(0)
INPUTS = torch.randn(N_WORDS, WIDTHS.inputs, generator=_random)  # a vector for each toy word
OUTPUTS = torch.randn(N_WORDS, WIDTHS.outputs, generator=_random)
Sentences = Sequence[Sequence[int]]


def vectors_of(sentences: Sentences, *, garbage: float = 0.0, extra: int = 0) -> FeatureVectors:
    """Vectors of toy words; ``garbage`` fills the padding, ``extra`` more of it than is needed."""
    time = max(map(len, sentences)) + extra
    words = torch.tensor([[*sentence, *[0] * (time - len(sentence))] for sentence in sentences])
    mask = torch.arange(time) < torch.tensor([len(sentence) for sentence in sentences]).unsqueeze(1)
    inputs = INPUTS[words].masked_fill(~mask.unsqueeze(-1), garbage)  # (batch, time, width)
    outputs = OUTPUTS[words].masked_fill(~mask.unsqueeze(-1), garbage)
    return FeatureVectors(inputs, mask, outputs)


def train(head: nn.Module, loss: Callable[[], Tensor], *, n_steps: int, rate: float = 0.01) -> None:
    """Adam for ``n_steps`` of ``loss``, then ``eval()``."""
    optimizer = torch.optim.Adam(head.parameters(), lr=rate)
    head.train()
    for _ in range(n_steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    head.eval()


def assert_same_alone(predict: Callable[..., Tensor], *sides: Sentences) -> None:
    """A prediction is the same without batch mates and without padding, whatever stands there."""
    together = predict(*(vectors_of(side, garbage=7.0, extra=2) for side in sides))
    again = predict(*(vectors_of(side, garbage=7.0, extra=2) for side in sides))
    alone = [predict(*(vectors_of([one]) for one in row)) for row in zip(*sides, strict=True)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-6, rtol=0)
    assert torch.equal(together, again)


def assert_all_learn(head: nn.Module, loss: Tensor) -> None:
    """The gradient of ``loss`` reaches every parameter."""
    loss.backward()
    still = [name for name, p in head.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-8]
    assert not still


def test_the_softmax_shares_one_among_words_and_gives_padding_nothing() -> None:
    scores = torch.tensor([[1.0, 1.0, 50.0], [2.0, 9.0, -9.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    torch.testing.assert_close(
        masked_softmax(scores, mask), torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), atol=0, rtol=0
    )


def test_an_alignment_agrees_with_the_equations_word_by_word() -> None:
    first, second = [[1, 2, 3], [4]], [[5, 6], [7, 8, 9, 1]]
    a, b = vectors_of(first, garbage=5.0), vectors_of(second, garbage=-5.0)
    found = align(a.inputs, b.inputs, mask=b.mask)
    words = INPUTS.double().numpy()
    for row, (one, other) in enumerate(zip(first, second, strict=True)):
        for i, word in enumerate(one):
            e = np.array([words[word] @ words[j] for j in other])
            weights = np.exp(e) / np.exp(e).sum()
            expected = sum(w * words[j] for w, j in zip(weights, other, strict=True))
            np.testing.assert_allclose(found[row, i].numpy(), expected, atol=1e-5)


def test_an_alignment_does_not_depend_on_padding() -> None:
    sentences = [[1, 2, 3, 4], [5]]
    plain, padded = vectors_of(sentences), vectors_of(sentences, garbage=float("nan"), extra=3)
    queries = torch.randn(2, 2, WIDTHS.inputs)
    torch.testing.assert_close(
        align(queries, padded.inputs, mask=padded.mask),
        align(queries, plain.inputs, mask=plain.mask),
        atol=1e-6,
        rtol=0,
    )


def test_vectors_for_the_output_stand_beside_the_states_and_padding_is_zero() -> None:
    vectors = vectors_of([[1, 2], [3]], garbage=9.0)
    states = torch.ones(2, 2, 5)
    joined = join_outputs(states, vectors, width=WIDTHS.outputs)
    assert torch.equal(joined[0, 1], torch.cat([torch.ones(5), OUTPUTS[2]]))
    assert torch.equal(joined[1, 1], torch.zeros(5 + WIDTHS.outputs))


@pytest.mark.parametrize(("width", "message"), [(0, "width 0, found 3"), (4, "width 4, found 3")])
def test_vectors_for_the_output_of_another_width_are_refused(width: int, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        join_outputs(torch.ones(1, 1, 5), vectors_of([[1]]), width=width)


def test_vectors_for_the_output_that_are_missing_are_refused() -> None:
    vectors = FeatureVectors(torch.ones(1, 1, 5), torch.ones(1, 1, dtype=torch.bool))
    with pytest.raises(ShapeError, match="width 3, found 0"):
        join_outputs(torch.ones(1, 1, 5), vectors, width=3)


def largest_kept(compute: Callable[[], Tensor]) -> int:
    """Numbers of the largest tensor that is kept for the gradients of ``compute``."""
    sizes = [0]

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        compute().sum().backward()
    return max(sizes)


def test_long_texts_are_aligned_in_parts_with_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, keys = (torch.randn(2, n, 4, dtype=torch.float64, requires_grad=True) for n in (7, 5))
    mask = torch.arange(5) < torch.tensor([[5], [3]])

    def results() -> list[Tensor]:
        found = align(queries, keys, mask=mask)
        return [found, *torch.autograd.grad(found.square().sum(), [queries, keys])]

    whole = results()
    monkeypatch.setattr(attention, "MAX_SCORES", 20)  # those of two rows
    for one, other in zip(results(), whole, strict=True):
        torch.testing.assert_close(one, other)


def test_an_alignment_of_many_thousand_tokens_keeps_no_square(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "MAX_SCORES", 1 << 16)
    text = torch.randn(1, 2000, 3, requires_grad=True)
    mask = torch.ones(1, 2000, dtype=torch.bool)
    assert largest_kept(lambda: align(text, text, mask=mask)) <= 1 << 16
