"""The input of all heads, and the layers that several heads use: pooling, attention, biLSTM.

Padding does not affect results. Pooling and attention need at least one word per sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from elmo.errors import ShapeError
from elmo.model.dropout import Dropout

MAX_SCORES = 1 << 24  # maximum number of attention scores in memory at a time


@dataclass(frozen=True)
class FeatureWidths:
    """Widths of the features at the input and at the output of a head; 0 if there are none."""

    inputs: int
    outputs: int = 0


@dataclass(frozen=True)
class FeatureVectors:
    """Features of a padded batch of sentences.

    ``inputs`` are the token features, concatenated with the ELMo vectors if the task uses them at its input.
    ``outputs``, if a task uses them, are ELMo vectors to concatenate to the output of the head, with
    their own mix of layers (Peters et al. 2018, section 3.3).
    """

    inputs: Tensor  # (batch, time, width)
    mask: Tensor  # (batch, time), true for words
    outputs: Tensor | None = None  # (batch, time, width)

    @property
    def lengths(self) -> Tensor:
        """Number of words of each sentence, (batch,)."""
        return self.mask.sum(dim=1)


@dataclass(frozen=True)
class SentenceGroups:
    """The sentences of a document in groups of similar length; each group is padded separately."""

    groups: tuple[FeatureVectors, ...]
    positions: Tensor  # (sentence,): index of each sentence in the concatenated groups

    @property
    def lengths(self) -> Tensor:
        """Number of words of each sentence in document order, (sentence,)."""
        return torch.cat([group.lengths for group in self.groups])[self.positions]

    @property
    def words(self) -> Tensor:
        """Index of each word of the document in the concatenated words of all groups, (token,)."""
        grouped = torch.cat([group.lengths for group in self.groups])  # (sentence,), in the order of the groups
        lengths = grouped[self.positions]  # (sentence,), in document order
        starts = (grouped.cumsum(0) - grouped)[self.positions]  # index of the first word of each sentence
        shifts = starts - (lengths.cumsum(0) - lengths)  # from an index in the document to one in the groups
        return torch.arange(int(lengths.sum()), device=lengths.device) + shifts.repeat_interleave(lengths)


def join_outputs(states: Tensor, features: FeatureVectors, *, width: int) -> Tensor:
    """Concatenate ``states`` (batch, time, width) with the output features, if any, and set padding to zero.

    ``width`` is the width of the output features that the head was built for.
    """
    return concat_outputs(states, features, width=width).masked_fill(~features.mask.unsqueeze(-1), 0.0)


def concat_outputs(states: Tensor, features: FeatureVectors, *, width: int) -> Tensor:
    """Concatenate states with the output features like ``join_outputs``, but keep the values at padding."""
    actual = 0 if features.outputs is None else features.outputs.size(-1)
    if width != actual:
        raise ShapeError(f"output features of this head must have width {width}; found width {actual}")
    return states if features.outputs is None else torch.cat([states, features.outputs], dim=-1)


def masked_max(states: Tensor, mask: Tensor) -> Tensor:
    """Compute the maximum over words: (batch, time, width) to (batch, width)."""
    return states.masked_fill(~mask.unsqueeze(-1), float("-inf")).amax(dim=1)


def masked_min(states: Tensor, mask: Tensor) -> Tensor:
    """Compute the minimum over words: (batch, time, width) to (batch, width)."""
    return states.masked_fill(~mask.unsqueeze(-1), float("inf")).amin(dim=1)


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean over words: (batch, time, width) to (batch, width)."""
    total = states.masked_fill(~mask.unsqueeze(-1), 0.0).sum(dim=1)
    return total / mask.sum(dim=1, keepdim=True)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Compute the softmax of ``scores`` (..., time) over words; padding gets 0.

    ``mask`` (..., time) is true for words and may be broadcast. A row without words gets equal weights, not NaN.
    """
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)


class SelfAttentivePooling(nn.Module):
    """Weighted mean of the words: Σ_t β_t · x_t with β = softmax(X v) and a learned vector v.

    McCann et al. 2017, section 5, without the bias: it is the same for all words, so it does not change the
    softmax.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Pool ``states`` (batch, time, width) into (batch, width)."""
        weights = masked_softmax(self.score(states).squeeze(-1), mask)  # (batch, time)
        return torch.einsum("bt,btw->bw", weights, states.masked_fill(~mask.unsqueeze(-1), 0.0))


def align(queries: Tensor, keys: Tensor, *, mask: Tensor) -> Tensor:
    """Compute attention from each query to the keys: Σ_j softmax_j(q_i · k_j) · k_j, (batch, query time, width).

    This is the alignment of Chen et al. 2017, section 3.2. If ``queries`` and ``keys`` are the same text, it is
    the biattention of McCann et al. 2017, section 5. ``mask`` (batch, key time) is true for words.
    """
    keys = keys.masked_fill(~mask.unsqueeze(-1), 0.0)

    def attend(rows: Tensor) -> tuple[Tensor]:
        scores = rows @ keys.transpose(1, 2)  # (batch, row, key time)
        return (masked_softmax(scores, mask.unsqueeze(1)) @ keys,)  # (batch, row, width)

    return compute_in_chunks(attend, queries, row_scores=mask.numel())[0]


def compute_in_chunks(
    compute: Callable[[Tensor], tuple[Tensor, ...]], rows: Tensor, *, row_scores: int
) -> tuple[Tensor, ...]:
    """Apply ``compute`` to ``rows`` (batch, row, width), in chunks if the text is long.

    Each row needs ``row_scores`` attention scores. The scores of a long text do not fit into memory, so those of
    each chunk are computed again in the backward pass.
    """
    chunk_size = max(1, MAX_SCORES // max(1, row_scores))
    if rows.size(1) <= chunk_size:
        return compute(rows)
    results = [
        cast("tuple[Tensor, ...]", checkpoint(compute, chunk, use_reentrant=False))
        for chunk in rows.split(chunk_size, dim=1)
    ]
    return tuple(torch.cat(parts, dim=1) for parts in zip(*results, strict=True))


class LabelHead(nn.Module):
    """Base class for heads whose ``forward`` computes a score for each label, (batch, n_labels)."""

    def loss(self, *inputs: FeatureVectors, labels: Tensor) -> Tensor:
        """Compute the mean cross entropy of the label ids ``labels`` (batch,)."""
        return F.cross_entropy(self(*inputs), labels)

    @torch.no_grad()
    def predict(self, *inputs: FeatureVectors) -> Tensor:
        """Compute the probabilities of the labels, (batch, n_labels)."""
        return self(*inputs).softmax(dim=-1)


class BiLstm(nn.Module):
    """Bidirectional LSTM with ``n_layers`` layers and ``width`` units per direction.

    Dropout is applied to the input of each layer and drops the same units at every word of a sentence.
    """

    def __init__(self, input_width: int, width: int, *, n_layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = 2 * width  # width of the states
        self.dropout = Dropout(dropout, is_locked=True)
        widths = [input_width] + [2 * width] * (n_layers - 1)
        self.layers = nn.ModuleList(_BiLstmLayer(layer_width, width) for layer_width in widths)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Compute the states (batch, time, 2 · width) of ``x`` (batch, time, width); padding is zero."""
        positions = reverse_positions(mask)
        for layer in self.layers:
            x = layer(self.dropout(x), positions).masked_fill(~mask.unsqueeze(2), 0.0)
        return x


class _BiLstmLayer(nn.Module):
    """Two LSTMs; the second reads each sentence from its last word to its first.

    Padding comes after the words in both directions, so no packed sequences are needed. torch runs padded
    sequences with oneDNN, which is three to six times as fast as its loop over packed sequences.
    """

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.ahead = nn.LSTM(input_width, width, batch_first=True)
        self.back = nn.LSTM(input_width, width, batch_first=True)
        _init_lstm(self.ahead)
        _init_lstm(self.back)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Compute the states (batch, time, 2 · width); states at padding are undefined."""
        forward_states, _ = self.ahead(x)
        backward_states, _ = self.back(_reorder(x, positions))
        return torch.cat([forward_states, _reorder(backward_states, positions)], dim=2)


def reverse_positions(mask: Tensor) -> Tensor:
    """Return the position of each word in the reversed sentence, (batch, time); padding stays at the end."""
    positions = torch.arange(mask.size(1), device=mask.device)  # (time,)
    lengths = mask.sum(dim=1, keepdim=True)  # (batch, 1)
    return torch.where(positions < lengths, lengths - 1 - positions, positions)


def _reorder(x: Tensor, positions: Tensor) -> Tensor:
    return x.gather(1, positions.unsqueeze(2).expand_as(x))


def _init_lstm(lstm: nn.Module) -> None:
    """Initialize an LSTM: orthogonal recurrent weights, Glorot input weights, and a forget bias of 1."""
    for name, weights in lstm.named_parameters():
        if "weight_hh" in name:
            for gate in weights.data.chunk(4):
                nn.init.orthogonal_(gate)
        elif "weight_ih" in name:
            nn.init.xavier_uniform_(weights)
        else:
            nn.init.zeros_(weights)
            if "bias_ih" in name:
                weights.data.chunk(4)[1].fill_(1.0)
