"""Groups of sentences on stdin, records of the shards made of them on stdout: one process of ``--workers``.

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
from typing import Any, BinaryIO

from elmo.embed.groups import Group
from elmo.embed.manifest import ShardRecord
from elmo.embed.request import EmbedJob
from elmo.embed.shard_maker import ShardMaker


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
