"""A random generator in, words to train a sampled softmax against out: log-uniform, as TensorFlow draws."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from elmo.errors import ConfigError


@dataclass(frozen=True)
class Samples:
    """Words drawn from a vocabulary in which word k of n has P(k) = log((k + 2) / (k + 1)) / log(n + 1)."""

    ids: Tensor  # (sample,), rising
    n_tries: (
        int  # words drawn until there were so many; more than there are samples when repeats were put back
    )
    n_words: int

    def to(self, device: torch.device | str) -> Samples:
        """The same, where the words that they are compared with are."""
        return replace(self, ids=self.ids.to(device))

    def log_expected(self, ids: Tensor) -> Tensor:
        """The logarithm of how often each word of ``ids`` was to be expected among the samples, in float64.

        For distinct samples that is 1 − (1 − P)^tries. Where no try was repeated, the samples are as good
        as independent and TensorFlow takes P · tries; so do we.
        """
        numbers = ids.float() if ids.device.type == "mps" else ids.double()  # Apple's GPUs have no float64
        probability = (1 / (numbers + 1)).log1p() / math.log(self.n_words + 1)
        if self.n_tries == len(self.ids):
            return (probability * self.n_tries).log()
        return (-(self.n_tries * (-probability).log1p()).expm1()).log()

    def hits(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Every pair (token, place) with targets[token] == ids[place], tokens rising."""
        first = torch.searchsorted(self.ids, targets)
        count = torch.searchsorted(self.ids, targets, right=True) - first  # (token,)
        token = torch.repeat_interleave(count)  # count[0] times 0, count[1] times 1, …
        begin = count.cumsum(0) - count
        return token, first[token] + torch.arange(len(token), device=targets.device) - begin[token]


class LogUniformSampler:
    """Draws words numbered by falling count roughly as often as text has them (Zipf's law)."""

    def __init__(self, n_words: int, n_samples: int, unique: bool = True) -> None:
        if n_samples < 1 or n_words < 1 or (unique and n_samples > n_words):
            raise ConfigError(f"expected 1 to {n_words} samples of {n_words} words, found {n_samples}")
        self.n_words = n_words
        self.n_samples = n_samples
        self.unique = unique
        self._n_draws = _expected_tries(n_words, n_samples) if unique else n_samples

    def draw(self, generator: torch.Generator) -> Samples:
        """The next samples; the same state of ``generator`` gives the same."""
        if not self.unique:
            ids = np.sort(self._words(generator))
            return Samples(torch.from_numpy(ids), self.n_samples, self.n_words)
        drawn = self._words(generator)
        while True:
            first_try = np.full(self.n_words, len(drawn), dtype=np.int64)
            first_try[drawn[::-1]] = np.arange(len(drawn) - 1, -1, -1)  # of equal words the last write stays
            tries = first_try[first_try < len(drawn)]
            if len(tries) >= self.n_samples:
                break
            drawn = np.concatenate([drawn, self._words(generator)])
        # drawing stops at the try that brings the last sample
        last = int(np.partition(tries, self.n_samples - 1)[self.n_samples - 1])
        return Samples(torch.from_numpy(np.flatnonzero(first_try <= last)), last + 1, self.n_words)

    def _words(self, generator: torch.Generator) -> np.ndarray:
        chance = torch.rand(self._n_draws, generator=generator, dtype=torch.float64).numpy()
        words = np.exp(chance * math.log(self.n_words + 1)).astype(np.int64) - 1
        return np.minimum(words, self.n_words - 1)  # rounding may reach n


def _expected_tries(n_words: int, n_samples: int) -> int:
    """So many tries that ``n_samples`` distinct words are to be expected of them, and a few more."""
    with np.errstate(divide="ignore"):  # the only word of a vocabulary is never missed
        misses = np.log1p(-np.log1p(1 / np.arange(1.0, n_words + 1)) / math.log(n_words + 1))
    tries = n_samples
    # when every word is asked for, the rarest take ever longer: then it is cheaper to draw again
    while tries < 64 * n_samples and -np.expm1(tries * misses).sum() < n_samples:
        tries += tries // 8 + 1
    return tries + tries // 16 + 16
