"""Check what a reader does with one input: a typed error or a sound load, in bounded time and memory, nothing else.

The audit hook of Python reports every file, process and socket that is opened. Files of the input, temporary folders of
elmo and their clean-up, and Python's own files are allowed.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from elmo.errors import ElmoError

SECONDS = 2.0  # of the processor
MEGABYTES = 300.0  # beyond the imports
_CODE = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pty.spawn", "socket.connect",
         "ctypes.dlopen", "pickle.find_class")  # fmt: skip
_FOLDERS = ("os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link",
            "os.chmod", "os.chown", "os.truncate", "shutil.rmtree")  # fmt: skip


class HungError(BaseException):
    """An input takes far too long."""


class Watch:
    """Runs a reader on inputs, and collects the problems."""

    def __init__(self, folder: Path) -> None:
        self.problems: list[str] = []
        self.n_refused = self.n_loaded = 0
        self._allowed = [os.path.realpath(folder), os.path.realpath(tempfile.gettempdir()) + "/elmo-"]
        self._allowed += [os.path.realpath(path) for path in (*sys.path, sys.prefix, sys.base_prefix) if path]
        self._allowed += ["/proc/self", "/sys/", "/dev/null", "/proc/meminfo", "/proc/cpuinfo", "/usr/share/zoneinfo"]
        self._is_on = False
        self._events: list[str] = []
        sys.addaudithook(self._audit)
        signal.signal(signal.SIGVTALRM, _stop)
        self._before = _peak()

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self._is_on:
            return
        if event in _CODE:
            self._events.append(f"{event} {str(arguments)[:200]}")
        elif (event == "open" or event in _FOLDERS) and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.fsdecode(arguments[0])
            if "/" not in path and event in ("os.rmdir", "os.remove", "open") and len(arguments) > 1:
                return  # relative to a folder that was opened before: clean-up of a temporary folder
            if not os.path.realpath(path).startswith(tuple(self._allowed)):
                self._events.append(f"{event} {path[:200]}")

    def run(self, read: Callable[[bytes], None], data: bytes, accepted: tuple[type[Exception], ...]) -> str | None:
        """Read one input; return the problem, if there is one."""
        problem = None
        begin = time.process_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, 5 * SECONDS)
        self._is_on = True
        try:
            read(data)
            self.n_loaded += 1
        except accepted as error:
            self.n_refused += 1
            text = str(error)
            if "\n" in text or len(text) > 5000:
                problem = f"the message of {type(error).__name__} is not one line: {text[:300]!r}"
        except BaseException as error:  # this is what the fuzzer looks for
            where = _location(error)
            problem = f"{type(error).__name__}: {str(error)[:300]} ({where})"
        finally:
            self._is_on = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        seconds = time.process_time() - begin
        if problem is None and seconds > SECONDS:
            problem = f"took {seconds:.1f} s"
        megabytes = _peak() - self._before
        if problem is None and megabytes > MEGABYTES:
            problem = f"took {megabytes:.0f} MB"
            self._before += megabytes
        if self._events:
            problem = f"{problem or ''} opened: {'; '.join(self._events[:3])}".strip()
            self._events.clear()
        if problem is not None:
            self.problems.append(problem)
        return problem


ERRORS: tuple[type[Exception], ...] = (ElmoError,)


def _stop(number: int, frame: object) -> None:
    raise HungError("hung")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _location(error: BaseException) -> str:
    trace, name = error.__traceback__, ""
    while trace is not None:
        name = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return name
