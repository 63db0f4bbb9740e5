"""``elmo curves`` from the shell: a picture, a table, JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run, assert_fails
from tests.train.logs import lines, write_log


@pytest.fixture(autouse=True)
def needs_matplotlib(request: pytest.FixtureRequest) -> None:
    if "missing" not in request.node.name:
        pytest.importorskip("matplotlib")


def test_a_picture_and_a_table_of_two_runs(run: Run, here: Path) -> None:
    write_log(here / "first.training")
    write_log(here / "二.training", lines(7, directions=("forward",)), tail=b'{"step": 7')
    outcome = run("curves", "first", "二.training", "--smooth", "1", "--out", "curves.png")
    assert outcome.code == 0
    assert outcome.err.endswith("elmo: wrote curves.png\n")
    assert outcome.out.splitlines() == [
        "run          step  tokens  epoch   loss  forward  backward  best  at step",
        "first  200 of 200    128k      2  4.250     70.1      70.1  70.1      200",
        "二       70 of 70   44.8k      0  4.714      148         -   148       50",
    ]
    assert (here / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_json_has_every_figure(run: Run, here: Path) -> None:
    write_log(here / "first.training", lines(3))
    outcome = run("curves", "first.training", "--json", "--out", "x.pdf")
    (found,) = json.loads(outcome.out)
    assert found["run"] == "first"
    assert (found["step"], found["tokens"], found["best"]) == (30, 19_200, None)
    assert (here / "x.pdf").exists()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["nothing"], ["nothing: no such file or folder; expected a training run"]),
        (["model"], ["model must be a training run"]),
        (["corpus.txt"], ["corpus.txt, line 1: the entry must be a JSON object"]),
        (["begun"], ["begun.training/log.jsonl: it has no log entries yet"]),
        (["damaged"], ["damaged.training/log.jsonl, line 2: the entry must be a JSON object"]),
        (["good", "--out", "x.gif"], ["x.gif", ".png"]),
        (["good", "--against", "hours", "--out", "x.png"], ["it has no times"]),
    ],
)
def test_what_cannot_be_drawn_is_one_line(run: Run, here: Path, arguments: list[str], parts: list[str]) -> None:
    write_log(here / "begun.training", [])
    write_log(here / "damaged.training", lines(1), tail=b"\x1b[31m\n")
    write_log(here / "good.training")
    assert_fails(run("curves", *arguments), *parts)
    assert not list(here.glob("*.png"))


def test_a_missing_library_is_one_line_if_a_picture_is_wanted(
    run: Run, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_log(here / "first.training")
    assert_fails(run("curves", "first", "--out", "x.png"), "pip install 'pyelmo[plots]'")


def test_with_a_missing_library_the_table_and_json_are_printed(
    run: Run, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_log(here / "first.training")
    table, as_json = run("curves", "first"), run("curves", "first", "--json")
    assert (table.code, table.err) == (as_json.code, as_json.err) == (0, "")
    assert table.out.splitlines()[1].startswith("first  200 of 200")
    assert json.loads(as_json.out)[0]["step"] == 200


def test_no_picture_is_written_unless_it_has_a_name(run: Run, here: Path) -> None:
    write_log(here / "first.training")
    before = sorted(here.iterdir())
    assert run("curves", "first").code == 0
    assert sorted(here.iterdir()) == before
    assert_fails(run("curves", "first", "--against", "steps"), "add --out FILE", code=2)


def test_no_run_is_wrong_usage(run: Run) -> None:
    assert_fails(run("curves"), "RUN", code=2)


@pytest.mark.slow
def test_a_real_run_is_drawn(run: Run, here: Path) -> None:
    text = "\n".join(f"The cat crosses the river near bank {k}." for k in range(40))
    (here / "text.txt").write_text(text + "\n", encoding="utf-8")
    assert run("train", "text.txt", "--out", "trained", "--preset", "tiny", "--epochs", "1").code == 0
    outcome = run("curves", "trained", "--json", "--out", "x.svg")
    assert outcome.code == 0, outcome.err
    (found,) = json.loads(outcome.out)
    assert found["loss"] > 0
    assert found["best"]["heldout_forward"] > 1
    assert 0.9 < found["epoch"] <= 1.1


@pytest.mark.slow
def test_a_part_of_an_epoch_is_a_fraction(run: Run, here: Path) -> None:
    text = "\n".join(f"The cat crosses the river near bank {k}." for k in range(40))
    (here / "text.txt").write_text(text + "\n", encoding="utf-8")
    assert run("train", "text.txt", "--out", "half", "--preset", "tiny", "--epochs", "0.5").code == 0
    (found,) = json.loads(run("curves", "half", "--json").out)
    assert found["epoch"] == pytest.approx(0.5, abs=0.1)
