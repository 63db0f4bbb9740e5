"""Kill training runs at random times and at single system calls, fill the disk, and compare every byte.

    python benchmarks/kill_train.py --kills 200

``elmo train`` runs once undisturbed, with a very small model. Then it is disturbed and restarted with the
same command until it finishes. Model, checkpoints, log and corpus must have the same bytes.

- Half of the kills (SIGKILL) come at random times, one after another until a run finishes.
- Half come right before a system call that changes the disk (fault injection by strace): all calls of one
  checkpoint, all calls of resuming a run, and a sample of the other calls of corpus, log and model.
- A full disk (ENOSPC) is simulated at each call of a checkpoint that needs space, and at some calls of
  corpus, log and model. The run must end with one line and exit code 1, without half-written files.

After every kill, all checkpoints must load, and the newest must not be older than before. One process imports
everything once and forks the runs, so that the time is spent in the runs.
"""

from __future__ import annotations

import argparse
import random
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.train.arena import Arena, Call, Outcome, checkpoint_calls, contents, is_temporary, prepare, visible  # noqa: E402

OPTIONS = shlex.split(
    "--preset tiny --cells 12 --width 8 --format tokens --samples 20 --batch-size 8 --window 10 --epochs 1.6"
    " --evaluate-every 3 --checkpoint-every 2 --learning-rate 0.6 --seed 2"
)  # learns so fast that the best checkpoint is not one of the last
EFFECTS = {"kill": "signal=SIGKILL", "full disk": "error=ENOSPC"}
ANY = ("kill", "any", "any time")


@dataclass
class Tally:
    """What was injected, where, and the problems after it."""

    injected: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # by kind, part and call
    restarts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    shown: int = 0  # rows printed

    def note(self, key: tuple[str, str, str]) -> None:
        """Count one injection and one restart."""
        self.injected[key] += 1
        self.restarts[key] += 1

    def show(self) -> None:
        """Print the new rows."""
        for key in list(self.injected)[self.shown :]:
            kind, part, call = key
            print(f"{kind:<11}{part:<12}{call:<14}{self.injected[key]:>6}{self.restarts[key]:>10}", flush=True)
        self.shown = len(self.injected)


@dataclass
class Trial:
    """An arena, and the files of an undisturbed run."""

    arena: Arena
    expected: dict[str, bytes]
    tally: Tally

    def kill_at_random(self, rng: random.Random, *, kills: int, duration: float) -> None:
        """Kill runs and their restarts at random times."""
        while self.tally.injected[ANY] < kills:
            self.arena.clear()
            reached = None
            outcome = self.arena.run(kill_after=rng.uniform(0, duration))
            while outcome.was_killed:
                self.tally.note(ANY)
                n_kills = self.tally.injected[ANY]
                reached = self.reached(f"random kill {n_kills}", reached)
                is_last = n_kills == kills
                outcome = self.restart(kill_after=None if is_last else rng.uniform(0, duration))
            self.compare(f"run after random kill {self.tally.injected[ANY]}", outcome)

    def disturb(self, kind: str, call: Call, *, template: Path | None = None) -> None:
        """Disturb one call, then restart until the end."""
        label = f"{kind} at {call.name} {call.number} of {call.part}"
        self.arena.clear(template)
        before = self.reached(f"before {label}", None)
        outcome = self.arena.inject(call, EFFECTS[kind], template)
        self.tally.note((kind, call.part, call.name))
        if not outcome.was_injected_at(call):
            self.problem(
                label, f"the injection did not happen, and the run ended with {outcome.code}: {outcome.stderr}"
            )
        elif kind == "full disk":
            line = r"elmo: .*/run/.*: .*No space left on device.*\n"
            if outcome.code != 1 or not re.fullmatch(line, outcome.stderr):
                self.problem(label, f"expected one line and code 1, found {outcome.code}: {outcome.stderr!r}")
            self.check_no_temporary(label)
        self.reached(label, before)
        self.compare(label, self.restart())

    def restart(self, *, kill_after: float | None = None) -> Outcome:
        """Run the command again. A model written by the last call of a killed run is also a success."""
        is_written = self.arena.out.exists()
        outcome = self.arena.run(kill_after=kill_after)
        is_done = is_written and outcome.code == 1 and "already exists" in outcome.stderr
        return replace(outcome, code=0, stderr="") if is_done else outcome

    def reached(self, label: str, before: int | None) -> int | None:
        """Return the step of the newest checkpoint; check that all are intact and none is lost."""
        reached, problems = self.arena.reached()
        for problem in problems:
            self.problem(label, problem)
        if before is not None and (reached is None or reached < before):
            self.problem(label, f"fell back from checkpoint {before} to {reached}")
        return reached

    def compare(self, label: str, outcome: Outcome) -> None:
        """Check that all files equal those of the undisturbed run."""
        if (outcome.code, outcome.stderr) != (0, ""):
            self.problem(label, f"the run after it ended with {outcome.code}: {outcome.stderr}")
        self.check_no_temporary(label)
        found = visible(contents(self.arena.place))
        other = [n for n in sorted(self.expected.keys() | found.keys()) if found.get(n) != self.expected.get(n)]
        if other:
            self.problem(label, f"at the end {len(other)} files differ, the first is {other[0]}")

    def check_no_temporary(self, label: str) -> None:
        """Check that a run that ended by itself left no temporary files."""
        leftovers = [name for name in contents(self.arena.place) if is_temporary(name)]
        if leftovers:
            self.problem(label, f"left {leftovers[0]} behind")

    def problem(self, label: str, what: str) -> None:
        """Record and print a problem."""
        self.tally.problems.append(f"{label}: {what}")
        print(self.tally.problems[-1], file=sys.stderr, flush=True)


def spread(items: Sequence[Call], n: int) -> list[Call]:
    """Return ``n`` of the items, evenly spaced."""
    n = max(0, min(n, len(items)))
    return [items[k * len(items) // n] for k in range(n)]


def sample_parts(calls: Sequence[Call], n: int) -> list[Call]:
    """Return ``n`` calls, divided among the parts of a run; small parts leave their share to large ones."""
    parts = [[call for call in calls if call.part == part] for part in {call.part: None for call in calls}]
    chosen: list[Call] = []
    for k, part in enumerate(sorted(parts, key=len)):
        chosen += spread(part, (n - len(chosen)) // (len(parts) - k))
    return chosen


def trace_resume(arena: Arena, save: Sequence[Call], template: Path) -> list[Call]:
    """Return the calls of resuming a run that was killed right before a checkpoint was renamed."""
    last = [call for call in save if call.name == "fsync"][-2]  # the last one syncs the parent folder
    arena.inject(last, EFFECTS["kill"])
    shutil.copytree(arena.place, template)
    calls = arena.run(is_traced=True).calls
    first_log = next(k for k, call in enumerate(calls) if call.part == "log" and call.name == "write")
    return [replace(call, part="resume") for call in calls[:first_log]]


def full_disks(calls: Sequence[Call], save: Sequence[Call], n: int | None) -> list[Call]:
    """Return the calls that find no space: all of a checkpoint, and a sample of the others."""
    save = [call for call in save if call.takes_space]
    others: list[Call] = []
    for part in ("corpus", "log", "model", "other"):
        found = [call for call in calls if call.part == part and call.takes_space]
        for name in dict.fromkeys(call.name for call in found):
            others += spread([call for call in found if call.name == name], 4)
    return [*save, *others] if n is None else [*spread(save, n - n // 2), *spread(others, n // 2)]


def disturb_all(folder: Path, tally: Tally, options: argparse.Namespace) -> None:
    """Run once undisturbed, then all disturbed runs."""
    rng, words = random.Random(0), [f"w{i}" for i in range(40)]
    lines = (" ".join(rng.choices(words, k=rng.randint(2, 9))) for _ in range(120))
    arena = Arena(folder, "".join(f"{line}\n" for line in lines), OPTIONS)
    arena.clear()
    whole = arena.run()
    if (whole.code, whole.stderr) != (0, ""):
        raise SystemExit(f"the undisturbed run ended with {whole.code}: {whole.stderr}")
    trial = Trial(arena, visible(contents(arena.place)), tally)
    print(f"undisturbed: {whole.seconds:.1f} s, {len(trial.expected)} files; SHA-256 of some:")
    last = arena.checkpoints.steps()[-1]
    weights = f"model.training/checkpoints/step-{last:09d}/weights.safetensors"
    for name in ("model/model.safetensors", weights, "model.training/log.jsonl"):
        print(f"  {sha256(trial.expected[name]).hexdigest()}  {name}")
    print(f"{'what':<11}{'at':<12}{'call':<14}{'times':>6}{'restarts':>10}", flush=True)
    at_calls = 0 if options.no_strace else options.kills // 2
    rng = random.Random(options.seed)
    trial.kill_at_random(rng, kills=options.kills - at_calls, duration=whole.seconds)
    tally.show()
    if options.no_strace:
        return
    arena.clear()
    calls = arena.run(is_traced=True).calls
    save = checkpoint_calls(arena.checkpoints.best() or 0, calls)  # the checkpoint that becomes the model
    template = folder / "killed"
    resume_calls = spread(trace_resume(arena, save, template), at_calls * 2 // 10)
    injected = spread(save, at_calls * 6 // 10)
    injected += sample_parts(
        [call for call in calls if call not in injected], at_calls - len(injected) - len(resume_calls)
    )
    for call in injected:
        trial.disturb("kill", call)
    for call in resume_calls:
        trial.disturb("kill", call, template=template)
    tally.show()
    for call in full_disks(calls, save, options.full_disks):
        trial.disturb("full disk", call)
    tally.show()


def main() -> int:
    """Print a table of injections and outcomes; return 1 if anything differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="half at random times, half at system calls")
    parser.add_argument("--full-disks", type=int, help="number of full disks; default: all calls that matter")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="folder for the runs; default: a temporary one")
    parser.add_argument("--no-strace", action="store_true", help="random kills only")
    options = parser.parse_args()
    if not options.no_strace and shutil.which("strace") is None:
        print("strace is not installed: random kills only", file=sys.stderr)
        options.no_strace = True
    prepare()
    began, tally = time.monotonic(), Tally()
    with tempfile.TemporaryDirectory(prefix="elmo-kill-", dir=options.folder) as name:
        disturb_all(Path(name), tally, options)
    kinds: Counter[str] = Counter()
    for (kind, _, _), injected in tally.injected.items():
        kinds[kind] += injected
    summary = f"{kinds['kill']} kills, {kinds['full disk']} full disks, {sum(tally.restarts.values())} restarts"
    print(f"{summary}, {time.monotonic() - began:.0f} s")
    print("all bytes equal" if not tally.problems else f"{len(tally.problems)} problems")
    return 1 if tally.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
