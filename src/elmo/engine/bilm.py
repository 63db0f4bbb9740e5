"""``elmo.model.bilm.BiLm``, fast: tokenized sentences to the layers of each.

Each distinct token goes through the token layer once. Sentences are read as a ``BatchSchedule`` arranges
them, the two directions in two threads. In the products of ``elmo.engine.matmul`` a row does not depend on
the other rows, so a sentence gets the same bits alone and in any batch. ``BiLm.forward`` defines what is
computed.
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

from elmo.engine.batches import BATCH_TOKENS
from elmo.engine.lstm import FrozenLstm, freeze_lstm
from elmo.engine.matmul import InexactError, Kernels, choose_kernels, plain_kernels, state_dtype
from elmo.engine.schedule import BatchSchedule
from elmo.engine.threads import ThreadPool
from elmo.engine.token_layer import CACHED_WORDS, FrozenTokenLayer, TokenVectorCache
from elmo.errors import ConfigError
from elmo.model.bilm import BiLm, BiLmState
from elmo.model.lstm import LstmState, ProjectedLstm
from elmo.text.ids import TokenIndexer

N_DIRECTIONS = 2

T = TypeVar("T")
_Stacks = tuple[list[FrozenLstm], list[FrozenLstm]]  # forward, backward


@dataclass(frozen=True)
class EngineOutput:
    """The layers of each sentence (layer, time, width), without boundaries, and its last state."""

    layers: list[Tensor]
    state: BiLmState  # one row per sentence


class Engine:
    """Encodes sentences with the weights of a biLM; changed weights are detected at the next call."""

    def __init__(self, bilm: BiLm, indexer: TokenIndexer, *, is_int8: bool = False) -> None:
        self.bilm = bilm
        self.indexer = indexer
        self._is_int8 = is_int8
        self._lock = threading.Lock()
        self._prepared: _PreparedWeights | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle without the packed weights, which belong to this process."""
        return partial(type(self), is_int8=self._is_int8), (self.bilm, self.indexer)

    @property
    def kernels(self) -> Kernels:
        """The kind of matrix products in use, and why."""
        return self._prepare(has_stacks=True).kernels

    @property
    def is_int8(self) -> bool:
        """Whether products are int8."""
        return self._is_int8

    def describe(self) -> dict[str, str]:
        """Describe how this machine computes the network, and why: a text for each part."""
        prepared = self._prepare(has_stacks=True)
        kernels = prepared.kernels
        directions = "in parallel, each with half of the threads" if prepared.pool is not None else "in turn"
        return {
            "products": f"{kernels.name}, {kernels.precision}: {kernels.reason}",
            "threads": f"{torch.get_num_threads()}, the two directions {directions}",
            "words": f"the last {CACHED_WORDS:,} are cached between calls",
        }

    def reset(self, *, is_int8: bool | None = None) -> None:
        """Drop all packed weights and cached words; ``is_int8`` changes the precision of the products."""
        with self._lock:
            self._prepared = None
            self._is_int8 = self._is_int8 if is_int8 is None else is_int8

    def clear_cache(self) -> None:
        """Drop the cached words but keep the packed weights."""
        with self._lock:
            if self._prepared is not None:
                self._prepared.tokens.clear()

    @torch.inference_mode()
    def run(self, sentences: Sequence[Sequence[str]], *, start: BiLmState | None = None) -> EngineOutput:
        """Compute all layers of every sentence.

        ``start`` has one row per sentence, or one row for all of them; by default, all zeros.
        """
        prepared = self._prepare(has_stacks=True)
        if start is None:
            start = self.bilm.zero_state(1)
        n, dtype = len(sentences), state_dtype(start.hidden)
        start = BiLmState(*(part.to(dtype).expand(-1, -1, n, -1) for part in (start.hidden, start.cell)))
        last = BiLmState(start.hidden.clone(), start.cell.clone())
        vectors, rows = self._look_up(sentences, prepared)
        layers: list[Tensor | None] = [None] * n
        for batch in _split_by_length([len(sentence) for sentence in rows]):
            # index_select, because indexing with [] starts torch's threads from 3,000 numbers on, and they
            # would spin for milliseconds next to the two that compute
            index = torch.tensor(batch, device=vectors.device)
            first = BiLmState(start.hidden.index_select(2, index), start.cell.index_select(2, index))
            output = _run_batch(prepared, vectors, [rows[k] for k in batch], first)
            last.hidden.index_copy_(2, index, output.state.hidden)
            last.cell.index_copy_(2, index, output.state.cell)
            for k, states in zip(batch, output.layers, strict=True):
                layers[k] = states
        return EngineOutput(cast("list[Tensor]", layers), last)

    @torch.inference_mode()
    def token_vectors(self, tokens: Sequence[str]) -> Tensor:
        """Compute the context-independent vector of each token, (token, width)."""
        vectors, rows = self._look_up([tokens], self._prepare())
        return vectors[torch.from_numpy(rows[0][1:-1]).to(vectors.device)]

    @torch.inference_mode()
    def boundary_vectors(self) -> Tensor:
        """Compute the vectors of the tokens at the start and the end of a sentence, (2, width)."""
        return self._prepare().tokens.boundaries.clone()

    def _look_up(
        self, sentences: Sequence[Sequence[str]], prepared: _PreparedWeights
    ) -> tuple[Tensor, list[np.ndarray]]:
        """The vectors of all distinct tokens, and the rows of each sentence in them, with boundaries."""
        index: dict[str, int] = {}
        # Boundaries have separate rows: a word spelled "<S>" is looked up as a word.
        rows = [
            np.array([0, *(index.setdefault(token, len(index)) + 2 for token in sentence), 1]) for sentence in sentences
        ]
        return torch.cat([prepared.tokens.boundaries, prepared.tokens(list(index), prepared.run_tasks)]), rows

    def _prepare(self, *, has_stacks: bool = False) -> _PreparedWeights:
        """Return the packed weights; pack them again if they have changed."""
        with self._lock:
            prepared, self._prepared = self._prepared, None
            if prepared is None or not prepared.is_current() or (has_stacks and prepared.stacks is None):
                del prepared  # free its memory first
                prepared = self._pack(has_stacks=has_stacks)
            self._prepared = prepared
            return prepared

    @torch.inference_mode()
    def _pack(self, *, has_stacks: bool) -> _PreparedWeights:
        like = next(self.bilm.parameters())
        is_cpu = like.device.type == "cpu"
        pool = ThreadPool(N_DIRECTIONS) if is_cpu and torch.get_num_threads() >= N_DIRECTIONS else None
        version = WeightVersion(self.bilm)  # first, to detect a change during packing
        kernels = choose_kernels(like, is_int8=self._is_int8)

        def pack() -> tuple[TokenVectorCache, _Stacks | None]:
            layer = FrozenTokenLayer(self.bilm.token_layer, kernels)
            tokens = TokenVectorCache(self.indexer, layer, kernels, device=like.device)
            if not has_stacks:
                return tokens, None
            forward, backward = (
                [freeze_lstm(cast("ProjectedLstm", lstm), kernels) for lstm in stack]
                for stack in (self.bilm.forward_stack, self.bilm.backward_stack)
            )
            return tokens, (forward, backward)

        try:
            # In a worker, like the products later: their bits may depend on the number of threads.
            tokens, stacks = pack() if pool is None else pool.run(torch.inference_mode()(pack))[0]
        except InexactError as error:
            if self._is_int8:
                raise ConfigError(f"{error}; use float32") from error
            kernels = plain_kernels(like, str(error))
            tokens, stacks = pack()
        return _PreparedWeights(kernels, tokens, stacks, self.bilm.has_skip, pool, version, _ThreadContext.current())


@dataclass(frozen=True)
class _PreparedWeights:
    """The current weights, packed for this machine."""

    kernels: Kernels
    tokens: TokenVectorCache
    stacks: _Stacks | None  # None if only the token layer was needed so far
    has_skip: bool
    pool: ThreadPool | None  # None: the directions run in turn
    version: WeightVersion
    context: _ThreadContext

    def is_current(self) -> bool:
        """Whether these weights are up to date and usable in this process and thread."""
        now = _ThreadContext.current()
        # Other threads may see a different number: torch's default for a new thread is the last one set.
        is_same_number = now.thread != self.context.thread or now.n_threads == self.context.n_threads
        return now.process == self.context.process and is_same_number and self.version.is_current()

    def run_tasks(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run independent tasks and return their results in order."""
        if self.pool is None:
            return [task() for task in tasks]
        return self.pool.run(*(torch.inference_mode()(task) for task in tasks))


@dataclass(frozen=True)
class _ThreadContext:
    """Where weights were packed. A forked process does not inherit the worker threads."""

    process: int
    thread: int
    n_threads: int  # that torch may use

    @classmethod
    def current(cls) -> _ThreadContext:
        """The context of the calling thread."""
        return cls(os.getpid(), threading.get_ident(), torch.get_num_threads())


class WeightVersion:
    """Detects changes of the weights of a module, fast enough for every call.

    Compares the memory addresses, torch's counters of in-place changes, and a few numbers of each weight.
    The counters miss changes through ``weight.data`` or numpy; an optimizer that writes there changes all
    numbers of a weight, so a few are enough.
    """

    _N_SAMPLES = 16  # numbers of each weight

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._counters = _read_counters(module)
        with torch.inference_mode(False), torch.no_grad():
            weights = [weight.detach().flatten() for weight in module.parameters()]
            self._samples = [weight[:: max(1, len(weight) // self._N_SAMPLES)] for weight in weights]
            self._values = torch.cat(self._samples)

    def is_current(self) -> bool:
        """Whether the weights have not changed since this object was created."""
        if _read_counters(self._module) != self._counters:
            return False
        with torch.no_grad():
            return torch.equal(torch.cat(self._samples), self._values)


def _read_counters(module: nn.Module) -> list[tuple[int, int]]:
    """The memory address and the number of in-place changes of each weight."""
    return [(w.data_ptr(), -1 if w.is_inference() else w._version) for w in module.parameters()]


def _run_batch(
    prepared: _PreparedWeights, vectors: Tensor, sentences: list[np.ndarray], start: BiLmState
) -> EngineOutput:
    """Run both directions over sentences, given as rows of ``vectors``."""
    schedule = BatchSchedule.build(
        [len(rows) for rows in sentences], max_slots=prepared.kernels.max_rows, device=vectors.device
    )
    stacks = cast("_Stacks", prepared.stacks)
    n_layers, width = 1 + len(stacks[0]), vectors.size(1)
    n_rows = schedule.n_rows(prepared.kernels)
    token_rows = [schedule.token_rows(is_reversed=bool(direction)) for direction in range(N_DIRECTIONS)]
    # Layer 0 is the input in the order of the schedule; zeros after the last token.
    states = vectors.new_empty(N_DIRECTIONS, n_layers, n_rows, width)
    states[:, :, schedule.n_tokens :] = 0
    for direction in range(N_DIRECTIONS):
        order = np.empty(schedule.n_tokens, dtype=np.int64)
        order[np.concatenate(token_rows[direction])] = np.concatenate(sentences)
        index = torch.from_numpy(order).to(vectors.device)
        torch.index_select(vectors, 0, index, out=states[direction, 0, : len(order)])

    def run_direction(direction: int) -> list[LstmState]:
        last: list[LstmState] = []
        for index, lstm in enumerate(stacks[direction]):
            inputs, outputs = states[direction, index], states[direction, index + 1]
            last.append(lstm.run(inputs, schedule, start.at(direction, index), outputs=outputs))
            if prepared.has_skip and index > 0:
                outputs[: schedule.n_tokens] += inputs[: schedule.n_tokens]
        return last

    last = prepared.run_tasks([partial(run_direction, direction) for direction in range(N_DIRECTIONS)])
    flat = states.view(-1, width)  # (direction · layer · row, width)
    layer_offsets = np.arange(n_layers)[:, None, None] * n_rows  # (layer, time, direction)
    layers: list[Tensor] = []
    for forward, backward in zip(*token_rows, strict=True):
        pairs = np.stack([forward[1:-1], backward[1:-1] + n_layers * n_rows], axis=1)  # (time, direction)
        index = torch.from_numpy((layer_offsets + pairs).ravel()).to(vectors.device)
        layers.append(flat.index_select(0, index).view(n_layers, len(pairs), N_DIRECTIONS * width))
    return EngineOutput(layers, BiLmState.stack(last))


def _split_by_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the indices of sentences in batches of up to ``BATCH_TOKENS`` tokens, longest first."""
    batch: list[int] = []
    n_tokens = 0
    for k in sorted(range(len(lengths)), key=lambda k: -lengths[k]):
        if batch and n_tokens + lengths[k] > BATCH_TOKENS:
            yield batch
            batch, n_tokens = [], 0
        batch.append(k)
        n_tokens += lengths[k]
    if batch:
        yield batch
