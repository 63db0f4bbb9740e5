"""Make shards from groups of sentences, in this process or in worker processes.

``ShardMaker`` computes and writes a shard. ``Workers`` starts worker processes and sends them groups; ``serve``
is the main loop of a worker process. The parent and a worker exchange pickled objects over pipes. The parent
first sends ``WorkerOptions``, and the worker answers None when the model is loaded. The parent then sends one
group at a time, and the worker answers with its ``ShardRecord``, or with a ``WorkerError`` after an error.

Workers do not use ``multiprocessing``, which either runs the caller's script again in each process, or forks a
process that has threads. A worker exits when its parent exits, even if the parent was killed.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast

import numpy as np
from numpy.typing import NDArray

from elmo.engine.batches import BATCH_TOKENS, split_batches
from elmo.engine.threads import WatchedExecutor
from elmo.errors import ConfigError, OutputError
from elmo.jobs.groups import Group
from elmo.jobs.manifest import OutputFiles, ShardRecord
from elmo.jobs.plan import EmbedJob, encode_sentences
from elmo.jobs.shard import Layout, Shard, Vectors
from elmo.jobs.writers import WRITERS
from elmo.storage import remote
from elmo.storage.atomic import atomic_file, cannot_write, make_folder
from elmo.storage.files import compute_sha256, format_path
from elmo.text.reader import Sentence

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

_MODEL = "model"  # a subfolder, because the model is first written to a temporary name next to it
_PROGRAM = "from elmo.jobs.workers import serve; serve()"


class ShardMaker:
    """Makes the shards of a job, each from one group of sentences; the caller must hold the lock of the job.

    After a shard is written, its vectors must not be used any more: the next shard is computed in their memory.
    """

    def __init__(self, job: EmbedJob, elmo: Elmo) -> None:
        if job.out is None:
            raise ConfigError("cannot write shards without an output file; set EmbedJob.out")
        self.job, self.elmo, self.files = job, elmo, OutputFiles(job.out)
        self.layout = Layout.of(elmo.config, layers=job.layers, dtype=job.dtype)
        self._spare: NDArray[np.uint8] | None = None  # memory of a shard that is written

    def empty(self, n_tokens: int) -> Vectors:
        """Return an array for the vectors of ``n_tokens`` tokens, in the memory of a shard that is already written.

        The system clears new memory, and takes back large blocks when they are freed, so new arrays are slower.
        """
        spare, self._spare = self._spare, None
        size = self.layout.token_bytes * max(n_tokens, self.job.tokens_per_shard(self.layout))
        return self.layout.view(np.empty(size, np.uint8) if spare is None or len(spare) < size else spare, n_tokens)

    def vectors(self, group: Group, on_batch: Callable[[int, int], None] | None = None) -> Vectors:
        """Compute the vectors of a group; ``on_batch`` receives the number of sentences and tokens done."""
        vectors, n_sentences, n_tokens = self.empty(group.n_tokens), 0, 0
        for batch in _split_evenly(group, batch_size=self.job.batch_size):
            for encoding in encode_sentences(batch, self.job, self.elmo):
                vectors[..., n_tokens : n_tokens + len(encoding), :] = encoding.vectors
                n_tokens += len(encoding)
            n_sentences += len(batch)
            if on_batch is not None:
                on_batch(n_sentences, n_tokens)
        return vectors

    def write(self, group: Group, vectors: Vectors) -> ShardRecord:
        """Write the shard of a group atomically and return its record."""
        path = self.files.shard(group.index, is_only=group.is_last and group.index == 0)
        if self.files.is_assembled:
            make_folder(path.parent)
        with atomic_file(path) as temporary:
            with temporary.open("xb") as file:
                self._write_shard(group, vectors, file)
            sha256 = compute_sha256(temporary)
        self._spare = cast("NDArray[np.uint8]", vectors.base)
        return ShardRecord(
            file=path.name,
            sha256=sha256,
            first=group.first,
            sentences=len(group.sentences),
            tokens=group.n_tokens,
            input=group.digest,
        )

    def _write_shard(self, group: Group, vectors: Vectors, file: BinaryIO) -> None:
        shard = Shard.of(group.sentences, vectors, first=group.first)
        WRITERS[self.files.shard_suffix.lower()](shard, file)


def _split_evenly(group: Group, *, batch_size: int | None) -> Iterator[list[Sentence]]:
    """Split a group into batches of about the same size, because a small batch at the end is slow."""
    lengths = [len(sentence) + 2 for sentence in group.sentences]  # with boundaries
    n_tokens, longest = sum(lengths), max(lengths, default=0)
    limit = BATCH_TOKENS
    if longest < BATCH_TOKENS:  # batches of at least n_tokens / n_batches and at most BATCH_TOKENS tokens
        n_batches = max(1, -(-n_tokens // (BATCH_TOKENS - longest)))
        limit = -(-n_tokens // n_batches) + longest
    return split_batches(group.sentences, batch_size=batch_size, max_tokens=limit)


class ModelCopy:
    """The model with its current weights in a temporary folder next to the output, from which workers load it."""

    def __init__(self, elmo: Elmo, job: EmbedJob, *, maker: type[ShardMaker]) -> None:
        import torch

        self.out = cast("Path", job.out)  # EmbedJob requires it for workers
        self._elmo, self._folder = elmo, model_folder(self.out)
        is_local, is_remote = job.runner == "local", remote.is_remote(self.out)
        self._shared = self.out.with_name(f".{self.out.name}.model") if is_remote and not is_local else None
        self.options = WorkerOptions(
            # other machines have other folders
            job=job if is_local or is_remote else replace(job, out=self.out.absolute()),
            model=self._shared or (self._folder / _MODEL).absolute(),
            device=str(elmo.device),
            precision=elmo.precision,
            n_threads=max(1, torch.get_num_threads() // job.workers) if is_local else 1,
            maker=maker,
        )

    def write(self) -> None:
        """Write the folder."""
        from elmo.formats import native

        elmo = self._elmo
        model = replace(elmo.as_pretrained(), vocab=elmo.vocab, softmax=elmo.softmax)
        if self.options.job.layers != "sense":  # the only layers that need the softmax
            model = replace(model, vocab=elmo.vocab if elmo.config.words else None, softmax=None)
        try:
            self._folder.mkdir()
            native.write(model, self._folder / _MODEL)
            if self._shared is not None:
                remote.upload_folder(self._folder / _MODEL, self._shared)
        except OSError as error:
            self.remove()
            raise cannot_write(self._folder, error) from error
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove the folder."""
        remove_model(self.out)


class Workers:
    """A pool of ``job.workers`` processes; use it as a context manager.

    A process is started when there is a group for it, and one thread per process waits for its answers.
    Leaving the context kills all processes. This damages no shard, because shards are written atomically; the
    caller removes temporary files. ``lock`` is the lock of the job. Workers inherit it, so that no other run
    can start while one of them is alive.
    """

    def __init__(self, job: EmbedJob, elmo: Elmo, *, lock: int, maker: type[ShardMaker] = ShardMaker) -> None:
        self._job, self._lock = job, lock
        self._model = ModelCopy(elmo, job, maker=maker)
        self._pool = WatchedExecutor(job.workers, thread_name_prefix="elmo-worker")
        self._local = threading.local()  # the worker of each thread
        self._guard = threading.Lock()
        self._workers: list[_Worker] = []
        self._n_ready = 0
        self._is_closed = False

    def submit(self, group: Group) -> Future[ShardRecord]:
        """Send a group to the next free worker; the result is the record of its shard."""
        return self._pool.submit(self._make, group)

    def __enter__(self) -> Self:
        self._model.write()
        return self

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._is_closed = True
        for worker in self._workers:
            worker.kill()
        self._pool.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()
        self._model.remove()

    def _make(self, group: Group) -> ShardRecord:
        worker: _Worker | None = getattr(self._local, "worker", None)
        if worker is None:
            worker = self._local.worker = self._start()
        return cast("ShardRecord", worker.request(group))

    def _start(self) -> _Worker:
        with self._guard:
            if self._is_closed:
                raise OutputError("cannot start a worker: the pool is closed")  # nothing waits for this result
            devices = self._job.devices or (self._model.options.device,)
            device = devices[len(self._workers) % len(devices)]
            worker = _Worker(self._model.out, self._lock)
            self._workers.append(worker)
        worker.request(replace(self._model.options, device=device))
        with self._guard:
            self._n_ready += 1
            if self._n_ready == self._job.workers and os.name != "nt":
                self._model.remove()  # all workers have mapped it
        return worker


def model_folder(out: Path) -> Path:
    """Return the temporary folder of the model that workers load: next to the output, or local if that is remote."""
    return remote.local_name(out, ".model") if remote.is_remote(out) else out.with_name(f".{out.name}.model")


def remove_model(out: Path) -> None:
    """Remove the model that workers load, if there is one."""
    shutil.rmtree(model_folder(out), ignore_errors=True)
    if remote.is_remote(out):
        with suppress(OSError):
            remote.remove_folder(out.with_name(f".{out.name}.model"))


class _Worker:
    """A worker process, as its parent sees it; only one thread uses it."""

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
        """Send a message to the process and return its answer, or raise the error that it reports."""
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
        """Kill the process; a thread that waits for an answer gets an error."""
        self._process.kill()

    def close(self) -> None:
        """Wait until the process has exited, and close its pipes."""
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):  # unsent data
                    stream.close()

    def _exit_error(self) -> OutputError:
        code = self._process.wait()
        reason = f"exited with code {code}" if code >= 0 else f"was killed (signal {-code})"
        return OutputError(
            f"cannot finish {format_path(self._out)}: a worker {reason}; run the job again to resume it, with fewer "
            "workers if memory is short"
        )


# --- in the worker process ------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerOptions:
    """The first message that a worker receives.

    Attributes:
        job: The job; its output determines the paths of the shards.
        model: Folder of the model, in elmo's native format.
        device: Device of this worker.
        precision: Precision of the network.
        n_threads: Number of threads of this worker.
        maker: Class that makes the shards. It must be importable, and its constructor takes a job and a model.
    """

    job: EmbedJob
    model: Path
    device: str
    precision: str
    n_threads: int
    maker: type[ShardMaker] = ShardMaker


@dataclass(frozen=True)
class WorkerError:
    """An exception that a worker raised, as a message, because not every exception can be pickled."""

    kind: type[Exception]
    message: str

    def error(self) -> Exception:
        """Return the exception that the worker raised."""
        return self.kind.__new__(self.kind, self.message)


def serve() -> None:
    """Run the main loop of a worker process, until its parent kills it or exits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and kills the worker
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a library that prints must not write into the pipe
    messages: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, messages), daemon=True).start()
    maker: Any = None  # set by the first message
    while True:
        message: WorkerOptions | Group = messages.get()
        answer: ShardRecord | WorkerError | None = None
        try:
            if isinstance(message, WorkerOptions):
                maker = load_maker(message)
            else:
                answer = maker.write(message, maker.vectors(message))
        except Exception as error:  # the parent raises it
            answer = WorkerError(type(error), str(error))
        pickle.dump(answer, answers)
        answers.flush()


def _receive(requests: BinaryIO, messages: SimpleQueue[Any]) -> None:
    """Queue messages; exit at once when the pipe is closed, which also happens when the parent is killed."""
    try:
        while True:
            messages.put(pickle.load(requests))  # noqa: S301 -- from our own parent
    finally:
        os._exit(0)  # the next run removes the temporary file of an unfinished shard


def load_maker(options: WorkerOptions) -> ShardMaker:
    """Load the model of a worker."""
    import torch

    from elmo.embed.elmo import Elmo
    from elmo.formats import native

    torch.set_num_threads(options.n_threads)
    model = native.read(options.model, verify=False)  # mapped into memory, which all workers share
    elmo = Elmo(model, device=options.device, dtype=options.precision, tokenizer="whitespace")
    return options.maker(options.job, elmo)
