"""Number the distinct words of a text in bounded memory, and read a vocabulary given by the user.

``WordNumbering`` has a dictionary that numbers words in the order of their first occurrence. When the dictionary is
full, it is written to disk as a *segment*, and a new dictionary starts, so a number is only valid within its segment.
At the end, all segments are merged, one share of the words at a time (chosen by a hash of the spelling), so that the
words need not fit into memory all at once.

``read_vocabulary`` reads the words that get the first ids in a corpus, for example from a vocabulary file of
bilm-tf: one word per line, including ``<S>``, ``</S>`` and ``<UNK>``. A corpus has its own ids for these three
special words, so only their presence is checked.
"""

from __future__ import annotations

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
from elmo.text.lines import TextLimits, read_lines
from elmo.train.corpus import EOS, FIRST_WORD, SPECIAL, UNKNOWN, map_array

NOTHING = 0  # number of the empty word
LOOK_ALIKES = (b"<S>", b"</S>")  # words of a text that look like sentence boundaries
MAX_IN_MEMORY = 1 << 20  # number of types in a segment; each takes about 150 bytes
_N_SHARES = 64


class _WordNumbers(dict[bytes, int]):
    """A dictionary that gives each new word the next number when it is first looked up."""

    def __init__(self, initial: dict[bytes, int], first: int, limits: TextLimits) -> None:
        super().__init__(initial)
        self._shift = first - len(initial)
        self._limits = limits

    def __missing__(self, word: bytes) -> int:
        if len(word) > self._limits.token_bytes:
            self._limits.check_tokens([word.decode("utf-8", "replace")], "the text")
        number = self[word] = len(self) + self._shift
        return number


def _start_segment(limits: TextLimits) -> _WordNumbers:
    return _WordNumbers({b"": NOTHING, b"\n": EOS, SPECIAL[UNKNOWN].encode(): UNKNOWN}, FIRST_WORD, limits)


@dataclass(frozen=True)
class Segment:
    """The words of one dictionary on disk, share by share. A share has its words in order of first occurrence.

    Attributes:
        words: File with one word per line.
        numbers: File with the number of each word, as uint32.
        byte_ends: (share,) Offset of the end of each share in ``words``.
        word_ends: (share,) Number of words up to the end of each share.
        first: Number of words in earlier segments.
        token: Index of the first token of the text that uses the numbers of this segment.
    """

    words: Path
    numbers: Path
    byte_ends: NDArray[np.int64]
    word_ends: NDArray[np.int64]
    first: int
    token: int


@dataclass(frozen=True)
class MergedTypes:
    """All distinct words (types) of a text, in arbitrary order. The arrays with one entry per type are on disk.

    Attributes:
        n_types: Number of types, including the three special words.
        spellings: File with one word per line.
        ends: (type,) Offset of the end of each line in ``spellings``.
        ages: (type,) Rank of each type by first occurrence.
        tables: For each segment, an array (number,) that maps the numbers of the segment to types.
        starts: (segment,) Index of the first token of each segment.
        look_alikes: Types that are spelled ``<S>`` or ``</S>``.
    """

    n_types: int
    spellings: Path
    ends: NDArray[np.int64]
    ages: NDArray[np.int64]
    tables: tuple[NDArray[np.uint32], ...]
    starts: NDArray[np.int64]
    look_alikes: tuple[int, ...]

    def map_tokens(self, tokens: NDArray[np.uint32], start: int, end: int) -> NDArray[np.uint32]:
        """Return the types of ``tokens[start:end]``."""
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        parts = []
        while start < end:
            until = min(end, int(self.starts[first + 1])) if first + 1 < len(self.starts) else end
            parts.append(self.tables[first][tokens[start:until]])
            start, first = until, first + 1
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype=np.uint32), *parts])


class WordNumbering:
    """Numbers the words of a text as it is read. Full segments are written to files in ``folder``."""

    def __init__(self, folder: Path, *, max_in_memory: int = MAX_IN_MEMORY) -> None:
        self._folder = folder
        self._max = max_in_memory
        self._limits = TextLimits.read()
        self._numbers = _start_segment(self._limits)
        self._segments: list[Segment] = []
        self._n_words = 0  # number of words in closed segments
        self._token = 0  # first token of the current segment

    def numbers(self, words: list[bytes]) -> NDArray[np.uint32]:
        """Return the number of each word: ``EOS`` for a line break, ``NOTHING`` for an empty word."""
        return np.fromiter(map(self._numbers.__getitem__, words), dtype=np.uint32, count=len(words))

    def close_full_segment(self, token: int) -> None:
        """Start a new segment at ``token`` if the current one is full."""
        if len(self._numbers) >= self._max:
            self._close_segment(token)

    def merge(self) -> MergedTypes:
        """Merge all segments. Call this once, after the last word."""
        self._close_segment(token=0)
        tables = tuple(np.arange(segment.word_ends[-1] + FIRST_WORD, dtype=np.uint32) for segment in self._segments)
        paths = [self._folder / f"type_{name}.tmp" for name in ("spellings", "ends", "ages")]
        n_types = FIRST_WORD
        look_alikes: list[int] = []
        with ExitStack() as stack:
            spellings, ends, ages = (stack.enter_context(path.open("wb")) for path in paths)
            self._write_words([name.encode() for name in SPECIAL], spellings, ends)
            ages.write(np.arange(FIRST_WORD).astype("<i8").data)  # tofile would not report a full disk
            for share in range(_N_SHARES):
                merged = _WordNumbers({}, n_types, self._limits)
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
            ends=map_array(paths[1], "<i8"),
            ages=map_array(paths[2], "<i8"),
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
        self._numbers = _start_segment(self._limits)
        shares = np.fromiter(map(zlib.crc32, words), dtype=np.uint32, count=len(words)) % _N_SHARES
        order = np.argsort(shares, kind="stable")
        number = len(self._segments)
        words_path, numbers_path = (self._folder / f"type_{kind}-{number}.tmp" for kind in ("words", "numbers"))
        numbers_path.write_bytes((order + FIRST_WORD).astype("<u4").data)
        word_ends = np.cumsum(np.bincount(shares, minlength=_N_SHARES))
        byte_ends = []
        with words_path.open("wb") as file:
            for start, end in zip([0, *word_ends[:-1]], word_ends, strict=True):
                file.write(b"".join(words[k] + b"\n" for k in order[start:end].tolist()))
                byte_ends.append(file.tell())
        self._segments.append(
            Segment(words_path, numbers_path, np.array(byte_ends), word_ends, self._n_words, self._token)
        )
        self._n_words += len(words)
        self._token = token


def _read_share(segment: Segment, share: int) -> tuple[list[bytes], NDArray[np.uint32]]:
    """Read the words of one share of a segment, and their numbers in the segment."""
    first_byte, first_word = (int(ends[share - 1]) if share else 0 for ends in (segment.byte_ends, segment.word_ends))
    n_words = int(segment.word_ends[share]) - first_word
    with segment.words.open("rb") as file:
        file.seek(first_byte)
        words = file.read(int(segment.byte_ends[share]) - first_byte).split(b"\n")[:-1]
    return words, np.fromfile(segment.numbers, dtype="<u4", count=n_words, offset=4 * first_word)


VocabularySource = str | Path | Vocabulary | Sequence[str]
_MAX_WORDS = MAX_LINES - FIRST_WORD  # the vocab.txt of a model has at most MAX_LINES lines


def read_vocabulary(vocabulary: VocabularySource) -> list[bytes]:
    """Return the words of a file, a ``Vocabulary`` or a list in UTF-8, in order, without the special words.

    Raises ``DataError`` if a special word is missing, or if a word is repeated, empty or not valid Unicode.
    """
    if isinstance(vocabulary, str | Path):
        return _check_words(_read_file(Path(vocabulary)), subject=format_path(vocabulary), unit="line")
    if not isinstance(vocabulary, Vocabulary):
        if not all(isinstance(word, str) for word in vocabulary):
            raise DataError("vocabulary must be a file or a list of strings; found a list with other values")
        vocabulary = Vocabulary(tuple(vocabulary))
    return _check_words(vocabulary, subject="vocabulary", unit="word")


def _read_file(path: Path) -> Vocabulary:
    if path.is_dir():
        raise DataError(f"{format_path(path)} must be a vocabulary file with one word per line; found a folder")
    lines: list[str] = []
    for line in read_lines(path):
        if "\0" in line.text or "\t" in line.text:
            found = "a NUL byte (a binary file?)" if "\0" in line.text else "a tab (a table with counts?)"
            raise DataError(f"{format_path(path)} must have one word per line; found {found} in line {line.number}")
        lines.append(line.text)
        if len(lines) > MAX_LINES:
            raise DataError(f"{format_path(path)} must have at most {MAX_LINES:,} words; found more")
    return Vocabulary.from_lines(lines)


def _check_words(vocabulary: Vocabulary, *, subject: str, unit: str) -> list[bytes]:
    """Return the ordinary words of a vocabulary in UTF-8; raise ``DataError`` with the first three problems."""
    specials = (vocabulary.bos, vocabulary.eos, vocabulary.unknown)
    problems = []
    if missing := [name for name in specials if name not in vocabulary]:
        problems.append(f"the special words {', '.join(specials)} must be included; found no {', '.join(missing)}")
    first: dict[str, int] = {}
    for number, word in enumerate(vocabulary.words, start=1):
        if not word:
            problems.append(f"{unit} {number} is empty")
        elif "\n" in word:
            problems.append(f"{unit} {number} contains a line break")
        elif word in first:
            problems.append(f"the word {word[:40]!r} occurs twice, in {unit} {first[word]} and {number}")
        elif word in SPECIAL and word not in specials:  # a corpus would treat it as special
            problems.append(f"{unit} {number} must be an ordinary word; found the special word {word}")
        first.setdefault(word, number)
    if not problems and len(first) <= len(specials):
        problems.append("the vocabulary has only special words")
    if len(first) > _MAX_WORDS + len(specials):
        problems.append(f"the vocabulary must have at most {MAX_LINES:,} words; found {len(first):,}")
    raise_all(problems[:3], subject=subject, kind=DataError)
    try:
        return [word.encode("utf-8") for word in first if word not in specials]
    except UnicodeEncodeError as error:
        surrogate = error.object[error.start]
        raise DataError(f"{subject}: words must be valid Unicode; found the lone surrogate {surrogate!a}") from error
