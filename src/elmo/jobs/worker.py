"""A group of sentences in, its vectors out; its vectors in, a whole shard on disk and its record out.

Groups of sentences on stdin, records of the shards made of them on stdout: one process of ``--workers``.

Its parent speaks first: an ``Order``, which is answered with None when the model is ready; then a group at a
time, each answered with its ``ShardRecord``. What goes wrong is answered with a ``Failure``. All of it is
pickled: the two are one program.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from elmo.engine.batches import Group, split_batches
from elmo.errors import ConfigError
from elmo.jobs.plan import EmbedJob, OutputFiles, ShardRecord, encode
from elmo.jobs.shard import Layout, Shard
from elmo.jobs.writers import WRITERS
from elmo.storage.atomic import atomic_file
from elmo.storage.checksums import sha256

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo


Vectors = np.ndarray[Any, Any]


class ShardMaker:
    """Makes the shards of one job, each from its group alone; whoever holds the job's lock may use it."""

    def __init__(self, job: EmbedJob, elmo: Elmo) -> None:
        if job.out is None:
            raise ConfigError("shards need a file to go to: give out")
        self.job, self.elmo, self.files = job, elmo, OutputFiles(job.out)
        self.layout = Layout.of(elmo.config, layers=job.layers, dtype=job.dtype)

    def vectors(self, group: Group, on_piece: Callable[[int, int], None] | None = None) -> Vectors:
        """The vectors of all its tokens; ``on_piece`` hears how many sentences and tokens are done."""
        vectors, n_sentences, at = self.layout.empty(group.n_tokens), 0, 0
        for piece in split_batches(group.sentences, batch_size=self.job.batch_size):
            for encoding in encode(piece, self.job, self.elmo):
                vectors[..., at : at + len(encoding), :] = encoding.vectors
                at += len(encoding)
            n_sentences += len(piece)
            if on_piece is not None:
                on_piece(n_sentences, at)
        return vectors

    def write(self, group: Group, vectors: Vectors) -> ShardRecord:
        """Write the shard; when its record is there, so is the whole file."""
        files = self.files
        shard = Shard.of(group.sentences, vectors, first=group.first)
        path = files.shard(group.index, is_only=group.is_last and group.index == 0)
        with atomic_file(path) as temporary:
            path.parent.mkdir(exist_ok=True)
            with temporary.open("xb") as file:
                WRITERS[files.shard_suffix.lower()](shard, file)
        return ShardRecord(
            file=path.name,
            sha256=sha256(path),
            first=group.first,
            sentences=len(group.sentences),
            tokens=group.n_tokens,
            input=group.digest,
        )


@dataclass(frozen=True)
class Order:
    """What a worker is to be."""

    job: EmbedJob  # its out says where shards go
    model: Path  # a folder in elmo's own format
    device: str
    precision: str  # of the network
    n_threads: int


@dataclass(frozen=True)
class Failure:
    """An error on its way to the parent; errors with arguments of their own cannot be pickled."""

    kind: type[Exception]
    message: str

    def error(self) -> Exception:
        """The error as it was raised."""
        return self.kind.__new__(self.kind, self.message)


def serve() -> None:
    """What a worker does until its parent wants no more of it, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears of it, and ends us
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    asked: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, asked), daemon=True).start()
    order: Order = asked.get()
    maker: ShardMaker | None = None

    def begin() -> None:
        nonlocal maker
        maker = _maker(order)

    def make() -> ShardRecord:
        group: Group = asked.get()
        if maker is None:
            raise RuntimeError("a worker without a model was given work")
        return maker.write(group, maker.vectors(group))

    _answer(answers, begin)
    while True:
        _answer(answers, make)


def _listen(requests: BinaryIO, asked: SimpleQueue[Any]) -> None:
    """Take what is asked; when the other end is closed, as it is when the parent was killed, end at once."""
    try:
        while True:
            asked.put(pickle.load(requests))  # noqa: S301 -- from our own parent
    finally:
        os._exit(0)  # in the midst of a shard, if need be: the next run removes its temporary file


def _answer(answers: BinaryIO, work: Callable[[], ShardRecord | None]) -> None:
    try:
        answer: ShardRecord | Failure | None = work()
    except Exception as error:  # whatever it is, the parent raises it
        answer = Failure(type(error), str(error))
    pickle.dump(answer, answers)
    answers.flush()


def _maker(order: Order) -> ShardMaker:
    import torch

    from elmo.embed.elmo import Elmo
    from elmo.formats import native

    torch.set_num_threads(order.n_threads)
    model = native.read(order.model, verify=False)  # mapped: workers share the memory
    elmo = Elmo(model, device=order.device, dtype=order.precision, tokenizer="whitespace")
    return ShardMaker(order.job, elmo)
