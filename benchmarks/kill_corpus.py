"""Kill builds of a corpus at random times, build again, and compare every byte.

    python benchmarks/kill_corpus.py --kills 100

Builds are killed (SIGKILL) after a random time, as often as --kills says: builds into a new folder and over a
corpus with other options, in one process and with child processes. After every kill, the corpus must be
complete or missing, and no process may be left. In the end all bytes must be equal, without extra files. One
process imports everything once and forks the builds, so that the time is spent in the builds.

Then builds are killed before each call that creates, renames or removes a file or folder: in a new folder,
over another corpus, and after a build that was killed while it moved a corpus. After each kill, an
undisturbed build must give the same bytes and leave no extra file.
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

from elmo.train import Corpus, CorpusOptions, build_corpus

N_LINES = 12_000


def main() -> int:
    """Print a table of kills and outcomes; return 1 if any byte differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="kills for each number of processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="folder for the builds; default: a temporary one")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    problems: list[str] = []
    print(f"{'processes':<10}{'kills':>6}{'midway':>8}{'old kept':>10}{'finished':>10}{'seconds':>9}")
    with tempfile.TemporaryDirectory(prefix="elmo-kill-corpus-", dir=options.folder) as name:
        text = Path(name) / "text.txt"
        text.write_text("".join(f"Line {k % 9000}, isn't it? Yes {k}.\n" for k in range(N_LINES)))
        for processes in (1, 2):
            problems += kill_builds(text, processes, rng=rng, kills=options.kills)
        text.write_text("".join(f"Line {k % 9}, isn't it? Yes {k}.\n" for k in range(99)))
        print(f"{'before each call':<26}{'kills':>6}{'midway':>8}{'seconds':>9}")
        for start in STARTS:
            problems += kill_at_each_call(text, start)
    for problem in problems:
        print(problem, file=sys.stderr)
    print("all bytes equal" if not problems else f"{len(problems)} problems")
    return 1 if problems else 0


def kill_builds(text: Path, processes: int, *, rng: random.Random, kills: int) -> list[str]:
    """Kill builds with this many processes at random times; return the problems."""
    began = time.monotonic()
    folder = text.parent / "place" / "corpus"
    duration = run_build(text, folder, processes)
    expected = contents(folder)
    build_corpus(text, folder, CorpusOptions(heldout=7))
    older = contents(folder)
    problems: list[str] = []
    n_kills = n_midway = n_old = n_finished = 0
    while n_kills < kills:
        if rng.random() < 0.5:
            shutil.rmtree(folder.parent, ignore_errors=True)  # a new folder
        elif rng.random() < 0.5:
            build_corpus(text, folder, CorpusOptions(heldout=7))
        if run_build(text, folder, processes, kill_after=rng.uniform(0, duration)) is not None:
            n_finished += 1
            continue
        n_kills += 1
        n_midway += (folder.parent / ".corpus.part").exists()
        found = contents(folder)
        n_old += found == older
        if found not in ({}, older, expected):
            problems.append(f"{processes} processes: the corpus is damaged after kill {n_kills}")
        elif found:
            Corpus.open(folder)
        if rng.random() < 0.5:  # otherwise the next kill finds what this one left
            problems += build_again(text, folder, expected, f"{processes} processes, after kill {n_kills}")
    problems += build_again(text, folder, expected, f"{processes} processes")
    shutil.rmtree(folder.parent)
    seconds = time.monotonic() - began
    print(f"{processes:<10}{n_kills:>6}{n_midway:>8}{n_old:>10}{n_finished:>10}{seconds:>9.1f}", flush=True)
    return problems


def kill_at_each_call(text: Path, start: str) -> list[str]:
    """Kill builds before their first call, their second, and so on; return the problems."""
    began = time.monotonic()
    folder = text.parent / "place" / "corpus"
    build_corpus(text, folder, CorpusOptions(deduplicate=True))
    expected = contents(folder)
    problems: list[str] = []
    n_kills = n_midway = 0
    while True:
        shutil.rmtree(folder.parent)
        STARTS[start](text, folder)
        if run_build(text, folder, 1, kill_before=n_kills) is not None:
            break
        n_kills += 1
        n_midway += (folder.parent / ".corpus.part").exists()
        problems += build_again(text, folder, expected, f"{start}, killed before call {n_kills}")
    shutil.rmtree(folder.parent)
    print(f"{start:<26}{n_kills:>6}{n_midway:>8}{time.monotonic() - began:>9.1f}", flush=True)
    return problems


def new_folder(text: Path, folder: Path) -> None:
    """Start without a corpus."""


def another_corpus(text: Path, folder: Path) -> None:
    """Start with a corpus of the same text with another option."""
    build_corpus(text, folder, CorpusOptions(heldout=7))


def between_two_renames(text: Path, folder: Path) -> None:
    """Start after the old corpus was moved away and before the new one is in place."""
    build_corpus(text, folder, CorpusOptions(deduplicate=True))
    folder.rename(folder.with_name(".corpus.part"))
    build_corpus(text, folder.with_name("other"), CorpusOptions(heldout=7))
    folder.with_name("other").rename(folder.with_name(".corpus.old"))
    folder.with_name(".corpus.lock").touch()


def half_removed(text: Path, folder: Path) -> None:
    """Start with the new corpus in place and a part of the old one left."""
    between_two_renames(text, folder)
    folder.with_name(".corpus.part").rename(folder)
    folder.with_name(".corpus.old").joinpath("train.u32").unlink()


STARTS = {
    "new folder": new_folder,
    "another corpus": another_corpus,
    "between two renames": between_two_renames,
    "half removed": half_removed,
}


def build_again(text: Path, folder: Path, expected: dict[str, bytes], when: str) -> list[str]:
    """Build once more without a kill; return the problems."""
    build_corpus(text, folder, CorpusOptions(deduplicate=True))
    problems = [] if contents(folder) == expected else [f"{when}: the final bytes differ"]
    left = sorted(path.name for path in folder.parent.iterdir())
    return problems if left == ["corpus"] else [*problems, f"{when}: extra files: {left}"]


def run_build(
    text: Path, folder: Path, processes: int, *, kill_after: float | None = None, kill_before: int | None = None
) -> float | None:
    """Build in a child process; return the seconds, or None if it was killed."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setsid()  # its children are in its group
            if kill_before is not None:
                sys.addaudithook(Countdown(kill_before))
            build_corpus(text, folder, CorpusOptions(deduplicate=True, processes=processes))
            status = 0
        finally:
            os._exit(status)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)  # only this process: its children must notice
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        if os.WEXITSTATUS(status) != 0:
            raise SystemExit(f"{folder}: the build failed")
        return time.monotonic() - began
    wait_for_children(child)
    return None


class Countdown:
    """Audit hook that kills its own process before the n-th call that changes a folder."""

    calls = frozenset(("os.mkdir", "os.rename", "os.remove", "os.rmdir", "fcntl.flock"))

    def __init__(self, n_calls: int) -> None:
        self.n_calls = n_calls

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        """Count a call before it runs."""
        creates_file = event == "open" and isinstance(flags := arguments[2], int) and flags & os.O_CREAT
        if creates_file or event in self.calls:
            if self.n_calls == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.n_calls -= 1


def wait_for_children(group: int) -> None:
    """Wait until no process of a group is left; at most a minute."""
    for _ in range(600):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise SystemExit("a tokenizer process survived its build")


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


if __name__ == "__main__":
    raise SystemExit(main())
