"""``elmo sharpen``: what it writes, what it says, and what it refuses before it works."""

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


def test_it_writes_a_model_that_says_so_and_tells_what_was_gained(
    run: Run, here: Path, articles: Path
) -> None:
    outcome = run("sharpen", "model", "articles.txt", "--tokenizer", "whitespace", "--out", "sharp")
    assert outcome.code == 0
    assert "the two near each other in the text have the nearer vectors in" in outcome.err
    assert Elmo.from_pretrained(here / "sharp").pretrained.metadata["tokenizer"] == "whitespace"
    shown = run("info", "sharp")
    assert "cells clipped at 3.0, " in shown.out
    assert "states clipped" not in shown.out
    assert "transformed by elmo sharpen" in shown.out
    assert "sharpen" not in run("info", "model").out


def test_text_out_of_its_order_is_told(run: Run, articles: Path) -> None:
    lines = articles.read_text().splitlines()
    random.Random(0).shuffle(lines)
    articles.write_text("\n".join(lines))
    outcome = run("sharpen", "model", "articles.txt", "--format", "tokens", "--out", "sharp")
    assert outcome.code == 0
    gained = "nothing was gained by it: is the text in its order" in outcome.err
    assert gained or "have the nearer vectors in 5" in outcome.err  # about one half, before and after


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--out", "model"], "model: already exists; name a new folder"),
        (["--out", "new", "--seed", str(1 << 64)], "--seed"),
        (["--out", "new"], "sentences of 6 to 40 tokens count, so split longer lines (--split)"),
    ],
)
def test_what_cannot_work_is_refused_in_a_line(run: Run, here: Path, arguments: list[str], told: str) -> None:
    outcome = run("sharpen", "model", "corpus.txt", *arguments)
    assert outcome.code != 0
    assert told in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert not (here / "new").exists()
