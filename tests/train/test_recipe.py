from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig
from elmo.errors import FormatError
from elmo.train.objective import Dropout
from elmo.train.options import Optimisation, Shape
from elmo.train.run_folder import GENTLE, NAME, Recipe

OWN = BiLmConfig(CharCnnConfig(char_width=3, filters=((1, 4),)), None, LstmConfig(1, 12, 8))
CHOICES: dict[str, Any] = {
    "corpus_options": {"vocabulary": Path("words.txt"), "heldout_inputs": ["a.txt"], "heldout": 0.1},
    "shape": Shape(OWN, n_layers=2),
    "epochs": 2.5,
    "threads": 3,
    "options": {"cutoffs": (4, 9), "n_samples": None, "dropout": Dropout(0.3), "optimisation": {"clip": 1.0}},
}


def test_a_recipe_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    recipe = Recipe.of(["a.txt", Path("b.txt")], **CHOICES)
    recipe.write(tmp_path)
    again = Recipe.read(tmp_path)
    assert again.differences(recipe) == []
    assert again.train_options() == recipe.train_options()
    assert again.shape == recipe.shape
    again.write(tmp_path)
    assert Recipe.read(tmp_path) == again


def test_a_recipe_without_threads_is_of_an_earlier_version_and_has_those_of_today(tmp_path: Path) -> None:
    Recipe.of("a.txt").write(tmp_path)
    values = json.loads((tmp_path / NAME).read_text())
    del values["threads"]
    (tmp_path / NAME).write_text(json.dumps(values))
    assert Recipe.read(tmp_path) == Recipe.of("a.txt")


def test_each_difference_is_named_with_both_values() -> None:
    recipe = Recipe.of("a.txt", **CHOICES)
    other = Recipe.of(
        ["a.txt", "b.txt"], **{**CHOICES, "epochs": None, "options": {**CHOICES["options"], "seed": 4}}
    )
    assert recipe.differences(other) == [
        "epochs (2.5, not none)",
        "inputs (a.txt, not a.txt, b.txt)",
        "seed (none, not 4)",
    ]
    assert not recipe.has_the_text_of(other)
    assert recipe.has_the_text_of(Recipe.of("a.txt", corpus_options=CHOICES["corpus_options"], epochs=9))


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ({}, Optimisation()),
        ({"start": "org/model"}, GENTLE),
        ({"start": "org/model", "options": {"optimisation": Optimisation()}}, Optimisation()),
        (
            {"start": "org/model", "options": {"optimisation": {"clip": 1.0}}},
            Optimisation("adamw", 0.001, warm_up_steps=100, clip=1.0),
        ),
        (
            {"start": "org/model", "options": {"optimisation": {"optimiser": "adagrad"}}},
            Optimisation("adagrad", 0.2, warm_up_steps=100),
        ),
        ({"hours": 1, "options": {"optimisation": {"weight_decay": 0.1}}}, None),
        ({"options": {"optimisation": {"optimiser": "sgd"}}}, Optimisation("sgd", 1.0)),
        (
            {"options": {"optimisation": {"optimiser": "sgd", "learning_rate": 3.0}}},
            Optimisation("sgd", 3.0),
        ),
    ],
)
def test_only_what_was_asked_for_is_otherwise_than_usual(
    choices: dict[str, Any], expected: Optimisation | None
) -> None:
    found = Recipe.of("a.txt", **choices).train_options().optimisation
    assert expected is None or found == expected


def test_a_model_of_this_machine_is_kept_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    assert Recipe.of("a.txt", start="model").start == str(tmp_path / "model")
    assert Recipe.of("a.txt", start=Path("later")).start == str(tmp_path / "later")
    assert Recipe.of("a.txt", start="org/model").start == "org/model"


def test_a_damaged_recipe_is_named(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"inputs": 3}')
    with pytest.raises(FormatError, match="is not the recipe of a run"):
        Recipe.read(tmp_path)
