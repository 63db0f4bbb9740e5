"""Words in, numbers of distinct words out, in bounded memory however many there are.

Words are numbered by first appearance in a dictionary. When it holds too many they go to disk and a new one
begins: the numbers of such a *segment* are its own. At the end all segments are put together, a share of the
words at a time (told by a hash of the spelling), so that no dictionary is ever larger than one segment's.
"""

from __future__ import annotations

import zlib
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

NOTHING, EOS, UNKNOWN, FIRST_WORD = 0, 1, 2, 3
SPECIAL = ("<S>", "</S>", "<UNK>")
LOOK_ALIKES = (b"<S>", b"</S>")  # in a text these are words
MAX_IN_MEMORY = 1 << 20  # types of one segment; some 150 bytes each
_N_SHARES = 64


class _Numbers(dict[bytes, int]):
    """A dictionary that numbers a new word when it is asked for it."""

    def __init__(self, given: dict[bytes, int], first: int) -> None:
        super().__init__(given)
        self._shift = first - len(given)

    def __missing__(self, word: bytes) -> int:
        number = self[word] = len(self) + self._shift
        return number


def _of_segment() -> _Numbers:
    return _Numbers({b"": NOTHING, b"\n": EOS, SPECIAL[UNKNOWN].encode(): UNKNOWN}, FIRST_WORD)


@dataclass(frozen=True)
class Segment:
    """The words of one dictionary, on disk: share by share, in each the oldest first."""

    words: Path
    numbers: Path  # (n_words,) uint32: the number of each word in that file
    byte_ends: NDArray[np.int64]  # (share,)
    word_ends: NDArray[np.int64]  # (share,)
    first: int  # words of earlier segments
    token: int  # of the draft, where its numbers begin to count


@dataclass(frozen=True)
class MergedTypes:
    """All distinct words, in no order that means anything; but for the tables it lies on disk."""

    n_types: int  # the three special ones counted
    spellings: Path  # each word with a line break
    ends: NDArray[np.int64]  # (type,): where its line ends there
    ages: NDArray[np.int64]  # (type,): rank of its first appearance, less being earlier
    tables: tuple[NDArray[np.uint32], ...]  # for each segment, its number -> type
    starts: NDArray[np.int64]  # (segment,): its first token
    look_alikes: tuple[int, ...]  # types of words that are spelled like a boundary

    def of_tokens(self, draft: NDArray[np.uint32], start: int, end: int) -> NDArray[np.uint32]:
        """The types of the draft's tokens ``start … end``."""
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        parts = []
        while start < end:
            until = min(end, int(self.starts[first + 1])) if first + 1 < len(self.starts) else end
            parts.append(self.tables[first][draft[start:until]])
            start, first = until, first + 1
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype=np.uint32), *parts])


class TypeNumbering:
    """Numbers the words of a growing text; keeps what no longer fits in files of ``folder``."""

    def __init__(self, folder: Path, *, max_in_memory: int = MAX_IN_MEMORY) -> None:
        self._folder = folder
        self._max = max_in_memory
        self._numbers = _of_segment()
        self._segments: list[Segment] = []
        self._n_words = 0  # of closed segments
        self._token = 0  # where the present segment begins

    def numbers(self, words: list[bytes]) -> NDArray[np.uint32]:
        """A number for each word: ``EOS`` for a line break, ``NOTHING`` for an empty one."""
        return np.fromiter(map(self._numbers.__getitem__, words), dtype=np.uint32, count=len(words))

    def make_room(self, token: int) -> None:
        """Begin a new segment at ``token`` if the present one is full."""
        if len(self._numbers) >= self._max:
            self._close_segment(token)

    def merged(self) -> MergedTypes:
        """Put all segments together; no more words can be numbered then."""
        self._close_segment(token=0)
        tables = tuple(
            np.arange(int(segment.word_ends[-1]) + FIRST_WORD, dtype=np.uint32) for segment in self._segments
        )
        paths = [self._folder / f"type_{name}.draft" for name in ("spellings", "ends", "ages")]
        n_types = FIRST_WORD
        look_alikes: list[int] = []
        with ExitStack() as stack:
            spellings, ends, ages = (stack.enter_context(path.open("wb")) for path in paths)
            self._write_words([name.encode() for name in SPECIAL], spellings, ends)
            ages.write(np.arange(FIRST_WORD).astype("<i8").data)  # not tofile: it hides that a disk is full
            for share in range(_N_SHARES):
                merged = _Numbers({}, n_types)
                for segment, table in zip(self._segments, tables, strict=True):
                    words, numbers = _read_share(segment, share)
                    known = len(merged) + n_types
                    types = np.fromiter(map(merged.__getitem__, words), dtype=np.uint32, count=len(words))
                    table[numbers] = types
                    ages.write((segment.first + numbers[types >= known].astype("<i8")).data)
                self._write_words(list(merged), spellings, ends)
                look_alikes += [merged[word] for word in LOOK_ALIKES if word in merged]
                n_types += len(merged)
        return MergedTypes(
            n_types=n_types,
            spellings=paths[0],
            ends=np.memmap(paths[1], dtype="<i8", mode="r").view(np.ndarray),
            ages=np.memmap(paths[2], dtype="<i8", mode="r").view(np.ndarray),
            tables=tables,
            starts=np.array([segment.token for segment in self._segments]),
            look_alikes=tuple(look_alikes),
        )

    def _write_words(self, words: list[bytes], spellings: BinaryIO, ends: BinaryIO) -> None:
        lengths = np.fromiter(map(len, words), dtype=np.int64, count=len(words)) + 1
        ends.write((spellings.tell() + np.cumsum(lengths)).astype("<i8").data)
        spellings.write(b"".join(word + b"\n" for word in words))

    def _close_segment(self, token: int) -> None:
        words = [word for word, number in self._numbers.items() if number >= FIRST_WORD]
        self._numbers = _of_segment()
        shares = np.fromiter(map(zlib.crc32, words), dtype=np.uint32, count=len(words)) % _N_SHARES
        order = np.argsort(shares, kind="stable")
        paths = [self._folder / f"type_{kind}-{len(self._segments)}.draft" for kind in ("words", "numbers")]
        paths[1].write_bytes((order + FIRST_WORD).astype("<u4").data)
        word_ends = np.cumsum(np.bincount(shares, minlength=_N_SHARES))
        byte_ends = []
        with paths[0].open("wb") as file:
            for start, end in zip([0, *word_ends[:-1]], word_ends, strict=True):
                file.write(b"".join(words[k] + b"\n" for k in order[start:end].tolist()))
                byte_ends.append(file.tell())
        self._segments.append(
            Segment(
                words=paths[0],
                numbers=paths[1],
                byte_ends=np.array(byte_ends),
                word_ends=word_ends,
                first=self._n_words,
                token=self._token,
            )
        )
        self._n_words += len(words)
        self._token = token


def _read_share(segment: Segment, share: int) -> tuple[list[bytes], NDArray[np.uint32]]:
    """The words of a segment that belong to a share, with their numbers in it."""
    first_byte, first_word = (
        int(ends[share - 1]) if share else 0 for ends in (segment.byte_ends, segment.word_ends)
    )
    n_words = int(segment.word_ends[share]) - first_word
    with segment.words.open("rb") as file:
        file.seek(first_byte)
        words = file.read(int(segment.byte_ends[share]) - first_byte).split(b"\n")[:-1]
    return words, np.fromfile(segment.numbers, dtype="<u4", count=n_words, offset=4 * first_word)
