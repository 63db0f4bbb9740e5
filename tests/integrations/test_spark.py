"""Spark: ``mapInArrow`` adds the vectors of ``Elmo.encode``, bit for bit, and keeps the other columns."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from elmo import ConfigError, DataError, Elmo
from elmo.formats import native
from tests.formats.tiny import tiny_model

pytest.importorskip("pyarrow")

import pyarrow as pa
from pyarrow import parquet

from elmo.integrations import encode_batches

ROOT = Path(__file__).parents[2]
TEXTS = ["a good film .", "bad", "", None, "the 河岸 café"] * 5


@pytest.fixture
def model(tmp_path: Path) -> Path:
    native.write(tiny_model(), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(scope="module")
def spark() -> Iterator[object]:
    library = pytest.importorskip("pyspark.sql", reason="pyspark is not installed: make engines")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = library.SparkSession.builder.master("local[2]").config("spark.driver.host", "127.0.0.1")
    session = builder.config("spark.ui.enabled", "false").getOrCreate()
    yield session
    session.stop()


def encode(model: Path, texts: list[str | None]) -> list[np.ndarray | None]:
    encodings = Elmo.from_pretrained(model).encode([text or "" for text in texts])
    return [None if text is None else np.asarray(one.vectors) for text, one in zip(texts, encodings, strict=True)]


def test_batches_keep_their_columns_and_get_vectors(model: Path) -> None:
    batch = pa.record_batch({"text": TEXTS, "id": list(range(25))})
    tokens, pooled = encode_batches(model, pooling=None), encode_batches(model, "text")
    (result,) = tokens(iter([batch, batch.slice(0, 0)]))
    (other,) = pooled([batch])
    assert result.schema.names == ["text", "id", "text_tokens", "text_vectors"]
    assert result.schema.field("text_vectors").type == pa.list_(pa.list_(pa.float32()))
    assert other.schema.field("text_vector").type == pa.list_(pa.float32())
    expected = encode(model, TEXTS)
    for found, mean, vectors in zip(
        result["text_vectors"].to_pylist(), other["text_vector"].to_pylist(), expected, strict=True
    ):
        if vectors is None:
            assert found is mean is None
        else:
            np.testing.assert_array_equal(np.array(found, np.float32).reshape(vectors.shape), vectors)
    assert result["text_tokens"].to_pylist()[:2] == [["a", "good", "film", "."], ["bad"]]


def test_large_batches_are_encoded_in_parts(model: Path) -> None:
    batch = pa.record_batch({"text": ["bad", "good film"] * 700})
    parts = list(encode_batches(model)([batch]))
    assert [part.num_rows for part in parts] == [1024, 376]
    (bad, good) = (vectors.mean(axis=0) for vectors in encode(model, ["bad", "good film"]) if vectors is not None)
    found = np.concatenate([np.array(part["text_vector"].to_pylist(), np.float32) for part in parts])
    np.testing.assert_allclose(found, np.stack([bad, good] * 700), rtol=1e-6)


def test_bad_options_and_batches_are_one_line(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"^layers must give one vector per token; found 'all'; use 'concat'$"):
        encode_batches(model, layers="all")
    with pytest.raises(DataError, match=r"^unknown column 'text'; the batch has: body$"):
        list(encode_batches(model)([pa.record_batch({"body": ["bad"]})]))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of Spark
@pytest.mark.parametrize("pooling", ["mean", None])
def test_workers_of_spark_add_the_same_vectors(model: Path, spark, pooling) -> None:
    frame = spark.createDataFrame([(k, text) for k, text in enumerate(TEXTS)], "id long, text string").repartition(3)
    function = encode_batches(model, "text", pooling=pooling)
    schema = function.schema(frame.schema)
    result = frame.mapInArrow(function, schema)
    assert result.schema == schema
    rows = sorted(result.collect(), key=lambda row: row["id"])
    assert [row["text"] for row in rows] == TEXTS
    for row, encoding in zip(rows, Elmo.from_pretrained(model).encode([text or "" for text in TEXTS]), strict=True):
        found = row["text_vectors" if pooling is None else "text_vector"]
        if row["text"] is None:
            assert found is None
            continue
        expected = np.asarray(encoding.vectors if pooling is None else encoding.sentence("mean"))
        np.testing.assert_array_equal(np.array(found, np.float32).reshape(expected.shape), expected)
        if pooling is None:
            assert row["text_tokens"] == list(encoding.tokens)
    with pytest.raises(DataError, match=r"^the batch already has a column"):
        function.schema(schema)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_worker_with_another_model_is_an_error(model: Path, spark, tmp_path: Path) -> None:
    frame = spark.createDataFrame([("bad",)], "text string")
    function = encode_batches(model)
    native.write(tiny_model(seed=1), tmp_path / "other")
    for path in (tmp_path / "other").iterdir():
        path.replace(model / path.name)
    with pytest.raises(Exception, match="use the same model on all machines"):
        frame.mapInArrow(function, function.schema(frame.schema)).collect()


@pytest.mark.slow
def test_the_example_of_spark_runs(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed: make engines")
    (tmp_path / "reviews.csv").write_text('id,text\n1,"A good film, really."\n2,Not for me .\n')
    subprocess.run(
        [sys.executable, str(ROOT / "examples/spark/encode.py"), "reviews.csv", "text", "vectors"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=True, timeout=300,
    )  # fmt: skip
    table = parquet.read_table(tmp_path / "vectors").sort_by("id")
    expected = [encoding.sentence() for encoding in Elmo.from_pretrained().encode(table["text"].to_pylist())]
    assert table["id"].to_pylist() == ["1", "2"]
    np.testing.assert_array_equal(np.array(table["text_vector"].to_pylist(), np.float32), expected)
