"""A task model with a biLM of its own: it needs no other file; what earlier versions wrote still loads."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from elmo import Elmo, FormatError
from elmo.tasks.features.layer import Features
from elmo.tasks.features.store import FeatureStore
from elmo.tasks.model import VERSION, TaskModel
from tests.formats.tiny import tiny_model
from tests.tasks.test_fit import DEV, OPTIONS, trained

SHORT = replace(OPTIONS, epochs=1)
TUNED = Features(is_bilm_tuned=True)


def saved(path: Path, elmo: Elmo, *, choice: Features = TUNED, name: str | None = None) -> TaskModel:
    model = trained(FeatureStore(choice, elmo), options=SHORT, elmo_name=name)
    model.save(path)
    return model


def about(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["elmo"])


@pytest.mark.parametrize(
    "made", [{}, {"token": "both"}, {"token": "words", "words": ("<S>", "</S>", "<UNK>", "Q", "a\ud800")},
             {"alphabet": "unicode"}]
)  # fmt: skip
def test_a_tuned_bilm_needs_no_original(tmp_path: Path, made: dict[str, Any]) -> None:
    folder, path = tmp_path / "tiny", tmp_path / "tagger.safetensors"
    Elmo(tiny_model(**made)).save_pretrained(folder)
    elmo = Elmo.from_pretrained(folder, tokenizer="whitespace")
    model = saved(path, elmo, name=str(folder))
    shutil.rmtree(folder)
    again = TaskModel.load(path)
    for one, two in zip(model.predict(DEV), again.predict(DEV), strict=True):
        assert one.tags == two.tags
        np.testing.assert_array_equal(one.confidences, two.confidences)
    assert again.store.elmo is not None
    assert again.store.elmo.tokenizer.name == "whitespace"
    assert again.elmo_name == str(folder)
    again.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_a_frozen_bilm_stays_out_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tagger.safetensors"
    saved(path, Elmo(tiny_model()), choice=Features())
    assert not any("bilm" in name for name in load_file(path))


def test_a_bilm_that_is_given_beside_is_told_not_to_be_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tagger.safetensors"
    model = saved(path, Elmo(tiny_model()))
    with caplog.at_level(logging.WARNING):
        again = TaskModel.load(path, elmo=Elmo(tiny_model(seed=7)))
    assert "tagger.safetensors contains its own biLM; ignoring the given one" in caplog.text
    assert again.evaluate(DEV) == model.evaluate(DEV)


def test_files_of_another_version_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "tagger.safetensors"
    saved(path, Elmo(tiny_model()))
    save_file(load_file(path), path, metadata={"elmo": json.dumps(about(path) | {"version": 1})})
    with pytest.raises(
        FormatError, match=r"tagger\.safetensors: written by another version of elmo \(expected format version 3, found \d\); train it"
    ):
        TaskModel.load(path)


def test_a_bilm_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tagger.safetensors"
    saved(path, Elmo(tiny_model()))
    description, tensors = about(path), load_file(path)
    told = json.loads(tensors["bilm.description"].numpy().tobytes())
    large = {**told, "config": {**told["config"], "lstm": {**told["config"]["lstm"], "cell_width": 7}}}
    for text, message in (
        (json.dumps(large), r"tagger\.safetensors: cannot read the biLM of this task model: .*expected"),
        (json.dumps({**told, "config": {}}), "a task model whose biLM cannot be read"),
        (json.dumps({}), "a task model that cannot be read"),
        (json.dumps({**told, "vocabulary": []}), "a task model that cannot be read"),
        ("{", "a task model that cannot be read"),
    ):
        raw = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        save_file({**tensors, "bilm.description": raw}, path, metadata={"elmo": json.dumps(description)})
        with pytest.raises(FormatError, match=message) as caught:
            TaskModel.load(path)
        assert "\n" not in str(caught.value)
    save_file(tensors, path, metadata={"elmo": json.dumps(description | {"version": VERSION + 1})})
    with pytest.raises(FormatError, match="written by another version of elmo \(expected format version 3, found \d\); train it again"):
        TaskModel.load(path)
