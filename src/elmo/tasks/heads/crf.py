"""Scores of tags and of steps between them in, sums over all sequences of tags out, with their gradients.

What log Z and the probabilities of tags need are sums of products, so they are taken as such: numbers, not
logarithms, a matrix product for each word, whose sums are brought back to 1 (Rabiner 1989, section V). On a
processor that is faster than sums of logarithms: a little with 9 tags, seven times with 73. In double
precision it is exact as long as no tag that can be reached has less than 1e-290 of a word's sum: what is lost
there might be all that counts later. ``is_exact`` tells.

Scores of the tags of words in, how likely sequences of tags are and the best of them out.

A linear-chain conditional random field (Lafferty et al. 2001): the score of a sequence is the sum of its
words' scores, of its steps from tag to tag, and of how it starts and ends; its probability is exp(score) / Z,
where Z sums exp(score) over all sequences. Sentences are padded at their ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from elmo.errors import ConfigError, ShapeError

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


@dataclass(frozen=True)
class BestPaths:
    """The likeliest tags of each sentence."""

    tags: Tensor  # (batch, time), -1 for padding
    scores: Tensor  # (batch,)


@dataclass(frozen=True)
class Chain:
    """What the scores of words leave out of the score of a sequence."""

    starts: Tensor  # (tag,)
    steps: Tensor  # (tag, tag): from, to
    ends: Tensor  # (tag,)

    def to(self, dtype: torch.dtype) -> Chain:
        """The same scores in another precision."""
        return Chain(*(scores.to(dtype) for scores in (self.starts, self.steps, self.ends)))

    def log_partition(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Log Z, (batch,), of ``emissions`` (batch, time, tag); 0 for a sentence without words."""
        sums = self._sums(emissions, mask)
        if sums is not None:
            return log_z(sums, emissions, starts=self.starts, steps=self.steps, ends=self.ends)
        last = self._forward(emissions, mask)[-1]  # (batch, tag)
        return torch.where(mask[:, 0], (last + self.ends).logsumexp(dim=1), 0)

    def path_scores(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """The scores, (batch,), of the sequences ``tags`` (batch, time); 0 for a sentence without words."""
        tags = tags.clamp(min=0)  # padding may be -1
        words = emissions.gather(2, tags[:, :, None])[:, :, 0]  # (batch, time)
        steps = self.steps[tags[:, :-1], tags[:, 1:]]  # (batch, time - 1)
        inner = torch.where(mask, words, 0).sum(dim=1) + torch.where(mask[:, 1:], steps, 0).sum(dim=1)
        last = tags.gather(1, (mask.sum(dim=1, keepdim=True) - 1).clamp(min=0))[:, 0]
        return torch.where(mask[:, 0], self.starts[tags[:, 0]] + inner + self.ends[last], 0)

    def log_likelihood(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """Log probabilities (batch,) of ``tags``; -1 stands for any tag, and all of them are summed."""
        if bool(((tags < 0) & mask).any()):
            numbers = torch.arange(emissions.size(2), device=tags.device)
            is_other = (tags >= 0)[:, :, None] & (tags[:, :, None] != numbers)  # (batch, time, tag)
            scores = self.log_partition(emissions.masked_fill(is_other, FORBIDDEN), mask)
        else:
            scores = self.path_scores(emissions, tags, mask)
        return scores - self.log_partition(emissions, mask)

    def marginals(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """How likely each word has each tag, (batch, time, tag), without gradients; zero for padding."""
        emissions = emissions.detach()
        sums = self._sums(emissions, mask)
        if sums is not None:
            return sums.marginals().to(emissions.dtype)
        before = torch.stack(self._forward(emissions, mask), dim=1)  # (batch, time, tag)
        after = torch.stack(self._backward(emissions, mask), dim=1)
        return torch.where(mask[:, :, None], (before + after).softmax(dim=2), 0)

    def best_paths(self, emissions: Tensor, mask: Tensor) -> BestPaths:
        """The sequences of the highest score (Viterbi 1967)."""
        to_from = self.steps.t()
        itself = torch.arange(emissions.size(2), device=emissions.device)
        words, is_word = emissions.unbind(dim=1), mask[:, :, None].unbind(dim=1)
        best = self.starts + words[0]  # (batch, tag)
        came_from: list[Tensor] = []
        for t in range(1, len(words)):
            highest, origin = (best[:, None, :] + to_from).max(dim=2)  # (batch, to)
            best = torch.where(is_word[t], highest + words[t], best)
            came_from.append(torch.where(is_word[t], origin, itself))  # no step within padding
        scores, tag = (best + self.ends).max(dim=1)
        path = [tag]
        for origin in reversed(came_from):
            path.append(origin.gather(1, path[-1][:, None])[:, 0])
        tags = torch.stack(path[::-1], dim=1)  # (batch, time)
        return BestPaths(tags.masked_fill(~mask, -1), torch.where(mask[:, 0], scores, 0))

    def _sums(self, emissions: Tensor, mask: Tensor) -> ChainSums | None:
        """Without logarithms, where numbers reach that far: not for paths that are forbidden altogether."""
        if emissions.device.type != "cpu":  # others have no double precision, or are slow at it
            return None
        sums = ChainSums.of(emissions, mask, starts=self.starts, steps=self.steps, ends=self.ends)
        return sums if sums.is_exact else None

    def _forward(self, emissions: Tensor, mask: Tensor) -> list[Tensor]:
        """For each time (batch, tag): log of the sum over all beginnings that lead to the tag there.

        Within padding: over those that lead to the sentence's last word.
        """
        to_from = self.steps.t()
        words, is_word = emissions.unbind(dim=1), mask[:, :, None].unbind(dim=1)
        sums = [self.starts + words[0]]
        for t in range(1, len(words)):
            stepped = (sums[-1][:, None, :] + to_from).logsumexp(dim=2) + words[t]
            sums.append(torch.where(is_word[t], stepped, sums[-1]))
        return sums

    def _backward(self, emissions: Tensor, mask: Tensor) -> list[Tensor]:
        """For each time (batch, tag): log of the sum over all that may follow the tag there."""
        words, is_word = emissions.unbind(dim=1), mask[:, :, None].unbind(dim=1)
        sums = [self.ends.expand_as(words[0])]
        for t in range(len(words) - 1, 0, -1):
            stepped = ((sums[-1] + words[t])[:, None, :] + self.steps).logsumexp(dim=2)
            sums.append(torch.where(is_word[t], stepped, self.ends))
        return sums[::-1]


class Crf(nn.Module):
    """A chain whose scores are learned, with rules about what may follow what.

    ``allowed`` (from, to), ``starts`` and ``ends`` (tag,) are true where a step, a start or an end may be; by
    default all may. Sequences that break a rule are never decoded, and have no part in marginals. In training
    rules count only ``has_constrained_training``: Z then sums over what the rules allow, except for a
    sentence whose own tags break one. Without ``has_transitions`` every chain score is 0, and stays so.
    """

    allowed_starts: Tensor
    allowed_steps: Tensor
    allowed_ends: Tensor
    starts: nn.Parameter
    steps: nn.Parameter
    ends: nn.Parameter

    def __init__(
        self,
        n_tags: int,
        *,
        allowed: Tensor | None = None,
        starts: Tensor | None = None,
        ends: Tensor | None = None,
        has_transitions: bool = True,
        has_constrained_training: bool = False,
    ) -> None:
        super().__init__()
        if n_tags < 1:
            raise ConfigError(f"tags: expected 1 or more, found {n_tags}")
        self.n_tags = n_tags
        self.has_constrained_training = has_constrained_training
        rules = (
            ("starts", starts, (n_tags,)),
            ("steps", allowed, (n_tags, n_tags)),
            ("ends", ends, (n_tags,)),
        )
        for name, rule, shape in rules:
            self.register_buffer(f"allowed_{name}", _checked(rule, name=name, shape=shape))
            scores = nn.Parameter(torch.zeros(shape), requires_grad=has_transitions)
            self.register_parameter(name, scores)

    def chain(self, *, is_constrained: bool = True) -> Chain:
        """The scores as they are now, by default with the rules in them."""
        if not is_constrained:
            return Chain(self.starts, self.steps, self.ends)
        return Chain(
            self.starts.masked_fill(~self.allowed_starts, FORBIDDEN),
            self.steps.masked_fill(~self.allowed_steps, FORBIDDEN),
            self.ends.masked_fill(~self.allowed_ends, FORBIDDEN),
        )

    def log_likelihood(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """Log probabilities (batch,) of ``tags`` (batch, time) with ``emissions`` (batch, time, tag).

        A tag of -1 is not known: all tags are summed there.
        """
        self._check(emissions, mask, tags)
        found = self.chain(is_constrained=self.has_constrained_training).log_likelihood(emissions, tags, mask)
        if self.has_constrained_training and bool((is_broken := found < FORBIDDEN / 2).any()):
            free = self.chain(is_constrained=False).log_likelihood(emissions, tags, mask)
            found = torch.where(is_broken, free, found)
        return found

    def best_paths(self, emissions: Tensor, mask: Tensor) -> BestPaths:
        """The likeliest tags (batch, time) that keep the rules, and their scores (batch,)."""
        self._check(emissions, mask)
        return self.chain().best_paths(emissions, mask)

    def decode(self, emissions: Tensor, mask: Tensor) -> list[list[int]]:
        """The likeliest tags of each sentence that keep the rules, without padding."""
        paths = self.best_paths(emissions, mask).tags.tolist()
        return [path[:length] for path, length in zip(paths, mask.sum(dim=1).tolist(), strict=True)]

    def path_probabilities(self, emissions: Tensor, paths: BestPaths, mask: Tensor) -> Tensor:
        """How likely the best paths (batch,) are as a whole, among all that keep the rules."""
        self._check(emissions, mask)
        # a long sentence's scores are in the thousands: their difference needs more digits than floats have
        exact = torch.float64 if emissions.device.type == "cpu" else emissions.dtype
        chain, scores = self.chain().to(exact), emissions.to(exact)
        found = chain.path_scores(scores, paths.tags, mask) - chain.log_partition(scores, mask)
        return found.exp().clamp(max=1).to(emissions.dtype)

    def marginals(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """How likely each word has each tag, (batch, time, tag), by all sequences that keep the rules."""
        self._check(emissions, mask)
        return self.chain().marginals(emissions, mask)

    def _check(self, emissions: Tensor, mask: Tensor, tags: Tensor | None = None) -> None:
        expected = (*mask.shape, self.n_tags)
        has_tags = tags is None or tags.shape == mask.shape
        if tuple(emissions.shape) != expected or not mask.size(1) or not has_tags:
            found = f"{tuple(emissions.shape)} and mask {tuple(mask.shape)}"
            found += "" if tags is None else f" and tags {tuple(tags.shape)}"
            raise ShapeError(
                f"crf: expected emissions (batch, time, {self.n_tags}), time >= 1, found {found}"
            )


def _checked(rule: Tensor | None, *, name: str, shape: tuple[int, ...]) -> Tensor:
    """The rule as booleans; all true where there is none."""
    if rule is None:
        return torch.ones(shape, dtype=torch.bool)
    if tuple(rule.shape) != shape:
        raise ShapeError(f"allowed {name} of tags: expected shape {shape}, found {tuple(rule.shape)}")
    if not bool(rule.any()):
        raise ConfigError(f"allowed {name} of tags: expected one or more, found none")
    return rule.bool().clone()
