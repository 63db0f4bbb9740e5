from __future__ import annotations

import inspect
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig
from elmo.errors import ConfigError, FormatError
from elmo.train import recipe as recipes
from elmo.train import train_bilm
from elmo.train.options import GENTLE, CorpusOptions, DropoutOptions, ModelShape, OptimizerOptions, TrainOptions
from elmo.train.recipe import FILE_NAME, OPTIONS, Recipe

CONFIG = BiLmConfig(CharCnnConfig(char_width=3, filters=((1, 4),)), None, LstmConfig(1, 12, 8))
CHOICES: dict[str, Any] = {
    "vocabulary": Path("words.txt"),
    "heldout_file": ["a.txt"],
    "preset": CONFIG,
    "layers": 2,
    "epochs": 2.5,
    "threads": 3,
    "adaptive": (4, 9),
    "dropout": 0.3,
    "clip": 1.0,
}


def create(*texts: str | Path, **options: Any) -> Recipe:
    return Recipe.create(texts, options)


def test_every_option_of_train_bilm_is_in_the_recipe_with_the_default_of_its_dataclass() -> None:
    parameters = inspect.signature(train_bilm).parameters
    runtime = {"texts", "out", "tensorboard", "on_report", "on_progress", "on_stage"}
    assert set(parameters) - runtime == OPTIONS
    parts = (
        (CorpusOptions, recipes._CORPUS),
        (ModelShape, recipes._SHAPE),
        (OptimizerOptions, recipes._OPTIMIZER),
        (DropoutOptions, recipes._DROPOUT),
        (TrainOptions, recipes._TRAIN),
    )
    for kind, names in parts:
        defaults = {field.name: field.default for field in fields(kind)}
        for option, name in names.items():
            default = parameters[option].default
            assert default is None or default == defaults[name], option


def test_a_recipe_is_read_as_it_was_written(tmp_path: Path) -> None:
    recipe = create("a.txt", Path("b.txt"), **CHOICES)
    recipe.write(tmp_path)
    again = Recipe.read(tmp_path)
    assert again.differences(recipe) == []
    assert again.train_options() == recipe.train_options()
    assert again.shape() == recipe.shape() == ModelShape(CONFIG, n_layers=2)
    assert again.corpus_options() == recipe.corpus_options()
    again.write(tmp_path)
    assert Recipe.read(tmp_path) == again


def test_an_option_that_is_missing_in_the_file_has_its_default(tmp_path: Path) -> None:
    create("a.txt", threads=3).write(tmp_path)
    values = json.loads((tmp_path / FILE_NAME).read_text())
    del values["options"]["threads"]
    (tmp_path / FILE_NAME).write_text(json.dumps(values))
    assert Recipe.read(tmp_path) == create("a.txt")


def test_each_difference_is_named_with_both_values() -> None:
    recipe = create("a.txt", **CHOICES)
    other = create("a.txt", "b.txt", **{k: v for k, v in CHOICES.items() if k != "epochs"}, seed=4)
    assert recipe.differences(other) == [
        "epochs (2.5, not default)",
        "seed (default, not 4)",
        "texts (a.txt, not a.txt, b.txt)",
    ]
    assert not recipe.has_same_text(other)
    same = {name: CHOICES[name] for name in ("vocabulary", "heldout_file")}
    assert recipe.has_same_text(create("a.txt", **same, epochs=9))


def test_a_missing_window_is_the_default_of_an_lstm_but_not_of_a_transformer() -> None:
    assert create("a.txt").differences(create("a.txt", window=20)) == []
    assert create("a.txt").differences(create("a.txt", window=21)) == ["window (default, not 21)"]
    transformer = create("a.txt", encoder="transformer")
    assert transformer.differences(create("a.txt", encoder="transformer", window=20)) == ["window (default, not 20)"]


@pytest.mark.parametrize(("preset", "expected"), [("tiny", "4 for this preset"), (None, "4 or 6 or 8 .*transformer")])
def test_a_width_that_the_heads_cannot_share_is_refused(preset: str | None, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"width must be a multiple of {expected}.*; found 91"):
        create("a.txt", preset=preset, encoder="transformer", width=91)
    create("a.txt", preset=preset, encoder="transformer", width=96)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, OptimizerOptions()),
        ({"init_from": "org/model"}, GENTLE),
        ({"init_from": "org/model", "optimizer": "adagrad", "learning_rate": 0.2, "warmup": 0}, OptimizerOptions()),
        ({"init_from": "org/model", "clip": 1.0}, OptimizerOptions("adamw", 0.001, warmup_steps=100, clip=1.0)),
        ({"init_from": "org/model", "optimizer": "adagrad"}, OptimizerOptions("adagrad", 0.2, warmup_steps=100)),
        ({"hours": 1, "weight_decay": 0.1}, None),
        ({"optimizer": "sgd"}, OptimizerOptions("sgd", 1.0)),
        ({"optimizer": "sgd", "learning_rate": 3.0}, OptimizerOptions("sgd", 3.0)),
    ],
)
def test_an_option_changes_only_itself(options: dict[str, Any], expected: OptimizerOptions | None) -> None:
    optimizer = create("a.txt", **options).train_options().optimizer
    assert expected is None or optimizer == expected


def test_a_local_model_is_stored_with_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    assert create("a.txt", init_from="model").init_from == str(tmp_path / "model")
    assert create("a.txt", init_from=Path("later")).init_from == str(tmp_path / "later")
    assert create("a.txt", init_from="org/model").init_from == "org/model"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"version": 2, "texts": 3}', "is not a valid training recipe"),
        ("[]", "is not a valid training recipe"),
        ('{"inputs": ["a.txt"]}', "must have version 2; found 1"),
    ],
)
def test_a_damaged_recipe_and_one_of_another_version_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(FormatError, match=message):
        Recipe.read(tmp_path)
