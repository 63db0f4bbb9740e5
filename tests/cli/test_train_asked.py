"""Options of ``elmo train``: each changes only itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, assert_fails

pytestmark = pytest.mark.slow

SMALL = ("--preset", "tiny", "--cells", "12", "--width", "8")
QUICK = ("--epochs", "0.5", "--samples", "0")


@pytest.fixture(autouse=True)
def text(here: Path) -> None:
    lines = [f"The {noun} crosses the river near bank {k}." for k in range(20) for noun in ("cat", "dog")]
    (here / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def trained(run: Run, *arguments: str) -> dict[str, Any]:
    """The options of a run as its checkpoints keep them."""
    outcome = run("train", "text.txt", "--out", "m", *arguments)
    assert outcome.code == 0, outcome.err
    return json.loads(next(Path("m.training").glob("checkpoints/*/progress.json")).read_text())["options"]


def test_an_option_with_from_leaves_the_others_gentle(run: Run) -> None:
    options = trained(run, "--from", "model", *QUICK, "--clip", "1", "--word-dropout", "0.2")
    found = options["optimizer"]
    assert (found["name"], found["learning_rate"], found["warmup_steps"]) == ("adamw", 0.001, 100)
    assert found["clip"] == 1
    assert (options["dropout"]["words"], options["dropout"]["layers"]) == (0.2, 0.1)


def test_an_option_with_hours_leaves_the_others_to_the_plan(run: Run) -> None:
    options = trained(run, *SMALL, "--hours", "0.0003", "--clip", "1", "--warmup", "3", "--variational")
    found = options["optimizer"]
    assert (found["name"], found["decay"], found["learning_rate"]) == ("adamw", "cosine", 0.004)
    assert (found["clip"], found["warmup_steps"]) == (1, 3)
    assert options["dropout"]["is_variational"]
    planned = json.loads(Path("m.training/plan.json").read_text())
    assert planned["request"]["changes"]["dropout"] == {"is_variational": True}


def test_hours_with_from_keep_the_gentle_rate(run: Run) -> None:
    found = trained(run, "--from", "model", "--hours", "0.0003", "--samples", "0")["optimizer"]
    assert (found["name"], found["decay"], found["learning_rate"]) == ("adamw", "cosine", 0.001)


def test_another_optimizer_has_its_usual_rate(run: Run) -> None:
    found = trained(run, *SMALL, *QUICK, "--optimizer", "sgd")["optimizer"]
    assert (found["name"], found["learning_rate"]) == ("sgd", 1.0)


def test_threads_are_kept_with_the_run(run: Run) -> None:
    trained(run, *SMALL, *QUICK, "--threads", "1")
    assert json.loads(Path("m.training/recipe.json").read_text())["options"]["threads"] == 1


def test_resume_names_the_options_that_it_cannot_use(run: Run, here: Path) -> None:
    trained(run, *SMALL, *QUICK)
    options = ["--epochs", "3", "--from", "model", "--threads", "2", "--keep-order"]
    outcome = run("train", "--resume", "--out", "m", *options)
    message = "--resume continues with the options of the run; remove --keep-order, --from, --epochs, --threads"
    assert_fails(outcome, message, code=2)
    outcome = run("train", "--resume", "--out", "m", "--log-format", "json", "--verbose")
    assert outcome.code == 0, outcome.err


def test_the_same_command_again_succeeds_and_another_is_one_line(run: Run, here: Path) -> None:
    trained(run, *SMALL, *QUICK)
    again = run("train", "text.txt", "--out", "m", *SMALL, *QUICK)
    assert again.code == 0
    assert again.err == "elmo: m is already trained; nothing to do\n"
    resumed = run("train", "--resume", "--out", "m")
    assert (resumed.code, resumed.err) == (0, again.err)
    other = run("train", "text.txt", "--out", "m", *SMALL, *QUICK, "--seed", "3")
    assert_fails(other, "m already exists; use a new folder")
    text = (here / "text.txt").read_text()
    (here / "text.txt").write_text(text.swapcase())  # as long as before
    assert_fails(run("train", "text.txt", "--out", "m", *SMALL, *QUICK), "the text of this run has changed")
