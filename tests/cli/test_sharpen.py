"""``elmo sharpen``: output, messages and errors."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from elmo import Elmo
from tests.cli.conftest import Run
from tests.cli.example_files import write_articles


@pytest.fixture
def articles(here: Path) -> Path:
    write_articles(here / "articles.txt")
    return here / "articles.txt"


@pytest.mark.slow
def test_it_writes_a_model_and_reports_the_gain(run: Run, here: Path, articles: Path) -> None:
    outcome = run("sharpen", "model", "articles.txt", "--tokenizer", "whitespace", "--out", "sharp")
    assert outcome.code == 0
    assert "a usage is more similar to a nearby usage than to a distant usage of the same word in" in outcome.err
    assert Elmo.from_pretrained(here / "sharp").pretrained.metadata["tokenizer"] == "whitespace"
    shown = run("info", "sharp")
    assert "cells clipped at 3.0, " in shown.out
    assert "states clipped" not in shown.out
    assert "transformed by elmo sharpen" in shown.out
    assert "sharpen" not in run("info", "model").out


@pytest.mark.slow
def test_text_in_random_order_has_no_gain(run: Run, articles: Path) -> None:
    lines = articles.read_text().splitlines()
    random.Random(0).shuffle(lines)
    articles.write_text("\n".join(lines))
    outcome = run("sharpen", "model", "articles.txt", "--format", "tokens", "--out", "sharp")
    assert outcome.code == 0
    is_reported = "the vectors did not improve; check that the text is in its original order" in outcome.err
    assert is_reported or "than to a distant usage of the same word in 5" in outcome.err  # about one half


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "model"], "model already exists; choose a new folder"),
        (["--out", "new", "--seed", str(1 << 64)], "--seed"),
        (["--out", "new"], "only sentences of 6 to 40 tokens are used: split longer lines (--split)"),
    ],
)
def test_errors_are_one_line(run: Run, here: Path, arguments: list[str], message: str) -> None:
    outcome = run("sharpen", "model", "corpus.txt", *arguments)
    assert outcome.code != 0
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert not (here / "new").exists()
