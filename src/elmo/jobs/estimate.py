"""Estimate the hours, memory, bytes and cost of a job from a short run on a sample of its text.

The sample is a set of short passages, spread evenly over the input. It is embedded by the code that runs jobs, with the
workers of the job, to a temporary folder next to the output. Reading, computing, writing and the competition of the
workers for the machine are therefore part of the measurement.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Self

from elmo.engine.batches import BATCH_TOKENS
from elmo.engine.token_layer import CACHED_WORDS
from elmo.errors import ConfigError
from elmo.jobs.groups import Group, split_groups
from elmo.jobs.manifest import OutputFiles
from elmo.jobs.plan import TOKEN_TEXT_BYTES, EmbedJob, JobPlan, Progress, encode_sentences, plan_corpus
from elmo.jobs.shard import Layout
from elmo.jobs.sharded import ShardedRun
from elmo.jobs.writers import check_libraries
from elmo.storage.atomic import hold_lock, temporary_folder
from elmo.text.lines import Tally
from elmo.text.reader import Sentence

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

MEASURE_SECONDS = 10.0  # after warm-up
_PASSAGE_TOKENS = 512
_MAX_PASSAGES = 128  # of the sample
_WATCH_SECONDS = 0.05  # between two readings of the memory
_CACHED_WORD_BYTES = 150  # estimated memory of a word in the cache of token vectors, in addition to its vector
_SENTENCE_BYTES = 400  # estimated memory of a sentence in the index of an HDF5 file, in addition to its text


@dataclass(frozen=True)
class MachineEstimate:
    """Estimated time and cost of a job on a number of machines.

    Attributes:
        machines: Number of machines like this one.
        hours: Time of the job.
        core_hours: Time of all cores of all machines.
        cost: ``core_hours`` times the price; None without a price.
        is_limited_by_reading: Whether more machines would not help, because one process reads the text.
    """

    machines: int
    hours: float
    core_hours: float
    cost: float | None
    is_limited_by_reading: bool


@dataclass(frozen=True)
class JobEstimate:
    """Measured speed of a job, and an estimate of its time, memory, output and cost.

    Attributes:
        sentences: Number of sentences in the input, counted.
        tokens: Number of tokens in the input, counted.
        shards: Number of shards.
        workers: Number of processes that compute on one machine.
        threads: Number of threads of each of them.
        tokens_per_second: Measured speed of one machine, with all its workers.
        tokens_read_per_second: Measured speed of reading and tokenizing the input, which one process does.
        measured_tokens: Number of tokens that the speed was measured on.
        measured_seconds: Duration of the measurement.
        startup_seconds: Measured time until the first worker computes at full speed.
        memory_bytes: Peak memory of all processes on one machine. Pages that several processes share count once.
        output_bytes: Size of the output without its manifest.
        machines: Time and cost for each number of machines.
    """

    sentences: int
    tokens: int
    shards: int
    workers: int
    threads: int
    tokens_per_second: float
    tokens_read_per_second: float
    measured_tokens: int
    measured_seconds: float
    startup_seconds: float
    memory_bytes: int
    output_bytes: int
    machines: tuple[MachineEstimate, ...]


def estimate_job(
    job: EmbedJob, elmo: Elmo, *, machines: Sequence[int] = (1,), price: float | None = None
) -> JobEstimate:
    """Read the whole input of a job, embed a sample of it, and estimate what the job needs.

    Nothing is left on the disk. The estimate is for a job that starts from the beginning.

    Args:
        job: The job; it must have an output and the runner "local".
        elmo: The model.
        machines: Numbers of machines like this one to estimate the time and cost for. The time of the computation is
            divided by their number; it is never shorter than one shard, nor than reading the text in one process.
        price: Price of one core for one hour. A core is a thread that the job computes with.

    Example:
        >>> estimate = estimate_job(EmbedJob(("corpus.txt",), Path("estimated.npz")), elmo)
        >>> estimate.machines[0].hours > 0
        True
    """
    _check(job, machines, price)
    elmo = elmo.snapshot()
    encode_sentences([], job, elmo)  # report invalid options before anything is measured
    files = OutputFiles(_out(job))
    check_libraries(files.suffix)
    sample = _Sample()
    begin = time.perf_counter()
    plan = plan_corpus(job, elmo, on_group=sample.add)
    read_seconds = time.perf_counter() - begin
    again = None if job.reads_pipe() else job.sentences(elmo.tokenizer)  # before there are temporary files
    parent = files.folder if not files.is_remote and files.folder.is_dir() else None
    with temporary_folder(f".{files.out.name[:40]}.estimate-", subject="estimate the job", parent=parent) as folder:
        trial = _Trial(job, elmo, sample, folder)
        fixed_bytes = trial.measure_empty()
        trial.measure(again)
    token_bytes = max(0.0, trial.n_bytes - fixed_bytes * trial.n_files) / max(1, trial.n_tokens)
    return JobEstimate(
        sentences=plan.sentences,
        tokens=plan.tokens,
        shards=plan.shards,
        workers=job.workers,
        threads=trial.n_threads,
        tokens_per_second=trial.rate,
        tokens_read_per_second=plan.tokens / read_seconds,
        measured_tokens=trial.measured_tokens,
        measured_seconds=trial.measured_seconds,
        startup_seconds=trial.startup_seconds,
        memory_bytes=trial.scale_memory(plan) or plan.memory_bytes,
        output_bytes=round(plan.tokens * token_bytes + fixed_bytes * (1 if files.is_assembled else plan.shards)),
        machines=tuple(
            _estimate_machines(n, plan, trial, last_shard=sample.last_shard, read_seconds=read_seconds, price=price)
            for n in machines
        ),
    )


def _check(job: EmbedJob, machines: Sequence[int], price: float | None) -> None:
    if job.out is None:
        raise ConfigError("cannot estimate a job without an output file; set out (--out)")
    if job.runner != "local":
        raise ConfigError(
            f"cannot estimate a job of the runner {job.runner}: only this machine is measured; use the runner local "
            "and set machines (--machines)"
        )
    if not machines or any(n < 1 for n in machines):
        numbers = ", ".join(map(str, machines))[:80] or "none"
        raise ConfigError(f"machines must be numbers of at least 1; found {numbers}")
    if price is not None and not (math.isfinite(price) and price >= 0):
        raise ConfigError(f"price must be a number of at least 0; found {price}")


def _out(job: EmbedJob) -> Path:
    assert job.out is not None  # noqa: S101 -- checked by _check
    return job.out


def _estimate_machines(
    n_machines: int, plan: JobPlan, trial: _Trial, *, last_shard: int, read_seconds: float, price: float | None
) -> MachineEstimate:
    n_workers = n_machines * trial.job.workers
    full_shard = (plan.tokens - last_shard) / max(1, plan.shards - 1)
    n_rounds = math.ceil(plan.shards / n_workers)  # each worker makes one shard per round
    is_alone = n_workers == 1 or plan.shards % n_workers == 1  # the last shard, which is often short
    n_tokens = (n_rounds - 1) * full_shard + (last_shard if is_alone else max(full_shard, last_shard))
    computing = n_tokens * trial.job.workers / trial.rate
    hours = (
        trial.startup_seconds + max(computing, read_seconds) + plan.tokens * trial.assembling_seconds_per_token
    ) / 3600
    core_hours = hours * n_workers * trial.n_threads
    return MachineEstimate(
        machines=n_machines,
        hours=hours,
        core_hours=core_hours,
        cost=None if price is None else core_hours * price,
        is_limited_by_reading=read_seconds > computing,
    )


class _Sample:
    """Passages of consecutive sentences, spread evenly over a text of unknown length."""

    def __init__(self) -> None:
        self._passages: list[list[Sentence]] = []
        self._stride, self._index = 1, -1  # of passages in the text
        self._n_passage_tokens = _PASSAGE_TOKENS  # of the current passage
        self.last_shard = 0  # number of tokens of the last shard of the text

    @property
    def is_whole(self) -> bool:
        """Whether the sample is the whole text."""
        return self._stride == 1

    def sentences(self) -> list[Sentence]:
        """Return the sentences of the sample, in the order of the text."""
        return [sentence for passage in self._passages for sentence in passage]

    def add(self, group: Group) -> None:
        """Add the next sentences of the text; if the sample is too large then, drop every second passage."""
        self.last_shard = group.n_tokens
        for sentence in group.sentences:
            if self._n_passage_tokens >= _PASSAGE_TOKENS:
                self._n_passage_tokens, self._index = 0, self._index + 1
                if self._index % self._stride == 0:
                    if len(self._passages) == _MAX_PASSAGES:
                        self._passages, self._stride = self._passages[::2], 2 * self._stride
                    if self._index % self._stride == 0:
                        self._passages.append([])
            if self._index % self._stride == 0:
                self._passages[-1].append(sentence)
            self._n_passage_tokens += len(sentence.tokens) + 1


class _Trial:
    """Runs a job on a sample, and keeps what it measures."""

    def __init__(self, job: EmbedJob, elmo: Elmo, sample: _Sample, folder: Path) -> None:
        import torch

        self._elmo, self._is_whole, self._folder = elmo, sample.is_whole, folder
        self._layout = Layout.of(elmo.config, layers=job.layers, dtype=job.dtype)
        self.full_shard = job.tokens_per_shard(self._layout)
        sentences = sample.sentences()
        words = [word for sentence in sentences for word in sentence.tokens.tokens]
        n_tokens, self._n_distinct = len(words), len(set(words))
        self._word_length = sum(map(len, words)) / max(1, n_tokens)
        # one batch of the network per shard, and at least one shard per worker
        batch = int(0.85 * BATCH_TOKENS * n_tokens / max(1, n_tokens + 2 * len(sentences)))
        self.shard_tokens = max(1, min(self.full_shard, batch, -(-n_tokens // job.workers)))
        self._groups = list(split_groups(sentences, max_tokens=self.shard_tokens))
        if len(self._groups) > max(2, job.workers):
            del self._groups[-1]  # it is shorter
        out = folder / f"sample{_out(job).suffix}"
        self.job = replace(job, inputs=(), out=out, restart=False)  # without inputs that may match the folder
        self.n_threads = max(1, torch.get_num_threads() // job.workers)
        self._watch = _MemoryWatch()
        self._reports: list[tuple[float, int]] = []  # time and number of tokens after each shard
        self._assembling_since: float | None = None

    def measure_empty(self) -> int:
        """Return the number of bytes of an output without sentences."""
        job = replace(self.job, out=self._folder / "empty" / _out(self.job).name, workers=1, devices=())
        return sum(path.stat().st_size for path in self._run(job, iter(()), lambda _: None))

    def measure(self, again: Iterator[Sentence] | None) -> None:
        """Run the job on the sample; for each of its sentences, read one from ``again``, which takes time too."""
        self._begin = time.perf_counter()
        with self._watch:
            paths = self._run(self.job, self._repeat(again), self._report)
        self.n_bytes, self.n_files = sum(path.stat().st_size for path in paths), len(paths)
        end = time.perf_counter()
        embedded = self._assembling_since or end
        self.n_tokens = self._reports[-1][1] if self._reports else 0
        self.assembling_seconds_per_token = (end - embedded) / max(1, self.n_tokens)
        warm_at, warm_tokens = self._warm() or (self._begin, 0)
        if warm_tokens == self.n_tokens:  # a text of one shard
            warm_at, warm_tokens = self._begin, 0
        self.measured_tokens, self.measured_seconds = self.n_tokens - warm_tokens, embedded - warm_at
        self.rate = max(1, self.measured_tokens) / self.measured_seconds
        self.startup_seconds = max(0.0, warm_at - self._begin - warm_tokens / self.rate)

    def scale_memory(self, plan: JobPlan) -> int:
        """Return the peak memory with shards of full size instead of those of the trial; 0 if it was not measured."""
        if not self._watch.peak:
            return 0
        more = min(self.full_shard, plan.tokens) - self.shard_tokens
        vectors, text = max(0, more) * self._layout.token_bytes, max(0, more) * TOKEN_TEXT_BYTES
        is_copied = _out(self.job).suffix.lower() == ".parquet" and self._layout.n_layers is not None
        n_processes = min(self.job.workers, plan.shards)
        n_cached = max(0, min(CACHED_WORDS, plan.tokens // n_processes) - self._n_distinct)
        memory = self._watch.peak + n_processes * n_cached * (2 * self._elmo.config.width + _CACHED_WORD_BYTES)
        if self.job.workers == 1:  # one shard is computed, one is written, and one is read
            memory += (min(2, plan.shards) + is_copied) * vectors + min(3, plan.shards) * text
        else:  # each worker has one shard, and two groups per worker wait in this process
            memory += n_processes * ((1 + is_copied) * vectors + text) + min(2 * self.job.workers, plan.shards) * text
        if OutputFiles(_out(self.job)).is_assembled:  # the text of all sentences, as a dictionary and as JSON
            index = 3 * round(self._word_length * plan.tokens) + _SENTENCE_BYTES * plan.sentences
            memory = max(memory, self._watch.first + self.full_shard * self._layout.token_bytes + index)
        return memory

    def _run(self, job: EmbedJob, sentences: Iterator[Sentence], report: Callable[[Progress], None]) -> list[Path]:
        files = OutputFiles(_out(job))
        files.make_folders()
        with hold_lock(files.lock, subject=files.out) as lock:
            run = ShardedRun(job, self._elmo, files=files, lock=lock, limit=self.shard_tokens, report=report)
            return list(run.run(sentences, Tally()).files)

    def _repeat(self, again: Iterator[Sentence] | None) -> Iterator[Sentence]:
        """Yield the sample again and again, until there is enough time after warm-up; stop after whole rounds."""
        for n_groups in count():
            n_passes, index = divmod(n_groups, len(self._groups))
            is_round = n_groups % self.job.workers == 0
            if n_passes >= 2 and index == 0 and self._is_whole:
                return
            warm = self._warm()
            if is_round and warm is not None and time.perf_counter() - warm[0] > MEASURE_SECONDS:
                return
            for sentence in self._groups[index].sentences:
                if again is not None and next(again, None) is None:
                    again = None
                yield sentence

    def _report(self, progress: Progress) -> None:
        if progress.stage == "assembling":
            self._assembling_since = time.perf_counter()
        elif not self._reports or progress.tokens > self._reports[-1][1]:
            self._reports.append((time.perf_counter(), progress.tokens))

    def _warm(self) -> tuple[float, int] | None:
        """Return when each worker had made one shard, and the number of tokens of these shards."""
        first = sum(group.n_tokens for group in self._groups[: self.job.workers])
        return next((report for report in self._reports if report[1] >= first), None)


class _MemoryWatch(AbstractContextManager["_MemoryWatch"]):
    """Reads the memory of this process and of the processes that it starts, until the context is left.

    ``first`` and ``peak`` are sums of the proportional set sizes (PSS) of the processes; 0 without /proc.
    """

    def __init__(self) -> None:
        self.first = self.peak = 0
        self._is_done = threading.Event()

    def __enter__(self) -> Self:
        self._others = set(_children(os.getpid()))
        self.first = self.peak = read_pss([os.getpid()])
        self._thread = threading.Thread(target=self._watch, name="elmo-memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self._thread.join()

    def _watch(self) -> None:
        largest = 0
        while not self._is_done.wait(_WATCH_SECONDS):
            processes = [os.getpid(), *(set(_children(os.getpid())) - self._others)]
            resident = sum(map(_read_resident, processes))
            if resident > 1.01 * largest:  # the PSS takes milliseconds to read
                largest, self.peak = resident, max(self.peak, read_pss(processes))


def read_pss(processes: Sequence[int]) -> int:
    """Return the memory of processes in bytes, in which pages that they share count once; 0 without /proc."""
    n_bytes = 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()
        except OSError:
            n_bytes += _read_resident(process)
        else:
            n_bytes += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return n_bytes


def _read_resident(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _children(process: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text(encoding="ascii").split()]
    except OSError:  # there is no /proc, or a thread has ended
        return []
