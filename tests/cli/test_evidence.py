"""``elmo evidence``: tables on stdout, files in the folder, one-line errors, and no run is repeated."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest

from tests.cli.conftest import Run, assert_fails
from tests.evidence.example_plan import PLAN, write_plan


@pytest.mark.slow
def test_the_command_prints_tables_and_repeats_no_run(run: Run, here: Path) -> None:
    write_plan(here)
    first = run("evidence", "plan.toml", "--out", "found", "--tables", "1", "--seeds", "1", "--tasks", "ner")
    assert first.code == 0, first.err
    assert "Table 1." in first.out
    assert "Table 2." not in first.out
    assert "1 of 2: ner, baseline, seed 1, 24 examples: f1 " in first.err
    assert " left\n" in first.err
    assert first.out == (here / "found" / "evidence.txt").read_text(encoding="utf-8")
    second = run("evidence", "plan.toml", "--out", "found", "--tables", "1", "--seeds", "1", "--tasks", "ner", "--json")
    assert json.loads(second.out) == json.loads((here / "found" / "evidence.json").read_text(encoding="utf-8"))
    assert "of 2:" not in second.err


@pytest.mark.slow
def test_the_command_line_overrides_the_plan(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plan(here, PLAN.replace('model = "model"', 'model = "nowhere"').replace("glove", "gone"))
    arguments = ("evidence", "plan.toml", "--out", "found", "--tables", "1", "--seeds", "1", "--tasks", "ner")
    assert_fails(run(*arguments), "[defaults] vectors", "gone.txt: no such file")
    write_plan(here, PLAN.replace('model = "model"', 'model = "nowhere"'))
    monkeypatch.setenv("ELMO_MODEL", "model")
    assert_fails(run(*arguments, "--vectors", "glove.txt"), "nowhere")
    found = run(*arguments, "--model", "model")
    assert found.code == 0, found.err


@pytest.mark.slow
def test_the_epochs_of_a_long_run_are_reported(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--tables", "1", "--seeds", "1", "--tasks", "ner")
    write_plan(here)
    assert "epoch 1," not in run("evidence", "plan.toml", "--out", "short", *arguments).err
    monkeypatch.setattr("elmo.cli.console.LOG_SECONDS", 0.0)
    found = run("evidence", "plan.toml", "--out", "long", *arguments)
    assert "elmo: ner, baseline, seed 1, 24 examples: epoch 1, loss " in found.err, found.err


def test_without_matplotlib_everything_else_is_written(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_plan(here)
    found = run("evidence", "plan.toml", "--out", "found", "--tables", "1", "--seeds", "1", "--tasks", "mood")
    assert found.code == 0, found.err
    assert (here / "found" / "evidence.json").is_file()
    assert (
        "warning: cannot draw gains.png, mixes.png: matplotlib is not installed; run: pip install 'pyelmo[plots]'"
        in found.err
    )


def test_errors_are_one_line(run: Run, here: Path) -> None:
    write_plan(here)
    assert_fails(
        run("evidence", "plan.toml", "--out", "x", "--tables", "5"), "expected table numbers from 1 to 4", code=2
    )
    assert_fails(run("evidence", "plan.toml", "--out", "x", "--tables", "4"), "table 4 needs a task with sizes")
    assert_fails(run("evidence", "plan.toml", "--out", "x", "--tables", ""), "at least one table or the curve")
    assert_fails(run("evidence", "plan.toml", "--out", "x", "--tasks", "pos"), "unknown task 'pos'", "ner, mood")
    assert_fails(run("evidence", "nothing.toml", "--out", "x"), "nothing.toml")
    (here / "plan.toml").write_text("[ner]\nkind = 'tagging'\ntrain = 'a'\n")
    assert_fails(run("evidence", "plan.toml", "--out", "x"), "a: no such file", "[ner] dev must be a path")
    assert not (here / "x").exists()


@pytest.mark.slow
def test_ctrl_c_keeps_results_and_says_how_to_resume(start: Callable[..., Popen[str]], here: Path) -> None:
    write_plan(here, PLAN.replace("epochs = 2", "epochs = 100000\npatience = 100000"))
    process = start("evidence", "plan.toml", "--out", "found", "--tables", "1", "--tasks", "ner")
    runs = here / "found" / "runs"
    while process.poll() is None and not list(runs.glob("*.training/step-*")):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err == "elmo: interrupted; run the same command again to resume\n"
    assert list(runs.glob("*.training/step-*"))
