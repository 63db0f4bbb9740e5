"""Toy words with random vectors, and checks that the tests of heads share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from elmo.tasks.heads.layers import FeatureVectors, FeatureWidths

N_WORDS = 12
WIDTHS = FeatureWidths(inputs=8, outputs=3)
_random = torch.Generator().manual_seed(0)
INPUTS = torch.randn(N_WORDS, WIDTHS.inputs, generator=_random)  # a vector for each toy word
OUTPUTS = torch.randn(N_WORDS, WIDTHS.outputs, generator=_random)
Sentences = Sequence[Sequence[int]]


def build_features(sentences: Sentences, *, garbage: float = 0.0, extra: int = 0) -> FeatureVectors:
    """Return vectors of toy words; ``garbage`` fills the padding, with ``extra`` more time steps."""
    time = max(map(len, sentences)) + extra
    words = torch.tensor([[*sentence, *[0] * (time - len(sentence))] for sentence in sentences])
    mask = torch.arange(time) < torch.tensor([len(sentence) for sentence in sentences]).unsqueeze(1)
    inputs = INPUTS[words].masked_fill(~mask.unsqueeze(-1), garbage)  # (batch, time, width)
    outputs = OUTPUTS[words].masked_fill(~mask.unsqueeze(-1), garbage)
    return FeatureVectors(inputs, mask, outputs)


def random_features(*lengths: int, seed: int = 0, padding: int = 0) -> FeatureVectors:
    """Return random vectors of words, which do not depend on the padding."""
    mask = torch.arange(max(lengths) + padding) < torch.tensor(lengths)[:, None]
    generator = torch.Generator().manual_seed(seed)
    inputs, outputs = torch.zeros(*mask.shape, 6), torch.zeros(*mask.shape, 3)
    for row, length in enumerate(lengths):
        inputs[row, :length] = torch.randn(length, 6, generator=generator)
        outputs[row, :length] = torch.randn(length, 3, generator=generator)
    return FeatureVectors(inputs, mask, outputs)


def train(head: nn.Module, loss: Callable[[], Tensor], *, n_steps: int, rate: float = 0.01) -> None:
    """Train with Adam for ``n_steps``, then switch to ``eval()``."""
    optimizer = torch.optim.Adam(head.parameters(), lr=rate)
    head.train()
    for _ in range(n_steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    head.eval()


def assert_same_alone(predict: Callable[..., Tensor], *sides: Sentences) -> None:
    """Check that a prediction does not depend on the batch or on the values of padding."""
    together = predict(*(build_features(side, garbage=7.0, extra=2) for side in sides))
    again = predict(*(build_features(side, garbage=7.0, extra=2) for side in sides))
    alone = [predict(*(build_features([one]) for one in row)) for row in zip(*sides, strict=True)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-6, rtol=0)
    assert torch.equal(together, again)


def assert_all_learn(head: nn.Module, loss: Tensor) -> None:
    """Check that the gradient of ``loss`` reaches every parameter."""
    loss.backward()
    still = [name for name, p in head.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-8]
    assert not still


def largest_kept(compute: Callable[[], Tensor]) -> int:
    """Return the size of the largest tensor that is stored for the gradients of ``compute``."""
    sizes = [0]

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        compute().sum().backward()
    return max(sizes)
