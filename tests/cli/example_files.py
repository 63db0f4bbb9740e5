"""A command in, the files that the examples of its help name, out."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from elmo import Elmo
from elmo.formats import native
from elmo.lexicon import apply_matrices, probe
from tests.cli.conftest import Run
from tests.cli.task_files import train, train_translator, write_files
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


def write_language_pair(folder: Path) -> None:
    """Text and a dictionary for ``zh`` and ``en``, and a model ``es`` with a matrix for each layer."""
    chinese = "一二三四五六七八九十水火人山马书月日雨雪牛鸟鱼门手心花树"
    english = (
        "one two three four five six seven eight nine ten water fire man mountain horse book moon sun rain snow cow "
        "bird fish door hand heart flower tree"
    )
    words = list(zip(chinese, english.split(), strict=True))
    (folder / "zh.txt").write_text("".join(f"{a}，" for a, _ in words) + "\n", encoding="utf-8")
    (folder / "en.txt").write_text("".join(f"{b} , " for _, b in words) + "\n", encoding="utf-8")
    (folder / "zh-en.txt").write_text("".join(f"{a}\t{b}\n" for a, b in words), encoding="utf-8")
    source = Elmo.from_pretrained("en")
    source.save_pretrained(folder / "es")
    for layer in range(source.n_layers):
        torch.save(torch.eye(source.width), folder / f"{layer}.pth")


def write_aligned(model: Path, out: Path) -> None:
    """Write a copy of a model that is aligned to the model."""
    elmo = Elmo.from_pretrained(model)
    identity = np.eye(elmo.width)
    native.write(apply_matrices(elmo, elmo, np.stack([identity] * elmo.n_layers), identity), out)


def prepare(command: str | None, here: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside those that every command finds (``here``)."""
    shutil.copytree(here / "model", here / "path" / "to" / "model")
    if command in ("models", "download", "cache"):
        monkeypatch.setenv("ELMO_DOWNLOADS", str(here / "downloads"))
        for name in ("allenai/original", "nlpl/166", "hit/zhs"):  # downloads would need the network
            folder = here / "downloads" / "by-hand" / name
            folder.mkdir(parents=True)
            (folder / "model.zip").write_bytes(b"a model")
    if command == "curves":
        for name in ("first", "second"):
            write_log(here / f"{name}.training")
    if command == "score":
        (here / "blimp.jsonl").write_text(
            '{"sentence_good": "The bank .", "sentence_bad": "Bank the .", "UID": "order"}\n'
        )
    if command in ("sharpen", "calibrate"):
        write_articles(here / "articles.txt")
    if command == "align":
        write_language_pair(here)
    if command in ("compare", "senses"):
        write_aligned(here / "model", here / "zh-en")
    if command == "senses":
        (here / "zh.txt").write_text("银行 借钱 给 我们 .\n", encoding="utf-8")
        assert run("index", "corpus.txt", "--out", "usages").code == 0
        assert run("index", "zh.txt", "--model", "zh-en", "--tokenizer", "whitespace", "--out", "usages-zh").code == 0
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
        pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
        assert train_translator(run).code == 0
    if command == "similarity":
        (here / "wic").mkdir()
        for name in ("pairs", "more", "wic/train", "wic/dev"):
            (here / f"{name}.data.txt").write_text(DATA, encoding="utf-8")
            (here / f"{name}.gold.txt").write_text(GOLD)
        (here / "graded.tsv").write_text("a [[bank]] .\tthe [[banks]] .\t3.5\nthe [[bank]]\ta [[river]]\t1\n")
