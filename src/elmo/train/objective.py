"""The training objective: the loss of both language models on a window, and the state after it.

Computes what ``BiLm`` computes, arranged for training: windows are full, so nothing is masked; each distinct
word goes through the token layer once; the two directions share the token layer and the softmax. Dropout
acts on the input of each LSTM layer and of the softmax, as in bilm-tf; skip connections add the input after
dropout.

``BiLmObjective.forward`` is the simple version, one direction after the other. Read it first, and call it in
your own training loop. ``train.gradients`` runs the same parts in parallel.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from elmo.model.bilm import BiLm, BiLmState
from elmo.model.lstm import ProjectedLstm
from elmo.model.softmax import AdaptiveSoftmax, Samples, Softmax
from elmo.train.corpus import TypeIds
from elmo.train.options import Directions, DropoutOptions
from elmo.train.windows import Window

_NUMBERS: dict[Directions, tuple[int, ...]] = {"both": (0, 1), "forward": (0,), "backward": (1,)}
Purpose = Literal["samples", "words", "masks", "window_resets", "sentence_resets"]
_PURPOSES: dict[Purpose, int] = {"samples": 0, "words": 1, "masks": 2, "window_resets": 3, "sentence_resets": 4}


@dataclass(frozen=True)
class StepRandom:
    """Random numbers of one step. They do not depend on earlier draws.

    So a checkpoint stores no random state, and the numbers of one process do not depend on the number of
    other processes.

    Attributes:
        seed: Seed of the run.
        step: Number of the step.
        first_row: First row of the batch that is read. Each process and part of a batch draws other masks.
    """

    seed: int
    step: int
    first_row: int = 0

    def generator(self, purpose: Purpose, *keys: int) -> torch.Generator:
        """Return the generator for one purpose. ``keys`` separate directions and rows."""
        entropy = (self.seed, _PURPOSES[purpose], self.step, *keys)
        mixed = np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]
        return torch.Generator().manual_seed(int(mixed) >> 1)  # torch's seeds are signed


@dataclass(frozen=True)
class Losses:
    """Cross-entropy of each direction in nats, and the state after the window.

    Attributes:
        forward: Mean loss, or (batch, time) losses, of the forward direction. None: not trained.
        backward: The same for the backward direction.
        state: State after the window, detached from the gradients.
    """

    forward: Tensor | None
    backward: Tensor | None
    state: BiLmState

    @property
    def mean(self) -> Tensor:
        """Mean of both directions: the value to minimize."""
        return torch.stack([loss.mean() for loss in (self.forward, self.backward) if loss is not None]).mean()

    @classmethod
    def combine(cls, losses: dict[int, Tensor], states: dict[int, BiLmState], before: BiLmState) -> Losses:
        """Combine losses and states (layer, batch, …) by direction; missing directions keep their state."""
        hidden, cell = (
            torch.stack(
                [getattr(states[k], name) if k in states else getattr(before, name)[k] for k in (0, 1)]
            ).detach()
            for name in ("hidden", "cell")
        )
        return cls(losses.get(0), losses.get(1), BiLmState(hidden, cell))


class BiLmObjective(nn.Module):
    """A biLM and the softmax that its two directions share, or one direction of it.

    Args:
        bilm: The network.
        softmax: Predicts the next word.
        dropout: Dropout rates, or one rate for all layers.
        directions: Directions to train.
        has_bf16_products: Compute matrix products in bfloat16.
        has_sparse_gradients: Use sparse gradients for word vectors and softmax: only rows that were used.
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
        self.buffer_pool: BufferPool = UNPOOLED  # ``Gradients`` sets a pool: it takes each gradient once

    def forward(
        self,
        window: Window,
        ids: TypeIds,
        state: BiLmState,
        *,
        samples: tuple[Samples, ...] | None = None,
        random: StepRandom | None = None,
    ) -> Losses:
        """Compute the mean losses of a window, with gradients.

        Args:
            window: Inputs and targets.
            ids: Ids of the corpus for this model.
            state: State before the window.
            samples: Sampled words to predict against, for each direction. None: all words.
            random: Random numbers of the step. Required for dropout in training mode.
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
            )
        return Losses.combine(losses, states, state)

    @torch.no_grad()
    def token_losses(self, window: Window, ids: TypeIds, state: BiLmState) -> Losses:
        """Compute the loss of every token with the full softmax, (batch, time) for each direction."""
        types, index = self.distinct_types(window)
        vectors = F.embedding(ids.on_device(index), self.embed_types(types, ids))
        losses, states = {}, {}
        for k, number in enumerate(self.directions):
            targets = ids.targets(window.direction(number).targets)
            top, states[number] = self._run_stack(number, vectors[k], state)
            token_losses = compute_token_losses(self.softmax, top.flatten(end_dim=1), targets.flatten())
            losses[number] = token_losses.view(targets.shape)
        return Losses.combine(losses, states, state)

    # --- the parts of a forward pass ------------------------------------------------------------------

    def distinct_types(self, window: Window) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the distinct types of a window, and each token's index in them, (direction, batch, time)."""
        inputs = np.stack([window.direction(number).inputs for number in self.directions])
        types, index = np.unique(inputs, return_inverse=True)
        return types, index.reshape(inputs.shape)

    def embed_types(self, types: NDArray[np.int64], ids: TypeIds) -> Tensor:
        """Run the token layer on types, (type,) to (type, width)."""
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
    ) -> tuple[Tensor, BiLmState]:
        """Compute the mean loss of one direction, and its state (layer, batch, …) after the window.

        Args:
            number: Direction: 0 forward, 1 backward.
            vectors: (batch, time, width) Token vectors.
            targets: (batch, time) Words to predict.
            state: State of both directions before the window.
            samples: Sampled words to predict against. None: all words.
            random: Random numbers of the step.
            resets: (batch, time) True where the state is reset to zero before the token.
        """
        generator = None
        if self.training and not self.dropout.is_off:
            random = _require(random)
            generator = random.generator("masks", number, random.first_row)
        top, after = self._run_stack(number, vectors, state, generator=generator, resets=resets)
        if generator is not None:
            top = self._drop_vectors(top, self.dropout.softmax_rate, generator)
        loss = compute_loss(
            self.softmax,
            # outputs are stored time first: this order needs no copy, and the mean is the same
            top.transpose(0, 1).flatten(end_dim=1),
            targets.t().flatten(),
            samples=samples,
            has_bf16_products=self.has_bf16_products,
            has_sparse_gradient=self.has_sparse_gradients,
            buffers=self.buffer_pool,
        )
        return loss, after

    def stack(self, number: int) -> nn.ModuleList:
        """Return the LSTM layers of one direction."""
        return (self.bilm.forward_stack, self.bilm.backward_stack)[number]

    def _run_stack(
        self,
        number: int,
        inputs: Tensor,
        state: BiLmState,
        *,
        generator: torch.Generator | None = None,
        resets: Tensor | None = None,
    ) -> tuple[Tensor, BiLmState]:
        """Return the output of the top layer (batch, time, width), and the state (layer, batch, …)."""
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

    def _drop_vectors(self, x: Tensor, rate: float, generator: torch.Generator) -> Tensor:
        """Apply dropout to ``x`` (batch, time, width)."""
        return _drop(x, rate, generator, like=x[:, :1] if self.dropout.is_variational else x)


def _drop(x: Tensor, rate: float, generator: torch.Generator, *, like: Tensor | None = None) -> Tensor:
    """Set a share of ``x`` to zero and scale the rest. ``like`` gives the shape of the mask."""
    if not rate:
        return x
    like = x if like is None else like
    # drawn on the generator's device, in the memory layout of what it is multiplied with
    mask = torch.empty_like(like, device=generator.device).bernoulli_(1 - rate, generator=generator)
    return x * mask.div_(1 - rate).to(like.device)


def _require(random: StepRandom | None) -> StepRandom:
    if random is None:
        raise TypeError("dropout in training mode needs random numbers: pass random=StepRandom(seed, step)")
    return random
