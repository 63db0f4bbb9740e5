"""``elmo task train --set``: what has no option of its own reaches the model, typed and within its range."""

from __future__ import annotations

from pathlib import Path

import pytest

from elmo.tasks.kinds.classification import ClassificationOptions
from elmo.tasks.model import TaskModel
from tests.cli.conftest import Run, assert_refused
from tests.cli.task_files import train, write_files


@pytest.fixture
def data(here: Path) -> Path:
    write_files(here)
    return here


def test_what_is_set_reaches_network_words_and_learning(run: Run, data: Path) -> None:
    command = ("task", "train", "classification", "texts.tsv", "--out", "m.safetensors", "--model", "model")
    more = (
        "head.network=linear",
        "head.use_max=true",
        "words.elmo=output",
        "words.characters=3",
        "fit.epochs=1",
    )
    found = run(*command, "--no-cache", *(part for one in more for part in ("--set", one)))
    assert found.code == 0, found.err
    model = TaskModel.load(data / "m.safetensors")
    assert model.task.options == ClassificationOptions(network="linear", use_max=True)
    assert (model.store.features.elmo, model.store.features.characters) == ("output", 3)
    assert len(model.epochs) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            "--set head.width=3",
            "--set: [head] has no option 'width'; it has: hidden_width, n_layers, dropout, has_crf",
        ),
        ("--set head.n_layers=0", "option n_layers: expected an integer from 1 to 64, found 0"),
        ("--set fit.decay=2", "decay: expected a number above 0, up to 1, found 2"),
        ("--set words.dropout=x", "--set: [words] dropout: expected a number, found 'x'"),
        ("--set epochs=3", "--set: expected TABLE.NAME=VALUE with one of the tables head, fit, words"),
        ("--set fit.epochs=3", "--set: fit.epochs and --epochs set the same option; use one of them"),
        ("--set head.dropout=0 --dropout 0.1", "--set: head.dropout and --dropout set the same option; use one of them"),
        ("--set words.dropout=0 --elmo-dropout 0.1", "words.dropout and --elmo-dropout set the same option"),
        ("--set words.layer_norm=true --elmo none", "layer_norm needs ELMo, but elmo is 'none'"),
    ],
)
def test_what_cannot_be_set_is_one_line(run: Run, data: Path, arguments: str, told: str) -> None:
    assert_refused(train(run, "tagging", "train.conll", *arguments.split()), told)
    assert not list(data.glob("*.safetensors*"))
