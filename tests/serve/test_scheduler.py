"""The scheduler: batches, fairness, admission, dropped work, and errors that stay with their sentence."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from elmo.errors import DataError
from elmo.serve.scheduler import SECOND_BATCH_TOKENS, DeadlineError, EncodeKey, Lane, OverloadedError, Work, cost_of
from elmo.text.tokenizers import Tokens


def sentence(n_tokens: int, word: str = "a") -> Tokens:
    return Tokens.from_words([word] * n_tokens)


class Recorder:
    """A network that records its batches; it waits for ``gate`` before the first."""

    def __init__(self) -> None:
        self.batches: list[list[Tokens]] = []
        self.gate = threading.Event()

    def __call__(self, sentences: Sequence[Tokens]) -> list[Any]:
        self.gate.wait(10)
        self.batches.append(list(sentences))
        if any("bad" in item.tokens for item in sentences):
            raise DataError("bad input")
        return [item.tokens for item in sentences]


def submit(lane: Lane, key: EncodeKey, sentences: list[Tokens], deadline: float = 60.0) -> Work:
    loop = asyncio.get_running_loop()
    work = Work(
        cost_of(sentences), time.monotonic() + deadline, loop, loop.create_future(), key=key, sentences=sentences
    )
    lane.submit(work)
    return work


def run(scenario: Any) -> None:
    lane = Lane("test", max_wait=1e9)
    lane.start()
    try:
        asyncio.run(asyncio.wait_for(scenario(lane), 20))
    finally:
        lane.stop()


def test_waiting_requests_with_the_same_options_form_one_batch() -> None:
    async def scenario(lane: Lane) -> None:
        network = Recorder()
        same, other = EncodeKey("same", network), EncodeKey("other", network)
        first = submit(lane, same, [sentence(1)])
        await asyncio.sleep(0.05)  # the first is being encoded
        works = [submit(lane, key, [sentence(2, f"w{k}")]) for k, key in enumerate((same, other, same))]
        network.gate.set()
        results = [await work.future for work in (first, *works)]
        assert results == [[("a",)], [("w0", "w0")], [("w1", "w1")], [("w2", "w2")]]
        assert [[item.tokens[0] for item in batch] for batch in network.batches] == [["a"], ["w0", "w2"], ["w1"]]
        assert lane.queued_tokens == 0

    run(scenario)


def test_a_small_request_overtakes_a_large_one() -> None:
    async def scenario(lane: Lane) -> None:
        network = Recorder()
        key = EncodeKey("key", network)
        large = submit(lane, key, [sentence(100)] * 200)
        await asyncio.sleep(0.05)
        small = submit(lane, key, [sentence(3, "small")])
        network.gate.set()
        assert await small.future == [("small",) * 3]
        assert len(await large.future) == 200
        position = next(k for k, batch in enumerate(network.batches) if any("small" in item.tokens for item in batch))
        assert position <= 2
        assert len(network.batches) > position + 1

    run(scenario)


@pytest.mark.parametrize("word", ["good", "bad"])
def test_a_thread_that_waits_keeps_neither_the_last_request_nor_its_results(word: str) -> None:
    async def scenario(lane: Lane) -> None:
        network = Recorder()
        network.gate.set()
        work = submit(lane, EncodeKey("key", network), [sentence(2, word)])
        await work.future
        kept = weakref.ref(work)
        del work
        stop = time.monotonic() + 3
        while kept() is not None and time.monotonic() < stop:  # until the thread waits again
            await asyncio.sleep(0.02)
            gc.collect()
        assert kept() is None

    run(scenario)


def test_only_the_sentence_that_causes_an_error_fails() -> None:
    async def scenario(lane: Lane) -> None:
        network = Recorder()
        network.gate.set()
        work = submit(lane, EncodeKey("key", network), [sentence(1), sentence(2, "bad"), sentence(3)])
        first, bad, last = await work.future
        assert (first, last) == (("a",), ("a",) * 3)
        assert isinstance(bad, DataError)

    run(scenario)


def test_cancelled_and_expired_work_is_dropped() -> None:
    async def scenario(lane: Lane) -> None:
        network = Recorder()
        key = EncodeKey("key", network)
        first = submit(lane, key, [sentence(1)])
        await asyncio.sleep(0.05)
        cancelled, expired = submit(lane, key, [sentence(5, "gone")]), submit(lane, key, [sentence(5, "late")], 0.01)
        lane.cancel(cancelled)
        await asyncio.sleep(0.05)
        network.gate.set()
        await first.future
        with pytest.raises(DeadlineError):
            await expired.future
        assert all(item.tokens[0] == "a" for batch in network.batches for item in batch)
        assert lane.queued_tokens == 0

    run(scenario)


def test_a_request_that_would_wait_too_long_is_refused() -> None:
    async def scenario(_: Lane) -> None:
        lane = Lane("full", max_wait=1.0)  # not started, so the queue only grows
        key = EncodeKey("key", Recorder())
        while lane.wait <= 1.0:
            submit(lane, key, [sentence(100)])
        with pytest.raises(OverloadedError) as caught:
            submit(lane, key, [sentence(100)])
        assert caught.value.retry_after >= 1
        assert lane.wait == pytest.approx(1.0, abs=0.1)

    run(scenario)


def test_a_failing_call_does_not_stop_the_lane() -> None:
    async def scenario(lane: Lane) -> None:
        loop = asyncio.get_running_loop()

        def fail() -> None:
            raise DataError("no")

        broken = Work(1, time.monotonic() + 9, loop, loop.create_future(), call=fail)
        sound = Work(1, time.monotonic() + 9, loop, loop.create_future(), call=lambda: 7)
        lane.submit(broken)
        lane.submit(sound)
        with pytest.raises(DataError):
            await broken.future
        assert await sound.future == 7

    run(scenario)


def test_a_second_batch_runs_on_one_core_next_to_the_first_if_enough_is_waiting() -> None:
    async def scenario(_: Lane) -> None:
        parallel, serial = Recorder(), Recorder()
        serial.gate.set()
        lane = Lane("two", max_wait=1e9, n_threads=2)
        lane.start()
        key = EncodeKey("key", parallel, serial)
        first = submit(lane, key, [sentence(5, "first")])
        await asyncio.sleep(0.05)  # the first is being encoded
        small = submit(lane, key, [sentence(10, "small")])
        await asyncio.sleep(0.05)
        assert not small.future.done()  # too little to start a batch next to the first
        n_more = SECOND_BATCH_TOKENS // 10
        more = submit(lane, key, [sentence(10, "more")] * n_more)
        assert await small.future == [("small",) * 10]
        assert not first.future.done()
        assert {item.tokens[0] for batch in serial.batches for item in batch} == {"small", "more"}
        parallel.gate.set()
        assert await first.future == [("first",) * 5]
        assert len(await more.future) == n_more
        assert lane.queued_tokens == 0
        lane.stop()

    run(scenario)


def test_the_results_of_a_large_request_are_in_order_if_several_threads_compute_its_pieces() -> None:
    async def scenario(_: Lane) -> None:
        def encode(sentences: Sequence[Tokens]) -> list[Any]:
            time.sleep(0.001 * (len(sentences[0].tokens[0]) % 3))  # later pieces may end first
            return [item.tokens[0] for item in sentences]

        lane = Lane("three", max_wait=1e9, n_threads=3)
        lane.start()
        words = [f"{'x' * (k % 5)}{k}" for k in range(3000)]
        work = submit(lane, EncodeKey("key", encode, encode), [sentence(8, word) for word in words])
        assert await work.future == words
        assert lane.queued_tokens == 0
        lane.stop()

    run(scenario)
