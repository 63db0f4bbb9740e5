"""Ids of tokens in, their context-free vectors out: ``model.token_layer.TokenLayer``, fast.

A word of few characters is mostly padding, and a window of characters that lies in the padding altogether
gives the same numbers wherever it lies: one such window is enough for the max. So words are sorted, the
longest first, and fewer and fewer of them are left as the windows move on; all filters are one product.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from elmo.embed.kernels import Kernels
from elmo.embed.products import Product, state_dtype
from elmo.model.char_cnn import CharCnn, Highway
from elmo.model.token_layer import TokenLayer


class TokenRows:
    """A token layer, its weights as they were when it was made."""

    def __init__(self, layer: TokenLayer, kernels: Kernels) -> None:
        self._kernels = kernels
        self._words = None if layer.word_embed is None else layer.word_embed.weight.detach()
        self._cnn = None if layer.cnn is None else _CnnRows(layer.cnn, kernels)
        self._projection = None
        if layer.projection is not None:
            weight, bias = layer.projection.weight.detach(), layer.projection.bias.detach()
            self._projection = kernels.fine_product(weight, bias)

    def __call__(self, char_ids: Tensor | None, word_ids: Tensor | None) -> Tensor:
        """Vectors (token, width) of at most ``Kernels.max_rows`` tokens: (token, char) and (token,)."""
        given = char_ids if char_ids is not None else cast("Tensor", word_ids)
        n = self._kernels.rows(len(given))
        parts: list[Tensor] = []
        if self._words is not None:
            parts.append(F.embedding(_repeated(cast("Tensor", word_ids), n), self._words))
        if self._cnn is not None:
            parts.append(self._cnn(_repeated(cast("Tensor", char_ids), n)))
        x = torch.cat([part.to(state_dtype(part)) for part in parts], dim=1)
        if self._projection is not None:
            x = self._projection(x)
        return x[: len(given)]


class _CnnRows:
    def __init__(self, cnn: CharCnn, kernels: Kernels) -> None:
        self._kernels = kernels
        weights = [cast("Tensor", convolution.weight).detach() for convolution in cnn.convolutions]
        characters = cnn.char_embed.weight.detach()
        self._characters = characters.to(state_dtype(characters))
        self._widths = [weight.size(2) for weight in weights]
        self._counts = [len(weight) for weight in weights]
        self._widest = max(self._widths)
        # (filter, window position · char_width + character dimension); narrow filters end in zeros
        filters = [F.pad(weight, (0, self._widest - weight.size(2))) for weight in weights]
        windows = torch.cat([weight.transpose(1, 2).flatten(1) for weight in filters])
        self._filters = kernels.exact_product(windows)  # a max of rough numbers is too high
        bias = torch.cat([cast("Tensor", convolution.bias).detach() for convolution in cnn.convolutions])
        self._bias = bias.to(state_dtype(bias))
        self._activate = torch.relu_ if cnn.activation is torch.relu else torch.tanh_
        self._highways = [_highway_product(cast("Highway", highway), kernels) for highway in cnn.highways]

    def __call__(self, char_ids: Tensor) -> Tensor:
        """Features (token, filter) of (token, char), as many as the kernels take."""
        lengths = word_lengths(char_ids)
        falling, order = lengths.sort(descending=True, stable=True)
        highest = torch.empty(len(order), sum(self._counts), dtype=self._bias.dtype, device=order.device)
        highest[order] = self._highest(char_ids[order], falling.tolist())
        x = self._activate(highest.add_(self._bias))  # rounding is monotone: the bias may follow the max
        for highway in self._highways:
            x = _through_highway(highway, x)
        return x

    def _highest(self, char_ids: Tensor, lengths: list[int]) -> Tensor:
        """Each filter's highest response, without bias, for words of falling length."""
        n_chars = char_ids.size(1)
        n_most = n_chars - min(self._widths) + 1  # places where the narrowest filter may start
        n_starts = [min(length + 1, n_most) for length in lengths]
        n_read = n_starts[0] + self._widest - 1
        read = F.embedding(char_ids[:, :n_read], self._characters)  # (word, char, char_width)
        read = F.pad(read, (0, 0, 0, n_read - read.size(1)))
        highest = self._filters(self._window(read, 0))
        count = len(lengths)
        for start in range(1, n_starts[0]):
            while n_starts[count - 1] <= start:
                count -= 1
            n = self._kernels.rows(count)
            responses = self._filters(self._window(read[:n], start))
            if n_chars - start >= self._widest:
                torch.maximum(highest[:n], responses, out=highest[:n])
                continue
            first = 0  # windows that reach beyond the last character are no windows
            for width, n_filters in zip(self._widths, self._counts, strict=True):
                if width <= n_chars - start:
                    part = highest[:n, first : first + n_filters]
                    torch.maximum(part, responses[:, first : first + n_filters], out=part)
                first += n_filters
        return highest

    def _window(self, read: Tensor, start: int) -> Tensor:
        return read[:, start : start + self._widest].flatten(1)


def _highway_product(highway: Highway, kernels: Kernels) -> Product:
    """The transform and the gate in one; the gate halved, see ``gate_weights`` on sigmoids."""
    weight = torch.cat([highway.transform.weight.detach(), highway.gate.weight.detach() * 0.5])
    bias = torch.cat([highway.transform.bias.detach(), highway.gate.bias.detach() * 0.5])
    return kernels.fine_product(weight, bias)


def _through_highway(product: Product, x: Tensor) -> Tensor:
    transformed, gate = product(x).chunk(2, dim=1)
    gate = gate.tanh_().add_(1).mul_(0.5)
    return transformed.relu_().sub_(x).mul_(gate).add_(x)  # g · relu + (1 − g) · x


def word_lengths(char_ids: Tensor) -> Tensor:
    """Characters of each word (word, char) before it only repeats its last one, which is padding mostly."""
    differs = char_ids != char_ids[:, -1:]
    place = torch.arange(1, char_ids.size(1) + 1, device=char_ids.device)
    return (differs * place).amax(dim=1)


def _repeated(ids: Tensor, n: int) -> Tensor:
    """``n`` rows: the last one again and again where there are fewer."""
    return ids if len(ids) == n else torch.cat([ids, ids[-1:].expand(n - len(ids), *ids.shape[1:])])
