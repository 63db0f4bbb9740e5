"""Ray Data: ``map_batches`` adds the vectors of ``Elmo.encode``, bit for bit, and keeps the other columns."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from elmo import ConfigError, DataError, Elmo, StateError
from elmo.formats import native
from tests.formats.tiny import tiny_model

pytest.importorskip("pyarrow")

import pyarrow as pa
from pyarrow import parquet

from elmo.integrations import ElmoBatchEncoder

ROOT = Path(__file__).parents[2]
TEXTS = ["a good film .", "bad", "", "very good", "the 河岸 café"] * 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ray") / "model"
    native.write(tiny_model(), path)
    return path


@pytest.fixture(scope="module")
def ray() -> Iterator[object]:
    library = pytest.importorskip("ray", reason="ray is not installed: make engines")
    library.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield library
    library.shutdown()


def test_numpy_batches_get_vectors(model: Path) -> None:
    encoder = ElmoBatchEncoder(model, pooling="ends", layers="concat")
    batch = {"text": np.array(TEXTS, object), "id": np.arange(25)}
    result = encoder(batch)
    encodings = Elmo.from_pretrained(model).encode(TEXTS, layers="concat")
    np.testing.assert_array_equal(result["text_vector"], [encoding.sentence("ends") for encoding in encodings])
    assert list(result) == ["text", "id", "text_vector"]
    assert list(batch) == ["text", "id"]
    empty = encoder({"text": np.array([], object)})
    assert empty["text_vector"].shape == (0, result["text_vector"].shape[1])


def test_numpy_batches_get_tokens_and_their_vectors(model: Path) -> None:
    words = np.empty(3, object)
    words[:] = [np.array(["a", "b"], object), None, np.array(["bad"], object)]
    result = ElmoBatchEncoder(model, "words", pooling=None)({"words": words})
    assert result["words_tokens"].tolist() == [["a", "b"], [], ["bad"]]
    for found, encoding in zip(
        result["words_vectors"], Elmo.from_pretrained(model).encode([["a", "b"], [], ["bad"]]), strict=True
    ):
        np.testing.assert_array_equal(found, encoding.vectors)


def test_a_row_without_text_has_no_vector_in_arrow(model: Path) -> None:
    table = pa.table({"text": ["bad", None, ""], "id": [1, 2, 3]})
    encoder = ElmoBatchEncoder(model)
    result = encoder(table)
    assert result.column_names == ["text", "id", "text_vector"]
    assert [row is None for row in result["text_vector"].to_pylist()] == [False, True, False]
    for part in (table.slice(0, 0), table.slice(1, 1)):
        assert encoder(part).schema == result.schema


def test_more_rows_than_are_encoded_at_once(model: Path) -> None:
    result = ElmoBatchEncoder(model)({"text": np.array(["bad", "good film"] * 700, object)})
    expected = [encoding.sentence() for encoding in Elmo.from_pretrained(model).encode(["bad", "good film"])]
    np.testing.assert_array_equal(result["text_vector"], expected * 700)


def test_an_encoder_is_pickled_without_its_model(model: Path) -> None:
    encoder = ElmoBatchEncoder(model)
    before = encoder({"text": np.array(["bad"], object)})
    assert len(pickle.dumps(encoder)) < 1000
    again = pickle.loads(pickle.dumps(encoder))
    np.testing.assert_array_equal(again({"text": np.array(["bad"], object)})["text_vector"], before["text_vector"])


def test_bad_options_and_batches_are_one_line(model: Path) -> None:
    for options, match in (
        ({"layers": "all"}, r"^layers must give one vector per token; found 'all'; use 'concat'$"),
        ({"pooling": "sum"}, r"^pooling must be mean, max, ends or None; found 'sum'$"),
        ({"n_threads": 0}, r"^n_threads must be at least 1; found 0$"),
        ({"model": 1}, r"^model must be a name or a path, so that other processes can load it; found int$"),
    ):
        with pytest.raises(ConfigError, match=match):
            ElmoBatchEncoder(**{"model": model, **options})  # type: ignore[arg-type]
    encoder = ElmoBatchEncoder(model)
    with pytest.raises(DataError, match=r"^unknown column 'text'; the batch has: body$"):
        encoder({"body": np.array(["bad"], object)})
    with pytest.raises(DataError, match=r"^the batch already has a column 'text_vector'; rename it$"):
        encoder(pa.table({"text": ["bad"], "text_vector": [1]}))
    with pytest.raises(DataError, match=r"^a batch must be a dict of NumPy arrays or a pyarrow table; found list"):
        encoder(["bad"])  # type: ignore[type-var]
    with pytest.raises(StateError, match=r"the model must have the fingerprint 123…, as in the driver; found \w{12}…"):
        ElmoBatchEncoder(model, expected="123").elmo  # noqa: B018


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of Ray
@pytest.mark.parametrize("batch_format", ["numpy", "pyarrow"])
def test_actors_of_ray_add_the_same_vectors(model: Path, ray, batch_format: str) -> None:
    data = ray.data.from_items([{"text": text, "id": k} for k, text in enumerate(TEXTS)]).repartition(4)
    elmo = Elmo.from_pretrained(model)
    for pooling, name in (("max", "text_vector"), (None, "text_vectors")):
        encoded = data.map_batches(
            ElmoBatchEncoder, fn_constructor_args=(str(model),), fn_constructor_kwargs={"pooling": pooling},
            batch_format=batch_format, batch_size=4, compute=ray.data.ActorPoolStrategy(size=2),
        )  # fmt: skip
        rows = sorted(encoded.take_all(), key=lambda row: row["id"])
        assert [row["text"] for row in rows] == TEXTS
        for row, encoding in zip(rows, elmo.encode(TEXTS), strict=True):
            if pooling is None:
                assert list(row["text_tokens"]) == list(encoding.tokens)
            expected = np.asarray(encoding.vectors if pooling is None else encoding.sentence("max"))
            found = np.array(list(row[name]), np.float32).reshape(expected.shape)
            np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_the_example_of_ray_runs(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: make engines")
    (tmp_path / "reviews.csv").write_text('id,text\n1,"A good film, really."\n2,Not for me .\n')
    subprocess.run(
        [sys.executable, str(ROOT / "examples/ray/encode.py"), "reviews.csv", "text", "vectors"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=True, timeout=300,
    )  # fmt: skip
    table = parquet.read_table(tmp_path / "vectors").sort_by("id")
    expected = [encoding.sentence() for encoding in Elmo.from_pretrained().encode(table["text"].to_pylist())]
    assert table["id"].to_pylist() == [1, 2]
    np.testing.assert_array_equal(np.array(table["text_vector"].to_pylist(), np.float32), expected)
