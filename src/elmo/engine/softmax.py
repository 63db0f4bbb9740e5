"""Losses and log-probabilities of ``elmo.model.softmax``, without storing all logits at once.

A chunk of tokens is processed at a time, and the memory of its logits is reused for the next chunk. The
training losses compute their gradients together with the loss, while the logits of a chunk exist, so logits
are computed once. Prediction uses products of one fixed shape, so that a token's bits do not depend on the
tokens around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmo.engine.buffers import UNPOOLED, BufferPool
from elmo.engine.compiled import SoftmaxWindow, find_library
from elmo.engine.matmul import FIXED_ROWS, add_matmul, aligned_linear, write_matmul
from elmo.model.softmax import AdaptiveSoftmax, Samples, Softmax, check_shapes

CHUNK_TOKENS = 128  # tokens of a chunk in training: few enough that their logits stay in the CPU cache
FIXED_CHUNK_TOKENS = 256  # tokens of a chunk in prediction: each product first rearranges the weights
MAX_COMPILED_WORDS = 1 << 14  # more words, as in a full softmax, would need too much memory for their odds
CHUNK_LOGITS = 1 << 24  # maximum number of logits of a chunk


def compute_loss(
    softmax: Softmax | AdaptiveSoftmax,
    states: Tensor,
    targets: Tensor,
    *,
    samples: Samples | None = None,
    has_bf16_products: bool = False,
    has_sparse_gradient: bool = False,
    buffers: BufferPool = UNPOOLED,
) -> Tensor:
    """Compute the mean cross-entropy of ``states`` (token, width), fast.

    Args:
        softmax: The output layer.
        states: The states that predict, (token, width).
        targets: The words to predict, (token,).
        samples: Compare with these words only: ``Softmax.sampled_loss``. By default, with all words.
        has_bf16_products: Round the factors of matrix products to bfloat16.
        has_sparse_gradient: Give the weights a sparse gradient, which contains only the rows of ``samples``
            and ``targets``.
        buffers: A pool for intermediate results.
    """
    if isinstance(softmax, AdaptiveSoftmax):
        return softmax(states, targets)
    weights = softmax.word_weights
    check_shapes(states, targets, weights.size(1))
    if samples is None:
        true = (states * F.embedding(targets, weights)).sum(dim=1) + softmax.bias[targets]  # (token,)
        total = _sum_log_sum_exp(states, weights, softmax.bias, is_bf16=has_bf16_products, buffers=buffers)
        return (total - true.sum()) / len(targets)
    n = len(samples.ids)
    ids = torch.cat([samples.ids, targets])
    table = softmax.tied_table
    if table is None:
        rows = F.embedding(ids, weights, sparse=has_sparse_gradient)  # (sample + token, width)
    else:
        rows = F.embedding(ids + 1, table.weight, sparse=has_sparse_gradient)
    bias = softmax.bias[ids] - samples.log_expected(ids).to(states)
    true = (states * rows[n:]).sum(dim=1) + bias[n:]  # (token,)
    total = _sum_log_sum_exp(
        states,
        rows[:n],
        bias[:n],
        extra=true,
        excluded=samples.find_hits(targets),
        is_bf16=has_bf16_products,
        buffers=buffers,
    )
    return (total - true.sum()) / len(targets)


@torch.no_grad()
def compute_token_losses(softmax: Softmax | AdaptiveSoftmax, states: Tensor, targets: Tensor) -> Tensor:
    """Compute −log p(target) for each token, (token,), without gradients."""
    if isinstance(softmax, AdaptiveSoftmax):
        return softmax.token_losses(states, targets)
    weights = softmax.word_weights
    check_shapes(states, targets, weights.size(1))
    losses = torch.empty_like(states[:, 0])
    buffer = states.new_empty(min(_chunk_size(len(weights)), len(states)), len(weights))
    for chunk in _split(len(states), _chunk_size(len(weights))):
        n = chunk.stop - chunk.start
        logits = torch.addmm(softmax.bias, states[chunk], weights.t(), out=buffer[:n])  # (token, words)
        losses[chunk] = 0 - _take_log_probabilities_(logits, targets[chunk])
    return losses


class FrozenSoftmax:
    """The output layer for prediction: products of one fixed shape, padded with zeros."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        """Use ``weight`` (words, width) and ``bias`` (words,)."""
        self._weight = weight
        self._bias = bias
        self.dtype, self.device = weight.dtype, weight.device
        size = CHUNK_LOGITS // len(bias) // FIXED_ROWS * FIXED_ROWS
        self._n_chunk = max(FIXED_ROWS, min(FIXED_CHUNK_TOKENS, size))

    def log_probabilities(self, states: Tensor) -> Tensor:
        """Compute log p of every word for every state: (token, width) to (token, words)."""
        result = self._weight.new_empty(len(states), len(self._bias))
        for chunk in _split(len(states), self._n_chunk):
            result[chunk] = self._logits(states[chunk]).log_softmax(dim=1)
        return result

    def target_log_probabilities(self, states: Tensor, targets: Tensor) -> Tensor:
        """Compute log p(target) for each token, (token,)."""
        buffer = self._weight.new_empty(self._n_chunk, len(self._bias))
        return torch.cat(
            [
                _take_log_probabilities_(self._logits(states[chunk], out=buffer), targets[chunk])
                for chunk in _split(len(states), self._n_chunk)
            ]
        )

    def _logits(self, states: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Compute the logits (token, words) of one chunk of states."""
        padded = F.pad(states.to(self._weight), (0, 0, 0, self._n_chunk - len(states)))
        return aligned_linear(padded, self._weight, self._bias, out=out)[: len(states)]


def _take_log_probabilities_(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute log p(target), (token,), from ``logits`` (token, words), which are overwritten."""
    true = logits.gather(1, targets[:, None])
    highest = logits.amax(dim=1, keepdim=True)
    sums = logits.sub_(highest).exp_().sum(dim=1, keepdim=True)
    return (true - highest - sums.log())[:, 0]


def _sum_log_sum_exp(
    states: Tensor,
    rows: Tensor,
    bias: Tensor,
    *,
    extra: Tensor | None = None,
    excluded: tuple[Tensor, Tensor] | None = None,
    is_bf16: bool = False,
    buffers: BufferPool = UNPOOLED,
) -> Tensor:
    """Compute Σ_t log(Σ_k exp(s_t · w_k + b_k) + exp(extra_t)), without the ``excluded`` pairs (t, k)."""
    token, word = excluded or (None, None)
    inputs = (states, rows, bias, extra)
    if not torch.is_grad_enabled():  # an autograd function only sees which inputs require a gradient
        inputs = tuple(None if x is None else x.detach() for x in inputs)
    library = find_library("bfloat16" if is_bf16 else "float32", states, rows, bias)
    if library is not None and 0 < len(rows) <= MAX_COMPILED_WORDS:
        return _CompiledSumLogSumExp.apply(*inputs, token, word, is_bf16, library, buffers)  # pyright: ignore
    return _SumLogSumExp.apply(*inputs, token, word, is_bf16)  # pyright: ignore


class _CompiledSumLogSumExp(torch.autograd.Function):
    """``_SumLogSumExp`` with compiled logits and odds, which are stored for one product per gradient."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        states, rows, bias, extra, token, word, is_bf16, library, buffers = arguments
        needs_states, needs_rows, needs_bias, needs_extra = ctx.needs_input_grad[:4]
        dtype = torch.bfloat16 if is_bf16 else torch.float32
        arrays = {"states": states, "rows": rows, "bias": bias, "extra": extra, "hit_token": token, "hit_word": word}
        arrays = {name: None if array is None else array.contiguous() for name, array in arrays.items()}
        odds = buffers.take((len(states), len(rows)), states.new_empty(0, dtype=dtype))  # (token, word)
        sums, highest = states.new_empty(len(states)), states.new_empty(len(states))
        d_bias = torch.zeros_like(bias) if needs_bias else None
        window = SoftmaxWindow(
            type=is_bf16,
            n_tokens=len(states),
            n_words=len(rows),
            width=states.size(1),
            n_hits=0 if token is None else len(token),
            **{name: None if array is None else array.data_ptr() for name, array in arrays.items()},
            odds=odds.data_ptr(),
            sums=sums.data_ptr(),
            highest=highest.data_ptr(),
            d_bias=None if d_bias is None else d_bias.data_ptr(),
        )
        library.call("elmo_softmax", window)
        # Probabilities are odds / sums. Dividing the narrow factor of a product saves a pass over odds.
        d_states = d_rows = d_extra = None
        if needs_states:
            d_states = (odds @ rows.to(dtype)).to(states.dtype).div_(sums[:, None])
        if needs_rows:
            d_rows = (odds.t() @ (states / sums[:, None]).to(dtype)).to(states.dtype)
        if extra is not None and needs_extra:
            d_extra = (extra - highest).exp_().div_(sums)
        buffers.release(odds)
        ctx.gradients = (d_states, d_rows, d_bias, d_extra)
        return (sums.double().log_() + highest).sum().to(states.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        (scale,) = d_outputs
        gradients, ctx.gradients = ctx.gradients, None  # scaled in place, so only once
        return *(None if x is None else x.mul_(scale) for x in gradients), None, None, None, None, None


class _SumLogSumExp(torch.autograd.Function):
    """``_sum_log_sum_exp``, a chunk of tokens at a time.

    The gradient of a sum does not depend on later operations except for a factor, so the gradient of each
    chunk is computed in ``forward``, while its logits exist. Logits are computed once and never stored.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd passes tensors by position)
        ctx: Any,
        states: Tensor,
        rows: Tensor,
        bias: Tensor,
        extra: Tensor | None,
        token: Tensor | None,
        word: Tensor | None,
        is_bf16: bool,
    ) -> Tensor:
        needs_states, needs_rows, needs_bias, needs_extra = ctx.needs_input_grad[:4]
        d_states = torch.empty_like(states) if needs_states else None
        # Transposed, so that the wide factor of each product is contiguous: a third faster.
        columns = rows.t().contiguous()  # (width, words)
        d_columns = torch.zeros_like(columns) if needs_rows else None
        d_bias = torch.zeros_like(bias) if needs_bias else None
        d_extra = torch.empty_like(extra) if extra is not None and needs_extra else None
        dtype = torch.bfloat16 if is_bf16 else states.dtype  # of the factors of products
        row_factors, column_factors = rows.to(dtype), columns.to(dtype)
        # A sum of thousands of terms loses digits in float32, but mps devices have no float64.
        sum_dtype = torch.float32 if states.device.type == "mps" else torch.float64
        total = states.new_zeros((), dtype=sum_dtype)
        buffer = states.new_empty(min(_chunk_size(len(rows)), max(len(states), 1)), len(rows))
        for chunk in _split(len(states), _chunk_size(len(rows))):
            x = states[chunk]
            logits = buffer[: len(x)]  # (token, words)
            if is_bf16:
                torch.add(x.to(dtype) @ column_factors, bias, out=logits)
            else:
                torch.addmm(bias, x, columns, out=logits)
            if token is not None and word is not None:
                ends = torch.tensor([chunk.start, chunk.stop], device=token.device)
                first, last = torch.searchsorted(token, ends).tolist()
                logits[token[first:last] - chunk.start, word[first:last]] = -torch.inf
            highest = logits.amax(dim=1, keepdim=True)  # (token, 1)
            if extra is not None:
                highest = torch.maximum(highest, extra[chunk, None])
            odds = logits.sub_(highest).exp_()
            sums = odds.sum(dim=1, keepdim=True)
            if extra is not None:
                sums += (extra[chunk, None] - highest).exp()
            total += (sums.log() + highest).sum()
            # Probabilities are odds / sums. Dividing the narrow factor of a product saves a pass over odds.
            odd_factors = odds.to(dtype)
            if d_states is not None:
                write_matmul(d_states[chunk], odd_factors, row_factors)
                d_states[chunk].div_(sums)
            if d_columns is not None:
                add_matmul(d_columns, (x / sums).to(dtype).t(), odd_factors)
            if d_bias is not None:
                d_bias.addmv_(odds.t(), sums[:, 0].reciprocal())
            if extra is not None and d_extra is not None:
                d_extra[chunk] = (extra[chunk] - highest[:, 0]).exp() / sums[:, 0]
        # Not saved with save_for_backward: backward overwrites them, and nothing else refers to them.
        ctx.gradients = (d_states, d_columns, d_bias, d_extra)
        return total.to(states.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        (scale,) = d_outputs
        gradients, ctx.gradients = ctx.gradients, None  # scaled in place, so only once
        states, columns, bias, extra = (None if x is None else x.mul_(scale) for x in gradients)
        return states, None if columns is None else columns.t(), bias, extra, None, None, None


def _chunk_size(n_words: int) -> int:
    return max(1, min(CHUNK_TOKENS, CHUNK_LOGITS // n_words))


def _split(n_tokens: int, size: int) -> Iterator[slice]:
    for begin in range(0, n_tokens, size):
        yield slice(begin, min(begin + size, n_tokens))
