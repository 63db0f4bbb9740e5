"""A job and its model in, processes that make its shards out: the parent's side of ``--workers``.

Workers are plain programs, not ``multiprocessing``: that would run a caller's script once more in each of
them, or fork a process that has threads. A worker ends when its parent does, however that ends.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from elmo.engine.batches import Group
from elmo.errors import OutputError
from elmo.jobs.plan import EmbedJob, ShardRecord
from elmo.jobs.worker import Failure, Order
from elmo.storage.atomic import cannot_write
from elmo.storage.files import format_path

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

_MODEL = "model"  # a folder of its own inside: it is written under another name until it is whole
_PROGRAM = "from elmo.jobs.worker import serve; serve()"


class Workers:
    """``job.workers`` processes, each begun when there is a group for it; use it in a ``with``.

    A thread for each waits for its answers. On leaving, all of them are killed: a shard is whole or it is
    not there, and temporary files are left to the caller. ``lock`` is the job's: a worker holds it too, so
    that no other run begins while one still lives.
    """

    def __init__(self, job: EmbedJob, elmo: Elmo, *, lock: int) -> None:
        import torch

        self._job, self._lock, self._elmo = job, lock, elmo
        self._out = cast("Path", job.out)  # a job with workers has one
        self._model = model_folder(self._out)
        self._devices = job.devices or (str(elmo.device),)
        self._precision = elmo.precision
        self._n_threads = max(1, torch.get_num_threads() // job.workers)
        self._pool = ThreadPoolExecutor(job.workers, thread_name_prefix="elmo-worker")
        self._own = threading.local()  # a thread's own worker
        self._guard = threading.Lock()
        self._workers: list[_Worker] = []
        self._n_ready = 0
        self._is_left = False

    def submit(self, group: Group) -> Future[ShardRecord]:
        """Have the group's shard made by the next worker that is free."""
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
            self._is_left = True
        for worker in self._workers:
            worker.kill()
        self._pool.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.bury()
        self._remove_model()

    def _make(self, group: Group) -> ShardRecord:
        worker: _Worker | None = getattr(self._own, "worker", None)
        if worker is None:
            worker = self._own.worker = self._begin()
        return cast("ShardRecord", worker.ask(group))

    def _begin(self) -> _Worker:
        with self._guard:
            if self._is_left:
                raise OutputError("no more workers are wanted")  # which nobody waits for
            device = self._devices[len(self._workers) % len(self._devices)]
            worker = _Worker(self._out, self._lock)
            self._workers.append(worker)
        worker.ask(
            Order(
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
                self._remove_model()  # they have it mapped
        return worker

    def _remove_model(self) -> None:
        shutil.rmtree(self._model, ignore_errors=True)


class _Worker:
    """One process, spoken to by one thread."""

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

    def ask(self, request: Order | Group) -> ShardRecord | None:
        """The answer, or the error that it is."""
        process = self._process
        assert process.stdin is not None  # noqa: S101 -- for the type checker
        assert process.stdout is not None  # noqa: S101
        try:
            pickle.dump(request, process.stdin)
            process.stdin.flush()
            answer: ShardRecord | Failure | None = pickle.load(process.stdout)  # noqa: S301 -- our own child
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
            raise self._died() from error
        if isinstance(answer, Failure):
            raise answer.error()
        return answer

    def kill(self) -> None:
        """End it at once; whoever waits for its answer gets an error."""
        self._process.kill()

    def bury(self) -> None:
        """Wait until it has ended, and close what led to it."""
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):  # what was still on its way to it
                    stream.close()

    def _died(self) -> OutputError:
        code = self._process.wait()
        how = f"ended with code {code}" if code >= 0 else f"was killed (signal {-code})"
        return OutputError(
            f"{format_path(self._out)}: a worker {how}; whole shards are kept: run it again to go on, with fewer "
            "workers if memory is short"
        )


def model_folder(out: Path) -> Path:
    """Where workers find their model: beside the output, where the next run removes what is left of it."""
    return out.with_name(f".{out.name}.model")


def _write_model(elmo: Elmo, folder: Path) -> None:
    """The model as its weights are now, for every worker to map into its memory."""
    from elmo.formats import native

    weights = {name: weight.detach().cpu().float() for name, weight in elmo.bilm.state_dict().items()}
    vocab = elmo.vocab if elmo.config.words else None
    try:
        folder.mkdir()
        native.write(replace(elmo.pretrained, weights=weights, vocab=vocab, softmax=None), folder / _MODEL)
    except OSError as error:
        raise cannot_write(folder, error) from error
