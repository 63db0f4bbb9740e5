"""A store that processes share in, a part of it that none ever wrote to out: where those of one start meet.

When torchrun starts its processes again, it gives them the store of those that died, with all their addresses
in it, and who is quick finds an old one there. How often it did so each machine counts by itself. So the
processes agree on a name of their own first: each says that it is here, under a name that is new; the first
one calls a meeting of all it sees, and holds it when each of them has answered to the name it has now.

One process or many in, one training run out: who reads which rows, and how they stay in step.

``torchrun`` starts the processes and tells each its rank. Every rank holds the whole model and reads its own
rows of the batch; gradients are added up over all of them, so that every step is the step of the whole batch.
Rank 0 alone writes. With one process there is nothing to agree on, and everything here does nothing.

When a process dies, the others notice as they next wait for it, and end with a ``TrainingError``; torchrun
starts all of them again, and they go on after the last checkpoint.
"""

from __future__ import annotations

import hashlib
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
from elmo.train.corpus import Corpus

if TYPE_CHECKING:
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]


_PAUSE = 0.01  # seconds between two looks


def unused_part(store: Store, *, rank: int, world: int, patience: timedelta) -> Store:
    """Where all ``world`` processes of this start, and nobody before them, read and write.

    ``TimeoutError`` when not all of them are there in time.
    """
    deadline = time.monotonic() + patience.total_seconds()
    me = uuid.uuid4().hex
    store.set(f"elmo/here/{rank}", me)
    name = _call(store, world, deadline) if rank == 0 else _answer(store, rank, me, deadline)
    return dist.PrefixStore(f"elmo/meeting/{name}", store)  # pyright: ignore[reportPrivateImportUsage]


def _call(store: Store, world: int, deadline: float) -> str:
    """Call a meeting, anew whenever someone else is here, until all have answered to it."""
    called: list[str] = []
    name = ""
    while True:
        here = [_read(store, f"elmo/here/{rank}") for rank in range(world)]
        if here != called:
            name, called = uuid.uuid4().hex, here
            store.set("elmo/called", json.dumps({"name": name, "here": here}))
        if all(_read(store, f"elmo/answer/{name}/{rank}") for rank in range(1, world)):
            store.set(f"elmo/held/{name}", "yes")
            return name
        _wait(deadline)


def _answer(store: Store, rank: int, me: str, deadline: float) -> str:
    """Answer to each meeting that this process is called to, until one is held."""
    answered = ""
    while True:
        called = json.loads(_read(store, "elmo/called") or "{}")
        if called and called["here"][rank : rank + 1] == [me]:
            if called["name"] != answered:
                answered = called["name"]
                store.set(f"elmo/answer/{answered}/{rank}", "yes")
            if _read(store, f"elmo/held/{answered}"):
                return answered
        _wait(deadline)


def _read(store: Store, key: str) -> str:
    """What is there now; "" when nothing is."""
    return store.get(key).decode() if store.check([key]) else ""


def _wait(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError("not all of them came in time")
    time.sleep(_PAUSE)


# With a rank that is alive and says nothing; one that has died is noticed at once.
PATIENCE = timedelta(minutes=30)
LONG_PATIENCE = timedelta(days=7)  # while rank 0 builds a corpus, say


@dataclass(frozen=True)
class Ranks:
    """A process among those of a run."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0  # on this machine
    waiting: dist.ProcessGroup | None = None  # all of them, for what may take long, on the processor

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def rows(self, n_rows: int) -> slice:
        """Those of the batch's rows that this process reads."""
        return slice(n_rows * self.rank // self.world, n_rows * (self.rank + 1) // self.world)

    def add_up(self, tensors: list[Tensor]) -> None:
        """Each tensor, in place, becomes its sum over all ranks; all of one dtype, in one message."""
        if self.world > 1:
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            with self._speaking():
                dist.all_reduce(flat)
            for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def joined(self, tensor: Tensor, *, dim: int) -> Tensor:
        """The rows of all ranks in order, on every rank."""
        if self.world == 1:
            return tensor
        # one flat message of a fixed size each: ranks may differ by a row
        mine = tensor.movedim(dim, 0).contiguous()
        counts = torch.zeros(self.world, dtype=torch.int64, device=tensor.device)
        counts[self.rank] = len(mine)
        with self._speaking():
            dist.all_reduce(counts)
            padded = mine.new_zeros(int(counts.max()), *mine.shape[1:])
            padded[: len(mine)] = mine
            parts = [torch.empty_like(padded) for _ in range(self.world)]
            dist.all_gather(parts, padded)
        cut = [part[:count] for part, count in zip(parts, counts.tolist(), strict=True)]
        return torch.cat(cut).movedim(0, dim)

    def from_first(self, value: Any) -> Any:
        """What rank 0 has, on every rank; the others wait for it, as long as it takes."""
        if self.world == 1:
            return value
        box = [value if self.is_first else None]
        with self._speaking():
            dist.broadcast_object_list(box, src=0, group=self.waiting)
        return box[0]

    def agree(self, values: Mapping[str, Any]) -> None:
        """Refuse a run whose processes do not have the same values; ``ConfigError`` on all of them."""
        if self.world == 1:
            return
        mine = {name: _digest(value) for name, value in values.items()}
        found: list[dict[str, str]] = [{} for _ in range(self.world)]
        with self._speaking():
            dist.all_gather_object(found, mine, group=self.waiting)
        for rank, name in itertools.product(range(1, self.world), found[0]):
            if found[rank].get(name) != found[0][name]:
                raise ConfigError(
                    f"process {rank} of {self.world} differs from process 0 in its {name}; give all of them "
                    "the same command, with folders that all machines see"
                )

    @contextmanager
    def first_one_first(self) -> Iterator[None]:
        """Let rank 0 do something while the others wait for it, as long as it takes, and then do the same."""
        if not self.is_first:
            self.from_first(None)
        yield
        if self.is_first:
            self.from_first(None)

    def corpus(self, folder: Path, build: Callable[[], Corpus]) -> Corpus:
        """What rank 0 builds at ``folder``; the others open it there when it is done."""
        with self.first_one_first():
            if self.is_first:
                return build()
            try:
                return Corpus.open(folder, verify=False)  # that it is the same one, ``agree`` finds out
            except DataError as error:
                raise DataError(
                    f"process {self.rank} of {self.world} cannot read the corpus that process 0 built: "
                    f"{error}; all machines must see {format_path(folder)}: put it on a disk that they share"
                ) from error

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        """The many errors of a broken connection as one of ours."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise TrainingError(
                f"process {self.rank} of {self.world} lost the others, one of which has ended or cannot be "
                f"reached ({_line(error)}); the last checkpoint stands"
            ) from error


@contextmanager
def ranks_from(environment: Mapping[str, str] = os.environ, *, device: str = "cpu") -> Iterator[Ranks]:
    """The ranks that torchrun began, joined for the time of a ``with``; without torchrun, one.

    Where the caller has made torch's process group already, its ranks are meant, and it stays as it is.
    """
    if dist.is_available() and dist.is_initialized():
        with _ranks_of_caller(environment, device) as ranks:
            yield ranks
        return
    world = int(environment.get("WORLD_SIZE", "1"))
    if world == 1 or "RANK" not in environment:
        yield Ranks()
        return
    rank, local_rank = int(environment["RANK"]), int(environment.get("LOCAL_RANK", "0"))
    is_cuda = torch.device(device).type == "cuda"
    if not dist.is_available() or not dist.is_gloo_available():
        raise ConfigError("this build of torch cannot train in several processes: it has no gloo")
    if is_cuda and local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"process {local_rank} of this machine has no GPU: expected one for each, found "
            f"{torch.cuda.device_count()}; start fewer (torchrun --nproc-per-node)"
        )
    if is_cuda:
        torch.cuda.set_device(local_rank)
    from torch.distributed.rendezvous import rendezvous  # not in all builds

    try:
        store, _, _ = next(rendezvous("env://", rank, world, timeout=PATIENCE))
        dist.init_process_group(
            "nccl" if is_cuda else "gloo",
            store=unused_part(store, rank=rank, world=world, patience=PATIENCE),
            rank=rank,
            world_size=world,
            timeout=PATIENCE,
        )
        waiting = cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=LONG_PATIENCE))
    except (RuntimeError, ValueError, TimeoutError) as error:
        raise TrainingError(
            f"process {rank} of {world} cannot reach the others ({_line(error)}); was it begun by torchrun?"
        ) from error
    try:
        yield Ranks(rank, world, local_rank, waiting)
    except BaseException:
        if not is_cuda:  # nccl would wait here for work that the others, or this one, will never do
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


@contextmanager
def _ranks_of_caller(environment: Mapping[str, str], device: str) -> Iterator[Ranks]:
    """All of torch's default process group."""
    rank, world, kind = dist.get_rank(), dist.get_world_size(), torch.device(device).type
    chosen = torch.cuda.current_device() if kind == "cuda" else 0
    local_rank = int(environment.get("LOCAL_RANK", chosen))
    if world == 1:
        yield Ranks(local_rank=local_rank)
        return
    backends = dict(part.split(":") for part in dist.get_backend_config().split(","))  # by kind of device
    if kind not in backends:
        raise ConfigError(
            f"the process group that was made before cannot add up on {kind}, only on {', '.join(backends)}: "
            "make it with both gloo and nccl, or leave it to us"
        )
    waiting = cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=LONG_PATIENCE))
    try:
        yield Ranks(rank, world, local_rank, waiting)
    finally:
        dist.destroy_process_group(waiting)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _line(error: BaseException) -> str:
    """The first sentence of a library's error, without the places in the library's source."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"\[\S+\.(?:cc|cpp|h):\d+\] ", "", line).split(". ")[0][:160]
