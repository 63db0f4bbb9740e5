from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from elmo.engine.threads import BufferPool


def test_memory_that_was_given_back_is_used_again_in_another_shape() -> None:
    buffers, like = BufferPool(), torch.zeros(1)
    first = buffers.take((6, 4), like)
    place = first.data_ptr()
    buffers.release(first)
    again = buffers.take((2, 12), like)
    assert again.data_ptr() == place
    assert again.shape == (2, 12)


def test_what_is_in_use_is_not_given_to_another() -> None:
    buffers, like = BufferPool(), torch.zeros(1)
    first, second = buffers.take((6,), like), buffers.take((6,), like)
    assert first.data_ptr() != second.data_ptr()


def test_types_are_kept_apart() -> None:
    buffers = BufferPool()
    buffers.release(buffers.take((6,), torch.zeros(1)))
    assert buffers.take((6,), torch.zeros(1, dtype=torch.float64)).dtype == torch.float64


def test_threads_never_hold_the_same_memory_at_a_time() -> None:
    buffers, like = BufferPool(), torch.zeros(1)

    def work(number: int) -> bool:
        is_mine = True
        for _ in range(300):
            mine = buffers.take((64,), like).fill_(number)
            is_mine &= bool((mine == number).all())
            buffers.release(mine)
        return is_mine

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_sizes_that_differ_a_little_share_memory_so_that_nothing_piles_up() -> None:
    buffers, like = BufferPool(), torch.zeros(1)
    places = set()
    for size in range(100_000, 110_000, 7):
        taken = buffers.take((size,), like)
        places.add(taken.data_ptr())
        taken.fill_(1)
        buffers.release(taken)
    assert len(places) <= 2


def test_every_number_of_a_tensor_is_its_own_at_any_size() -> None:
    buffers, like = BufferPool(), torch.zeros(1)
    for size in (0, 1, 2, 3, 7, 8, 9, 1000):
        taken = buffers.take((size, 3), like)
        assert taken.shape == (size, 3)
        assert taken.is_contiguous()
        buffers.release(taken)
