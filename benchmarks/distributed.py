"""Train with torchrun and gloo: hold loss curves against one process, kill ranks, and compare every byte.

    python benchmarks/distributed.py --kills 20

Models have a few cells, batches ten rows, which four ranks cannot share evenly; float64, no dropout.

- Curves: the loss of every step with 2 and with 4 ranks, and of a run that is stopped and goes on with
  another number of ranks, against that of one process.
- Kills: one rank, any, is killed (SIGKILL) at random instants, as it starts or as it trains; torchrun starts
  all of them again. Weights, optimizer, state and log must have the bytes of a run that nobody disturbed.

No run may hang, and no process may be left over. Most of the time goes into starting Python again and again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 900.0  # seconds, with anything that should happen sooner
SAMPLES: dict[str, int | None] = {"sampled": 20, "full": None}


# --- what each rank runs ---------------------------------------------------------------------------------


def work(corpus: Path, folder: Path, options: dict[str, Any], pause_at: int | None = None) -> None:
    """Train as a user's script would; the first rank tells how far it came, and waits to be stopped."""
    sys.path[:0] = [str(ROOT / "src")]
    from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig
    from elmo.train.corpus import Corpus
    from elmo.train.distributed import join_ranks
    from elmo.train.loop import StepReport, Trainer
from elmo.train.options import TrainOptions
    from elmo.train.options import DropoutOptions

    def tell(report: StepReport) -> None:
        with telling(folder, os.getpid()).open("ab") as file:
            file.write(b".")
        if pause_at is not None and report.step >= pause_at:
            time.sleep(PATIENCE)

    config = BiLmConfig(CharCnnConfig(char_width=3, filters=((1, 4), (3, 8))), None, LstmConfig(2, 12, 8))
    settings = TrainOptions(
        n_vocab=60,
        batch_size=10,
        window=6,
        dropout=DropoutOptions(0.0),
        precision="float64",
        log_every=1,
        checkpoint_every=7,
        evaluate_every=50,
        **options,
    )
    with join_ranks() as ranks:
        Trainer(Corpus.open(corpus), config, settings, folder, ranks=ranks).run(tell)


def telling(folder: Path, pid: int) -> Path:
    """A file that grows by a byte with every report of a process."""
    return folder / f"reports.{pid}"


# --- who runs them ---------------------------------------------------------------------------------------


@dataclass
class Run:
    """One start of torchrun."""

    n_ranks: int
    process: subprocess.Popen[bytes]
    stderr: Path
    ranks: set[int] = field(default_factory=set)  # all that were seen

    def living_ranks(self) -> set[int]:
        """The ids of the processes that train now."""
        place = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        try:
            found = {int(pid) for pid in place.read_text().split()}
        except OSError:
            return set()
        found = {pid for pid in found if is_alive(pid) and b"--folder" in command_of(pid)}
        self.ranks |= found
        return found

    def wait_for(self, what: Callable[[], object]) -> bool:
        """Whether something happened before the run was over."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if what():
                return True
            if self.process.poll() is not None:
                return False
            time.sleep(0.005)
        self.end()
        raise SystemExit(f"a run of {self.n_ranks} ranks hangs:\n{self.said()}")

    def end(self) -> None:
        """End what is left of it."""
        for pid in {*self.ranks, *self.living_ranks(), self.process.pid}:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def code(self) -> int:
        """Its exit code, when it has ended by itself."""
        self.wait_for(lambda: self.living_ranks() and False)
        return self.process.wait()

    def left_over(self) -> list[int]:
        """Ranks that outlived it, after a moment."""
        deadline = time.monotonic() + 5
        while (left := [pid for pid in self.ranks if is_alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def said(self) -> str:
        """The end of what it had to say."""
        return self.stderr.read_text(errors="replace")[-3000:]


def command_of(pid: int) -> bytes:
    """The arguments of a process; none when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def is_alive(pid: int) -> bool:
    """Whether a process is there, and not only waits to be forgotten."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Arena:
    """A corpus, and a place where runs are."""

    def __init__(self, place: Path) -> None:
        sys.path[:0] = [str(ROOT / "src")]
        import torch

        from elmo.train import build_corpus

        torch.set_num_threads(1)  # as torchrun tells its processes
        self.place, self.corpus, self.number = place, place / "corpus", 0
        self.problems: list[str] = []
        self.whole: dict[tuple[int, str], tuple[Path, float]] = {}
        chance, words = random.Random(0), [f"w{i}" for i in range(80)]
        lines = (" ".join(chance.choices(words, k=chance.randint(2, 9))) for _ in range(120))
        (place / "text.txt").write_text("".join(f"{line}\n" for line in lines))
        build(place / "text.txt", self.corpus, input_format="tokens", heldout=10)

    def folder(self) -> Path:
        """A new one."""
        self.number += 1
        folder = self.place / f"run-{self.number}"
        folder.mkdir()
        return folder

    def start(
        self,
        n_ranks: int,
        folder: Path,
        options: dict[str, Any],
        *,
        restarts: int = 0,
        pause_at: int | None = None,
    ) -> Run:
        """Begin a run, or go on with one."""
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(n_ranks), "--max-restarts", str(restarts)]
        command += [__file__, "--work", json.dumps(options), "--corpus", str(self.corpus)]
        command += ["--folder", str(folder)] + (["--pause-at", str(pause_at)] if pause_at is not None else [])
        stderr = folder.with_suffix(".stderr")
        with stderr.open("ab") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
        return Run(n_ranks, process, stderr)

    def finish(self, run: Run, label: str) -> None:
        """Wait for a run's end, which must be a good one."""
        code = run.code()
        if code:
            self.problems.append(f"{label}: ended with {code}: {run.said()}")
        self.problems += [f"{label}: process {pid} is left over" for pid in run.left_over()]

    def undisturbed(self, n_ranks: int, options: dict[str, Any]) -> tuple[Path, float]:
        """The folder of a whole run, and the seconds to its first step; one process is this one."""
        key = (n_ranks, json.dumps(options))
        if key not in self.whole:
            folder, began, seconds = self.folder(), time.monotonic(), 0.0
            if n_ranks == 1:
                work(self.corpus, folder, options)
            else:
                run = self.start(n_ranks, folder, options)
                run.wait_for(lambda: run.living_ranks() and any(folder.glob("reports.*")))
                seconds = time.monotonic() - began
                self.finish(run, f"{n_ranks} ranks, undisturbed")
            self.whole[key] = folder, seconds
        return self.whole[key]


def curve(folder: Path) -> list[float]:
    """Loss by loss, and perplexity by perplexity."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [value for line in lines for name, value in line.items() if name.startswith(("loss", "heldout"))]


def difference(found: list[float], expected: list[float]) -> float:
    """The largest relative difference; of curves of different length, infinity."""
    if len(found) != len(expected):
        return float("inf")
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


def outcome(folder: Path) -> dict[str, str]:
    """SHA-256 of what a run ends with."""
    last = max((folder / "checkpoints").glob("step-*"), default=folder)
    paths = {"weights": last / "weights.safetensors", "optimizer": last / "optimizer.safetensors"}
    paths |= {"state": last / "state.safetensors", "log": folder / "log.jsonl"}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"
        for name, path in paths.items()
    }


# --- the bars --------------------------------------------------------------------------------------------


def compare_curves(arena: Arena, softmax: str, n_steps: int, worlds: list[int], most: float) -> None:
    """The losses of runs with so many ranks each, and of one whose number of ranks changes on the way."""

    def show(ranks: str, folder: Path) -> None:
        found = difference(curve(folder), expected)
        print(f"{softmax:<10}{ranks:<26}{found:>28.1e}", flush=True)
        if not found <= most:
            arena.problems.append(f"{softmax} softmax, {ranks} ranks: differs by {found:.1e}")

    options = {"n_steps": n_steps, "n_samples": SAMPLES[softmax]}
    expected = curve(arena.undisturbed(1, options)[0])
    for world in worlds:
        show(str(world), arena.undisturbed(world, options)[0])
    if len(worlds) > 1 and softmax == "sampled":
        signals = (signal.SIGTERM, signal.SIGINT)
        stops = list(zip(worlds, signals, strict=False))
        told = ", ".join(f"{world}, {by.name}" for world, by in stops)
        show(f"{told}, 1", changed_on_the_way(arena, options, stops))


def changed_on_the_way(
    arena: Arena, options: dict[str, Any], stops: list[tuple[int, signal.Signals]]
) -> Path:
    """Stop torchrun itself by a signal, go on with other ranks, and at last with one process."""
    folder = arena.folder()
    log = folder / "log.jsonl"
    for number, (world, by) in enumerate(stops, start=1):
        stop_at = number * options["n_steps"] // (len(stops) + 1)
        run = arena.start(world, folder, options, pause_at=stop_at)
        run.wait_for(lambda s=stop_at: log.exists() and log.read_bytes().count(b'"loss"') >= s)
        run.living_ranks()
        run.process.send_signal(by)
        if run.code() == 0:
            arena.problems.append(f"{world} ranks: {by.name} at torchrun did not stop it")
        arena.problems += [f"{world} ranks: {by.name} leaves process {pid}" for pid in run.left_over()]
    work(arena.corpus, folder, options)
    return folder


@dataclass
class Kills:
    """What was killed, and when."""

    by_rank: list[int]
    in_start: int = 0
    in_checkpoint: int = 0

    @property
    def done(self) -> int:
        """All of them."""
        return sum(self.by_rank)


def kill_ranks(arena: Arena, n_ranks: int, *, n_steps: int, kills: int, chance: random.Random) -> None:
    """Kill one rank after another; a run that gets through all the same is compared, and another begun."""
    options = {"n_steps": n_steps, "n_samples": SAMPLES["sampled"]}
    whole, seconds = arena.undisturbed(n_ranks, options)
    expected = outcome(whole)
    struck, runs = Kills([0] * n_ranks), 0
    equal = dict.fromkeys(expected, True)
    while struck.done < kills:
        runs += 1
        folder = arena.folder()
        run = arena.start(n_ranks, folder, options, window_resets=kills)
        while struck.done < kills and kill_one(
            run, folder, struck, chance, seconds=seconds, window=n_steps // 5
        ):
            pass
        arena.finish(run, f"{n_ranks} ranks, after {struck.done} kills")
        if arena.problems:
            return
        equal = {name: is_so and outcome(folder)[name] == expected[name] for name, is_so in equal.items()}
    arena.problems += [f"{n_ranks} ranks: {name} differs" for name, is_so in equal.items() if not is_so]
    ranks = ", ".join(map(str, struck.by_rank))
    same = ", ".join(name for name, is_so in equal.items() if is_so)
    print(
        f"{n_ranks:<7}{struck.done:<7}{ranks:<15}{struck.in_start:<10}{struck.in_checkpoint:<17}{runs:<6}{same}",
        flush=True,
    )


def kill_one(
    run: Run, folder: Path, struck: Kills, chance: random.Random, *, seconds: float, n_steps: int
) -> bool:
    """Kill any rank, as it starts or at one of its next steps; False when the run ended before."""
    before = set(run.ranks)
    if not run.wait_for(lambda: len(run.living_ranks() - before) == run.n_ranks):
        return False
    living = sorted(run.living_ranks())  # the first was begun first: rank 0
    is_in_start = chance.random() < 0.25
    if is_in_start:
        time.sleep(chance.uniform(0, seconds))
    else:
        path, wanted = telling(folder, living[0]), chance.uniform(1, n_steps)
        if not run.wait_for(lambda: path.exists() and path.stat().st_size >= wanted):
            return False
        time.sleep(chance.uniform(0, 0.05))
    victim = chance.randrange(run.n_ranks)
    if run.process.poll() is not None or not is_alive(living[victim]):
        return False
    struck.in_checkpoint += any((folder / "checkpoints").glob(".*.part"))
    struck.in_start += not telling(folder, living[0]).exists()
    os.kill(living[victim], signal.SIGKILL)
    struck.by_rank[victim] += 1
    return True


def main() -> int:
    """Print the tables; 1 when anything differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--window", type=int, default=200)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="of the loss curves")
    parser.add_argument(
        "--softmax", nargs="+", choices=SAMPLES, default=list(SAMPLES), help="of the loss curves"
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--killed-ranks", type=int, nargs="+", default=[2], help="one of so many is killed")
    parser.add_argument("--most", type=float, default=1e-5, help="the largest difference that is allowed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--place", help="where runs write; a temporary folder, unless given")
    for name in ("--work", "--corpus", "--folder", "--pause-at"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        pause_at = None if options.pause_at is None else int(options.pause_at)
        work(Path(options.corpus), Path(options.folder), json.loads(options.work), pause_at)
        return 0
    if not Path("/proc/self/task").is_dir():
        print("this benchmark finds its processes in /proc, which is not there", file=sys.stderr)
        return 2
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="elmo-ranks-", dir=options.place) as place:
        arena = Arena(Path(place))
        print(f"{options.steps} steps in float64 against one process, the same negatives")
        print(f"{'softmax':<10}{'ranks':<26}{'largest relative difference':>28}", flush=True)
        for softmax in options.softmax:
            compare_curves(arena, softmax, options.steps, options.ranks, options.most)
        if options.kills:
            print(
                "ranks  kills  of each rank   at start  in a checkpoint  runs  equal to the bit", flush=True
            )
        for world in options.killed_ranks if options.kills else []:
            chance = random.Random(options.seed)
            kill_ranks(arena, world, window=options.steps, kills=options.kills, random=chance)
    print(f"{time.monotonic() - began:.0f} s")
    for problem in arena.problems[:20]:
        print(problem, file=sys.stderr)
    print("all as it should be" if not arena.problems else f"{len(arena.problems)} problems")
    return 1 if arena.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
