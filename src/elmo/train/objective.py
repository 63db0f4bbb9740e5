"""What training leaves out, and how: rates in, vectors and weights with some of their numbers dropped out.

A window of text in, the loss of both language models out, and the state to carry to the next window.

What ``BiLm`` computes, arranged for training: windows are full, so nothing is masked; each distinct word
goes through the token layer once; the two directions share it and the softmax. Dropout acts on what each LSTM
layer reads (the skip connection passes on what was left) and on what the softmax reads, as in bilm-tf.

``BiLmObjective.forward`` is the whole of it, one direction after the other: what to read, and what to call in
a loop of your own. ``train.gradients`` takes the same pieces side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from elmo.engine.lstm import read_layer
from elmo.engine.threads import FRESH, Scratch
from elmo.engine.token_layer import read_words
from elmo.errors import ConfigError, raise_all
from elmo.model.bilm import BiLm, BiLmState
from elmo.model.lstm import ProjectedLstm
from elmo.model.softmax import AdaptiveSoftmax, Samples, Softmax
from elmo.train.corpus import TypeIds
from elmo.train.randomness import generator_at
from elmo.train.windows import Direction, Window


@dataclass(frozen=True)
class Dropout:
    """Rates; the defaults are bilm-tf's published ones. Small corpora want more, of every kind."""

    layers: float = 0.1  # of what each LSTM layer and the softmax read
    inputs: float | None = None  # of what the first layer reads; None: as ``layers``
    outputs: float | None = None  # of what the softmax reads; None: as ``layers``
    words: float = 0.0  # whole words, wherever they stand in a window (Gal & Ghahramani 2016)
    weights: float = 0.0  # of the state-to-state weights: weight-drop (Merity et al. 2018)
    is_variational: bool = False  # the same dimensions for all tokens of a row's window, not anew for each

    def __post_init__(self) -> None:
        problems = [
            f"{name} must lie in 0..1, not {rate!r:.40}"
            for name in ("layers", "inputs", "outputs", "words", "weights")
            if (rate := getattr(self, name)) is not None and not 0 <= rate < 1
        ]
        raise_all(problems, subject="dropout", kind=ConfigError)

    @property
    def is_off(self) -> bool:
        """Whether nothing is left out."""
        return not any(getattr(self, field.name) for field in fields(self) if field.name != "is_variational")

    def at_layer(self, index: int) -> float:
        """The rate of what a layer reads."""
        return self.inputs if index == 0 and self.inputs is not None else self.layers

    @property
    def at_softmax(self) -> float:
        """The rate of what the softmax reads."""
        return self.layers if self.outputs is None else self.outputs

    def of_vectors(self, x: Tensor, rate: float, generator: torch.Generator) -> Tensor:
        """``x`` (batch, time, width), a share of its numbers zero and the rest raised to make up for it."""
        if not rate:
            return x
        like = x[:, :1] if self.is_variational else x
        return x * _mask(like, rate, generator)

    def of_rows(self, table: Tensor, generator: torch.Generator) -> Tensor:
        """``table`` (word, width) without a share of its rows."""
        return table * _mask(table[:, :1], self.words, generator) if self.words else table

    def of_weights(self, weight: Tensor, generator: torch.Generator) -> Tensor:
        """A state-to-state weight without a share of its numbers."""
        return weight * _mask(weight, self.weights, generator) if self.weights else weight


def _mask(like: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    # drawn where the generator lives, in the layout of what it is multiplied with
    mask = torch.empty_like(like, device=generator.device).bernoulli_(1 - rate, generator=generator)
    return mask.div_(1 - rate).to(like.device)


Directions = Literal["both", "forward", "backward"]
_NUMBERS: dict[Directions, tuple[int, ...]] = {"both": (0, 1), "forward": (0,), "backward": (1,)}


@dataclass(frozen=True)
class Chance:
    """Where a run is, for whoever draws random numbers there: see ``train.randomness``."""

    seed: int
    step: int
    first_row: int = 0  # of the whole batch: each process and each piece of it leaves out other numbers

    def masks(self, direction: int) -> torch.Generator:
        """For the dropout of one direction."""
        return generator_at("masks", seed=self.seed, step=self.step, place=(direction, self.first_row))

    def words(self) -> torch.Generator:
        """For the dropout of whole words, the same for all rows that are looked up together."""
        return generator_at("words", seed=self.seed, step=self.step, place=(self.first_row,))


@dataclass(frozen=True)
class Losses:
    """Cross-entropy of each direction in nats: a mean, or one for each token; and the state after them.

    None: a direction that is not trained.
    """

    forward: Tensor | None
    backward: Tensor | None
    state: BiLmState

    @property
    def mean(self) -> Tensor:
        """What is minimised: both directions count alike."""
        found = [loss.mean() for loss in (self.forward, self.backward) if loss is not None]
        return torch.stack(found).mean()


class BiLmObjective(nn.Module):
    """A biLM with the softmax that its two directions share; or one direction of it."""

    def __init__(
        self,
        bilm: BiLm,
        softmax: Softmax | AdaptiveSoftmax,
        *,
        dropout: Dropout | float = 0.1,
        directions: Directions = "both",
        has_bf16_products: bool = False,
        has_sparse_gradients: bool = False,
    ) -> None:
        super().__init__()
        self.bilm = bilm
        self.softmax = softmax
        self.dropout = dropout if isinstance(dropout, Dropout) else Dropout(dropout)
        self.directions = _NUMBERS[directions]
        self.has_bf16_products = has_bf16_products
        self.has_sparse_gradients = has_sparse_gradients  # of word vectors: of the rows that were used
        self.scratch: Scratch = FRESH  # ``train.gradients``, which takes gradients once only, has another

    def forward(
        self,
        window: Window,
        ids: TypeIds,
        state: BiLmState,
        *,
        samples: tuple[Samples, ...] | None = None,
        chance: Chance | None = None,
    ) -> Losses:
        """Mean losses of a window, which gradients flow back from.

        With ``samples``, one for each direction, words are predicted against these only. In training mode
        ``chance`` decides what is dropped.
        """
        vectors = self.token_vectors(window, ids, chance)
        found: dict[int, tuple[Tensor, BiLmState]] = {}
        for place, number in enumerate(self.directions):
            direction = _direction(window, number)
            targets = ids.targets(direction.targets)
            drawn = None if samples is None else samples[place]
            starts = None if direction.starts is None else ids.on_device(direction.starts)
            found[number] = self.direction_loss(
                number, vectors[place], targets, state, drawn, chance, starts=starts
            )
        return _losses({number: loss for number, (loss, _) in found.items()}, state, found)

    @torch.no_grad()
    def token_losses(self, window: Window, ids: TypeIds, state: BiLmState) -> Losses:
        """The loss of every token under the full softmax, (batch, time) for each direction."""
        vectors = self.token_vectors(window, ids, None)
        losses: dict[int, Tensor] = {}
        found: dict[int, tuple[Tensor, BiLmState]] = {}
        for place, number in enumerate(self.directions):
            targets = ids.targets(_direction(window, number).targets)
            top, _ = found[number] = self._read(vectors[place], state, number, None)
            of_tokens = self.softmax.token_losses(top.flatten(end_dim=1), targets.flatten())
            losses[number] = of_tokens.view(targets.shape)
        return _losses(losses, state, found)

    # --- the pieces -------------------------------------------------------------------------------------

    def token_vectors(self, window: Window, ids: TypeIds, chance: Chance | None) -> Tensor:
        """What the LSTMs read, (direction, batch, time, width), each distinct word made once."""
        distinct, places = self.distinct_words(window)
        table = self.without_words(self.word_table(distinct, ids), chance)
        return F.embedding(ids.on_device(places), table)

    def distinct_words(self, window: Window) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The types that a window reads, and where each token's is among them, (direction, batch, time)."""
        inputs = np.stack([_direction(window, number).inputs for number in self.directions])
        distinct, places = np.unique(inputs, return_inverse=True)
        return distinct, places.reshape(inputs.shape)

    def word_table(self, types: NDArray[np.int64], ids: TypeIds) -> Tensor:
        """The token layer's vectors of these types, (type, width)."""
        char_ids, word_ids = ids.inputs(types)
        layer = self.bilm.token_layer
        parts: list[Tensor] = []
        if layer.word_embed is not None and word_ids is not None:
            rows = layer.word_embed.weight
            parts.append(F.embedding(word_ids, rows, sparse=self.has_sparse_gradients))
        if layer.cnn is not None and char_ids is not None:
            parts.append(
                read_words(
                    layer.cnn, char_ids, has_bf16_products=self.has_bf16_products, scratch=self.scratch
                )
            )
        table = torch.cat(parts, dim=1)
        if layer.projection is not None:
            table = layer.projection(table)
        return table

    def without_words(self, table: Tensor, chance: Chance | None) -> Tensor:
        """The table, in training without the words that are dropped."""
        if not (self.training and self.dropout.words):
            return table
        return self.dropout.of_rows(table, _given(chance).words())

    def direction_loss(  # noqa: PLR0917
        self,
        number: int,
        vectors: Tensor,
        targets: Tensor,
        state: BiLmState,
        samples: Samples | None,
        chance: Chance | None,
        *,
        starts: Tensor | None = None,
    ) -> tuple[Tensor, BiLmState]:
        """The mean loss of one direction that reads ``vectors`` (batch, time, width), and its last state.

        The state is reset to zero before each token that ``starts`` (batch, time) marks.
        """
        generator = None
        if self.training and not self.dropout.is_off:
            generator = _given(chance).masks(number)
        top, after = self._read(vectors, state, number, generator, starts)
        if generator is not None:
            top = self.dropout.of_vectors(top, self.dropout.at_softmax, generator)
        # Outputs lie with time first: tokens in that order cost no copy, and a mean does not mind.
        states, wanted = top.transpose(0, 1).flatten(end_dim=1), targets.t().flatten()
        if samples is None:
            return self.softmax(states, wanted), after
        return cast("Softmax", self.softmax).sampled(states, wanted, samples), after

    def stack(self, number: int) -> nn.ModuleList:
        """The LSTM layers of one direction."""
        return (self.bilm.forward_stack, self.bilm.backward_stack)[number]

    def _read(
        self,
        inputs: Tensor,
        state: BiLmState,
        direction: int,
        generator: torch.Generator | None,
        starts: Tensor | None = None,
    ) -> tuple[Tensor, BiLmState]:
        """The top layer's output (batch, time, width), and the state (layer, batch, …) after it."""
        last = []
        for index, module in enumerate(self.stack(direction)):
            lstm = cast("ProjectedLstm", module)
            state_weight: Tensor = lstm.state_weight
            if generator is not None:
                inputs = self.dropout.of_vectors(inputs, self.dropout.at_layer(index), generator)
                state_weight = self.dropout.of_weights(state_weight, generator)
            output, after = read_layer(
                lstm,
                inputs,
                state.at(direction, index),
                state_weight=state_weight,
                starts=starts,
                has_bf16_products=self.has_bf16_products,
                scratch=self.scratch,
            )
            inputs = output + inputs if self.bilm.has_skip and index > 0 else output
            last.append(after)
        hidden, cell = (torch.stack([getattr(s, name) for s in last]) for name in ("hidden", "cell"))
        return inputs, BiLmState(hidden, cell)


def _direction(window: Window, number: int) -> Direction:
    return (window.forward, window.backward)[number]


def _given(chance: Chance | None) -> Chance:
    if chance is None:
        raise TypeError("dropout needs chance=: where the run is")
    return chance


def _losses(
    losses: dict[int, Tensor], before: BiLmState, found: dict[int, tuple[Tensor, BiLmState]]
) -> Losses:
    last = {number: after for number, (_, after) in found.items()}
    return Losses(losses.get(0), losses.get(1), state_after(before, last))


def state_after(before: BiLmState, directions: dict[int, BiLmState]) -> BiLmState:
    """Each direction's last state (layer, batch, …); what was not read stays as it was before.

    Cut off from the gradients: backpropagation ends with the window.
    """
    hidden, cell = (
        torch.stack(
            [
                getattr(directions[number], name) if number in directions else getattr(before, name)[number]
                for number in (0, 1)
            ]
        )
        for name in ("hidden", "cell")
    )
    return BiLmState(hidden.detach(), cell.detach())
