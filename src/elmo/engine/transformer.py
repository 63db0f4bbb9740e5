"""The layers of ``elmo.model.transformer.TransformerLayer``, fast, in two variants.

- Encoding and prediction: ``FrozenTransformer`` packs the weights of a stack.
- Training: ``run_transformer_window`` reads windows of several sentences with gradients.

In encoding, all products with weights are those of ``elmo.engine.matmul``, in which a row does not depend on the other
rows. Attention is computed sentence by sentence, in the same shape in every batch. So a sentence gets the same bits
alone and in any batch. Memory grows with the length of a sentence, not with the square of the length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from elmo.config import NORM_EPSILON
from elmo.engine.batches import split_lengths
from elmo.engine.matmul import BLOCK_ROWS, Kernels, state_dtype
from elmo.model.transformer import LayerNorm, TransformerLayer, encode_positions

CHUNK_TOKENS = 1024  # tokens of whole sentences that go through all layers together; they fit into a cache
_TINY = 1e-30  # keeps the inverse of a deviation of zero finite


# --- encoding -----------------------------------------------------------------------------------------------


class FrozenTransformer:
    """The layers of one direction with a packed copy of their weights."""

    def __init__(self, layers: Sequence[TransformerLayer], kernels: Kernels) -> None:
        self._layers = [FrozenTransformerLayer(layer, kernels) for layer in layers]
        self._kernels = kernels

    def __len__(self) -> int:
        """Number of layers."""
        return len(self._layers)

    def run(self, tokens: Tensor, lengths: Sequence[int]) -> Iterator[Tensor]:
        """Yield the output of each layer (token, width), which is changed in place by the next step.

        ``tokens`` are the inputs of sentences with these lengths, one after the other, with their positions added, in
        the order in which this direction reads them.
        """
        n_tokens = len(tokens)
        n_rest = n_tokens % BLOCK_ROWS
        n_rows = n_tokens - n_rest + (self._kernels.padded_block(n_rest) if n_rest else 0)
        x = F.pad(tokens, (0, 0, 0, n_rows - n_tokens))  # a copy, or changed in place
        ends = [0, *np.cumsum(lengths).tolist()]
        for layer in self._layers:
            layer.run(x, ends)
            yield (x if layer.output_norm is None else layer.output_norm(x))[:n_tokens]


class FrozenTransformerLayer:
    """One layer with a packed copy of its weights."""

    def __init__(self, layer: TransformerLayer, kernels: Kernels) -> None:
        self._n_heads = layer.n_heads
        self._attention_norm, self._feed_forward_norm = map(FrozenNorm, (layer.attention_norm, layer.feed_forward_norm))
        self.output_norm = None if layer.output_norm is None else FrozenNorm(layer.output_norm)
        inputs = layer.query, layer.key, layer.value
        weight, bias = (torch.cat([getattr(linear, part).detach() for linear in inputs]) for part in ("weight", "bias"))
        self._attention = kernels.product(weight, bias)
        self._context, self._hidden, self._output = (
            kernels.accurate_product(linear.weight.detach(), linear.bias.detach())
            for linear in (layer.context, layer.hidden, layer.output)
        )

    def run(self, x: Tensor, ends: Sequence[int]) -> None:
        """Read ``x`` (row, width) and write the output to it; ``ends`` are 0 and the end of each sentence."""
        width = x.size(1)
        blocks = x.split(BLOCK_ROWS)
        joined = torch.cat([self._attention(self._attention_norm(block)) for block in blocks])  # (row, 3 · width)
        contexts = x.new_zeros(x.shape)
        for begin, end in pairwise(ends):
            # A new tensor for each sentence: the bits of torch's products may depend on the alignment of the memory.
            heads = joined[begin:end].view(end - begin, 3, self._n_heads, -1).permute(1, 2, 0, 3).contiguous()
            query, key, value = heads[:, None]  # (1, head, time, head width) each
            context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            contexts[begin:end] = context[0].transpose(0, 1).reshape(end - begin, width)
        for block, context in zip(blocks, contexts.split(BLOCK_ROWS), strict=True):
            block.add_(self._context(context))
            block.add_(self._output(self._hidden(self._feed_forward_norm(block)).relu_()))


class FrozenNorm:
    """``LayerNorm`` with torch's kernel, which divides by another deviation: a factor for each row corrects that."""

    def __init__(self, norm: LayerNorm) -> None:
        dtype = state_dtype(norm.gamma)
        self._gamma, self._beta = (part.detach().to(dtype, copy=True) for part in (norm.gamma, norm.beta))

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize ``x`` (row, width)."""
        y, _, inverse = torch.native_layer_norm(x, (x.size(1),), self._gamma, None, _TINY)
        return y.div_(inverse.mul_(NORM_EPSILON).add_(1)).add_(self._beta)


class TransformerBatch:
    """Sentences that are read together, given as rows of a table of token vectors."""

    def __init__(
        self, stacks: tuple[FrozenTransformer, FrozenTransformer], vectors: Tensor, sentences: list[NDArray[np.int64]]
    ) -> None:
        self._stacks, self._vectors, self._sentences = stacks, vectors, sentences
        n_layers, width = 1 + len(stacks[0]), vectors.size(1)
        self.layers = [vectors.new_empty(n_layers, len(tokens) - 2, 2 * width) for tokens in sentences]
        self.edges = vectors.new_empty(2, len(sentences), width)

    def run_direction(self, direction: int) -> None:
        """Read all layers of one direction; write its half of ``layers``, which has no boundaries, and of ``edges``."""
        width = self._vectors.size(1)
        half = slice(direction * width, (direction + 1) * width)
        step = -1 if direction else 1
        positions = encode_positions(max(map(len, self._sentences)), like=self._vectors)
        for chunk in split_lengths(list(map(len, self._sentences)), max_tokens=CHUNK_TOKENS):
            sentences = self._sentences[chunk]
            rows = torch.from_numpy(np.concatenate([tokens[::step] for tokens in sentences]))
            order = torch.from_numpy(np.concatenate([np.arange(len(tokens))[::step] for tokens in sentences]))
            device = self._vectors.device
            tokens = self._vectors.index_select(0, rows.to(device))
            inputs = tokens + positions.index_select(0, order.to(device))
            lengths = [len(sentence) for sentence in sentences]
            states = tokens
            for number, states in enumerate(chain([tokens], self._stacks[direction].run(inputs, lengths))):
                for layers, state in zip(self.layers[chunk], states.split(lengths), strict=True):
                    layers[number, :, half] = state[1:-1].flip(0) if direction else state[1:-1]
            starts = torch.tensor([0, *np.cumsum(lengths)[:-1].tolist()], device=device)
            self.edges[direction, chunk] = states.index_select(0, starts)


# --- training -----------------------------------------------------------------------------------------------


def mask_sentences(sentences: Tensor) -> Tensor:
    """Return which tokens each token may attend to, (batch, 1, time, time): itself and earlier ones of its sentence.

    ``sentences`` (batch, time) are the numbers of the sentences of a row, in the order in which they are read.
    """
    time = sentences.size(1)
    is_same = sentences[:, :, None] == sentences[:, None, :]
    is_earlier = torch.ones(time, time, dtype=torch.bool, device=sentences.device).tril()
    return (is_same & is_earlier)[:, None]


def run_transformer_window(
    layer: TransformerLayer,
    x: Tensor,
    mask: Tensor,
    *,
    drop: Callable[[Tensor], Tensor] | None = None,
    drop_shares: Callable[[Tensor], Tensor] | None = None,
    has_bf16_products: bool = False,
) -> Tensor:
    """Read a window ``x`` (batch, time, width) with gradients.

    Args:
        layer: The reference module with the weights.
        x: Inputs (batch, time, width); a row has parts of one or more sentences.
        mask: Which tokens a token may attend to, from ``mask_sentences``.
        drop: Applies dropout to the output of each sublayer and to hidden units.
        drop_shares: Applies dropout to the shares of attention (batch, head, time, time).
        has_bf16_products: Round products with weights, and their factors, to bfloat16.
    """

    def multiply(linear: nn.Linear, inputs: Tensor) -> Tensor:
        if not has_bf16_products:
            return linear(inputs)
        return F.linear(inputs.bfloat16(), linear.weight.bfloat16()).to(inputs.dtype) + linear.bias

    def identity(inputs: Tensor) -> Tensor:
        return inputs

    drop = drop or identity
    normal = layer.attention_norm(x)
    query, key, value = (
        multiply(linear, normal).unflatten(2, (layer.n_heads, -1)).transpose(1, 2)
        for linear in (layer.query, layer.key, layer.value)
    )
    if drop_shares is None:
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    else:
        scores = query @ key.transpose(2, 3) / math.sqrt(query.size(3))
        context = drop_shares(scores.masked_fill(~mask, -math.inf).softmax(dim=3)) @ value
    x = x + drop(multiply(layer.context, context.transpose(1, 2).flatten(2)))
    hidden = drop(multiply(layer.hidden, layer.feed_forward_norm(x)).relu())
    x = x + drop(multiply(layer.output, hidden))
    return x if layer.output_norm is None else layer.output_norm(x)
