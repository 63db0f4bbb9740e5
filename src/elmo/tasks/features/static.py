"""A file of static word vectors in, a table of words and their vectors out.

GloVe's text files, word2vec's and fastText's (text with a first line of two numbers, or word2vec's binary
form), plain or compressed. Files list frequent words first, so a bound on the number of words keeps those.

Rows in, their vectors out, of a table in which the rows that data meets are learned.

Learning all rows of a large table takes an optimiser longer than all else, though most of them never change.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from elmo.errors import DataError
from elmo.jobs.reader import DAMAGE
from elmo.storage.files import open_regular, reason, shown
from elmo.text.lines import open_text, read_lines

MAX_WORDS = 200_000  # that are kept beyond those that are asked for
_MAX_WIDTH = 10_000
_MAX_WORD_BYTES = 10_000
_PIECE = 1 << 20  # bytes that are read at once
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, Zstandard
Vector = NDArray[np.float32]
IsKept = Callable[[str, int], bool]  # a word and its place in the file


@dataclass(frozen=True, eq=False)
class StaticVectors:
    """Words and their vectors; a word that is not among them is looked up in lower case, then as no word."""

    words: tuple[str, ...]
    vectors: NDArray[np.float32]  # (word, width)
    is_met: NDArray[np.bool_] | None = None  # (word,): which words data has; None: any may
    _places: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_places", {word: place for place, word in enumerate(self.words)})

    @property
    def width(self) -> int:
        """Of a vector."""
        return self.vectors.shape[1]

    def place(self, word: str) -> int:
        """Row of a word; -1 for one that the file does not have, in lower case either."""
        found = self._places.get(word)
        return self._places.get(word.lower(), -1) if found is None else found


def read_static(
    path: str | Path, *, wanted: Collection[str] = (), max_words: int = MAX_WORDS
) -> StaticVectors:
    """The first ``max_words`` of a file, and those of ``wanted`` wherever they stand."""
    path = Path(path)
    also = set(wanted) | {word.lower() for word in wanted}
    seen: set[str] = set()

    def is_kept(word: str, number: int) -> bool:
        """Numbers are read of the words that are kept only: most of the time goes there."""
        if (number < max_words or word in also) and word not in seen:
            seen.add(word)
            return True
        return False

    rows = list(_binary(path, is_kept) if _is_binary(path) else _text(path, is_kept))
    if not rows:
        raise DataError(f"{shown(path)}: expected words with their vectors, found none")
    words = tuple(word for word, _ in rows)
    is_met = np.array([word in also for word in words])
    return StaticVectors(
        words,
        np.stack([vector for _, vector in rows]),
        is_met if is_met.any() and not is_met.all() else None,
    )


def _text(path: Path, is_kept: IsKept) -> Iterator[tuple[str, Vector]]:
    width = number = 0
    for line in read_lines(path):
        if line.number == 1 and (width := _announced(line.text)):
            continue
        text = line.text.rstrip()
        if not text:  # after the last word, as editors leave it
            continue
        width = width or text.count(" ")
        # a few words of the published files have spaces in them: the numbers are the last ones
        word, *numbers = text.rsplit(" ", width)
        number += 1
        try:
            if len(numbers) != width or not word or not 0 < width <= _MAX_WIDTH:
                raise ValueError
            if not is_kept(word, number - 1):
                continue
            vector = np.array(numbers, dtype=np.float32)
        except ValueError:
            raise DataError(
                f"{line.path}:{line.number}: expected a word and {width} numbers parted by spaces, "
                f"found {line.text[:40]!r}"
            ) from None
        if not np.isfinite(vector).all():
            raise DataError(f"{line.path}:{line.number}: the vector of {word[:40]!r} has no finite numbers")
        yield word, vector


def _announced(first: str) -> int:
    """The width that a first line of two numbers tells; 0 where it is a vector already."""
    parts = first.split()
    return int(parts[1]) if len(parts) == 2 and all(part.isdecimal() for part in parts) else 0


def _is_binary(path: Path) -> bool:
    """Whether it is word2vec's binary form, by its content; by its name where that tells nothing."""
    is_named = bool({".bin"} & {suffix.lower() for suffix in path.suffixes[-2:]})
    if not path.is_file():  # what can be read once only, or is not there
        return is_named
    with _bytes_of(path) as stream:
        width = _announced(stream.readline(100).decode("utf-8", "replace"))
        sample = stream.read(4096)
    if not width or not sample:
        return is_named
    numbers = sample.partition(b" ")[2].partition(b"\n")[0]
    if numbers and not numbers.strip(b"0123456789+-.eEnaif \t\r"):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)  # its end may be in the middle of a character
    except UnicodeDecodeError:
        return True
    return b"\0" in sample


@contextmanager
def _bytes_of(path: Path) -> Iterator[io.BufferedIOBase | BinaryIO]:
    """A file's bytes, decompressed."""
    with open_regular(path) as file:
        is_compressed = file.read(6).startswith(_COMPRESSED)
        if not is_compressed:
            file.seek(0)
            yield file
    if is_compressed:
        with open_text(path) as (_, stream):
            yield stream


def _binary(path: Path, is_kept: IsKept) -> Iterator[tuple[str, Vector]]:
    """word2vec's binary form: "words width" in a line, then word, a space and the numbers, over and over."""
    try:
        with _bytes_of(path) as stream:
            n_words, width = (int(part) for part in stream.readline(100).split())
            if not (0 < width <= _MAX_WIDTH and n_words > 0):
                raise ValueError(f"{n_words} words, {width} wide")
            for number, (word, raw) in enumerate(_rows(stream, n_words, 4 * width)):
                if is_kept(word, number):
                    vector = np.frombuffer(raw, "<f4").astype(np.float32)
                    if not np.isfinite(vector).all():
                        where = f"{shown(path)}: word {number + 1}"
                        raise DataError(f"{where}: the vector of {word[:40]!r} has no finite numbers")
                    yield word, vector
    except DAMAGE as error:
        raise DataError(f"{shown(path)}: no word2vec file in binary form: {reason(error)}") from error


def _rows(stream: io.BufferedIOBase | BinaryIO, n_words: int, n_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Words and the bytes of their vectors, read in large pieces: a word ends where its space is found."""
    buffer, at = b"", 0
    for _ in range(n_words):
        while (end := buffer.find(b" ", at, at + _MAX_WORD_BYTES)) < 0 or end + 1 + n_bytes > len(buffer):
            if end < 0 and len(buffer) - at >= _MAX_WORD_BYTES:
                raise ValueError("expected a word and a space")
            more = stream.read(_PIECE)
            if not more:
                raise ValueError("the file ends in the middle of a vector")
            buffer, at = buffer[at:] + more, 0
        word = buffer[at:end].decode("utf-8", "replace").lstrip("\n")
        at = end + 1 + n_bytes
        yield word, buffer[end + 1 : at]


class TunedTable(nn.Module):
    """A table whose ``rows`` (met,) are learned; the others stay as they are.

    Saved it is one table, ``weight``, like that of ``nn.Embedding``, and it loads what that saved.
    """

    weight: Tensor
    rows: Tensor
    places: Tensor

    def __init__(self, weight: Tensor, rows: Tensor) -> None:
        super().__init__()
        places = torch.full((len(weight),), -1)
        places[rows] = torch.arange(len(rows))
        self.met = nn.Parameter(weight[rows])  # (met, width)
        self.register_buffer("weight", weight, persistent=False)  # (row, width), of those not met
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("places", places, persistent=False)  # (row,): in ``met``; -1: not there

    def forward(self, rows: Tensor) -> Tensor:
        """(batch, time, width) of (batch, time)."""
        places = self.places[rows]
        learned = F.embedding(places.clamp(min=0), self.met)
        return torch.where((places >= 0).unsqueeze(-1), learned, F.embedding(rows, self.weight))

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """The table with what was learned in its place."""
        destination[f"{prefix}weight"] = self.weight.index_copy(0, self.rows, self.met.detach())

    def _load_from_state_dict(  # noqa: PLR0917 -- torch's own signature
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        given = state_dict.get(f"{prefix}weight")
        if given is None:
            missing_keys.append(f"{prefix}weight")
            return
        with torch.no_grad():
            self.weight.copy_(given)
            self.met.copy_(self.weight[self.rows])
