"""Static vectors: GloVe, word2vec and fastText files, and invalid files."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
from pathlib import Path

import numpy as np
import pytest

from elmo import DataError
from elmo.tasks.features.static import read_static

ROWS = {"the": [0.5, -1.0, 2.0], "Paris": [1.0, 2.0, 3.0], "paris": [4.0, 5.0, 6.0], "苹果": [7.0, 8.0, 9.0]}
LINES = "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in ROWS.items())


def binary() -> bytes:
    rows = b"".join(word.encode() + b" " + struct.pack("<3f", *row) + b"\n" for word, row in ROWS.items())
    return b"4 3\n" + rows


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("glove.txt", LINES.encode()),
        ("fasttext.vec", b"4 3\n" + LINES.encode()),
        ("glove.txt.gz", gzip.compress(LINES.encode())),
        ("glove.txt", LINES.encode() + b"\n"),
        ("word2vec.bin", binary()),
        ("word2vec.BIN", binary()),
        ("word2vec.bin.gz", gzip.compress(binary())),
        ("word2vec.bin.bz2", bz2.compress(binary())),
        ("word2vec.bin.xz", lzma.compress(binary())),
        ("vectors", binary()),
        ("text.bin", b"4 3\n" + LINES.encode()),
    ],
    ids=[
        "GloVe",
        "fastText",
        "compressed",
        "last line empty",
        "word2vec",
        "capitals",
        "gzip",
        "bzip2",
        "xz",
        "no suffix",
        "text as bin",
    ],
)
def test_every_kind_of_file_gives_the_same_table(tmp_path: Path, name: str, raw: bytes) -> None:
    (tmp_path / name).write_bytes(raw)
    found = read_static(tmp_path / name)
    assert found.words == tuple(ROWS)
    np.testing.assert_array_equal(found.vectors, np.array(list(ROWS.values()), np.float32))


def test_a_binary_file_may_start_with_zeros_and_exceed_one_chunk(tmp_path: Path) -> None:
    table = np.zeros((2_000, 300), np.float32)
    table[1:] = np.arange(300)
    rows = b"".join(b"w%d " % k + row.tobytes() + b"\n" for k, row in enumerate(table))
    (tmp_path / "large.bin").write_bytes(b"2000 300\n" + rows)
    found = read_static(tmp_path / "large.bin")
    assert found.words == tuple(f"w{k}" for k in range(2_000))
    np.testing.assert_array_equal(found.vectors, table)


def test_a_word_is_looked_up_as_it_is_written_then_in_lower_case(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text(LINES, encoding="utf-8")
    found = read_static(tmp_path / "glove.txt")
    assert [found.row(word) for word in ("Paris", "PARIS", "The", "苹果", "Rome")] == [1, 2, 0, 3, -1]


def test_only_the_first_words_and_the_words_of_the_data_are_kept(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text(LINES, encoding="utf-8")
    found = read_static(tmp_path / "glove.txt", max_words=1, words=["苹果", "PARIS"])
    assert found.words == ("the", "paris", "苹果")


def test_a_word_with_spaces_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text("the 1 2\n. . . 3 4\n", encoding="utf-8")
    assert read_static(tmp_path / "glove.txt").words == ("the", ". . .")


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("glove.txt", b"", "glove.txt: expected words with vectors; found none"),
        ("glove.txt", b"the 1 2\na 1 x\n", r"glove.txt:2: expected a word and 2 numbers .*found 'a 1 x'"),
        ("glove.txt", b"the 1 2\na 1\n", r"glove.txt:2: expected a word and 2 numbers"),
        ("glove.txt", b"1 18446744073709551616\na 1\n", r"glove.txt:2: expected a word and \d+ numbers"),
        ("glove.txt", b"1 " + b"1" * 5000 + b"\na 1\n", r"glove.txt:2: expected a word and \d+ numbers"),
        ("glove.txt", b"the 1 nan\n", "glove.txt:1: numbers must be finite; found nan or inf for 'the'"),
        ("word2vec.bin", binary()[:-6], "word2vec.bin as a binary word2vec file"),
        (
            "word2vec.bin",
            b"1 2\nthe " + struct.pack("<2f", 1, float("nan")),
            "numbers must be finite; found nan or inf for 'the'",
        ),
        ("word2vec.bin", b"1 2\n" + b"\0" * 30_000, "word2vec.bin as a binary word2vec file: expected a"),
        ("word2vec.bin.gz", gzip.compress(binary(), mtime=0)[:-12], "cannot read .*word2vec.bin.gz"),
        ("word2vec.bin", b"4 999999999\n", "word2vec.bin as a binary word2vec file"),
        ("word2vec.bin", b"hello", "word2vec.bin as a binary word2vec file"),
    ],
)
def test_files_that_are_not_vectors_are_refused_by_name(tmp_path: Path, name: str, raw: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(DataError, match=message):
        read_static(tmp_path / name)


def write_matrix(folder: Path, *, rows: np.ndarray, words: list[str], index: str = "words.parquet") -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    np.save(folder / "vectors.npy", rows)
    table = pyarrow.table({"count": list(range(len(words))), "word": words})
    parquet.write_table(table, folder / index)
    return folder / "vectors.npy"


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_a_matrix_has_its_words_in_a_parquet_file_next_to_it(tmp_path: Path, dtype: type) -> None:
    path = write_matrix(tmp_path, rows=np.array(list(ROWS.values()), dtype), words=list(ROWS))
    found = read_static(path)
    assert found.words == tuple(ROWS)
    assert found.vectors.dtype == np.float32
    np.testing.assert_array_equal(found.vectors, np.array(list(ROWS.values()), np.float32))
    assert read_static(path, max_words=1, words=["苹果"]).words == ("the", "苹果")


def test_the_words_of_a_matrix_must_be_clear(tmp_path: Path) -> None:
    rows = np.eye(2, dtype=np.float32)
    path = write_matrix(tmp_path, rows=rows, words=["a"])
    with pytest.raises(DataError, match=r"words.parquet: expected 2 words, one per row of vectors.npy; found 1"):
        read_static(path)
    write_matrix(tmp_path, rows=rows, words=["a", "b"], index="others.parquet")
    with pytest.raises(DataError, match=r"expected the words in vectors.parquet, .* found 2 .parquet files"):
        read_static(path)
    write_matrix(tmp_path, rows=rows, words=["a", "b"], index="vectors.parquet")  # the name decides
    assert read_static(path).words == ("a", "b")
    write_matrix(tmp_path, rows=np.array([[1.0], [np.nan]]), words=["a", "b"], index="vectors.parquet")
    with pytest.raises(DataError, match="numbers must be finite; found nan or inf for 'b'"):
        read_static(path)
    (tmp_path / "vectors.parquet").write_bytes(b"PAR1 no table")
    with pytest.raises(DataError, match=r"cannot read .*vectors\.parquet as a table"):
        read_static(path)
    for matrix in (np.zeros(3), np.array([["a"]]), np.zeros((2, 0))):
        np.save(path, matrix)
        with pytest.raises(DataError, match=r"expected a matrix \(word, width\) of floating-point numbers"):
            read_static(path)
    path.write_bytes(b"no matrix")
    with pytest.raises(DataError, match=r"cannot read .*vectors\.npy as a matrix"):
        read_static(path)
