"""Kill training at random instants and at single system calls, fill its disk, and compare every byte.

    python benchmarks/kill_train.py --kills 200

``elmo train`` is run once undisturbed, with a model of a few cells; then it is disturbed, and started again
with the same command until it ends by itself. Model, checkpoints, log and corpus must have the same bytes.

- Half of the kills (SIGKILL) come at random instants, one after another until a run is through.
- Half come just before a system call that changes the disk (strace's fault injection): each one of a whole
  checkpoint, each one of taking up a killed run, and a share of all others of corpus, log and model.
- A full disk (ENOSPC) meets each call of a checkpoint that takes space, and some of corpus, log and model.
  That must end in one line and exit code 1, with nothing half-written.

After every kill, each checkpoint that is there must load, and the newest may not be older than before it. One
process imports everything once and forks the runs, so that the time is spent in the runs themselves.
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

from tests.train.arena import Arena, Call, Outcome, contents, is_stray, prepare, save_of, visible  # noqa: E402

OPTIONS = shlex.split(
    "--preset tiny --cells 12 --width 8 --format tokens --samples 20 --batch-size 8 --window 10 --epochs 1.6"
    " --evaluate-every 3 --checkpoint-every 2 --learning-rate 0.6 --seed 2"
)  # learns so fast that the best checkpoint is none of the last
EFFECTS = {"kill": "signal=SIGKILL", "full disk": "error=ENOSPC"}
ANY = ("kill", "any", "any instant")


@dataclass
class Tally:
    """What struck, where, and what was wrong after it."""

    struck: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # by kind, part and call
    restarts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    shown: int = 0  # rows of the table

    def note(self, key: tuple[str, str, str]) -> None:
        """One more, with a restart after it."""
        self.struck[key] += 1
        self.restarts[key] += 1

    def show(self) -> None:
        """The rows that are new."""
        for key in list(self.struck)[self.shown :]:
            kind, part, call = key
            print(f"{kind:<11}{part:<12}{call:<14}{self.struck[key]:>6}{self.restarts[key]:>10}", flush=True)
        self.shown = len(self.struck)


@dataclass
class Trial:
    """One arena, and what an undisturbed run leaves there."""

    arena: Arena
    expected: dict[str, bytes]
    tally: Tally

    def kill_at_random(self, chance: random.Random, *, kills: int, duration: float) -> None:
        """Kill a run and those that take it up at random instants until one is through, then the next."""
        while self.tally.struck[ANY] < kills:
            self.arena.clear()
            reached = None
            outcome = self.arena.run(kill_after=chance.uniform(0, duration))
            while outcome.was_killed:
                self.tally.note(ANY)
                n_kills = self.tally.struck[ANY]
                reached = self.reached(f"random kill {n_kills}", reached)
                is_last = n_kills == kills
                outcome = self.restart(kill_after=None if is_last else chance.uniform(0, duration))
            self.compare(f"run after random kill {self.tally.struck[ANY]}", outcome)

    def disturb(self, kind: str, call: Call, *, template: Path | None = None) -> None:
        """Let one call be struck, then run on to the end."""
        label = f"{kind} at {call.name} {call.number} of {call.part}"
        self.arena.clear(template)
        before = self.reached(f"before {label}", None)
        outcome = self.arena.strike(call, EFFECTS[kind], template)
        self.tally.note((kind, call.part, call.name))
        if not outcome.was_struck_at(call):
            self.problem(label, f"was not struck there, and ended with {outcome.code}: {outcome.said}")
        elif kind == "full disk":
            line = r"elmo: .*/run/.*: .*No space left on device.*\n"
            if outcome.code != 1 or not re.fullmatch(line, outcome.said):
                self.problem(label, f"expected one line and code 1, found {outcome.code}: {outcome.said!r}")
            self.refuse_strays(label)
        self.reached(label, before)
        self.compare(label, self.restart())

    def restart(self, *, kill_after: float | None = None) -> Outcome:
        """Give the command once more; a model that was there already, by the last call of a run, will do."""
        is_written = self.arena.out.exists()
        outcome = self.arena.run(kill_after=kill_after)
        is_done = is_written and outcome.code == 1 and "already exists" in outcome.said
        return replace(outcome, code=0, said="") if is_done else outcome

    def reached(self, label: str, before: int | None) -> int | None:
        """The step of the newest checkpoint; each one there must be whole, and none lost."""
        reached, problems = self.arena.reached()
        for problem in problems:
            self.problem(label, problem)
        if before is not None and (reached is None or reached < before):
            self.problem(label, f"fell back from checkpoint {before} to {reached}")
        return reached

    def compare(self, label: str, outcome: Outcome) -> None:
        """All files must be those of the undisturbed run."""
        if (outcome.code, outcome.said) != (0, ""):
            self.problem(label, f"the run after it ended with {outcome.code}: {outcome.said}")
        self.refuse_strays(label)
        found = visible(contents(self.arena.place))
        other = [
            n for n in sorted(self.expected.keys() | found.keys()) if found.get(n) != self.expected.get(n)
        ]
        if other:
            self.problem(label, f"at the end {len(other)} files differ, the first is {other[0]}")

    def refuse_strays(self, label: str) -> None:
        """Nothing temporary may be left behind by a run that ended by itself."""
        strays = [name for name in contents(self.arena.place) if is_stray(name)]
        if strays:
            self.problem(label, f"left {strays[0]} behind")

    def problem(self, label: str, what: str) -> None:
        """Say it, and go on."""
        self.tally.problems.append(f"{label}: {what}")
        print(self.tally.problems[-1], file=sys.stderr, flush=True)


def spread(items: Sequence[Call], n: int) -> list[Call]:
    """So many of them, as far apart as they can be."""
    n = max(0, min(n, len(items)))
    return [items[k * len(items) // n] for k in range(n)]


def of_all_parts(calls: Sequence[Call], n: int) -> list[Call]:
    """So many of them, shared out among the parts of a run; what a small part leaves goes to the large."""
    parts = [[call for call in calls if call.part == part] for part in {call.part: None for call in calls}]
    chosen: list[Call] = []
    for k, part in enumerate(sorted(parts, key=len)):
        chosen += spread(part, (n - len(chosen)) // (len(parts) - k))
    return chosen


def taken_up(arena: Arena, save: Sequence[Call], template: Path) -> list[Call]:
    """The calls by which a run takes up one that was killed when a checkpoint was all but renamed."""
    last = [call for call in save if call.name == "fsync"][-2]  # the very last is that of the folder above
    arena.strike(last, EFFECTS["kill"])
    shutil.copytree(arena.place, template)
    calls = arena.run(is_traced=True).calls
    first_log = next(k for k, call in enumerate(calls) if call.part == "log" and call.name == "write")
    return [replace(call, part="resumption") for call in calls[:first_log]]


def full_disks(calls: Sequence[Call], save: Sequence[Call], n: int | None) -> list[Call]:
    """Which calls find no space: each one of a checkpoint, and of all others a share."""
    save = [call for call in save if call.takes_space]
    others: list[Call] = []
    for part in ("corpus", "log", "model", "other"):
        found = [call for call in calls if call.part == part and call.takes_space]
        for name in dict.fromkeys(call.name for call in found):
            others += spread([call for call in found if call.name == name], 4)
    return [*save, *others] if n is None else [*spread(save, n - n // 2), *spread(others, n // 2)]


def disturb_all(folder: Path, tally: Tally, options: argparse.Namespace) -> None:
    """An undisturbed run, and then all the others."""
    chance, words = random.Random(0), [f"w{i}" for i in range(40)]
    lines = (" ".join(chance.choices(words, k=chance.randint(2, 9))) for _ in range(120))
    arena = Arena(folder, "".join(f"{line}\n" for line in lines), OPTIONS)
    arena.clear()
    whole = arena.run()
    if (whole.code, whole.said) != (0, ""):
        raise SystemExit(f"the undisturbed run ended with {whole.code}: {whole.said}")
    trial = Trial(arena, visible(contents(arena.place)), tally)
    print(f"undisturbed: {whole.seconds:.1f} s, {len(trial.expected)} files; SHA-256 of some:")
    last = arena.checkpoints.steps()[-1]
    weights = f"model.training/checkpoints/step-{last:09d}/weights.safetensors"
    for name in ("model/model.safetensors", weights, "model.training/log.jsonl"):
        print(f"  {sha256(trial.expected[name]).hexdigest()}  {name}")
    print(f"{'what':<11}{'at':<12}{'call':<14}{'times':>6}{'restarts':>10}", flush=True)
    at_calls = 0 if options.no_strace else options.kills // 2
    chance = random.Random(options.seed)
    trial.kill_at_random(chance, kills=options.kills - at_calls, duration=whole.seconds)
    tally.show()
    if options.no_strace:
        return
    arena.clear()
    calls = arena.run(is_traced=True).calls
    save = save_of(arena.checkpoints.best() or 0, calls)  # losing its rank would lose the model
    template = folder / "killed"
    resumption = spread(taken_up(arena, save, template), at_calls * 2 // 10)
    struck = spread(save, at_calls * 6 // 10)
    struck += of_all_parts(
        [call for call in calls if call not in struck], at_calls - len(struck) - len(resumption)
    )
    for call in struck:
        trial.disturb("kill", call)
    for call in resumption:
        trial.disturb("kill", call, template=template)
    tally.show()
    for call in full_disks(calls, save, options.full_disks):
        trial.disturb("full disk", call)
    tally.show()


def main() -> int:
    """Print a table of what struck and how it ended; 1 when anything differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="half at random instants, half at calls")
    parser.add_argument("--full-disks", type=int, help="how many; all that make a difference, unless given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="where runs write; a temporary folder, unless given")
    parser.add_argument("--no-strace", action="store_true", help="random kills only")
    options = parser.parse_args()
    if not options.no_strace and shutil.which("strace") is None:
        print("strace, which strikes single calls, is not installed: random kills only", file=sys.stderr)
        options.no_strace = True
    prepare()
    began, tally = time.monotonic(), Tally()
    with tempfile.TemporaryDirectory(prefix="elmo-kill-", dir=options.folder) as name:
        disturb_all(Path(name), tally, options)
    kinds: Counter[str] = Counter()
    for (kind, _, _), struck in tally.struck.items():
        kinds[kind] += struck
    told = f"{kinds['kill']} kills, {kinds['full disk']} full disks, {sum(tally.restarts.values())} restarts"
    print(f"{told}, {time.monotonic() - began:.0f} s")
    print("every byte equal" if not tally.problems else f"{len(tally.problems)} problems")
    return 1 if tally.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
