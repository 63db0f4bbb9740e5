"""Hugging Face datasets: ``map`` finds cached results of the same model and options, and of no other."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from elmo import ConfigError, DataError, Elmo, StateError
from elmo.formats import native
from tests.formats.tiny import tiny_model

pytest.importorskip("datasets")

from datasets import Dataset, load_dataset
from datasets.fingerprint import Hasher

from elmo.integrations import EmbedColumn, embed_dataset

TEXTS = ["a good film .", "bad", "", "very good"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("datasets") / "model"
    native.write(tiny_model(), path)
    return path


def test_a_dataset_gets_a_column_of_vectors(folder: Path) -> None:
    data = Dataset.from_dict({"text": TEXTS, "label": [1, 0, 0, 1]})
    embedded = embed_dataset(data, EmbedColumn(folder, pooling="max"), batch_size=3)
    expected = [encoding.sentence("max") for encoding in Elmo.from_pretrained(folder).encode(TEXTS)]
    assert embedded.column_names == ["text", "label", "vector"]
    vectors = embedded.with_format("numpy")["vector"][:]
    np.testing.assert_array_equal(np.stack(list(vectors)), np.stack(expected))
    assert embedded.features["vector"].length == 8


def test_results_are_cached_by_the_model_and_the_options_only(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "data.csv"
    source.write_text("text\n" + "\n".join(text or "x" for text in TEXTS) + "\n")
    data = load_dataset("csv", data_files=str(source), cache_dir=str(tmp_path / "cache"))["train"]

    def cache_file(function: EmbedColumn) -> str:
        return data.map(function, batched=True).cache_files[0]["filename"]

    function = EmbedColumn(folder)
    first = cache_file(function)
    assert cache_file(function) == first  # the model is loaded now, which does not matter
    assert cache_file(EmbedColumn(folder)) == first
    assert Hasher.hash(pickle.loads(pickle.dumps(function))) == Hasher.hash(function)
    assert cache_file(EmbedColumn(folder, layers="top")) != first

    copy = tmp_path / "model"
    native.write(tiny_model(), copy)
    before = Hasher.hash(old := EmbedColumn(copy))
    native.write(tiny_model(seed=1), tmp_path / "other")
    for path in (tmp_path / "other").iterdir():  # another model in the same folder
        path.replace(copy / path.name)
    assert Hasher.hash(EmbedColumn(copy)) != before
    with pytest.raises(StateError, match=r"this model has changed since the function was created; create it again$"):
        pickle.loads(pickle.dumps(old))


def test_unknown_columns_and_loaded_models_are_one_line(folder: Path) -> None:
    with pytest.raises(DataError, match=r"^unknown column 'body'; this dataset has: text$"):
        EmbedColumn(folder, column="body")({"text": TEXTS})
    with pytest.raises(ConfigError, match=r"^model must be a name or a path"):
        EmbedColumn(Elmo.from_pretrained(folder))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"^layers must give one vector per token; found 'all'; use 'concat'$"):
        EmbedColumn(folder, layers="all")
