"""``elmo embed --column``: vectors for a column of a table, next to its other columns."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from elmo import ConfigError, DataError, Elmo, OutputError
from elmo.cli import main
from elmo.formats import native
from elmo.jobs import TableJob, embed_table
from tests.formats.tiny import tiny_model

pytest.importorskip("pyarrow")

import pyarrow as pa
from pyarrow import parquet

TEXTS = ["a good film .", "bad", None, "", 'two\nlines, with a "quote"', "the 河岸"] * 20
STARS = list(range(len(TEXTS)))


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(tiny_model())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "in.parquet"
    data = pa.table({"stars": pa.array(STARS, pa.int16()), "text": TEXTS, "tags": [["x"], []] * 60})
    parquet.write_table(data, path, row_group_size=7)
    return path


def read(out: Path) -> pa.Table:
    files = [out] if out.exists() else sorted(out.parent.glob(f"{out.stem}-*.parquet"))
    return pa.concat_tables([parquet.read_table(file) for file in files])


def assert_sentence_vectors(result: pa.Table, elmo: Elmo) -> None:
    vectors = result["text_vector"].to_pylist()
    for text, vector in zip(TEXTS, vectors, strict=True):
        if text is None:
            assert vector is None
        else:
            np.testing.assert_array_equal(np.float32(vector), elmo.encode(text).sentence())


@pytest.mark.parametrize("shard_tokens", [None, 40])
def test_all_rows_and_columns_of_a_parquet_file_are_kept(elmo: Elmo, table: Path, shard_tokens: int | None) -> None:
    out = table.with_name("out.parquet")
    summary = embed_table(TableJob(table, "text", out, shard_tokens=shard_tokens), elmo)
    assert summary.sentences == len(TEXTS)
    assert (len(summary.files) > 1) is (shard_tokens is not None)
    result = read(out)
    assert result.select(["stars", "text", "tags"]).equals(parquet.read_table(table))
    assert result["text_vector"].type == pa.list_(pa.float32(), elmo.width)
    assert_sentence_vectors(result, elmo)


def test_without_pooling_there_is_a_list_of_token_vectors(elmo: Elmo, table: Path) -> None:
    out = table.with_name("out.parquet")
    embed_table(TableJob(table, "text", out, pooling="none", layers="top", dtype="float16"), elmo)
    result = read(out)
    for text, tokens, vectors in zip(
        TEXTS, *(result[f"text_{name}"].to_pylist() for name in ("tokens", "vectors")), strict=True
    ):
        if text is None:
            assert tokens is None
            assert vectors is None
            continue
        expected = elmo.encode(text, layers="top", dtype="float16")
        assert tokens == list(expected.tokens)
        np.testing.assert_array_equal(np.array(vectors, np.float16).reshape(len(tokens), elmo.width), expected.vectors)


@pytest.mark.parametrize("pooling", ["max", "ends"])
def test_other_poolings_are_those_of_an_encoding(elmo: Elmo, table: Path, pooling) -> None:
    out = table.with_name("out.parquet")
    embed_table(TableJob(table, "text", out, pooling=pooling, shard_tokens=30), elmo)
    vectors = read(out)["text_vector"].to_pylist()
    np.testing.assert_array_equal(np.float32(vectors[0]), elmo.encode(TEXTS[0]).sentence(pooling))
    np.testing.assert_array_equal(np.float32(vectors[4]), elmo.encode(TEXTS[4]).sentence(pooling))


def test_an_interrupted_job_resumes_and_ends_with_the_same_bytes(elmo: Elmo, table: Path) -> None:
    whole, out = table.with_name("whole.parquet"), table.with_name("out.parquet")
    embed_table(TableJob(table, "text", whole, shard_tokens=40), elmo)

    class StopError(Exception):
        pass

    def stop(progress) -> None:
        if progress.shards == 2:
            raise StopError

    with pytest.raises(StopError):
        embed_table(TableJob(table, "text", out, shard_tokens=40), elmo, on_progress=stop)
    summary = embed_table(TableJob(table, "text", out, shard_tokens=40), elmo)
    assert summary.kept
    for file in table.parent.glob("whole-*.parquet"):
        assert file.read_bytes() == file.with_name(file.name.replace("whole", "out")).read_bytes()
    # another column has changed, not the text
    data = parquet.read_table(table)
    parquet.write_table(data.set_column(0, "stars", pa.array(STARS[::-1], pa.int16())), table)
    with pytest.raises(OutputError, match=r"it was started with other options: sha256"):
        embed_table(TableJob(table, "text", out, shard_tokens=40), elmo)


def test_csv_and_tsv_files_are_read_on_the_command_line(elmo: Elmo, tmp_path: Path, capsys) -> None:
    native.write(tiny_model(), tmp_path / "model")
    rows = 'id,text,score\n1,"good, very good",0.5\n2,"two\nlines",1\n'
    (tmp_path / "a.csv").write_text(rows)
    with gzip.open(tmp_path / "b.tsv.gz", "wt") as file:
        file.write("id\ttext\n7\tgood film\n")
    model = ["--model", str(tmp_path / "model")]
    assert (
        main(["embed", str(tmp_path / "a.csv"), "--column", "text", "--out", str(tmp_path / "a.parquet"), *model]) == 0
    )
    result = parquet.read_table(tmp_path / "a.parquet")
    assert result.drop_columns("text_vector").to_pylist() == [
        {"id": 1, "text": "good, very good", "score": 0.5},
        {"id": 2, "text": "two\nlines", "score": 1.0},
    ]
    np.testing.assert_array_equal(np.float32(result["text_vector"][1].as_py()), elmo.encode("two\nlines").sentence())
    assert (
        main(["embed", str(tmp_path / "b.tsv.gz"), "--column", "text", "--out", str(tmp_path / "b.parquet"), *model])
        == 0
    )
    assert parquet.read_table(tmp_path / "b.parquet")["id"].to_pylist() == [7]
    capsys.readouterr()
    wrong = {
        ("a.csv", "--column", "txt", "--out", "c.parquet"): "unknown column 'txt'; it has: id, text, score",
        ("a.csv", "--column", "text", "--out", "c.h5"): "the output of a table must end in .parquet; found",
        ("a.csv", "--column", "text"): "--column needs one input file and --out FILE.parquet",
        ("a.csv", "--column", "text", "--out", "c.parquet", "--workers", "2"): "cannot use --workers with --column",
        ("a.csv", "--column", "text", "--out", "c.parquet", "--layers", "9"): "layers must be",
        ("none.csv", "--column", "text", "--out", "c.parquet"): "no such file",
    }
    for arguments, message in wrong.items():
        paths = [str(tmp_path / part) if "." in part and not part.startswith("-") else part for part in arguments]
        assert main(["embed", *paths, *model]) != 0
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert not (tmp_path / "c.parquet").exists()


def test_columns_of_other_types_and_damaged_files_are_one_line(elmo: Elmo, table: Path) -> None:
    out = table.with_name("out.parquet")
    with pytest.raises(DataError, match=r"column 'stars' must contain text; found int16$"):
        embed_table(TableJob(table, "stars", out), elmo)
    parquet.write_table(parquet.read_table(table).append_column("text_vector", [STARS]), table)
    with pytest.raises(ConfigError, match=r"it already has a column 'text_vector'; rename it$"):
        embed_table(TableJob(table, "text", out), elmo)
    table.write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(DataError, match=r"^cannot read \S+ as a table: "):
        embed_table(TableJob(table, "text", out), elmo)
    ragged = table.with_name("ragged.csv")
    ragged.write_text("a,text\n1,x\n2,y,z\n")
    with pytest.raises(DataError, match=r"^cannot read \S+ as a table: "):
        embed_table(TableJob(ragged, "text", out), elmo)
    twice = table.with_name("twice.csv")
    twice.write_text("text,text\nx,y\n")
    with pytest.raises(DataError, match=r"two columns have the name 'text'; rename one of them$"):
        embed_table(TableJob(twice, "text", out), elmo)
    parquet.write_table(pa.table({"text": pa.array([b"good", b"\xff"]).view(pa.string())}), table)
    with pytest.raises(DataError, match=r"^cannot read \S+ as a table: Invalid UTF8"):
        embed_table(TableJob(table, "text", out), elmo)
    with pytest.raises(ConfigError, match=r"^layers must give one vector per token for a table; found 'all'"):
        TableJob(table, "text", out, layers="all")


@pytest.mark.parametrize(("pooling", "width"), [("mean", 8), ("ends", 16), ("none", 8)])
def test_a_table_without_rows_has_the_same_columns(elmo: Elmo, table: Path, pooling, width: int) -> None:
    out = table.with_name("out.parquet")
    parquet.write_table(parquet.read_table(table).slice(0, 0), table)
    assert embed_table(TableJob(table, "text", out, pooling=pooling), elmo).sentences == 0
    result = parquet.read_table(out)
    assert result.num_rows == 0
    kind = result.schema.types[-1]
    assert (kind.value_type if pooling == "none" else kind).list_size == width
