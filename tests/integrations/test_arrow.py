"""Arrow tables of encodings and jobs, and what pandas, polars and DuckDB make of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elmo import ChecksumError, DataError, Elmo, ShapeError
from elmo.jobs import EmbedJob, embed_corpus, read_embeddings
from tests.formats.tiny import tiny_model

pytest.importorskip("pyarrow")

import pyarrow as pa

from elmo.integrations import from_arrow, read_job, to_arrow

TEXTS = ["a good film .", "", "the 河岸 café", "bad"]


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(tiny_model())


def address(array: pa.Array) -> int:
    """The address of the numbers of nested lists."""
    while pa.types.is_list(array.type) or pa.types.is_fixed_size_list(array.type):
        array = array.values
    return array.buffers()[1].address


@pytest.mark.parametrize("layers", ["average", "all"])
def test_encodings_survive_a_round_trip(elmo: Elmo, layers) -> None:
    encodings = elmo.encode(TEXTS, layers=layers)
    table = to_arrow(encodings)
    assert table.column_names == ["tokens", "vectors"]
    again = from_arrow(table)
    assert [encoding.tokens for encoding in again] == [encoding.tokens for encoding in encodings]
    for old, new in zip(encodings, again, strict=True):
        assert new.vectors.shape == old.vectors.shape
        np.testing.assert_array_equal(new.vectors, old.vectors)
    assert from_arrow(table.slice(2, 1))[0].tokens == encodings[2].tokens
    np.testing.assert_array_equal(from_arrow(table.slice(2, 1))[0].vectors, encodings[2].vectors)


def test_one_encoding_is_not_copied(elmo: Elmo) -> None:
    encoding = elmo.encode(TEXTS[0])
    table = to_arrow(encoding)
    assert address(table["vectors"].chunk(0)) == encoding.vectors.ctypes.data
    assert from_arrow(table)[0].vectors.ctypes.data == encoding.vectors.ctypes.data


def test_pooled_vectors_are_fixed_size_lists(elmo: Elmo) -> None:
    encodings = elmo.encode(TEXTS)
    table = to_arrow(encodings, pooling="mean")
    assert table["vector"].type == pa.list_(pa.float32(), elmo.width)
    np.testing.assert_array_equal(table["vector"].to_pylist(), [encoding.sentence() for encoding in encodings])


def test_polars_pandas_and_duckdb_read_tables_and_give_them_back(elmo: Elmo) -> None:
    polars, pandas, duckdb = (pytest.importorskip(name) for name in ("polars", "pandas", "duckdb"))
    encodings = elmo.encode(TEXTS)
    table = to_arrow(encodings)
    pooled = to_arrow(encodings, pooling="mean")

    frame = polars.from_arrow(table)
    assert frame.schema["vectors"] == polars.List(polars.Array(polars.Float32, elmo.width))
    assert address(frame["vectors"].rechunk().to_arrow().cast(table["vectors"].type)) == address(
        table["vectors"].chunk(0)
    )
    np.testing.assert_array_equal(from_arrow(frame)[2].vectors, encodings[2].vectors)

    arrow_frame = table.to_pandas(types_mapper=pandas.ArrowDtype)
    assert address(pa.chunked_array(arrow_frame["vectors"].array.__arrow_array__()).chunk(0)) == address(
        table["vectors"].chunk(0)
    )
    np.testing.assert_array_equal(from_arrow(arrow_frame)[2].vectors, encodings[2].vectors)

    query = encodings[0].sentence().tolist()
    cosine = f"array_cosine_similarity(vector, {query}::float[{elmo.width}])"
    sql = f"select {cosine}, tokens from t where len(tokens) > 0 order by 1 desc"
    nearest = duckdb.from_arrow(pooled).query("t", sql).fetchall()[0]
    assert nearest[1] == list(encodings[0].tokens)
    assert nearest[0] == pytest.approx(1, abs=1e-6)
    relation = duckdb.from_arrow(table).filter("list_contains(tokens, 'café')")
    np.testing.assert_array_equal(from_arrow(relation.to_arrow_table())[0].vectors, encodings[2].vectors)


def test_tensors_keep_their_precision() -> None:
    elmo = Elmo(tiny_model(), dtype="float64")
    encodings = elmo.encode(TEXTS, as_tensor=True)
    for old, new in zip(encodings, from_arrow(to_arrow(encodings)), strict=True):
        assert new.vectors.dtype == np.float64
        np.testing.assert_array_equal(new.vectors, old.vectors)


@pytest.mark.parametrize("suffix", [".jsonl", ".h5"])
def test_other_formats_are_copied_in_small_batches(
    elmo: Elmo, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmo.integrations.arrow._BATCH", 3)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(TEXTS * 3) + "\n")
    embed_corpus(EmbedJob(inputs=(str(corpus),), out=tmp_path / f"v{suffix}"), elmo)
    assert [batch.num_rows for batch in read_job(tmp_path / f"v{suffix}")] == [3] * 4


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".parquet", ".jsonl", ".h5"])
def test_the_output_of_a_job_is_a_stream_of_batches(elmo: Elmo, tmp_path: Path, suffix: str) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(TEXTS * 3) + "\n")
    out = tmp_path / f"vectors{suffix}"
    embed_corpus(EmbedJob(inputs=(str(corpus),), out=out, shard_tokens=10), elmo)
    reader = read_job(out)
    encodings = from_arrow(reader.read_all())
    expected = list(read_embeddings(out))
    assert [encoding.tokens for encoding in encodings] == [encoding.tokens for encoding in expected]
    for old, new in zip(expected, encodings, strict=True):
        np.testing.assert_array_equal(new.vectors, old.vectors)
    if suffix == ".safetensors":
        damaged = next(tmp_path.glob("vectors*1*.safetensors"))
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
        with pytest.raises(ChecksumError, match=r"the file is damaged; run the job again to repair it$"):
            list(read_job(out))


def test_other_tables_are_one_line(elmo: Elmo) -> None:
    with pytest.raises(DataError, match=r"^the table must have the columns tokens and vectors; found a$"):
        from_arrow(pa.table({"a": [1]}))
    vectors = pa.array([[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]], pa.list_(pa.list_(pa.float32(), 2)))
    no_vector = pa.array([[None], [[3.0, 4.0], [5.0, 6.0]]], vectors.type)
    tokens = pa.array([["a"], ["b", "c"]])
    three = pa.field("vectors", vectors.type, metadata={"elmo.layers": "3"})
    for table, match in [
        ({"tokens": [["a"]], "vectors": [[1.0]]}, "^the column vectors must be lists of fixed-size lists of numbers; "),
        ({"tokens": [["a"]], "vectors": [1.0]}, "^the column vectors must be .* found double$"),
        ({"tokens": [[1], [2, 3]], "vectors": vectors}, "^the column tokens must be lists of strings; found list<"),
        (
            {"tokens": [["a", "b"], ["c"]], "vectors": vectors},
            "^the tokens and vectors of a row must be .* same length",
        ),
        (
            {"tokens": [["a"], ["b", "c"]], "vectors": no_vector},
            "^each token must have a vector of numbers; found null$",
        ),
    ]:
        with pytest.raises(DataError, match=match) as caught:
            from_arrow(pa.table(table))
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=r"^cannot read int as an Arrow table: "):
        from_arrow(3)
    with pytest.raises(DataError, match=r"^the column vectors must have a number of layers that fits its width"):
        from_arrow(pa.table([tokens, vectors], schema=pa.schema([pa.field("tokens", tokens.type), three])))
    with pytest.raises(
        ShapeError, match=r"^pooling needs one vector per token; found all layers; use layers='concat'$"
    ):
        to_arrow(elmo.encode(["a", "b c"], layers="all"), pooling="mean")
    with pytest.raises(
        ShapeError, match=r"^the encodings of a table must have vectors of the same shape; found several$"
    ):
        to_arrow([elmo.encode("a"), elmo.encode("a", layers="concat")])
