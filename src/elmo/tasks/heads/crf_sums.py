"""Scores of tags and of steps between them in, sums over all sequences of tags out, with their gradients.

What log Z and the probabilities of tags need are sums of products, so they are taken as such: numbers, not
logarithms, a matrix product for each word, whose sums are brought back to 1 (Rabiner 1989, section V). On a
processor that is faster than sums of logarithms: a little with 9 tags, seven times with 73. In double
precision it is exact as long as no tag that can be reached has less than 1e-290 of a word's sum: what is lost
there might be all that counts later. ``is_exact`` tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

FORBIDDEN = -1e30  # as good as -inf: exp() of it is 0, but a gradient through it stays a number
_LEAST = 1e-290  # numbers below 1e-308 have lost digits, or are zero


@dataclass(frozen=True, eq=False)
class ChainSums:
    """Of a batch of sentences that are padded at their ends; time comes first."""

    log_z: Tensor  # (batch,): of all sequences of a sentence; 0 for one without words
    is_exact: bool
    words: Tensor  # (time, batch, tag): exp of the words' scores, less the best
    steps: Tensor  # (tag, tag): exp of the steps' scores, from and to, less the best
    ends: Tensor  # (tag,)
    before: Tensor  # (time, batch, tag): sums of all beginnings that lead to a tag; 1 over all tags
    scales: Tensor  # (time, batch, 1): what brought them to 1
    mask: Tensor  # (time, batch, 1)

    @classmethod
    def of(cls, emissions: Tensor, mask: Tensor, *, starts: Tensor, steps: Tensor, ends: Tensor) -> ChainSums:
        """Of ``emissions`` (batch, time, tag); ``starts`` and ``ends`` are (tag,), ``steps`` (from, to)."""
        scores = emissions.detach().double().transpose(0, 1)  # (time, batch, tag)
        is_word = mask.t()[:, :, None]  # (time, batch, 1)
        highest = scores.amax(dim=2, keepdim=True)
        words = (scores - highest).exp_()
        (first, first_best), (between, step_best), (last, last_best) = map(_exp, (starts, steps, ends))
        is_told = _is_told(words, scores) & all(
            bool(_is_told(*one).all()) for one in ((first, starts), (between, steps), (last, ends))
        )  # (time, batch, tag)
        before, totals = torch.empty_like(words), torch.empty_like(highest)
        for t in range(len(words)):
            here = (first if t == 0 else before[t - 1] @ between) * words[t]  # (batch, tag)
            torch.sum(here, dim=1, keepdim=True, out=totals[t])
            here /= totals[t]
            # padding goes on with the sums of a sentence's last word
            before[t] = here if t == 0 else torch.where(is_word[t], here, before[t - 1])
        ended = before[-1] @ last  # (batch,)
        totals = torch.where(is_word, totals, 1)
        n_steps = (mask.sum(dim=1) - 1).clamp(min=0)
        log_z = (
            torch.where(is_word, totals.log() + highest, 0).sum(dim=0)[:, 0]
            + ended.log()
            + (first_best + n_steps * step_best + last_best)
        )
        # by induction over time: where there was something before, and a way on, something must be left
        reached = ((before[:-1] > 0).double() @ (between > 0).double() > 0) & (words[1:] > 0)
        is_told[0] &= (before[0] >= _LEAST) == (first * words[0] > 0)
        is_told[1:] &= (before[1:] >= _LEAST) == reached
        is_exact = bool((is_told | ~is_word).all() & ((ended >= _LEAST) | ~mask[:, 0]).all())
        log_z = torch.where(mask[:, 0], log_z, 0)
        return cls(log_z, is_exact, words, between, last, before, 1 / totals, is_word)

    def after(self) -> Tensor:
        """For each tag the sum of all that may follow it, (time, batch, tag).

        Times ``before`` it is the probability of the tag there. Of a tag that nothing leads to it is left at
        zero: such a sum may be beyond all numbers.
        """
        found = torch.empty_like(self.before)
        back = self.steps.t()
        is_unreached = self.before == 0
        follows = self.ends / (self.before[-1] @ self.ends)[:, None]  # (batch, tag)
        found[-1] = follows = follows.masked_fill(is_unreached[-1], 0)
        for t in range(len(found) - 1, 0, -1):
            stepped = ((follows * self.words[t] * self.scales[t]) @ back).masked_fill_(is_unreached[t - 1], 0)
            follows = torch.where(self.mask[t], stepped, follows)
            found[t - 1] = follows
        return found

    def marginals(self) -> Tensor:
        """How likely each word has each tag, (batch, time, tag); zero for padding."""
        return torch.where(self.mask, self.before * self.after(), 0).transpose(0, 1)


def log_z(sums: ChainSums, emissions: Tensor, *, starts: Tensor, steps: Tensor, ends: Tensor) -> Tensor:
    """Log Z, (batch,), of ``sums``, with a gradient for each of the scores that they were taken of."""
    return _LogZ.apply(emissions, starts, steps, ends, sums)  # pyright: ignore


class _LogZ(torch.autograd.Function):
    """The gradients of log Z are probabilities: of tags, of steps, of first and of last tags."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd takes tensors by position)
        ctx: Any, emissions: Tensor, starts: Tensor, steps: Tensor, ends: Tensor, sums: ChainSums
    ) -> Tensor:
        ctx.sums, ctx.dtypes = sums, [one.dtype for one in (emissions, starts, steps, ends)]
        return sums.log_z.to(torch.promote_types(emissions.dtype, starts.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        sums: ChainSums = ctx.sums
        weights = gradients[0].double()[:, None] * sums.mask[0]  # (batch, 1)
        after = sums.after() * weights
        tags = torch.where(sums.mask, sums.before * after, 0)  # (time, batch, tag)
        n_tags = tags.size(2)
        to = torch.where(sums.mask[1:], sums.words[1:] * sums.scales[1:] * after[1:], 0)
        steps = sums.before[:-1].reshape(-1, n_tags).t() @ to.reshape(-1, n_tags) * sums.steps
        last = (sums.before[-1] * after[-1]).sum(dim=0)
        found = (tags.transpose(0, 1), tags[0].sum(dim=0), steps, last)
        return *(one.to(dtype) for one, dtype in zip(found, ctx.dtypes, strict=True)), None


def _is_told(exps: Tensor, scores: Tensor) -> Tensor:
    """Where exp has its digits, or a score is forbidden, so that nothing is meant to be left."""
    return (exps >= _LEAST) | (scores <= FORBIDDEN / 2)


def _exp(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Exp of the scores less the best of them, and the best."""
    exact = scores.detach().double()
    best = exact.max()
    return (exact - best).exp(), best
