"""A random generator in, words to train a sampled softmax against out: log-uniform, as TensorFlow draws.

States of a language model in, how well they predict their words out: full, sampled and adaptive.

All three give the mean loss in nats of states (token, width) that should have predicted ``targets``
(token,). Full and adaptive are distributions over all words; sampled is for training only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from elmo.errors import ConfigError, ShapeError


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


CHUNK_TOKENS = 128  # whose logits exist at a time: few enough to stay in a processor's cache
CHUNK_LOGITS = 1 << 24  # and at most this many, whatever the vocabulary


class Softmax(nn.Module):
    """p(word | state) ∝ exp(w_word · state + b_word).

    ``tied_to`` is a table of word vectors, row 0 for padding, whose other rows then serve as weights too.
    The table keeps them: this module has a bias only. With ``has_sparse_gradient`` the sampled loss
    gives ``weight`` a gradient of the rows it used, which optimisers have to know how to take. With
    ``has_bf16_products`` the mean losses round the factors of their matrix products to bfloat16.
    """

    weight: nn.Parameter | None  # (words, width)

    def __init__(
        self,
        *,
        n_words: int,
        width: int,
        tied_to: nn.Embedding | None = None,
        has_sparse_gradient: bool = False,
        has_bf16_products: bool = False,
    ) -> None:
        super().__init__()
        if tied_to is not None and tuple(tied_to.weight.shape) != (n_words + 1, width):
            raise ShapeError(
                f"a softmax over {n_words} words of width {width} needs a table of shape "
                f"({n_words + 1}, {width}) to be tied to, found {tuple(tied_to.weight.shape)}"
            )
        self._tied_to = (tied_to,)  # in a tuple, out of sight of state_dict() and parameters()
        self.register_parameter("weight", None)
        self.bias = nn.Parameter(torch.zeros(n_words))  # (words,)
        self.has_sparse_gradient = has_sparse_gradient
        self.has_bf16_products = has_bf16_products
        if tied_to is None:
            self.weight = nn.Parameter(torch.empty(n_words, width))
            nn.init.normal_(self.weight, std=width**-0.5)  # bilm-tf's choice

    @property
    def tied_table(self) -> nn.Embedding | None:
        """The table whose rows are the weights."""
        return self._tied_to[0]

    def rows(self) -> Tensor:
        """The weights of all words, (words, width), its own or those it is tied to."""
        (table,) = self._tied_to
        return cast("Tensor", self.weight) if table is None else table.weight[1:]

    def forward(self, states: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over all words."""
        _check(states, targets, self.rows().size(1))
        rows = self.rows()
        true = (states * F.embedding(targets, rows)).sum(dim=1) + self.bias[targets]  # (token,)
        total = _sum_log_sum_exp(states, rows, self.bias, is_bf16=self.has_bf16_products)
        return (total - true.sum()) / len(targets)

    def sampled(self, states: Tensor, targets: Tensor, samples: Samples) -> Tensor:
        """Mean cross-entropy of each target against the sampled words only (Jean et al. 2015).

        A logit is lowered by the logarithm of how often its word was expected among the samples. A sample
        that is a token's own target counts for nothing there: TensorFlow's ``remove_accidental_hits``.
        """
        _check(states, targets, self.rows().size(1))
        n = len(samples.ids)
        ids = torch.cat([samples.ids, targets])
        rows = self._rows_of(ids)  # (sample + token, width)
        bias = self.bias[ids] - samples.log_expected(ids).to(states)
        true = (states * rows[n:]).sum(dim=1) + bias[n:]  # (token,)
        total = _sum_log_sum_exp(
            states,
            rows[:n],
            bias[:n],
            extra=true,
            left_out=samples.hits(targets),
            is_bf16=self.has_bf16_products,
        )
        return (total - true.sum()) / len(targets)

    def log_probabilities(self, states: Tensor) -> Tensor:
        """Of every word for every state: (token, width) to (token, words)."""
        return F.linear(states, self.rows(), self.bias).log_softmax(dim=1)

    @torch.no_grad()
    def token_losses(self, states: Tensor, targets: Tensor) -> Tensor:
        """−log p(target) of each token, (token,), without gradients; never are all logits held."""
        _check(states, targets, self.rows().size(1))
        columns = self.rows().t()
        losses = torch.empty_like(states[:, 0])
        n_words = columns.size(1)
        space = states.new_empty(min(_chunk_size(n_words), len(states)), n_words)
        for part in _chunks(len(states), n_words):
            chunk = states[part]
            logits = torch.addmm(self.bias, chunk, columns, out=space[: len(chunk)])  # (token, words)
            true = logits.gather(1, targets[part, None])
            highest = logits.amax(dim=1, keepdim=True)
            sums = logits.sub_(highest).exp_().sum(dim=1)
            losses[part] = sums.log() + (highest - true)[:, 0]
        return losses

    def _rows_of(self, ids: Tensor) -> Tensor:
        (table,) = self._tied_to
        if table is None:
            return F.embedding(ids, self.rows(), sparse=self.has_sparse_gradient)
        return F.embedding(ids + 1, table.weight, sparse=self.has_sparse_gradient)


class AdaptiveSoftmax(nn.Module):
    """Frequent words in one softmax, rare ones in narrower ones behind it (Grave et al. 2017).

    Words are numbered by falling count; ``cutoffs`` says where each part of the vocabulary ends, the
    last part excepted.
    """

    def __init__(self, *, n_words: int, width: int, cutoffs: Sequence[int], narrowing: float = 4.0) -> None:
        super().__init__()
        ends = [0, *cutoffs, n_words]
        if not cutoffs or any(a >= b for a, b in pairwise(ends)):
            raise ConfigError(f"cutoffs must rise and lie in 1..{n_words - 1}, found {list(cutoffs)}")
        if width < narrowing ** len(cutoffs):
            raise ConfigError(
                f"{len(cutoffs)} cutoffs, each making a part {narrowing:g} times narrower, "
                f"leave nothing of width {width}"
            )
        self.width = width
        self.tied_table = None
        self.parts = nn.AdaptiveLogSoftmaxWithLoss(
            width, n_words, list(cutoffs), div_value=narrowing, head_bias=True
        )

    def forward(self, states: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over all words."""
        return self.token_losses(states, targets).mean()

    def log_probabilities(self, states: Tensor) -> Tensor:
        """Of every word for every state: (token, width) to (token, words)."""
        return self.parts.log_prob(states)

    def token_losses(self, states: Tensor, targets: Tensor) -> Tensor:
        """−log p(target) of each token, (token,)."""
        _check(states, targets, self.width)
        return -self.parts(states, targets).output


def _sum_log_sum_exp(
    states: Tensor,
    rows: Tensor,
    bias: Tensor,
    *,
    extra: Tensor | None = None,
    left_out: tuple[Tensor, Tensor] | None = None,
    is_bf16: bool = False,
) -> Tensor:
    """Σ_t log(Σ_k exp(s_t · w_k + b_k) + exp(extra_t)), logits at pairs (token, place) left out."""
    token, place = left_out or (None, None)
    parts = (states, rows, bias, extra)
    if not torch.is_grad_enabled():  # an autograd function sees only who could want a gradient
        parts = tuple(None if x is None else x.detach() for x in parts)
    return _SumLogSumExp.apply(*parts, token, place, is_bf16)  # pyright: ignore


class _SumLogSumExp(torch.autograd.Function):
    """What ``_sum_log_sum_exp`` computes, a chunk of tokens at a time.

    The gradient of a sum needs nothing that comes later, so each chunk's is taken while its logits are
    at hand, and the logits are then forgotten: they are computed once and never all held.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd takes tensors by position)
        ctx: Any,
        states: Tensor,
        rows: Tensor,
        bias: Tensor,
        extra: Tensor | None,
        token: Tensor | None,
        place: Tensor | None,
        is_bf16: bool,
    ) -> Tensor:
        wants_states, wants_rows, wants_bias, wants_extra = ctx.needs_input_grad[:4]
        d_states = torch.empty_like(states) if wants_states else None
        # Both turned, so that the wide factor of each product lies as it is read: a third faster.
        columns = rows.t().contiguous()  # (width, words)
        d_columns = torch.zeros_like(columns) if wants_rows else None
        d_bias = torch.zeros_like(bias) if wants_bias else None
        d_extra = torch.empty_like(extra) if extra is not None and wants_extra else None
        rounded = torch.bfloat16 if is_bf16 else states.dtype  # in which numbers enter a product
        row_factors, column_factors = rows.to(rounded), columns.to(rounded)
        # of thousands of terms: float32 would lose digits, but is all that mps has
        exact = torch.float32 if states.device.type == "mps" else torch.float64
        total = states.new_zeros((), dtype=exact)
        space = states.new_empty(min(_chunk_size(len(rows)), max(len(states), 1)), len(rows))
        for part in _chunks(len(states), len(rows)):
            chunk = states[part]
            logits = space[: len(chunk)]  # (token, words)
            if is_bf16:
                torch.add(chunk.to(rounded) @ column_factors, bias, out=logits)
            else:
                torch.addmm(bias, chunk, columns, out=logits)
            if token is not None and place is not None:
                edges = torch.tensor([part.start, part.stop], device=token.device)
                first, last = torch.searchsorted(token, edges).tolist()
                logits[token[first:last] - part.start, place[first:last]] = -torch.inf
            highest = logits.amax(dim=1, keepdim=True)  # (token, 1)
            if extra is not None:
                highest = torch.maximum(highest, extra[part, None])
            odds = logits.sub_(highest).exp_()
            sums = odds.sum(dim=1, keepdim=True)
            if extra is not None:
                sums += (extra[part, None] - highest).exp()
            total += (sums.log() + highest).sum()
            # Probabilities are odds / sums; dividing the narrow factor of a product spares a pass over odds.
            if is_bf16:
                odd_factors = odds.to(rounded)
                if d_states is not None:
                    d_states[part] = (odd_factors @ row_factors) / sums
                if d_columns is not None:
                    d_columns += (chunk / sums).to(rounded).t() @ odd_factors
            else:
                if d_states is not None:
                    torch.mm(odds, rows, out=d_states[part]).div_(sums)
                if d_columns is not None:
                    d_columns.addmm_((chunk / sums).t(), odds)
            if d_bias is not None:
                d_bias.addmv_(odds.t(), sums[:, 0].reciprocal())
            if extra is not None and d_extra is not None:
                d_extra[part] = (extra[part] - highest[:, 0]).exp() / sums[:, 0]
        ctx.found = (d_states, d_columns, d_bias, d_extra)  # nobody else has them: not for save_for_backward
        return total.to(states.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        (scale,) = slopes
        found, ctx.found = ctx.found, None  # scaled in place, so only once
        states, columns, bias, extra = (None if x is None else x.mul_(scale) for x in found)
        return states, None if columns is None else columns.t(), bias, extra, None, None, None


def _chunk_size(n_words: int) -> int:
    return max(1, min(CHUNK_TOKENS, CHUNK_LOGITS // n_words))


def _chunks(n_tokens: int, n_words: int) -> Iterator[slice]:
    size = _chunk_size(n_words)
    for begin in range(0, n_tokens, size):
        yield slice(begin, min(begin + size, n_tokens))


def _check(states: Tensor, targets: Tensor, width: int) -> None:
    if states.dim() != 2 or states.size(1) != width or targets.shape != states.shape[:1]:
        raise ShapeError(
            f"expected states of shape (token, {width}) and as many targets, "
            f"found {tuple(states.shape)} and {tuple(targets.shape)}"
        )
