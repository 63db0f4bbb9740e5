"""The training objective: the loss of both language models on a window, and the state after the window.

The network is that of ``BiLm``, arranged for training: windows have no padding, so nothing is masked; the token
layer computes each distinct word of a window once; both directions share the token layer and the softmax. Dropout is
applied to the input of each LSTM layer and of the softmax, as in bilm-tf; skip connections add the input after dropout.
In a transformer, it is applied to the input of the first layer, to hidden units, to the output of each sublayer and to
the input of the softmax, as in AllenNLP. A sentence that began in an earlier window is read without its beginning.

``BiLmObjective.forward`` computes one direction after the other. Read it first, and use it in your own training loop.
``train.gradients`` computes the same losses and their gradients in parallel threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from elmo.engine.buffers import UNPOOLED, BufferPool
from elmo.engine.lstm import run_lstm_window
from elmo.engine.softmax import compute_loss, compute_token_losses
from elmo.engine.token_layer import run_token_layer
from elmo.engine.transformer import mask_sentences, run_transformer_window
from elmo.model.bilm import BiLm, BiLmState
from elmo.model.lstm import ProjectedLstm
from elmo.model.softmax import AdaptiveSoftmax, Samples, Softmax
from elmo.model.transformer import TransformerLayer, encode_positions
from elmo.train.corpus import TypeIds
from elmo.train.options import Directions, DropoutOptions
from elmo.train.windows import Direction, Window

_NUMBERS: dict[Directions, tuple[int, ...]] = {"both": (0, 1), "forward": (0,), "backward": (1,)}
Purpose = Literal["samples", "words", "masks", "window_resets", "sentence_resets"]
_PURPOSES: dict[Purpose, int] = {"samples": 0, "words": 1, "masks": 2, "window_resets": 3, "sentence_resets": 4}


@dataclass(frozen=True)
class StepRandom:
    """The random numbers of one step, which do not depend on earlier steps.

    A checkpoint therefore stores no random state, and the numbers of one process do not depend on the other processes.

    Attributes:
        seed: Seed of the run.
        step: Number of the step.
        first_row: Index of the first row of this part of the batch, so that each part draws different masks.
    """

    seed: int
    step: int
    first_row: int = 0

    def generator(self, purpose: Purpose, *keys: int) -> torch.Generator:
        """Return a random generator for one purpose. Different ``keys`` (direction, row) give different numbers."""
        entropy = (self.seed, _PURPOSES[purpose], self.step, *keys)
        mixed = np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]
        return torch.Generator().manual_seed(int(mixed) >> 1)  # seeds of torch are signed


@dataclass(frozen=True)
class Places:
    """Where the tokens of a window are in their sentences, for a transformer.

    Attributes:
        positions: (batch, time) Position of each input in its sentence.
        sentences: (batch, time) Number of its sentence in the row.
    """

    positions: Tensor
    sentences: Tensor


@dataclass(frozen=True)
class Losses:
    """Cross-entropy of each direction in nats, and the state after the window.

    Attributes:
        forward: Mean loss, or token losses (batch, time), of the forward direction; None if it is not trained.
        backward: Mean loss, or token losses (batch, time), of the backward direction; None if it is not trained.
        state: State after the window, detached from the graph.
    """

    forward: Tensor | None
    backward: Tensor | None
    state: BiLmState

    @property
    def mean(self) -> Tensor:
        """Mean loss of both directions, which training minimizes."""
        return torch.stack([loss.mean() for loss in (self.forward, self.backward) if loss is not None]).mean()

    @classmethod
    def combine(cls, losses: dict[int, Tensor], states: dict[int, BiLmState], before: BiLmState) -> Losses:
        """Combine the losses and states (layer, batch, …) of the directions. An untrained direction keeps its state."""
        hidden, cell = (
            torch.stack(
                [getattr(states[k], name) if k in states else getattr(before, name)[k] for k in (0, 1)]
            ).detach()
            for name in ("hidden", "cell")
        )
        return cls(losses.get(0), losses.get(1), BiLmState(hidden, cell))


class BiLmObjective(nn.Module):
    """A biLM and the softmax that its two directions share, with the loss that training minimizes.

    Args:
        bilm: The network.
        softmax: The softmax that predicts words.
        dropout: Dropout rates, or one rate for all layers.
        directions: Whether to train both directions or only one.
        has_bf16_products: Whether to compute matrix products in bfloat16.
        has_sparse_gradients: Whether the gradients of word vectors and softmax are sparse, with only the rows in use.

    Example:
        >>> bilm = BiLm.from_config(PRESETS["tiny"])
        >>> from elmo.model import Softmax
        >>> objective = BiLmObjective(bilm, Softmax(n_words=100, width=bilm.zero_state(1).hidden.shape[-1]))
    """

    def __init__(
        self,
        bilm: BiLm,
        softmax: Softmax | AdaptiveSoftmax,
        *,
        dropout: DropoutOptions | float = 0.1,
        directions: Directions = "both",
        has_bf16_products: bool = False,
        has_sparse_gradients: bool = False,
    ) -> None:
        super().__init__()
        self.bilm = bilm
        self.softmax = softmax
        self.dropout = dropout if isinstance(dropout, DropoutOptions) else DropoutOptions(dropout)
        self.directions = _NUMBERS[directions]
        self.has_bf16_products = has_bf16_products
        self.has_sparse_gradients = has_sparse_gradients
        self.buffer_pool: BufferPool = UNPOOLED  # ``Gradients`` replaces this with a pool of reusable buffers

    def forward(
        self,
        window: Window,
        ids: TypeIds,
        state: BiLmState,
        *,
        samples: tuple[Samples, ...] | None = None,
        random: StepRandom | None = None,
    ) -> Losses:
        """Compute the mean loss of each direction on a window, for backpropagation.

        Args:
            window: Inputs and targets.
            ids: Converts type ids of the corpus to ids of this model.
            state: State before the window.
            samples: Words sampled for the softmax, for each direction. None uses all words.
            random: Random numbers of the step. They are required for dropout in training mode.
        """
        types, index = self.distinct_types(window)
        table = self.drop_words(self.embed_types(types, ids), random)
        vectors = F.embedding(ids.on_device(index), table)  # (direction, batch, time, width)
        losses, states = {}, {}
        for k, number in enumerate(self.directions):
            direction = window.direction(number)
            losses[number], states[number] = self.direction_loss(
                number,
                vectors[k],
                ids.targets(direction.targets),
                state,
                samples=None if samples is None else samples[k],
                random=random,
                resets=None if direction.resets is None else ids.on_device(direction.resets),
                places=self.places(direction, ids),
            )
        return Losses.combine(losses, states, state)

    @torch.no_grad()
    def token_losses(self, window: Window, ids: TypeIds, state: BiLmState) -> Losses:
        """Compute the loss of each token with the full softmax, as (batch, time) for each direction."""
        types, index = self.distinct_types(window)
        vectors = F.embedding(ids.on_device(index), self.embed_types(types, ids))
        losses, states = {}, {}
        for k, number in enumerate(self.directions):
            direction = window.direction(number)
            targets = ids.targets(direction.targets)
            top, states[number] = self._run_stack(number, vectors[k], state, places=self.places(direction, ids))
            token_losses = compute_token_losses(self.softmax, top.flatten(end_dim=1), targets.flatten())
            losses[number] = token_losses.view(targets.shape)
        return Losses.combine(losses, states, state)

    # --- the parts of a forward pass ------------------------------------------------------------------

    def distinct_types(self, window: Window) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the distinct types of a window (type,), and the type index of each token (direction, batch, time)."""
        inputs = np.stack([window.direction(number).inputs for number in self.directions])
        types, index = np.unique(inputs, return_inverse=True)
        return types, index.reshape(inputs.shape)

    def places(self, direction: Direction, ids: TypeIds) -> Places | None:
        """Return where the tokens of a direction are in their sentences; None for LSTMs, which do not need it."""
        if not self.bilm.has_positions:
            return None
        if direction.positions is None:
            raise TypeError("a transformer needs the positions of tokens; pass has_positions=True to Windows")
        return Places(ids.on_device(direction.positions), ids.on_device(direction.sentence_numbers()))

    def embed_types(self, types: NDArray[np.int64], ids: TypeIds) -> Tensor:
        """Compute the token vectors of types: (type,) to (type, width)."""
        char_ids, word_ids = ids.inputs(types)
        return run_token_layer(
            self.bilm.token_layer,
            char_ids,
            word_ids,
            has_bf16_products=self.has_bf16_products,
            has_sparse_gradient=self.has_sparse_gradients,
            buffers=self.buffer_pool,
        )

    def drop_words(self, table: Tensor, random: StepRandom | None) -> Tensor:
        """Apply word dropout to ``table`` (type, width) in training mode."""
        if not (self.training and self.dropout.words):
            return table
        random = _require(random)
        return _drop(table, self.dropout.words, random.generator("words", random.first_row), like=table[:, :1])

    def direction_loss(
        self,
        number: int,
        vectors: Tensor,
        targets: Tensor,
        state: BiLmState,
        *,
        samples: Samples | None = None,
        random: StepRandom | None = None,
        resets: Tensor | None = None,
        places: Places | None = None,
    ) -> tuple[Tensor, BiLmState]:
        """Compute the mean loss of one direction, and its state (layer, batch, …) after the window.

        Args:
            number: Number of the direction: 0 for forward, 1 for backward.
            vectors: (batch, time, width) Token vectors.
            targets: (batch, time) Words to predict.
            state: State of both directions before the window.
            samples: Words sampled for the softmax. None uses all words.
            random: Random numbers of the step. They are required for dropout in training mode.
            resets: (batch, time) True where the state is set to zero before the token.
            places: Where tokens are in their sentences, for a transformer.
        """
        generator = None
        if self.training and not self.dropout.is_off:
            random = _require(random)
            generator = random.generator("masks", number, random.first_row)
        top, after = self._run_stack(number, vectors, state, generator=generator, resets=resets, places=places)
        if generator is not None:
            top = self._drop_vectors(top, self.dropout.softmax_rate, generator)
        loss = compute_loss(
            self.softmax,
            # outputs are stored with time as the first axis, so this order needs no copy
            top.transpose(0, 1).flatten(end_dim=1),
            targets.t().flatten(),
            samples=samples,
            has_bf16_products=self.has_bf16_products,
            has_sparse_gradient=self.has_sparse_gradients,
            buffers=self.buffer_pool,
        )
        return loss, after

    def stack(self, number: int) -> nn.ModuleList:
        """Return the LSTM or transformer layers of one direction."""
        return (self.bilm.forward_stack, self.bilm.backward_stack)[number]

    def _run_stack(
        self,
        number: int,
        inputs: Tensor,
        state: BiLmState,
        *,
        generator: torch.Generator | None = None,
        resets: Tensor | None = None,
        places: Places | None = None,
    ) -> tuple[Tensor, BiLmState]:
        """Return the output of the top layer (batch, time, width) and the state (layer, batch, …) of one direction."""
        if places is not None:
            top = self._run_transformers(number, inputs, places, generator=generator)
            return top, BiLmState(state.hidden[number], state.cell[number])
        states = []
        for index, module in enumerate(self.stack(number)):
            lstm = cast("ProjectedLstm", module)
            state_weight: Tensor = lstm.state_weight
            if generator is not None:
                inputs = self._drop_vectors(inputs, self.dropout.layer_rate(index), generator)
                state_weight = _drop(state_weight, self.dropout.weights, generator)
            output, after = run_lstm_window(
                lstm,
                inputs,
                state.at(number, index),
                state_weight=state_weight,
                resets=resets,
                has_bf16_products=self.has_bf16_products,
                buffers=self.buffer_pool,
            )
            inputs = output + inputs if self.bilm.has_skip and index > 0 else output
            states.append(after)
        hidden, cell = (torch.stack([getattr(s, name) for s in states]) for name in ("hidden", "cell"))
        return inputs, BiLmState(hidden, cell)

    def _run_transformers(
        self, number: int, inputs: Tensor, places: Places, *, generator: torch.Generator | None
    ) -> Tensor:
        """Return the output of the top layer (batch, time, width) of one direction of a transformer."""

        def dropping(rate: float) -> Callable[[Tensor], Tensor] | None:
            """Return a function that applies dropout at a rate, or None if there is nothing to do."""
            if generator is None or not rate:
                return None
            return partial(self._drop_vectors, rate=rate, generator=generator)

        table = encode_positions(int(places.positions.max()) + 1, like=inputs)
        x = inputs + F.embedding(places.positions, table)
        if (drop := dropping(self.dropout.layer_rate(0))) is not None:
            x = drop(x)
        drop_shares = None
        if generator is not None and self.dropout.weights:
            drop_shares = partial(_drop, rate=self.dropout.weights, generator=generator)
        mask = mask_sentences(places.sentences)
        for layer in self.stack(number):
            x = run_transformer_window(
                cast("TransformerLayer", layer),
                x,
                mask,
                drop=dropping(self.dropout.layers),
                drop_shares=drop_shares,
                has_bf16_products=self.has_bf16_products,
            )
        return x

    def _drop_vectors(self, x: Tensor, rate: float, generator: torch.Generator) -> Tensor:
        """Apply dropout to ``x`` (batch, time, width)."""
        return _drop(x, rate, generator, like=x[:, :1] if self.dropout.is_variational else x)


def _drop(x: Tensor, rate: float, generator: torch.Generator, *, like: Tensor | None = None) -> Tensor:
    """Set a random share of ``x`` to zero and scale the rest. The mask has the shape of ``like``."""
    if not rate:
        return x
    like = x if like is None else like
    # the mask is drawn on the device of the generator, in the memory layout of ``like``
    mask = torch.empty_like(like, device=generator.device).bernoulli_(1 - rate, generator=generator)
    return x * mask.div_(1 - rate).to(like.device)


def _require(random: StepRandom | None) -> StepRandom:
    if random is None:
        raise TypeError("dropout in training mode needs random numbers; pass random=StepRandom(seed, step)")
    return random
