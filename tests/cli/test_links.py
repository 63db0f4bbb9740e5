"""Links in the place of outputs: no command writes through one, and none removes what it points to.

For every command that writes, a first run shows all files and folders that it creates, also for a moment. Then each of
them is replaced by a link to a file or folder of somebody else, and the command runs again.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Outcome, Run
from tests.cli.task_files import FAST, write_files
from tests.evidence.example_plan import write_plan

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")

TASK = f"task train tagging train.conll --out out/t.safetensors --model model {' '.join(FAST)}"
COMMANDS = [
    "embed corpus.txt --out out/v.h5",
    "embed corpus.txt --out out/v.npz",
    "index corpus.txt --out out/usages",
    "convert model out/other",
    "convert model out/other --to hdf5",
    "warm model corpus.txt --out out/warm",
    "score corpus.txt --out out/scores.tsv",
    "substitutes 'a [[bank]]' --out out/s.json",
    "train corpus.txt --out out/m --preset tiny --epochs 1 --samples 0",
    TASK,
    TASK.replace("--no-cache", "--cache out/cache"),
    "evidence plan.toml --out out/e --tasks mood --seeds 1",
]
_seen: list[Path] | None = None  # paths that the audit hook has seen, while it listens


def _listen(event: str, arguments: tuple[object, ...]) -> None:
    if _seen is None or not arguments:
        return
    is_write = (
        event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    )
    if is_write or event == "os.mkdir":
        _add(arguments[0])
    if event == "os.rename":
        _add(arguments[1])


def _add(path: object) -> None:
    if _seen is not None and isinstance(path, str | bytes | Path):
        _seen.append(Path(os.fsdecode(path)).absolute())


sys.addaudithook(_listen)


def created_paths(run: Run, command: str, out: Path) -> dict[Path, bool]:
    """Run a command and return what it has created below ``out``, and whether it is a folder."""
    global _seen  # noqa: PLW0603
    _seen = []
    try:
        outcome = run(*shlex.split(command))
    finally:
        seen, _seen = _seen, None
    assert outcome.code == 0, outcome.err
    paths = {path.relative_to(out): path.is_dir() for path in (*out.rglob("*"), *seen) if out in path.parents}
    named = {Path(part).relative_to("out") for part in shlex.split(command) if part.startswith("out/")}
    return {
        path: is_dir
        for path, is_dir in sorted(paths.items())
        # Names with random parts cannot be guessed; folders at a greater depth are new; a folder that the user names
        # may be a link.
        if not any(_is_random(part) for part in path.parts) and len(path.parts) <= 2
        if not (path in named and command.startswith(("evidence", "index", "task")) and is_dir)
    }


def _is_random(name: str) -> bool:
    return any(len(part) >= 8 and not part.strip("0123456789abcdef") and not part.isdigit() for part in name.split("."))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_follows_a_link_in_the_place_of_its_output_and_all_files_have_the_usual_permissions(
    run: Run, here: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELMO_MODEL", "model")
    write_files(here)
    write_plan(here)
    out = here / "out"
    out.mkdir()
    umask = os.umask(0o027)
    try:
        created = created_paths(run, command, out)
    finally:
        os.umask(umask)
    assert len(created) >= 1
    modes = {path: path.stat().st_mode & 0o777 for path in out.rglob("*")}
    assert {path for path, mode in modes.items() if mode != (0o750 if path.is_dir() else 0o640)} == set()
    for number, (path, is_dir) in enumerate(created.items()):
        target = list(victims(here, is_dir=is_dir))[number % 2]
        shutil.rmtree(out)
        (out / path).parent.mkdir(parents=True)
        (out / path).symlink_to(target)
        before = snapshot(here / "victim")
        outcome = run(*shlex.split(command))
        assert snapshot(here / "victim") == before, path
        assert_one_line(outcome, str(path))


def test_no_model_for_workers_is_written_through_a_link(run: Run, here: Path) -> None:
    (here / "out").mkdir()
    for target in victims(here, is_dir=True):
        (here / "out" / ".v.jsonl.model").unlink(missing_ok=True)
        (here / "out" / ".v.jsonl.model").symlink_to(target)
        before = snapshot(here / "victim")
        outcome = run("embed", "corpus.txt", "--workers", "2", "--out", "out/v.jsonl", "--model", "model")
        assert outcome.code == 1
        assert snapshot(here / "victim") == before
        assert_one_line(outcome, ".v.jsonl.model")


def assert_one_line(outcome: Outcome, path: str) -> None:
    assert outcome.code in (0, 1), (path, outcome)
    if outcome.code:
        assert "Traceback" not in outcome.err, path
        assert outcome.err.splitlines()[-1].startswith("elmo: "), (path, outcome.err)


def victims(here: Path, *, is_dir: bool) -> Iterator[Path]:
    """Write a file and a folder of somebody else, and yield what to link to."""
    victim = here / "victim"
    shutil.rmtree(victim, ignore_errors=True)
    (victim / "folder" / "inner").mkdir(parents=True)
    for name in (
        "file",
        "folder/part-00000.safetensors",
        "folder/inner/file",
        "folder/index.json",
        "folder/manifest.json",
    ):
        (victim / name).write_text("keep me")
    yield victim / ("folder" if is_dir else "file")
    yield victim / "new"  # does not exist


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
