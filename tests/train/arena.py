"""A training command in, runs of it out that are killed, traced, or met by a full disk at a chosen call.

For ``benchmarks/kill_train.py``. Runs are forked, so the process must have one thread.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import importlib
import io
import itertools
import os
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch

import elmo
from elmo.cli import main as shell
from elmo.errors import ElmoError
from elmo.train.checkpoint import Checkpoints

_SET_PTRACER = 0x59616D61  # of prctl; systems without Yama refuse it, and need it not
TAKE_SPACE = (
    "mkdir",
    "mkdirat",
    "openat",
    "write",
    "pwrite64",
    "writev",
    "pwritev",
    "ftruncate",
    "fallocate",
)
TAKE_SPACE += ("fsync", "fdatasync", "link", "linkat", "rename", "renameat", "renameat2")
CHANGES = (*TAKE_SPACE, "unlink", "unlinkat", "rmdir", "truncate", "chmod", "copy_file_range", "sendfile")


@dataclass(frozen=True)
class Call:
    """One system call of a run that changes the disk."""

    name: str
    number: int  # among the run's calls of that name, from 1: strace's ``when``
    part: str  # of the run: corpus, log, …
    step: int | None = None  # of the checkpoint that it works on
    is_in_vain: bool = False  # such as making a folder that is there
    is_struck: bool = False

    @property
    def takes_space(self) -> bool:
        """Whether a full disk may refuse it."""
        return self.name in TAKE_SPACE and not self.is_in_vain


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    code: int  # negative: the signal that killed it
    said: str  # on stderr
    seconds: float
    calls: Sequence[Call] = ()  # what strace saw

    @property
    def was_killed(self) -> bool:
        """Whether it did not end by itself."""
        return self.code == -signal.SIGKILL

    def was_struck_at(self, call: Call) -> bool:
        """Whether strace did its work, and at this call."""
        wanted = (call.name, call.number, call.step)
        return any(
            (found.name, found.number, found.step) == wanted for found in self.calls if found.is_struck
        )


def prepare() -> None:
    """Do once, before runs are forked, what each of them would do as it begins."""
    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(elmo.__path__, "elmo."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    sys.modules["matplotlib"] = None  # pyright: ignore[reportArgumentType] - no curves: they take longest
    with contextlib.redirect_stderr(io.StringIO()):
        shell(["train"])  # parsing options needs libraries of its own
    weight = torch.zeros(1, requires_grad=True)
    weight.grad = torch.zeros(1)
    torch.optim.Adagrad([weight]).step()
    safetensors.torch.save({"weight": weight})
    codecs.lookup("ascii")


class Arena:
    """The place where ``elmo train TEXT --out run/model``, with options, is run again and again."""

    def __init__(self, folder: Path, text: str, options: Sequence[str]) -> None:
        self.place, self._trace, self._stderr = (
            folder / name for name in ("run", "strace.log", "stderr.txt")
        )
        self.out = self.place / "model"
        self.checkpoints = Checkpoints(self.place / "model.training" / "checkpoints")
        (folder / "text.txt").write_text(text, encoding="utf-8")
        self.command = ["train", str(folder / "text.txt"), "--out", str(self.out), "--quiet", *options]

    def clear(self, template: Path | None = None) -> None:
        """Make the place empty, or the copy of another."""
        shutil.rmtree(self.place, ignore_errors=True)
        if template is None:
            self.place.mkdir()
        else:
            shutil.copytree(template, self.place)

    def run(
        self, *, kill_after: float | None = None, inject: str | None = None, is_traced: bool = False
    ) -> Outcome:
        """Run the command to its end: its own, or that of a kill. ``inject`` is what strace calls so."""
        go, gone = os.pipe()
        child = os.fork()
        if child == 0:
            self._become_the_command(go, gone)
        strace, began = None, 0.0
        try:
            os.close(go)
            if is_traced or inject:
                strace = self._attach(child, inject)
            began = time.monotonic()
            os.write(gone, b"!")
            if kill_after is not None:
                time.sleep(kill_after)
                os.kill(child, signal.SIGKILL)  # not waited for yet, so the id is still the child's
        finally:
            os.close(gone)  # should strace have failed, the child ends by itself
            _, status = os.waitpid(child, 0)
        seconds = time.monotonic() - began
        calls: Sequence[Call] = ()
        if strace is not None:
            strace.communicate()
            calls = self._calls(child)
        return Outcome(os.waitstatus_to_exitcode(status), self._stderr.read_text(), seconds, calls)

    def _become_the_command(self, go: int, gone: int) -> None:
        status = 99
        try:
            os.close(gone)
            ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_ulong(-1))  # or only its ancestors may trace it
            descriptor = os.open(self._stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(descriptor, 2)
            if os.read(go, 1):
                status = shell(self.command)
        finally:
            os._exit(status)

    def _attach(self, child: int, inject: str | None) -> subprocess.Popen[bytes]:
        arguments = ["-f", "-y", "-s", "0", "-o", str(self._trace), "-e", f"trace={','.join(CHANGES)}"]
        arguments += ["-e", f"inject={inject}"] if inject else []
        strace = subprocess.Popen(["strace", *arguments, "-p", str(child)], stderr=subprocess.PIPE)
        said = strace.stderr.readline() if strace.stderr else b""
        if b"attached" not in said:
            raise SystemExit(f"strace cannot attach to a run: {said.decode().strip()}")
        return strace

    def _calls(self, child: int) -> list[Call]:
        """The calls of the trace that change the disk at our place, with their numbers among all calls."""
        numbers: Counter[str] = Counter()
        calls = []
        for line in self._trace.read_text(errors="replace").splitlines():
            match = re.match(r"(\d+) +(\w+)\((.*)", line)
            if match is None:
                continue
            thread, name, rest = match.groups()
            if int(thread) == child:
                numbers[name] += 1
            if str(self.place) not in rest or (name == "openat" and "O_CREAT" not in rest):
                continue
            if int(thread) != child:  # strace counts each thread's calls by themselves
                raise SystemExit(f"expected all writing in the main thread, found {line}")
            step = re.search(r"/\.?step-(\d+)", rest)
            calls.append(
                Call(
                    name,
                    numbers[name],
                    _part(rest),
                    step=None if step is None else int(step[1]),
                    is_in_vain=" = -1 " in rest,
                    is_struck=rest.endswith((" = ?", "(INJECTED)")),
                )
            )
        return calls

    def strike(self, call: Call, effect: str, template: Path | None = None) -> Outcome:
        """A run, from nothing or from a template, in which one call is struck."""
        outcome = self._try_to_strike(call, effect, template)
        for _ in range(2):  # a library that looks something up once more shifts the numbers
            if not outcome.was_struck_at(call):
                outcome = self._try_to_strike(call, effect, template)
        return outcome

    def _try_to_strike(self, call: Call, effect: str, template: Path | None) -> Outcome:
        self.clear(template)
        return self.run(inject=f"{call.name}:{effect}:when={call.number}")

    def reached(self) -> tuple[int | None, list[str]]:
        """The step of the newest checkpoint, and what is wrong: each one there must be whole."""
        problems = []
        for step in self.checkpoints.steps():
            try:
                self.checkpoints.load(step)
            except ElmoError as error:
                problems.append(f"checkpoint {step} does not load: {error}")
        found = self.checkpoints.latest()
        return None if found is None else found[0], problems


def _part(arguments: str) -> str:
    names = {
        "corpus": "corpus",
        "/checkpoints": "checkpoint",
        "log.jsonl": "log",
        "/model.training/": "other",
    }
    return next((part for name, part in names.items() if name in arguments), "model")


def save_of(step: int, calls: Sequence[Call]) -> list[Call]:
    """The calls of one checkpoint, from the first to the last: writing it, and letting an old one go."""
    for part, group in itertools.groupby(calls, lambda call: call.part):
        save = list(group)
        if part == "checkpoint" and next((call.step for call in save if call.step is not None), 0) == step:
            return save
    raise SystemExit(f"found no checkpoint of step {step} among the calls of a run")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def visible(files: dict[str, bytes]) -> dict[str, bytes]:
    """What must be the same: not how long it took, and not the lock that a killed run leaves behind."""
    files = {name: data for name, data in files.items() if Path(name).name != "times.jsonl"}
    return {
        name: data for name, data in files.items() if not any(p.startswith(".") for p in Path(name).parts)
    }


def is_stray(name: str) -> bool:
    """Whether a file was to be temporary."""
    return any(part.endswith((".part", ".old", ".draft")) for part in Path(name).parts)
