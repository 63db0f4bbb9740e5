"""Task models: saved to one file and loaded again, with or without their own biLM; predictions in chunks."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from elmo import ConfigError, Elmo, ElmoError, FormatError
from elmo.tasks.data.examples import Document, TaggedSentence
from elmo.tasks.features.layer import Features
from elmo.tasks.features.static import StaticVectors
from elmo.tasks.features.store import FeatureStore
from elmo.tasks.kinds.task import count_tokens
from elmo.tasks.model import CHUNK_EXAMPLES, CHUNK_TOKENS, VERSION, TaskModel, split_chunks
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


@pytest.mark.slow
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
def test_a_saved_model_predicts_the_same(folder: Path, tmp_path: Path, choice: dict[str, object]) -> None:
    model = trained(store(folder, **choice), options=SHORT, elmo_name=str(folder))
    path = tmp_path / "tagger.safetensors"
    model.save(path)
    again = TaskModel.load(path)
    assert again.epochs == model.epochs
    assert again.evaluate(DEV) == model.evaluate(DEV)
    for one, two in zip(model.predict(DEV), again.predict(DEV), strict=True):
        assert one.tags == two.tags
        np.testing.assert_allclose(one.confidences, two.confidences, atol=2e-3)  # static vectors are halved


@pytest.mark.slow
def test_equal_models_are_equal_files(folder: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        trained(store(folder), options=SHORT, elmo_name=str(folder)).save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_description_is_checked_against_the_weights(folder: Path, tmp_path: Path) -> None:
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
        ({"task": task}, r"head\.lstm\.layers\.0\.ahead\.weight_ih_l0: expected shape \(40000000, \d+\); found \(32"),
        ({"task": deep}, "option n_layers must be an integer from 1 to 64"),
        ({"kind": "parsing"}, "kind of task must be one of"),
    ):
        save_file(tensors, path, metadata={"elmo": json.dumps({**about, **change})})
        with pytest.raises(ElmoError, match=message):
            TaskModel.load(path)


def test_vectors_beyond_half_precision_are_saved_exactly(folder: Path, tmp_path: Path) -> None:
    large = StaticVectors(("a", "Q"), np.array([[1e5, 1.0], [-1e5, 0.25]], np.float32))
    model = trained(FeatureStore(Features(), Elmo.from_pretrained(folder), large), options=SHORT, elmo_name=str(folder))
    model.save(tmp_path / "tagger.safetensors")
    again = TaskModel.load(tmp_path / "tagger.safetensors")
    assert again.store.static is not None
    np.testing.assert_array_equal(again.store.static.vectors, large.vectors)


def test_a_tuned_bilm_is_part_of_the_file(folder: Path, tmp_path: Path) -> None:
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


def test_another_bilm_than_in_training_is_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "tagger.safetensors"
    trained(store(folder), options=SHORT, elmo_name=str(folder)).save(path)
    with pytest.raises(
        ConfigError, match=r"biLM must be .* with the fingerprint [0-9a-f]{12}…, as in training; found [0-9a-f]{12}…"
    ):
        TaskModel.load(path, elmo=Elmo(tiny_model(seed=7)))


def test_files_that_are_not_task_models_are_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "tagger.safetensors"
    trained(store(folder), options=SHORT, elmo_name=str(folder)).save(path)
    raw = path.read_bytes()
    with pytest.raises(FormatError, match="nothing"):
        TaskModel.load(tmp_path / "nothing.safetensors")
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(FormatError, match="not a task model, or is damaged"):
        TaskModel.load(path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(FormatError, match="expected a task model written by elmo task train"):
        TaskModel.load(path)
    about = {"format": "elmo task model", "version": VERSION, "kind": "tagging"}
    save_file({"x": torch.zeros(1)}, path, metadata={"elmo": json.dumps(about)})
    with pytest.raises(FormatError, match="cannot read this task model"):
        TaskModel.load(path)
    path.write_bytes(raw)
    tensors = load_file(path)
    tensors["head.scores.linear.weight"] = torch.zeros(1)
    about |= TaskModel.load(path)._description()
    save_file(tensors, path, metadata={"elmo": json.dumps(about)})
    with pytest.raises(
        FormatError, match=r"tagger\.safetensors: head\.scores\.linear\.weight: expected shape .*; found \(1,\)"
    ):
        TaskModel.load(path)


def test_the_package_exports_its_public_names() -> None:
    from elmo import tasks

    assert tasks.__all__ == sorted(tasks.__all__) == dir(tasks)
    assert all(callable(getattr(tasks, name)) for name in tasks.__all__)


TUNED = Features(is_bilm_tuned=True)


def saved(path: Path, elmo: Elmo, *, choice: Features = TUNED, name: str | None = None) -> TaskModel:
    model = trained(FeatureStore(choice, elmo), options=SHORT, elmo_name=name)
    model.save(path)
    return model


def about(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["elmo"])


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_given_bilm_is_ignored_with_a_warning_if_the_file_has_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tagger.safetensors"
    model = saved(path, Elmo(tiny_model()))
    with caplog.at_level(logging.WARNING):
        again = TaskModel.load(path, elmo=Elmo(tiny_model(seed=7)))
    assert "tagger.safetensors contains a biLM; ignoring the biLM that was passed" in caplog.text
    assert again.evaluate(DEV) == model.evaluate(DEV)


@pytest.mark.slow
def test_files_of_another_version_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "tagger.safetensors"
    saved(path, Elmo(tiny_model()))
    save_file(load_file(path), path, metadata={"elmo": json.dumps(about(path) | {"version": 1})})
    with pytest.raises(
        FormatError,
        match=r"tagger\.safetensors: format version of the task model must be 3; found \d; train the model again",
    ):
        TaskModel.load(path)


@pytest.mark.slow
def test_an_incomplete_bilm_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tagger.safetensors"
    saved(path, Elmo(tiny_model()))
    description, tensors = about(path), load_file(path)
    bilm = json.loads(tensors["bilm.description"].numpy().tobytes())
    large = {**bilm, "config": {**bilm["config"], "lstm": {**bilm["config"]["lstm"], "cell_width": 7}}}
    for text, message in (
        (json.dumps(large), r"tagger\.safetensors: cannot read the biLM of this task model: .*expected"),
        (json.dumps({**bilm, "config": {}}), "cannot read the biLM of this task model"),
        (json.dumps({}), "cannot read this task model"),
        (json.dumps({**bilm, "vocabulary": []}), "cannot read this task model"),
        ("{", "cannot read this task model"),
    ):
        raw = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        save_file({**tensors, "bilm.description": raw}, path, metadata={"elmo": json.dumps(description)})
        with pytest.raises(FormatError, match=message) as caught:
            TaskModel.load(path)
        assert "\n" not in str(caught.value)
    save_file(tensors, path, metadata={"elmo": json.dumps(description | {"version": VERSION + 1})})
    with pytest.raises(FormatError, match=r"format version of the task model must be 3; found \d; train the model"):
        TaskModel.load(path)


@given(st.lists(st.integers(1, 9), max_size=3 * CHUNK_EXAMPLES))
def test_every_example_is_in_one_chunk_in_order(lengths: list[int]) -> None:
    examples = [TaggedSentence(("a",) * n, None) for n in lengths]
    found = list(split_chunks(iter(examples)))
    assert [one for piece in found for one in piece] == examples
    assert all(len(piece) == CHUNK_EXAMPLES for piece in found[:-1])
    assert all(found)


def test_long_examples_make_small_chunks_and_a_document_is_a_chunk() -> None:
    long = TaggedSentence(("a",) * (CHUNK_TOKENS // 3), None)
    found = list(split_chunks([long] * 9))
    assert max(sum(map(count_tokens, piece)) for piece in found) < CHUNK_TOKENS + count_tokens(long)
    document = Document("d", (("a",),), None)
    assert list(split_chunks([document] * 3)) == [[document]] * 3


def test_no_more_examples_are_read_than_a_chunk_needs() -> None:
    taken = 0

    def examples() -> Iterator[TaggedSentence]:
        nonlocal taken
        while True:
            taken += 1
            yield TaggedSentence(("a",), None)

    assert len(next(split_chunks(examples()))) == taken == CHUNK_EXAMPLES
