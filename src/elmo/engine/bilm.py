"""``elmo.model.bilm.BiLm``, fast: tokenized sentences to the layers of each.

Each distinct token goes through the token layer once. Sentences are read as a ``BatchSchedule`` arranges
them, the two directions in two threads. In the products of ``elmo.engine.matmul`` a row does not depend on
the other rows, so a sentence gets the same bits alone and in any batch. ``BiLm.forward`` defines what is
computed.

Several threads may use one engine. ``Engine.prepare`` returns the weights of this moment, packed; a caller that
computes in several steps passes them to each step, while other threads convert the network or train it.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmo.engine.batches import BATCH_TOKENS, split_lengths
from elmo.engine.buffers import BufferPool
from elmo.engine.lstm import FrozenLstm, freeze_lstm
from elmo.engine.matmul import InexactError, Kernels, choose_kernels, plain_kernels, state_dtype
from elmo.engine.schedule import BatchSchedule
from elmo.engine.threads import FORK_GATE, ThreadPool, reset_after_fork
from elmo.engine.token_layer import CACHED_WORDS, FrozenTokenLayer, TokenVectorCache
from elmo.engine.transformer import FrozenTransformer, TransformerBatch
from elmo.errors import ConfigError
from elmo.model.bilm import BiLm, BiLmState
from elmo.model.lstm import ProjectedLstm
from elmo.model.transformer import TransformerLayer
from elmo.text.ids import TokenIndexer

N_DIRECTIONS = 2

T = TypeVar("T")
_LstmStacks = tuple[list[FrozenLstm], list[FrozenLstm]]  # forward, backward
_TransformerStacks = tuple[FrozenTransformer, FrozenTransformer]
_Stacks = _LstmStacks | _TransformerStacks


@dataclass(frozen=True)
class EngineOutput:
    """The layers of each sentence (layer, time, width), without boundaries, its edges and its last state.

    The edges (direction, width / 2) are the states of the top layer after the boundary token from which each direction
    starts: they predict the first token (forward) and the last one (backward).
    """

    layers: list[Tensor]
    edges: list[Tensor]
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
        self._prepared: PreparedWeights | None = None
        self.reset_locks()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle without the packed weights, which belong to this process."""
        return partial(type(self), is_int8=self._is_int8), (self.bilm, self.indexer)

    def reset_locks(self) -> None:
        """Replace all locks; see ``reset_after_fork``."""
        self._lock = threading.Lock()  # of the packed weights
        self._conversion_lock = threading.Lock()

    def snapshot(self) -> Engine:
        """Return an engine for the current weights, which does not follow later conversions of the network.

        Nothing is copied: both engines use the same memory, so that changes in place affect both.
        """
        with _swap_lock:
            other = Engine(share_weights(self.bilm), self.indexer, is_int8=self._is_int8)
            prepared = self._prepared
        if prepared is not None and prepared.is_current(other.bilm, is_int8=other.is_int8):
            other._prepared = prepared
        reset_after_fork(other)
        return other

    @property
    def kernels(self) -> Kernels:
        """The kind of matrix products in use, and why."""
        return self.prepare().kernels

    @property
    def is_int8(self) -> bool:
        """Whether products are int8."""
        return self._is_int8

    @property
    def precision(self) -> str:
        """The precision of the network: the name of a torch dtype, or "int8"."""
        with _swap_lock:
            dtype = next(self.bilm.parameters()).dtype
            return "int8" if self._is_int8 else str(dtype).removeprefix("torch.")

    def describe(self) -> dict[str, str]:
        """Describe how this machine computes the network, and why: a text for each part."""
        prepared = self.prepare()
        kernels = prepared.kernels
        directions = "in parallel" if prepared.workers.pool is not None else "in turn"
        return {
            "products": f"{kernels.name}, {kernels.precision}: {kernels.reason}",
            "threads": f"{torch.get_num_threads()}, the two directions {directions}",
            "words": f"the last {CACHED_WORDS:,} are cached between calls",
        }

    def weights(self) -> dict[str, Tensor]:
        """Return the current weights by name, not copied; all of them are from before or after a conversion."""
        with _swap_lock:
            return {name: weight.detach() for name, weight in self.bilm.state_dict().items()}

    @contextmanager
    def converting(self) -> Iterator[None]:
        """Hold off other conversions, and forks, while the weights for ``replace_weights`` are computed."""
        with FORK_GATE, self._conversion_lock:
            yield

    def replace_weights(self, weights: Mapping[str, Tensor], *, is_int8: bool) -> None:
        """Give the parameters of the network other data, all at once, and set whether products are int8.

        Calls that have started continue with the weights from before. Gradients get the type and device of their
        weight.
        """
        with _swap_lock:
            parameters = dict(self.bilm.named_parameters())
            data = {id(parameters[name]): weight for name, weight in weights.items() if name in parameters}
            like = next(iter(weights.values()))
            self.bilm._apply(lambda x: data[id(x)] if id(x) in data else x.to(like.device, like.dtype))
            self._is_int8 = is_int8
        self.reset()

    def reset(self) -> None:
        """Drop all packed weights and cached words."""
        with FORK_GATE, self._lock:
            self._prepared = None

    def clear_cache(self) -> None:
        """Drop the cached words but keep the packed weights."""
        with FORK_GATE, self._lock:
            if self._prepared is not None:
                self._prepared.tokens.clear()

    @torch.inference_mode()
    def run(
        self,
        sentences: Sequence[Sequence[str]],
        *,
        start: BiLmState | None = None,
        prepared: PreparedWeights | None = None,
    ) -> EngineOutput:
        """Compute all layers of every sentence.

        Args:
            sentences: The tokens of each sentence.
            start: A state with one row per sentence, or one row for all of them. Default: all zeros.
            prepared: The weights to use, from ``prepare``. Default: the current weights.
        """
        prepared = prepared or self.prepare()
        with FORK_GATE:
            return self._run(sentences, start or prepared.zero, prepared)

    def _run(self, sentences: Sequence[Sequence[str]], start: BiLmState, prepared: PreparedWeights) -> EngineOutput:
        n, dtype = len(sentences), state_dtype(start.hidden)
        vectors, tokens = self._look_up(sentences, prepared)
        order = sorted(range(n), key=lambda k: -len(tokens[k]))  # longest first
        by_length = torch.tensor(order, dtype=torch.int64, device=vectors.device)
        sorted_start = BiLmState(*(_select_rows(part.to(dtype), by_length) for part in (start.hidden, start.cell)))
        sorted_last = BiLmState(*(part.new_empty(part.shape) for part in (sorted_start.hidden, sorted_start.cell)))
        layers: list[Tensor | None] = [None] * n
        edges: list[Tensor | None] = [None] * n
        buffers = BufferPool()  # shared by the batches of this call
        size = min(BATCH_TOKENS, -(-sum(map(len, tokens)) // prepared.workers.n_batches))
        groups = list(split_lengths([len(tokens[k]) for k in order], max_tokens=size))
        for first in range(0, len(groups), prepared.workers.n_batches):  # these are read at the same time
            selected = groups[first : first + prepared.workers.n_batches]
            batches = [
                _build_batch(
                    prepared,
                    vectors,
                    [tokens[k] for k in order[group]],
                    start=sorted_start.select_rows(group),
                    last=sorted_last.select_rows(group),
                    buffers=buffers,
                )
                for group in selected
            ]
            prepared.workers.run(
                [partial(batch.run_direction, direction) for batch in batches for direction in range(N_DIRECTIONS)]
            )
            for group, batch in zip(selected, batches, strict=True):
                for row, k in enumerate(order[group]):
                    layers[k], edges[k] = batch.layers[row], batch.edges[:, row]
        return EngineOutput(cast("list[Tensor]", layers), cast("list[Tensor]", edges), sorted_last, by_length)

    def run_tasks(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run independent tasks in the threads of this engine; return their results in order."""
        workers = self.prepare().workers
        with FORK_GATE:
            return workers.run(tasks)

    @torch.inference_mode()
    def token_vectors(self, tokens: Sequence[str], *, prepared: PreparedWeights | None = None) -> Tensor:
        """Compute the context-independent vector of each token, (token, width)."""
        prepared = prepared or self.prepare(has_stacks=False)
        with FORK_GATE:
            vectors, rows = self._look_up([tokens], prepared)
            return vectors[torch.from_numpy(rows[0][1:-1]).to(vectors.device)]

    @torch.inference_mode()
    def boundary_vectors(self, *, prepared: PreparedWeights | None = None) -> Tensor:
        """Compute the vectors of the tokens at the start and the end of a sentence, (2, width)."""
        return (prepared or self.prepare(has_stacks=False)).tokens.boundaries.clone()

    def _look_up(
        self, sentences: Sequence[Sequence[str]], prepared: PreparedWeights
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
        vectors = torch.cat([prepared.tokens.boundaries, prepared.tokens(list(index), prepared.workers.run)])
        return vectors, np.split(np.array(rows, dtype=np.int64), ends[:-1])

    def prepare(self, *, has_stacks: bool = True) -> PreparedWeights:
        """Return the current weights, packed; pack them again if they have changed.

        Without ``has_stacks``, the layers above the token layer may be missing.
        """
        with FORK_GATE, self._lock:
            prepared = self._prepared
            if (
                prepared is None
                or (has_stacks and prepared.stacks is None)
                or not prepared.is_current(self.bilm, is_int8=self._is_int8)
                # Bits of torch's products may depend on the number of threads; those of compiled kernels do not.
                or (prepared.kernels.library is None and not prepared.workers.is_current())
            ):
                self._prepared = prepared = None  # free its memory first
                prepared = self._pack(has_stacks=has_stacks)
            elif not prepared.workers.is_current():
                prepared = replace(prepared, workers=_Workers.choose(prepared.kernels, is_cpu=True))
            self._prepared = prepared
            return prepared

    @torch.inference_mode()
    def _pack(self, *, has_stacks: bool) -> PreparedWeights:
        reset_after_fork(self)
        with _swap_lock:
            bilm, is_int8 = share_weights(self.bilm), self._is_int8
        like = next(bilm.parameters())
        version = WeightVersion(bilm)  # first, to detect a change during packing
        kernels = choose_kernels(like, is_int8=is_int8)
        workers = _Workers.choose(kernels, is_cpu=like.device.type == "cpu")

        def pack() -> tuple[TokenVectorCache, _Stacks | None]:
            layer = FrozenTokenLayer(bilm.token_layer, kernels)
            tokens = TokenVectorCache(self.indexer, layer, kernels, device=like.device)
            if not has_stacks:
                return tokens, None
            return tokens, _freeze_stacks(bilm, kernels)

        try:
            # In a worker, like the products later: their bits may depend on the number of threads.
            tokens, stacks = workers.run([pack])[0]
        except InexactError as error:
            if is_int8:
                raise ConfigError(f"{error}; use float32") from error
            kernels = plain_kernels(like, str(error))
            tokens, stacks = pack()
        with torch.inference_mode(False):
            zero = bilm.zero_state(1)
        return PreparedWeights(bilm, is_int8, kernels, tokens, stacks, zero, version, workers)


# Held for the moment in which the weights of a network are replaced or read together, by any engine.
_swap_lock = threading.Lock()


def share_weights(bilm: BiLm) -> BiLm:
    """Return a network with the same weights, not copied, which does not follow conversions of ``bilm``."""
    with torch.inference_mode(False), torch.no_grad():
        shared: dict[int, Any] = {
            id(weight): nn.Parameter(weight.detach(), requires_grad=False) for weight in bilm.parameters()
        }
    return copy.deepcopy(bilm, shared)  # copies the modules only


@dataclass(frozen=True)
class PreparedWeights:
    """The weights of one moment, packed for this machine; they never change.

    Attributes:
        bilm: The network with these weights.
        is_int8: Whether products are int8.
        kernels: The kind of matrix products.
        tokens: The token layer, with the vectors of the words that it has seen.
        stacks: The layers of each direction; None if only the token layer was needed so far.
        zero: The zero state, with one row.
        version: Detects changes of the weights.
        workers: The threads that compute.
    """

    bilm: BiLm
    is_int8: bool
    kernels: Kernels
    tokens: TokenVectorCache
    stacks: _Stacks | None
    zero: BiLmState
    version: WeightVersion
    workers: _Workers

    def is_current(self, bilm: BiLm, *, is_int8: bool) -> bool:
        """Whether ``bilm`` still has these weights."""
        return self.is_int8 == is_int8 and self.version.is_current(bilm)


@dataclass(frozen=True)
class _Workers:
    """Threads for the directions and batches of a call."""

    pool: ThreadPool | None  # None: the directions run in turn
    n_batches: int  # number of batches that are read at the same time
    chosen_in: int  # thread that chose these numbers
    n_threads: int  # that torch could use there

    @classmethod
    def choose(cls, kernels: Kernels, *, is_cpu: bool) -> _Workers:
        """Divide the threads that torch may use."""
        n_threads = torch.get_num_threads()
        n_used = n_threads if is_cpu else 1
        # Compiled kernels use one thread each: more threads read more batches. torch's products use the rest.
        n_batches = max(1, n_used // N_DIRECTIONS) if kernels.library is not None else 1
        pool = ThreadPool(N_DIRECTIONS * n_batches) if n_used >= N_DIRECTIONS else None
        return cls(pool, n_batches, threading.get_ident(), n_threads)

    def is_current(self) -> bool:
        """Whether torch may use as many threads as before, if this is the thread that chose them.

        Other threads may see a different number: torch's default for a new thread is the last one set.
        """
        return threading.get_ident() != self.chosen_in or torch.get_num_threads() == self.n_threads

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run independent tasks and return their results in order."""
        if self.pool is None:
            return [task() for task in tasks]
        return self.pool.run(*(torch.inference_mode()(task) for task in tasks))


class WeightVersion:
    """Detects changes of the weights of a module, fast enough for every call.

    Compares the memory addresses, torch's counters of in-place changes, and a few numbers of each weight.
    The counters miss changes through ``weight.data`` or numpy; an optimizer that writes there changes all
    numbers of a weight, so a few are enough.
    """

    _N_SAMPLES = 16  # numbers of each weight

    def __init__(self, module: nn.Module) -> None:
        self._counters = _read_counters(module)
        with torch.inference_mode(False), torch.no_grad():
            weights = [weight.detach().flatten() for weight in module.parameters()]
            self._samples = [weight[:: max(1, len(weight) // self._N_SAMPLES)] for weight in weights]
            self._values = torch.cat(self._samples)

    def is_current(self, module: nn.Module) -> bool:
        """Whether ``module`` has the same weights as the module of this object had, and they have not changed."""
        if _read_counters(module) != self._counters:
            return False
        with torch.no_grad():
            return torch.equal(torch.cat(self._samples), self._values)


def _read_counters(module: nn.Module) -> list[tuple[int, int]]:
    """The memory address and the number of in-place changes of each weight."""
    return [(w.data_ptr(), -1 if w.is_inference() else w._version) for w in module.parameters()]


def _freeze_stacks(bilm: BiLm, kernels: Kernels) -> _Stacks:
    """Pack the weights of the layers of both directions."""
    forward, backward = bilm.forward_stack, bilm.backward_stack
    if isinstance(forward[0], TransformerLayer):
        transformers = (cast("list[TransformerLayer]", list(stack)) for stack in (forward, backward))
        return cast("_TransformerStacks", tuple(FrozenTransformer(layers, kernels) for layers in transformers))
    lstms = (cast("list[ProjectedLstm]", list(stack)) for stack in (forward, backward))
    return cast("_LstmStacks", tuple([freeze_lstm(lstm, kernels) for lstm in stack] for stack in lstms))


def _build_batch(
    prepared: PreparedWeights,
    vectors: Tensor,
    sentences: list[NDArray[np.int64]],
    *,
    start: BiLmState,
    last: BiLmState,
    buffers: BufferPool,
) -> _LstmBatch | TransformerBatch:
    """Arrange sentences for the layers of a model; a transformer has no states."""
    if isinstance(cast("_Stacks", prepared.stacks)[0], FrozenTransformer):
        return TransformerBatch(cast("_TransformerStacks", prepared.stacks), vectors, sentences)
    return _LstmBatch(prepared, vectors, sentences, start=start, last=last, buffers=buffers)


class _LstmBatch:
    """Sentences that are read together, given as rows of a table of token vectors."""

    def __init__(
        self,
        prepared: PreparedWeights,
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
        width, n_layers = vectors.size(1), 1 + len(cast("_LstmStacks", prepared.stacks)[0])
        self.layers = [vectors.new_empty(n_layers, len(tokens) - 2, N_DIRECTIONS * width) for tokens in sentences]
        self.edges = vectors.new_empty(N_DIRECTIONS, len(sentences), width)
        self._vectors, self._tokens = vectors, np.concatenate(sentences)
        self._shape = (n_layers, schedule.n_rows(prepared.kernels), width)

    def run_direction(self, direction: int) -> None:
        """Read all layers of one direction; write its half of ``layers``, which has no boundaries, and of ``edges``."""
        schedule, n_tokens = self._schedule, self._schedule.n_tokens
        # Layer 0 is the input in the order of the schedule; zeros after the last token.
        states = self._buffers.take(self._shape, self._vectors)
        states[:, n_tokens:] = 0
        rows = np.empty(n_tokens, dtype=np.int64)
        rows[schedule.token_rows] = self._tokens[schedule.reversed_tokens] if direction else self._tokens
        torch.index_select(self._vectors, 0, torch.from_numpy(rows).to(states.device), out=states[0, :n_tokens])
        for number, lstm in enumerate(cast("_LstmStacks", self._prepared.stacks)[direction]):
            inputs, outputs = states[number], states[number + 1]
            start, last = (state.at(direction, number) for state in (self._start, self._last))
            lstm.run(inputs, schedule, start, outputs=outputs, last=last)
            if self._prepared.bilm.has_skip and number > 0:
                outputs[:n_tokens] += inputs[:n_tokens]
        schedule.collect(states, self.layers, direction, library=self._prepared.kernels.library)
        self.edges[direction] = states[-1].index_select(0, schedule.first_rows)
        self._buffers.release(states)


def _select_rows(state: Tensor, index: Tensor) -> Tensor:
    """Select rows of a state (direction, layer, row, width); one row is used for all, without copies."""
    if state.size(2) == 1:
        return state.expand(-1, -1, len(index), -1)
    return state.index_select(2, index)
