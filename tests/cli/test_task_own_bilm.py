"""``elmo task`` with a biLM of its own, with encoders beside it, and a corpus that is read in pieces."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from elmo.tasks.kinds.registry import read_examples
from elmo.tasks import model as task_model
from elmo.tasks.model import TaskModel
from elmo.tasks.output import write_predictions
from tests.cli.conftest import Outcome, Run, assert_refused
from tests.cli.task_files import SENTENCES, train, write_files
from tests.cli.test_task import interrupted

LM_STEP = "step 2 of"


@pytest.fixture
def data(here: Path) -> Path:
    write_files(here)
    return here


def test_a_tuned_model_is_used_where_the_bilm_is_gone(run: Run, data: Path) -> None:
    outcome = train(run, "tagging", "train.conll", "--dev", "dev.conll", "--tune-bilm")
    assert outcome.code == 0, outcome.err
    before = run("task", "predict", "ner.safetensors", "--text", "The Bank", "--json")
    (data / "model").rename(data / "moved")
    assert run("task", "predict", "ner.safetensors", "--text", "The Bank", "--json") == before
    given = run("task", "predict", "ner.safetensors", "--text", "The Bank", "--json", "-m", "moved")
    assert given.out == before.out
    assert "ner.safetensors contains its own biLM; ignoring the given one" in given.err


def test_a_run_that_adapts_is_stopped_and_goes_on_to_the_same_model(run: Run, data: Path) -> None:
    more = ("--dev", "dev.conll", "--adapt", "4")
    whole = train(run, "tagging", "train.conll", *more, out="whole.safetensors")
    assert whole.code == 0, whole.err
    lines = whole.err.splitlines()
    assert lines[0] == ("elmo: adapting the biLM to the training text: 5 sentences, 23 tokens, 4 epochs")
    assert any(line.startswith(f"elmo: {LM_STEP}") and "held-out perplexity" in line for line in lines)
    with interrupted(LM_STEP):
        stopped = train(run, "tagging", "train.conll", *more)
    assert stopped.code == 130
    other = train(run, "tagging", "train.conll", "--dev", "dev.conll", "--adapt", "2")
    assert other.code == 1
    assert "was started with other data or options" in other.err
    again = train(run, "tagging", "train.conll", *more)
    assert again.code == 0, again.err
    assert not any("step 1 of" in line for line in again.err.splitlines())
    assert (data / "whole.safetensors").read_bytes() == (data / "ner.safetensors").read_bytes()
    assert sorted(path.name for path in data.glob("*ner*")) == ["ner.safetensors"]
    shutil.rmtree(data / "model")
    asked = run("task", "evaluate", "ner.safetensors", "dev.conll", "--no-cache", "--json")
    assert json.loads(asked.out)["scores"]["f1"] == max(
        epoch.scores["f1"] for epoch in TaskModel.load(data / "ner.safetensors").epochs
    )


def test_what_cannot_adapt_is_told_in_one_line(run: Run, data: Path) -> None:
    from elmo.formats import native
    from tests.formats.tiny import tiny_model

    native.write(tiny_model(), data / "bare")
    command = ("task", "train", "tagging", "train.conll", "--dev", "dev.conll", "--out", "x.safetensors")
    assert_refused(
        run(*command, "-m", "bare", "--adapt", "1"), "no softmax and no vocabulary", "elmo train TEXT --from"
    )
    assert_refused(run(*command, "-m", "model", "--adapt", "-1"), "expected a number above 0, found -1")
    assert not list(data.glob("x.safetensors*"))


@pytest.mark.parametrize("suffix", [".jsonl", ".conll"])
def test_a_corpus_is_asked_in_pieces_to_the_same_bytes(
    run: Run, data: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    assert train(run, "tagging", "train.conll", "--dev", "dev.conll").code == 0
    (data / "long.txt").write_text("".join(f"{one}\n" for one in SENTENCES * 5))
    model = TaskModel.load(data / "ner.safetensors")
    examples = read_examples("tagging", ["long.txt"], is_labelled=False).examples
    write_predictions(data / f"whole{suffix}", "tagging", zip(examples, model.predict(examples), strict=True))
    monkeypatch.setattr(task_model, "CHUNK_EXAMPLES", 2)
    command = ("task", "predict", "ner.safetensors", "long.txt", "--out", f"p{suffix}")
    found = run(*command, "--json")
    assert found.code == 0, found.err
    assert (data / f"p{suffix}").read_bytes() == (data / f"whole{suffix}").read_bytes()
    assert len(found.out.splitlines()) == len(examples)
    assert found.out == run(*command[:-2], "--json").out
    # an error far below leaves what was there before
    before = (data / f"p{suffix}").read_bytes()
    with (data / "long.txt").open("ab") as file:
        file.write(b"\xff\n")
    assert_refused(run(*command), "long.txt:26", "UTF-8")
    assert (data / f"p{suffix}").read_bytes() == before
    assert not list(data.glob(".p*"))


def assert_told(outcome: Outcome, line: str) -> None:
    """The last line: transformers shows bars of its own above it."""
    assert outcome.code == 1
    assert re.fullmatch(line, outcome.err.splitlines()[-1]), outcome.err


def test_an_encoder_beside_elmo_is_found_by_its_name_and_known_again(run: Run, data: Path) -> None:
    from tests.tasks.features.test_encoders import make_bert

    make_bert(data / "bert", seed=1)
    outcome = train(run, "tagging", "train.conll", "--dev", "dev.conll", "--also", "bert")
    assert outcome.code == 0, outcome.err
    ask = ("task", "predict", "ner.safetensors", "--text", "The Bank", "--json")
    found = run(*ask)
    assert found.code == 0, found.err
    (data / "bert").rename(data / "moved")
    told = r"elmo: ner\.safetensors: cannot load the encoder that it was trained with; use --also .*bert.*"
    assert_told(run(*ask), told)
    assert run(*ask, "--also", "moved").out == found.out
    twice = run(*ask, "--also", "moved", "--also", "moved")
    assert_told(twice, r"elmo: ner\.safetensors: trained with 1 other encoders .*, found 2")
    make_bert(data / "bert", seed=2)
    assert_told(run(*ask), r"elmo: ner\.safetensors: trained with the encoder .* different or has changed.*")
