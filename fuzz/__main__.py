"""Fuzz the readers.

    python -m fuzz --short                          a few thousand inputs per target, as in the tests
    python -m fuzz --inputs 1000000                 long runs; add --targets hdf5 zip to choose
    python -m fuzz --inputs 1000000 --guided        with coverage feedback by atheris, one process per target
    python -m fuzz --write-corpora                  write the example inputs again

Inputs with a problem are kept in ``fuzz/found``. The exit code is 1 if there is a problem.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # atheris must see the first import
    from fuzz.targets import Target
    from fuzz.watch import Watch

ROOT = Path(__file__).resolve().parents[1]
CORPORA, FOUND = ROOT / "fuzz" / "corpora", ROOT / "fuzz" / "found"
MAX_PROBLEMS = 20  # of a target


def main() -> int:
    """Run the targets; return 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--inputs", type=int, default=100_000, help="inputs per target; default: 100,000")
    parser.add_argument("--short", action="store_true", help="a few hundred to a few thousand inputs per target")
    parser.add_argument("--guided", action="store_true", help="choose inputs by coverage (pip install atheris)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write-corpora", action="store_true", help="write the example inputs to fuzz/corpora")
    parser.add_argument("--list", action="store_true", help="list the targets")
    options = parser.parse_args()
    if options.guided and len(options.targets) != 1:
        return _run_each(options)
    if options.guided:
        import atheris

        with atheris.instrument_imports(include=["elmo"]):  # pyright: ignore[reportAttributeAccessIssue]
            from fuzz.targets import all_targets
    else:
        from fuzz.targets import all_targets
    targets = [target for target in all_targets() if not options.targets or target.name in options.targets]
    if options.list:
        print("\n".join(target.name for target in targets))
        return 0
    if options.write_corpora:
        for target in targets:
            _write_corpus(target)
        return 0
    return _run_all(targets, options)


def _run_each(options: argparse.Namespace) -> int:
    """Run each target in its own process, because atheris never returns."""
    from fuzz.targets import all_targets

    names = options.targets or [target.name for target in all_targets()]
    codes = []
    for name in names:
        command = [sys.executable, "-m", "fuzz", "--guided", "--targets", name, "--inputs", str(options.inputs)]
        codes.append(subprocess.run([*command, "--seed", str(options.seed)], cwd=ROOT, check=False).returncode)
    return int(any(codes))


def _write_corpus(target: Target) -> None:
    folder = CORPORA / target.name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for number, seed in enumerate(target.seeds()):
        (folder / f"{number:02d}").write_bytes(seed)


def _run_all(targets: list[Target], options: argparse.Namespace) -> int:
    import torch

    from fuzz.watch import Watch

    torch.set_num_threads(1)
    logging.disable()
    warnings.simplefilter("ignore")
    has_problems = False
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    print(f"{'target':<22}{'inputs':>9}{'refused':>9}{'loaded':>9}{'problems':>9}{'seconds':>9}{'inputs/s':>10}")
    with tempfile.TemporaryDirectory(prefix="elmo-fuzz-", dir=memory) as name:
        tempfile.tempdir = name  # temporary folders of elmo are in memory, too
        watch = Watch(Path(name))
        for target in targets:
            folder = Path(name) / target.name
            folder.mkdir()
            run = _Run(target, watch, folder, options.seed)
            run.warm_up()
            for seed in run.seeds:
                run.one(seed)
            if not watch.n_loaded:
                run.add_problem("no example is accepted")
            n_inputs = target.n_short if options.short else options.inputs
            if options.guided:
                run.guided(n_inputs, folder)  # ends the process
            rng = random.Random(f"{target.name} {options.seed}")
            run.blind(n_inputs, rng)
            run.report()
            has_problems |= bool(run.n_problems)
    return int(has_problems)


class _Run:
    """The run of one target."""

    def __init__(self, target: Target, watch: Watch, folder: Path, seed: int) -> None:
        self.target, self.watch, self.seed = target, watch, seed
        self.seeds = [path.read_bytes() for path in sorted((CORPORA / target.name).iterdir())]
        self.read = target.prepare(folder)
        self.n_inputs = self.n_problems = 0
        self.begin = time.monotonic()
        watch.n_refused = watch.n_loaded = 0

    def warm_up(self) -> None:
        """Import what the reader needs."""
        for seed in self.seeds:
            with contextlib.suppress(*self.target.accepted):
                self.read(seed)

    def one(self, data: bytes) -> None:
        """Read one input, and keep it if there is a problem."""
        self.n_inputs += 1
        problem = self.watch.run(self.read, data, self.target.accepted)
        if problem is not None:
            self.add_problem(problem, data)

    def add_problem(self, problem: str, data: bytes = b"") -> None:
        """Print a problem, and keep its input."""
        self.n_problems += 1
        folder = FOUND / self.target.name
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / f"{self.n_problems:04d}"
        kept.write_bytes(data)
        print(f"{self.target.name}: {problem}: kept in {kept.relative_to(ROOT)}", flush=True)

    def blind(self, n_inputs: int, rng: random.Random) -> None:
        """Read random mutations."""
        from fuzz.mutate import mutate

        while self.n_inputs < n_inputs and self.n_problems < MAX_PROBLEMS:
            self.one(mutate(self.seeds, rng))

    def guided(self, n_inputs: int, folder: Path) -> None:
        """Read inputs that atheris chooses by coverage, and end the process."""
        import atheris

        def test(data: bytes) -> None:
            self.one(data)
            if self.n_inputs >= n_inputs or self.n_problems >= MAX_PROBLEMS:
                self.report()
                sys.stdout.flush()
                os._exit(int(bool(self.n_problems)))

        discovered = folder / "discovered"  # atheris writes inputs with new coverage to its first folder
        discovered.mkdir()
        seed = str(self.seed + 1)
        arguments = [sys.argv[0], "-verbosity=0", "-max_len=20000", f"-seed={seed}", "-rss_limit_mb=0", "-timeout=600"]
        atheris.Setup([*arguments, str(discovered), str(CORPORA / self.target.name)], test, enable_python_coverage=True)
        atheris.Fuzz()

    def report(self) -> None:
        """Print a row of the table."""
        seconds = time.monotonic() - self.begin
        numbers = f"{self.n_inputs:>9,}{self.watch.n_refused:>9,}{self.watch.n_loaded:>9,}{self.n_problems:>9}"
        print(f"{self.target.name:<22}{numbers}{seconds:>9.1f}{self.n_inputs / seconds:>10,.0f}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
