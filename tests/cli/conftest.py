"""Run the command, in this process or in a new one, in a folder with a tiny model and some text."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from elmo.cli import main
from elmo.formats import native
from tests.formats.tiny import tiny_model

TEXT = "I sat by the bank of the river .\n\nThe bank lent me money . It was kind .\n河岸 café 😀\n"


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny model in elmo's own format; tests must not change it."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    native.write(tiny_model(softmax=True), folder)
    return folder


@pytest.fixture
def here(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: ``model``, ``corpus.txt`` and ``more/a.txt``, ``more/b.txt``."""
    (tmp_path / "model").mkdir()
    for file in tiny_folder.iterdir():
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "corpus.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "more").mkdir()
    for name in "ab":
        (tmp_path / "more" / f"{name}.txt").write_text(f"the river {name}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ELMO_MODEL", raising=False)
    return tmp_path


@pytest.fixture
def run(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``elmo`` with arguments in this process."""

    def run_here(*arguments: str | Path, stdin: str | None = None) -> Outcome:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            if stdin is None:
                code = main([str(argument) for argument in arguments])
            else:
                (here / ".stdin").write_text(stdin, encoding="utf-8")
                with (here / ".stdin").open() as file:
                    patch.setattr(sys, "stdin", file)
                    code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return run_here


@pytest.fixture
def start(here: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the real command in a new process, which ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def start_process(*arguments: str, **options: object) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": here} | options
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "elmo", *arguments],
                text=True,
                env=environment,
                preexec_fn=_enable_ctrl_c,  # noqa: PLW1509 -- there are no other threads
                **settings,
            )
        )
        return started[-1]

    yield start_process
    for process in started:
        process.kill()
        process.communicate()


def _enable_ctrl_c() -> None:
    """Reset SIGINT; a shell that runs the tests in the background makes all child processes ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def assert_fails(outcome: Outcome, *parts: str, code: int = 1) -> None:
    """Check the exit code, one line on stderr that contains ``parts``, and an empty stdout."""
    assert outcome.code == code, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("elmo: ")
    assert outcome.err.endswith("\n")
    assert outcome.err.count("\n") == 1, outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.err[:-1].isprintable()
    for part in parts:
        assert part in outcome.err
