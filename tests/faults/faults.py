"""The faults, as data: what happens, what is promised, and how it is tested.

Each fault disturbs a command a few times. After each time, the same checks are made: no half-written file has a final
name, and the same command then ends with the same bytes and leaves no temporary file.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

from tests.faults.arena import Arena, Call, Conditions, Outcome, contents, is_temporary, visible
from tests.faults.commands import Command, write_inputs, write_start

DAY = 86_400.0
MEMORY = (1 << 20, 4 << 20, 16 << 20, 48 << 20, 128 << 20)  # bytes beyond those of the start
FILE_SIZES = (0, 64, 700, 5000)  # bytes of the largest file that may be written
VICTIM = b"precious\n"


@dataclass
class Trial:
    """A command in its arena, what it writes undisturbed, and the problems that were found."""

    command: Command
    arena: Arena
    start: Path  # copy of the output folder before the command
    limit: int | None  # number of times that each fault happens; None: at every system call
    rng: random.Random
    n_faults: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    label: str = ""
    seconds: float = 0.0  # of an undisturbed run

    @classmethod
    def prepare(cls, command: Command, folder: Path, *, limit: int | None, seed: int) -> Trial:
        """Write the inputs of a command."""
        write_inputs(command, folder / "inputs")
        write_start(command, folder / "start")
        arena = Arena(folder / "inputs", command.run)
        return cls(command, arena, folder / "start", limit, random.Random(seed))

    @cached_property
    def expected(self) -> dict[str, bytes]:
        """The files that the undisturbed command writes."""
        self.arena.clear(self.start)
        outcome = self.arena.run()
        if (outcome.code, outcome.stderr) != (0, ""):
            raise SystemExit(f"elmo {self.command.line}: ended with {outcome.code}: {outcome.stderr}")
        self.seconds = outcome.seconds
        return self.files()

    @cached_property
    def calls(self) -> list[Call]:
        """The system calls that change the output folder."""
        self.arena.clear(self.start)
        return list(self.arena.run(is_traced=True).calls)

    def files(self) -> dict[str, bytes]:
        """Return the visible files of the output folder whose bytes must not vary."""
        found = visible(contents(self.arena.out))
        return {name: data for name, data in found.items() if not self._is_one_of(name, self.command.varies)}

    def sample(self, calls: Sequence[Call]) -> list[Call]:
        """Return all calls, or calls of as many kinds as possible."""
        if self.limit is None or len(calls) <= self.limit:
            return list(calls)
        kinds: dict[tuple[str, str], list[Call]] = {}
        for call in calls:
            kinds.setdefault((call.name, call.path), []).append(call)
        chosen = [self.rng.choice(group) for group in kinds.values()]
        if len(chosen) > self.limit:
            return [chosen[k * len(chosen) // self.limit] for k in range(self.limit)]
        others = [call for call in calls if call not in chosen]
        return [*chosen, *self.rng.sample(others, min(len(others), self.limit - len(chosen)))]

    def times(self, n: int) -> int:
        """Return how often to repeat a fault that costs no system call."""
        return n if self.limit is None else max(1, min(n, self.limit))

    def begin(self, fault: str, what: str) -> None:
        """Count a fault, and say what is tested from here."""
        self.n_faults[fault] += 1
        self.label = f"{self.command.name}: {what}"

    def problem(self, what: str) -> None:
        """Record and print a problem."""
        self.problems.append(f"{self.label}: {what}")
        print(f"PROBLEM {self.problems[-1]}", flush=True)

    # --- checks ------------------------------------------------------------------------------------------

    def check_one_line(self, outcome: Outcome, *, codes: tuple[int, ...] = (1,), contains: str = "") -> None:
        """Check that a run reported one clear line, or that it succeeded in spite of the fault."""
        if outcome.is_hung:
            self.problem("hung")
        elif outcome.code == 0:
            if self.files() != self.expected:
                self.problem(f"ended with code 0, but {self.difference(self.expected)}")
        elif outcome.code not in codes or not re.fullmatch(r"elmo: [^\n]+\n", outcome.stderr):
            self.problem(f"expected one line, found code {outcome.code}: {outcome.stderr[-1500:]!r}")
        elif contains not in outcome.stderr:
            self.problem(f"expected {contains!r} in the message, found {outcome.stderr!r}")

    def check_whole(self) -> None:
        """Check that all files with a final name are complete: the old ones or the new ones."""
        before = visible(contents(self.start))
        for name, data in self.files().items():
            if self._is_one_of(name, self.command.grows):
                continue
            if data not in (self.expected.get(name), before.get(name)):
                self.problem(f"{name} is incomplete")
        gone = [name for name in before if name not in contents(self.arena.out)]
        if gone and self.command.kind == "replaces":
            self.problem(f"{gone[0]} is lost")
        self.problems += [f"{self.label}: {problem}" for problem in self.command.check(self.arena.out)]

    def check_no_temporary(self) -> None:
        """Check that a run that ended by itself left no temporary files."""
        names = [name for name in contents(self.arena.out) if not self._is_one_of(name, self.command.varies)]
        left = [name for name in names if is_temporary(name)]  # a cache removes its temporary files later
        if left:
            self.problem(f"left {left[0]} behind")

    def check_again(self, conditions: Conditions | None = None) -> None:
        """Check that the same command, undisturbed, ends with the same bytes and without temporary files."""
        outcome = self.arena.run(conditions or Conditions())
        is_complete = self.files() == self.expected
        says_exists = self.command.kind != "replaces" and "already exists" in outcome.stderr
        if outcome.is_hung or (outcome.code != 0 and not (is_complete and says_exists and outcome.code == 1)):
            self.problem(f"the same command then ended with {outcome.code}: {outcome.stderr[-1500:]!r}")
        elif not is_complete:
            self.problem(f"the same command then ended with other bytes: {self.difference(self.expected)}")
        self.check_no_temporary()

    def difference(self, expected: dict[str, bytes]) -> str:
        """Return the first difference between the output folder and expected files."""
        found = self.files()
        names = [name for name in sorted(expected.keys() | found.keys()) if found.get(name) != expected.get(name)]
        if not names:
            return "all files are equal"
        how = "is missing" if names[0] not in found else "is extra" if names[0] not in expected else "differs"
        return f"{len(names)} files differ: {names[0]} {how}"

    @staticmethod
    def _is_one_of(name: str, patterns: Sequence[str]) -> bool:
        return any(fnmatch(name, pattern) for pattern in patterns)

    def stop_midway(self) -> None:
        """Start the command and kill it about in the middle of its work, after its first write if possible."""
        self.arena.clear(self.start)
        self.arena.run(kill_after=self.seconds * self.rng.uniform(0.4, 0.8))


# --- faults ---------------------------------------------------------------------------------------------


def kill_at_calls(trial: Trial) -> None:
    """Kill the command right before a system call."""
    _signal_at_calls(trial, "SIGKILL", (-9, 1))


def terminate_at_calls(trial: Trial) -> None:
    """Send SIGTERM right before a system call."""
    _signal_at_calls(trial, "SIGTERM", (-15, 143, 1))


def interrupt_at_calls(trial: Trial) -> None:
    """Send SIGINT (Ctrl-C) right before a system call."""
    _signal_at_calls(trial, "SIGINT", (130,))


def _signal_at_calls(trial: Trial, name: str, codes: tuple[int, ...]) -> None:
    for call in trial.sample(trial.calls):
        trial.begin(name, f"{name} at {call.name} {call.number} ({call.path or 'out'})")
        outcome = trial.arena.inject(call, f"signal={name}", trial.start)
        if outcome.is_hung:
            trial.problem("hung")
        if outcome.code > 0 or name == "SIGINT":
            trial.check_one_line(outcome, codes=codes)
        if name != "SIGKILL" and trial.command.action is None:
            trial.check_no_temporary()
        trial.check_whole()
        trial.check_again()


def kill_at_random_times(trial: Trial) -> None:
    """Kill the command at random times, again and again until it ends."""
    n_kills = trial.limit or 20
    while trial.n_faults["random kills"] < n_kills:
        trial.arena.clear(trial.start)
        patience = 1.0  # grows, so that the command finishes on a slow machine
        while trial.n_faults["random kills"] < n_kills:
            outcome = trial.arena.run(kill_after=patience * trial.rng.uniform(0, trial.seconds))
            if not outcome.was_killed:
                break
            patience *= 1.1
            trial.begin("random kills", f"random kill {trial.n_faults['random kills'] + 1}")
            trial.check_whole()
        trial.check_again()


def fill_disk(trial: Trial) -> None:
    """Let a system call that needs space fail with ENOSPC."""
    for call in trial.sample([call for call in trial.calls if call.takes_space]):
        trial.begin("full disk", f"full disk at {call.name} {call.number} ({call.path or 'out'})")
        outcome = trial.arena.inject(call, "error=ENOSPC", trial.start)
        # Threads make the order of calls differ from run to run; a fault elsewhere hits the model, or stderr itself.
        if any(call.is_injected for call in outcome.calls) or not outcome.was_hit:
            trial.check_one_line(outcome, contains="No space left on device")
        trial.check_whole()
        trial.check_no_temporary()
        trial.check_again()


def limit_file_size(trial: Trial) -> None:
    """Do not let files grow beyond a few bytes, as a quota does."""
    for size in FILE_SIZES[: trial.times(len(FILE_SIZES))]:
        trial.begin("quota", f"files of at most {size} bytes")
        trial.arena.clear(trial.start)
        trial.check_one_line(trial.arena.run(Conditions(file_size=size)))
        trial.check_whole()
        trial.check_no_temporary()
        trial.check_again()


def remove_rights(trial: Trial) -> None:
    """Run without the right to write to the output folder."""
    trial.begin("read-only folder", "read-only folder")
    trial.arena.clear(trial.start)
    before = contents(trial.arena.out)
    trial.arena.protect()
    outcome = trial.arena.run(Conditions(has_rights=False))
    trial.check_one_line(outcome, contains="Permission denied")
    if outcome.code == 0:
        trial.problem("ended with code 0")
    if contents(trial.arena.out) != before:
        trial.problem("changed a read-only folder")


def run_twice(trial: Trial) -> None:
    """Run the command twice at the same time."""
    for _ in range(trial.times(4)):
        trial.begin("two writers", "two writers")
        trial.arena.clear(trial.start)
        started = [trial.arena.start(), trial.arena.start()]
        for run in started:
            run.let_go()
        outcomes = [trial.arena.finish(run) for run in started]
        for outcome in outcomes:
            if outcome.code != 0:
                trial.check_one_line(outcome)
        if all(outcome.code != 0 for outcome in outcomes):
            trial.problem(f"both failed: {outcomes[0].stderr!r} and {outcomes[1].stderr!r}")
        if trial.files() != trial.expected:
            trial.problem(f"both together wrote other bytes: {trial.difference(trial.expected)}")
        trial.check_no_temporary()
        trial.check_again()


def plant_links(trial: Trial) -> None:
    """Put a link to a file outside of the output folder in the place of each file that the command writes."""
    victim, absent = trial.arena.folder / "victim.txt", trial.arena.folder / "absent.txt"
    names = dict.fromkeys([*trial.expected, *(_temporary(name) for name in trial.expected)])
    chosen = list(names) if trial.limit is None else trial.rng.sample(list(names), min(len(names), trial.limit))
    for name in chosen:
        for target in (victim, absent):
            trial.begin("link in the way", f"link {name} → {target.name}")
            trial.arena.clear(trial.start)
            victim.write_bytes(VICTIM)
            absent.unlink(missing_ok=True)
            path = trial.arena.out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.symlink_to(os.path.relpath(target, path.parent))
            outcome = trial.arena.run()
            if victim.read_bytes() != VICTIM:
                trial.problem("overwrote the target of a link")
            if absent.exists():
                trial.problem("created the target of a link")
            trial.check_one_line(outcome)


def _temporary(name: str) -> str:
    path = Path(name)
    return str(path.with_name(f".{path.name}.part"))


def take_memory(trial: Trial) -> None:
    """Let allocations fail beyond a few megabytes."""
    for memory in MEMORY[: trial.times(len(MEMORY))]:
        trial.begin("out of memory", f"{memory >> 20} MB of memory")
        trial.arena.clear(trial.start)
        outcome = trial.arena.run(Conditions(memory=memory))
        if outcome.code != -signal.SIGABRT:  # a library in Rust or C++ aborts if it has no memory, as after a kill
            trial.check_one_line(outcome)
            trial.check_no_temporary()
        trial.check_whole()
        trial.check_again()


def turn_back_clock(trial: Trial) -> None:
    """Kill the command, set the clock back by a day, and run it again; its files seem to come from the future."""
    trial.begin("clock backwards", "clock backwards")
    trial.stop_midway()
    for path in trial.arena.out.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime + DAY))
    trial.check_again(Conditions(clock=-DAY))


def change_input(trial: Trial) -> None:
    """Change the input after the command was killed, or after it ended."""
    path = trial.arena.folder / str(trial.command.change)
    original, times = path.read_bytes(), path.stat()
    for stage in ("midway", "complete")[: trial.times(2)]:
        for how, changed in _changes(original).items():
            trial.begin("input changed", f"input changed ({how}, {stage})")
            if stage == "midway":
                trial.stop_midway()
            else:
                trial.arena.clear(trial.start)
                trial.arena.run()
            stopped = trial.files()
            path.write_bytes(changed)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            outcome = trial.arena.run()
            found = trial.files()
            if outcome.code == 0:
                trial.arena.clear(trial.start)
                trial.arena.run()
                if found != trial.files():
                    trial.problem(f"mixed two inputs: {trial.difference(found)}")
            else:
                trial.check_one_line(outcome)
                if found != stopped:
                    trial.problem(f"changed files, although it refused the input: {trial.difference(stopped)}")
            path.write_bytes(original)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            if outcome.code != 0:
                trial.check_again()


def _changes(data: bytes) -> dict[str, bytes]:
    """Return changed versions of a text: a longer one, and one of the same size, with the same time."""
    letter = max(data.rindex(bytes([c])) for c in set(data) if 97 <= c < 123)
    changed = data[:letter] + data[letter : letter + 1].upper() + data[letter + 1 :]
    return {"longer": data + data[: data.index(b"\n") + 1], "same size": changed}


def remove_tmp(trial: Trial) -> None:
    """Run without a folder for temporary files."""
    trial.begin("no /tmp", "no folder for temporary files")
    trial.arena.clear(trial.start)
    trial.check_one_line(trial.arena.run(Conditions(has_tmp=False)))
    trial.check_whole()
    trial.check_no_temporary()
    trial.check_again()


# --- the table ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A fault, the promise, and how it is tested."""

    name: str
    promise: str
    test: str
    inject: Callable[[Trial], None]
    needs_strace: bool = False
    needs_change: bool = False  # only for commands with an input that users change
    is_kill: bool = False  # tested for slow commands, too, in the short run


AGAIN = "the same command then writes the same bytes"
FAULTS: tuple[Fault, ...] = (
    Fault("SIGKILL", f"No file with a final name is incomplete; {AGAIN}.",
          "kill before system calls that change the output folder (strace)", kill_at_calls, needs_strace=True,
          is_kill=True),
    Fault("random kills", f"As above, also for kills one after another; {AGAIN}.",
          "kill at random times until the command ends", kill_at_random_times, is_kill=True),
    Fault("SIGTERM", f"No temporary file; {AGAIN}.", "SIGTERM before system calls (strace)",
          terminate_at_calls, needs_strace=True),
    Fault("SIGINT", f"One line, exit code 130, no temporary file; {AGAIN}.", "SIGINT before system calls (strace)",
          interrupt_at_calls, needs_strace=True),
    Fault("full disk", f"One line, exit code 1, no temporary file, old files kept; {AGAIN}.",
          "ENOSPC at system calls that need space (strace)", fill_disk, needs_strace=True, is_kill=True),
    Fault("quota", "As for a full disk.", "a limit of the file size (setrlimit)", limit_file_size),
    Fault("read-only folder", "One line, exit code 1, nothing changed.", "run as a user without the right to write",
          remove_rights),
    Fault("two writers", "The result is that of one of them; the other ends with one line, or writes the same bytes.",
          "start the command twice at the same time", run_twice),
    Fault("link in the way", "Links are replaced or refused; their targets are neither overwritten nor created.",
          "a link in the place of each output and each temporary file", plant_links),
    Fault("out of memory", f"One line and exit code 1, or the end of the process; old files kept; {AGAIN}.",
          "a limit of the address space (setrlimit)", take_memory),
    Fault("clock backwards", "The bytes do not depend on the clock.",
          "kill, set the clock back by a day, and resume", turn_back_clock),
    Fault("input changed", "One line and nothing changed, or the result of the new input; never a mix of both.",
          "change the text after a kill and after the end: longer, and with the same size and time", change_input,
          needs_change=True),
    Fault("no /tmp", "The command works, or ends with one line.", "no folder for temporary files", remove_tmp),
)  # fmt: skip


def run_command(
    command: Command, faults: Sequence[Fault], folder: Path, *, limit: int | None, seed: int, has_strace: bool
) -> Trial:
    """Run a command with all faults that apply to it."""
    trial = Trial.prepare(command, folder, limit=limit, seed=seed)
    assert trial.expected
    for fault in faults:
        if (fault.needs_strace and not has_strace) or (fault.needs_change and command.change is None):
            continue
        fault.inject(trial)
    shutil.rmtree(folder)
    return trial
