"""A command in, the files that the examples of its help name, out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from elmo.lexicon import probe
from tests.cli.conftest import Run
from tests.cli.task_files import train, write_files
from tests.evidence.example_plan import write_plan
from tests.lexicon.test_sharpen import text
from tests.lexicon.test_word_pairs import DATA, GOLD
from tests.lexicon.test_wordnet import write_wordnet
from tests.lexicon.test_wsd import write_corpus, write_evaluation
from tests.train.logs import write_log

_WORDS = (("banks", "NOUN", "Number=Plur", "nsubj"), ("lend", "VERB", "Number=Plur", "root"),
          ("one", "NUM", "Number=Sing", "nummod"), ("river", "NOUN", "Number=Sing", "obj"))  # fmt: skip


def write_articles(path: Path) -> None:
    """Running text, long enough to be sharpened by."""
    lines = [" ".join(sentence.tokens) for sentence in text()]
    path.write_text("".join(f"{line}\n" for line in lines))


def prepare(command: str | None, here: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside those that every command finds (``here``)."""
    shutil.copytree(here / "model", here / "path" / "to" / "model")
    if command == "curves":
        for name in ("first", "second"):
            write_log(here / f"{name}.training")
    if command in ("sharpen", "calibrate"):
        write_articles(here / "articles.txt")
    if command == "embed":
        (here / "reviews.csv").write_text("id,text\n1,A good film .\n")
    if command == "neighbors":
        assert run("index", "corpus.txt", "--out", "usages").code == 0
    if command in ("senses", "change"):
        pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    if command == "wsd":
        write_corpus(here / "semcor.jsonl")
        write_evaluation(here)
        monkeypatch.setenv("WNSEARCHDIR", str(write_wordnet(here / "dict")))
    if command == "probe":
        monkeypatch.setattr(probe, "MIN_STEPS", 10)
        rows = "".join(
            f"{k}\t{word}\t_\t{tag}\t_\t{features}\t0\t{relation}\t_\t_\n"
            for k, (word, tag, features, relation) in enumerate(_WORDS, start=1)
        )
        for name in ("train", "dev"):
            (here / f"{name}.conllu").write_text(f"{rows}\n" * 6)
            (here / f"{name}.tsv").write_text("".join(f"{w}\t{t}\n" for w, t, _, _ in _WORDS) + "\n")
    if command == "evidence":
        write_plan(here)
    if command == "task":
        monkeypatch.setenv("ELMO_CACHE", str(here / "cache"))
        write_files(here)
        assert train(run, "tagging", "train.conll", "--dev", "dev.conll").code == 0
    if command == "similarity":
        (here / "wic").mkdir()
        for name in ("pairs", "more", "wic/train", "wic/dev"):
            (here / f"{name}.data.txt").write_text(DATA, encoding="utf-8")
            (here / f"{name}.gold.txt").write_text(GOLD)
