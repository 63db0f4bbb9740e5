"""The token layer of ``elmo.model.token_layer``, fast.

Most positions of a word are padding, and convolution windows that contain only padding all give the same
result, so one of them is enough for the max. Words of similar length are computed together, only as far as
the longest of them reaches, and all filters are one matrix product over the windows of the widest filter.

- With gradients, for training: ``run_token_layer``, ``run_char_cnn``, ``run_highway``.
- With frozen, packed weights, for encoding: ``FrozenTokenLayer``, and ``TokenVectorCache``, which computes
  each distinct word once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmo.engine.buffers import UNPOOLED, BufferPool
from elmo.engine.compiled import (
    CharCnnWeights,
    CnnWindow,
    CompiledHighway,
    CompiledProduct,
    HighwayWindow,
    Library,
    PackedWeight,
    find_library,
)
from elmo.engine.matmul import Kernels, Product, add_matmul, state_dtype, write_matmul
from elmo.engine.threads import reset_after_fork
from elmo.engine.transformer import FrozenNorm
from elmo.model.token_layer import CharCnn, Highway, TokenLayer
from elmo.text.ids import TokenIds, TokenIndexer

CACHE_ROWS = 32  # words whose highway gates are processed together: they stay in the CPU cache
_MAX_STARTS = 255  # characters of a word in the compiled kernels, which store a position in a byte
GROUP_WORDS = 64  # words that are convolved together: they stay in the CPU cache


def count_characters(char_ids: Tensor) -> Tensor:
    """Number of characters (word,) of ``char_ids`` (word, char) before the last character repeats to the end.

    The repeated character is usually the padding character.
    """
    differs = char_ids != char_ids[:, -1:]
    position = torch.arange(1, char_ids.size(1) + 1, device=char_ids.device)
    return (differs * position).amax(dim=1)


def _check_char_ids(char_ids: Tensor, n_characters: int) -> Tensor:
    """Return ``char_ids`` as the compiled kernels read them: they do not check ids."""
    if char_ids.numel() and not 0 <= int(char_ids.min()) <= int(char_ids.max()) < n_characters:
        raise IndexError(f"character ids must be between 0 and {n_characters - 1}")
    return char_ids.to(torch.int64).contiguous()


def _filter_matrix(cnn: CharCnn) -> tuple[Tensor, Tensor]:
    """Return all filters as one matrix (filter, position · char_width), padded with zeros, and their biases."""
    # (filter, char_width, position) each
    weights = [cast("Tensor", convolution.weight) for convolution in cnn.convolutions]
    widest = max(weight.size(2) for weight in weights)
    filters = [F.pad(weight, (0, widest - weight.size(2))).transpose(1, 2).flatten(1) for weight in weights]
    bias = [cast("Tensor", convolution.bias) for convolution in cnn.convolutions]
    return torch.cat(filters), torch.cat(bias)


# --- with gradients -----------------------------------------------------------------------------------------


def run_token_layer(
    layer: TokenLayer,
    char_ids: Tensor | None,
    word_ids: Tensor | None,
    *,
    has_bf16_products: bool = False,
    has_sparse_gradient: bool = False,
    buffers: BufferPool = UNPOOLED,
) -> Tensor:
    """Map ``char_ids`` (word, char) and ``word_ids`` (word,) to (word, width).

    Args:
        layer: The reference module with the weights.
        char_ids: Character ids, if the model reads characters.
        word_ids: Word ids, if the model reads words.
        has_bf16_products: Round the factors of the highway products, most of the work, to bfloat16.
        has_sparse_gradient: Give the word vectors a sparse gradient.
        buffers: A pool for intermediate results. With a pool that reuses memory, only one backward pass is
            possible.
    """
    parts: list[Tensor] = []
    if layer.word_embed is not None and word_ids is not None:
        parts.append(F.embedding(word_ids, layer.word_embed.weight, sparse=has_sparse_gradient))
    if layer.cnn is not None and char_ids is not None:
        parts.append(run_char_cnn(layer.cnn, char_ids, has_bf16_products=has_bf16_products, buffers=buffers))
    x = torch.cat(parts, dim=1)
    if layer.projection is not None:
        x = layer.projection(x)
    return x if layer.norm is None else layer.norm(x)


def run_char_cnn(
    cnn: CharCnn, char_ids: Tensor, *, has_bf16_products: bool = False, buffers: BufferPool = UNPOOLED
) -> Tensor:
    """Map ``char_ids`` (word, char) to (word, width); see ``run_token_layer`` for the options."""
    filters, bias = _filter_matrix(cnn)
    weights = [cast("Tensor", convolution.weight) for convolution in cnn.convolutions]
    library = find_library("float32", filters, bias, cnn.char_embed.weight)
    if library is not None and char_ids.size(1) <= _MAX_STARTS:
        char_ids = _check_char_ids(char_ids, len(cnn.char_embed.weight))
        widths = [(weight.size(2), len(weight)) for weight in weights]
        window = _CnnOptions(library, char_ids, widths, cnn.activation is torch.relu)
        x = _CompiledMaxOverWindows.apply(cnn.char_embed.weight, filters, bias, window)
        return _run_highways(cnn, cast("Tensor", x), has_bf16_products=has_bf16_products, buffers=buffers)
    n_starts = [(char_ids.size(1) - weight.size(2) + 1, len(weight)) for weight in weights]
    groups = list(_group_words(char_ids, max_starts=max(n for n, _ in n_starts)))
    options = _PoolingOptions(n_starts, cnn.activation is torch.relu, buffers, torch.is_grad_enabled())
    x = _MaxOverWindows.apply(cnn.char_embed.weight, filters, bias, groups, len(char_ids), options)
    return _run_highways(cnn, cast("Tensor", x), has_bf16_products=has_bf16_products, buffers=buffers)


def _run_highways(cnn: CharCnn, x: Tensor, *, has_bf16_products: bool, buffers: BufferPool) -> Tensor:
    if cnn.projection is not None:
        x = cnn.projection(x)
    for highway in cnn.highways:
        x = run_highway(cast("Highway", highway), x, has_bf16_products=has_bf16_products, buffers=buffers)
    return x


@dataclass(frozen=True)
class _CnnOptions:
    library: Library
    char_ids: Tensor  # (word, char)
    filters: list[tuple[int, int]]  # width and number of filters
    is_relu: bool  # otherwise tanh


class _CompiledMaxOverWindows(torch.autograd.Function):
    """``_MaxOverWindows`` in compiled code. Only the best window of a word and a filter has a gradient."""

    @staticmethod
    def forward(ctx: Any, characters: Tensor, filters: Tensor, bias: Tensor, options: _CnnOptions) -> Tensor:
        n_words, n_chars = options.char_ids.shape
        weights = [weight.contiguous() for weight in (characters, filters, bias)]
        smallest, widest = (extreme(width for width, _ in options.filters) for extreme in (min, max))
        n_starts = (count_characters(options.char_ids) + 1).clamp_max_(n_chars - smallest + 1)
        widths = torch.cat([torch.full((count,), width, dtype=torch.int32) for width, count in options.filters])
        y = filters.new_empty(n_words, len(filters))
        best = filters.new_empty(n_words, len(filters), dtype=torch.uint8)
        window = CnnWindow(
            n_words=n_words,
            n_chars=n_chars,
            n_filters=len(filters),
            char_width=characters.size(1),
            widest=widest,
            is_relu=options.is_relu,
            char_ids=options.char_ids.data_ptr(),
            n_starts=n_starts.data_ptr(),
            widths=widths.data_ptr(),
            **{name: w.data_ptr() for name, w in zip(("characters", "filters", "bias"), weights, strict=True)},
            y=y.data_ptr(),
            best=best.data_ptr(),
        )
        options.library.call("elmo_cnn_forward", window, 0, n_words)
        ctx.window, ctx.options = window, options
        ctx.memory = (weights, n_starts, widths, best)  # what the structure points to
        ctx.save_for_backward(y, characters, filters)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        d_y = gradients[0].contiguous()
        _, characters, filters = ctx.saved_tensors
        window: CnnWindow = ctx.window
        d_characters, d_filters = torch.zeros_like(characters), torch.zeros_like(filters)
        d_bias = torch.zeros_like(filters[:, 0])
        window.d_y, window.d_filters, window.d_bias = d_y.data_ptr(), d_filters.data_ptr(), d_bias.data_ptr()
        ctx.options.library.call("elmo_cnn_backward", window, 0, window.n_filters, d_characters.data_ptr())
        d_characters[0] = 0  # the vector of the mask is not learned
        return d_characters, d_filters, d_bias, None


@dataclass(frozen=True)
class _WordGroup:
    """Words of similar length."""

    words: Tensor  # (word,), their indices
    char_ids: Tensor  # (word, char)
    n_starts: int  # number of windows per word


def _group_words(char_ids: Tensor, *, max_starts: int) -> Iterator[_WordGroup]:
    lengths = count_characters(char_ids)
    order = lengths.argsort(stable=True)
    rising = lengths[order].tolist()
    begin = 0
    for end in range(1, len(rising) + 1):
        is_full = end - begin == GROUP_WORDS
        if end == len(rising) or is_full or rising[end] > rising[begin] * 1.25 + 2:
            words = order[begin:end]
            yield _WordGroup(words, char_ids[words], min(rising[end - 1] + 1, max_starts))
            begin = end


@dataclass(frozen=True)
class _PoolingOptions:
    n_starts: list[tuple[int, int]]  # for each filter width: number of possible windows, number of filters
    is_relu: bool  # otherwise tanh
    buffers: BufferPool
    has_backward: bool  # keep intermediate results for the backward pass

    def activate_(self, x: Tensor) -> Tensor:
        """Apply the activation in place."""
        return x.relu_() if self.is_relu else x.tanh_()

    def activate_backward_(self, gradient: Tensor, y: Tensor) -> Tensor:
        """Compute the gradient of the input from that of the output ``y``, in place."""
        if self.is_relu:
            return torch.ops.aten.threshold_backward.grad_input(gradient, y, 0, grad_input=gradient)
        return torch.ops.aten.tanh_backward.grad_input(gradient, y, grad_input=gradient)


class _MaxOverWindows(torch.autograd.Function):
    """The activated maximum of each filter over the windows of each word, (word, filter)."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd passes tensors by position)
        ctx: Any,
        characters: Tensor,
        filters: Tensor,
        bias: Tensor,
        groups: list[_WordGroup],
        n_words: int,
        options: _PoolingOptions,
    ) -> Tensor:
        n_filters, char_width = len(filters), characters.size(1)
        activated = filters.new_empty(n_words, n_filters)
        all_windows: list[Tensor] = []
        # Distance of each response from the maximum. One buffer for all groups: its size varies less.
        sizes = [group.n_starts * len(group.words) for group in groups]
        distances = options.buffers.take((sum(sizes), n_filters), filters)
        for group, responses in zip(groups, distances.split(sizes), strict=True):
            windows = _gather_windows(characters, group, filters.size(1) // char_width)
            torch.mm(windows, filters.t(), out=responses)
            by_start = responses.view(group.n_starts, -1, n_filters)  # (start, word, filter)
            _exclude_windows(by_start, options.n_starts)
            highest = by_start.amax(dim=0)  # (word, filter)
            by_start -= highest
            # The bias is the same for all windows, so it can follow the max.
            activated[group.words] = options.activate_(highest.add_(bias))
            all_windows.append(windows)
        if options.has_backward:
            ctx.save_for_backward(characters, filters, activated, *all_windows)
            ctx.groups, ctx.distances, ctx.options = groups, distances, options
        else:
            options.buffers.release(distances)
        return activated

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        (d_activated,) = gradients
        characters, filters, activated, *all_windows = ctx.saved_tensors
        options: _PoolingOptions = ctx.options
        d_characters, d_filters = torch.zeros_like(characters), torch.zeros_like(filters)
        d_bias = torch.zeros_like(filters[:, 0])
        parts = ctx.distances.split([len(windows) for windows in all_windows])
        for group, windows, distances in zip(ctx.groups, all_windows, parts, strict=True):
            gradient = options.activate_backward_(d_activated[group.words], activated[group.words])
            d_bias += gradient.sum(dim=0)
            _max_backward_(distances.view(group.n_starts, -1, len(filters)), gradient)
            d_responses = distances
            d_filters.addmm_(d_responses.t(), windows)
            _add_window_gradients(d_characters, group, d_responses @ filters)
        options.buffers.release(ctx.distances)
        d_characters[0] = 0  # the vector of the mask is not learned
        return d_characters, d_filters, d_bias, None, None, None


def _exclude_windows(responses: Tensor, n_starts: list[tuple[int, int]]) -> None:
    """Set responses (start, word, filter) of windows that reach beyond the last character to −inf."""
    first = 0
    for n, n_filters in n_starts:
        responses[n:, :, first : first + n_filters] = -torch.inf
        first += n_filters


def _max_backward_(distances: Tensor, gradient: Tensor) -> None:
    """Replace ``distances`` (start, word, filter) from the maximum by the gradients of the responses.

    If several responses are equal to the maximum, the first gets the whole gradient: they are windows of
    padding, which are equal.
    """
    smallest = torch.finfo(gradient.dtype).smallest_normal
    for of_start in distances:
        # The gradient of hardtanh is the fastest way to select the elements whose distance is zero.
        torch.ops.aten.hardtanh_backward.grad_input(gradient, of_start, -smallest, smallest, grad_input=of_start)
        gradient -= of_start


def _gather_windows(characters: Tensor, group: _WordGroup, widest: int) -> Tensor:
    """Gather the windows (start · word, position · char_width) of the widest filter, zero after the end."""
    n_chars = group.n_starts + widest - 1
    read = F.embedding(group.char_ids[:, :n_chars], characters).transpose(0, 1)  # (char, word, char_width)
    read = F.pad(read, (0, 0, 0, 0, 0, n_chars - len(read)))
    # (start, word, char_width, position)
    return read.unfold(0, widest, 1).transpose(2, 3).reshape(-1, widest * characters.size(1))


def _add_window_gradients(d_characters: Tensor, group: _WordGroup, d_windows: Tensor) -> None:
    """Add the gradients of ``_gather_windows`` to those of the characters."""
    ids = group.char_ids.t()  # (char, word)
    char_width, n_words = d_characters.size(1), ids.size(1)
    by_start = d_windows.view(group.n_starts, n_words, -1, char_width)
    widest = by_start.size(2)
    d_read = d_windows.new_zeros(group.n_starts + widest - 1, n_words, char_width)
    for position in range(widest):
        d_read[position : position + group.n_starts] += by_start[:, :, position]
    ids = ids[: len(d_read)]
    d_characters.index_add_(0, ids.flatten(), d_read[: len(ids)].flatten(end_dim=1))


def run_highway(
    highway: Highway, x: Tensor, *, has_bf16_products: bool = False, buffers: BufferPool = UNPOOLED
) -> Tensor:
    """Map (word, width) to (word, width); see ``run_token_layer`` for the options.

    Autograd sees one operation instead of ten, and everything between the matrix products happens in place.
    """
    gate, transform = highway.gate, highway.transform
    weights = (gate.weight, gate.bias, transform.weight, transform.bias)
    dtype = torch.bfloat16 if has_bf16_products else x.dtype
    library = find_library("bfloat16" if has_bf16_products else "float32", x, gate.weight)
    if library is not None:
        return _CompiledHighway.apply(x, *weights, dtype, buffers, library, torch.is_grad_enabled())  # pyright: ignore
    return _HighwayFunction.apply(x, *weights, dtype, buffers, torch.is_grad_enabled())  # pyright: ignore


class _CompiledHighway(torch.autograd.Function):
    """``_HighwayFunction`` with compiled activations; the products are torch's."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        x, gate_weight, gate_bias, weight, bias, dtype, buffers, library, has_backward = arguments
        x = x.contiguous()
        factors = x.to(dtype)
        joined = torch.cat([gate_weight.to(dtype), weight.to(dtype)])  # (2 · width, width)
        products = factors @ joined.t()
        biases = torch.cat([gate_bias, bias])
        gate, transformed = buffers.take(x.shape, x), buffers.take(x.shape, x)
        y = torch.empty_like(x)
        window = HighwayWindow(
            type=dtype == torch.bfloat16,
            n_words=len(x),
            width=x.size(1),
            products=products.data_ptr(),
            bias=biases.data_ptr(),
            x=x.data_ptr(),
            gate=gate.data_ptr(),
            transformed=transformed.data_ptr(),
            y=y.data_ptr(),
        )
        library.call("elmo_highway_forward", window, 0, len(x))
        if not has_backward:
            buffers.release(gate, transformed)
        ctx.window, ctx.library, ctx.buffers = window, library, buffers
        ctx.save_for_backward(x, factors, joined, gate, transformed)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        d_y = gradients[0].contiguous()
        x, factors, joined, gate, transformed = ctx.saved_tensors
        window: HighwayWindow = ctx.window
        d_x, d_products = torch.empty_like(x), ctx.buffers.take((len(x), len(joined)), joined)
        d_bias = x.new_zeros(len(joined))
        window.d_y, window.d_x = d_y.data_ptr(), d_x.data_ptr()
        window.d_products, window.d_bias = d_products.data_ptr(), d_bias.data_ptr()
        ctx.library.call("elmo_highway_backward", window, 0, window.width)
        d_x += d_products @ joined
        d_gate_weight, d_weight = (d_products.t() @ factors).to(x.dtype).chunk(2)
        ctx.buffers.release(gate, transformed, d_products)
        d_gate_bias, d_bias = d_bias.chunk(2)
        return d_x, d_gate_weight, d_gate_bias, d_weight, d_bias, None, None, None, None


class _HighwayFunction(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 (autograd passes tensors by position)
        ctx: Any,
        x: Tensor,
        gate_weight: Tensor,
        gate_bias: Tensor,
        weight: Tensor,
        bias: Tensor,
        dtype: torch.dtype,
        buffers: BufferPool,
        has_backward: bool,
    ) -> Tensor:
        factors = x.to(dtype)
        gate, transformed = buffers.take(x.shape, x), buffers.take(x.shape, x)
        write_matmul(gate, factors, gate_weight.to(dtype).t())
        write_matmul(transformed, factors, weight.to(dtype).t())
        y = torch.empty_like(x)
        for t, g, x_rows, y_rows in _split_rows(transformed, gate, x, y):
            g.add_(gate_bias).sigmoid_()
            t.add_(bias).relu_()
            torch.sub(t, x_rows, out=y_rows).mul_(g).add_(x_rows)  # g · t + (1 − g) · x
        ctx.dtype, ctx.buffers = dtype, buffers
        ctx.save_for_backward(x, gate_weight, weight, gate, transformed)
        if not has_backward:
            buffers.release(gate, transformed)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        (d_y,) = gradients
        x, gate_weight, weight, gate, transformed = ctx.saved_tensors
        dtype, buffers = ctx.dtype, ctx.buffers
        d_gate, d_transformed = buffers.take(x.shape, x), buffers.take(x.shape, x)
        d_x = torch.empty_like(x)
        d_gate_bias, d_bias = torch.zeros_like(weight[0]), torch.zeros_like(weight[0])
        for t, g, x_rows, d_y_rows, d_t, d_g, d_x_rows in _split_rows(
            transformed, gate, x, d_y, d_transformed, d_gate, d_x
        ):
            torch.mul(d_y_rows, g, out=d_t)
            torch.sub(d_y_rows, d_t, out=d_x_rows)  # (1 − g) · d_y
            torch.sub(t, x_rows, out=d_g).mul_(d_y_rows)
            torch.ops.aten.sigmoid_backward.grad_input(d_g, g, grad_input=d_g)
            torch.ops.aten.threshold_backward.grad_input(d_t, t, 0, grad_input=d_t)
            d_gate_bias += d_g.sum(dim=0)
            d_bias += d_t.sum(dim=0)
        factors = x.to(dtype)
        d_weights = []
        for d_out, matrix in ((d_gate, gate_weight), (d_transformed, weight)):
            d_factors = d_out.to(dtype)
            add_matmul(d_x, d_factors, matrix.to(dtype))
            d_weights.append((d_factors.t() @ factors).to(x.dtype))
        buffers.release(gate, transformed, d_gate, d_transformed)
        return d_x, d_weights[0], d_gate_bias, d_weights[1], d_bias, None, None, None


def _split_rows(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split tensors into the same few rows."""
    return zip(*(tensor.split(CACHE_ROWS) for tensor in tensors), strict=True)


# --- with frozen weights ------------------------------------------------------------------------------------


class FrozenTokenLayer:
    """A token layer with a packed copy of its weights."""

    def __init__(self, layer: TokenLayer, kernels: Kernels) -> None:
        self._kernels = kernels
        self._word_vectors = None if layer.word_embed is None else layer.word_embed.weight.detach()
        self._cnn = None if layer.cnn is None else _freeze_char_cnn(layer.cnn, kernels)
        self._projection = None
        if layer.projection is not None:
            weight, bias = layer.projection.weight.detach(), layer.projection.bias.detach()
            self._projection = kernels.accurate_product(weight, bias)
        self._norm = None if layer.norm is None else FrozenNorm(layer.norm)

    def __call__(self, char_ids: Tensor | None, word_ids: Tensor | None) -> Tensor:
        """Map (token, char) and (token,) to (token, width), for at most ``Kernels.max_rows`` tokens."""
        n_tokens = len(char_ids if char_ids is not None else cast("Tensor", word_ids))
        n_rows = self._kernels.padded_rows(n_tokens)
        parts: list[Tensor] = []
        if self._word_vectors is not None:
            parts.append(F.embedding(_pad_rows(cast("Tensor", word_ids), n_rows), self._word_vectors))
        if self._cnn is not None:
            parts.append(self._cnn(_pad_rows(cast("Tensor", char_ids), n_rows)))
        x = torch.cat([part.to(state_dtype(part)) for part in parts], dim=1)
        if self._projection is not None:
            x = self._projection(x)
        if self._norm is not None:
            x = self._norm(x)
        return x[:n_tokens]


def _pad_rows(ids: Tensor, n: int) -> Tensor:
    """Repeat the last row up to ``n`` rows."""
    return ids if len(ids) == n else torch.cat([ids, ids[-1:].expand(n - len(ids), *ids.shape[1:])])


def _freeze_char_cnn(cnn: CharCnn, kernels: Kernels) -> Callable[[Tensor], Tensor]:
    """Pack the weights of ``cnn`` for a function that maps (token, char) to (token, width)."""
    if kernels.library is not None:
        return _CompiledCharCnn(cnn, kernels.library, kernels.precision)
    return _TorchCharCnn(cnn, kernels)


class _CompiledCharCnn:
    """Convolutions, maxima and highways in compiled code; see ``kernels.c``."""

    def __init__(self, cnn: CharCnn, library: Library, precision: str) -> None:
        self._library = library
        matrix, bias = _filter_matrix(cnn)
        # The maximum of values rounded to int8 would be too high.
        unquantized = "bfloat16" if precision == "int8" and "bfloat16" in library.precisions else precision
        filters = PackedWeight(library, matrix, "float32" if unquantized == "int8" else unquantized)
        weights = [cast("Tensor", convolution.weight) for convolution in cnn.convolutions]
        widths = torch.cat([torch.full((len(weight),), weight.size(2)) for weight in weights])
        self._smallest, widest = int(widths.min()), int(widths.max())
        characters = cnn.char_embed.weight.detach().float().contiguous()
        self._n_characters = len(characters)
        self._memory = (filters, filters.pad(bias), filters.pad(widths).to(torch.int32), characters)
        self._weights = CharCnnWeights(
            filters=filters.struct,
            bias=self._memory[1].data_ptr(),
            widths=self._memory[2].data_ptr(),
            characters=characters.data_ptr(),
            char_width=characters.size(1),
            widest=widest,
            is_relu=cnn.activation is torch.relu,
        )
        self._projection = None
        if cnn.projection is not None:
            self._projection = CompiledProduct(library, cnn.projection.weight, cnn.projection.bias, precision)
        self._highways = [
            CompiledHighway(
                library,
                transform=(highway.transform.weight, highway.transform.bias),
                gate=(highway.gate.weight, highway.gate.bias),
                precision=precision,
            )
            for highway in cast("list[Highway]", list(cnn.highways))
        ]

    def __call__(self, char_ids: Tensor) -> Tensor:
        """Map (token, char) to (token, width)."""
        char_ids = _check_char_ids(char_ids, self._n_characters)
        n_words, n_chars = char_ids.shape
        n_starts = (count_characters(char_ids) + 1).clamp_max_(n_chars - self._smallest + 1)
        x = torch.empty(n_words, self._weights.filters.n_out)
        self._library.call(
            "elmo_char_cnn", self._weights, n_words, n_chars, char_ids.data_ptr(), n_starts.data_ptr(), x.data_ptr()
        )
        if self._projection is not None:
            x = self._projection(x)
        for highway in self._highways:
            x = highway(x)
        return x


class _TorchCharCnn:
    def __init__(self, cnn: CharCnn, kernels: Kernels) -> None:
        self._kernels = kernels
        characters = cnn.char_embed.weight.detach()
        self._characters = characters.to(state_dtype(characters))
        weights = [cast("Tensor", convolution.weight) for convolution in cnn.convolutions]
        self._widths = [weight.size(2) for weight in weights]
        self._counts = [len(weight) for weight in weights]
        self._widest = max(self._widths)
        filters, bias = (weight.detach() for weight in _filter_matrix(cnn))
        self._filters = kernels.unquantized_product(filters)  # the max of rounded values is too high
        self._bias = bias.to(state_dtype(bias))
        self._activate = torch.relu_ if cnn.activation is torch.relu else torch.tanh_
        self._projection = None
        if cnn.projection is not None:
            self._projection = kernels.accurate_product(cnn.projection.weight.detach(), cnn.projection.bias.detach())
        self._highways = [_pack_highway(cast("Highway", highway), kernels) for highway in cnn.highways]

    def __call__(self, char_ids: Tensor) -> Tensor:
        """Map (token, char) to (token, width), for as many tokens as the kernels take."""
        falling, order = count_characters(char_ids).sort(descending=True, stable=True)
        highest = torch.empty(len(order), sum(self._counts), dtype=self._bias.dtype, device=order.device)
        highest[order] = self._max_over_windows(char_ids[order], falling.tolist())
        x = self._activate(highest.add_(self._bias))  # rounding is monotone: the bias may follow the max
        if self._projection is not None:
            x = self._projection(x)
        for highway in self._highways:
            x = _apply_highway(highway, x)
        return x

    def _max_over_windows(self, char_ids: Tensor, lengths: list[int]) -> Tensor:
        """The highest response of each filter, without bias, for words of falling length.

        The window moves over all words at once; words that have ended drop out of the product.
        """
        n_chars = char_ids.size(1)
        max_starts = n_chars - min(self._widths) + 1
        n_starts = [min(length + 1, max_starts) for length in lengths]
        n_read = n_starts[0] + self._widest - 1
        read = F.embedding(char_ids[:, :n_read], self._characters)  # (word, char, char_width)
        read = F.pad(read, (0, 0, 0, n_read - read.size(1)))
        highest = self._filters(self._window(read, 0))
        n_words = len(lengths)
        for start in range(1, n_starts[0]):
            while n_starts[n_words - 1] <= start:
                n_words -= 1
            n = self._kernels.padded_rows(n_words)
            responses = self._filters(self._window(read[:n], start))
            if n_chars - start >= self._widest:
                torch.maximum(highest[:n], responses, out=highest[:n])
                continue
            first = 0  # skip filters whose window reaches beyond the last character
            for width, n_filters in zip(self._widths, self._counts, strict=True):
                if width <= n_chars - start:
                    part = highest[:n, first : first + n_filters]
                    torch.maximum(part, responses[:, first : first + n_filters], out=part)
                first += n_filters
        return highest

    def _window(self, read: Tensor, start: int) -> Tensor:
        return read[:, start : start + self._widest].flatten(1)


def _pack_highway(highway: Highway, kernels: Kernels) -> Product:
    """Transform and gate in one product, the gate halved: see ``PackedGates``."""
    weight = torch.cat([highway.transform.weight.detach(), highway.gate.weight.detach() * 0.5])
    bias = torch.cat([highway.transform.bias.detach(), highway.gate.bias.detach() * 0.5])
    return kernels.accurate_product(weight, bias)


def _apply_highway(product: Product, x: Tensor) -> Tensor:
    transformed, gate = product(x).chunk(2, dim=1)
    gate = gate.tanh_().add_(1).mul_(0.5)  # σ
    return transformed.relu_().sub_(x).mul_(gate).add_(x)  # g · t + (1 − g) · x


CACHED_WORDS = 50_000  # least recently used words are dropped; 100 MB at the largest published size
MAX_CACHED_LENGTH = 64  # characters of a cached word: the spelling takes memory too
MIN_TASK_WORDS = 4  # fewer words are not worth a task for another thread

RunTasks = Callable[[Sequence[Callable[[], Tensor]]], list[Tensor]]


class TokenVectorCache:
    """Computes each distinct word once and caches its vector; safe to use from several threads."""

    def __init__(
        self,
        indexer: TokenIndexer,
        layer: FrozenTokenLayer,
        kernels: Kernels,
        *,
        device: torch.device,
        n_cached: int = CACHED_WORDS,
    ) -> None:
        self._indexer = indexer
        self._layer = layer
        self._kernels = kernels
        self._device = device
        self._n_cached = n_cached
        self._lock = threading.Lock()
        self._slots: OrderedDict[str, int] = OrderedDict()  # rows of the table; most recently used last
        reset_after_fork(self)
        self.boundaries = self._compute(indexer.boundaries(), lambda tasks: [task() for task in tasks])
        self._table = self.boundaries.new_empty(0, self.boundaries.size(1))  # boundaries are (2, width)

    def __len__(self) -> int:
        """Number of cached words."""
        return len(self._slots)

    def reset_locks(self) -> None:
        """Replace the lock; drop the words if another thread was storing some. See ``reset_after_fork``."""
        was_locked, self._lock = self._lock.locked(), threading.Lock()
        if was_locked:
            self.clear()

    def clear(self) -> None:
        """Remove all words from the cache."""
        with self._lock:
            self._slots.clear()
            self._table = self._table[:0].clone()

    def __call__(self, words: Sequence[str], run_tasks: RunTasks) -> Tensor:
        """Compute the vectors (word, width) of distinct words; ``run_tasks`` runs independent tasks."""
        vectors = self.boundaries.new_empty(len(words), self.boundaries.size(1))
        with self._lock:
            slots = [self._slots.get(word) for word in words]
            known = [k for k, slot in enumerate(slots) if slot is not None]
            for k in known:
                self._slots.move_to_end(words[k])
            if known:
                rows = self._index([slot for slot in slots if slot is not None])
                vectors.index_copy_(0, self._index(known), self._table.index_select(0, rows))
        missing = [k for k, slot in enumerate(slots) if slot is None]
        if missing:
            new_words = [words[k] for k in missing]
            new_vectors = self._compute(self._indexer.words(new_words), run_tasks)
            vectors.index_copy_(0, self._index(missing), new_vectors)
            with self._lock:
                self._store(new_words, new_vectors)
        return vectors

    def _compute(self, ids: TokenIds, run_tasks: RunTasks) -> Tensor:
        arrays = (ids.char_ids, ids.word_ids)
        n = len(next(array for array in arrays if array is not None))
        order = torch.arange(n)
        if ids.char_ids is not None:  # words of similar length together: the longest determines the work
            # In numpy, because torch would start threads, which spin next to those that compute.
            differs = ids.char_ids[:, ::-1] != ids.char_ids[:, -1:]
            n_repeated = np.where(differs.any(1), differs.argmax(1), differs.shape[1])  # characters of padding
            order = torch.from_numpy(np.argsort(n_repeated, kind="stable"))
        size = min(self._kernels.max_rows, max(MIN_TASK_WORDS, -(-n // 2)))  # work for two threads

        def compute_rows(rows: Tensor) -> Tensor:
            return self._layer(*(None if a is None else torch.from_numpy(a)[rows].to(self._device) for a in arrays))

        vectors = torch.cat(run_tasks([lambda rows=rows: compute_rows(rows) for rows in order.split(size)]))
        return torch.empty_like(vectors).index_copy_(0, order.to(self._device), vectors)

    def _index(self, numbers: list[int]) -> Tensor:
        """A tensor to select rows with; see ``Engine.run`` on why not ``x[numbers]``."""
        return torch.tensor(numbers, device=self._device)

    def _store(self, words: Sequence[str], vectors: Tensor) -> None:
        """Cache the last ``n_cached`` words in place of the least recently used ones."""
        rows = [k for k, word in enumerate(words) if len(word) <= MAX_CACHED_LENGTH and word not in self._slots]
        rows = rows[max(0, len(rows) - self._n_cached) :]
        slots: list[int] = []
        for k in rows:
            if len(self._slots) < self._n_cached:
                slot = len(self._slots)
            else:
                _, slot = self._slots.popitem(last=False)
            self._slots[words[k]] = slot
            slots.append(slot)
        if len(self._slots) > len(self._table):
            n_rows = min(self._n_cached, max(len(self._slots), 2 * len(self._table)))
            more = self._table.new_empty(n_rows - len(self._table), self._table.size(1))
            self._table = torch.cat([self._table, more])
        self._table[slots] = vectors[rows]
