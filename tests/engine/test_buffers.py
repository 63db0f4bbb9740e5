from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from elmo.engine.buffers import UNPOOLED, BufferPool


def test_released_memory_is_reused_in_another_shape() -> None:
    pool, like = BufferPool(), torch.zeros(1)
    first = pool.take((6, 4), like)
    address = first.data_ptr()
    pool.release(first)
    again = pool.take((2, 12), like)
    assert again.data_ptr() == address
    assert again.shape == (2, 12)


def test_memory_in_use_is_not_given_out_again() -> None:
    pool, like = BufferPool(), torch.zeros(1)
    first, second = pool.take((6,), like), pool.take((6,), like)
    assert first.data_ptr() != second.data_ptr()


def test_types_do_not_share_memory() -> None:
    pool = BufferPool()
    pool.release(pool.take((6,), torch.zeros(1)))
    assert pool.take((6,), torch.zeros(1, dtype=torch.float64)).dtype == torch.float64


def test_threads_never_hold_the_same_memory_at_once() -> None:
    pool, like = BufferPool(), torch.zeros(1)

    def work(number: int) -> bool:
        is_private = True
        for _ in range(300):
            tensor = pool.take((64,), like).fill_(number)
            is_private &= bool((tensor == number).all())
            pool.release(tensor)
        return is_private

    with ThreadPoolExecutor(8) as executor:
        assert all(executor.map(work, range(8)))


def test_similar_sizes_share_memory() -> None:
    pool, like = BufferPool(), torch.zeros(1)
    addresses = set()
    for size in range(100_000, 110_000, 7):
        taken = pool.take((size,), like)
        addresses.add(taken.data_ptr())
        taken.fill_(1)
        pool.release(taken)
    assert len(addresses) <= 2


def test_a_tensor_of_any_size_is_contiguous() -> None:
    pool, like = BufferPool(), torch.zeros(1)
    for size in (0, 1, 2, 3, 7, 8, 9, 1000):
        taken = pool.take((size, 3), like)
        assert taken.shape == (size, 3)
        assert taken.is_contiguous()
        pool.release(taken)


def test_without_reuse_every_tensor_is_new() -> None:
    first = UNPOOLED.take((6,), torch.zeros(1))
    UNPOOLED.release(first)
    assert UNPOOLED.take((6,), torch.zeros(1)).data_ptr() != first.data_ptr()
