"""elmo task for translation: train, evaluate against another system, predict line by line; errors are one line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from elmo.tasks import model as task_model
from elmo.tasks.model import TaskModel
from tests.cli.conftest import Run, assert_fails
from tests.cli.task_files import ENGLISH, train, train_translator, write_files

pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")


@pytest.fixture
def data(here: Path) -> Path:
    write_files(here)
    return here


@pytest.fixture
def translator(data: Path, run: Run) -> Path:
    assert train_translator(run).code == 0
    return data / "de.safetensors"


@pytest.mark.slow
def test_a_translator_is_trained_compared_and_used(run: Run, data: Path) -> None:
    outcome = train_translator(run, "--elmo", "both", "--epochs", "3")
    assert outcome.code == 0, outcome.err
    assert re.search(r"(?m)^elmo: epoch 3: loss [\d.]+, bleu [\d.]+%, chrf [\d.]+%", outcome.err)
    assert "layer weights at the output" in outcome.out

    measured = run("task", "evaluate", "de.safetensors", "train.en", "train.de", "--no-cache", "--against", "train.de",
                   "--out", "p.txt")  # fmt: skip
    assert measured.code == 0, measured.err
    assert re.search(r"(?m)^bleu +\d+\.\d\d%$", measured.out)
    assert re.search(r"(?m)^bleu settings: nrefs:1\|case:mixed\|.*\|tok:13a\|", measured.out)
    assert re.search(r"(?m)^bleu [\d.]+% ± [\d.]+%, other system 100.00% ± 0.00%, p = 0.001", measured.out)
    assert len((data / "p.txt").read_text("utf-8").splitlines()) == 12
    values = json.loads(
        run("task", "evaluate", "de.safetensors", "train.en", "train.de", "--json", "--against", "p.txt").out
    )
    assert values["scores"]["bleu"] == values["compared"]["bleu"]["other"]
    assert set(values["signatures"]) == {"bleu", "chrf"}


@pytest.mark.slow
def test_every_line_has_its_translation_and_the_attention_is_drawn(run: Run, translator: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    here = translator.parent
    (here / "new.txt").write_text("Two dogs walk.\n\nXyzzy.\n \n" + "A man walks . " * 400 + "\n\n")
    outcome = run("task", "predict", "de.safetensors", "new.txt", "--out", "p.txt", "--picture", "a.png")
    assert outcome.code == 0, outcome.err
    lines = (here / "p.txt").read_text("utf-8").split("\n")
    assert len(lines) == 7
    assert (lines[1], lines[3], lines[5], lines[6]) == ("", "", "", "")
    assert (here / "a.png").stat().st_size
    shown = run("task", "predict", "de.safetensors", "--text", "Two dogs walk.", "--text", "")
    assert shown.out == f"{lines[0]}\n\n"
    row = json.loads(run("task", "predict", "de.safetensors", "--text", "Two dogs walk.", "--json").out)
    assert row["translation"] == lines[0]
    assert len(row["units"]) == len(row["alignment"])


def test_blank_lines_alone_have_blank_translations(run: Run, translator: Path) -> None:
    (translator.parent / "blank.txt").write_text("\n \n" + "\n" * 100)
    outcome = run("task", "predict", "de.safetensors", "blank.txt")
    assert outcome.code == 0, outcome.err
    assert outcome.out == "\n" * 102
    assert run("task", "predict", "de.safetensors", "--text", "").out == "\n"


def test_a_stopped_run_resumes_to_the_same_model(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert train_translator(run, out="whole.safetensors").code == 0
    save = TaskModel.save

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(task_model.TaskModel, "save", stop)
    assert train_translator(run).code != 0
    monkeypatch.setattr(task_model.TaskModel, "save", save)
    assert train_translator(run).code == 0
    assert (data / "de.safetensors").read_bytes() == (data / "whole.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [("--elmo", "none", "--random-vectors", "6"), ("--elmo", "none", "--vectors", "v"), ("--vectors", "v"),
     ("--set", "head.units=words"), ("--set", "head.beam_width=1", "--layers", "2")],
)  # fmt: skip
def test_encoder_inputs_and_units_can_be_chosen(run: Run, data: Path, options: tuple[str, ...]) -> None:
    outcome = train_translator(run, *options)
    assert outcome.code == 0, outcome.err
    assert run("task", "evaluate", "de.safetensors", "train.en", "train.de").code == 0


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ("train.en train.short", "train.short: expected 12 lines, as in train.en; found 1"),
        ("empty.txt empty.txt", "empty.txt: expected texts; found an empty file"),
        ("blank.txt blank.txt", "blank.txt: expected texts with translations; found 2 pairs with a blank side"),
        ("train.en", "files of lines for translation must come in pairs"),
        ("train.en missing.de", "missing.de: no such file"),
        ("train.en train.de --random-vectors 4 --vectors v", "--vectors and --random-vectors set the same"),
        ("train.en train.de --crf", "the network for translation has no option --crf"),
        ("train.en train.de --set head.beam_width=0", "option beam_width must be an integer of at least 1; found 0"),
        ("train.en train.de --set head.label_smoothing=1.0", "label_smoothing must be a number of at least 0"),
        ("train.en train.de --set head.units=letters", "units must be one of bpe, words"),
    ],
)
def test_training_errors_are_one_line(run: Run, data: Path, files: str, message: str) -> None:
    (data / "train.short").write_text("Ein Satz.\n")
    (data / "empty.txt").write_text("")
    (data / "blank.txt").write_text("\n \n")
    first, *more = files.split()
    outcome = train(run, "translation", first, *more, out="x.safetensors")
    assert_fails(outcome)
    assert message in outcome.err
    assert not list(data.glob("x.safetensors*"))


def test_evaluation_and_prediction_errors_are_one_line(run: Run, translator: Path) -> None:
    here = translator.parent
    (here / "short.de").write_text("Ein Satz.\n")
    (here / "empty.txt").write_text("")
    for arguments, message in (
        (
            "evaluate de.safetensors train.en train.de --against short.de",
            "short.de: expected 12 lines, one for each pair",
        ),
        ("evaluate de.safetensors train.en short.de", "short.de: expected 12 lines, as in train.en; found 1"),
        ("evaluate de.safetensors train.en train.de --out train.de", "train.de"),
        ("evaluate de.safetensors train.en train.de --against p.txt", "p.txt: no such file"),
        ("predict de.safetensors empty.txt", "empty.txt: expected examples for translation; found none"),
        ("predict de.safetensors train.en --out p.conll", "must end in .jsonl, .txt, .tsv"),
        ("predict de.safetensors --question a --passage b", "a model for translation needs --text or FILE"),
    ):
        outcome = run("task", *arguments.split())
        assert_fails(outcome)
        assert message in outcome.err, outcome.err
    assert (here / "train.en").read_text() == ENGLISH * 2


def test_only_translations_have_an_attention_and_a_comparison(run: Run, data: Path) -> None:
    assert train(run, "tagging", "train.conll", "--dev", "dev.conll").code == 0
    outcome = run("task", "predict", "ner.safetensors", "--text", "The", "--picture", "a.png")
    assert_fails(outcome)
    assert "--picture draws the attention of a translation; this model is for tagging" in outcome.err
    outcome = run("task", "evaluate", "ner.safetensors", "dev.conll", "--against", "dev.conll")
    assert_fails(outcome)
    assert "--against compares translations; this model is for tagging" in outcome.err
