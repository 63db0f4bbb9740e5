"""Run a training command and kill it, trace it or simulate a full disk at a chosen system call.

Used by ``benchmarks/kill_train.py``. Runs are forked, so the process must have one thread.
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

_SET_PTRACER = 0x59616D61  # for prctl; systems without Yama do not need it
TAKE_SPACE = ("mkdir", "mkdirat", "openat", "write", "pwrite64", "writev", "pwritev", "ftruncate", "fallocate")
TAKE_SPACE += ("fsync", "fdatasync", "link", "linkat", "rename", "renameat", "renameat2")
CHANGES = (*TAKE_SPACE, "unlink", "unlinkat", "rmdir", "truncate", "chmod", "copy_file_range", "sendfile")


@dataclass(frozen=True)
class Call:
    """A system call of a run that changes the disk."""

    name: str
    number: int  # number among the calls of that name, from 1: ``when`` of strace
    part: str  # part of the run: corpus, log, …
    step: int | None = None  # step of the checkpoint
    has_failed: bool = False  # such as creating a folder that exists
    is_injected: bool = False

    @property
    def takes_space(self) -> bool:
        """Whether it fails on a full disk."""
        return self.name in TAKE_SPACE and not self.has_failed


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    code: int  # negative: the signal that killed it
    stderr: str
    seconds: float
    calls: Sequence[Call] = ()  # traced by strace

    @property
    def was_killed(self) -> bool:
        """Whether it was killed."""
        return self.code == -signal.SIGKILL

    def was_injected_at(self, call: Call) -> bool:
        """Whether strace injected at this call."""
        expected = (call.name, call.number, call.step)
        return any((found.name, found.number, found.step) == expected for found in self.calls if found.is_injected)


def prepare() -> None:
    """Do once what each forked run would do at its start."""
    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(elmo.__path__, "elmo."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    sys.modules["matplotlib"] = None  # pyright: ignore[reportArgumentType] - no curves: they take long
    with contextlib.redirect_stderr(io.StringIO()):
        shell(["train"])  # imports the libraries for parsing options
    weight = torch.zeros(1, requires_grad=True)
    weight.grad = torch.zeros(1)
    torch.optim.Adagrad([weight]).step()
    safetensors.torch.save({"weight": weight})
    codecs.lookup("ascii")


class Arena:
    """A folder in which ``elmo train TEXT --out run/model`` runs again and again."""

    def __init__(self, folder: Path, text: str, options: Sequence[str]) -> None:
        self.place, self._trace, self._stderr = (folder / name for name in ("run", "strace.log", "stderr.txt"))
        self.out = self.place / "model"
        self.checkpoints = Checkpoints(self.place / "model.training" / "checkpoints")
        (folder / "text.txt").write_text(text, encoding="utf-8")
        self.command = ["train", str(folder / "text.txt"), "--out", str(self.out), "--quiet", *options]

    def clear(self, template: Path | None = None) -> None:
        """Empty the folder, or replace it by a copy of another."""
        shutil.rmtree(self.place, ignore_errors=True)
        if template is None:
            self.place.mkdir()
        else:
            shutil.copytree(template, self.place)

    def run(self, *, kill_after: float | None = None, inject: str | None = None, is_traced: bool = False) -> Outcome:
        """Run the command until it ends or is killed. ``inject`` is the option of strace."""
        go, gone = os.pipe()
        child = os.fork()
        if child == 0:
            self._exec_command(go, gone)
        strace, began = None, 0.0
        try:
            os.close(go)
            if is_traced or inject:
                strace = self._attach(child, inject)
            began = time.monotonic()
            os.write(gone, b"!")
            if kill_after is not None:
                time.sleep(kill_after)
                os.kill(child, signal.SIGKILL)  # the id is valid until waitpid
        finally:
            os.close(gone)  # if strace failed, the child ends by itself
            _, status = os.waitpid(child, 0)
        seconds = time.monotonic() - began
        calls: Sequence[Call] = ()
        if strace is not None:
            strace.communicate()
            calls = self._calls(child)
        return Outcome(os.waitstatus_to_exitcode(status), self._stderr.read_text(), seconds, calls)

    def _exec_command(self, go: int, gone: int) -> None:
        status = 99
        try:
            os.close(gone)
            ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_ulong(-1))  # allow strace to attach
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
        line = strace.stderr.readline() if strace.stderr else b""
        if b"attached" not in line:
            raise SystemExit(f"strace cannot attach to a run: {line.decode().strip()}")
        return strace

    def _calls(self, child: int) -> list[Call]:
        """Read the traced calls that change the folder, with their numbers among all calls."""
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
            if int(thread) != child:  # strace counts the calls of each thread separately
                raise SystemExit(f"expected writes in the main thread only, found {line}")
            step = re.search(r"/\.?step-(\d+)", rest)
            calls.append(
                Call(
                    name,
                    numbers[name],
                    _part(rest),
                    step=None if step is None else int(step[1]),
                    has_failed=" = -1 " in rest,
                    is_injected=rest.endswith((" = ?", "(INJECTED)")),
                )
            )
        return calls

    def inject(self, call: Call, effect: str, template: Path | None = None) -> Outcome:
        """Run with an injected fault at one call, from an empty folder or a template."""
        outcome = self._try_inject(call, effect, template)
        for _ in range(2):  # an extra call of a library may shift the numbers
            if not outcome.was_injected_at(call):
                outcome = self._try_inject(call, effect, template)
        return outcome

    def _try_inject(self, call: Call, effect: str, template: Path | None) -> Outcome:
        self.clear(template)
        return self.run(inject=f"{call.name}:{effect}:when={call.number}")

    def reached(self) -> tuple[int | None, list[str]]:
        """Return the step of the newest checkpoint, and the problems of all checkpoints."""
        problems = []
        for step in self.checkpoints.steps():
            try:
                self.checkpoints.load(step)
            except ElmoError as error:
                problems.append(f"checkpoint {step} does not load: {error}")
        latest = self.checkpoints.latest()
        return None if latest is None else latest[0], problems


def _part(arguments: str) -> str:
    names = {"corpus": "corpus", "/checkpoints": "checkpoint", "log.jsonl": "log", "/model.training/": "other"}
    return next((part for name, part in names.items() if name in arguments), "model")


def checkpoint_calls(step: int, calls: Sequence[Call]) -> list[Call]:
    """Return the calls of one checkpoint: writing it and removing an old one."""
    for part, group in itertools.groupby(calls, lambda call: call.part):
        save = list(group)
        if part == "checkpoint" and next((call.step for call in save if call.step is not None), 0) == step:
            return save
    raise SystemExit(f"found no checkpoint of step {step} in the calls of a run")


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def visible(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files that must be equal: not the times, and not the lock of a killed run."""
    files = {name: data for name, data in files.items() if Path(name).name != "times.jsonl"}
    return {name: data for name, data in files.items() if not any(p.startswith(".") for p in Path(name).parts)}


def is_temporary(name: str) -> bool:
    """Whether a file is temporary."""
    return any(part.endswith((".part", ".old", ".tmp")) for part in Path(name).parts)
