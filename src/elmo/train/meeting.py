"""A store that processes share in, a part of it that none ever wrote to out: where those of one start meet.

When torchrun starts its processes again, it gives them the store of those that died, with all their addresses
in it, and who is quick finds an old one there. How often it did so each machine counts by itself. So the
processes agree on a name of their own first: each says that it is here, under a name that is new; the first
one calls a meeting of all it sees, and holds it when each of them has answered to the name it has now.
"""

from __future__ import annotations

import json
import time
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

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
