"""Embed a corpus on real clusters of Ray and Spark on this machine: equal bytes, scaling, kills, a late worker.

usage: cluster_jobs.py TEXT [SECTION ...] [--runners ray spark] [--model en] [--tokens 1000000] [--kills 20]
       [--driver-kills 5]

TEXT has one tokenized sentence per line (.xz is supported). Run it with the interpreter of ``make engines``. The
expected bytes are those of ``elmo embed`` with one process; each job is compared with them by SHA-256.

Sections:
    scaling       1 and 2 workers with one thread each. The speed is that after the first shard of each worker, so that
                  starting the engine and loading the models does not count. ``local`` is ``elmo embed --workers``.
    worker-kills  SIGKILL of a random worker, again and again, until the job ends.
    driver-kills  SIGKILL of the driver with all its processes at random times; the job is resumed each time.
    late-worker   A cluster with room for one worker gets a second machine in the middle of the job.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from embedding_jobs import write_text

SECTIONS = ("scaling", "worker-kills", "driver-kills", "late-worker")
MARKS = {"ray": "ray::_Actor", "spark": "pyspark.daemon", "local": "elmo.jobs.workers"}
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_AUTH_MODE": "disabled",
    "PYSPARK_PYTHON": sys.executable,
}


@dataclass(frozen=True)
class Bench:
    """What all jobs have in common.

    Attributes:
        text: The text of the jobs.
        folder: Folder of the outputs.
        model: The model.
        n_tokens: Number of tokens in the text.
        shard_tokens: Largest number of tokens in a shard.
    """

    text: Path
    folder: Path
    model: str
    n_tokens: int
    shard_tokens: int

    def start(self, name: str, runner: str, n_workers: int, *, cluster: str | None = None) -> Driver:
        """Start a job, or resume it if its output exists."""
        out = self.folder / name / "v.safetensors"
        out.parent.mkdir(exist_ok=True)
        command = [sys.executable, __file__, str(self.text), "--job", str(out), runner, str(n_workers), cluster or ""]
        command += ["--model", self.model, "--shard-tokens", str(self.shard_tokens)]
        log = out.parent.with_suffix(".log").open("ab")
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, start_new_session=True, env={**os.environ, **ENVIRONMENT}
        )
        return Driver(process, out)


@dataclass(frozen=True)
class Driver:
    """The driver of a job, in its own process group, and its output."""

    process: subprocess.Popen[bytes]
    out: Path

    def finish(self) -> list[tuple[float, int]]:
        """Wait for the end; return the times at which shards were complete, and the tokens until then."""
        printed, _ = self.process.communicate()
        if self.process.returncode:
            log = self.out.parent.with_suffix(".log")
            sys.exit(f"the job failed with exit code {self.process.returncode}: {log.read_text()[-500:]}")
        return [tuple(pair) for pair in json.loads(printed.splitlines()[-1])]

    @property
    def gave_up_on_a_shard(self) -> bool:
        """Whether the job has ended because a shard lost its worker in all attempts. Resuming it is expected."""
        last = self.out.parent.with_suffix(".log").read_text().rstrip().rpartition("\n")[2]
        return bool(self.process.returncode) and "times with the same shard; run the job again" in last

    @property
    def n_shards(self) -> int:
        """Number of complete shards."""
        return len(list(self.out.parent.glob("*.safetensors")))

    def digest(self) -> str:
        """Return the SHA-256 of all files of the output, with their names."""
        digest = hashlib.sha256()
        for path in sorted(self.out.parent.rglob("*")):
            if path.is_file():
                digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()


def main() -> None:
    """Run the sections."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []])
    parser.add_argument("--runners", nargs="+", default=["ray", "spark"], choices=["ray", "spark", "local"])
    parser.add_argument("--model", default="en")
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--shard-tokens", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=2, help="number of rounds of scaling")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--driver-kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--job", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        run_job(options.text, *options.job, model=options.model, shard_tokens=options.shard_tokens)
        return
    random.seed(options.seed)
    with tempfile.TemporaryDirectory(prefix="elmo-") as name:
        text = Path(name) / "text.txt"
        n_tokens = write_text(options.text, text, options.tokens)
        bench = Bench(text, Path(name), options.model, n_tokens, options.shard_tokens)
        driver = bench.start("one", "local", 1)
        driver.finish()
        expected = driver.digest()
        print(f"{n_tokens:,} tokens, {driver.n_shards} shards; one process: SHA-256 {expected[:16]}", flush=True)
        sections: dict[str, Callable[[str], None]] = {
            "scaling": lambda runner: measure_scaling(bench, runner, expected, n_rounds=options.rounds),
            "worker-kills": lambda runner: kill_workers(bench, runner, expected, n_kills=options.kills),
            "driver-kills": lambda runner: kill_drivers(bench, runner, expected, n_kills=options.driver_kills),
            "late-worker": lambda runner: add_worker(bench, runner, expected),
        }
        for section in options.sections or SECTIONS:
            for runner in options.runners:
                if section != "late-worker" or runner != "local":
                    sections[section](runner)


def run_job(text: Path, out: str, runner: str, n_workers: str, cluster: str, *, model: str, shard_tokens: int) -> None:
    """Run a job in this process; print when shards were complete."""
    import torch

    from elmo import Elmo
    from elmo.jobs import EmbedJob, Progress, embed_corpus

    torch.set_num_threads(1)
    times: list[tuple[float, int]] = []

    def note(progress: Progress) -> None:
        if progress.stage == "embedding":
            times.append((time.monotonic(), progress.tokens))

    job = EmbedJob(
        (str(text),), Path(out), input_format="tokens", shard_tokens=shard_tokens, workers=int(n_workers),
        runner=runner, cluster=cluster or None,  # type: ignore[arg-type]
    )  # fmt: skip
    embed_corpus(job, Elmo.from_pretrained(model), on_progress=note)
    print(json.dumps(times))


def measure_scaling(bench: Bench, runner: str, expected: str, *, n_rounds: int) -> None:
    """Compare one and two workers in turn."""
    speeds: dict[int, list[float]] = {1: [], 2: []}
    equal = True
    for number in range(n_rounds):
        for n_workers in (1, 2):
            driver = bench.start(f"{runner}-{n_workers}-{number}", runner, n_workers)
            times = driver.finish()
            equal &= driver.digest() == expected
            distinct = [pair for pair, after in pairwise([*times, (0.0, -1)]) if pair[1] != after[1]]
            (begin, first), (end, last) = distinct[n_workers - 1], distinct[-1]
            speeds[n_workers].append((last - first) / (end - begin))
    ratio = max(two / one for one, two in zip(speeds[1], speeds[2], strict=True))
    rates = {n: ", ".join(f"{rate:,.0f}" for rate in rates) for n, rates in speeds.items()}
    print(
        f"{runner:6} 1 worker {rates[1]} tokens/s, 2 workers {rates[2]}: best ratio {ratio:.2f}; {_same(equal)}",
        flush=True,
    )


def kill_workers(bench: Bench, runner: str, expected: str, *, n_kills: int) -> None:
    """Kill random workers until the number of kills is reached; a job that ends before is followed by another."""
    n_killed, n_jobs, n_resumed, equal = 0, 0, 0, True
    while n_killed < n_kills:
        name = f"{runner}-workers-{n_jobs}"
        driver = bench.start(name, runner, 2)
        while n_killed < n_kills:
            if driver.process.poll() is not None:
                if not driver.gave_up_on_a_shard:
                    break
                driver = bench.start(name, runner, 2)
                n_resumed += 1
            time.sleep(random.uniform(0.5, 4.0))
            workers = find_workers(runner, driver.process.pid)
            if workers and driver.n_shards:
                with suppress(ProcessLookupError):
                    os.kill(random.choice(workers), signal.SIGKILL)
                    n_killed += 1
        if driver.process.wait() and driver.gave_up_on_a_shard:
            driver = bench.start(name, runner, 2)
            n_resumed += 1
        driver.finish()
        equal &= driver.digest() == expected
        n_jobs += 1
    print(
        f"{runner:6} {n_killed} workers killed in {n_jobs} jobs, resumed {n_resumed} times after four kills at one "
        f"shard: {_same(equal)}",
        flush=True,
    )


def kill_drivers(bench: Bench, runner: str, expected: str, *, n_kills: int) -> None:
    """Kill the driver at random times, and resume the job, until the number of kills is reached."""
    n_killed, n_jobs, equal = 0, 0, True
    while n_killed < n_kills:
        name = f"{runner}-driver-{n_jobs}"
        while n_killed < n_kills:
            driver = bench.start(name, runner, 2)
            before = driver.n_shards
            while driver.process.poll() is None and driver.n_shards < before + 2:
                time.sleep(0.05)
            time.sleep(random.uniform(0.0, 3.0))
            if driver.process.poll() is not None:
                break
            driver.process.kill()
            driver.process.wait()
            n_killed += 1
        driver = bench.start(name, runner, 2)
        driver.finish()
        equal &= driver.digest() == expected
        n_jobs += 1
    print(f"{runner:6} driver killed {n_killed} times in {n_jobs} jobs: {_same(equal)}", flush=True)


def add_worker(bench: Bench, runner: str, expected: str) -> None:
    """Start a cluster with room for one worker; add room for the second one in the middle of the job."""
    with start_cluster(runner) as (address, add_machine):
        driver = bench.start(f"{runner}-late", runner, 2, cluster=address)
        wanted = driver.n_shards + 10
        while driver.process.poll() is None and driver.n_shards < wanted:
            time.sleep(0.1)
        before = len(find_workers(runner, None))
        add_machine()
        most = before
        while driver.process.poll() is None:
            most = max(most, len(find_workers(runner, None)))
            time.sleep(0.3)
        driver.finish()
        equal = driver.digest() == expected
        print(f"{runner:6} workers before and after a machine was added: {before}, {most}: {_same(equal)}", flush=True)


@contextmanager
def start_cluster(runner: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """Start a cluster of one machine with one core; yield its address and a function that adds another machine."""
    environment = {**os.environ, **ENVIRONMENT, "SPARK_LOCAL_IP": "127.0.0.1"}
    processes: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> None:
        processes.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
        )

    port = _free_port()
    if runner == "ray":
        ray = str(Path(sys.executable).with_name("ray"))
        node = [ray, "start", "--block", "--num-cpus=1", "--disable-usage-stats"]
        address = f"127.0.0.1:{port}"
        start(*node, "--head", f"--port={port}", "--include-dashboard=false")

        def add_machine() -> None:
            start(*node, f"--address={address}")

    else:
        import pyspark

        home = Path(pyspark.__file__).parent
        run, address = str(home / "bin" / "spark-class"), f"spark://127.0.0.1:{port}"
        deploy = "org.apache.spark.deploy"

        def add_machine() -> None:
            work = tempfile.mkdtemp(prefix="elmo-")
            start(run, f"{deploy}.worker.Worker", "-c", "1", "-m", "2g", "-d", work, address)

        start(run, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        add_machine()
    try:
        _wait_for(port)
        time.sleep(6)  # until the first machine has joined
        yield address, add_machine
    finally:
        for process in reversed(processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def find_workers(runner: str, driver: int | None) -> list[int]:
    """Return the processes that make shards, of this driver or (None) of all drivers."""
    parents: dict[int, int] = {}
    lines: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError, ValueError):
                lines[int(folder.name)] = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    mark = MARKS[runner]
    found = [pid for pid, line in lines.items() if mark in line]
    if runner == "spark":
        found = [pid for pid in found if mark in lines.get(parents[pid], "")]  # the daemon forks the workers
    if driver is None:
        return found
    return [pid for pid in found if runner == "ray" or _descends(pid, driver, parents)]


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != ancestor:
        pid = parents[pid]
    return pid == ancestor


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.2)
    sys.exit("the cluster did not start")


def _same(equal: bool) -> str:
    return "the same bytes" if equal else "OTHER BYTES !"


if __name__ == "__main__":
    main()
