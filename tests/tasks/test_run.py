"""The verbs of elmo.tasks: everything that the commands do is one call."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo import ConfigError, Elmo, OutputError, tasks
from elmo.formats import native
from elmo.lexicon import apply_matrices
from elmo.tasks.run import hold_out
from tests.cli.task_files import SENTENCES, conll
from tests.formats.tiny import tiny_model

FAST = {"no_cache": True, "epochs": 2, "hidden": 4, "batch_size": 4, "learning_rate": 0.02}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    native.write(tiny_model(), tmp_path / "model")
    (tmp_path / "train.conll").write_text(conll(SENTENCES))
    return tmp_path


def train(folder: Path, **options: object) -> tasks.TaskModel:
    given = {"model": folder / "model", **FAST, **options}
    return tasks.train("tagging", folder / "train.conll", out=folder / "ner.safetensors", **given)  # pyright: ignore


def test_a_model_is_trained_evaluated_and_used(folder: Path) -> None:
    epochs: list[int] = []
    model = train(folder, on_epoch=lambda epoch: epochs.append(epoch.epoch))
    assert (epochs, model.n_train, model.n_dev) == ([1, 2], 4, 1)
    path = folder / "ner.safetensors"
    assert sorted(one.name for one in folder.iterdir()) == ["model", "ner.safetensors", "train.conll"]

    result = tasks.evaluate(path, [folder / "train.conll"], no_cache=True, out=folder / "p.conll")
    assert result.counts == {"examples": 5, "sentences": 5, "tokens": 18}
    assert result.scores == tasks.load(path).evaluate(result.examples)
    assert tasks.read_examples("tagging", [folder / "p.conll"]).examples[0].words == result.examples[0].words

    pairs = list(tasks.predict(path, text=["The Bank", "London"]))
    assert [example.words for example, _ in pairs] == [("The", "Bank"), ("London",)]
    tasks.predict(tasks.load(path), text=["The Bank", "London"]).write(folder / "p.jsonl")
    assert len((folder / "p.jsonl").read_text().splitlines()) == 2


def test_a_model_is_used_with_vectors_of_another_language_that_are_aligned(folder: Path) -> None:
    train(folder)
    target, other = Elmo.from_pretrained(folder / "model"), Elmo(tiny_model(seed=1))
    native.write(other.pretrained, folder / "other")
    native.write(apply_matrices(other, target, np.stack([np.eye(8)] * 3), None), folder / "aligned")
    tagger, text = folder / "ner.safetensors", folder / "train.conll"
    assert tasks.evaluate(tagger, text, model=folder / "aligned", no_cache=True).scores
    with pytest.raises(ConfigError, match="as in training"):
        tasks.evaluate(tagger, text, model=folder / "other", no_cache=True)
    train(folder, model=folder / "aligned", overwrite=True)
    assert tasks.evaluate(tagger, text, model=folder / "model", no_cache=True).scores
    with pytest.raises(ConfigError, match="as in training"):
        tasks.evaluate(tagger, text, model=folder / "other", no_cache=True)


def test_text_is_tokenized_by_the_model_of_the_other_language(folder: Path) -> None:
    train(folder)
    other = Elmo(replace(tiny_model(seed=1), metadata={"tokenizer": "characters"}))
    aligned = apply_matrices(other, Elmo.from_pretrained(folder / "model"), np.stack([np.eye(8)] * 3), None)
    native.write(aligned, folder / "aligned")
    tagger = folder / "ner.safetensors"

    def words(**options: Any) -> tuple[str, ...]:
        [(example, _)] = tasks.predict(tagger, text=["ab c"], **options)
        return example.words

    assert words() == ("ab", "c")
    assert words(model=folder / "aligned") == ("a", "b", "c")
    assert words(model=folder / "aligned", tokenizer="en") == ("ab", "c")


@pytest.mark.slow
def test_the_same_call_writes_the_same_bytes_and_refuses_to_overwrite(folder: Path) -> None:
    train(folder)
    before = (folder / "ner.safetensors").read_bytes()
    with pytest.raises(OutputError, match="already exists"):
        train(folder)
    train(folder, overwrite=True)
    assert (folder / "ner.safetensors").read_bytes() == before
    train(folder, overwrite=True, settings=["fit.max_tokens=9", "words.dropout=0"])
    assert tasks.load(folder / "ner.safetensors").store.features.dropout == 0


@pytest.mark.parametrize("is_finished", [True, False])
def test_checkpoints_that_are_older_than_the_model_are_removed(folder: Path, is_finished: bool) -> None:
    """A run that was killed after it had written its model leaves them; those of a later run are kept."""
    out, checkpoints = folder / "ner.safetensors", folder / "ner.safetensors.training"
    (checkpoints / "step-000000001").mkdir(parents=True)
    for path in (checkpoints / "step-000000001" / "a", out):
        path.write_bytes(b"x")
    os.utime(out, (2, 3 if is_finished else 1))
    os.utime(checkpoints / "step-000000001" / "a", (2, 2))
    with pytest.raises(OutputError, match="already exists"):
        train(folder)
    assert checkpoints.exists() != is_finished
    assert not list(folder.glob(".*"))


def test_inputs_of_predict_exclude_each_other(folder: Path) -> None:
    train(folder)
    for inputs in ({}, {"files": ["x.txt"], "text": ["x"]}, {"question": "Who?"}):
        with pytest.raises(ConfigError, match="pass exactly one input: files, text, or a question with its passage"):
            tasks.predict(folder / "ner.safetensors", **inputs)  # pyright: ignore[reportArgumentType]


def test_models_and_results_have_short_reprs(folder: Path) -> None:
    model = train(folder)
    assert re.fullmatch(
        r"TaskModel\(kind='tagging', elmo='.*model', best_epoch=\d of 2, scores=\{'f1': .*\}\)", repr(model)
    )
    result = tasks.evaluate(model, [folder / "train.conll"], no_cache=True)
    assert re.fullmatch(r"Evaluation\(kind='tagging', scores=\{.*\}, 5 examples\)", repr(result))
    assert repr(tasks.predict(model, text=["The Bank"])) == "Predictions(kind='tagging', inputs=())"


def test_examples_of_one_sentence_are_held_out_together() -> None:
    examples = [*_sentences(), *_sentences()]
    train_set, dev_set = hold_out(examples, seed=3)
    assert len(train_set) + len(dev_set) == len(examples)
    assert not {one.words for one in train_set} & {one.words for one in dev_set}


def _sentences() -> list[object]:
    from elmo.tasks.data.examples import TaggedSentence

    return [TaggedSentence((f"w{k}",), ("x",)) for k in range(30)]
