"""Find the children of a process with ``ps``, on Linux and macOS."""

from __future__ import annotations

import subprocess
import time


def children(parent: int) -> list[int]:
    """Return the running children of a process."""
    return [pid for pid, (of, _) in _table().items() if of == parent]


def wait_until_gone(pids: list[int], *, seconds: float = 60) -> None:
    """Wait until all processes have ended; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while left := set(pids) & _table().keys():
        assert time.monotonic() < deadline, f"still alive: {left}"
        time.sleep(0.05)


def _table() -> dict[int, tuple[int, str]]:
    """Return parent and state of every process, without zombies."""
    with subprocess.Popen(["ps", "-A", "-o", "pid=,ppid=,stat="], stdout=subprocess.PIPE, text=True) as ps:
        reported, _ = ps.communicate()
    rows = [line.split() for line in reported.splitlines()]
    return {
        int(pid): (int(parent), state)
        for pid, parent, state in rows
        if not state.startswith("Z") and int(pid) != ps.pid
    }
