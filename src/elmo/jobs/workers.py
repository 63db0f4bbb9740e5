"""Make shards from groups of sentences, in this process or in worker processes.

``ShardMaker`` computes and writes a shard. ``Workers`` is the parent's side of worker processes; ``serve``
runs in each of them. Parent and worker exchange pickled objects over pipes: first a ``WorkerOptions``, which
is answered with None when the model is loaded; then one group at a time, each answered with its
``ShardRecord``. An error is answered with a ``WorkerError``.

Workers are plain programs and do not use ``multiprocessing``, which would run the caller's script again in
each of them, or fork a process that has threads. A worker ends when its parent ends, even if it was killed.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast

from elmo.engine.batches import split_batches
from elmo.errors import ConfigError, OutputError
from elmo.jobs.groups import Group
from elmo.jobs.manifest import OutputFiles, ShardRecord
from elmo.jobs.plan import EmbedJob, encode_sentences
from elmo.jobs.shard import Layout, Shard, Vectors
from elmo.jobs.writers import WRITERS
from elmo.storage.atomic import atomic_file, cannot_write
from elmo.storage.files import compute_sha256, format_path

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

_MODEL = "model"  # a subfolder: the native format writes to a temporary name next to it first
_PROGRAM = "from elmo.jobs.workers import serve; serve()"


class ShardMaker:
    """Makes the shards of one job, each from its group alone; the caller holds the lock of the job."""

    def __init__(self, job: EmbedJob, elmo: Elmo) -> None:
        if job.out is None:
            raise ConfigError("shards need an output file; set out")
        self.job, self.elmo, self.files = job, elmo, OutputFiles(job.out)
        self.layout = Layout.of(elmo.config, layers=job.layers, dtype=job.dtype)

    def vectors(self, group: Group, on_batch: Callable[[int, int], None] | None = None) -> Vectors:
        """Compute the vectors of all tokens; ``on_batch`` receives the sentences and tokens done."""
        vectors, n_sentences, n_tokens = self.layout.empty(group.n_tokens), 0, 0
        for batch in split_batches(group.sentences, batch_size=self.job.batch_size):
            for encoding in encode_sentences(batch, self.job, self.elmo):
                vectors[..., n_tokens : n_tokens + len(encoding), :] = encoding.vectors
                n_tokens += len(encoding)
            n_sentences += len(batch)
            if on_batch is not None:
                on_batch(n_sentences, n_tokens)
        return vectors

    def write(self, group: Group, vectors: Vectors) -> ShardRecord:
        """Write the shard atomically and return its record."""
        path = self.files.shard(group.index, is_only=group.is_last and group.index == 0)
        with atomic_file(path) as temporary:
            path.parent.mkdir(exist_ok=True)
            with temporary.open("xb") as file:
                self._write_shard(group, vectors, file)
        return ShardRecord(
            file=path.name,
            sha256=compute_sha256(path),
            first=group.first,
            sentences=len(group.sentences),
            tokens=group.n_tokens,
            input=group.digest,
        )

    def _write_shard(self, group: Group, vectors: Vectors, file: BinaryIO) -> None:
        shard = Shard.of(group.sentences, vectors, first=group.first)
        WRITERS[self.files.shard_suffix.lower()](shard, file)


class Workers:
    """``job.workers`` processes, each started when there is a group for it; use it as a context manager.

    One thread per process waits for its answers. Leaving the context kills all processes; shards are written
    atomically, and the caller removes temporary files. ``lock`` is the lock of the job: workers inherit it,
    so that no other run starts while one of them is alive.
    """

    def __init__(self, job: EmbedJob, elmo: Elmo, *, lock: int) -> None:
        import torch

        self._job, self._lock, self._elmo = job, lock, elmo
        self._out = cast("Path", job.out)  # EmbedJob requires it for workers
        self._model = model_folder(self._out)
        self._devices = job.devices or (str(elmo.device),)
        self._precision = elmo.precision
        self._n_threads = max(1, torch.get_num_threads() // job.workers)
        self._pool = ThreadPoolExecutor(job.workers, thread_name_prefix="elmo-worker")
        self._local = threading.local()  # the worker of each thread
        self._guard = threading.Lock()
        self._workers: list[_Worker] = []
        self._n_ready = 0
        self._is_closed = False

    def submit(self, group: Group) -> Future[ShardRecord]:
        """Let the next free worker make the shard of a group."""
        return self._pool.submit(self._make, group)

    def __enter__(self) -> Self:
        try:
            _write_model(self._elmo, self._model)
        except BaseException:
            self._remove_model()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._is_closed = True
        for worker in self._workers:
            worker.kill()
        self._pool.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()
        self._remove_model()

    def _make(self, group: Group) -> ShardRecord:
        worker: _Worker | None = getattr(self._local, "worker", None)
        if worker is None:
            worker = self._local.worker = self._start()
        return cast("ShardRecord", worker.request(group))

    def _start(self) -> _Worker:
        with self._guard:
            if self._is_closed:
                raise OutputError("the workers are closed")  # nobody waits for this result
            device = self._devices[len(self._workers) % len(self._devices)]
            worker = _Worker(self._out, self._lock)
            self._workers.append(worker)
        worker.request(
            WorkerOptions(
                job=self._job,
                model=self._model / _MODEL,
                device=device,
                precision=self._precision,
                n_threads=self._n_threads,
            )
        )
        with self._guard:
            self._n_ready += 1
            if self._n_ready == self._job.workers and os.name != "nt":
                self._remove_model()  # all workers have mapped it
        return worker

    def _remove_model(self) -> None:
        shutil.rmtree(self._model, ignore_errors=True)


def model_folder(out: Path) -> Path:
    """Return the folder of the workers' model: next to the output, where the next run can remove it."""
    return out.with_name(f".{out.name}.model")


def _write_model(elmo: Elmo, folder: Path) -> None:
    """Write the model with its current weights, for every worker to map into memory."""
    from elmo.formats import native

    weights = {name: weight.detach().cpu().float() for name, weight in elmo.bilm.state_dict().items()}
    vocab = elmo.vocab if elmo.config.words else None
    try:
        folder.mkdir()
        native.write(replace(elmo.pretrained, weights=weights, vocab=vocab, softmax=None), folder / _MODEL)
    except OSError as error:
        raise cannot_write(folder, error) from error


class _Worker:
    """One worker process, used by one thread."""

    def __init__(self, out: Path, lock: int) -> None:
        self._out = out
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109
        options: dict[str, Any] = {} if os.name == "nt" else {"pass_fds": (lock,)}
        self._process = subprocess.Popen(  # noqa: S603 -- our own program
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            **options,
        )

    def request(self, message: WorkerOptions | Group) -> ShardRecord | None:
        """Send a message and return the answer, or raise the error of the worker."""
        process = self._process
        assert process.stdin is not None  # noqa: S101 -- for the type checker
        assert process.stdout is not None  # noqa: S101
        try:
            pickle.dump(message, process.stdin)
            process.stdin.flush()
            answer: ShardRecord | WorkerError | None = pickle.load(process.stdout)  # noqa: S301 -- our child
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
            raise self._exit_error() from error
        if isinstance(answer, WorkerError):
            raise answer.error()
        return answer

    def kill(self) -> None:
        """Kill the process; a thread that waits for its answer gets an error."""
        self._process.kill()

    def close(self) -> None:
        """Wait for the end of the process and close its pipes."""
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):  # unsent data
                    stream.close()

    def _exit_error(self) -> OutputError:
        code = self._process.wait()
        reason = f"exited with code {code}" if code >= 0 else f"was killed (signal {-code})"
        return OutputError(
            f"{format_path(self._out)}: a worker {reason}; complete shards are kept: run the job again to "
            "resume it, with fewer workers if memory is short"
        )


# --- the worker's side ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerOptions:
    """The first message to a worker.

    Attributes:
        job: The job; its ``out`` sets the path of the shards.
        model: A folder in elmo's native format.
        device: The device of this worker.
        precision: Precision of the network.
        n_threads: Threads of this worker.
    """

    job: EmbedJob
    model: Path
    device: str
    precision: str
    n_threads: int


@dataclass(frozen=True)
class WorkerError:
    """An error as a message; exceptions with custom arguments cannot be pickled."""

    kind: type[Exception]
    message: str

    def error(self) -> Exception:
        """Return the error as it was raised."""
        return self.kind.__new__(self.kind, self.message)


def serve() -> None:
    """Run a worker until its parent kills it or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and kills the worker
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a library that prints must not write into the pipe
    messages: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, messages), daemon=True).start()
    options: WorkerOptions = messages.get()
    maker: ShardMaker | None = None

    def load() -> None:
        nonlocal maker
        maker = _load_maker(options)

    def make() -> ShardRecord:
        group: Group = messages.get()
        if maker is None:
            raise RuntimeError("the worker has no model")
        return maker.write(group, maker.vectors(group))

    _answer(answers, load)
    while True:
        _answer(answers, make)


def _receive(requests: BinaryIO, messages: SimpleQueue[Any]) -> None:
    """Queue messages; exit at once when the pipe closes, which also happens when the parent is killed."""
    try:
        while True:
            messages.put(pickle.load(requests))  # noqa: S301 -- from our own parent
    finally:
        os._exit(0)  # the next run removes the temporary file of an unfinished shard


def _answer(answers: BinaryIO, task: Callable[[], ShardRecord | None]) -> None:
    try:
        answer: ShardRecord | WorkerError | None = task()
    except Exception as error:  # the parent raises it
        answer = WorkerError(type(error), str(error))
    pickle.dump(answer, answers)
    answers.flush()


def _load_maker(options: WorkerOptions) -> ShardMaker:
    import torch

    from elmo.embed.elmo import Elmo
    from elmo.formats import native

    torch.set_num_threads(options.n_threads)
    model = native.read(options.model, verify=False)  # mapped: workers share the memory
    elmo = Elmo(model, device=options.device, dtype=options.precision, tokenizer="whitespace")
    return ShardMaker(options.job, elmo)
