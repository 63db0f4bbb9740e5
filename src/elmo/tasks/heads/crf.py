"""A linear-chain conditional random field (Lafferty et al. 2001).

The score of a sequence of tags is the sum of the scores of its tags at each word (emissions), of its transitions
from tag to tag, and of its first and last tag. Its probability is exp(score) / Z, where Z is the sum of
exp(score) over all sequences. Sentences are padded at their ends.

``Crf`` is the module with learned scores and rules, ``Chain`` computes likelihoods and best paths from these
scores, and ``ChainSums`` computes log Z and marginals fast on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from elmo.errors import ConfigError
from elmo.tasks.data.schemes import Transitions, build_transitions

FORBIDDEN = -1e30  # score that acts like -inf, because its exp() is 0, but never gives a gradient of NaN
_MIN_EXACT = 1e-290  # products of smaller numbers may fall below 1e-308 and lose digits


class Crf(nn.Module):
    """Learned scores of tag transitions, and rules that say which tags may follow each other.

    ``rules`` are the allowed transitions between tags, and the tags that may start and end a sentence; None allows
    all. ``has_transitions=False`` fixes all scores of the chain at 0.
    """

    allowed_starts: Tensor
    allowed_steps: Tensor
    allowed_ends: Tensor
    starts: nn.Parameter
    steps: nn.Parameter
    ends: nn.Parameter

    def __init__(self, n_tags: int, *, rules: Transitions | None = None, has_transitions: bool = True) -> None:
        super().__init__()
        if rules is None:
            rules = build_transitions([""] * n_tags, "plain")
        for name, rule in (("starts", rules.start), ("steps", rules.between), ("ends", rules.end)):
            if not rule.any():  # possible with the tags of a damaged model file
                raise ConfigError(f"cannot build a CRF: the tag rules forbid all {name} of a sequence")
            self.register_buffer(f"allowed_{name}", torch.from_numpy(rule))
            self.register_parameter(name, nn.Parameter(torch.zeros(rule.shape), requires_grad=has_transitions))

    def chain(self, *, is_constrained: bool = True) -> Chain:
        """Return the current scores; ``is_constrained`` forbids all transitions that break a rule."""
        if not is_constrained:
            return Chain(self.starts, self.steps, self.ends)
        return Chain(
            self.starts.masked_fill(~self.allowed_starts, FORBIDDEN),
            self.steps.masked_fill(~self.allowed_steps, FORBIDDEN),
            self.ends.masked_fill(~self.allowed_ends, FORBIDDEN),
        )


@dataclass(frozen=True)
class BestPaths:
    """The most likely tags of each sentence."""

    tags: Tensor  # (batch, time), -1 for padding
    scores: Tensor  # (batch,)


@dataclass(frozen=True)
class Chain:
    """The scores of a CRF that do not depend on the words: first tags, transitions and last tags."""

    starts: Tensor  # (tag,)
    steps: Tensor  # (from, to)
    ends: Tensor  # (tag,)

    def log_partition(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Compute log Z (batch,) of ``emissions`` (batch, time, tag); it is 0 for an empty sentence."""
        sums = self._compute_sums(emissions, mask)
        if sums is not None:
            return _LogZ.apply(emissions, self.starts, self.steps, self.ends, sums)  # pyright: ignore
        last = self._forward(emissions, mask)[-1]  # (batch, tag)
        return torch.where(mask[:, 0], (last + self.ends).logsumexp(dim=1), 0)

    def path_scores(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """Compute the scores (batch,) of the sequences ``tags`` (batch, time); an empty sentence scores 0."""
        tags = tags.clamp(min=0)  # padding may be -1
        words = emissions.gather(2, tags[:, :, None])[:, :, 0]  # (batch, time)
        steps = self.steps[tags[:, :-1], tags[:, 1:]]  # (batch, time - 1)
        inner = torch.where(mask, words, 0).sum(dim=1) + torch.where(mask[:, 1:], steps, 0).sum(dim=1)
        last = tags.gather(1, (mask.sum(dim=1, keepdim=True) - 1).clamp(min=0))[:, 0]
        return torch.where(mask[:, 0], self.starts[tags[:, 0]] + inner + self.ends[last], 0)

    def path_probabilities(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """Compute the probabilities (batch,) of the sequences ``tags`` (batch, time)."""
        # the scores of a long sentence are in the thousands: float32 is too coarse for their difference
        exact = torch.float64 if emissions.device.type == "cpu" else emissions.dtype
        chain = Chain(self.starts.to(exact), self.steps.to(exact), self.ends.to(exact))
        scores = emissions.to(exact)
        logs = chain.path_scores(scores, tags, mask) - chain.log_partition(scores, mask)
        return logs.exp().clamp(max=1).to(emissions.dtype)

    def log_likelihood(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """Compute the log-likelihood (batch,) of ``tags`` (batch, time) for emissions (batch, time, tag).

        A tag of -1 is unknown: the likelihood is the sum over all tags there.
        """
        if bool(((tags < 0) & mask).any()):
            numbers = torch.arange(emissions.size(2), device=tags.device)
            is_other = (tags >= 0)[:, :, None] & (tags[:, :, None] != numbers)  # (batch, time, tag)
            scores = self.log_partition(emissions.masked_fill(is_other, FORBIDDEN), mask)
        else:
            scores = self.path_scores(emissions, tags, mask)
        return scores - self.log_partition(emissions, mask)

    def marginals(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Compute the probability of each tag at each word, (batch, time, tag), without gradients.

        The probabilities at padding are zero.
        """
        emissions = emissions.detach()
        sums = self._compute_sums(emissions, mask)
        if sums is not None:
            return sums.marginals().to(emissions.dtype)
        before = torch.stack(self._forward(emissions, mask), dim=1)  # (batch, time, tag)
        after = torch.stack(self._backward(emissions, mask), dim=1)
        return torch.where(mask[:, :, None], (before + after).softmax(dim=2), 0)

    def best_paths(self, emissions: Tensor, mask: Tensor) -> BestPaths:
        """Find the sequence of tags with the highest score for each sentence (Viterbi 1967)."""
        to_from = self.steps.t()
        same = torch.arange(emissions.size(2), device=emissions.device)
        words, is_word = emissions.unbind(dim=1), mask[:, :, None].unbind(dim=1)
        best = self.starts + words[0]  # (batch, tag)
        origins: list[Tensor] = []
        for t in range(1, len(words)):
            highest, origin = (best[:, None, :] + to_from).max(dim=2)  # (batch, to)
            best = torch.where(is_word[t], highest + words[t], best)
            origins.append(torch.where(is_word[t], origin, same))  # padding keeps the tag
        scores, tag = (best + self.ends).max(dim=1)
        path = [tag]
        for origin in reversed(origins):
            path.append(origin.gather(1, path[-1][:, None])[:, 0])
        tags = torch.stack(path[::-1], dim=1)  # (batch, time)
        return BestPaths(tags.masked_fill(~mask, -1), torch.where(mask[:, 0], scores, 0))

    def _compute_sums(self, emissions: Tensor, mask: Tensor) -> ChainSums | None:
        """Compute ``ChainSums``; return None if they would be inexact, or if the tensors are not on a CPU."""
        if emissions.device.type != "cpu":  # double precision is missing or slow on other devices
            return None
        sums = ChainSums.compute(emissions, mask, starts=self.starts, steps=self.steps, ends=self.ends)
        return sums if sums.is_exact else None

    def _forward(self, emissions: Tensor, mask: Tensor) -> list[Tensor]:
        """Compute for each time (batch, tag) the log of the sum of exp(score) over all paths that end with the tag.

        Padding repeats the sums of the last word.
        """
        to_from = self.steps.t()
        words, is_word = emissions.unbind(dim=1), mask[:, :, None].unbind(dim=1)
        sums = [self.starts + words[0]]
        for t in range(1, len(words)):
            stepped = (sums[-1][:, None, :] + to_from).logsumexp(dim=2) + words[t]
            sums.append(torch.where(is_word[t], stepped, sums[-1]))
        return sums

    def _backward(self, emissions: Tensor, mask: Tensor) -> list[Tensor]:
        """Compute for each time (batch, tag) the log of the sum of exp(score) over all paths after the tag."""
        words, is_word = emissions.unbind(dim=1), mask[:, :, None].unbind(dim=1)
        sums = [self.ends.expand_as(words[0])]
        for t in range(len(words) - 1, 0, -1):
            stepped = ((sums[-1] + words[t])[:, None, :] + self.steps).logsumexp(dim=2)
            sums.append(torch.where(is_word[t], stepped, self.ends))
        return sums[::-1]


@dataclass(frozen=True, eq=False)
class ChainSums:
    """Sums over all tag sequences of a batch of sentences, computed without logarithms; time is the first axis.

    log Z and marginals are sums of products. They are computed with one matrix product per word, and rescaled to
    a sum of 1 (Rabiner 1989, section V). On a CPU, this is faster than ``logsumexp``: a little with 9 tags, seven
    times with 73. In double precision, the result is exact unless a reachable tag has less than 1e-290 of the sum
    at its word: the digits that are lost there may matter at later words.
    """

    log_z: Tensor  # (batch,): 0 for an empty sentence
    is_exact: bool
    words: Tensor  # (time, batch, tag): exp(emissions - maximum)
    steps: Tensor  # (from, to): exp(scores - maximum)
    ends: Tensor  # (tag,)
    before: Tensor  # (time, batch, tag): sums over all paths that end with a tag, rescaled to 1 over all tags
    scales: Tensor  # (time, batch, 1): factors of this rescaling
    mask: Tensor  # (time, batch, 1)

    @classmethod
    def compute(cls, emissions: Tensor, mask: Tensor, *, starts: Tensor, steps: Tensor, ends: Tensor) -> ChainSums:
        """Compute the sums of ``emissions`` (batch, time, tag) and the scores of a ``Chain``."""
        scores = emissions.detach().double().transpose(0, 1)  # (time, batch, tag)
        is_word = mask.t()[:, :, None]  # (time, batch, 1)
        highest = scores.amax(dim=2, keepdim=True)
        words = (scores - highest).exp_()
        (first, first_best), (between, step_best), (last, last_best) = map(_exp, (starts, steps, ends))
        is_exact = _is_exact_exp(words, scores) & all(
            bool(_is_exact_exp(*pair).all()) for pair in ((first, starts), (between, steps), (last, ends))
        )  # (time, batch, tag)
        before, totals = torch.empty_like(words), torch.empty_like(highest)
        for t in range(len(words)):
            here = (first if t == 0 else before[t - 1] @ between) * words[t]  # (batch, tag)
            torch.sum(here, dim=1, keepdim=True, out=totals[t])
            here /= totals[t]
            # padding repeats the sums of the last word
            before[t] = here if t == 0 else torch.where(is_word[t], here, before[t - 1])
        ended = before[-1] @ last  # (batch,)
        totals = torch.where(is_word, totals, 1)
        n_steps = (mask.sum(dim=1) - 1).clamp(min=0)
        log_z = (
            torch.where(is_word, totals.log() + highest, 0).sum(dim=0)[:, 0]
            + ended.log()
            + (first_best + n_steps * step_best + last_best)
        )
        # by induction over time: a tag that can be reached from a tag with a positive sum must have one too
        reached = ((before[:-1] > 0).double() @ (between > 0).double() > 0) & (words[1:] > 0)
        is_exact[0] &= (before[0] >= _MIN_EXACT) == (first * words[0] > 0)
        is_exact[1:] &= (before[1:] >= _MIN_EXACT) == reached
        all_exact = bool((is_exact | ~is_word).all() & ((ended >= _MIN_EXACT) | ~mask[:, 0]).all())
        log_z = torch.where(mask[:, 0], log_z, 0)
        return cls(log_z, all_exact, words, between, last, before, 1 / totals, is_word)

    def after(self) -> Tensor:
        """Compute for each tag the sum over all paths that continue after it, (time, batch, tag).

        The product with ``before`` is the probability of the tag. The sum is set to zero for a tag that cannot be
        reached, where it might overflow.
        """
        result = torch.empty_like(self.before)
        to_from = self.steps.t()
        is_unreached = self.before == 0
        follows = self.ends / (self.before[-1] @ self.ends)[:, None]  # (batch, tag)
        result[-1] = follows = follows.masked_fill(is_unreached[-1], 0)
        for t in range(len(result) - 1, 0, -1):
            stepped = (follows * self.words[t] * self.scales[t]) @ to_from
            stepped = stepped.masked_fill_(is_unreached[t - 1], 0)
            follows = torch.where(self.mask[t], stepped, follows)
            result[t - 1] = follows
        return result

    def marginals(self) -> Tensor:
        """Compute the probability of each tag at each word, (batch, time, tag), with zeros at padding."""
        return torch.where(self.mask, self.before * self.after(), 0).transpose(0, 1)


class _LogZ(torch.autograd.Function):
    """log Z of ``ChainSums``; its gradients are the probabilities of tags, transitions, first and last tags."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd takes tensors by position)
        ctx: Any, emissions: Tensor, starts: Tensor, steps: Tensor, ends: Tensor, sums: ChainSums
    ) -> Tensor:
        ctx.sums, ctx.dtypes = sums, [scores.dtype for scores in (emissions, starts, steps, ends)]
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
        results = (tags.transpose(0, 1), tags[0].sum(dim=0), steps, last)
        return *(result.to(dtype) for result, dtype in zip(results, ctx.dtypes, strict=True)), None


def _exp(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return exp(scores - maximum) in double precision, and the maximum."""
    exact = scores.detach().double()
    best = exact.max()
    return (exact - best).exp(), best


def _is_exact_exp(exps: Tensor, scores: Tensor) -> Tensor:
    """Return whether exp() has not lost digits, or is zero because the score is forbidden."""
    return (exps >= _MIN_EXACT) | (scores <= FORBIDDEN / 2)
