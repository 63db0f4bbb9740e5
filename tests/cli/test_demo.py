"""``elmo demo``: tables and a picture of ambiguous words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elmo import Elmo
from elmo.cli.demo import WORDS
from elmo.embed.comparison import compare
from tests.cli.conftest import Run

ENGLISH = [word for word in WORDS if word.model == "en"]


def test_each_word_has_its_sentences_and_a_table(run: Run) -> None:
    outcome = run("demo", "--model", "model")
    assert (outcome.code, outcome.err) == (0, "")
    elmo = Elmo.from_pretrained("model")
    for first, word in zip((1, 5), ENGLISH, strict=True):
        matrix = compare(elmo, word.word, word.sentences).matrices["sense"]
        for sentence in word.sentences:
            assert sentence.replace(word.word, f"[{word.word}]") in outcome.out
        for k, row in enumerate(matrix, start=first):
            assert f"  {k}  " + "".join(f"{value:8.2f}" for value in row) in outcome.out
        same, other = np.mean([matrix[0, 1], matrix[2, 3]]), matrix[:2, 2:].mean()
        note = "\n" if same > other else ": this model does not separate the senses\n"
        assert f"similarity within a sense {same:.2f}, between senses {other:.2f}{note}" in outcome.out
    assert "苹果" not in outcome.out


def test_without_a_bundled_model_the_error_says_what_to_pass(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elmo.formats.pretrained.bundled_models", lambda: ())
    outcome = run("demo")
    assert (outcome.code, outcome.out) == (1, "")
    assert "no model is bundled with this installation; pass a path or a Hub id" in outcome.err


def test_all_words_are_in_one_picture(run: Run, here: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    outcome = run("demo", "--model", "model", "--picture", "words.svg")
    assert outcome.code == 0
    assert "wrote words.svg" in outcome.err
    assert len(list(here.glob("words*"))) == 1
    run("demo", "--model", "model", "--picture", "again.svg")
    assert (here / "words.svg").read_bytes() == (here / "again.svg").read_bytes()


def test_a_wrong_picture_name_is_an_error_before_anything_is_computed(run: Run) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    outcome = run("demo", "--model", "model", "--picture", "words.txt")
    assert (outcome.code, outcome.out) == (1, "")
    assert "the output name must end in .png or .pdf or .svg; found words.txt" in outcome.err


def test_the_bundled_models_separate_the_senses_of_every_word(run: Run) -> None:
    pytest.importorskip("jieba", reason="jieba is not installed")
    outcome = run("demo")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.count("similarity within a sense") == len(WORDS) == 3
    assert "does not separate the senses" not in outcome.out
    assert "[苹果]发布了新款手机。" in outcome.out
