from __future__ import annotations

import threading

import pytest
import torch

from elmo.engine.threads import ThreadPool


def test_results_come_in_the_order_of_the_pieces_from_threads_of_their_own() -> None:
    both_started = threading.Barrier(2, timeout=10)  # neither goes on alone

    def piece(name: str) -> tuple[str, int]:
        both_started.wait()
        return name, threading.get_ident()

    with ThreadPool() as side:
        (first, one), (second, other) = side.run(lambda: piece("a"), lambda: piece("b"))
    assert (first, second) == ("a", "b")
    assert len({one, other, threading.get_ident()}) == 3


def test_workers_share_the_threads_and_leave_the_callers_alone() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        with ThreadPool() as side:
            assert side.run(torch.get_num_threads, torch.get_num_threads) == [2, 2]
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


def test_gradients_taken_side_by_side_are_those_taken_in_turn() -> None:
    torch.manual_seed(0)
    shared, inputs = torch.randn(40, 40, requires_grad=True), torch.randn(2, 300, 40)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        (found,) = torch.autograd.grad((x @ shared).tanh().square().sum(), [shared])
        return found

    expected = [gradient(x) for x in inputs]
    with ThreadPool() as side:
        for _ in range(20):
            found = side.run(lambda: gradient(inputs[0]), lambda: gradient(inputs[1]))
            assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_the_first_failure_is_raised_when_all_have_ended() -> None:
    ended = []

    def fail() -> None:
        raise ValueError("piece 0")

    with ThreadPool() as side, pytest.raises(ValueError, match="piece 0"):
        side.run(fail, lambda: ended.append(1))
    assert ended == [1]
