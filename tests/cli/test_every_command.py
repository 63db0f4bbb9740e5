"""Behavior that all commands share: text without words, and outputs in new folders."""

from __future__ import annotations

import importlib.util
import json
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Run, assert_fails
from tests.cli.example_files import write_articles
from tests.lexicon.test_word_pairs import DATA


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    """Use the tiny model instead of the bundled one."""
    monkeypatch.setenv("ELMO_MODEL", "model")


@pytest.mark.parametrize("text", ["", " \n\n"])
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("index X --out new", "empty.txt: expected text, found no words"),
        ("senses bank X", "no word"),
        ("change corpus.txt X --words bank", "no word"),
        ("perplexity model X", "no sentence with a word"),
        ("score X", "no sentence with a word"),
        ("train X --out new --preset tiny", "empty.txt"),
        ("warm model X --out new", "the text has no tokens"),
        ("calibrate model X --out new", "some words occur in 12 sentences of 5 to 60 tokens, found none"),
        ("sharpen model X --out new", "empty.txt: expected text, found no words"),
        ("align model model --dictionary X --corpus corpus.txt corpus.txt --out new", "expected pairs of words"),
        ("align model model --pairs identical --corpus X X --out new", "empty.txt: expected text, found no words"),
        ("probe X X --column upos", "empty.txt"),
        ("similarity X", "empty.txt"),
        ("wsd --train X --out new.safetensors", "empty.txt"),
        ("task train tagging X --out new.safetensors", "empty.txt"),
    ],
)
def test_text_without_words_is_an_error(run: Run, here: Path, command: str, message: str, text: str) -> None:
    if command.startswith(("senses", "change", "probe")):
        pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    (here / "empty.txt").write_text(text)
    before = sorted(here.rglob("*"))
    outcome = run(*shlex.split(command.replace("X", "empty.txt")))
    assert_fails(outcome)
    assert message in outcome.err
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(("text", "n_lines"), [("", 0), (" \n\n", 2)])
def test_only_embed_accepts_text_without_words(run: Run, here: Path, text: str, n_lines: int) -> None:
    (here / "empty.txt").write_text(text)
    warning = "elmo: warning: the text has no words, so there are no vectors\n"
    outcome = run("embed", "empty.txt")
    assert (outcome.code, outcome.err) == (0, warning)
    assert [json.loads(line)["tokens"] for line in outcome.out.splitlines()] == [[]] * n_lines
    outcome = run("embed", "empty.txt", "--out", "v.jsonl")
    assert (outcome.code, outcome.err.startswith(warning)) == (0, True)
    assert len((here / "v.jsonl").read_text().splitlines()) == n_lines


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "embed corpus.txt --out X/v.npz",
        "embed corpus.txt --out X/v.h5",
        "index corpus.txt --out X/usages",
        "convert model X/half",
        "warm model corpus.txt --out X/warm",
        "calibrate model articles.txt --out X/calibrated",
        "sharpen model articles.txt --out X/sharp",
        "align model model --pairs identical --corpus articles.txt articles.txt --out X/aligned",
        "perplexity model corpus.txt --out X/scores.tsv",
        "score corpus.txt --out X/scores.jsonl",
        "score corpus.txt --picture X/scores.png",
        "substitutes 'a [[bank]]' --out X/s.json",
        "substitutes 'a [[bank]]' --picture X/s.svg",
        "senses bank corpus.txt --out X/s.tsv",
        "change corpus.txt more --words the,river --min-count 1 --picture X/c.png",
        "similarity pairs.txt --out X/pairs.tsv",
        "compare bank 'a bank' 'the bank' --picture X/bank.png",
        "demo --picture X/words.png",
    ],
)
def test_missing_folders_of_an_output_are_created(run: Run, here: Path, command: str) -> None:
    if "--picture" in command and importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed")
    if command.startswith(("senses", "change")):
        pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    (here / "pairs.txt").write_text(DATA, encoding="utf-8")
    if "articles" in command:
        write_articles(here / "articles.txt")
    arguments = shlex.split(command.replace("X/", "new/folder/"))
    outcome = run(*arguments)
    assert outcome.code == 0, outcome.err
    (out,) = (argument for argument in arguments if argument.startswith("new/"))
    assert (here / out).exists()
