"""A module in, whether its weights have changed since out: quick enough to ask before every call.

Tokenised sentences in, all layers of each out: a biLM run fast, and no sentence depends on another.

Each distinct word goes through the token layer once; sentences are read in lanes, one after another, the two
directions side by side. ``kernels`` has the products, in which a row's numbers do not depend on other
rows, so a sentence gets the same bits alone as among thousands. ``BiLm.forward`` is the readable reference
for what is computed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from elmo.engine.batches import BATCH_TOKENS, BatchSchedule
from elmo.engine.lstm import FrozenLstm
from elmo.engine.matmul import InexactError, Kernels, choose_kernels, plain_kernels, state_dtype
from elmo.engine.threads import ThreadPool
from elmo.engine.token_layer import CACHED_WORDS, FrozenTokenLayer, TokenVectorCache
from elmo.errors import ConfigError
from elmo.model.bilm import BiLm, BiLmState
from elmo.model.lstm import LstmState, ProjectedLstm
from elmo.text.ids import TokenIndexer

_SAMPLES = 16  # numbers of each weight that are compared


class WeightVersion:
    """What the weights were: which memory, how often written to, and a few of the numbers in it.

    torch counts writes to a tensor, but not those that go through ``weight.data`` or numpy; an optimizer that
    writes there changes all of a weight, so a few numbers tell.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._stamps = _stamps(module)
        with torch.inference_mode(False), torch.no_grad():
            weights = [weight.detach().flatten() for weight in module.parameters()]
            self._samples = [weight[:: max(1, len(weight) // _SAMPLES)] for weight in weights]
            self._were = torch.cat(self._samples)

    def is_unchanged(self) -> bool:
        """Whether the weights are what they were when this watch was made."""
        if _stamps(self._module) != self._stamps:
            return False
        with torch.no_grad():
            return torch.equal(torch.cat(self._samples), self._were)


def _stamps(module: nn.Module) -> list[tuple[int, int]]:
    return [(weight.data_ptr(), _version(weight)) for weight in module.parameters()]


def _version(weight: Tensor) -> int:
    return -1 if weight.is_inference() else weight._version


DIRECTIONS = 2

T = TypeVar("T")
_Stacks = tuple[list[FrozenLstm], list[FrozenLstm]]  # forward, backward


@dataclass(frozen=True)
class EngineOutput:
    """Each sentence's layers (layer, time, width) without boundaries, and the state each left behind."""

    layers: list[Tensor]
    state: BiLmState  # one row per sentence


@dataclass(frozen=True)
class _Place:
    """Where weights were prepared: a fork of the process does not have its threads."""

    process: int
    thread: int
    n_threads: int  # that torch may use

    @classmethod
    def here(cls) -> _Place:
        """The thread that asks."""
        return cls(os.getpid(), threading.get_ident(), torch.get_num_threads())


@dataclass(frozen=True)
class _Ready:
    """The weights as they are now, prepared for this machine."""

    kernels: Kernels
    tokens: TokenVectorCache
    stacks: _Stacks | None  # None: not asked for yet
    has_skip: bool
    side: ThreadPool | None  # None: one after the other
    watch: WeightVersion
    place: _Place

    def is_current(self) -> bool:
        """Whether it may be used here and now."""
        here = _Place.here()
        # Threads that begin later may count fewer: torch's default is that of whoever set it last.
        is_same_count = here.thread != self.place.thread or here.n_threads == self.place.n_threads
        return here.process == self.place.process and is_same_count and self.watch.is_unchanged()

    def run_all(self, pieces: Sequence[Callable[[], T]]) -> list[T]:
        """The results of independent pieces of work, in their order."""
        if self.side is None:
            return [piece() for piece in pieces]
        return self.side.run(*(torch.inference_mode()(piece) for piece in pieces))


class Engine:
    """A frozen biLM, ready to read sentences; weights that change are noticed at the next call."""

    def __init__(self, bilm: BiLm, indexer: TokenIndexer, *, is_int8: bool = False) -> None:
        self.bilm = bilm
        self.indexer = indexer
        self._is_int8 = is_int8
        self._lock = threading.Lock()
        self._ready: _Ready | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies prepare their own weights: packed ones live in this process."""
        return partial(type(self), is_int8=self._is_int8), (self.bilm, self.indexer)

    @property
    def kernels(self) -> Kernels:
        """What this engine multiplies with, and why."""
        return self._now(has_stacks=True).kernels

    @property
    def is_int8(self) -> bool:
        """Whether products are of eight bits."""
        return self._is_int8

    def describe(self) -> dict[str, str]:
        """What is used on this machine, by the name of each part, and why."""
        ready = self._now(has_stacks=True)
        layers = [lstm for stack in cast("_Stacks", ready.stacks) for lstm in stack]
        kernels = ready.kernels
        compiled = layers[0].not_compiled
        n_threads = torch.get_num_threads()
        side = "side by side, each on half of them" if ready.side is not None else "one after the other"
        return {
            "products": f"{kernels.name}, {kernels.precision}: {kernels.reason}",
            "loops": "compiled, by numba" if compiled is None else f"torch's own: {compiled}",
            "threads": f"{n_threads}, the two directions {side}",
            "words": f"the last {CACHED_WORDS:,} are remembered from call to call",
        }

    def reset(self, *, is_int8: bool | None = None) -> None:
        """Let go of all that was prepared and remembered, for other products if asked."""
        with self._lock:
            self._ready = None
            self._is_int8 = self._is_int8 if is_int8 is None else is_int8

    def clear_cache(self) -> None:
        """Let go of the words remembered, and keep the weights as they are prepared."""
        with self._lock:
            if self._ready is not None:
                self._ready.tokens.forget()

    @torch.inference_mode()
    def run(
        self,
        sentences: Sequence[Sequence[str]],
        *,
        start: BiLmState | None = None,
    ) -> EngineOutput:
        """All layers of every sentence, in order.

        ``start`` has a row per sentence, or one row that every sentence starts from; None is all zero.
        """
        ready = self._now(has_stacks=True)
        if start is None:
            start = self.bilm.zero_state(1)
        n, dtype = len(sentences), state_dtype(start.hidden)
        start = BiLmState(*(part.to(dtype).expand(-1, -1, n, -1) for part in (start.hidden, start.cell)))
        last = BiLmState(start.hidden.clone(), start.cell.clone())
        vectors, numbers = self._table(sentences, ready)
        layers: list[Tensor | None] = [None] * n
        for tile in _tiles([len(row) for row in numbers]):
            # not by brackets, which wake torch's threads from 3,000 numbers on: they would spin for
            # milliseconds beside the two that read
            where = torch.tensor(tile, device=vectors.device)
            begun = BiLmState(start.hidden.index_select(2, where), start.cell.index_select(2, where))
            found = _run_tile(ready, vectors, [numbers[k] for k in tile], begun)
            last.hidden.index_copy_(2, where, found.state.hidden)
            last.cell.index_copy_(2, where, found.state.cell)
            for k, states in zip(tile, found.layers, strict=True):
                layers[k] = states
        return EngineOutput(cast("list[Tensor]", layers), last)

    @torch.inference_mode()
    def token_vectors(self, tokens: Sequence[str]) -> Tensor:
        """The context-free vector of each token, (token, width)."""
        vectors, numbers = self._table([tokens], self._now())
        return vectors[torch.from_numpy(numbers[0][1:-1]).to(vectors.device)]

    @torch.inference_mode()
    def boundary_vectors(self) -> Tensor:
        """The vectors of the tokens that open and close a sentence, (2, width)."""
        return self._now().tokens.boundaries.clone()

    def _table(self, sentences: Sequence[Sequence[str]], ready: _Ready) -> tuple[Tensor, list[np.ndarray]]:
        """A table with each distinct token's vector, and each sentence's rows in it, boundaries included."""
        index: dict[str, int] = {}
        # Boundaries are rows of their own: a word spelled "<S>" is looked up as a word.
        rows = [
            np.array([0, *(index.setdefault(token, len(index)) + 2 for token in sentence), 1])
            for sentence in sentences
        ]
        return torch.cat([ready.tokens.boundaries, ready.tokens(list(index), ready.run_all)]), rows

    def _now(self, *, has_stacks: bool = False) -> _Ready:
        """The weights prepared, again if they have changed."""
        with self._lock:
            ready, self._ready = self._ready, None
            if ready is None or not ready.is_current() or (has_stacks and ready.stacks is None):
                del ready  # before its successor takes memory
                ready = self._prepared(has_stacks=has_stacks)
            self._ready = ready
            return ready

    @torch.inference_mode()
    def _prepared(self, *, has_stacks: bool) -> _Ready:
        like = next(self.bilm.parameters())
        is_cpu = like.device.type == "cpu"
        side = ThreadPool(DIRECTIONS) if is_cpu and torch.get_num_threads() >= DIRECTIONS else None
        watch = WeightVersion(self.bilm)  # first: a weight that changes meanwhile has changed
        kernels = choose_kernels(like, is_int8=self._is_int8)

        def prepare() -> tuple[TokenVectorCache, _Stacks | None]:
            layer = FrozenTokenLayer(self.bilm.token_layer, kernels)
            tokens = TokenVectorCache(self.indexer, layer, kernels, device=like.device)
            return tokens, self._stacks(kernels) if has_stacks else None

        try:
            # where it will be used: a product's bits may depend on the number of threads
            tokens, stacks = prepare() if side is None else side.run(torch.inference_mode()(prepare))[0]
        except InexactError as error:
            if self._is_int8:
                raise ConfigError(f"{error}; use float32") from error
            kernels = plain_kernels(like, str(error))
            tokens, stacks = prepare()
        return _Ready(kernels, tokens, stacks, self.bilm.has_skip, side, watch, _Place.here())

    def _stacks(self, kernels: Kernels) -> _Stacks:
        forward, backward = (
            [FrozenLstm(cast("ProjectedLstm", lstm), kernels) for lstm in stack]
            for stack in (self.bilm.forward_stack, self.bilm.backward_stack)
        )
        return forward, backward


def _run_tile(ready: _Ready, vectors: Tensor, numbers: list[np.ndarray], start: BiLmState) -> EngineOutput:
    """Both directions of sentences, given as rows of ``vectors``."""
    lanes = BatchSchedule.of([len(row) for row in numbers], max_lanes=ready.kernels.max_rows, device=vectors.device)
    stacks = cast("_Stacks", ready.stacks)
    n_lstm, width = len(stacks[0]), vectors.size(1)
    n_rows = lanes.n_rows(ready.kernels)
    places = [lanes.places(is_mirrored=bool(direction)) for direction in range(DIRECTIONS)]
    # what each direction reads, then each layer of it: (direction, layer, row, width)
    states = vectors.new_empty(DIRECTIONS, 1 + n_lstm, n_rows, width)
    states[:, :, lanes.n_tokens :] = 0
    for direction in range(DIRECTIONS):
        order = np.empty(lanes.n_tokens, dtype=np.int64)
        order[np.concatenate(places[direction])] = np.concatenate(numbers)
        source, read_first = torch.from_numpy(order).to(vectors.device), states[direction, 0, : len(order)]
        torch.index_select(vectors, 0, source, out=read_first)

    def read(direction: int) -> list[LstmState]:
        last: list[LstmState] = []
        for index, lstm in enumerate(stacks[direction]):
            before, after = states[direction, index], states[direction, index + 1]
            last.append(lstm.read(before, lanes, start.at(direction, index), outputs=after))
            if ready.has_skip and index > 0:
                after[: lanes.n_tokens] += before[: lanes.n_tokens]
        return last

    ends = ready.run_all([lambda direction=direction: read(direction) for direction in range(DIRECTIONS)])
    state = BiLmState(
        hidden=torch.stack([torch.stack([layer.hidden for layer in end]) for end in ends]),
        cell=torch.stack([torch.stack([layer.cell for layer in end]) for end in ends]),
    )
    rows = states.view(-1, width)
    layers: list[Tensor] = []
    at = np.arange(1 + n_lstm)[:, None, None] * n_rows  # (layer, time, direction)
    for ahead, behind in zip(*places, strict=True):
        both = np.stack([ahead[1:-1], behind[1:-1] + (1 + n_lstm) * n_rows], axis=1)
        index = torch.from_numpy((at + both).ravel()).to(vectors.device)
        layers.append(rows.index_select(0, index).view(1 + n_lstm, len(both), DIRECTIONS * width))
    return EngineOutput(layers, state)


def _tiles(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of sentences in groups that fit a budget of tokens; those of like length together."""
    tile: list[int] = []
    n_tokens = 0
    for k in sorted(range(len(lengths)), key=lambda k: -lengths[k]):
        if tile and n_tokens + lengths[k] > BATCH_TOKENS:
            yield tile
            tile, n_tokens = [], 0
        tile.append(k)
        n_tokens += lengths[k]
    if tile:
        yield tile
