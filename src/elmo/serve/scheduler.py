"""The scheduler: queues the work of all requests and runs it in batches.

Requests are handled by one event loop; the networks run in other threads, those of the lanes. The lane ``words``
encodes sentences. When a thread is free, it takes what is waiting, without a fixed delay: sentences of different
requests that need the same layers of the same model form one batch. A large request is cut into pieces and goes to the
end of the queue after each piece, so that small requests overtake it. The lane ``calls`` runs everything else, one call
at a time: substitutes, scores, searches, and very long sentences, which cannot be cut.

While little is waiting, one batch runs at a time and its network uses all CPU cores, so that a request is answered
soon. If enough is waiting for a second batch, each thread computes a separate batch on one core: no core ever waits
for another, which is faster in total.

The queue is bounded by time: the work that is done before new work starts, divided by the measured speed, must not
exceed ``max_wait``. Of a large request, only the next piece counts. Work whose client has disconnected, or whose
deadline has passed, is dropped. If a batch fails, its sentences are encoded one by one, so that only the sentence that
caused the error fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from elmo.errors import ElmoError
from elmo.text.tokenizers import Tokens

logger = logging.getLogger(__name__)

BATCH_SECONDS = 0.04  # target duration of a batch, so that a new request waits only for a short time
MAX_BATCH_SECONDS = 0.15  # the same if many requests wait: they wait anyway, and large batches are faster per token
MIN_BATCH_TOKENS, MAX_BATCH_TOKENS = 640, 8192  # a batch of 300 tokens takes up to 20% longer per token than one of 640
SECOND_BATCH_TOKENS = 640  # waiting tokens from which a batch starts next to another
PIECE_TOKENS = 1024  # tokens of a large request that are done before a request that comes later
DELIVERED_AT_ONCE = 4  # under load: replies that are written before the event loop turns to other requests
NETWORK_NICE = 5  # added to the nice value of the threads that compute
START_RATE = 5_000.0  # tokens per second that are assumed until the speed has been measured
RATE_DECAY = 0.9  # weight of earlier measurements
RATE_SECONDS = 0.25  # weight of the speed that was measured when the models were loaded
LONG_SENTENCE = 4096  # tokens; a longer sentence runs in the lane for calls


class OverloadedError(Exception):
    """The queue is full; ``retry_after`` is the time in seconds after which it has room again."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"the server is overloaded; retry after {retry_after:.0f} seconds")
        self.retry_after = retry_after


class DeadlineError(Exception):
    """The deadline of a request passed before its work was done."""


class TooMuchWorkError(Exception):
    """The work of a request would take longer than any deadline allows; ``seconds`` is the estimate."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the request would take about {seconds:.0f} seconds, longer than its deadline allows")


Encode = Callable[[Sequence[Tokens]], Sequence[Any]]


@dataclass(frozen=True)
class EncodeKey:
    """What sentences must have in common to be encoded in one batch.

    ``encode`` encodes a batch with all CPU cores, ``encode_serially`` with one; None: as ``encode``. ``identity``
    decides about equality: the model and the options of ``encode``.
    """

    identity: Hashable
    encode: Encode = field(compare=False)
    encode_serially: Encode | None = field(default=None, compare=False)


@dataclass(eq=False)
class Work:
    """The work of one request in one lane."""

    cost: int  # in tokens
    deadline: float  # time.monotonic()
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    key: EncodeKey | None = None  # None: call ``call``
    call: Callable[[], Any] | None = None
    sentences: Sequence[Tokens] = ()
    results: list[Any] = field(default_factory=list)  # one per sentence
    position: int = 0  # of the next sentence
    n_done: int = 0  # sentences that have a result
    is_cancelled: bool = False
    enqueued: float = 0.0
    started: float | None = None
    compute_seconds: float = 0.0

    @property
    def is_dropped(self) -> bool:
        """Whether nobody waits for the result any more."""
        return self.is_cancelled or time.monotonic() > self.deadline


@dataclass(frozen=True)
class Batch:
    """What a thread computes at once: a call, or sentences of several requests with the same key."""

    parts: list[tuple[Work, int, list[Tokens]]]  # of each request: the position of the first sentence, the sentences
    is_alone: bool  # whether no other thread of the lane computes


class Lane:
    """A queue and the threads that work on it."""

    def __init__(
        self,
        name: str,
        *,
        max_wait: float,
        max_seconds: float = math.inf,
        min_measured: int = MIN_BATCH_TOKENS,
        n_threads: int = 1,
        observe: Callable[[int, int, float], None] | None = None,
    ) -> None:
        """Create a lane; ``start`` starts its threads.

        Args:
            name: Name of the threads.
            max_wait: Longest estimated time until new work starts, in seconds.
            max_seconds: Longest estimated duration of the work of one request.
            min_measured: Smallest cost from which the speed is measured. A small batch is slower per token than a
                full one.
            n_threads: Number of batches that can run at the same time.
            observe: Function that is called with the tokens, the requests and the seconds of each batch.
        """
        self.name = name
        self._max_wait = max_wait
        self._max_seconds = max_seconds
        self._min_measured = min_measured
        self._observe = observe
        self._queue: deque[Work] = deque()
        self._condition = threading.Condition()
        self._cost = 0  # of the queue and of the batches in progress
        self._cost_ahead = 0  # the same, but at most PIECE_TOKENS of each request
        self._cost_running = 0  # of the batches in progress
        self._rate = START_RATE
        self._is_measured = False
        self._done_cost, self._done_seconds = 0.0, 0.0  # of recent batches, from which the speed is computed
        self._is_stopped = False
        self._threads = [
            threading.Thread(target=self._run, name=f"elmo-serve-{name}-{number}", daemon=True)
            for number in range(n_threads)
        ]
        self._running: dict[int, float] = {}  # thread -> when it started its batch
        self._measured_since = 0.0  # since then, a thread has been busy all the time,
        self._measured_cost = 0  # and batches of this cost have ended

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float = 2.0) -> None:
        """Stop the threads after their current batches, and wait for them; waiting work is abandoned."""
        with self._condition:
            self._is_stopped = True
            self._condition.notify_all()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def set_rate(self, rate: float) -> None:
        """Set the speed in tokens per second, as it was measured when the models were loaded."""
        self._rate, self._is_measured = max(rate, 1.0), True
        self._done_cost, self._done_seconds = self._rate * RATE_SECONDS, RATE_SECONDS

    @property
    def queued_tokens(self) -> int:
        """Cost of the waiting work and of the batches in progress, in tokens."""
        return self._cost

    @property
    def rate(self) -> float:
        """Measured speed in tokens per second."""
        return self._rate

    @property
    def wait(self) -> float:
        """Estimated time until new work would start, in seconds."""
        return self._cost_ahead / self._rate

    def is_alive(self, max_seconds: float = 600.0) -> bool:
        """Whether the threads run and no batch has taken longer than ``max_seconds``."""
        oldest = min(list(self._running.values()), default=math.inf)
        return all(thread.is_alive() for thread in self._threads) and time.monotonic() - oldest < max_seconds

    def check_room(self) -> None:
        """Raise ``OverloadedError`` if new work would wait too long."""
        wait = self.wait
        if wait > self._max_wait:
            raise OverloadedError(max(1.0, wait - self._max_wait / 2))

    def submit(self, work: Work) -> None:
        """Add work to the queue; its future gets the result."""
        self.check_room()
        work.enqueued = time.monotonic()
        seconds = work.cost / self._rate
        if seconds > self._max_seconds:
            raise TooMuchWorkError(seconds)
        if seconds > work.deadline - work.enqueued:
            raise DeadlineError
        with self._condition:
            self._add_cost(work)
            work.results = [None] * len(work.sentences)
            self._queue.append(work)
            if self._may_start():
                self._condition.notify()

    def cancel(self, work: Work) -> None:
        """Drop work whose result is not needed any more."""
        with self._condition:
            if work.is_cancelled:
                return
            work.is_cancelled = True
            if work in self._queue:
                self._queue.remove(work)
                self._remove_cost(work)

    def _add_cost(self, work: Work) -> None:
        self._cost += work.cost
        self._cost_ahead += min(work.cost, PIECE_TOKENS)

    def _remove_cost(self, work: Work) -> None:
        """Subtract what is left of work that is done or dropped."""
        self._cost -= _remaining_cost(work)
        self._cost_ahead -= min(work.cost, PIECE_TOKENS)

    def _may_start(self) -> bool:
        """Whether a free thread should start a batch now.

        Next to another batch, only one that is large enough to be fast; otherwise, it starts when the other has ended.
        """
        if not self._queue:
            return False
        return not self._running or self._cost - self._cost_running >= SECOND_BATCH_TOKENS

    def _run(self) -> None:
        _lower_priority()
        while True:
            with self._condition:
                while not self._is_stopped and not self._may_start():
                    self._condition.wait()
                if self._is_stopped:
                    return
                now = time.monotonic()
                batch = self._take_batch()
                if not batch.parts:
                    continue
                if not self._running:
                    self._measured_since, self._measured_cost = now, 0
                cost = _cost_of_batch(batch)
                self._running[threading.get_ident()] = now
                self._cost_running += cost
                if self._may_start():  # for another thread
                    self._condition.notify()
            self._run_batch(batch, cost, now)
            del batch  # a thread that waits must not keep the last requests and their vectors

    def _take_batch(self) -> Batch:
        """Take the next batch from the queue: a call, or sentences of several requests."""
        is_alone = not self._running
        rate = self._rate if is_alone else self._rate / len(self._threads)
        seconds = min(max(BATCH_SECONDS, self.wait / 4), MAX_BATCH_SECONDS)
        limit = min(max(int(rate * seconds), MIN_BATCH_TOKENS), MAX_BATCH_TOKENS)
        parts: list[tuple[Work, int, list[Tokens]]] = []
        key, n_tokens = None, 0
        unfinished: list[Work] = []
        skipped: list[Work] = []
        while self._queue and n_tokens < limit:
            work = self._queue.popleft()
            if work.is_dropped:
                self._remove_cost(work)
                _deliver([(work, None, DeadlineError())])
                continue
            if work.key is None:
                if not parts:
                    return Batch([(work, 0, [])], is_alone)
                skipped.append(work)
                continue
            if key is not None and work.key != key:
                skipped.append(work)
                continue
            key, first = work.key, work.position
            part, size = _take_sentences(work, limit - n_tokens, is_first=not parts)
            if not part:
                skipped.append(work)
                break
            parts.append((work, first, part))
            n_tokens += size
            if work.position < len(work.sentences):
                unfinished.append(work)
        self._queue.extendleft(reversed(skipped))
        self._queue.extend(unfinished)  # after all others
        return Batch(parts, is_alone)

    def _run_batch(self, batch: Batch, cost: int, begin: float) -> None:
        for work, _, _ in batch.parts:
            if work.started is None:
                work.started = begin
        outcomes: list[tuple[Work, Any, Exception | None]] = []
        work = batch.parts[0][0]
        if work.key is None:
            outcomes.append((work, *_call(work.call or (lambda: None))))
        else:
            sentences = [sentence for _, _, part in batch.parts for sentence in part]
            encode = work.key.encode if batch.is_alone else work.key.encode_serially or work.key.encode
            vectors, error = _call(lambda: encode(sentences))
            if error is not None:
                vectors = [_first(_call(lambda s=s: encode([s])[0])) for s in sentences]
            results = iter(vectors)
            for item, first, part in batch.parts:
                item.results[first : first + len(part)] = [next(results) for _ in part]
        now = time.monotonic()
        with self._condition:
            self._cost -= cost
            for item, _, part in batch.parts:
                item.compute_seconds += now - begin
                item.n_done += len(part)
                if item.key is None or item.n_done == len(item.sentences):
                    self._cost_ahead -= min(item.cost, PIECE_TOKENS)
                    if item.key is not None:
                        outcomes.append((item, item.results, None))
            self._measured_cost += cost
            self._measure_rate(now)
            del self._running[threading.get_ident()]
            self._cost_running -= cost
        if self._observe is not None:
            self._observe(cost, len(batch.parts), now - begin)
        # While requests are refused, refusals must not wait until the replies to a whole batch are written.
        _deliver(outcomes, DELIVERED_AT_ONCE if self.wait > self._max_wait / 2 else len(outcomes))

    def _measure_rate(self, now: float) -> None:
        """Measure the speed of all threads together, while they have work."""
        if self._measured_cost >= self._min_measured:
            weight = RATE_DECAY if self._is_measured else 0.0
            # Sums, not a mean of rates: if two threads end at the same time, the second seems to have taken no time.
            self._done_cost = weight * self._done_cost + self._measured_cost
            self._done_seconds = weight * self._done_seconds + max(now - self._measured_since, 1e-6)
            self._rate, self._is_measured = max(self._done_cost / self._done_seconds, 1.0), True
            self._measured_since, self._measured_cost = now, 0


def _lower_priority() -> None:
    """Let the event loop run before this thread if there are not enough cores for both.

    Refusals at three times the capacity: 99% within 60 ms without this, within 16 ms with it, and as many answers.
    """
    if sys.platform == "linux":  # elsewhere, the priority is that of the whole process
        with contextlib.suppress(OSError):
            priority = os.getpriority(os.PRIO_PROCESS, 0) + NETWORK_NICE
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(priority, 19))


def cost_of(sentences: Sequence[Tokens]) -> int:
    """Return the cost of encoding sentences, in tokens; the boundaries of a sentence count, too."""
    return sum(map(_cost_of, sentences))


def _cost_of_batch(batch: Batch) -> int:
    work = batch.parts[0][0]
    return work.cost if work.key is None else cost_of([s for _, _, part in batch.parts for s in part])


def _cost_of(sentence: Tokens) -> int:
    return len(sentence) + 2


def _remaining_cost(work: Work) -> int:
    return work.cost if work.key is None else cost_of(work.sentences[work.position :])


def _take_sentences(work: Work, limit: int, *, is_first: bool) -> tuple[list[Tokens], int]:
    """Take the next sentences of a request, up to ``limit`` tokens; at least one if the batch is empty."""
    part: list[Tokens] = []
    size = 0
    while work.position < len(work.sentences):
        cost = _cost_of(work.sentences[work.position])
        if size + cost > limit and (part or not is_first):
            break
        part.append(work.sentences[work.position])
        size += cost
        work.position += 1
    return part, size


def _call(function: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return function(), None
    except ElmoError as error:
        return None, error
    except Exception as error:  # reported to the client as an internal error, and logged with its traceback
        logger.exception("a request failed")
        return None, error


def _first(outcome: tuple[Any, Exception | None]) -> Any:
    """Return the result, or the error in its place."""
    result, error = outcome
    return result if error is None else error


def _deliver(outcomes: Sequence[tuple[Work, Any, Exception | None]], n_at_once: int = 1) -> None:
    """Set the futures in the event loop."""
    if outcomes:
        try:
            outcomes[0][0].loop.call_soon_threadsafe(_set_futures, outcomes, n_at_once)
        except RuntimeError:  # the loop has been closed: nobody waits
            logger.debug("the event loop is closed; %d results are dropped", len(outcomes))


def _set_futures(outcomes: Sequence[tuple[Work, Any, Exception | None]], n_at_once: int) -> None:
    """Set a few futures, and the others later: in between, the event loop reads and refuses requests."""
    for work, result, error in outcomes[:n_at_once]:
        if work.future.done():
            continue
        if error is None:
            work.future.set_result(result)
        else:
            work.future.set_exception(error)
    if len(outcomes) > n_at_once:
        outcomes[0][0].loop.call_soon(_set_futures, outcomes[n_at_once:], n_at_once)
