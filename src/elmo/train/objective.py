"""A window of text in, the loss of both language models out, and the state to carry to the next window.

What ``BiLm`` computes, arranged for training: windows are full, so nothing is masked; each distinct word
goes through the token layer once; the two directions share it and the softmax. Dropout is bilm-tf's: on what
each LSTM layer reads (the skip connection passes on what was left) and on what the softmax reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.model.bilm import BiLm, BiLmState
from elmo.model.lstm import LstmState, ProjectedLstm
from elmo.model.softmax import AdaptiveSoftmax, Softmax
from elmo.model.word_sampler import LogUniformSampler
from elmo.train.fast_char_cnn import read_words
from elmo.train.fast_lstm import read_layer
from elmo.train.type_ids import TypeIds
from elmo.train.windows import Window


@dataclass(frozen=True)
class Losses:
    """Cross-entropy of each direction in nats: a mean, or one for each token; and the state after them."""

    forward: Tensor
    backward: Tensor
    state: BiLmState

    @property
    def mean(self) -> Tensor:
        """What is minimised: both directions count alike."""
        return (self.forward.mean() + self.backward.mean()) / 2


class BiLmObjective(nn.Module):
    """A biLM with the softmax that its two directions share."""

    def __init__(
        self,
        bilm: BiLm,
        softmax: Softmax | AdaptiveSoftmax,
        *,
        dropout: float = 0.1,
        has_bf16_products: bool = False,
    ) -> None:
        super().__init__()
        self.bilm = bilm
        self.softmax = softmax
        self.dropout = dropout
        self.has_bf16_products = has_bf16_products

    def forward(
        self,
        window: Window,
        ids: TypeIds,
        state: BiLmState,
        *,
        sampler: LogUniformSampler | None = None,
        generator: torch.Generator | None = None,
    ) -> Losses:
        """Mean losses of a window, which gradients flow back from.

        With a ``sampler`` each direction draws samples of its own from ``generator``, as bilm-tf does.
        """
        losses: list[Tensor] = []
        after: list[BiLmState] = []
        for states, targets, last in self._directions(window, ids, state):
            if sampler is None:
                losses.append(self.softmax(self._dropped(states), targets.flatten()))
            else:
                samples = sampler.draw(cast("torch.Generator", generator))
                softmax = cast("Softmax", self.softmax)
                losses.append(softmax.sampled(self._dropped(states), targets.flatten(), samples))
            after.append(last)
        return Losses(losses[0], losses[1], _joined(after))

    @torch.no_grad()
    def token_losses(self, window: Window, ids: TypeIds, state: BiLmState) -> Losses:
        """The loss of every token under the full softmax, (batch, time) for each direction."""
        losses: list[Tensor] = []
        after: list[BiLmState] = []
        for states, targets, last in self._directions(window, ids, state):
            losses.append(self.softmax.token_losses(states, targets.flatten()).view(targets.shape))
            after.append(last)
        return Losses(losses[0], losses[1], _joined(after))

    def _directions(
        self, window: Window, ids: TypeIds, state: BiLmState
    ) -> Iterator[tuple[Tensor, Tensor, BiLmState]]:
        """Top states (token, width), targets (batch, time) and last state of each direction."""
        both = (window.forward, window.backward)
        vectors = self._token_vectors(np.stack([direction.inputs for direction in both]), ids)
        for number, direction in enumerate(both):
            top, last = self._read(vectors[number], state, number)
            yield top.flatten(end_dim=1), ids.targets(direction.targets), last

    def _token_vectors(self, inputs: np.ndarray, ids: TypeIds) -> Tensor:
        """The vectors of type ids (direction, batch, time), each distinct type made once."""
        distinct, places = np.unique(inputs, return_inverse=True)
        char_ids, word_ids = ids.inputs(distinct)
        layer = self.bilm.token_layer
        parts: list[Tensor] = []
        if layer.word_embed is not None and word_ids is not None:
            parts.append(layer.word_embed(word_ids))
        if layer.cnn is not None and char_ids is not None:
            parts.append(read_words(layer.cnn, char_ids))
        table = torch.cat(parts, dim=1)
        if layer.projection is not None:
            table = layer.projection(table)
        return F.embedding(torch.from_numpy(places.reshape(inputs.shape)), table)

    def _read(self, inputs: Tensor, state: BiLmState, direction: int) -> tuple[Tensor, BiLmState]:
        """The top layer's output (batch, time, width), and the state (layer, batch, …) after it."""
        stack = (self.bilm.forward_stack, self.bilm.backward_stack)[direction]
        last: list[LstmState] = []
        for index, lstm in enumerate(stack):
            given = self._dropped(inputs)
            output, after = read_layer(
                cast("ProjectedLstm", lstm),
                given,
                state.at(direction, index),
                has_bf16_products=self.has_bf16_products,
            )
            inputs = output + given if self.bilm.has_skip and index > 0 else output
            last.append(after)
        hidden, cell = (torch.stack([getattr(s, name) for s in last]) for name in ("hidden", "cell"))
        return inputs, BiLmState(hidden, cell)

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


def _joined(directions: list[BiLmState]) -> BiLmState:
    """Both directions' states as one, cut off from the gradients: backpropagation ends with the window."""
    hidden, cell = (torch.stack([getattr(s, name) for s in directions]) for name in ("hidden", "cell"))
    return BiLmState(hidden.detach(), cell.detach())
