"""Make the shards of a job on Ray or Spark.

The engine only schedules: it runs ``make_shard`` for one group at a time. Each worker loads the model once, computes
the vectors of the group, writes the shard to its final place by a temporary file and a rename, and returns its record.
No vector passes through the engine, and only the driver writes the manifest. A shard depends on nothing but its group
and the options of the job, so a group that is computed twice, because a worker was lost, gives the same bytes.

The driver reads the text and sends each group to a worker. The output must be on storage that all machines share, or in
an object store.
"""

from __future__ import annotations

import logging
import os
import pickle
import platform
import re
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from elmo.errors import ConfigError, OutputError, importing_extra
from elmo.jobs.groups import Group
from elmo.jobs.manifest import ShardRecord
from elmo.jobs.plan import EmbedJob
from elmo.jobs.workers import ModelCopy, ShardMaker, WorkerError, WorkerOptions, load_maker
from elmo.storage import remote
from elmo.storage.atomic import temporary_folder
from elmo.storage.files import format_error, format_path

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

_log = logging.getLogger(__name__)

ATTEMPTS = 4  # per group; after that, a worker that is lost again and again ends the job
CONNECT_SECONDS = 10.0
RETRY_SECONDS = 1.0  # before the second attempt; doubled for each further one


class WorkerLostError(Exception):
    """A worker was killed, or its machine is gone; the group can be computed by another one."""


@dataclass(frozen=True)
class Versions:
    """Versions that must be equal on all machines, because they determine the bytes of the output."""

    pyelmo: str
    torch: str

    @classmethod
    def here(cls) -> Self:
        """Return the versions of this process."""
        import torch

        import elmo

        return cls(elmo.__version__, torch.__version__)

    def check(self) -> None:
        """Raise ``ConfigError`` if the versions of this process differ."""
        here = Versions.here()
        for name in ("pyelmo", "torch"):
            expected, found = getattr(self, name), getattr(here, name)
            if expected != found:
                raise ConfigError(
                    f"the worker on {platform.node()} must have {name} {expected}, as the driver has; found {found}"
                )


@dataclass(frozen=True)
class ShardTask:
    """What a worker needs to make one shard."""

    versions: Versions
    options: WorkerOptions
    group: Group | None  # None: only load the model


_makers: dict[bytes, ShardMaker] = {}  # of this process, by their pickled options


def make_shard(pickled: bytes) -> bytes:
    """Make the shard of a pickled ``ShardTask``; return its pickled record, or the pickled error. Runs in a worker."""
    task: ShardTask = pickle.loads(pickled)  # noqa: S301 -- from our own driver
    answer: ShardRecord | WorkerError | None = None
    try:
        maker = _find_maker(task)
        if task.group is not None:
            answer = maker.write(task.group, maker.vectors(task.group))
    except Exception as error:  # the driver raises it
        answer = WorkerError(type(error), str(error))
    return pickle.dumps(answer)


def _find_maker(task: ShardTask) -> ShardMaker:
    """Return the loaded model of a job; a process keeps that of its last job."""
    key = pickle.dumps(task.options)
    if key not in _makers:
        task.versions.check()
        if remote.is_remote(task.options.model):
            _makers.clear()
            _makers[key] = _load_remote(task.options)
            return _makers[key]
        if not task.options.model.is_dir():
            raise ConfigError(
                f"the worker on {platform.node()} cannot read {format_path(task.options.model)}; the output must be on "
                "storage that all machines share"
            )
        _makers.clear()
        _makers[key] = load_maker(task.options)
    return _makers[key]


def _load_remote(options: WorkerOptions) -> ShardMaker:
    """Load a model from an object store."""
    with temporary_folder("elmo-model-", subject="load the model") as folder:
        try:
            remote.download_folder(options.model, folder)
        except OSError as error:
            problem = f"the worker on {platform.node()} cannot read {format_path(options.model)}: {format_error(error)}"
            raise ConfigError(f"{problem}; workers need the credentials of the store") from error
        return load_maker(replace(options, model=folder))


class EnginePool(ABC):
    """Makes shards with ``job.workers`` workers of an engine; use it as a context manager.

    One thread per worker sends it a group and waits for the record. A thread takes no group before its worker has
    loaded the model, so that the job also makes progress while some workers wait for a machine.
    """

    name: str

    def __init__(self, job: EmbedJob, elmo: Elmo, *, maker: type[ShardMaker] = ShardMaker) -> None:
        self._job = job
        self._model = ModelCopy(elmo, job, maker=maker)
        self._queue: SimpleQueue[tuple[Group, Future[ShardRecord]] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), name=f"elmo-{self.name}-{number}", daemon=True)
            for number in range(job.workers)
        ]
        self._guard = threading.Lock()
        self._n_starting = job.workers
        self._n_ready = 0
        self._error: Exception | None = None  # of the last worker that could not start
        self._is_closed = False

    def submit(self, group: Group) -> Future[ShardRecord]:
        """Send a group to the next free worker; the result is the record of its shard."""
        future: Future[ShardRecord] = Future()
        with self._guard:
            if self._error is not None and not self._n_ready and not self._n_starting:
                future.set_exception(self._error)
                return future
            self._queue.put((group, future))
        return future

    def __enter__(self) -> Self:
        self.connect()
        try:
            self._model.write()
        except BaseException:
            self.disconnect()
            raise
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        for _thread in self._threads:
            self._queue.put(None)
        self.disconnect()
        for thread in self._threads:
            thread.join(10.0)
        self._model.remove()

    def _serve(self, number: int) -> None:
        """Start a worker and send it groups, until the pool is closed."""
        try:
            worker = self.start(number)
            self._request(worker, None)
        except Exception as error:  # raised by all groups if no worker can start
            self._fail(error)
            return
        with self._guard:
            self._n_starting, self._n_ready = self._n_starting - 1, self._n_ready + 1
        while (item := self._queue.get()) is not None:
            group, future = item
            if self._is_closed:
                future.cancel()
                continue
            try:
                record = self._request(worker, group)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(record)

    def _fail(self, error: Exception) -> None:
        with self._guard:
            self._error, self._n_starting = error, self._n_starting - 1
            if self._n_ready or self._n_starting:
                if not self._is_closed:
                    _log.warning("a worker could not start: %s", error)
                return
        while not self._queue.empty():
            item = self._queue.get()
            if item is not None:
                item[1].set_exception(error)

    def _request(self, worker: Any, group: Group | None) -> Any:
        """Let a worker make a shard; try again if the worker is lost."""
        task = pickle.dumps(ShardTask(Versions.here(), self._model.options, group))
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(RETRY_SECONDS * 2 ** (attempt - 1))
            try:
                answer = pickle.loads(self.call(worker, task))  # noqa: S301 -- from our own worker
            except WorkerLostError as error:
                if self._is_closed:
                    raise OutputError("the job was stopped") from error
                _log.warning("a worker was lost; its shard is computed again (%s)", " ".join(str(error).split())[:200])
                continue
            if isinstance(answer, WorkerError):
                raise answer.error()
            return answer
        raise OutputError(
            f"cannot finish {format_path(self._model.out)}: a worker was lost {ATTEMPTS} times with the same shard; "
            "run the job again to resume it, with fewer workers if memory is short"
        )

    @abstractmethod
    def connect(self) -> None:
        """Connect to the engine; raise ``ConfigError`` if it is not there."""

    @abstractmethod
    def disconnect(self) -> None:
        """Stop the work in progress and disconnect."""

    @abstractmethod
    def start(self, number: int) -> Any:
        """Start a worker."""

    @abstractmethod
    def call(self, worker: Any, task: bytes) -> bytes:
        """Run ``make_shard`` in a worker; raise ``WorkerLostError`` if the worker is lost."""


class _Actor:
    """A process of Ray that makes shards."""

    def make(self, task: bytes) -> bytes:
        """Make a shard."""
        return make_shard(task)


class RayPool(EnginePool):
    """Workers of Ray: one actor each, which Ray starts again if it is lost."""

    name = "ray"

    def connect(self) -> None:
        """Use the cluster of this process, that of ``job.cluster``, or start one on this machine."""
        with importing_extra("--runner ray", extra="ray"):
            import ray  # pyright: ignore[reportMissingImports]
        self._ray: Any = ray
        self._is_own = not ray.is_initialized()
        if self._is_own:
            address = self._job.cluster
            _check_reachable("Ray", address)
            options: dict[str, Any] = {"address": address} if address else {"num_cpus": self._job.workers}
            try:
                ray.init(**options, include_dashboard=None if address else False, log_to_driver=False,
                         logging_level=logging.ERROR)  # fmt: skip
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                raise _no_cluster("Ray", address, error) from error
        self._actors: list[Any] = []

    def disconnect(self) -> None:
        """End the actors, and the cluster if it is our own."""
        for actor in self._actors:
            with suppress(Exception):
                self._ray.kill(actor, no_restart=True)
        if self._is_own:
            self._ray.shutdown()

    def start(self, number: int) -> Any:
        """Start an actor."""
        del number
        actor = self._ray.remote(num_cpus=1, max_restarts=-1)(_Actor).remote()
        self._actors.append(actor)
        return actor

    def call(self, worker: Any, task: bytes) -> bytes:
        """Call an actor."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(worker.make.remote(task))
        except (errors.RayActorError, errors.WorkerCrashedError, errors.OutOfMemoryError, errors.ObjectLostError,
                errors.NodeDiedError) as error:  # fmt: skip
            raise WorkerLostError(str(error)) from error
        except errors.RayTaskError as error:
            raise _cannot_run("Ray", error) from error


class SparkPool(EnginePool):
    """Workers of Spark: one job of one task per shard, several at a time."""

    name = "spark"

    def connect(self) -> None:
        """Use the session of this process, or start one with the master ``job.cluster``, by default on this machine."""
        with importing_extra("--runner spark", extra="spark"):
            from pyspark.sql import SparkSession  # pyright: ignore[reportMissingImports]
        self._is_own = SparkSession.getActiveSession() is None
        _check_reachable("Spark", self._job.cluster)
        master = self._job.cluster or f"local[{self._job.workers}]"
        builder = SparkSession.builder.appName("elmo").master(master)
        settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
        if self._job.cluster is None:
            settings["spark.driver.host"] = "127.0.0.1"
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise the first python3 of the PATH
        for key, value in settings.items():
            builder = builder.config(key, value)
        try:
            self._session = SparkSession.getActiveSession() or builder.getOrCreate()
        except Exception as error:  # py4j has no common class for a missing Java, a wrong address, …
            raise _no_cluster("Spark", self._job.cluster, error) from error
        self._context = self._session.sparkContext
        if self._is_own:
            self._context.setLogLevel("OFF")
        self._group = f"elmo-{id(self)}"

    def disconnect(self) -> None:
        """End the jobs, and the session if it is our own."""
        with suppress(Exception):
            self._context.cancelJobGroup(self._group)
        if self._is_own:
            self._session.stop()

    def start(self, number: int) -> Any:
        """Name the jobs of this thread."""
        self._context.setJobGroup(self._group, f"elmo worker {number}", interruptOnCancel=True)
        return self._context

    def call(self, worker: Any, task: bytes) -> bytes:
        """Run a job of one task."""
        try:
            (answer,) = worker.parallelize([task], 1).map(make_shard).collect()
        except Exception as error:  # py4j raises the exceptions of Java
            text = str(error)
            if "ModuleNotFoundError" in text or "ImportError" in text:
                raise _cannot_run("Spark", error) from error
            raise WorkerLostError(_last_line(text)) from error
        return bytes(answer)


POOLS: dict[str, type[EnginePool]] = {"ray": RayPool, "spark": SparkPool}


def _check_reachable(engine: str, address: str | None) -> None:
    """Raise ``ConfigError`` at once if nothing listens at host:port; the engines try for minutes."""
    match = re.fullmatch(r"(?:\w+://)?([\w.-]+|\[[\da-fA-F:]+\]):(\d+)", address or "")
    if match is None:  # such as "auto", "local[2]" or "yarn"
        return
    try:
        socket.create_connection((match[1].strip("[]"), int(match[2])), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(engine, address, error) from error


def _no_cluster(engine: str, address: str | None, error: Exception) -> ConfigError:
    place = f" at {address}" if address else ""
    reason = _last_line(str(error)) or type(error).__name__
    if "InvalidAuthToken" in f"{error} {error.__cause__}":
        reason = "the cluster needs its token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN if it is not in ~/.ray"
    return ConfigError(f"cannot connect to {engine}{place}: {reason}")


def _cannot_run(engine: str, error: Exception) -> ConfigError:
    hint = "install the same version of pyelmo there"
    if engine == "Spark":
        hint += ", or set PYSPARK_PYTHON to the interpreter that has it"
    return ConfigError(f"a worker of {engine} cannot run elmo: {_last_line(str(error))}; {hint}")


def _last_line(text: str) -> str:
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
