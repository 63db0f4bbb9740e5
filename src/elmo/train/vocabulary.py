"""Words in, numbers of distinct words out, in bounded memory however many there are.

Words are numbered by first appearance in a dictionary. When it holds too many they go to disk and a new one
begins: the numbers of such a *segment* are its own. At the end all segments are put together, a share of the
words at a time (told by a hash of the spelling), so that no dictionary is ever larger than one segment's.

A vocabulary that the user gives in, the words that a corpus numbers first out, checked.

bilm-tf's files hold one word a line in id order, ``<S>``, ``</S>`` and ``<UNK>`` among them. A corpus has its
own places for these three, so only their presence counts.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from elmo.errors import DataError, raise_all
from elmo.storage.files import MAX_LINES, format_path
from elmo.text.ids import Vocabulary
from elmo.text.lines import read_lines

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


GivenVocabulary = str | Path | Vocabulary | Sequence[str]
_MAX_WORDS = MAX_LINES - FIRST_WORD  # a model's vocab.txt holds no more


def given_words(vocabulary: GivenVocabulary) -> list[bytes]:
    """The words of a file, a ``Vocabulary`` or a list, special ones aside, in their order.

    ``DataError`` for special words that are missing, words that stand twice, empty ones, and what is no list
    of words at all.
    """
    if isinstance(vocabulary, str | Path):
        return _checked(_from_file(Path(vocabulary)), subject=format_path(vocabulary), unit="line")
    if not isinstance(vocabulary, Vocabulary):
        if not all(isinstance(word, str) for word in vocabulary):
            raise DataError("vocabulary: expected a file or words, found a list that holds something else")
        vocabulary = Vocabulary(tuple(vocabulary))
    return _checked(vocabulary, subject="vocabulary", unit="word")


def digest(words: Sequence[bytes]) -> str:
    """A SHA-256 that tells two vocabularies apart."""
    return hashlib.sha256(b"\n".join(words)).hexdigest()


def _from_file(path: Path) -> Vocabulary:
    if path.is_dir():
        raise DataError(f"{format_path(path)}: expected a vocabulary file, one word a line, found a folder")
    lines: list[str] = []
    for line in read_lines(path):
        if "\0" in line.text or "\t" in line.text:
            found = "a NUL: it is a binary file" if "\0" in line.text else "a tab: is it a table with counts?"
            raise DataError(f"{format_path(path)}:{line.number}: expected one word a line, found {found}")
        lines.append(line.text)
        if len(lines) > MAX_LINES:
            raise DataError(f"{format_path(path)}: expected at most {MAX_LINES:,} words, found more")
    return Vocabulary.from_lines(lines)


def _checked(vocabulary: Vocabulary, *, subject: str, unit: str) -> list[bytes]:
    """The ordinary words in UTF-8; every problem is told at once."""
    specials = (vocabulary.bos, vocabulary.eos, vocabulary.unknown)
    missing = [name for name in specials if name not in vocabulary]
    problems = [f"expected the special words {', '.join(specials)}, found no {', '.join(missing)}"] * bool(
        missing
    )
    first: dict[str, int] = {}
    for number, word in enumerate(vocabulary.words, start=1):
        if not word or "\n" in word:
            problems.append(
                f"expected a word, found {'a line break in' if word else 'an empty'} {unit} {number}"
            )
        elif word in first:
            problems.append(f"the word {word[:40]!r} stands twice, as {unit} {first[word]} and {number}")
        elif word in SPECIAL and word not in specials:  # a corpus would take it for one
            problems.append(f"expected words, found the special {word} as {unit} {number}")
        first.setdefault(word, number)
    if not problems and len(first) <= len(specials):
        problems.append("expected words beside the special ones, found none")
    if len(first) > _MAX_WORDS + len(specials):
        problems.append(f"expected at most {MAX_LINES:,} words, found {len(first):,}")
    raise_all(problems[:3], subject=subject, kind=DataError)
    try:
        return [word.encode("utf-8") for word in first if word not in specials]
    except UnicodeEncodeError as error:
        raise DataError(
            f"{subject}: expected Unicode text, found the lone surrogate {error.object[error.start]!a}"
        ) from error
