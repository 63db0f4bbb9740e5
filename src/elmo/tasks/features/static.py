"""Static word vectors: read GloVe, word2vec and fastText files, or start with random vectors.

Files may be text, with or without a header (number of words and width), or in the binary format of word2vec; they may
be compressed. A file may also be a matrix in ``.npy``, with its words in a ``.parquet`` file in the same folder. Files
list frequent words first, so a limit on the number of words keeps the most frequent ones.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError, importing_extra
from elmo.jobs.reader import DAMAGED_FILE_ERRORS
from elmo.storage.files import format_error, format_path, open_regular
from elmo.text.lines import open_text, read_lines

MAX_WORDS = 200_000  # words to keep in addition to the words of the task
_MAX_WIDTH = 10_000
_MIN_COUNT = 2  # rarer words have no random vector, so that the vector for unknown words is trained
_RANDOM_SPREAD = 0.1  # standard deviation of random vectors
_MAX_WORD_BYTES = 10_000
_CHUNK_BYTES = 1 << 20
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, Zstandard
Vector = NDArray[np.float32]
IsKept = Callable[[str, int], bool]  # whether to keep a word, given the word and its index in the file


@dataclass(frozen=True, eq=False)
class StaticVectors:
    """Static word vectors; a word without a vector is looked up in lower case.

    Attributes:
        words: The words.
        vectors: Their vectors, (word, width).
        is_used: Whether the task uses each word, (word,); None if it uses all words.
    """

    words: tuple[str, ...]
    vectors: NDArray[np.float32]
    is_used: NDArray[np.bool_] | None = None
    _rows: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rows", {word: row for row, word in enumerate(self.words)})

    def __repr__(self) -> str:
        return f"StaticVectors({len(self.words):,} words, width={self.width})"

    @property
    def width(self) -> int:
        """Width of each vector."""
        return self.vectors.shape[1]

    def row(self, word: str) -> int:
        """Return the row of a word or, if it has none, of the word in lower case; -1 if neither has a row."""
        row = self._rows.get(word)
        return self._rows.get(word.lower(), -1) if row is None else row


def read_static(path: str | Path, *, words: Collection[str] = (), max_words: int = MAX_WORDS) -> StaticVectors:
    """Read static word vectors from a GloVe, word2vec or fastText file.

    Args:
        path: The file, plain or compressed; or a matrix in ``.npy``, with its words in the column of strings of a
            ``.parquet`` file in the same folder.
        words: Words to read wherever they are in the file.
        max_words: Number of words to read from the start of the file, in addition to ``words``.

    Example:
        >>> _ = Path("vectors.txt").write_text("bank 0.1 0.2")
        >>> read_static("vectors.txt").width
        2
    """
    path = Path(path)
    used = set(words) | {word.lower() for word in words}
    seen: set[str] = set()

    def is_kept(word: str, index: int) -> bool:
        """Decide by the word alone: parsing the numbers takes most of the time."""
        if (index < max_words or word in used) and word not in seen:
            seen.add(word)
            return True
        return False

    if path.suffix.lower() == ".npy":
        rows = list(_read_matrix(path, is_kept))
    else:
        rows = list(_read_binary(path, is_kept) if _is_binary(path) else _read_text(path, is_kept))
    if not rows:
        raise DataError(f"{format_path(path)}: expected words with vectors; found none")
    kept = tuple(word for word, _ in rows)
    is_used = np.array([word in used for word in kept])
    return StaticVectors(
        kept, np.stack([vector for _, vector in rows]), is_used if is_used.any() and not is_used.all() else None
    )


def random_static(counts: Mapping[str, int], *, width: int, seed: int) -> StaticVectors:
    """Return random vectors for the words that occur at least twice; the others share one vector.

    Args:
        counts: Number of occurrences of each word in the training data.
        width: Width of each vector.
        seed: Random seed.
    """
    if not 0 < width <= _MAX_WIDTH:
        raise ConfigError(f"the width of random vectors must be from 1 to {_MAX_WIDTH:,}; found {width}")
    words = sorted(word for word, n in counts.items() if n >= _MIN_COUNT)
    if not words:
        raise DataError("cannot train word vectors: no word of the training data occurs twice")
    vectors = np.random.default_rng(seed).normal(0, _RANDOM_SPREAD, (len(words), width))
    return StaticVectors(tuple(words), vectors.astype(np.float32))


def _read_text(path: Path, is_kept: IsKept) -> Iterator[tuple[str, Vector]]:
    width = index = 0
    for line in read_lines(path):
        if line.number == 1 and (width := _parse_header(line.text)):
            continue
        text = line.text.rstrip()
        if not text:  # some editors add empty lines at the end
            continue
        width = width or text.count(" ")
        # some words of the published files contain spaces: the numbers are the last fields
        word, *numbers = text.rsplit(" ", width)
        index += 1
        try:
            if len(numbers) != width or not word or not 0 < width <= _MAX_WIDTH:
                raise ValueError
            if not is_kept(word, index - 1):
                continue
            vector = np.array(numbers, dtype=np.float32)
        except ValueError:
            raise DataError(
                f"{line.path}:{line.number}: expected a word and {width or 'several'} numbers separated by spaces; "
                f"found {line.text[:40]!r}"
            ) from None
        if not np.isfinite(vector).all():
            raise DataError(f"{line.path}:{line.number}: numbers must be finite; found nan or inf for {word[:40]!r}")
        yield word, vector


def _parse_header(line: str) -> int:
    """Return the width if ``line`` is a header (number of words and width), otherwise 0."""
    parts = line.split()
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        return 0
    return int(parts[1]) if len(parts[1]) < 10 else _MAX_WIDTH + 1  # longer numbers overflow


def _is_binary(path: Path) -> bool:
    """Whether a file is in the binary format of word2vec, judged by its content or, if unclear, by its name."""
    is_named = ".bin" in {suffix.lower() for suffix in path.suffixes[-2:]}
    if not path.is_file():  # missing, or a pipe, which can be read only once
        return is_named
    with _open_bytes(path) as stream:
        width = _parse_header(stream.readline(100).decode("utf-8", "replace"))
        sample = stream.read(4096)
    if not width or not sample:
        return is_named
    numbers = sample.partition(b" ")[2].partition(b"\n")[0]
    if numbers and not numbers.strip(b"0123456789+-.eEnaif \t\r"):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)  # the sample may end inside a character
    except UnicodeDecodeError:
        return True
    return b"\0" in sample


@contextmanager
def _open_bytes(path: Path) -> Iterator[io.BufferedIOBase | BinaryIO]:
    """Open a file, plain or compressed, to read its decompressed bytes."""
    with open_regular(path) as file:
        is_compressed = file.read(6).startswith(_COMPRESSED)
        if not is_compressed:
            file.seek(0)
            yield file
    if is_compressed:
        with open_text(path) as (_, stream):
            yield stream


def _read_binary(path: Path, is_kept: IsKept) -> Iterator[tuple[str, Vector]]:
    """Read the binary format of word2vec: a header line, then for each word the word, a space and its vector."""
    try:
        with _open_bytes(path) as stream:
            n_words, width = (int(part) for part in stream.readline(100).split())
            if not (0 < width <= _MAX_WIDTH and n_words > 0):
                raise ValueError(f"expected words of width 1 to {_MAX_WIDTH}; found {n_words} words of width {width}")
            for index, (word, raw) in enumerate(_split_records(stream, n_words, 4 * width)):
                if is_kept(word, index):
                    yield word, _as_finite(np.frombuffer(raw, "<f4"), word, path)
    except DAMAGED_FILE_ERRORS as error:
        raise DataError(f"cannot read {format_path(path)} as a binary word2vec file: {format_error(error)}") from error


def _split_records(stream: io.BufferedIOBase | BinaryIO, n_words: int, n_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Yield each word of a stream with the bytes of its vector; the stream is read in large chunks."""
    buffer, start = b"", 0
    for _ in range(n_words):
        while (end := buffer.find(b" ", start, start + _MAX_WORD_BYTES)) < 0 or end + 1 + n_bytes > len(buffer):
            if end < 0 and len(buffer) - start >= _MAX_WORD_BYTES:
                raise ValueError("expected a word followed by a space")
            chunk = stream.read(_CHUNK_BYTES)
            if not chunk:
                raise ValueError("the file ends in the middle of a vector")
            buffer, start = buffer[start:] + chunk, 0
        word = buffer[start:end].decode("utf-8", "replace").lstrip("\n")
        start = end + 1 + n_bytes
        yield word, buffer[end + 1 : start]


def _read_matrix(path: Path, is_kept: IsKept) -> Iterator[tuple[str, Vector]]:
    """Read a matrix (word, width) in ``.npy`` and the words of its rows from a Parquet file in the same folder."""
    with importing_extra("vectors in .npy and .parquet", extra="parquet"):
        import pyarrow
        from pyarrow import parquet
    open_regular(path).close()
    index = _find_index(path)
    try:
        table = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"cannot read {format_path(path)} as a matrix: {format_error(error)}") from error
    if table.ndim != 2 or table.dtype.kind != "f" or not 0 < table.shape[1] <= _MAX_WIDTH:
        raise DataError(
            f"{format_path(path)}: expected a matrix (word, width) of floating-point numbers; "
            f"found the shape {table.shape} and the type {table.dtype}"
        )
    n_words = 0
    try:
        with parquet.ParquetFile(index) as file:
            names = [field.name for field in file.schema_arrow if pyarrow.types.is_string(field.type)
                     or pyarrow.types.is_large_string(field.type)]  # fmt: skip
            if len(names) != 1:
                raise DataError(f"{format_path(index)}: expected one column of strings; found {len(names)}")
            if file.metadata.num_rows != len(table):
                raise DataError(
                    f"{format_path(index)}: expected {len(table):,} words, one per row of {path.name}; "
                    f"found {file.metadata.num_rows:,}"
                )
            for batch in file.iter_batches(columns=names):
                words = batch.column(0)
                words.validate(full=True)  # the text of a Parquet file may not be UTF-8
                for word in words.to_pylist():
                    n_words += 1
                    if word is not None and is_kept(word, n_words - 1):
                        yield word, _as_finite(table[n_words - 1], word, path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"cannot read {format_path(index)} as a table: {format_error(error)}") from error


def _find_index(path: Path) -> Path:
    """Return the Parquet file with the words of a matrix: the one with its name, or else the only one of the folder."""
    named = path.with_suffix(".parquet")
    found = [named] if named.is_file() else sorted(path.parent.glob("*.parquet"))
    if len(found) != 1:
        raise DataError(
            f"{format_path(path)}: expected the words in {named.name}, or in the only .parquet file of the folder; "
            f"found {len(found)} .parquet files"
        )
    return found[0]


def _as_finite(row: NDArray[np.floating[Any]], word: str, path: Path) -> Vector:
    with np.errstate(over="ignore"):
        vector = np.array(row, dtype=np.float32)
    if not np.isfinite(vector).all():
        raise DataError(f"{format_path(path)}: numbers must be finite; found nan or inf for {word[:40]!r}")
    return vector
