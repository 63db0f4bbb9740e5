"""Files of text in, a draft of a corpus out: numbers of words in files, sentence after sentence.

The text is read once. What follows (which sentences to keep, which to hold out, how the types are ordered)
is arithmetic on the draft.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from elmo.errors import DataError, EncodingError, MissingExtraError
from elmo.text.blocks import BLOCK_BYTES, Block, read_blocks
from elmo.text.choose import Choice, choose_tokenizer
from elmo.text.conllu import read_conllu
from elmo.text.lines import ErrorPolicy, Source, Tally, open_text, read_lines, shown
from elmo.text.simplified import simplified
from elmo.text.source import InputFormat
from elmo.text.tokens import Tokenizer
from elmo.text.tokens import tokenizer as tokenizer_by_name
from elmo.train.tokenising import END, tokenised
from elmo.train.word_types import EOS, FIRST_WORD, NOTHING, MergedTypes, TypeNumbering

_TEXT_BLOCK = 1 << 18  # bytes of raw text that a process tokenises at a time
_CONLLU_WORDS = 1 << 16
_LOOKED_AT = 1 << 13  # bytes at a file's start that tell text from other data
_CHOSEN_BY = 1 << 16  # bytes of text that tell which tokeniser suits it
_KNOWN_WORDS = 1 << 20  # that need not be simplified again
_FIRST_BLOCKS = 16  # of which one must hold a letter, for a tokeniser to be chosen by it
_OTHERWISE = Choice("en", "its beginning holds no letter")
_AS_SPACE = bytes.maketrans(b"\t\r", b"  ")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BuildProgress:
    """How far a corpus is."""

    step: Literal["read", "write"]
    done: int  # bytes of the input as they are stored; tokens when writing
    total: int | None  # None: stdin is among the input
    n_tokens: int
    n_sentences: int


OnProgress = Callable[[BuildProgress], None]


@dataclass(frozen=True)
class Reading:
    """How text becomes sentences of words."""

    input_format: InputFormat
    tokenize: Tokenizer | None  # None: one is chosen by the text
    split: bool
    errors: ErrorPolicy
    blank_lines_count: bool
    max_sentence: int
    processes: int
    is_simplified: bool = False  # Chinese words, whichever script they are written in


@dataclass(frozen=True)
class Draft:
    """All that was read, in its order."""

    tokens: NDArray[np.uint32]  # (token,): numbers of words; EOS ends each sentence
    ends: NDArray[np.int64]  # (sentence,): the token after it
    n_train: int  # sentences; those after them are the separate held-out part
    n_given: int | None  # types that the user's vocabulary holds, special ones too; the oldest
    types: MergedTypes
    tokenizer: str  # which cut the raw text, or would suit a text that came as tokens
    tally: Tally


@dataclass
class SentenceWriter:
    """Appends numbers to the files of a draft, and keeps count of sentences."""

    tokens: BinaryIO
    ends: BinaryIO
    blank_lines_count: bool
    max_sentence: int  # words; a longer sentence is cut
    n_tokens: int = 0
    n_sentences: int = 0
    _begun: int = field(default=0, init=False)  # words of the sentence that is not ended yet

    def add(self, numbers: NDArray[np.uint32]) -> None:
        """Append a block's numbers; its last sentence may go on in the next block."""
        numbers = numbers[numbers != NOTHING]
        if not self.blank_lines_count and len(numbers):
            is_end = numbers == EOS
            is_blank = is_end.copy()
            is_blank[1:] &= is_end[:-1]
            is_blank[0] &= self._begun == 0
            numbers = numbers[~is_blank]
        if not len(numbers):
            return
        ends = np.flatnonzero(numbers == EOS)
        lengths = np.diff(ends, prepend=-1 - self._begun, append=len(numbers)) - 1
        if lengths.max() > self.max_sentence:
            numbers = np.insert(numbers, self._cuts(ends, lengths), EOS)
            ends = np.flatnonzero(numbers == EOS)
        self._begun = len(numbers) - 1 - int(ends[-1]) if len(ends) else self._begun + len(numbers)
        # not by tofile, which lets an error of its last bytes pass, such as a full disk
        self.ends.write((self.n_tokens + ends + 1).astype("<i8").data)
        self.tokens.write(numbers.astype("<u4").data)
        self.n_tokens += len(numbers)
        self.n_sentences += len(ends)

    def _cuts(self, ends: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Before which words sentences that are too long are cut."""
        starts = np.concatenate([[-self._begun], ends + 1])
        return np.concatenate(
            [
                np.arange(start + self.max_sentence, start + length, self.max_sentence)
                for start, length in zip(starts, lengths, strict=True)
                if length > self.max_sentence
            ]
        )


def read_draft(
    files: Sequence[Source],
    heldout_files: Sequence[Source],
    *,
    reading: Reading,
    folder: Path,
    given: Sequence[bytes] | None = None,
    on_progress: OnProgress | None = None,
) -> Draft:
    """Read all files into a draft in ``folder``; words that are ``given`` are types before any other."""
    both: list[Source] = [*files, *heldout_files]
    sizes = [0 if file == "-" else file.stat().st_size for file in both]
    before = [sum(sizes[:k]) for k in range(len(both))]
    total = None if "-" in both else sum(sizes)
    tally = Tally()
    numbering = TypeNumbering(folder)
    numbering.numbers(list(given or ()))
    tokenizer, pieces = _words_of(both, reading, tally)
    if reading.is_simplified:
        pieces = _simplified(pieces)
    paths = [folder / name for name in ("tokens.draft", "ends.draft")]
    with paths[0].open("wb") as tokens, paths[1].open("wb") as ends:
        writer = SentenceWriter(tokens, ends, reading.blank_lines_count, reading.max_sentence)
        n_train = None
        for k, position, words in pieces:
            if k >= len(files) and n_train is None:
                n_train = writer.n_sentences
            writer.add(numbering.numbers(words))
            numbering.make_room(writer.n_tokens)
            if on_progress is not None:
                done, counts = before[k] + position, (writer.n_tokens, writer.n_sentences)
                on_progress(BuildProgress("read", done, total, *counts))
    return Draft(
        tokens=_mapped(paths[0], "<u4", writer.n_tokens),
        ends=_mapped(paths[1], "<i8", writer.n_sentences),
        n_train=writer.n_sentences if n_train is None else n_train,
        n_given=None if given is None else len(given) + FIRST_WORD,
        types=numbering.merged(),
        tokenizer=tokenizer,
        tally=tally,
    )


def _mapped(path: Path, dtype: str, n: int) -> NDArray:
    return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray) if n else np.zeros(0, dtype=dtype)


_Pieces = Iterator[tuple[int, int, list[bytes]]]  # which file, its bytes read so far, words


def _words_of(files: list[Source], reading: Reading, tally: Tally) -> tuple[str, _Pieces]:
    """The words of all files piece by piece, and before them the tokeniser's name."""
    if reading.input_format == "conllu":
        pieces = _of_conllu(files, reading.errors, tally)
        words = next(pieces, None)
        start = [] if words is None else [words]
        choice = choose_tokenizer(_text(b" ".join(start[0][2]))) if start else None
        return (choice or _OTHERWISE).tokenizer, itertools.chain(start, pieces)
    is_text = reading.input_format == "text"
    blocks = _blocks_of(files, _TEXT_BLOCK if is_text else BLOCK_BYTES, reading.errors, tally)
    if is_text and reading.tokenize is not None:
        return reading.tokenize.name, _tokenised(blocks, reading.tokenize, reading)
    choice, blocks = _chosen(blocks)
    if not is_text:
        return choice.tokenizer, ((k, block.position, _split_at_space(block.data)) for k, block in blocks)
    log = _log.warning if choice.is_makeshift else _log.info
    log("tokenizer %s is used: %s", choice.tokenizer, choice.reason)
    try:
        tokenize = tokenizer_by_name(choice.tokenizer)
    except MissingExtraError as error:
        raise MissingExtraError(
            f"{choice.reason}, and the tokenizer {choice.tokenizer}", extra=choice.tokenizer
        ) from error
    return choice.tokenizer, _tokenised(blocks, tokenize, reading)


def _simplified(pieces: _Pieces) -> _Pieces:
    known: dict[bytes, bytes] = {}
    for k, position, words in pieces:
        if len(known) > _KNOWN_WORDS:
            known.clear()
        for word in words:
            if word not in known:
                known[word] = simplified(word.decode("utf-8", "surrogatepass")).encode(
                    "utf-8", "surrogatepass"
                )
        yield k, position, [known[word] for word in words]


def _tokenised(blocks: Iterator[tuple[int, Block]], tokenize: Tokenizer, reading: Reading) -> _Pieces:
    for (k, block), words in tokenised(
        blocks, tokenize=tokenize, split=reading.split, processes=reading.processes
    ):
        yield k, block.position, words.split(b"\t")


def _of_conllu(files: list[Source], errors: ErrorPolicy, tally: Tally) -> _Pieces:
    for k, file in enumerate(files):
        words = []
        for sentence in read_conllu(read_lines(file, errors=errors, tally=tally)):
            words += [word.encode("utf-8", "surrogatepass") for word in (*sentence.tokens.tokens, END)]
            if len(words) > _CONLLU_WORDS:
                yield k, 0, words  # how much of the file that is cannot be told
                words = []
        yield k, 0, words


def _chosen(blocks: Iterator[tuple[int, Block]]) -> tuple[Choice, Iterator[tuple[int, Block]]]:
    """The tokeniser for the first text among the blocks, and all of the blocks again."""
    looked_at = []
    for of_file, block in itertools.islice(blocks, _FIRST_BLOCKS):
        looked_at.append((of_file, block))
        if (choice := choose_tokenizer(_text(block.data))) is not None:
            return choice, itertools.chain(looked_at, blocks)
    return _OTHERWISE, itertools.chain(looked_at, blocks)


def _text(data: bytes) -> str:
    return data[:_CHOSEN_BY].decode("utf-8", "ignore")


def _blocks_of(
    files: list[Source], n_bytes: int, errors: ErrorPolicy, tally: Tally
) -> Iterator[tuple[int, Block]]:
    """The blocks of all files; a NUL at the start of one tells that it is no text."""
    for k, file in enumerate(files):
        n_seen = 0
        try:
            for block in read_blocks(file, errors=errors, n_bytes=n_bytes, tally=tally):
                if n_seen < _LOOKED_AT:
                    _refuse_binary(block.data, file, n_seen)
                n_seen += len(block.data)
                yield k, block
        except EncodingError:
            if n_seen < _LOOKED_AT and file != "-":
                with open_text(file) as (_, stream):  # what no policy for single bytes will help
                    _refuse_binary(stream.read(_LOOKED_AT), file, 0)
            raise


def _refuse_binary(data: bytes, file: Source, n_before: int) -> None:
    at = data.find(b"\0", 0, _LOOKED_AT - n_before)
    if at >= 0:
        raise DataError(
            f"{shown(file)}: expected text, found a NUL at byte {n_before + at + 1}: it is a binary file, or "
            "in another encoding than UTF-8"
        )


def _split_at_space(data: bytes) -> list[bytes]:
    r"""As ``WhitespaceTokenizer`` cuts: at space, tab, ``\r`` and ``\n`` only; empty words mean nothing."""
    if b"\t" in data or b"\r" in data:
        data = data.translate(_AS_SPACE)
    return data.replace(b"\n", b" \n ").split(b" ")
