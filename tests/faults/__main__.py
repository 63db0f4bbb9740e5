"""Run the fault matrix: every command that writes × every fault.

    python -m tests.faults                                 every command, every fault, calls of every kind
    python -m tests.faults --quick                         some commands, each fault once, as in ``make test``
    python -m tests.faults --commands train --faults SIGKILL --all      kill at every single system call
    python -m tests.faults --commands train index --faults "random kills" --limit 500

Prints one row per command, with the number of faults that were injected, and each problem in a line. The exit code is
1 if there is a problem.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import os
import pkgutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.faults.arena import can_trace, settle

settle()

import torch  # noqa: E402

import elmo  # noqa: E402
from elmo.cli import main as shell  # noqa: E402
from tests.faults.commands import COMMANDS, Command  # noqa: E402
from tests.faults.faults import FAULTS, Fault, run_command  # noqa: E402

QUICK_LIMIT = 1
USUAL_LIMIT = 12
LIBRARIES = (  # that commands import when they need them
    "h5py", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "matplotlib.figure", "onnx",
    "pyarrow.parquet", "scipy.stats", "sklearn.cluster", "sklearn.linear_model", "sklearn.metrics",
)  # fmt: skip


def import_everything() -> None:
    """Do once what each forked run would do at its start."""
    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(elmo.__path__, "elmo."):
        if not module.name.endswith("__main__") and not module.name.startswith("elmo.integrations"):
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.redirect_stderr(io.StringIO()):
        shell(["train"])  # imports the libraries for parsing options
    weight = torch.zeros(1, requires_grad=True)
    weight.grad = torch.zeros(1)
    torch.optim.Adagrad([weight]).step()


def choose(options: argparse.Namespace) -> tuple[list[Command], list[Fault]]:
    """Return the chosen commands and faults."""
    unknown = {*options.commands} - {c.name for c in COMMANDS} | {*options.faults} - {f.name for f in FAULTS}
    if unknown:
        names = ", ".join([*(repr(c.name) for c in COMMANDS), *(repr(f.name) for f in FAULTS)])
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; known: {names}")
    commands = [c for c in COMMANDS if c.name in options.commands] or list(COMMANDS)
    faults = [f for f in FAULTS if f.name in options.faults] or list(FAULTS)
    return [c for c in commands if c.quick] if options.quick else commands, faults


def main() -> int:
    """Run the matrix; return 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few commands, each fault once")
    parser.add_argument("--all", action="store_true", help="disturb every single system call")
    parser.add_argument("--limit", type=int, help=f"times that each fault happens to a command; default {USUAL_LIMIT}")
    parser.add_argument("--commands", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--faults", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="folder for the runs; default: in memory if possible")
    parser.add_argument("--table", action="store_true", help="print the tables of docs/reliability.md")
    options = parser.parse_args()
    if options.table:
        print(table())
        return 0
    commands, faults = choose(options)
    limit = None if options.all else options.limit or (QUICK_LIMIT if options.quick else USUAL_LIMIT)
    has_strace = can_trace()
    if not has_strace:
        names = ", ".join(fault.name for fault in faults if fault.needs_strace)
        print(f"strace is not installed or may not trace; skipped: {names}")
    import_everything()
    began, problems = time.monotonic(), []
    counts: Counter[str] = Counter()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="elmo-faults-", dir=options.folder or memory) as name:
        Path(name).chmod(0o755)
        for number, command in enumerate(commands):
            missing = [library for library in command.needs if importlib.util.find_spec(library) is None]
            if missing:
                print(f"{command.name:<30} skipped: needs {', '.join(missing)}")
                continue
            start = time.monotonic()
            folder = Path(name) / str(number)
            chosen = [f for f in faults if f.is_kill] if options.quick and command.quick == "kills" else faults
            trial = run_command(command, chosen, folder, limit=limit, seed=options.seed, has_strace=has_strace)
            problems += trial.problems
            counts += trial.n_faults
            listed = ", ".join(f"{n} {fault}" for fault, n in trial.n_faults.items())
            print(f"{command.name:<30}{time.monotonic() - start:>6.0f} s  {listed}", flush=True)
    listed = ", ".join(f"{n} {fault}" for fault, n in counts.items())
    print(f"{counts.total()} faults in {time.monotonic() - began:.0f} s: {listed}")
    for problem in problems:
        print(problem, file=sys.stderr)
    print("no problems" if not problems else f"{len(problems)} problems")
    return 1 if problems else 0


def table() -> str:
    """Return the tables of the documentation."""
    rows = ["| fault | promise | test |", "|---|---|---|"]
    rows += [f"| {fault.name} | {fault.promise} | {fault.test} |" for fault in FAULTS]
    kinds = {
        "resumes": "resumes: the same command continues where the last one stopped",
        "creates": "creates: the new folder appears at once, when it is complete",
        "replaces": "replaces: the file is the old one or the new one, at any time",
    }
    rows += ["", "| output | commands |", "|---|---|"]
    for kind, description in kinds.items():
        names = ", ".join(f"`{command.name}`" for command in COMMANDS if command.kind == kind)
        rows.append(f"| {description} | {names} |")
    return "\n".join(rows)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
