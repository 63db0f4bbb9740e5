"""Train with torchrun and gloo: compare loss curves with one process, kill ranks, compare every byte.

    python benchmarks/distributed.py --kills 20

The models are very small; a batch has ten rows, which four ranks cannot divide evenly; float64, no dropout.

- Curves: the loss of every step with 2 and 4 ranks, and of a run that is stopped and resumed with another
  number of ranks, compared with one process.
- Kills: a random rank is killed (SIGKILL) at random times, while it starts or trains; torchrun restarts all
  ranks. Weights, optimizer, state and log must have the bytes of an undisturbed run.

No run may hang, and no process may be left. Most of the time is spent on starting Python.
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
TIMEOUT = 900.0  # seconds
SAMPLES: dict[str, int | None] = {"sampled": 20, "full": None}


# --- one rank ---------------------------------------------------------------------------------


def work(corpus: Path, folder: Path, options: dict[str, Any], pause_at: int | None = None) -> None:
    """Train as the script of a user would; rank 0 counts its reports and may wait to be stopped."""
    sys.path[:0] = [str(ROOT / "src")]
    from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig
    from elmo.train.corpus import Corpus
    from elmo.train.distributed import join_ranks
    from elmo.train.loop import StepReport, Trainer
    from elmo.train.options import DropoutOptions, TrainOptions

    def count(report: StepReport) -> None:
        with report_file(folder, os.getpid()).open("ab") as file:
            file.write(b".")
        if pause_at is not None and report.step >= pause_at:
            time.sleep(TIMEOUT)

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
        Trainer(Corpus.open(corpus), config, settings, folder, ranks=ranks).run(count)


def report_file(folder: Path, pid: int) -> Path:
    """Return the file that gets a byte for every report of a process."""
    return folder / f"reports.{pid}"


# --- runs ---------------------------------------------------------------------------------------


@dataclass
class Run:
    """One start of torchrun."""

    n_ranks: int
    process: subprocess.Popen[bytes]
    stderr: Path
    ranks: set[int] = field(default_factory=set)  # all ranks seen so far

    def living_ranks(self) -> set[int]:
        """Return the ids of the running ranks."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        try:
            pids = {int(pid) for pid in path.read_text().split()}
        except OSError:
            return set()
        pids = {pid for pid in pids if is_alive(pid) and b"--folder" in read_command(pid)}
        self.ranks |= pids
        return pids

    def wait_for(self, condition: Callable[[], object]) -> bool:
        """Wait for a condition; return False if the run ended before."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            if condition():
                return True
            if self.process.poll() is not None:
                return False
            time.sleep(0.005)
        self.end()
        raise SystemExit(f"a run of {self.n_ranks} ranks hangs:\n{self.stderr_tail()}")

    def end(self) -> None:
        """Kill all processes of the run."""
        for pid in {*self.ranks, *self.living_ranks(), self.process.pid}:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def code(self) -> int:
        """Wait for the end and return the exit code."""
        self.wait_for(lambda: self.living_ranks() and False)
        return self.process.wait()

    def left_over(self) -> list[int]:
        """Return ranks that are still running after a few seconds."""
        deadline = time.monotonic() + 5
        while (left := [pid for pid in self.ranks if is_alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def stderr_tail(self) -> str:
        """Return the end of stderr."""
        return self.stderr.read_text(errors="replace")[-3000:]


def read_command(pid: int) -> bytes:
    """Return the command line of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def is_alive(pid: int) -> bool:
    """Whether a process is running and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Arena:
    """A corpus and a folder for runs."""

    def __init__(self, place: Path) -> None:
        sys.path[:0] = [str(ROOT / "src")]
        import torch

        from elmo.train import CorpusOptions, build_corpus

        torch.set_num_threads(1)  # as torchrun sets for its processes
        self.place, self.corpus, self.number = place, place / "corpus", 0
        self.problems: list[str] = []
        self.whole: dict[tuple[int, str], tuple[Path, float]] = {}
        rng, words = random.Random(0), [f"w{i}" for i in range(80)]
        lines = (" ".join(rng.choices(words, k=rng.randint(2, 9))) for _ in range(120))
        (place / "text.txt").write_text("".join(f"{line}\n" for line in lines))
        build_corpus(place / "text.txt", self.corpus, CorpusOptions(input_format="tokens", heldout=10))

    def folder(self) -> Path:
        """Create a new folder."""
        self.number += 1
        folder = self.place / f"run-{self.number}"
        folder.mkdir()
        return folder

    def start(
        self, n_ranks: int, folder: Path, options: dict[str, Any], *, restarts: int = 0, pause_at: int | None = None
    ) -> Run:
        """Start or resume a run."""
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(n_ranks), "--max-restarts", str(restarts)]
        command += [__file__, "--work", json.dumps(options), "--corpus", str(self.corpus)]
        command += ["--folder", str(folder)] + (["--pause-at", str(pause_at)] if pause_at is not None else [])
        stderr = folder.with_suffix(".stderr")
        with stderr.open("ab") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return Run(n_ranks, process, stderr)

    def finish(self, run: Run, label: str) -> None:
        """Wait for the end of a run and record its problems."""
        code = run.code()
        if code:
            self.problems.append(f"{label}: ended with {code}: {run.stderr_tail()}")
        self.problems += [f"{label}: process {pid} is left" for pid in run.left_over()]

    def undisturbed(self, n_ranks: int, options: dict[str, Any]) -> tuple[Path, float]:
        """Return the folder of an undisturbed run and the seconds to its first step."""
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


def read_curve(folder: Path) -> list[float]:
    """Read all losses and perplexities of a log."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [value for line in lines for name, value in line.items() if name.startswith(("loss", "heldout"))]


def difference(found: list[float], expected: list[float]) -> float:
    """Return the largest relative difference; infinity for curves of different length."""
    if len(found) != len(expected):
        return float("inf")
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


def hash_outcome(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the final files of a run."""
    last = max((folder / "checkpoints").glob("step-*"), default=folder)
    paths = {"weights": last / "weights.safetensors", "optimizer": last / "optimizer.safetensors"}
    paths |= {"state": last / "state.safetensors", "log": folder / "log.jsonl"}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"
        for name, path in paths.items()
    }


# --- checks --------------------------------------------------------------------------------------------


def compare_curves(arena: Arena, softmax: str, n_steps: int, worlds: list[int], most: float) -> None:
    """Compare the losses of runs with several ranks, and of one whose number of ranks changes."""

    def show(ranks: str, folder: Path) -> None:
        largest = difference(read_curve(folder), expected)
        print(f"{softmax:<10}{ranks:<26}{largest:>28.1e}", flush=True)
        if not largest <= most:
            arena.problems.append(f"{softmax} softmax, {ranks} ranks: differs by {largest:.1e}")

    options = {"n_steps": n_steps, "n_samples": SAMPLES[softmax]}
    expected = read_curve(arena.undisturbed(1, options)[0])
    for world in worlds:
        show(str(world), arena.undisturbed(world, options)[0])
    if len(worlds) > 1 and softmax == "sampled":
        signals = (signal.SIGTERM, signal.SIGINT)
        stops = list(zip(worlds, signals, strict=False))
        label = ", ".join(f"{world}, {by.name}" for world, by in stops)
        show(f"{label}, 1", run_with_changes(arena, options, stops))


def run_with_changes(arena: Arena, options: dict[str, Any], stops: list[tuple[int, signal.Signals]]) -> Path:
    """Stop torchrun by a signal, resume with other ranks, and finally with one process."""
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
    """Number of kills by rank and time."""

    by_rank: list[int]
    in_start: int = 0
    in_checkpoint: int = 0

    @property
    def done(self) -> int:
        """Total number of kills."""
        return sum(self.by_rank)


def kill_ranks(arena: Arena, n_ranks: int, *, n_steps: int, kills: int, rng: random.Random) -> None:
    """Kill one rank after another. Each run that finishes is compared with an undisturbed one."""
    options = {"n_steps": n_steps, "n_samples": SAMPLES["sampled"]}
    whole, seconds = arena.undisturbed(n_ranks, options)
    expected = hash_outcome(whole)
    struck, runs = Kills([0] * n_ranks), 0
    equal = dict.fromkeys(expected, True)
    while struck.done < kills:
        runs += 1
        folder = arena.folder()
        run = arena.start(n_ranks, folder, options, restarts=kills)
        while struck.done < kills and kill_one(run, folder, struck, rng, seconds=seconds, n_steps=n_steps // 5):
            pass
        arena.finish(run, f"{n_ranks} ranks, after {struck.done} kills")
        if arena.problems:
            return
        equal = {name: is_equal and hash_outcome(folder)[name] == expected[name] for name, is_equal in equal.items()}
    arena.problems += [f"{n_ranks} ranks: {name} differs" for name, is_equal in equal.items() if not is_equal]
    ranks = ", ".join(map(str, struck.by_rank))
    same = ", ".join(name for name, is_equal in equal.items() if is_equal)
    print(
        f"{n_ranks:<7}{struck.done:<7}{ranks:<15}{struck.in_start:<10}{struck.in_checkpoint:<17}{runs:<6}{same}",
        flush=True,
    )


def kill_one(run: Run, folder: Path, struck: Kills, rng: random.Random, *, seconds: float, n_steps: int) -> bool:
    """Kill a random rank while it starts or trains; return False if the run ended before."""
    before = set(run.ranks)
    if not run.wait_for(lambda: len(run.living_ranks() - before) == run.n_ranks):
        return False
    living = sorted(run.living_ranks())  # rank 0 was started first
    is_in_start = rng.random() < 0.25
    if is_in_start:
        time.sleep(rng.uniform(0, seconds))
    else:
        path, n_reports = report_file(folder, living[0]), rng.uniform(1, n_steps)
        if not run.wait_for(lambda: path.exists() and path.stat().st_size >= n_reports):
            return False
        time.sleep(rng.uniform(0, 0.05))
    victim = rng.randrange(run.n_ranks)
    if run.process.poll() is not None or not is_alive(living[victim]):
        return False
    struck.in_checkpoint += any((folder / "checkpoints").glob(".*.part"))
    struck.in_start += not report_file(folder, living[0]).exists()
    os.kill(living[victim], signal.SIGKILL)
    struck.by_rank[victim] += 1
    return True


def main() -> int:
    """Print the tables; return 1 if anything differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="numbers of ranks for the loss curves")
    parser.add_argument(
        "--softmax", nargs="+", choices=SAMPLES, default=list(SAMPLES), help="softmax of the loss curves"
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--killed-ranks", type=int, nargs="+", default=[2], help="numbers of ranks for the kills")
    parser.add_argument("--most", type=float, default=1e-5, help="largest allowed difference")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--place", help="folder for the runs; default: a temporary one")
    for name in ("--work", "--corpus", "--folder", "--pause-at"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        pause_at = None if options.pause_at is None else int(options.pause_at)
        work(Path(options.corpus), Path(options.folder), json.loads(options.work), pause_at)
        return 0
    if not Path("/proc/self/task").is_dir():
        print("this benchmark needs /proc", file=sys.stderr)
        return 2
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="elmo-ranks-", dir=options.place) as place:
        arena = Arena(Path(place))
        print(f"{options.steps} steps in float64 compared with one process, same negatives")
        print(f"{'softmax':<10}{'ranks':<26}{'largest relative difference':>28}", flush=True)
        for softmax in options.softmax:
            compare_curves(arena, softmax, options.steps, options.ranks, options.most)
        if options.kills:
            print("ranks  kills  by rank        at start  in a checkpoint  runs  bit-identical", flush=True)
        for world in options.killed_ranks if options.kills else []:
            rng = random.Random(options.seed)
            kill_ranks(arena, world, n_steps=options.steps, kills=options.kills, rng=rng)
    print(f"{time.monotonic() - began:.0f} s")
    for problem in arena.problems[:20]:
        print(problem, file=sys.stderr)
    print("no problems" if not arena.problems else f"{len(arena.problems)} problems")
    return 1 if arena.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
