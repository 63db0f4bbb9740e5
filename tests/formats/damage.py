"""Load damaged copies of a model and record what happens: refused with a typed error, loaded, or worse.

All copies of a format are loaded by ``elmo.formats.pretrained.load`` in one new process, which measures
its time and its peak memory beyond the imports, and records paths opened outside the model and any attempt
to run code. If a copy kills the process, that is the outcome of the copy, and a new process loads the rest.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

SECONDS = 2.0
MEGABYTES = 300.0
SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Outcome:
    """The outcome of loading one damaged model."""

    case: Path
    result: str  # "loaded", "refused", "untyped", "crashed", "hung"
    detail: str = ""  # the error's class and message
    seconds: float = 0.0
    megabytes: float = 0.0
    violations: tuple[str, ...] = ()


def flips_and_cuts(model: Path, *, n: int, seed: int, into: Path, names: Sequence[str] | None = None) -> list[Path]:
    """Write ``n`` copies of a model (a folder or one file), each with one truncated or changed file.

    Most damage is in small files and in the first and last kilobyte of large ones, where the headers are.
    """
    chance = random.Random(seed)
    is_file = model.is_file()
    files = [model] if is_file else sorted(p for p in model.rglob("*") if p.is_file())
    if names is not None:
        files = [p for p in files if p.name in names]
    cases = []
    for i in range(n):
        target = files[i % len(files)]
        if is_file:
            case = into / f"{i:04d}" / model.name
            case.parent.mkdir(parents=True)
            damaged = case
        else:
            case = into / f"{i:04d}"
            case.mkdir(parents=True)
            for file in (p for p in model.rglob("*") if p.is_file()):
                copy = case / file.relative_to(model)
                copy.parent.mkdir(parents=True, exist_ok=True)
                if file != target:
                    os.link(file, copy)  # unchanged: a hard link saves disk space
            damaged = case / target.relative_to(model)
        damaged.write_bytes(_damage(target.read_bytes(), chance))
        cases.append(case)
    return cases


def _damage(data: bytes, chance: random.Random) -> bytes:
    kind = chance.choice(("flip", "flip", "flip", "flips", "cut", "fill", "insert"))
    spot = _spot(len(data), chance)
    if kind == "cut":
        return data[:spot]
    changed = bytearray(data)
    if kind == "insert":
        changed[spot:spot] = chance.randbytes(chance.randint(1, 16))
    elif kind == "fill":
        end = min(len(changed), spot + chance.randint(2, 64))
        changed[spot:end] = chance.choice((b"\0", b"\xff")) * (end - spot)
    else:
        for k in range(1 if kind == "flip" else chance.randint(2, 20)):
            at = spot if k == 0 else _spot(len(data), chance)
            if changed:
                changed[at] ^= 1 << chance.randrange(8)
    return bytes(changed) if bytes(changed) != data else data[:-1]


def _spot(size: int, chance: random.Random) -> int:
    if size <= 4096 or chance.random() < 0.3:
        return chance.randrange(max(size, 1))
    edge = chance.randrange(2048)
    return edge if chance.random() < 0.6 else size - 1 - edge


def load_all(cases: Iterable[Path]) -> list[Outcome]:
    """Load every case in a monitored process, so that none of them can crash the tests."""
    waiting, outcomes = list(cases), []
    while waiting:
        done = _load_until_death(waiting)
        outcomes += done
        waiting = waiting[len(done) :]
    return outcomes


def _load_until_death(cases: list[Path]) -> list[Outcome]:
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{SOURCE.parent}", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.formats.damage"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=SOURCE.parent,
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    outcomes = []
    try:
        assert process.stdout.readline() == b"ready\n", process.stderr.read().decode()
        for case in cases:
            process.stdin.write(os.fsencode(case) + b"\n")
            process.stdin.flush()
            line = _line_within(process, seconds=30)
            if line is None:
                process.kill()
                outcomes.append(Outcome(case, "hung", "no answer within 30 s"))
                break
            if not line:
                outcomes.append(Outcome(case, "crashed", f"exit code {process.wait()}"))
                break
            values = json.loads(line)
            outcomes.append(Outcome(case, **{**values, "violations": tuple(values["violations"])}))
    finally:
        process.kill()
        process.communicate()
    return outcomes


def _line_within(process: subprocess.Popen[bytes], *, seconds: float) -> bytes | None:
    import select

    assert process.stdout
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline() if ready else None


def assert_refused_or_sound(outcomes: Sequence[Outcome], *, every_one_refused: bool = False) -> None:
    """Check for crashes, untyped errors, executed code, other opened files, and limits of time and memory."""
    bad = [
        outcome
        for outcome in outcomes
        if outcome.result not in ("refused", "loaded")
        or outcome.violations
        or outcome.seconds > SECONDS
        or outcome.megabytes > MEGABYTES
        or (every_one_refused and outcome.result != "refused")
    ]
    shown = "\n".join(str(outcome) for outcome in bad[:10])
    assert not bad, f"{len(bad)} of {len(outcomes)} damaged models were not handled:\n{shown}"
    assert any(outcome.result == "refused" for outcome in outcomes), "no copy was refused: was any damaged?"


def keep_failures(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Copy the failed cases to a folder for inspection."""
    for outcome in outcomes:
        if outcome.result not in ("refused", "loaded"):
            shutil.copytree(outcome.case, folder / outcome.case.name, dirs_exist_ok=True)


# --- the watched process ---------------------------------------------------------------------------

_CODE_EVENTS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pty.spawn", "socket.connect")


def _watch_and_load() -> None:
    import tempfile
    import warnings

    import h5py  # noqa: F401  imports are not counted
    import safetensors.torch  # noqa: F401
    import torch

    import elmo.formats.pretrained
    from elmo.errors import ElmoError

    torch.set_num_threads(1)
    warnings.simplefilter("error")
    violations: list[str] = []
    allowed: list[str] = []
    site = [os.path.realpath(p) for p in sys.path if p] + [os.path.realpath(sys.prefix), sys.base_prefix]

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if not allowed:
            return
        if event in _CODE_EVENTS:
            violations.append(event)
        elif event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            inside = [*allowed, *site, "/proc/self", "/sys/", "/dev/null"]
            if not any(path.startswith(place) for place in inside):
                violations.append(f"open {path}")

    sys.addaudithook(audit)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    scratch = os.path.realpath(tempfile.gettempdir()) + "/elmo-"
    for line in sys.stdin.buffer:
        case = Path(os.fsdecode(line.rstrip(b"\n")))
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        before = _memory("VmRSS")
        begin = time.process_time()  # other processes may be using the machine
        allowed[:] = [os.path.realpath(case), scratch]
        try:
            model = elmo.formats.pretrained.load(case)
            weights = list(model.weights.values())
            if model.softmax is not None:  # verified on first use
                weights += [model.softmax.weight, model.softmax.bias]
            finite = all(bool(weight.isfinite().all()) for weight in weights)
            result, detail = ("loaded", "") if finite else ("untyped", "loaded values that are not finite")
            del model
        except ElmoError as error:
            one_line = "\n" not in str(error)
            result, detail = ("refused" if one_line else "untyped"), f"{type(error).__name__}: {error}"
        except BaseException as error:  # this is what the tests look for
            result, detail = "untyped", f"{type(error).__name__}: {error}"
        allowed.clear()
        answer = {
            "result": result,
            "detail": detail[:500],
            "seconds": time.process_time() - begin,
            "megabytes": (_memory("VmHWM") - before) / 1024,
            "violations": violations[:5],
        }
        violations.clear()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _memory(name: str) -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith(name))


if __name__ == "__main__":
    _watch_and_load()


# --- changes of one file in a folder ---------------------------------------------------------------

Change = Callable[[Path], object]


def write_bytes(name: str, data: bytes) -> Change:
    """Replace the content of a file."""
    return lambda folder: (folder / name).write_bytes(data)


def link_to(name: str, target: str) -> Change:
    """Replace a file by a link."""

    def change(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return change


def write_sparse(name: str, size: int) -> Change:
    """Write a large file without content."""

    def change(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            file.truncate(size)

    return change


def make_pipe(name: str) -> Change:
    """Replace a file by a named pipe."""

    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change
