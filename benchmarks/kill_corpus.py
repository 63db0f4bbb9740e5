"""Kill the building of a corpus at random instants, build it again, and compare every byte.

    python benchmarks/kill_corpus.py --kills 100

A build is started, killed (SIGKILL) after a random time, and so on until that many kills have struck: builds
into an empty place and over a corpus with other options, in one process and with children that tokenise.
After every kill the corpus must be whole or not there, and no process may be left; at the end all bytes must
be equal, and no other file be left. One process imports everything once and forks the builds, so that the
time is spent in the builds themselves.

Then a build is killed before each call that makes, renames or removes a file or a folder: in an empty
place, over another corpus, and where a killed build had left a corpus half moved. After each kill a build
that is let be must end with the same bytes, and leave no other file.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from elmo.train.build_corpus import Corpus, build

N_LINES = 12_000


def main() -> int:
    """Print a table of kills and outcomes; 1 when any byte differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="for each number of processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="where builds write; a temporary folder, unless given")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    problems: list[str] = []
    print(f"{'processes':<10}{'kills':>6}{'midway':>8}{'old kept':>10}{'finished':>10}{'seconds':>9}")
    with tempfile.TemporaryDirectory(prefix="elmo-kill-corpus-", dir=options.folder) as name:
        text = Path(name) / "text.txt"
        text.write_text("".join(f"Line {k % 9000}, isn't it? Yes {k}.\n" for k in range(N_LINES)))
        for processes in (1, 2):
            problems += kill_builds(text, processes, random=chance, kills=options.kills)
        text.write_text("".join(f"Line {k % 9}, isn't it? Yes {k}.\n" for k in range(99)))
        print(f"{'before each call':<26}{'kills':>6}{'midway':>8}{'seconds':>9}")
        for start in STARTS:
            problems += kill_at_each_call(text, start)
    for problem in problems:
        print(problem, file=sys.stderr)
    print("every byte equal" if not problems else f"{len(problems)} problems")
    return 1 if problems else 0


def kill_builds(text: Path, processes: int, *, chance: random.Random, kills: int) -> list[str]:
    """What went wrong with builds that start so many processes."""
    began = time.monotonic()
    folder = text.parent / "place" / "corpus"
    duration = work(text, folder, processes)
    expected = contents(folder)
    build(text, folder, heldout=7)
    older = contents(folder)
    problems: list[str] = []
    n_kills = n_midway = n_old = n_finished = 0
    while n_kills < kills:
        if chance.random() < 0.5:
            shutil.rmtree(folder.parent, ignore_errors=True)  # an empty place, if a kill came not even so far
        elif chance.random() < 0.5:
            build(text, folder, heldout=7)
        if work(text, folder, processes, kill_after=chance.uniform(0, duration)) is not None:
            n_finished += 1
            continue
        n_kills += 1
        n_midway += (folder.parent / ".corpus.part").exists()
        found = contents(folder)
        n_old += found == older
        if found not in ({}, older, expected):
            problems.append(f"{processes} processes: the corpus is torn after kill {n_kills}")
        elif found:
            Corpus.open(folder)
        if chance.random() < 0.5:  # else the next one strikes what this one left
            problems += after_another(text, folder, expected, f"{processes} processes, after kill {n_kills}")
    problems += after_another(text, folder, expected, f"{processes} processes")
    shutil.rmtree(folder.parent)
    seconds = time.monotonic() - began
    print(f"{processes:<10}{n_kills:>6}{n_midway:>8}{n_old:>10}{n_finished:>10}{seconds:>9.1f}", flush=True)
    return problems


def kill_at_each_call(text: Path, start: str) -> list[str]:
    """What went wrong with builds that were killed before their first call, their second, and so on."""
    began = time.monotonic()
    folder = text.parent / "place" / "corpus"
    build(text, folder, deduplicate=True)
    expected = contents(folder)
    problems: list[str] = []
    n_kills = n_midway = 0
    while True:
        shutil.rmtree(folder.parent)
        STARTS[start](text, folder)
        if work(text, folder, 1, kill_before=n_kills) is not None:
            break
        n_kills += 1
        n_midway += (folder.parent / ".corpus.part").exists()
        problems += after_another(text, folder, expected, f"{start}, killed before call {n_kills}")
    shutil.rmtree(folder.parent)
    print(f"{start:<26}{n_kills:>6}{n_midway:>8}{time.monotonic() - began:>9.1f}", flush=True)
    return problems


def empty_place(text: Path, folder: Path) -> None:
    """Where nothing is yet."""


def another_corpus(text: Path, folder: Path) -> None:
    """Of the same text, with another option."""
    build(text, folder, heldout=7)


def between_two_renames(text: Path, folder: Path) -> None:
    """The old corpus has made way, and the new one is not in its place yet."""
    build(text, folder, deduplicate=True)
    folder.rename(folder.with_name(".corpus.part"))
    build(text, folder.with_name("other"), heldout=7)
    folder.with_name("other").rename(folder.with_name(".corpus.old"))
    folder.with_name(".corpus.lock").touch()


def half_removed(text: Path, folder: Path) -> None:
    """The new corpus is in its place, and some of the old one is still there."""
    between_two_renames(text, folder)
    folder.with_name(".corpus.part").rename(folder)
    folder.with_name(".corpus.old").joinpath("train.u32").unlink()


STARTS = {
    "empty place": empty_place,
    "another corpus": another_corpus,
    "between two renames": between_two_renames,
    "old one half removed": half_removed,
}


def after_another(text: Path, folder: Path, expected: dict[str, bytes], when: str) -> list[str]:
    """What is wrong after one more build, which nobody kills."""
    build(text, folder, deduplicate=True)
    problems = [] if contents(folder) == expected else [f"{when}: other bytes in the end"]
    left = sorted(path.name for path in folder.parent.iterdir())
    return problems if left == ["corpus"] else [*problems, f"{when}: files are left: {left}"]


def work(
    text: Path,
    folder: Path,
    processes: int,
    *,
    kill_after: float | None = None,
    kill_before: int | None = None,
) -> float | None:
    """Build in a process of its own, killed after some seconds or before a call; None when it was killed."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setsid()  # what it starts is of its group
            if kill_before is not None:
                sys.addaudithook(Countdown(kill_before))
            build(text, folder, deduplicate=True, processes=processes)
            status = 0
        finally:
            os._exit(status)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)  # it alone: its children must notice by themselves
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        if os.WEXITSTATUS(status) != 0:
            raise SystemExit(f"{folder}: the build failed")
        return time.monotonic() - began
    wait_for_group(child)
    return None


class Countdown:
    """Hears of every call by which Python changes a folder, and kills its own process before one of them."""

    calls = frozenset(("os.mkdir", "os.rename", "os.remove", "os.rmdir", "fcntl.flock"))

    def __init__(self, n_calls: int) -> None:
        self.n_calls = n_calls

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        """Count a call before it is made."""
        makes_file = event == "open" and isinstance(flags := arguments[2], int) and flags & os.O_CREAT
        if makes_file or event in self.calls:
            if self.n_calls == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.n_calls -= 1


def wait_for_group(group: int) -> None:
    """Return when no process of a group is left; a minute is more than it can take."""
    for _ in range(600):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise SystemExit("a tokenising process outlived the build that started it")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, by its name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


if __name__ == "__main__":
    raise SystemExit(main())
