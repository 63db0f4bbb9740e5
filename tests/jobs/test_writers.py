from __future__ import annotations

import io
import json
import sys
import time
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.errors import DataError, MissingExtraError
from elmo.jobs.reader import read_embeddings, read_shard
from elmo.jobs.writers import WRITERS, check_libraries, json_line, write_hdf5
from tests.embed.sentences import HOSTILE, assert_same, sentences, shard

SUFFIXES = [*WRITERS, ".hdf5"]
MODEST = [row for row in HOSTILE if all(len(token) < 100 for token in row)]


def written(one, path: Path) -> Path:
    if path.suffix == ".hdf5":
        write_hdf5([one], path)
    else:
        with path.open("wb") as file:
            WRITERS[path.suffix](one, file)
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("n_layers", "dtype", "with_offsets"), [(None, "float32", True), (3, "float16", False)])
def test_reading_returns_what_was_written(
    tmp_path: Path, suffix: str, n_layers: int | None, dtype: str, with_offsets: bool
) -> None:
    one = shard(sentences(HOSTILE, with_offsets=with_offsets), n_layers=n_layers, dtype=dtype)
    result = list(read_embeddings(written(one, tmp_path / f"v{suffix}")))
    assert_same(result, list(one.encodings()), dtype="float32" if suffix == ".jsonl" else dtype)
    assert result[4].tokens == ("The", "river", "bank")
    assert [len(encoding) for encoding in result] == [len(row) for row in HOSTILE]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("rows", [[], [()], [(), ()]])
def test_a_shard_without_tokens_keeps_its_sentences(tmp_path: Path, suffix: str, rows: list[tuple[str, ...]]) -> None:
    one = shard(sentences(rows, with_offsets=True), n_layers=2)
    result = list(read_embeddings(written(one, tmp_path / f"v{suffix}")))
    assert [encoding.vectors.shape for encoding in result] == [(2, 0, 4)] * len(rows)


# JSON cannot tell a high and a low surrogate side by side from the character they encode
TOKENS = st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"]) | st.just("\udc80"), max_size=9)))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [*WRITERS])
@settings(max_examples=40, deadline=None)
@given(rows=TOKENS, first=st.integers(0, 10**12))
def test_any_tokens_can_be_written_and_read(tmp_path_factory, suffix: str, rows: list[list[str]], first: int) -> None:
    one = shard(sentences(rows), first=first)
    path = written(one, tmp_path_factory.getbasetemp() / f"any{suffix}")
    assert_same(list(read_embeddings(path)), list(one.encodings()))


@pytest.mark.slow
def test_files_do_not_depend_on_the_time(tmp_path: Path) -> None:
    one = shard(sentences(MODEST, with_offsets=True))
    early = [written(one, tmp_path / f"early{suffix}").read_bytes() for suffix in SUFFIXES]
    time.sleep(1.1)  # HDF5 dates have seconds
    late = [written(one, tmp_path / f"late{suffix}").read_bytes() for suffix in SUFFIXES]
    assert [a == b for a, b in zip(early, late, strict=True)] == [True] * len(SUFFIXES)


def test_npz_is_loaded_by_numpy_without_pickle(tmp_path: Path) -> None:
    one = shard(sentences(MODEST, with_offsets=True), first=7)
    path = written(one, tmp_path / "v.npz")
    with np.load(path, allow_pickle=False) as arrays:
        assert np.array_equal(arrays["vectors"], one.vectors)
        assert arrays["lengths"].tolist() == [len(row) for row in MODEST]
        assert arrays["places"][1].tolist() == [0, 2, 0]
        assert json.loads(str(arrays["elmo"]))["first"] == 7
        tokens, ends = arrays["token_bytes"].tobytes(), arrays["token_ends"]
        assert tokens[: ends[2]].decode() == "Theriverbank"
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


def test_safetensors_are_loaded_by_the_library(tmp_path: Path) -> None:
    one = shard(sentences(MODEST), n_layers=3, dtype="float16")
    path = written(one, tmp_path / "v.safetensors")
    arrays = safetensors.numpy.load_file(path)
    assert np.array_equal(arrays["vectors"], one.vectors)
    assert arrays["vectors"].shape == (3, sum(map(len, MODEST)), 4)
    with safetensors.safe_open(path, framework="np") as file:
        assert json.loads(file.metadata()["elmo"])["files"] == ["rows.txt"]


def test_parquet_has_a_row_per_token_with_its_layers_side_by_side(tmp_path: Path) -> None:
    one = shard(sentences(MODEST, with_offsets=True), n_layers=2, first=5)
    table = pyarrow.parquet.read_table(written(one, tmp_path / "v.parquet"))
    names = ["sentence", "index", "token", "begin", "end", "vector", "file", "line", "token_bytes"]
    assert table.column_names == names
    row = table.slice(1, 1).to_pylist()[0]
    assert {key: row[key] for key in ("sentence", "index", "token", "begin", "end", "file", "line")} == {
        "sentence": 6, "index": 1, "token": "river", "begin": 4, "end": 9, "file": "rows.txt", "line": 2,
    }  # fmt: skip
    assert row["vector"] == [*one.vectors[0, 1].tolist(), *one.vectors[1, 1].tolist()]
    strange = [(row["token"], row["token_bytes"]) for row in table.to_pylist() if row["token_bytes"]]
    assert strange[0] == ("\ufffd", "\ud800".encode("utf-8", "surrogatepass"))
    assert len(strange) == 3


def test_parquet_has_no_offsets_for_input_tokens(tmp_path: Path) -> None:
    table = pyarrow.parquet.read_table(written(shard(sentences(MODEST)), tmp_path / "v.parquet"))
    assert table["begin"].null_count == table["end"].null_count == table.num_rows


def test_parquet_without_pyarrow_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pyelmo\[parquet\]'"):
        check_libraries(".parquet")


def test_hdf5_files_have_the_layout_that_allennlp_documents(tmp_path: Path) -> None:
    one = shard(sentences(MODEST), n_layers=3)
    path = written(one, tmp_path / "v.hdf5")
    with h5py.File(path) as file:
        result = json.loads(file["sentence_to_index"][0])
        assert file["sentence_to_index"].shape == (1,)
        assert result["The river bank"] == "1"  # the first of the two
        assert result["a/b / .. sentence_to_index 0"] == "3"
        assert result[""] == "0"
        keys = [key for key in file if key != "sentence_to_index"]
        assert sorted(map(int, keys)) == list(range(len(MODEST)))
        assert all(file[key].shape == (3, len(MODEST[int(key)]), 4) for key in keys)
        assert np.array_equal(file["4"][()], list(one.encodings())[4].vectors)


def test_json_lines_are_plain_ascii_with_the_documented_keys() -> None:
    first, second = list(shard(sentences(HOSTILE[:2], with_offsets=True)).encodings())
    assert json.loads(json_line(3, first)) == {"index": 3, "tokens": [], "offsets": [], "vectors": [], "shape": [0, 4]}
    line = json_line(4, second)
    assert line.isascii()
    assert list(json.loads(line)) == ["index", "tokens", "offsets", "vectors"]


def test_json_lines_keep_every_float32_exactly() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 4000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values)][: 4 * 900]
    one = shard(sentences([("x",) * 900]))
    one.vectors[...] = values.reshape(900, 4)
    line = json_line(0, next(one.encodings()))
    assert np.array_equal(np.array(json.loads(line)["vectors"], dtype=np.float32), one.vectors)


def test_a_shard_of_another_version_is_an_error(tmp_path: Path) -> None:
    one = shard(sentences(MODEST))
    file = io.BytesIO()
    WRITERS[".safetensors"](one, file)
    path = tmp_path / "v.safetensors"
    path.write_bytes(file.getvalue().replace(rb"\"version\": 1", rb"\"version\": 2"))
    with pytest.raises(DataError, match="not an embedding file of version 1"):
        read_shard(path)
