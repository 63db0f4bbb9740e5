"""Character ids of distinct words in, their vectors out, as ``model.char_cnn.CharCnn`` gives them, faster.

A word of few characters is mostly padding, and a window that lies in the padding altogether gives the same
numbers wherever it lies: one such window is enough for the max. So words of like length go together, each
group only as long as it needs, and all filters are one matrix product over the widest filter's windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmo.model.char_cnn import CharCnn, Highway
from elmo.train.fast_highway import read_highway
from elmo.train.scratch import FRESH, Scratch

GROUP = 64  # words that are convolved together: few enough for a processor's cache


def read_words(
    cnn: CharCnn, char_ids: Tensor, *, has_bf16_products: bool = False, scratch: Scratch = FRESH
) -> Tensor:
    """Map ``char_ids`` (word, char) to (word, width).

    With ``has_bf16_products`` the highway layers, the better part of the work, multiply in bfloat16. With
    ``scratch`` of one's own, gradients may be taken once only: what they need is given back then.
    """
    weights = [
        cast("Tensor", convolution.weight) for convolution in cnn.convolutions
    ]  # (filter, width, char)
    widths = [weight.size(2) for weight in weights]
    # (filter, window position · char_width + character dimension); narrow filters end in zeros
    filters = torch.cat(
        [F.pad(weight, (0, max(widths) - weight.size(2))).transpose(1, 2).flatten(1) for weight in weights]
    )
    bias = torch.cat([cast("Tensor", convolution.bias) for convolution in cnn.convolutions])
    n_places = [char_ids.size(1) - width + 1 for width in widths]  # where a window may start
    groups = list(_groups(char_ids, n_most=max(n_places)))
    fits = [(n, len(weight)) for n, weight in zip(n_places, weights, strict=True)]
    rules = _Rules(fits, cnn.activation is torch.relu, scratch, torch.is_grad_enabled())
    x = _Highest.apply(cnn.char_embed.weight, filters, bias, groups, len(char_ids), rules)  # pyright: ignore
    for highway in cnn.highways:
        x = read_highway(cast("Highway", highway), x, has_bf16_products=has_bf16_products, scratch=scratch)
    return x


@dataclass(frozen=True)
class _Group:
    """Words of like length."""

    words: Tensor  # which ones
    char_ids: Tensor  # (word, char), to the longest one's end and the widest filter's behind it
    n_starts: int  # of windows


def _groups(char_ids: Tensor, n_most: int) -> Iterator[_Group]:
    lengths = _lengths(char_ids)
    order = lengths.argsort(stable=True)
    rising = lengths[order].tolist()
    begin = 0
    for end in range(1, len(rising) + 1):
        is_full = end - begin == GROUP
        if end == len(rising) or is_full or rising[end] > rising[begin] * 1.25 + 2:
            words = order[begin:end]
            yield _Group(words, char_ids[words], min(rising[end - 1] + 1, n_most))
            begin = end


def _lengths(char_ids: Tensor) -> Tensor:
    """Characters of each word (word, char) before it only repeats its last one, which is padding mostly."""
    differs = char_ids != char_ids[:, -1:]
    place = torch.arange(1, char_ids.size(1) + 1, device=char_ids.device)
    return (differs * place).amax(dim=1)


@dataclass(frozen=True)
class _Rules:
    fits: list[tuple[int, int]]  # at how many places each width of filter may start, and how many such
    is_relu: bool  # else tanh
    scratch: Scratch
    is_kept: bool  # for gradients, until they are taken

    def activate_(self, x: Tensor) -> Tensor:
        """In place."""
        return x.relu_() if self.is_relu else x.tanh_()

    def deactivate_(self, gradient: Tensor, y: Tensor) -> Tensor:
        """In place: the gradient of what was activated to ``y``."""
        if self.is_relu:
            return torch.ops.aten.threshold_backward.grad_input(gradient, y, 0, grad_input=gradient)
        return torch.ops.aten.tanh_backward.grad_input(gradient, y, grad_input=gradient)


class _Highest(torch.autograd.Function):
    """The highest response of each filter, activated: characters of words to (word, filter)."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd takes tensors by position)
        ctx: Any,
        characters: Tensor,
        filters: Tensor,
        bias: Tensor,
        groups: list[_Group],
        n_words: int,
        rules: _Rules,
    ) -> Tensor:
        n_filters, char_width = len(filters), characters.size(1)
        activated = filters.new_empty(n_words, n_filters)
        windows_of: list[Tensor] = []
        # how far each response lies below the highest; of all groups together, for a group's size varies more
        n_windows = sum(group.n_starts * len(group.words) for group in groups)
        below = rules.scratch.take((n_windows, n_filters), filters)
        below_of = below.split([group.n_starts * len(group.words) for group in groups])
        for group, responses in zip(groups, below_of, strict=True):
            windows = _windows(characters, group, filters.size(1) // char_width)
            torch.mm(windows, filters.t(), out=responses)
            by_start = responses.view(group.n_starts, -1, n_filters)
            _leave_out(by_start, rules.fits)
            highest = by_start.amax(dim=0)
            by_start -= highest
            # the same bias everywhere does not change which window is highest
            activated[group.words] = rules.activate_(highest.add_(bias))
            windows_of.append(windows)
        if rules.is_kept:
            ctx.save_for_backward(characters, filters, activated, *windows_of)
            ctx.groups, ctx.below, ctx.rules = groups, below, rules
        else:
            rules.scratch.give(below)
        return activated

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        (d_activated,) = gradients
        characters, filters, activated, *windows_of = ctx.saved_tensors
        rules: _Rules = ctx.rules
        d_characters, d_filters = torch.zeros_like(characters), torch.zeros_like(filters)
        d_bias = torch.zeros_like(filters[:, 0])
        below_of = ctx.below.split([len(windows) for windows in windows_of])
        for group, windows, below in zip(ctx.groups, windows_of, below_of, strict=True):
            gradient = rules.deactivate_(d_activated[group.words], activated[group.words])
            d_bias += gradient.sum(dim=0)
            _keep_highest(below.view(group.n_starts, -1, len(filters)), gradient)
            d_filters.addmm_(below.t(), windows)
            _add_windows(d_characters, group, below @ filters)
        rules.scratch.give(ctx.below)
        d_characters[0] = 0  # the mask's, which is not learned
        return d_characters, d_filters, d_bias, None, None, None


def _keep_highest(below: Tensor, left: Tensor) -> None:
    """In place, of (start, word, filter): how far each response lies below the highest, to its gradient.

    Of several that are highest, the first has it all: they are windows of padding, one like the other.
    """
    least = torch.finfo(left.dtype).smallest_normal
    for of_start in below:
        # hardtanh's gradient, the quickest way to say: where the difference is zero, else nothing
        torch.ops.aten.hardtanh_backward.grad_input(left, of_start, -least, least, grad_input=of_start)
        left -= of_start


def _windows(characters: Tensor, group: _Group, widest: int) -> Tensor:
    """What the widest filter reads, beyond a word's end zeros: (start · word, position · char_width)."""
    n_chars = group.n_starts + widest - 1
    read = F.embedding(group.char_ids[:, :n_chars], characters).transpose(0, 1)  # (char, word, char_width)
    read = F.pad(read, (0, 0, 0, 0, 0, n_chars - len(read)))
    # (start, word, char_width, position)
    return read.unfold(0, widest, 1).transpose(2, 3).reshape(-1, widest * characters.size(1))


def _add_windows(d_characters: Tensor, group: _Group, d_windows: Tensor) -> None:
    """Add the gradients of ``_windows`` to those of each character."""
    ids = group.char_ids.t()  # (char, word)
    char_width, n_words = d_characters.size(1), ids.size(1)
    by_start = d_windows.view(group.n_starts, n_words, -1, char_width)
    widest = by_start.size(2)
    d_read = d_windows.new_zeros(group.n_starts + widest - 1, n_words, char_width)
    for position in range(widest):
        d_read[position : position + group.n_starts] += by_start[:, :, position]
    ids = ids[: len(d_read)]
    d_characters.index_add_(0, ids.flatten(), d_read[: len(ids)].flatten(end_dim=1))


def _leave_out(responses: Tensor, fits: list[tuple[int, int]]) -> None:
    """In place, of (start, word, filter): windows that reach beyond the longest word's end are no windows."""
    first = 0
    for n_places, n_filters in fits:
        responses[n_places:, :, first : first + n_filters] = -torch.inf
        first += n_filters
