"""Character ids of distinct words in, their vectors out, as ``model.char_cnn.CharCnn`` gives them, faster.

A word of few characters is mostly padding, and a window that lies in the padding altogether gives the same
numbers wherever it lies: one such window is enough for the max. So words of like length go together, each
group only as long as it needs, and all filters are one matrix product over the widest filter's windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmo.model.char_cnn import CharCnn

GROUP = 64  # words that are convolved together: few enough for a processor's cache


def read_words(cnn: CharCnn, char_ids: Tensor, *, has_bf16_products: bool = False) -> Tensor:
    """Map ``char_ids`` (word, char) to (word, width).

    With ``has_bf16_products`` the highway layers, the better part of the work, multiply in bfloat16.
    """
    weights = [
        cast("Tensor", convolution.weight) for convolution in cnn.convolutions
    ]  # (filter, width, char)
    widths = [weight.size(2) for weight in weights]
    widest, char_width = max(widths), cnn.char_embed.embedding_dim
    # (filter, window position · char_width + character dimension); narrow filters end in zeros
    filters = torch.cat(
        [F.pad(weight, (0, widest - weight.size(2))).transpose(1, 2).flatten(1) for weight in weights]
    )
    bias = torch.cat([cast("Tensor", convolution.bias) for convolution in cnn.convolutions])
    n_places = torch.cat(  # a window starts at one of so many characters, by filter
        [torch.full((len(weight),), char_ids.size(1) - weight.size(2) + 1) for weight in weights]
    ).to(char_ids.device)
    lengths = _lengths(char_ids)
    order = lengths.argsort(stable=True)
    pooled: list[Tensor] = []
    for group in _groups(lengths[order].tolist()):
        words = order[group]
        n_starts = min(int(lengths[words[-1]]) + 1, char_ids.size(1) - min(widths) + 1)
        n_chars = min(n_starts + widest - 1, char_ids.size(1))
        characters = cnn.char_embed(char_ids[words, :n_chars])  # (word, char, width)
        characters = F.pad(characters, (0, 0, 0, n_starts + widest - 1 - n_chars))
        windows = characters.unfold(1, widest, 1).transpose(2, 3).reshape(-1, widest * char_width)
        pooled.append(_MaxOverWindows.apply(windows, filters, n_starts, n_places))  # pyright: ignore
    if not pooled:
        return bias.new_zeros(0, len(bias))
    x = torch.cat(pooled)[order.argsort()]
    x = cnn.activation(x + bias)  # the same bias everywhere does not change which window is highest
    with torch.autocast(x.device.type, torch.bfloat16, enabled=has_bf16_products):
        for highway in cnn.highways:
            x = highway(x)
    return x


def _lengths(char_ids: Tensor) -> Tensor:
    """Characters of each word (word, char) before it only repeats its last one, which is padding mostly."""
    differs = char_ids != char_ids[:, -1:]
    place = torch.arange(1, char_ids.size(1) + 1, device=char_ids.device)
    return (differs * place).amax(dim=1)


def _groups(lengths: list[int]) -> Iterator[slice]:
    """Neighbours of rising length, at most GROUP, the longest at most a quarter longer than the shortest."""
    begin = 0
    for end in range(1, len(lengths) + 1):
        is_full = end - begin == GROUP
        if end == len(lengths) or is_full or lengths[end] > lengths[begin] * 1.25 + 2:
            yield slice(begin, end)
            begin = end


class _MaxOverWindows(torch.autograd.Function):
    """The highest response of each filter: windows (word · start, position) to (word, filter)."""

    @staticmethod
    def forward(ctx: Any, windows: Tensor, filters: Tensor, n_starts: int, n_places: Tensor) -> Tensor:
        responses = (windows @ filters.t()).view(-1, n_starts, len(filters))
        if n_starts > int(n_places.min()):  # wide filters fit at fewer places than narrow ones
            starts = torch.arange(n_starts, device=n_places.device)
            responses.masked_fill_(starts[:, None] >= n_places, -torch.inf)
        highest, start = responses.max(dim=1)
        ctx.save_for_backward(windows, filters, start)
        ctx.n_starts = n_starts
        return highest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        (gradient,) = gradients
        windows, filters, start = ctx.saved_tensors
        n_words, n_filters = start.shape
        spread = gradient.new_zeros(n_words, ctx.n_starts, n_filters)
        spread = spread.scatter_(1, start[:, None], gradient[:, None]).view(-1, n_filters)
        wanted = ctx.needs_input_grad
        return (
            spread @ filters if wanted[0] else None,
            spread.t() @ windows if wanted[1] else None,
            None,
            None,
        )
