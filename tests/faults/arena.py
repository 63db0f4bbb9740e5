"""Run a command in a folder and disturb it: kill it, fail one of its system calls, take away memory, space or rights.

Everything is imported once, and each run is a fork, so that the time is spent in the runs. The process must have one
thread. Single system calls are disturbed with the fault injection of strace.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_SET_PTRACER = 0x59616D61  # for prctl; systems without Yama do not need it
_DROP_CAPABILITY, _CAPABILITY_VERSION = 24, 0x20080522  # PR_CAPBSET_DROP; of capset
TAKE_SPACE = ("mkdir", "mkdirat", "openat", "write", "pwrite64", "writev", "pwritev", "ftruncate", "fallocate")
TAKE_SPACE += ("fsync", "fdatasync", "link", "linkat", "rename", "renameat", "renameat2")
CHANGES = (*TAKE_SPACE, "unlink", "unlinkat", "rmdir", "truncate", "chmod", "fchmod", "copy_file_range", "sendfile")
NOBODY = 65534
TIMEOUT = 300.0  # seconds after which a run counts as hung


@dataclass(frozen=True)
class Call:
    """A system call of a run that changes the output folder."""

    name: str
    number: int  # among the calls of that name in its thread, from 1: ``when`` of strace
    path: str  # below the output folder, without numbers: calls for similar files are alike
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
    was_hit: bool = False  # strace injected a fault at any call
    is_hung: bool = False

    @property
    def was_killed(self) -> bool:
        """Whether it was killed by SIGKILL."""
        return self.code == -signal.SIGKILL and not self.is_hung


@dataclass(frozen=True)
class Conditions:
    """What is different for a run."""

    memory: int | None = None  # bytes that may be allocated beyond those of the start
    file_size: int | None = None  # bytes of the largest file that may be written
    has_rights: bool = True  # False: root, too, may only write to its own folders
    clock: float = 0.0  # seconds by which the clock is wrong
    has_tmp: bool = True  # False: there is no folder for temporary files
    environment: dict[str, str] = field(default_factory=dict)


USUAL = Conditions()


class Arena:
    """A folder with the inputs of a command, in which it runs again and again; it writes below ``out``."""

    def __init__(self, folder: Path, action: Callable[[], int]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        self.folder, self.out = folder, folder / "out"
        self._action = action
        self._trace = folder.with_name(f"{folder.name}.strace")

    def clear(self, template: Path | None = None) -> None:
        """Empty the output folder, or replace it by a copy of another."""
        shutil.rmtree(self.out, ignore_errors=True)
        if template is not None:
            shutil.copytree(template, self.out, symlinks=True)
        else:
            self.out.mkdir()

    def run(
        self,
        conditions: Conditions = USUAL,
        *,
        kill_after: float | None = None,
        kill_by: signal.Signals = signal.SIGKILL,
        inject: str | None = None,
        is_traced: bool = False,
    ) -> Outcome:
        """Run the command until it ends or is killed. ``inject`` is the option of strace."""
        return self.finish(self.start(conditions), kill_after, kill_by, inject=inject, is_traced=is_traced)

    def start(self, conditions: Conditions = USUAL) -> _Started:
        """Fork a run, which waits until ``finish`` lets it go."""
        go, gone = os.pipe()
        stderr, stderr_end = os.pipe()  # holds 64 kB; a limit of the file size does not apply
        child = os.fork()
        if child == 0:
            os.close(gone)
            self._run_child(go, stderr_end, conditions)
        os.close(go)
        os.close(stderr_end)
        return _Started(child, gone, stderr)

    def finish(
        self,
        started: _Started,
        kill_after: float | None = None,
        kill_by: signal.Signals = signal.SIGKILL,
        *,
        inject: str | None = None,
        is_traced: bool = False,
    ) -> Outcome:
        """Let a run go, and wait for its end."""
        strace, began, is_hung = None, time.monotonic(), False
        try:
            if is_traced or inject:
                strace = _attach(started.pid, inject, self._trace)
            began = time.monotonic()
            started.let_go()
            if kill_after is not None:
                time.sleep(kill_after)
                os.kill(started.pid, kill_by)  # the id is valid until waitpid
        finally:
            os.close(started.gone)  # if strace failed, the child ends by itself
            status, is_hung = _wait(started.pid)
        seconds = time.monotonic() - began
        _wait_for_group(started.pid)
        calls: Sequence[Call] = ()
        was_hit = False
        if strace is not None:
            strace.communicate()
            calls, was_hit = _read_trace(self._trace, self.out)
        code = os.waitstatus_to_exitcode(status)
        with os.fdopen(started.stderr, errors="replace") as stderr:
            return Outcome(code, stderr.read(), seconds, calls, was_hit, is_hung)

    def _run_child(self, go: int, stderr: int, conditions: Conditions) -> None:
        status = 99
        try:
            _forget_exit_functions()
            os.setsid()  # its children are in its group
            ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_ulong(-1))  # allow strace to attach
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(stderr, 2)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
            os.chdir(self.folder)
            is_free = bool(os.read(go, 1))
            _apply(conditions)
            if is_free:
                status = self._action()
                atexit._run_exitfuncs()
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)

    def protect(self) -> None:
        """Make the output folder read-only for runs without special rights."""
        for path in (self.out, *self.out.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
            if os.geteuid() == 0:
                os.chown(path, NOBODY, NOBODY)

    def inject(self, call: Call, effect: str, template: Path | None = None) -> Outcome:
        """Run with an injected fault at one call, from an empty output folder or from a template."""
        self.clear(template)
        return self.run(inject=f"{call.name}:{effect}:when={call.number}")


@dataclass(frozen=True)
class _Started:
    pid: int
    gone: int
    stderr: int

    def let_go(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it was let go before, and has ended
            os.write(self.gone, b"!")


def _forget_exit_functions() -> None:
    """Forget what the parent does at its exit, such as removing its folders; the run adds its own functions."""
    atexit._clear()
    weakref.finalize._registry.clear()  # pyright: ignore[reportAttributeAccessIssue]
    weakref.finalize._registered_with_atexit = False  # pyright: ignore[reportAttributeAccessIssue]


def _apply(conditions: Conditions) -> None:
    import resource  # POSIX only

    os.environ.update(conditions.environment)
    if conditions.clock:
        for name, scale in (("time", 1), ("time_ns", 10**9)):
            real, shift = getattr(time, name), type(getattr(time, name)())(conditions.clock * scale)
            setattr(time, name, lambda real=real, shift=shift: real() + shift)
    if not conditions.has_tmp:
        tempfile.tempdir = "/nonexistent/tmp"
        os.environ.update(TMPDIR=tempfile.tempdir)
    if not conditions.has_rights and os.geteuid() == 0:
        _drop_capabilities()
    if conditions.file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (conditions.file_size, conditions.file_size))
    if conditions.memory is not None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = used + conditions.memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _drop_capabilities() -> None:
    """Give up the rights of root to ignore permissions, also for child processes."""
    libc = ctypes.CDLL(None)
    for capability in range(41):
        libc.prctl(_DROP_CAPABILITY, capability, 0, 0, 0)
    header, data = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(header, data) != 0:
        raise SystemExit("cannot give up capabilities")


def _attach(child: int, inject: str | None, trace: Path) -> subprocess.Popen[bytes]:
    arguments = ["-f", "-y", "-s", "0", "-o", str(trace), "-e", f"trace={','.join(CHANGES)}"]
    arguments += ["-e", f"inject={inject}"] if inject else []
    strace = subprocess.Popen(["strace", *arguments, "-p", str(child)], stderr=subprocess.PIPE)
    line = strace.stderr.readline() if strace.stderr else b""
    if b"attached" not in line:
        raise SystemExit(f"strace cannot attach to a run: {line.decode().strip()}")
    return strace


def _wait(child: int) -> tuple[int, bool]:
    """Wait for a process; return its status, and whether it had to be killed because it hung."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status, False
        time.sleep(0.002)
    os.killpg(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1], True


def _wait_for_group(group: int) -> None:
    """Wait until the children of a run, which notice its end, are gone; at most a minute."""
    for _ in range(1200):
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.05)
    os.killpg(group, signal.SIGKILL)
    raise SystemExit("a child process survived its run")


_LINE = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>|(\w+)\()(.*)")


def _read_trace(trace: Path, out: Path) -> tuple[list[Call], bool]:
    """Read the traced calls that change the output folder, with their numbers among all calls of a thread."""
    numbers: Counter[tuple[str, str]] = Counter()
    pending: dict[str, int] = {}  # index of the unfinished call of each thread
    calls: list[Call] = []
    was_hit = False
    below = re.compile(re.escape(str(out)) + r"/?([^\">]*)")
    for line in trace.read_text(errors="replace").splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        thread, resumed, name, rest = match.groups()
        is_injected = rest.endswith((" = ?", "(INJECTED)", "(DELAYED)"))
        was_hit |= is_injected
        if resumed:
            index = pending.pop(thread, None)
            if index is not None:
                call = calls[index]
                calls[index] = Call(call.name, call.number, call.path, " = -1 " in rest, is_injected)
            continue
        numbers[thread, name] += 1
        paths = below.findall(rest)
        if not paths or (name == "openat" and "O_CREAT" not in rest):
            continue
        if rest.endswith("<unfinished ...>"):
            pending[thread] = len(calls)
        path = re.sub(r"[0-9a-f]{8}(?=\.part)|\d{3,}", "#", paths[-1])
        calls.append(Call(name, numbers[thread, name], path, " = -1 " in rest, is_injected))
    return calls, was_hit


def can_trace() -> bool:
    """Return whether strace is installed and may trace."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "true"], capture_output=True, check=False).returncode == 0


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder by name; links are not followed."""
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def visible(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files that must be equal: not the times, and not hidden files such as locks."""
    files = {name: data for name, data in files.items() if Path(name).name != "times.jsonl"}
    return {name: data for name, data in files.items() if not any(p.startswith(".") for p in Path(name).parts)}


def is_temporary(name: str) -> bool:
    """Return whether a file is temporary."""
    return any(part.endswith((".part", ".old", ".tmp")) or part.startswith(".tmp") for part in Path(name).parts)


def settle() -> None:
    """Use one thread for everything; call this before numpy is imported."""
    for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR"):
        os.environ[f"{name}_NUM_THREADS"] = "1"
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
