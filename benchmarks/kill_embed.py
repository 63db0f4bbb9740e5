"""Kill embedding jobs at random times, resume them, and compare every byte with an uninterrupted run.

    python benchmarks/kill_embed.py --kills 50
    python benchmarks/kill_embed.py --kills 10 --workers 2 --suffixes .parquet

For each output format, a job with a tiny model is started, killed (SIGKILL) after a random time and started
again until it finishes; then the next job starts, up to ``--kills`` kills. After every kill, each file with a
final name must be complete; at the end, files and bytes must be equal. One process imports everything once
and forks the jobs, so that the time is spent in the jobs. With ``--workers``, a job is started or resumed at
random with one process or with several workers; the workers of a killed job must end and release its lock.
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
from elmo.jobs.plan import EmbedJob  # noqa: E402
from elmo.jobs.reader import read_embeddings  # noqa: E402
from elmo.jobs.run import embed_corpus  # noqa: E402
from elmo.jobs.writers import SUFFIXES, check_libraries  # noqa: E402
from elmo.storage.atomic import hold_lock  # noqa: E402

LINES = ["The river bank .", "", "A/b c", "The river bank .", "café 河岸 \x00 x", "one two three four five six"]


def main() -> int:
    """Print a table of kills and results; return 1 if any byte differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="kills per format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="folder of the output (default: a temporary folder)")
    parser.add_argument("--suffixes", nargs="+", default=[s for s in SUFFIXES if s != ".h5"])
    parser.add_argument("--workers", type=int, default=1, help="worker processes of a job")
    options = parser.parse_args()
    torch.set_num_threads(1)
    elmo = Elmo(tiny_model(), tokenizer="whitespace")
    rng = random.Random(options.seed)
    problems: list[str] = []
    print(f"{'format':<13}{'kills':>6}{'jobs':>6}{'resumed past a shard':>22}{'seconds':>9}")
    with tempfile.TemporaryDirectory(prefix="elmo-kill-", dir=options.folder) as name:
        folder = Path(name)
        text = folder / "text.txt"
        text.write_text("\n".join(LINES * 4) + "\n", encoding="utf-8")
        for suffix in options.suffixes:
            check_libraries(suffix)
            problems += kill_format(suffix, folder, text, elmo, rng=rng, kills=options.kills, workers=options.workers)
    for problem in problems:
        print(problem, file=sys.stderr)
    print("all bytes equal" if not problems else f"{len(problems)} problems")
    return 1 if problems else 0


def kill_format(
    suffix: str, folder: Path, text: Path, elmo: Elmo, *, rng: random.Random, kills: int, workers: int
) -> list[str]:
    """Kill and resume jobs of one format; return the problems."""
    start = time.monotonic()
    output = folder / "job"

    def job(workers: int = 1) -> EmbedJob:
        out = output / f"vectors{suffix}"
        return EmbedJob((str(text),), out, layers="all", shard_tokens=15, batch_size=2, workers=workers)

    elmo.encode([["a"]])  # chooses kernels once here; otherwise most kills would come during that
    durations = {1: run_job(job(), elmo) or 0.0}
    expected = contents(output)
    tokens = [encoding.tokens for encoding in read_embeddings(output / f"vectors{suffix}")]
    problems = (
        [] if tokens == [tuple(line.split()) for line in LINES * 4] else [f"{suffix}: lines are missing or repeated"]
    )
    if workers > 1:
        shutil.rmtree(output)
        durations[workers] = run_job(job(workers), elmo) or 0.0
        if contents(output) != expected:
            problems.append(f"{suffix}: {workers} workers wrote different bytes than one process")
    n_kills = n_jobs = n_midway = 0
    while n_kills < kills:
        shutil.rmtree(output)
        n_jobs += 1
        patience = 1.0  # grows, so that a job finishes on a slow machine
        while True:
            n = rng.choice((1, workers))
            if run_job(job(n), elmo, kill_after=patience * rng.uniform(0, durations[n])) is not None:
                break
            patience *= 1.2
            n_kills += 1
            now = contents(output) if output.exists() else {}
            n_midway += any("00000" in name for name in now)
            incomplete = [name for name, data in now.items() if is_final(name) and expected.get(name, data) != data]
            problems += [f"{suffix}: {name} is incomplete after kill {n_kills}" for name in incomplete]
        if contents(output) != expected:
            problems.append(f"{suffix}: job {n_jobs} ended with different bytes: {sorted(contents(output))}")
    shutil.rmtree(output)
    print(f"{suffix:<13}{n_kills:>6}{n_jobs:>6}{n_midway:>22}{time.monotonic() - start:>9.1f}", flush=True)
    return problems


def run_job(job: EmbedJob, elmo: Elmo, *, kill_after: float | None = None) -> float | None:
    """Run a job in a child process; return its seconds, or None if it was killed."""
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            embed_corpus(job, elmo)
            status = 0
        finally:
            os._exit(status)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)  # not waited for yet, so the id still belongs to the child
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        wait_for_workers(OutputFiles(Path(job.out or "")).lock)
        return None
    if os.WEXITSTATUS(status) != 0:
        raise SystemExit(f"{job.out}: the job failed")
    return time.monotonic() - start


def wait_for_workers(lock: Path) -> None:
    """Wait until the workers of a killed job have released its lock."""
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
    """Return the content of every file in a folder, by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def is_final(name: str) -> bool:
    """Return whether a file must be complete at all times; manifests grow, and hidden files are temporary."""
    return not Path(name).name.startswith(".") and not name.endswith(".manifest.json")


if __name__ == "__main__":
    raise SystemExit(main())
