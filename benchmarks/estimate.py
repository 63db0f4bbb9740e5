"""Compare ``elmo embed --estimate`` with the job that it estimates: time, peak memory and bytes.

usage: estimate.py TEXT [--model en] [--tokens 1000000] [--workers 1 2] [--suffix .safetensors]

TEXT has one tokenized sentence per line (.xz is supported). For each number of workers, the job is estimated in a new
process and then run by the shell command. A ratio is the estimate divided by the measured value. The time is that of
the whole command, with loading the model. The memory is the largest sum of the proportional set sizes (PSS) of the
command and its workers, read every 50 ms whenever their resident memory has grown; the estimate is also a sum of PSS.

The last columns are the shares of the processors that other programs used during the estimate and during the job. If
they differ, so do the speeds, and the ratio of the times says nothing about the estimate.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Self

from embedding_jobs import write_text


def main() -> None:
    """Print a line for each number of workers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--model", default="en")
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--suffix", default=".safetensors")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.out:
        print_estimate(options.text, options.out, options.model, options.workers[0])
        return
    with tempfile.TemporaryDirectory(prefix="elmo-") as name:
        text = Path(name) / "text.txt"
        n_tokens = write_text(options.text, text, options.tokens)
        print(f"{n_tokens:,} tokens to {options.suffix}, model {options.model}")
        print(f"{'':9}{'seconds':^24}{'memory in MB':^24}{'output in MB':^24}{'other programs':>20}")
        heads = 3 * f"{'estimate':>9}{'job':>8}{'ratio':>7}"
        print(f"{'workers':9}{heads}{'estimate':>12}{'job':>8}", flush=True)
        for n_workers in options.workers:
            out = Path(name) / str(n_workers) / f"v{options.suffix}"
            out.parent.mkdir()
            command = [__file__, str(text), "--out", str(out), "--workers", str(n_workers), "--model", options.model]
            with OtherPrograms() as others_before:
                printed = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, check=True).stdout
            estimate = json.loads(printed)
            assert not list(out.parent.iterdir()), "the estimate left files behind"
            with OtherPrograms() as others:
                seconds, memory = run_job(text, out, options.model, n_workers)
            n_bytes = sum(path.stat().st_size for path in out.parent.rglob("*") if path.is_file())
            pairs = (
                (estimate["machines"][0]["hours"] * 3600, seconds),
                (estimate["memory_bytes"] / 1e6, memory / 1e6),
                (estimate["output_bytes"] / 1e6, n_bytes / 1e6),
            )
            cells = [f"{guess:9,.0f}{real:8,.0f}{guess / real:7.2f}" for guess, real in pairs]
            print(f"{n_workers:<9}{''.join(cells)}{others_before.share:12.0%}{others.share:8.0%}", flush=True)


class OtherPrograms:
    """Measures the share of the processors that other programs use in a context, which starts child processes."""

    share: float = 0.0

    def __enter__(self) -> Self:
        self._before = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        own, busy, total = (now - before for now, before in zip(self._read(), self._before, strict=True))
        self.share = max(0.0, busy - own) / total

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """Return the seconds of this process and its ended children, of all processes, and of the processors."""
        times = os.times()
        ticks = [int(value) for value in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        busy = sum(ticks) - ticks[3] - ticks[4]  # idle, waiting for the disk
        return sum(times[:4]), busy / os.sysconf("SC_CLK_TCK"), sum(ticks) / os.sysconf("SC_CLK_TCK")


def print_estimate(text: Path, out: Path, model: str, n_workers: int) -> None:
    """Print the estimate of a job as JSON."""
    from elmo import Elmo
    from elmo.jobs import EmbedJob, estimate_job

    job = EmbedJob((str(text),), out, input_format="tokens", workers=n_workers)
    print(json.dumps(asdict(estimate_job(job, Elmo.from_pretrained(model)))))


def run_job(text: Path, out: Path, model: str, n_workers: int) -> tuple[float, int]:
    """Run a job; return its seconds and its peak memory in bytes."""
    command = ["-m", "elmo", "--quiet", "embed", str(text), "--model", model, "--format", "tokens", "--out", str(out)]
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, *command, "--workers", str(n_workers)])
    resident = peak = 0
    while process.poll() is None:
        time.sleep(0.05)
        sizes = [read_size(pid, "Rss") for pid in read_processes(process.pid)]
        if sum(sizes) > 1.01 * resident:
            resident = sum(sizes)
            peak = max(peak, sum(read_size(pid, "Pss") for pid in read_processes(process.pid)))
    seconds = time.perf_counter() - begin
    if process.returncode:
        raise SystemExit(f"elmo embed exited with code {process.returncode}")
    return seconds, peak


def read_processes(pid: int) -> list[int]:
    """Return the ids of a process and of all processes that it has started."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
    return [pid, *(process for child in children for process in read_processes(child))]


def read_size(pid: int, kind: str) -> int:
    """Return the "Rss" or "Pss" of a process in bytes; 0 if it has ended."""
    try:
        if kind == "Rss":  # fast
            rows = Path(f"/proc/{pid}/status").read_text().splitlines()
            return sum(int(row.split()[1]) << 10 for row in rows if row.startswith("VmRSS:"))
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(row.split()[1]) << 10 for row in rows if row.startswith("Pss:"))
    except OSError:
        return 0


if __name__ == "__main__":
    main()
