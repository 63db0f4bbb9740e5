from __future__ import annotations

import threading

import pytest
import torch

from elmo.engine.threads import ThreadPool


def test_results_are_in_the_order_of_the_tasks_which_run_in_separate_threads() -> None:
    both_started = threading.Barrier(2, timeout=10)  # neither continues alone

    def task(name: str) -> tuple[str, int]:
        both_started.wait()
        return name, threading.get_ident()

    with ThreadPool() as pool:
        (first, first_thread), (second, second_thread) = pool.run(lambda: task("a"), lambda: task("b"))
    assert (first, second) == ("a", "b")
    assert len({first_thread, second_thread, threading.get_ident()}) == 3


def test_workers_divide_the_threads_and_the_caller_keeps_its_number() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        with ThreadPool() as pool:
            assert pool.run(torch.get_num_threads, torch.get_num_threads) == [2, 2]
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


def test_gradients_in_parallel_equal_gradients_in_turn() -> None:
    torch.manual_seed(0)
    shared, inputs = torch.randn(40, 40, requires_grad=True), torch.randn(2, 300, 40)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        (result,) = torch.autograd.grad((x @ shared).tanh().square().sum(), [shared])
        return result

    expected = [gradient(x) for x in inputs]
    with ThreadPool() as pool:
        for _ in range(20):
            results = pool.run(lambda: gradient(inputs[0]), lambda: gradient(inputs[1]))
            assert all(torch.equal(x, y) for x, y in zip(results, expected, strict=True))


def test_the_first_error_is_raised_after_all_tasks_have_ended() -> None:
    ended = []

    def fail() -> None:
        raise ValueError("task 0")

    with ThreadPool() as pool, pytest.raises(ValueError, match="task 0"):
        pool.run(fail, lambda: ended.append(1))
    assert ended == [1]
