"""``elmo explain``: what it prints, writes and draws."""

from __future__ import annotations

import json
import os
import pty
import sys
from pathlib import Path

import pytest

from elmo.cli import main
from tests.cli.conftest import Run, assert_fails


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    """Use the tiny model instead of the bundled one."""
    monkeypatch.setenv("ELMO_MODEL", "model")


def test_the_words_are_printed_in_order_with_their_scores(run: Run) -> None:
    outcome = run("explain", "the river [[bank]] of gold")
    assert (outcome.code, outcome.err) == (0, "")
    lines = [line.split() for line in outcome.out.splitlines()]
    assert [line[1] for line in lines] == ["the", "river", "[bank]", "of", "gold"]
    values = json.loads(run("explain", "the river [[bank]] of gold", "--json").out)
    assert [float(line[0]) for line in lines if line[0] != "·"] == pytest.approx(
        [score for k, score in enumerate(values["scores"]) if k != 2], abs=1e-4
    )


@pytest.mark.parametrize("method", ["leave-out", "replace", "gradient"])
def test_both_sentences_are_explained_with_another_use(run: Run, method: str) -> None:
    arguments = ("explain", "the [[bank]]", "--with", "a 河岸 [[bank]]", "--method", method)
    outcome = run(*arguments)
    assert outcome.code == 0
    assert outcome.out.startswith("similarity ")
    assert "河" in outcome.out
    values = json.loads(run(*arguments, "--json", "--layers", "1").out)
    assert values["method"] == values["other"]["method"] == method
    assert len(values["other"]["scores"]) == 4


def test_a_table_has_one_row_per_token_of_both_sentences(run: Run, here: Path) -> None:
    assert run("explain", "the bank", "--word", "bank", "--with", "a bank", "--out", "new/s.tsv").code == 0
    rows = [line.split("\t") for line in (here / "new/s.tsv").read_text(encoding="utf-8").splitlines()]
    assert rows[0] == ["sentence", "position", "token", "begin", "end", "is_target", "score"]
    assert [row[:6] for row in rows[1:]] == [
        ["1", "0", "the", "0", "3", "0"],
        ["1", "1", "bank", "4", "8", "1"],
        ["2", "0", "a", "0", "1", "0"],
        ["2", "1", "bank", "2", "6", "1"],
    ]


def test_a_terminal_shows_the_sentence_in_color(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, side = pty.openpty()
    monkeypatch.delenv("NO_COLOR", raising=False)
    with os.fdopen(side, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        assert main(["explain", "the river [[bank]] ."]) == 0
        stream.flush()
        shown = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert "\x1b[1;4mbank\x1b[0m" in shown
    assert "\x1b[38;5;16;48;5;" in shown


@pytest.mark.slow
def test_a_picture_is_drawn(run: Run, here: Path) -> None:
    pytest.importorskip("matplotlib")
    sentence = "the $river$ [[bank]] " + "of a very long sentence " * 8
    assert run("explain", sentence, "--with", "a [[bank]]", "--picture", "e.png").code == 0
    assert (here / "e.png").stat().st_size > 5000


def test_wrong_arguments_are_one_line(run: Run) -> None:
    assert_fails(run("explain", "no mark"), "no word is marked")
    assert_fails(run("explain", "the [[bank]]", "--layers", "all"), "one", code=2)
    assert_fails(run("explain", "the [[bank]]", "--method", "magic"), "magic", code=2)
    assert_fails(run("explain", "the [[bank]]", "--out", "e.txt"), "e.txt")
