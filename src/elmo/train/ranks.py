"""One process or many in, one training run out: who reads which rows, and how they stay in step.

``torchrun`` starts the processes and tells each its rank. Every rank holds the whole model and reads its own
rows of the batch; gradients are added up over all of them, so that every step is the step of the whole batch.
Rank 0 alone writes. With one process there is nothing to agree on, and everything here does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

PATIENCE = timedelta(minutes=30)  # with a rank that says nothing; one that has died is noticed at once


@dataclass(frozen=True)
class Ranks:
    """A process among those of a run."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0  # on this machine

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
        dist.all_reduce(counts)
        padded = mine.new_zeros(int(counts.max()), *mine.shape[1:])
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(parts, padded)
        cut = [part[:count] for part, count in zip(parts, counts.tolist(), strict=True)]
        return torch.cat(cut).movedim(0, dim)

    def from_first(self, value: Any) -> Any:
        """What rank 0 has, on every rank."""
        if self.world == 1:
            return value
        box = [value if self.is_first else None]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    @contextmanager
    def first_one_first(self) -> Iterator[None]:
        """Let rank 0 do something while the others wait for it, as long as it takes, and then do the same."""
        if self.world == 1:
            yield
            return
        store = dist.distributed_c10d._get_default_store()
        if self.is_first:
            yield
            store.set("elmo/first", "done")
        else:
            store.wait(["elmo/first"], timedelta(days=30))  # torchrun ends us when rank 0 ends badly
            yield


@contextmanager
def ranks_from(environment: Mapping[str, str] = os.environ, *, device: str = "cpu") -> Iterator[Ranks]:
    """The ranks that torchrun began, joined for the time of a ``with``; without torchrun, one."""
    world = int(environment.get("WORLD_SIZE", "1"))
    if world == 1 or "RANK" not in environment:
        yield Ranks()
        return
    found = Ranks(int(environment["RANK"]), world, int(environment.get("LOCAL_RANK", "0")))
    is_cuda = torch.device(device).type == "cuda"
    if is_cuda:
        torch.cuda.set_device(found.local_rank)
    dist.init_process_group("nccl" if is_cuda else "gloo", timeout=PATIENCE)
    try:
        yield found
    finally:
        dist.destroy_process_group()
