from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from elmo.train.distributed import open_fresh_store

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this build of torch has no distributed part")
SOON = timedelta(seconds=60)
WORLD = 3


def meet(store: dist.Store, late: dict[int, float]) -> list[dist.Store]:
    """All processes of one start, some of them later than others."""

    def come(rank: int) -> dist.Store:
        time.sleep(late.get(rank, 0))
        return open_fresh_store(store, rank=rank, world=WORLD, timeout=SOON)

    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(come, range(WORLD)))


@pytest.mark.parametrize("late", [{}, {0: 0.1}, {1: 0.1}, {1: 0.05, 2: 0.1}], ids=str)
def test_those_of_one_start_meet_where_nobody_before_them_wrote(late: dict[int, float]) -> None:
    store = dist.HashStore()
    for start in ("one", "two", "three"):
        parts = meet(store, late)
        assert not any(part.check(["address"]) for part in parts)
        parts[0].set("address", start)
        assert {part.get("address") for part in parts} == {start.encode()}


def test_a_process_that_died_as_it_came_does_not_hold_up_the_next_start() -> None:
    store = dist.HashStore()
    for _ in range(2):
        with pytest.raises(TimeoutError, match="not all processes started in time"):
            open_fresh_store(store, rank=1, world=WORLD, timeout=timedelta(seconds=0.05))
        with pytest.raises(TimeoutError):
            open_fresh_store(store, rank=0, world=WORLD, timeout=timedelta(seconds=0.05))
    first, second, third = meet(store, {1: 0.1})
    first.set("address", "new")
    assert second.get("address") == third.get("address") == b"new"
