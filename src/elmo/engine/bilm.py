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
from numpy.typing import NDArray
from torch import Tensor, nn

from elmo.engine.batches import BATCH_TOKENS
from elmo.engine.buffers import BufferPool
from elmo.engine.lstm import FrozenLstm, freeze_lstm
from elmo.engine.matmul import InexactError, Kernels, choose_kernels, plain_kernels, state_dtype
from elmo.engine.schedule import BatchSchedule
from elmo.engine.threads import ThreadPool
from elmo.engine.token_layer import CACHED_WORDS, FrozenTokenLayer, TokenVectorCache
from elmo.errors import ConfigError
from elmo.model.bilm import BiLm, BiLmState
from elmo.model.lstm import ProjectedLstm
from elmo.text.ids import TokenIndexer

N_DIRECTIONS = 2

T = TypeVar("T")
_Stacks = tuple[list[FrozenLstm], list[FrozenLstm]]  # forward, backward


@dataclass(frozen=True)
class EngineOutput:
    """The layers of each sentence (layer, time, width), without boundaries, and its last state."""

    layers: list[Tensor]
    sorted_state: BiLmState  # one row per sentence, in the order in which they were computed
    order: Tensor  # the sentence of each row, (row,)

    @property
    def state(self) -> BiLmState:
        """The last states, one row per sentence."""
        inverse = torch.empty_like(self.order)
        inverse[self.order] = torch.arange(len(inverse), device=inverse.device)
        return BiLmState(*(x.index_select(2, inverse) for x in (self.sorted_state.hidden, self.sorted_state.cell)))


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
        directions = "in parallel" if prepared.pool is not None else "in turn"
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
        vectors, tokens = self._look_up(sentences, prepared)
        order = sorted(range(n), key=lambda k: -len(tokens[k]))  # longest first
        by_length = torch.tensor(order, dtype=torch.int64, device=vectors.device)
        sorted_start = BiLmState(*(_select_rows(part.to(dtype), by_length) for part in (start.hidden, start.cell)))
        sorted_last = BiLmState(*(part.new_empty(part.shape) for part in (sorted_start.hidden, sorted_start.cell)))
        layers: list[Tensor | None] = [None] * n
        buffers = BufferPool()  # shared by the batches of this call
        size = min(BATCH_TOKENS, -(-sum(map(len, tokens)) // prepared.n_batches))
        groups = list(_split_batches([len(tokens[k]) for k in order], max_tokens=size))
        for first in range(0, len(groups), prepared.n_batches):  # these are read at the same time
            selected = groups[first : first + prepared.n_batches]
            batches = [
                _Batch(
                    prepared,
                    vectors,
                    [tokens[k] for k in order[group]],
                    start=sorted_start.select_rows(group),
                    last=sorted_last.select_rows(group),
                    buffers=buffers,
                )
                for group in selected
            ]
            prepared.run_tasks(
                [partial(batch.run_direction, direction) for batch in batches for direction in range(N_DIRECTIONS)]
            )
            for group, batch in zip(selected, batches, strict=True):
                for k, of_sentence in zip(order[group], batch.layers, strict=True):
                    layers[k] = of_sentence
        return EngineOutput(cast("list[Tensor]", layers), sorted_last, by_length)

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
    ) -> tuple[Tensor, list[NDArray[np.int64]]]:
        """The vectors of all distinct tokens, and the rows of each sentence in them, with boundaries."""
        index: dict[str, int] = {}
        rows: list[int] = []
        ends = []
        for sentence in sentences:
            rows.append(0)  # boundaries have separate rows: a word spelled "<S>" is looked up as a word
            rows += [index.setdefault(token, len(index) + 2) for token in sentence]
            rows.append(1)
            ends.append(len(rows))
        vectors = torch.cat([prepared.tokens.boundaries, prepared.tokens(list(index), prepared.run_tasks)])
        return vectors, np.split(np.array(rows, dtype=np.int64), ends[:-1])

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
        version = WeightVersion(self.bilm)  # first, to detect a change during packing
        kernels = choose_kernels(like, is_int8=self._is_int8)
        n_threads = torch.get_num_threads() if is_cpu else 1
        # Compiled kernels use one thread each: more threads read more batches. torch's products use the rest.
        n_batches = n_threads // N_DIRECTIONS if kernels.library is not None else 1
        pool = ThreadPool(N_DIRECTIONS * n_batches) if n_threads >= N_DIRECTIONS else None

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
        return _PreparedWeights(
            kernels, tokens, stacks, self.bilm.has_skip, pool, max(1, n_batches), version, _ThreadContext.current()
        )


@dataclass(frozen=True)
class _PreparedWeights:
    """The current weights, packed for this machine."""

    kernels: Kernels
    tokens: TokenVectorCache
    stacks: _Stacks | None  # None if only the token layer was needed so far
    has_skip: bool
    pool: ThreadPool | None  # None: the directions run in turn
    n_batches: int  # number of batches that are read at the same time
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


class _Batch:
    """Sentences that are read together, given as rows of a table of token vectors."""

    def __init__(
        self,
        prepared: _PreparedWeights,
        vectors: Tensor,
        sentences: list[NDArray[np.int64]],
        *,
        start: BiLmState,
        last: BiLmState,
        buffers: BufferPool,
    ) -> None:
        """Arrange the sentences; ``last`` receives the state after each of them."""
        self._prepared = prepared
        self._buffers = buffers
        self._start, self._last = start, last
        self._schedule = schedule = BatchSchedule.build(
            [len(tokens) for tokens in sentences], max_slots=prepared.kernels.max_rows, device=vectors.device
        )
        width, n_layers = vectors.size(1), 1 + len(cast("_Stacks", prepared.stacks)[0])
        self.layers = [vectors.new_empty(n_layers, len(tokens) - 2, N_DIRECTIONS * width) for tokens in sentences]
        self._vectors, self._tokens = vectors, np.concatenate(sentences)
        self._shape = (n_layers, schedule.n_rows(prepared.kernels), width)

    def run_direction(self, direction: int) -> None:
        """Read all layers of one direction and write its half of ``layers``, which has no boundaries."""
        schedule, n_tokens = self._schedule, self._schedule.n_tokens
        # Layer 0 is the input in the order of the schedule; zeros after the last token.
        states = self._buffers.take(self._shape, self._vectors)
        states[:, n_tokens:] = 0
        rows = np.empty(n_tokens, dtype=np.int64)
        rows[schedule.token_rows] = self._tokens[schedule.reversed_tokens] if direction else self._tokens
        torch.index_select(self._vectors, 0, torch.from_numpy(rows).to(states.device), out=states[0, :n_tokens])
        for number, lstm in enumerate(cast("_Stacks", self._prepared.stacks)[direction]):
            inputs, outputs = states[number], states[number + 1]
            start, last = (state.at(direction, number) for state in (self._start, self._last))
            lstm.run(inputs, schedule, start, outputs=outputs, last=last)
            if self._prepared.has_skip and number > 0:
                outputs[:n_tokens] += inputs[:n_tokens]
        schedule.collect(states, self.layers, direction, library=self._prepared.kernels.library)
        self._buffers.release(states)


def _select_rows(state: Tensor, index: Tensor) -> Tensor:
    """Select rows of a state (direction, layer, row, width); one row is used for all, without copies."""
    if state.size(2) == 1:
        return state.expand(-1, -1, len(index), -1)
    return state.index_select(2, index)


def _split_batches(lengths: Sequence[int], *, max_tokens: int) -> Iterator[slice]:
    """Split sentences into batches of up to ``max_tokens`` tokens, or of one longer sentence."""
    begin, n_tokens = 0, 0
    for k, length in enumerate(lengths):
        if k > begin and n_tokens + length > max_tokens:
            yield slice(begin, k)
            begin, n_tokens = k, 0
        n_tokens += length
    if begin < len(lengths):
        yield slice(begin, len(lengths))
