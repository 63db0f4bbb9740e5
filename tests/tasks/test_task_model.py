"""A task model's one file: it comes back whole, without the data, and strangers' files are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from elmo import ConfigError, Elmo, ElmoError, FormatError
from elmo.tasks.features.layer import Features
from elmo.tasks.features.static import StaticVectors
from elmo.tasks.features.store import FeatureStore
from elmo.tasks.model import VERSION, TaskModel
from tests.formats.tiny import tiny_model
from tests.tasks.test_fit import DEV, OPTIONS, trained

STATIC = StaticVectors(("a", "Q"), np.array([[0.5, 1.0], [-1.0, 0.25]], np.float32))
SHORT = replace(OPTIONS, epochs=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "tiny"
    Elmo(tiny_model()).save_pretrained(place)
    return place


def store(folder: Path, **choice: object) -> FeatureStore:
    return FeatureStore(Features(**choice), Elmo.from_pretrained(folder), STATIC)  # pyright: ignore


@pytest.mark.parametrize(
    "choice",
    [
        {"elmo": "none"},
        {"elmo": "input", "characters": 5},
        {"elmo": "output"},
        {"elmo": "both", "layer_norm": True},
        {"elmo": "input", "top_only": True, "is_static_tuned": True},
        {"elmo": "both", "is_bilm_tuned": True},
    ],
)
def test_what_is_saved_predicts_the_same(folder: Path, tmp_path: Path, choice: dict[str, object]) -> None:
    model = trained(store(folder, **choice), options=SHORT, elmo_name=str(folder))
    path = tmp_path / "tagger.safetensors"
    model.save(path)
    again = TaskModel.load(path)
    assert again.epochs == model.epochs
    assert again.evaluate(DEV) == model.evaluate(DEV)
    for one, two in zip(model.predict(DEV), again.predict(DEV), strict=True):
        assert one.tags == two.tags
        np.testing.assert_allclose(one.confidences, two.confidences, atol=2e-3)  # static vectors are halved


def test_equal_models_are_equal_files(folder: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        trained(store(folder), options=SHORT, elmo_name=str(folder)).save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_description_is_not_believed(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "tagger.safetensors"
    model = trained(store(folder), options=SHORT, elmo_name=str(folder))
    model.save(path)
    tensors = load_file(path)
    about = {"format": "elmo task model", "version": VERSION, **model._description()}
    task = {**about["task"], "options": {**about["task"]["options"], "hidden_width": 10**7}}
    deep = {**about["task"], "options": {**about["task"]["options"], "n_layers": 10**6}}
    for change, message in (
        ({"epochs": 3}, "cannot read this task model"),
        ({"epochs": [{"x": 1}]}, "cannot read this task model"),
        ({"reading": [1]}, "cannot read this task model"),
        (
            {"task": task},
            r"head\.lstm\.layers\.0\.ahead\.weight_ih_l0 of shape \(32, \d+\), expected \(40000000",
        ),
        ({"task": deep}, "option n_layers: expected a whole number from 1 to 64"),
        ({"kind": "parsing"}, "the kinds of tasks are"),
    ):
        save_file(tensors, path, metadata={"elmo": json.dumps({**about, **change})})
        with pytest.raises(ElmoError, match=message):
            TaskModel.load(path)


def test_vectors_beyond_half_precision_are_kept_whole(folder: Path, tmp_path: Path) -> None:
    large = StaticVectors(("a", "Q"), np.array([[1e5, 1.0], [-1e5, 0.25]], np.float32))
    model = trained(
        FeatureStore(Features(), Elmo.from_pretrained(folder), large), options=SHORT, elmo_name=str(folder)
    )
    model.save(tmp_path / "tagger.safetensors")
    again = TaskModel.load(tmp_path / "tagger.safetensors")
    assert again.store.static is not None
    np.testing.assert_array_equal(again.store.static.vectors, large.vectors)


def test_a_fine_tuned_bilm_goes_with_the_file(folder: Path, tmp_path: Path) -> None:
    model = trained(store(folder, is_bilm_tuned=True), options=SHORT, elmo_name=str(folder))
    before = Elmo.from_pretrained(folder).bilm.state_dict()
    tuned = model.network.words.bilm
    assert tuned is not None
    assert any(not torch.equal(weight, before[name]) for name, weight in tuned.state_dict().items())
    model.save(tmp_path / "tagger.safetensors")
    again = TaskModel.load(tmp_path / "tagger.safetensors").network.words.bilm
    assert again is not None
    for name, weight in tuned.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name


def test_another_bilm_than_it_was_learned_with_is_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "tagger.safetensors"
    trained(store(folder), options=SHORT, elmo_name=str(folder)).save(path)
    with pytest.raises(ConfigError, match=r"trained with the biLM .* \([0-9a-f]{12}…\), found another one \([0-9a-f]{12}…\)"):
        TaskModel.load(path, elmo=Elmo(tiny_model(seed=7)))


def test_files_that_are_no_task_models_are_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "tagger.safetensors"
    trained(store(folder), options=SHORT, elmo_name=str(folder)).save(path)
    raw = path.read_bytes()
    with pytest.raises(FormatError, match="nothing"):
        TaskModel.load(tmp_path / "nothing.safetensors")
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(FormatError, match="not a task model, or damaged"):
        TaskModel.load(path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(FormatError, match="expected a task model, as elmo task train writes them"):
        TaskModel.load(path)
    about = {"format": "elmo task model", "version": VERSION, "kind": "tagging"}
    save_file({"x": torch.zeros(1)}, path, metadata={"elmo": json.dumps(about)})
    with pytest.raises(FormatError, match="a task model that cannot read this task model"):
        TaskModel.load(path)
    path.write_bytes(raw)
    tensors = load_file(path)
    tensors["head.scores.linear.weight"] = torch.zeros(1)
    about |= TaskModel.load(path)._description()
    save_file(tensors, path, metadata={"elmo": json.dumps(about)})
    with pytest.raises(
        FormatError, match=r"tagger\.safetensors: head\.scores\.linear\.weight of shape \(1,\)"
    ):
        TaskModel.load(path)


def test_the_door_of_the_room_opens_to_what_it_names() -> None:
    from elmo import tasks

    assert tasks.__all__ == sorted(tasks.__all__) == dir(tasks)
    assert all(callable(getattr(tasks, name)) for name in tasks.__all__)
