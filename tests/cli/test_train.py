"""``elmo train`` from the shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run, assert_fails

QUICK = ("--preset", "tiny", "--epochs", "1", "--samples", "0")


@pytest.fixture
def text(here: Path) -> Path:
    lines = [f"The {noun} crosses the river near bank {k}." for k in range(20) for noun in ("cat", "dog")]
    (here / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return here / "text.txt"


@pytest.mark.slow
def test_a_model_is_trained_and_embeds_at_once(run: Run, here: Path, text: Path) -> None:
    outcome = run("train", text, "--out", "trained", *QUICK)
    assert outcome.code == 0, outcome.err
    assert "held-out perplexity" in outcome.err
    assert "elmo: wrote trained\n" in outcome.err
    info = json.loads(run("info", "trained", "--json").out)
    assert (info["has_softmax"], info["has_warm"]) == (True, True)
    assert run("embed", text, "--model", "trained", "--start", "warm").out.count("\n") == 40
    log = [json.loads(line) for line in (here / "trained.training/log.jsonl").read_text().splitlines()]
    assert log[-1]["heldout_forward"] > 1


@pytest.mark.slow
def test_the_log_is_json_on_request(run: Run, text: Path) -> None:
    lines = run("train", text, "--out", "trained", *QUICK, "--log-format", "json").err.splitlines()
    records = [json.loads(line) for line in lines]
    assert any("loss" in line and line["step"] <= line["steps"] for line in records)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["empty.txt", "--out", "m"], "empty.txt"),
        (["nothing.txt", "--out", "m"], "nothing.txt"),
        (["text.txt", "--out", "model"], "already exists"),
        (["text.txt", "--out", "m", "--dropout", "2"], "dropout"),
        (["text.txt", "--out", "m", "--learning-rate", "-1"], "learning_rate"),
        (["text.txt", "--out", "m", "--epochs", "0"], "epochs"),
        (["text.txt", "--out", "m", "--batch-size", "5000"], "rows"),
        (["text.txt", "--out", "m", "--tokenizer", "klingon"], "klingon"),
    ],
)
def test_what_cannot_be_trained_is_one_line(run: Run, here: Path, text: Path, arguments: list[str], part: str) -> None:
    (here / "empty.txt").write_text("")
    assert_fails(run("train", *arguments, "--preset", "tiny"), part)
    assert not (here / "m").exists()
