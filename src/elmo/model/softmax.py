"""The output layer of a language model: computes a distribution over words from a state, and its losses.

Every loss is the mean cross-entropy, in nats, of states (token, width) that predict ``targets`` (token,). The
full and the adaptive softmax are distributions over the whole vocabulary. The sampled softmax compares each
target with a few random words only (Jean et al. 2015) and is used for training. ``elmo.engine.softmax``
computes the full and the sampled loss without storing all logits at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.errors import ConfigError, ShapeError


class Softmax(nn.Module):
    """The full softmax: p(word | state) ∝ exp(w_word · state + b_word).

    With ``tied_to``, the weights are the rows of that embedding table, without row 0 (padding). The bias is then the
    only parameter of the module.

    Args:
        n_words: Number of words.
        width: Width of the states.
        tied_to: Embedding table to share the weights with.

    Example:
        >>> softmax = Softmax(n_words=1000, width=32)
        >>> softmax.log_probabilities(torch.zeros(2, 32)).exp().sum().round().item()  # two distributions
        2.0
    """

    weight: nn.Parameter | None  # (words, width)

    def __init__(self, *, n_words: int, width: int, tied_to: nn.Embedding | None = None) -> None:
        super().__init__()
        if tied_to is not None and tuple(tied_to.weight.shape) != (n_words + 1, width):
            raise ShapeError(
                f"tied_to must be a table of shape ({n_words + 1}, {width}) for {n_words} words of width {width}; "
                f"found {tuple(tied_to.weight.shape)}"
            )
        self._tied_to = (tied_to,)  # a tuple hides the table from state_dict() and parameters()
        self.register_parameter("weight", None)
        self.bias = nn.Parameter(torch.zeros(n_words))  # (words,)
        if tied_to is None:
            self.weight = nn.Parameter(torch.empty(n_words, width))
            nn.init.normal_(self.weight, std=width**-0.5)  # as in bilm-tf

    @property
    def tied_table(self) -> nn.Embedding | None:
        """The embedding table that provides the weights, or None."""
        return self._tied_to[0]

    @property
    def word_weights(self) -> Tensor:
        """The weights of all words, (words, width)."""
        table = self.tied_table
        return cast("Tensor", self.weight) if table is None else table.weight[1:]

    def forward(self, states: Tensor, targets: Tensor) -> Tensor:
        """Compute the mean cross-entropy over all words."""
        return self.token_losses(states, targets).mean()

    def token_losses(self, states: Tensor, targets: Tensor) -> Tensor:
        """Compute −log p(target) for each token, (token,)."""
        check_shapes(states, targets, self.word_weights.size(1))
        logits = F.linear(states, self.word_weights, self.bias)  # (token, words)
        return F.cross_entropy(logits, targets, reduction="none")

    def sampled_loss(self, states: Tensor, targets: Tensor, samples: Samples) -> Tensor:
        """Compute the mean cross-entropy of each target against the sampled words (Jean et al. 2015).

        Each logit is reduced by the logarithm of the expected count of its word among the samples. A sample
        that equals the target of a token is ignored for that token (TensorFlow's ``remove_accidental_hits``).
        """
        check_shapes(states, targets, self.word_weights.size(1))
        n = len(samples.ids)
        ids = torch.cat([samples.ids, targets])
        weights = self.word_weights[ids]  # (sample + token, width)
        bias = self.bias[ids] - samples.log_expected(ids).to(states)
        true = (states * weights[n:]).sum(dim=1) + bias[n:]  # (token,)
        logits = F.linear(states, weights[:n], bias[:n])  # (token, sample)
        logits[samples.find_hits(targets)] = -torch.inf
        logits = torch.cat([true[:, None], logits], dim=1)  # (token, 1 + sample)
        return F.cross_entropy(logits, torch.zeros_like(targets))

    def log_probabilities(self, states: Tensor) -> Tensor:
        """Compute log p of every word for every state: (token, width) to (token, words)."""
        return F.linear(states, self.word_weights, self.bias).log_softmax(dim=1)


class AdaptiveSoftmax(nn.Module):
    """An adaptive softmax, which has narrower weights for rare words (Grave et al. 2017).

    Word ids must be ordered by decreasing frequency. The vocabulary is split into parts at ``cutoffs``: part k has the
    ids from ``cutoffs[k - 1]`` (0 for the first part) to ``cutoffs[k]``, exclusive; the last part has the remaining
    ids. The weights of each part are ``narrowing`` times narrower than those of the previous part.

    Args:
        n_words: Number of words.
        width: Width of the states.
        cutoffs: Word ids at which the parts end, exclusive, except that of the last part.
        narrowing: How many times narrower each part is than the previous one.

    Example:
        >>> softmax = AdaptiveSoftmax(n_words=1000, width=32, cutoffs=[100])
        >>> softmax.log_probabilities(torch.zeros(2, 32)).shape
        torch.Size([2, 1000])
    """

    def __init__(self, *, n_words: int, width: int, cutoffs: Sequence[int], narrowing: float = 4.0) -> None:
        super().__init__()
        ends = [0, *cutoffs, n_words]
        if not cutoffs or any(a >= b for a, b in pairwise(ends)):
            raise ConfigError(f"cutoffs must increase and be in 1..{n_words - 1}; found {list(cutoffs)}")
        if width < narrowing ** len(cutoffs):
            raise ConfigError(
                f"width must be at least {narrowing ** len(cutoffs):g} for {len(cutoffs)} cutoffs with narrowing "
                f"{narrowing:g}; found {width}; use fewer cutoffs"
            )
        self.width = width
        self.tied_table = None
        self.parts = nn.AdaptiveLogSoftmaxWithLoss(width, n_words, list(cutoffs), div_value=narrowing, head_bias=True)

    def forward(self, states: Tensor, targets: Tensor) -> Tensor:
        """Compute the mean cross-entropy over all words."""
        return self.token_losses(states, targets).mean()

    def token_losses(self, states: Tensor, targets: Tensor) -> Tensor:
        """Compute −log p(target) for each token, (token,)."""
        check_shapes(states, targets, self.width)
        return -self.parts(states, targets).output

    def log_probabilities(self, states: Tensor) -> Tensor:
        """Compute log p of every word for every state: (token, width) to (token, words)."""
        return self.parts.log_prob(states)


def check_shapes(states: Tensor, targets: Tensor, width: int) -> None:
    """Raise a ``ShapeError`` unless states are (token, width) and targets are (token,)."""
    if states.dim() != 2 or states.size(1) != width or targets.shape != states.shape[:1]:
        raise ShapeError(
            f"states must have shape (token, {width}) and targets (token,); "
            f"found {tuple(states.shape)} and {tuple(targets.shape)}"
        )


@dataclass(frozen=True)
class Samples:
    """Words that are sampled from the log-uniform distribution P(k) = log((k + 2) / (k + 1)) / log(n_words + 1).

    Attributes:
        ids: Ids of the words, increasing, (sample,).
        n_tries: Number of draws, including draws of repeated words that were rejected.
        n_words: Number of words in the vocabulary.
    """

    ids: Tensor
    n_tries: int
    n_words: int

    def to(self, device: torch.device | str) -> Samples:
        """Return the samples on a device."""
        return replace(self, ids=self.ids.to(device))

    def log_expected(self, ids: Tensor) -> Tensor:
        """Compute the logarithm of the expected count of each word of ``ids`` among the samples, in float64.

        If samples are distinct, the expected count of a word is 1 − (1 − P)^n_tries. If no draw was rejected, it is
        P · n_tries, as in TensorFlow.
        """
        numbers = ids.float() if ids.device.type == "mps" else ids.double()  # Apple GPUs have no float64
        probability = (1 / (numbers + 1)).log1p() / math.log(self.n_words + 1)
        if self.n_tries == len(self.ids):
            return (probability * self.n_tries).log()
        return (-(self.n_tries * (-probability).log1p()).expm1()).log()

    def find_hits(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Find all pairs (token, sample) whose target and sample are the same word, ordered by token."""
        first = torch.searchsorted(self.ids, targets)
        count = torch.searchsorted(self.ids, targets, right=True) - first  # (token,)
        token = torch.repeat_interleave(count)  # count[0] times 0, count[1] times 1, …
        begin = count.cumsum(0) - count
        return token, first[token] + torch.arange(len(token), device=targets.device) - begin[token]


class LogUniformSampler:
    """Draws random words about as often as they occur in text (Zipf's law), as TensorFlow does.

    Word ids must be ordered by decreasing frequency. With ``unique``, all samples of a draw are distinct.

    Args:
        n_words: Number of words.
        n_samples: Number of samples in a draw.
        unique: Whether all samples of a draw are distinct.

    Example:
        >>> LogUniformSampler(1000, 5).draw(torch.Generator().manual_seed(0)).ids.shape
        torch.Size([5])
    """

    def __init__(self, n_words: int, n_samples: int, unique: bool = True) -> None:
        if n_samples < 1 or n_words < 1 or (unique and n_samples > n_words):
            raise ConfigError(f"n_samples must be in 1..{n_words} for {n_words} words; found {n_samples}")
        self.n_words = n_words
        self.n_samples = n_samples
        self.unique = unique
        self._n_draws = _estimate_tries(n_words, n_samples) if unique else n_samples

    def draw(self, generator: torch.Generator) -> Samples:
        """Draw samples; generators in the same state give the same samples."""
        words = self._draw_words(generator)
        if not self.unique:
            return Samples(torch.from_numpy(np.sort(words)), self.n_samples, self.n_words)
        while True:
            first_try = np.full(self.n_words, len(words), dtype=np.int64)
            # in reverse order, so that the first draw of each word is kept
            first_try[words[::-1]] = np.arange(len(words) - 1, -1, -1)
            tries = first_try[first_try < len(words)]
            if len(tries) >= self.n_samples:
                break
            words = np.concatenate([words, self._draw_words(generator)])
        last = int(
            np.partition(tries, self.n_samples - 1)[self.n_samples - 1]
        )  # the index of the last draw that is needed
        return Samples(torch.from_numpy(np.flatnonzero(first_try <= last)), last + 1, self.n_words)

    def _draw_words(self, generator: torch.Generator) -> np.ndarray:
        uniform = torch.rand(self._n_draws, generator=generator, dtype=torch.float64).numpy()
        words = np.exp(uniform * math.log(self.n_words + 1)).astype(np.int64) - 1
        return np.minimum(words, self.n_words - 1)  # rounding may reach n_words


def _estimate_tries(n_words: int, n_samples: int) -> int:
    """Estimate how many draws are needed for ``n_samples`` distinct words, with a margin."""
    with np.errstate(divide="ignore"):  # a vocabulary of one word gives log(0)
        misses = np.log1p(-np.log1p(1 / np.arange(1.0, n_words + 1)) / math.log(n_words + 1))
    tries = n_samples
    # If almost all words are needed, the rarest ones need very many draws; then it is faster to draw again.
    while tries < 64 * n_samples and -np.expm1(tries * misses).sum() < n_samples:
        tries += tries // 8 + 1
    return tries + tries // 16 + 16
