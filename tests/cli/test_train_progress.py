"""``elmo train`` shows what it does from the beginning: its stages, the speed and the time left."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run

SPEED = re.compile(r"[\d,]+ tokens/s, (\d+ h )?\d+ min( \d+ s)? left$")


@pytest.fixture
def text(here: Path) -> Path:
    path = here / "text.txt"
    lines = [f"The cat number {k} crosses the river near the bank of the town." for k in range(120)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.slow
def test_every_stage_is_shown_and_every_line_of_training_has_the_speed_and_the_time_left(run: Run, text: Path) -> None:
    outcome = run("train", text, "--out", "new", "--preset", "tiny", "--epochs", "3")
    assert outcome.code == 0, outcome.err
    lines = [line.removeprefix("elmo: ") for line in outcome.err.splitlines()]
    begin = next(k for k, line in enumerate(lines) if line.startswith("training: "))
    assert re.fullmatch(r"training: [\d,]+ steps of [\d,]+ tokens", lines[begin])
    steps = [line for line in lines[begin:] if line.startswith("step ")]
    assert steps
    assert all(SPEED.search(line) for line in steps), steps
    assert "writing the model" in lines


@pytest.mark.slow
def test_a_line_follows_without_waiting_for_a_report(run: Run, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elmo.cli.console.LOG_SECONDS", 0.0)
    monkeypatch.setattr("elmo.cli.train.FIRST_SECONDS", 0.0)
    outcome = run("--log-format", "json", "train", text, "--out", "new", "--preset", "tiny", "--epochs", "2")
    assert outcome.code == 0, outcome.err
    records = [json.loads(line) for line in outcome.err.splitlines()]
    stages = [record["stage"] for record in records if "stage" in record]
    assert stages[0] == "read"
    assert stages[-2:] == ["train", "write"]
    first = next(record for record in records if "step" in record)
    assert first["step"] == 1
    assert first["tokens_per_second"] > 0
    assert first["seconds_left"] >= 0


@pytest.mark.slow
def test_planning_is_announced(run: Run, text: Path) -> None:
    outcome = run("train", text, "--out", "new", "--preset", "tiny", "--hours", "0.001")
    assert outcome.code == 0, outcome.err
    assert "elmo: measuring the speed of different sizes, to plan the run\n" in outcome.err


def test_a_quiet_run_shows_nothing(run: Run, text: Path) -> None:
    assert run("--quiet", "train", text, "--out", "new", "--preset", "tiny", "--epochs", "0.1").err == ""


@pytest.mark.slow
def test_a_weak_model_is_called_weak_after_training_and_in_info(run: Run, text: Path) -> None:
    outcome = run("train", text, "--out", "new", "--preset", "tiny", "--epochs", "0.1")
    assert outcome.code == 0, outcome.err
    expected = ["perplexity: ", "quality: very weak: ", "to improve: train for longer, if possible on more text"]
    last = outcome.err.splitlines()[-3:]
    assert all(line.startswith(f"elmo: {start}") for line, start in zip(last, expected, strict=True)), last
    info = run("info", "new").out
    assert all(" ".join(line.removeprefix("elmo: ").split(": ", 1)) in " ".join(info.split()) for line in last)
    assert "language" in info
