"""Kill embedding jobs at random instants, resume them, and compare every byte with an undisturbed run.

    python benchmarks/kill_embed.py --kills 50
    python benchmarks/kill_embed.py --kills 10 --workers 2 --suffixes .parquet

For each output format: a job with a tiny model is started, killed (SIGKILL) after a random time, started
again, and so on until it ends by itself; then the next job begins, until that many kills have struck. After
every kill, each file under a final name must already be whole; at the end, files and bytes must be equal.
One process imports everything once and forks the jobs, so that the time is spent in the jobs themselves.
With ``--workers``, jobs are shared by so many processes, and after a kill gone on with by one or by many, as
chance wills; the workers of a killed job must end by themselves and so free its lock.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch  # noqa: E402
from tests.formats.tiny import tiny_model  # noqa: E402

from elmo.embed.elmo import Elmo  # noqa: E402
from elmo.errors import OutputError  # noqa: E402
from elmo.jobs.manifest import OutputFiles  # noqa: E402
from elmo.jobs.reader import read_embeddings  # noqa: E402
from elmo.jobs.plan import EmbedJob  # noqa: E402
from elmo.jobs.run import embed_corpus  # noqa: E402
from elmo.jobs.writers import SUFFIXES, check_libraries  # noqa: E402
from elmo.storage.atomic import hold_lock  # noqa: E402

LINES = [
    "The river bank .",
    "",
    "A/b c",
    "The river bank .",
    "café 河岸 \x00 x",
    "one two three four five six",
]


def main() -> int:
    """Print a table of kills and outcomes; 1 when any byte differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="for each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="where jobs write; a temporary folder, unless given")
    parser.add_argument("--suffixes", nargs="+", default=[s for s in SUFFIXES if s != ".h5"])
    parser.add_argument("--workers", type=int, default=1, help="processes that share a job")
    options = parser.parse_args()
    torch.set_num_threads(1)
    elmo = Elmo(tiny_model(), tokenizer="whitespace")
    chance = random.Random(options.seed)
    problems: list[str] = []
    print(f"{'format':<13}{'kills':>6}{'jobs':>6}{'resumed past a shard':>22}{'seconds':>9}")
    with tempfile.TemporaryDirectory(prefix="elmo-kill-", dir=options.folder) as name:
        folder = Path(name)
        text = folder / "text.txt"
        text.write_text("\n".join(LINES * 4) + "\n", encoding="utf-8")
        for suffix in options.suffixes:
            check_libraries(suffix)
            problems += kill_format(
                suffix, folder, text, elmo, chance=chance, kills=options.kills, workers=options.workers
            )
    for problem in problems:
        print(problem, file=sys.stderr)
    print("every byte equal" if not problems else f"{len(problems)} problems")
    return 1 if problems else 0


def kill_format(
    suffix: str, folder: Path, text: Path, elmo: Elmo, *, chance: random.Random, kills: int, workers: int
) -> list[str]:
    """What went wrong with one format."""
    began = time.monotonic()
    place = folder / "job"

    def job(workers: int = 1) -> EmbedJob:
        out = place / f"vectors{suffix}"
        return EmbedJob((str(text),), out, layers="all", shard_tokens=15, batch_size=2, workers=workers)

    elmo.encode([["a"]])  # products are tried out here, once: else most kills would strike while they are
    durations = {1: work(job(), elmo) or 0.0}
    expected = contents(place)
    found = [encoding.tokens for encoding in read_embeddings(place / f"vectors{suffix}")]
    problems = (
        [] if found == [tuple(line.split()) for line in LINES * 4] else [f"{suffix}: lines lost or doubled"]
    )
    if workers > 1:
        shutil.rmtree(place)
        durations[workers] = work(job(workers), elmo) or 0.0
        if contents(place) != expected:
            problems.append(f"{suffix}: {workers} workers wrote other bytes than one process")
    n_kills = n_jobs = n_midway = 0
    while n_kills < kills:
        shutil.rmtree(place)
        n_jobs += 1
        patience = 1.0  # grows, so that a job ends however slow the machine has become meanwhile
        while True:
            n = chance.choice((1, workers))
            if work(job(n), elmo, kill_after=patience * chance.uniform(0, durations[n])) is not None:
                break
            patience *= 1.2
            n_kills += 1
            now = contents(place) if place.exists() else {}
            n_midway += any("00000" in name for name in now)
            torn = [name for name, data in now.items() if is_final(name) and expected.get(name, data) != data]
            problems += [f"{suffix}: {name} is torn after kill {n_kills}" for name in torn]
        if contents(place) != expected:
            problems.append(f"{suffix}: job {n_jobs} ended with other bytes: {sorted(contents(place))}")
    shutil.rmtree(place)
    print(f"{suffix:<13}{n_kills:>6}{n_jobs:>6}{n_midway:>22}{time.monotonic() - began:>9.1f}", flush=True)
    return problems


def work(job: EmbedJob, elmo: Elmo, *, kill_after: float | None = None) -> float | None:
    """Run the job in a process of its own; its seconds, or None when it was killed."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run(job, elmo)
            status = 0
        finally:
            os._exit(status)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)  # not waited for yet, so the id is still the child's
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        wait_for_workers(OutputFiles(Path(job.out or "")).lock)
        return None
    if os.WEXITSTATUS(status) != 0:
        raise SystemExit(f"{job.out}: the job failed")
    return time.monotonic() - began


def wait_for_workers(lock: Path) -> None:
    """Until the lock that they share with their killed parent is free."""
    deadline = time.monotonic() + 60
    while lock.exists():
        try:
            with hold_lock(lock, subject=lock):
                return
        except OutputError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def is_final(name: str) -> bool:
    """Whether a file must be whole at all times; manifests grow, and hidden files are temporary."""
    return not Path(name).name.startswith(".") and not name.endswith(".manifest.json")


if __name__ == "__main__":
    raise SystemExit(main())
