"""What a head is given: the vectors of a batch of sentences.

States of a padded sentence in, one vector out; padding changes nothing.

Every sentence needs a word.

Padded sentences and their masks in, attention over their words out; padding gets none of it.

Padded sentences in, states of a bidirectional LSTM out; padding changes nothing.

Padded sentences in, states of a deep stack of highway LSTMs of alternating direction out.

The layers are those of He et al. 2017 ("Deep Semantic Role Labeling: What Works and What's Next", section
2.1). The products of all inputs are one matrix product, the loop over time has a backward pass of its own:
autograd sees one operation a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from elmo.errors import ConfigError, ShapeError
from elmo.model.dropout import Dropout, dropout_mask


@dataclass(frozen=True)
class FeatureWidths:
    """How wide the vectors of the input are, and those that join the output (0: none do)."""

    inputs: int
    outputs: int = 0


@dataclass(frozen=True)
class FeatureVectors:
    """Padded sentences: [x; ELMo] for the input and, where a task wants it, ELMo for the output."""

    inputs: Tensor  # (batch, time, width)
    mask: Tensor  # (batch, time), true for words
    outputs: Tensor | None = None  # (batch, time, width), mixed with weights of its own

    @property
    def lengths(self) -> Tensor:
        """Words of each sentence, (batch,)."""
        return self.mask.sum(dim=1)


@dataclass(frozen=True)
class SentenceGroups:
    """A document's sentences in groups of like length, each padded for itself."""

    groups: tuple[FeatureVectors, ...]
    places: Tensor  # (sentence,): where each stands in the groups, counted through all of them

    @property
    def lengths(self) -> Tensor:
        """Words of each sentence, in the document's order, (sentence,)."""
        return torch.cat([group.lengths for group in self.groups])[self.places]

    @property
    def words(self) -> Tensor:
        """Where each word of the document stands among the words of all groups, (token,)."""
        grouped = torch.cat([group.lengths for group in self.groups])  # (sentence,), as the groups have them
        lengths = grouped[self.places]
        begins = (grouped.cumsum(0) - grouped)[self.places]  # of a sentence, in the groups
        moves = begins - (lengths.cumsum(0) - lengths)  # from the document to the groups
        return torch.arange(int(lengths.sum()), device=lengths.device) + moves.repeat_interleave(lengths)


def masked_max(states: Tensor, mask: Tensor) -> Tensor:
    """The largest of each unit over the words: (batch, time, width) to (batch, width)."""
    return states.masked_fill(~mask.unsqueeze(-1), float("-inf")).amax(dim=1)


def masked_min(states: Tensor, mask: Tensor) -> Tensor:
    """The smallest of each unit over the words: (batch, time, width) to (batch, width)."""
    return states.masked_fill(~mask.unsqueeze(-1), float("inf")).amin(dim=1)


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """The mean of each unit over the words: (batch, time, width) to (batch, width)."""
    total = states.masked_fill(~mask.unsqueeze(-1), 0.0).sum(dim=1)
    return total / mask.sum(dim=1, keepdim=True)


class SelfAttentivePooling(nn.Module):
    """Σ_t β_t · x_t, where β = softmax(X v) and v is learned (McCann et al. 2017, section 5).

    The paper's bias is left out: it is the same for every word, so the softmax takes it away.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Pool ``states`` (batch, time, width) into (batch, width)."""
        weights = masked_softmax(self.score(states).squeeze(-1), mask)  # (batch, time)
        return torch.einsum("bt,btw->bw", weights, states.masked_fill(~mask.unsqueeze(-1), 0.0))


SCORES_AT_ONCE = 1 << 24  # that are in memory


def by_rows(
    compute: Callable[[Tensor], tuple[Tensor, ...]], rows: Tensor, *, row_scores: int
) -> tuple[Tensor, ...]:
    """What ``compute`` gives for ``rows`` (batch, row, width), each of which needs ``row_scores`` scores.

    Scores of long texts would not fit in memory: those of a few rows are made at a time, and again for
    their gradients.
    """
    n_at_once = max(1, SCORES_AT_ONCE // max(1, row_scores))
    if rows.size(1) <= n_at_once:
        return compute(rows)
    parts = [
        cast("tuple[Tensor, ...]", checkpoint(compute, some, use_reentrant=False))
        for some in rows.split(n_at_once, dim=1)
    ]
    return tuple(torch.cat(part, dim=1) for part in zip(*parts, strict=True))


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax of ``scores`` (..., time) over the words of ``mask`` (..., time); the rest gets exactly 0.

    ``mask`` may be broadcast. Each row needs a word: one without would get equal shares, not NaN.
    """
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)


def align(queries: Tensor, keys: Tensor, *, mask: Tensor) -> Tensor:
    """For each query the words most like it: Σ_j softmax_j(q_i · k_j) · k_j, (batch, query time, width).

    Chen et al. 2017, section 3.2; with ``queries`` equal to ``keys``, the biattention of one text
    (McCann et al. 2017, section 5). ``mask`` (batch, key time) tells which keys are words.
    """
    keys = keys.masked_fill(~mask.unsqueeze(-1), 0.0)

    def aligned(rows: Tensor) -> tuple[Tensor]:
        scores = rows @ keys.transpose(1, 2)  # (batch, row, key time)
        return (masked_softmax(scores, mask.unsqueeze(1)) @ keys,)  # (batch, row, width)

    return by_rows(aligned, queries, row_scores=mask.numel())[0]


def join_outputs(states: Tensor, vectors: FeatureVectors, *, width: int) -> Tensor:
    """[h; ELMo] (Peters et al. 2018, section 3.3): an encoder's states beside ELMo for the output.

    ``width`` is what the head was built for: 0 leaves ``states`` (batch, time, width) as they are. Padding
    becomes zeros.
    """
    found = 0 if vectors.outputs is None else vectors.outputs.size(-1)
    if width != found:
        raise ShapeError(f"vectors for the output: this head was built for width {width}, found {found}")
    if vectors.outputs is not None:
        states = torch.cat([states, vectors.outputs], dim=-1)
    return states.masked_fill(~vectors.mask.unsqueeze(-1), 0.0)


class BiLstm(nn.Module):
    """``n_layers`` of bidirectional LSTMs, ``width`` units a direction, dropout before each layer."""

    def __init__(self, input_width: int, width: int, *, n_layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = 2 * width  # of what comes out
        self.dropout = Dropout(dropout, is_locked=True)
        widths = [input_width] + [2 * width] * (n_layers - 1)
        self.layers = nn.ModuleList(_BothDirections(layer_width, width) for layer_width in widths)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """States (batch, time, 2 · width) of ``x`` (batch, time, width); zero where ``mask`` is false."""
        turned = turned_places(mask)
        for layer in self.layers:
            x = layer(self.dropout(x), turned).masked_fill(~mask.unsqueeze(2), 0.0)
        return x


class _BothDirections(nn.Module):
    """Two LSTMs, one of which reads each sentence from its last word on.

    Padding comes after all words for both, so that neither needs packed sequences: torch hands padded ones
    to oneDNN as a whole, which is three to six times as fast as its own loop over packed ones.
    """

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.ahead = nn.LSTM(input_width, width, batch_first=True)
        self.back = nn.LSTM(input_width, width, batch_first=True)
        for lstm in (self.ahead, self.back):
            _start_well(lstm)

    def forward(self, x: Tensor, turned: Tensor) -> Tensor:
        """States (batch, time, 2 · width); those of padding mean nothing."""
        ahead, _ = self.ahead(x)
        back, _ = self.back(_at(x, turned))
        return torch.cat([ahead, _at(back, turned)], dim=2)


def turned_places(mask: Tensor) -> Tensor:
    """Where each word stands when its sentence is read from its end, (batch, time); padding stays last."""
    places = torch.arange(mask.size(1), device=mask.device)  # (time,)
    lengths = mask.sum(dim=1, keepdim=True)  # (batch, 1)
    return torch.where(places < lengths, lengths - 1 - places, places)


def _at(x: Tensor, places: Tensor) -> Tensor:
    return x.gather(1, places.unsqueeze(2).expand_as(x))


def _start_well(lstm: nn.Module) -> None:
    """Orthogonal recurrent weights, input weights after Glorot, a forget bias of 1."""
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


class HighwayLstm(nn.Module):
    """``n_layers`` of ``width`` units: the first reads forwards, the next backwards, and so on.

    ``dropout`` drops the same units of a layer's states at every time step (Gal and Ghahramani 2016): what
    is dropped reaches neither the next word nor the next layer.
    """

    def __init__(self, input_width: int, width: int, *, n_layers: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        if n_layers < 1 or not 0 <= dropout < 1:
            raise ConfigError(
                f"highway LSTM: expected 1 layer or more and dropout in 0..1, found {n_layers} and {dropout}"
            )
        self.width = width  # of what comes out
        self.layers = nn.ModuleList(
            HighwayLstmLayer(input_width if k == 0 else width, width, dropout=dropout)
            for k in range(n_layers)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """States (batch, time, width) of ``x`` (batch, time, width); zero where ``mask`` is false."""
        turned = turned_places(mask).t()  # (time, batch): padding comes last, the loop needs no mask
        states = x.transpose(0, 1)  # (time, batch, width)
        for k, layer in enumerate(self.layers):
            if k > 0:  # every layer reads against the direction of the one before
                states = states.gather(0, turned[:, :, None].expand_as(states))
            states = layer(states)
        if len(self.layers) % 2 == 0:
            states = states.gather(0, turned[:, :, None].expand_as(states))
        return states.transpose(0, 1).masked_fill(~mask[:, :, None], 0)


class HighwayLstmLayer(nn.Module):
    """An LSTM whose states are mixed with a linear map of its inputs, h = r ∘ h' + (1 − r) ∘ W_h x."""

    def __init__(self, input_width: int, width: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = width
        self.dropout = dropout
        # Blocks of rows: candidate, gates i, f, o, r, and of the inputs W_h, which has no bias.
        self.input_weight = nn.Parameter(torch.empty(6 * width, input_width))
        self.state_weight = nn.Parameter(torch.empty(5 * width, width))
        self.bias = nn.Parameter(torch.zeros(5 * width))
        for block in (*self.input_weight.data.chunk(6), *self.state_weight.data.chunk(5)):
            nn.init.orthogonal_(block)
        self.bias.data[2 * width : 3 * width] = 1.0  # at first all is remembered

    def forward(self, x: Tensor) -> Tensor:
        """States (time, batch, width) of ``x`` (time, batch, width), from a state of zeros on."""
        kept = None
        if self.training and self.dropout > 0.0:
            kept = dropout_mask((x.size(1), self.width), self.dropout, like=x)
        products = F.linear(
            x, self.input_weight, F.pad(self.bias, (0, self.width))
        )  # (time, batch, 6 · width)
        return _Loop.apply(products, self.state_weight, kept)  # pyright: ignore


class _Loop(torch.autograd.Function):
    """The loop over time, with W x + b (time, batch, 6 · width) at hand.

    The numbers that a gradient is multiplied by on its way back are worked out for all time steps at once,
    before the loop, so that few operations are left in it.
    """

    @staticmethod
    def forward(ctx: Any, products: Tensor, state_weight: Tensor, kept: Tensor | None) -> Tensor:
        time, batch, width = products.size(0), products.size(1), state_weight.size(1)
        blocks = products.clone(memory_format=torch.contiguous_format)  # gates are made where they lie
        cells, tanh_cells, states = (products.new_empty(time, batch, width) for _ in range(3))
        # Products of few rows are a third faster when the right factor lies as it is read.
        recurrent = state_weight.t().contiguous()
        j, i, f, o, r, carry = (block.unbind(0) for block in blocks.split(width, dim=2))
        with_state, gates = blocks[:, :, : 5 * width].unbind(0), blocks[:, :, width : 5 * width].unbind(0)
        c, tanh_c, h = cells.unbind(0), tanh_cells.unbind(0), states.unbind(0)
        for t in range(time):
            if t > 0:
                with_state[t].addmm_(h[t - 1], recurrent)
            j[t].tanh_()
            gates[t].sigmoid_()
            torch.mul(i[t], j[t], out=c[t])
            if t > 0:
                c[t].addcmul_(f[t], c[t - 1])
            torch.tanh(c[t], out=tanh_c[t])
            torch.mul(o[t], tanh_c[t], out=h[t])  # h'
            torch.lerp(carry[t], h[t], r[t], out=h[t])
            if kept is not None:
                h[t].mul_(kept)
        ctx.save_for_backward(blocks, cells, tanh_cells, states, state_weight, kept)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        blocks, cells, tanh_cells, states, state_weight, kept = ctx.saved_tensors
        time, batch, width = states.shape
        j, i, f, o, r, carry = blocks.split(width, dim=2)
        # Blocks j, i, f are reached by way of the cell, blocks o, r and W_h x by way of the state.
        factors = torch.empty_like(blocks)
        to_j, to_i, to_f, to_o, to_r, to_carry = factors.split(width, dim=2)
        torch.mul(i, 1 - j * j, out=to_j)
        torch.mul(j * i, 1 - i, out=to_i)
        to_f[0].zero_()
        torch.mul(cells[:-1] * f[1:], 1 - f[1:], out=to_f[1:])
        torch.mul(tanh_cells * r * o, 1 - o, out=to_o)
        torch.mul((o * tanh_cells - carry) * r, 1 - r, out=to_r)
        torch.sub(1, r, out=to_carry)
        to_cell = (r * o * (1 - tanh_cells * tanh_cells)).unbind(0)
        d_blocks = factors.view(time, batch, 6, width)  # each factor gives its place to its gradient
        by_cell, by_state = d_blocks[:, :, :3].unbind(0), d_blocks[:, :, 3:].unbind(0)
        with_state = factors[:, :, : 5 * width].unbind(0)
        forget, d_states = f.unbind(0), gradients[0].unbind(0)
        d_cell, d_state = torch.zeros_like(cells[0]), torch.zeros_like(cells[0])
        for t in range(time - 1, -1, -1):
            d_state.add_(d_states[t])
            if kept is not None:
                d_state.mul_(kept)
            d_cell.addcmul_(d_state, to_cell[t])
            by_cell[t].mul_(d_cell[:, None])
            by_state[t].mul_(d_state[:, None])
            if t > 0:
                d_cell.mul_(forget[t])
                torch.mm(with_state[t], state_weight, out=d_state)
        d_state_weight = None
        if ctx.needs_input_grad[1]:
            d_gates = factors[1:, :, : 5 * width].reshape(-1, 5 * width)
            d_state_weight = d_gates.t() @ states[:-1].reshape(-1, width)
        return factors, d_state_weight, None
