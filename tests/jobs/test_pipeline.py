"""Reading ahead and writing in the background: order, memory, errors, and no thread is left over."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from elmo.embed.elmo import Elmo
from elmo.engine import threads
from elmo.engine.batches import BATCH_TOKENS, split_batches
from elmo.errors import DataError, EncodingError, OutputError
from elmo.jobs.groups import Group
from elmo.jobs.pipeline import BackgroundWriter, read_ahead
from elmo.jobs.plan import EmbedJob, Progress, plan_corpus
from elmo.jobs.run import embed_corpus
from tests.embed.sentences import sentences
from tests.jobs.jobs import begin, contents


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert not [one for one in set(threading.enumerate()) - before if one.name.startswith("elmo-")]


def pairs(numbers: Iterable[int]) -> Iterator[tuple[int, ...]]:
    held: tuple[int, ...] = ()
    for number in numbers:
        held = (*held, number)
        if len(held) == 2:
            yield held
            held = ()


# --- reading ahead ------------------------------------------------------------------------------------


def test_read_ahead_keeps_the_order_and_holds_one_item() -> None:
    taken: list[int] = []
    reader_rests = threading.Event()

    def numbers() -> Iterator[int]:
        for number in range(20):
            taken.append(number)
            if len(taken) % 2 == 0:
                reader_rests.set()
            yield number

    result = []
    with read_ahead(numbers(), pairs) as ahead:
        for pair in ahead:
            result.append(pair)
            if pair[1] < 19:
                assert reader_rests.wait(30)  # the next item is made while this one is in use
            reader_rests.clear()
            assert len(taken) <= 2 * len(result) + 2
    assert result == list(pairs(range(20)))


def test_an_error_of_the_reader_is_raised_after_the_items_before_it() -> None:
    def numbers() -> Iterator[int]:
        yield from range(4)
        raise DataError("line 5")

    result = []
    with pytest.raises(DataError, match="line 5"), read_ahead(numbers(), pairs) as ahead:  # noqa: PT012
        for pair in ahead:
            result.append(pair)
    assert result == [(0, 1), (2, 3)]


def test_a_reader_stops_within_an_item_when_the_context_is_left() -> None:
    is_left = threading.Event()
    taken: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            taken.append(0)
            if len(taken) > 2:
                is_left.wait(30)
            yield 0

    with pytest.raises(KeyboardInterrupt), read_ahead(endless(), lambda items: map(str, items)) as ahead:  # noqa: PT012
        next(ahead)
        is_left.set()
        raise KeyboardInterrupt
    assert len(taken) < 10


# --- writing in the background ------------------------------------------------------------------------


def test_tasks_run_in_order_in_the_background() -> None:
    done: list[int] = []
    may_go = threading.Event()

    def work(number: int) -> None:
        assert may_go.wait(30)
        done.append(number)

    with BackgroundWriter() as writer:
        writer.submit(lambda: work(0))
        assert done == []
        may_go.set()
        writer.submit(lambda: work(1))
        assert done[0] == 0
    assert done == [0, 1]


def test_the_error_of_a_task_is_raised_once_and_before_a_later_error() -> None:
    def fail() -> None:
        raise OutputError("disk")

    with pytest.raises(OutputError, match="disk"), BackgroundWriter() as writer:
        writer.submit(fail)
    with pytest.raises(OutputError, match="disk"), BackgroundWriter() as writer:  # noqa: PT012
        writer.submit(fail)
        writer.submit(lambda: None)
    with pytest.raises(OutputError, match="disk"), BackgroundWriter() as writer:  # noqa: PT012
        writer.submit(fail)
        raise DataError("of the group after it")
    with pytest.raises(KeyboardInterrupt), BackgroundWriter() as writer:  # noqa: PT012
        writer.submit(fail)
        raise KeyboardInterrupt


def test_ctrl_c_waits_for_the_current_task() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), BackgroundWriter() as writer:  # noqa: PT012
        writer.submit(lambda: done.append(1))
        raise KeyboardInterrupt
    assert done == [1]


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_ctrl_c_during_the_last_task_is_raised_when_it_is_done() -> None:
    done = []

    def work() -> None:
        time.sleep(0.1)  # the main thread waits by now
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        done.append(1)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), BackgroundWriter() as writer:
            writer.submit(work)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == [1]


# --- a whole job --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_at_most_three_groups_are_in_memory(job: EmbedJob, text: Path, elmo: Elmo) -> None:
    text.write_text("one two three\n" * 20)
    others = [one for one in gc.get_objects() if type(one) is Group]  # of an earlier failed test
    most = 0

    def count(_: Progress) -> None:
        nonlocal most
        most = max(most, sum(type(one) is Group for one in gc.get_objects()) - len(others))

    summary = embed_corpus(replace(job, shard_tokens=6), elmo, on_progress=count)
    assert len(summary.files) == 10
    assert 2 <= most <= 3


def test_progress_is_reported_by_the_calling_thread_and_increases(job: EmbedJob, elmo: Elmo) -> None:
    reported: list[Progress] = []
    threads = set()

    def hear(progress: Progress) -> None:
        reported.append(progress)
        threads.add(threading.current_thread())

    embed_corpus(job, elmo, on_progress=hear)
    assert threads == {threading.current_thread()}
    assert [one.sentences for one in reported] == sorted(one.sentences for one in reported)
    assert (reported[-1].sentences, reported[-1].tokens, reported[-1].shards) == (7, 20, 4)


def test_an_encoding_error_is_raised_after_the_shards_before_it_are_written(
    job: EmbedJob, text: Path, elmo: Elmo
) -> None:
    good = b"one two three\n" * 9
    text.write_bytes(good + b"\xff\n")
    with pytest.raises(EncodingError, match=r"text\.txt:10: byte 1"):
        embed_corpus(job, elmo)
    text.write_bytes(good + b"four\n")
    assert embed_corpus(job, elmo).kept == 8


def test_ctrl_c_keeps_the_current_shard_and_leaves_no_temporary_file(job: EmbedJob, out: Path, elmo: Elmo) -> None:
    begin(job, elmo, reports=2)  # at the report after the vectors of the first shard
    assert sorted(contents(out.parent)) == ["v-00000.npz", "v.npz.manifest.json"]
    assert embed_corpus(job, elmo).kept == 3


def test_without_a_batch_size_batches_are_limited_by_tokens(job: EmbedJob, elmo: Elmo, out: Path) -> None:
    rows = [("a",) * 1000] * 40 + [("a",) * 20_000, ("b",)] + [()] * 9000
    result = [sum(len(one.tokens) for one in piece) for piece in split_batches(sentences(rows), batch_size=None)]
    assert result == [16_000, 16_000, 8_000, 20_000, 1, 0]
    assert max(result) >= BATCH_TOKENS
    assert [len(piece) for piece in split_batches(sentences(rows[:5]), batch_size=2)] == [2, 2, 1]
    embed_corpus(job, elmo)
    expected = contents(out.parent)
    embed_corpus(replace(job, batch_size=None, restart=True), elmo)
    assert contents(out.parent) == expected


def test_a_plan_counts_the_groups_in_memory(job: EmbedJob, text: Path, elmo: Elmo) -> None:
    text.write_text("one two three\n" * 1000)
    small, large = (plan_corpus(replace(job, shard_tokens=n, batch_size=1), elmo).memory_bytes for n in (3, 3000))
    per_token = 3 * elmo.width * 4 + 3 * 200  # three groups' vectors and text
    assert large - small == 2997 * per_token
    shared = plan_corpus(replace(job, workers=4), elmo).memory_bytes
    assert 4 * small < shared < 6 * small


# --- a thread that dies ---------------------------------------------------------------------------------


@pytest.fixture
def without_memory_for_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a thread die while it stores an error, as one without memory does."""

    def fail(future: Future[object], error: BaseException) -> None:
        raise MemoryError

    monkeypatch.setattr(Future, "set_exception", fail)
    monkeypatch.setattr(threads, "_CHECK_SECONDS", 0.02)


def raise_error(*_: object) -> Iterator[tuple[int, ...]]:
    raise MemoryError


@pytest.mark.usefixtures("without_memory_for_errors")
def test_nothing_waits_for_a_thread_that_has_died() -> None:
    def fail(numbers: Iterable[int]) -> Iterator[tuple[int, ...]]:
        yield from raise_error(numbers)

    with pytest.raises(MemoryError, match="ended without a result"), read_ahead([1], fail) as ahead:
        list(ahead)
    with pytest.raises(MemoryError, match="ended without a result"), BackgroundWriter() as writer:  # noqa: PT012
        writer.submit(raise_error)  # pyright: ignore[reportArgumentType]
        writer.submit(raise_error)  # pyright: ignore[reportArgumentType]
    with threads.ThreadPool(2) as pool:
        for _ in range(2):
            with pytest.raises(MemoryError, match="ended without a result"):
                pool.run(raise_error, list)
        assert pool.run(list, list) == [[], []]  # with new threads
