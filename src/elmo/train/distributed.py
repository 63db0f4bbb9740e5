"""Train in several processes: choose the rows of each process, and synchronize the processes.

``torchrun`` starts the processes. Every rank has the whole model and reads its own rows of the batch. Gradients
are summed over all ranks, so each step uses the whole batch. Only rank 0 writes files. In a single process,
there is nothing to synchronize.

If a process dies, the others notice when they wait for it, and end with a ``TrainingError``. ``torchrun`` then
restarts all processes, and they resume from the last checkpoint.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from elmo.errors import ConfigError, DataError, TrainingError
from elmo.storage.files import format_path
from elmo.train.corpus import Corpus, hash_json

if TYPE_CHECKING:
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

# Timeout for a rank that runs but does not answer. A rank that has died is detected at once.
TIMEOUT = timedelta(minutes=30)
LONG_TIMEOUT = timedelta(days=7)  # for long work of rank 0, such as building a corpus
_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Ranks:
    """One process of a training run, and its connection to the other processes.

    Attributes:
        rank: Number of this process.
        world: Number of processes.
        local_rank: Number of this process on its machine.
        waiting: Process group with a long timeout, for operations that wait for rank 0.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    waiting: dist.ProcessGroup | None = None

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def rows(self, n_rows: int) -> slice:
        """Return the rows of a batch that this process reads."""
        return slice(n_rows * self.rank // self.world, n_rows * (self.rank + 1) // self.world)

    def add_up(self, tensors: list[Tensor]) -> None:
        """Replace each tensor, in place, by its sum over all ranks. All tensors must have the same dtype."""
        if self.world > 1:
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])  # a single message is faster
            with self._translate_errors():
                dist.all_reduce(flat)
            for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def concatenate(self, tensor: Tensor, *, dim: int) -> Tensor:
        """Concatenate the rows of all ranks along ``dim``, in the order of ranks. Every rank gets the result."""
        if self.world == 1:
            return tensor
        # all messages must have the same size, but the number of rows per rank may differ by one
        mine = tensor.movedim(dim, 0).contiguous()
        counts = torch.zeros(self.world, dtype=torch.int64, device=tensor.device)
        counts[self.rank] = len(mine)
        with self._translate_errors():
            dist.all_reduce(counts)
            padded = mine.new_zeros(int(counts.max()), *mine.shape[1:])
            padded[: len(mine)] = mine
            parts = [torch.empty_like(padded) for _ in range(self.world)]
            dist.all_gather(parts, padded)
        trimmed = [part[:count] for part, count in zip(parts, counts.tolist(), strict=True)]
        return torch.cat(trimmed).movedim(0, dim)

    def from_first(self, value: Any) -> Any:
        """Return the value of rank 0 on every rank. The other ranks wait until rank 0 calls this method."""
        if self.world == 1:
            return value
        box = [value if self.is_first else None]
        with self._translate_errors():
            dist.broadcast_object_list(box, src=0, group=self.waiting)
        return box[0]

    def check_equal(self, values: Mapping[str, Any]) -> None:
        """Check that all processes have the same values; raise ``ConfigError`` in all processes otherwise."""
        if self.world == 1:
            return
        mine = {name: hash_json(value) for name, value in values.items()}
        digests: list[dict[str, str]] = [{} for _ in range(self.world)]
        with self._translate_errors():
            dist.all_gather_object(digests, mine, group=self.waiting)
        for rank, name in itertools.product(range(1, self.world), digests[0]):
            if digests[rank].get(name) != digests[0][name]:
                raise ConfigError(
                    f"process {rank} of {self.world} must have the same {name} as process 0; start all processes with "
                    "the same command, and use folders that all machines share"
                )

    @contextmanager
    def first_one_first(self) -> Iterator[None]:
        """Run a block on rank 0 while the other ranks wait, then run it on the other ranks."""
        if not self.is_first:
            self.from_first(None)
        yield
        if self.is_first:
            self.from_first(None)

    def share_corpus(self, folder: Path, build: Callable[[], Corpus]) -> Corpus:
        """Build a corpus in ``folder`` on rank 0, then open it on the other ranks."""
        with self.first_one_first():
            if self.is_first:
                return build()
            try:
                return Corpus.open(folder, verify=False)  # ``check_equal`` compares the checksums later
            except DataError as error:
                raise DataError(
                    f"process {self.rank} of {self.world} cannot read the corpus of process 0: {error}; put "
                    f"{format_path(folder)} on a disk that all machines share"
                ) from error

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turn the errors of a broken connection into ``TrainingError``."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise TrainingError(
                f"process {self.rank} of {self.world} lost the connection to the other processes: one of them has "
                f"ended or cannot be reached ({_first_sentence(error)}); the last checkpoint is kept"
            ) from error


@contextmanager
def join_ranks(environment: Mapping[str, str] = os.environ, *, device: str = "cpu") -> Iterator[Ranks]:
    """Connect to the other processes that ``torchrun`` started. Without ``torchrun``, there is only this process.

    If torch's default process group already exists, it is used and not closed at the end.
    """
    if dist.is_available() and dist.is_initialized():
        with _join_existing_group(environment, device) as ranks:
            yield ranks
        return
    world = int(environment.get("WORLD_SIZE", "1"))
    if world == 1 or "RANK" not in environment:
        yield Ranks()
        return
    rank, local_rank = int(environment["RANK"]), int(environment.get("LOCAL_RANK", "0"))
    is_cuda = torch.device(device).type == "cuda"
    if not dist.is_available() or not dist.is_gloo_available():
        raise ConfigError("cannot train in several processes: this build of torch has no gloo backend")
    if is_cuda:
        if local_rank >= (n_gpus := torch.cuda.device_count()):
            raise ConfigError(
                f"process {local_rank} of this machine has no GPU: the machine has {n_gpus}; start fewer processes "
                "(torchrun --nproc-per-node)"
            )
        torch.cuda.set_device(local_rank)
    from torch.distributed.rendezvous import rendezvous  # missing in some builds of torch

    try:
        store, _, _ = next(rendezvous("env://", rank, world, timeout=TIMEOUT))
        dist.init_process_group(
            "nccl" if is_cuda else "gloo",
            store=open_fresh_store(store, rank=rank, world=world, timeout=TIMEOUT),
            rank=rank,
            world_size=world,
            timeout=TIMEOUT,
        )
        waiting = cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=LONG_TIMEOUT))
    except (RuntimeError, ValueError, TimeoutError) as error:
        problem = f"process {rank} of {world} cannot reach the other processes ({_first_sentence(error)})"
        raise TrainingError(f"{problem}; start all processes with torchrun") from error
    try:
        yield Ranks(rank, world, local_rank, waiting)
    except BaseException:
        if not is_cuda:  # nccl would wait forever for operations of the other ranks
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


@contextmanager
def _join_existing_group(environment: Mapping[str, str], device: str) -> Iterator[Ranks]:
    """Use torch's default process group, which the caller has created."""
    rank, world, kind = dist.get_rank(), dist.get_world_size(), torch.device(device).type
    current = torch.cuda.current_device() if kind == "cuda" else 0
    local_rank = int(environment.get("LOCAL_RANK", current))
    if world == 1:
        yield Ranks(local_rank=local_rank)
        return
    backends = dict(part.split(":") for part in dist.get_backend_config().split(","))  # by device type
    if kind not in backends:
        raise ConfigError(
            f"the default process group of torch must support {kind}; found only {', '.join(backends)}; create it with "
            "both gloo and nccl, or let elmo create it"
        )
    waiting = cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=LONG_TIMEOUT))
    try:
        yield Ranks(rank, world, local_rank, waiting)
    finally:
        dist.destroy_process_group(waiting)


def open_fresh_store(store: Store, *, rank: int, world: int, timeout: timedelta) -> Store:
    """Return a store with a new prefix, which only the processes of the current start use.

    When ``torchrun`` restarts its processes, they get the store of the processes that died, with the old addresses.
    They therefore agree on a new prefix first: each rank registers a new id, rank 0 proposes a prefix for these ids,
    and accepts it when every other rank has answered. Raises ``TimeoutError`` if a rank is missing.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    my_id = uuid.uuid4().hex
    store.set(f"elmo/id/{rank}", my_id)
    name = _propose(store, world, deadline) if rank == 0 else _answer(store, rank, my_id, deadline)
    return dist.PrefixStore(f"elmo/start/{name}", store)  # pyright: ignore[reportPrivateImportUsage]


def _propose(store: Store, world: int, deadline: float) -> str:
    """Propose a new prefix whenever the registered ids change, until all ranks have answered."""
    proposed: list[str] = []
    name = ""
    while True:
        ids = [_read(store, f"elmo/id/{rank}") for rank in range(world)]
        if ids != proposed:
            name, proposed = uuid.uuid4().hex, ids
            store.set("elmo/proposal", json.dumps({"name": name, "ids": ids}))
        if all(_read(store, f"elmo/answer/{name}/{rank}") for rank in range(1, world)):
            store.set(f"elmo/accepted/{name}", "yes")
            return name
        _wait(deadline)


def _answer(store: Store, rank: int, my_id: str, deadline: float) -> str:
    """Answer each proposal that contains the id of this process, until one is accepted."""
    answered = ""
    while True:
        proposal = json.loads(_read(store, "elmo/proposal") or "{}")
        if proposal and proposal["ids"][rank : rank + 1] == [my_id]:
            if proposal["name"] != answered:
                answered = proposal["name"]
                store.set(f"elmo/answer/{answered}/{rank}", "yes")
            if _read(store, f"elmo/accepted/{answered}"):
                return answered
        _wait(deadline)


def _read(store: Store, key: str) -> str:
    """Return the value of a key, or an empty string if the key is not set."""
    return store.get(key).decode() if store.check([key]) else ""


def _wait(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError("some processes did not start in time")
    time.sleep(_POLL_SECONDS)


def _first_sentence(error: BaseException) -> str:
    """Return the first sentence of an error message of torch, without the names of torch's source files."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"\[\S+\.(?:cc|cpp|h):\d+\] ", "", line).split(". ")[0][:160]
