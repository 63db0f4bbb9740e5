"""Ctrl-C in ``elmo train``: one line, and the same command resumes."""

from __future__ import annotations

import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.faults.arena import contents, visible

OPTIONS = shlex.split(
    "--reads words --layers 1 --cells 12 --width 8 --format tokens --samples 20 --batch-size 4 --window 10"
    " --epochs 8 --evaluate-every 80 --checkpoint-every 20 --threads 1"
)


@pytest.mark.slow
def test_ctrl_c_says_in_one_line_how_to_resume_and_the_same_command_gives_the_same_bytes(
    run: Run, start: Callable[..., subprocess.Popen[str]], here: Path
) -> None:
    lines = [f"the {noun} crosses river number {k}" for k in range(60) for noun in ("cat", "dog", "cow")]
    (here / "text.txt").write_text("".join(f"{line}\n" for line in lines))
    assert run("train", "text.txt", "--out", "whole", *OPTIONS).code == 0

    process = start("train", "text.txt", "--out", "parts", "--quiet", *OPTIONS)
    while process.poll() is None and not list(here.glob("parts.training/checkpoints/step-*")):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert out == ""
    assert err == "elmo: interrupted; run the same command again to resume after the last checkpoint\n"
    assert not (here / "parts").exists()
    assert list(here.glob("parts.training/checkpoints/step-*"))

    again = run("train", "text.txt", "--out", "parts", *OPTIONS)
    assert again.code == 0, again.err
    assert contents(here / "parts") == contents(here / "whole")
    ended, expected = (visible(contents(here / f"{name}.training")) for name in ("parts", "whole"))
    del ended["curves.png"], expected["curves.png"]  # it bears the run's name
    assert ended == expected


def test_ctrl_c_before_the_first_checkpoint_says_that_the_training_starts_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ctrl_c(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("elmo.train.run._plan_run", ctrl_c)
    stopped = run("train", "corpus.txt", "--out", "m", "--quiet", *OPTIONS)
    said = "elmo: interrupted; no checkpoint was saved, so the same command starts from the beginning\n"
    assert (stopped.code, stopped.err) == (130, said)
