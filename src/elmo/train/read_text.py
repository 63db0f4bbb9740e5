"""Read text files into a ``NumberedText``: the numbers of all words, sentence by sentence, in a file on disk.

Later steps (dropping duplicates, holding out sentences, sorting the types) only use these numbers. Raw text is
tokenized block by block, in this process or in child processes. A tokenized block is a byte string with a tab
after each word, and with ``SENTENCE_END`` and a tab after each sentence. Tokens contain no tabs or line breaks.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from elmo.errors import DataError, EncodingError, MissingExtraError
from elmo.text.chinese import TokenizerGuess, guess_tokenizer, simplify
from elmo.text.languages import LANGUAGES, detect_language
from elmo.text.lines import (
    BLOCK_BYTES,
    Block,
    Digest,
    ErrorPolicy,
    Source,
    Tally,
    format_source,
    open_text,
    read_blocks,
    read_lines,
)
from elmo.text.reader import read_conllu, report_split
from elmo.text.sentences import SPLIT_SAMPLE, choose_split, split_sentences
from elmo.text.tokenizers import Tokenizer, load_tokenizer
from elmo.train.corpus import EOS, FIRST_WORD, map_array
from elmo.train.options import CorpusOptions
from elmo.train.vocabulary import NOTHING, MergedTypes, WordNumbering

SENTENCE_END = "\n"
TEMPORARY = ".tmp"  # suffix of files that are removed when the corpus is complete
_CLOSE = f"{SENTENCE_END}\t"
_TEXT_BLOCK = 1 << 18  # number of bytes of raw text that a process tokenizes at a time
_CONLLU_WORDS = 1 << 16  # number of words in a CoNLL-U file that are processed at a time
_BINARY_CHECK = 1 << 13  # number of bytes at the start of a file that are searched for a NUL
_LANGUAGE_CHECK = 1 << 16  # number of bytes from which the tokenizer is guessed
_LANGUAGE_BLOCKS = 16  # number of blocks that are searched for letters to guess the tokenizer
_SIMPLIFIED_CACHE = 1 << 20  # number of words whose simplified form is cached
_FALLBACK = TokenizerGuess("en", "the beginning of the text has no letters")
_WHITESPACE = bytes.maketrans(b"\t\r", b"  ")
_PROGRAM = "from elmo.train.read_text import serve; serve()"
_REQUEST = struct.Struct("<QB")  # number of bytes of text that follow, and ``is_open`` of ``tokenize_block``
_REPLY = struct.Struct("<Q")  # number of bytes that follow
_log = logging.getLogger(__name__)

FileBlock = tuple[int, Block]  # index of the file, and a block of it
WordPieces = Iterator[tuple[int, int, list[bytes]]]  # index of the file, bytes read so far, words


@dataclass(frozen=True)
class BuildProgress:
    """Progress of building a corpus.

    Attributes:
        step: ``read`` while the text is read, ``write`` while the corpus is written.
        done: Number of bytes that were read from the input files, or number of tokens that were written.
        total: Total number of bytes or tokens; None if it is unknown because the input includes stdin.
        n_tokens: Number of tokens so far.
        n_sentences: Number of sentences so far.

    Example:
        >>> steps = []
        >>> corpus = build_corpus("corpus.txt", "counted", on_progress=lambda progress: steps.append(progress.step))
    """

    step: Literal["read", "write"]
    done: int
    total: int | None
    n_tokens: int
    n_sentences: int


OnProgress = Callable[[BuildProgress], None]


@dataclass(frozen=True)
class NumberedText:
    """The input text as word numbers, in the order of the input.

    Attributes:
        tokens: (token,) Number of each word; every sentence ends in ``EOS``.
        ends: (sentence,) Index after the last token of each sentence.
        n_train: Number of training sentences. The sentences after them are from the held-out files.
        n_given: Number of types in the user's vocabulary, including special words, or None without a vocabulary.
        types: The distinct words.
        tokenizer: Name of the tokenizer that split the raw text, or that fits the language of tokenized text.
        tally: Number of lines that were repaired or skipped.
        digests: SHA-256 of each input file, as it is stored.
    """

    tokens: NDArray[np.uint32]
    ends: NDArray[np.int64]
    n_train: int
    n_given: int | None
    types: MergedTypes
    tokenizer: str
    tally: Tally
    digests: tuple[str, ...]


def read_text(
    files: Sequence[Source],
    heldout_files: Sequence[Source],
    *,
    options: CorpusOptions,
    tokenize: Tokenizer | None,
    processes: int,
    folder: Path,
    vocabulary: Sequence[bytes] | None = None,
    on_progress: OnProgress | None = None,
) -> NumberedText:
    """Read text files and number their words.

    Args:
        files: Files of training text.
        heldout_files: Files of held-out text.
        options: How to read the text.
        tokenize: Tokenizer for raw text. None chooses one that fits the text.
        processes: Number of processes that tokenize.
        folder: Folder for temporary files.
        vocabulary: Words to number first.
        on_progress: Function that is called with a ``BuildProgress`` after each block.
    """
    all_files: list[Source] = [*files, *heldout_files]
    sizes = [0 if file == "-" else file.stat().st_size for file in all_files]
    before = [sum(sizes[:k]) for k in range(len(all_files))]
    total = None if "-" in all_files else sum(sizes)
    tally = Tally()
    numbering = WordNumbering(folder)
    numbering.numbers(list(vocabulary or ()))
    digests = [hashlib.sha256() for _ in all_files]
    tokenizer_name, pieces = _read_words(
        all_files, options, tokenize=tokenize, processes=processes, tally=tally, digests=digests
    )
    if options.simplified:
        pieces = _simplify(pieces)
    paths = [folder / f"{name}{TEMPORARY}" for name in ("tokens", "ends")]
    with paths[0].open("wb") as tokens, paths[1].open("wb") as ends:
        writer = SentenceWriter(tokens, ends, options.blank_lines, options.max_sentence)
        n_train = None
        for k, position, words in pieces:
            if k >= len(files) and n_train is None:
                n_train = writer.n_sentences
            writer.add(numbering.numbers(words))
            numbering.close_full_segment(writer.n_tokens)
            if on_progress is not None:
                done = before[k] + position
                on_progress(BuildProgress("read", done, total, writer.n_tokens, writer.n_sentences))
    return NumberedText(
        tokens=map_array(paths[0], "<u4"),
        ends=map_array(paths[1], "<i8"),
        n_train=writer.n_sentences if n_train is None else n_train,
        n_given=None if vocabulary is None else len(vocabulary) + FIRST_WORD,
        types=numbering.merge(),
        tokenizer=tokenizer_name,
        tally=tally,
        digests=tuple(digest.hexdigest() for digest in digests),
    )


@dataclass
class SentenceWriter:
    """Appends word numbers and sentence ends to two files.

    Attributes:
        tokens: File for the word numbers.
        ends: File for the sentence ends.
        blank_lines: Whether to keep sentences without words.
        max_sentence: Largest number of words in a sentence. Longer sentences are split.
        n_tokens: Number of tokens written.
        n_sentences: Number of sentences written.
    """

    tokens: BinaryIO
    ends: BinaryIO
    blank_lines: bool
    max_sentence: int
    n_tokens: int = 0
    n_sentences: int = 0
    _n_open: int = field(default=0, init=False)  # number of words in the sentence that has not ended

    def add(self, numbers: NDArray[np.uint32]) -> None:
        """Append the numbers of a block. Its last sentence may continue in the next block."""
        numbers = numbers[numbers != NOTHING]
        if not self.blank_lines and len(numbers):
            is_end = numbers == EOS
            is_blank = is_end.copy()
            is_blank[1:] &= is_end[:-1]
            is_blank[0] &= self._n_open == 0
            numbers = numbers[~is_blank]
        if not len(numbers):
            return
        ends = np.flatnonzero(numbers == EOS)
        lengths = np.diff(ends, prepend=-1 - self._n_open, append=len(numbers)) - 1
        if lengths.max() > self.max_sentence:
            numbers = np.insert(numbers, self._cuts(ends, lengths), EOS)
            ends = np.flatnonzero(numbers == EOS)
        self._n_open = len(numbers) - 1 - int(ends[-1]) if len(ends) else self._n_open + len(numbers)
        # tofile would not report a full disk
        self.ends.write((self.n_tokens + ends + 1).astype("<i8").data)
        self.tokens.write(numbers.astype("<u4").data)
        self.n_tokens += len(numbers)
        self.n_sentences += len(ends)

    def _cuts(self, ends: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices at which sentences that are too long are split."""
        starts = np.concatenate([[-self._n_open], ends + 1])
        return np.concatenate(
            [
                np.arange(start + self.max_sentence, start + length, self.max_sentence)
                for start, length in zip(starts, lengths, strict=True)
                if length > self.max_sentence
            ]
        )


# --- from files to words ------------------------------------------------------------------------------------


def _read_words(
    files: list[Source],
    options: CorpusOptions,
    *,
    tokenize: Tokenizer | None,
    processes: int,
    tally: Tally,
    digests: Sequence[Digest],
) -> tuple[str, WordPieces]:
    """Return the name of the tokenizer, and an iterator over the words of all files."""
    if options.input_format == "conllu":
        pieces = _read_conllu(files, options.errors, tally, digests)
        first = list(itertools.islice(pieces, 1))
        guess = _guess_language(_decode_start(b" ".join(first[0][2]))) if first else None
        return (guess or _FALLBACK).tokenizer, itertools.chain(first, pieces)
    is_raw = options.input_format == "text"
    blocks = _read_blocks(files, _TEXT_BLOCK if is_raw else BLOCK_BYTES, options.errors, tally, digests)
    if not is_raw:
        guess, blocks = _guess_tokenizer(blocks)
        return guess.tokenizer, ((k, block.position, split_at_space(block.data)) for k, block in blocks)
    if tokenize is None:
        guess, blocks = _guess_tokenizer(blocks)
        level = logging.WARNING if guess.is_fallback else logging.INFO
        _log.log(level, "using the tokenizer %s: %s", guess.tokenizer, guess.reason)
        try:
            tokenize = load_tokenizer(guess.tokenizer)
        except MissingExtraError as error:
            subject = f"{guess.reason}; the tokenizer {guess.tokenizer}"
            raise MissingExtraError(subject, extra=guess.tokenizer) from error
    split = options.splitting
    if split is None:
        split, blocks = _choose_split(blocks, tokenize.name)
    return tokenize.name, _tokenize(blocks, tokenize, split=split, processes=processes)


def _read_blocks(
    files: list[Source], n_bytes: int, errors: ErrorPolicy, tally: Tally, digests: Sequence[Digest]
) -> Iterator[FileBlock]:
    """Yield the blocks of all files; raise ``DataError`` for a file with a NUL byte near its start."""
    for k, file in enumerate(files):
        n_read = 0
        try:
            for block in read_blocks(file, errors=errors, n_bytes=n_bytes, tally=tally, digest=digests[k]):
                if n_read < _BINARY_CHECK:
                    _check_text(block.data, file, n_read)
                n_read += len(block.data)
                yield k, block
        except EncodingError:
            if n_read < _BINARY_CHECK and file != "-":
                with open_text(file) as (_, stream):  # "the file is binary" is a better message
                    _check_text(stream.read(_BINARY_CHECK), file, 0)
            raise


def _check_text(data: bytes, file: Source, n_before: int) -> None:
    index = data.find(b"\0", 0, _BINARY_CHECK - n_before)
    if index >= 0:
        place = f"{format_source(file)}: found a NUL at byte {n_before + index + 1}"
        raise DataError(f"{place}; the file is binary or not in UTF-8")


def _guess_tokenizer(blocks: Iterator[FileBlock]) -> tuple[TokenizerGuess, Iterator[FileBlock]]:
    """Guess the tokenizer from the first block with letters. Also return an iterator over all blocks."""
    first = []
    for k, block in itertools.islice(blocks, _LANGUAGE_BLOCKS):
        first.append((k, block))
        if (guess := _guess_language(_decode_start(block.data))) is not None:
            return guess, itertools.chain(first, blocks)
    return _FALLBACK, itertools.chain(first, blocks)


def _guess_language(text: str) -> TokenizerGuess | None:
    """Guess the tokenizer from the script of a text and, if it has words separated by spaces, from its language."""
    guess = guess_tokenizer(text)
    if guess is None or guess.tokenizer != "en" or guess.is_fallback:
        return guess
    language = detect_language(text)
    if language is None or language == "en":
        return guess
    if language in LANGUAGES:
        return TokenizerGuess(language, f"the language of the text is {language}")
    return TokenizerGuess("en", f"there are no tokenizer rules for {language}", is_fallback=True)


def _choose_split(blocks: Iterator[FileBlock], language: str) -> tuple[bool, Iterator[FileBlock]]:
    """Find from the beginning of the text whether lines are split. Also return an iterator over all blocks."""
    first: list[FileBlock] = []
    sample = ""
    for item in blocks:
        first.append(item)
        sample += item[1].data.decode("utf-8", "surrogatepass")
        if len(sample) > SPLIT_SAMPLE:
            break
    choice = choose_split(sample, language)
    report_split(choice)
    return choice.is_split, itertools.chain(first, blocks)


def _decode_start(data: bytes) -> str:
    return data[:_LANGUAGE_CHECK].decode("utf-8", "ignore")


def split_at_space(data: bytes) -> list[bytes]:
    r"""Split text at space, tab, ``\r`` and ``\n``, like ``WhitespaceTokenizer``. The result may have empty words."""
    if b"\t" in data or b"\r" in data:
        data = data.translate(_WHITESPACE)
    return data.replace(b"\n", b" \n ").split(b" ")


def _read_conllu(files: list[Source], errors: ErrorPolicy, tally: Tally, digests: Sequence[Digest]) -> WordPieces:
    for k, file in enumerate(files):
        words = []
        for sentence in read_conllu(read_lines(file, errors=errors, tally=tally, digest=digests[k])):
            words += [word.encode("utf-8", "surrogatepass") for word in (*sentence.tokens.tokens, SENTENCE_END)]
            if len(words) > _CONLLU_WORDS:
                yield k, 0, words  # the position in the file is unknown
                words = []
        yield k, 0, words


def _simplify(pieces: WordPieces) -> WordPieces:
    cache: dict[bytes, bytes] = {}
    for k, position, words in pieces:
        if len(cache) > _SIMPLIFIED_CACHE:
            cache.clear()
        for word in words:
            if word not in cache:
                text = simplify(word.decode("utf-8", "surrogatepass"))
                cache[word] = text.encode("utf-8", "surrogatepass")
        yield k, position, [cache[word] for word in words]


# --- tokenization -------------------------------------------------------------------------------------------


def _tokenize(blocks: Iterator[FileBlock], tokenize: Tokenizer, *, split: bool, processes: int) -> WordPieces:
    if processes > 1:  # only for a tokenizer that is known by name
        tokenized = _tokenize_in_children(blocks, tokenize.name, split, processes)
    else:
        tokenized = (
            ((k, block), tokenize_block(block.data, is_open=block.is_open, tokenize=tokenize, split=split))
            for k, block in blocks
        )
    for (k, block), words in tokenized:
        yield k, block.position, words.split(b"\t")


def tokenize_block(data: bytes, *, is_open: bool, tokenize: Tokenizer, split: bool) -> bytes:
    """Tokenize a block. The result has a tab after each word, and ``SENTENCE_END`` and a tab after each sentence.

    Args:
        data: Text in UTF-8.
        is_open: Whether the last sentence continues in the next block. If so, it gets no ``SENTENCE_END``.
        tokenize: The tokenizer.
        split: Whether to split lines into sentences.
    """
    *lines, last = data.decode("utf-8", "surrogatepass").split("\n")
    sentences: list[str] = []
    n_words = 0
    for line in [*lines, last] if is_open else lines:
        text = line.removesuffix("\r")
        spans = split_sentences(text, language=tokenize.name) if split else []
        for start, end in spans or [(0, len(text))]:
            tokens = tokenize(text[start:end]).tokens
            n_words += len(tokens)
            sentences.append("\t".join((*tokens, _CLOSE)))
    if is_open:
        sentences[-1] = sentences[-1].removesuffix(_CLOSE)
    joined = "".join(sentences)
    n_ends = len(sentences) - is_open
    if joined.count("\t") != n_words + n_ends or joined.count(SENTENCE_END) != n_ends:
        raise DataError(
            f"tokens of the tokenizer {tokenize.name} must not contain tabs or line breaks; found a token that does"
        )
    return joined.encode("utf-8", "surrogatepass")


def _tokenize_in_children(
    blocks: Iterator[FileBlock], name: str, split: bool, processes: int
) -> Iterator[tuple[FileBlock, bytes]]:
    """Tokenize blocks in child processes, in rotation. Each child has one block at a time, so memory is bounded.

    The children are started as separate programs, because ``multiprocessing`` would import the caller's script in
    each of them, or fork a process that has threads.
    """
    with ExitStack() as stack:
        children = [stack.enter_context(_start_child(name, split)) for _ in range(processes)]
        current: list[FileBlock | None] = [_send(child, next(blocks, None)) for child in children]
        k = 0
        while (task := current[k]) is not None:
            words = _receive(children[k])
            current[k] = _send(children[k], next(blocks, None))
            yield task, words
            k = (k + 1) % processes


@contextmanager
def _start_child(name: str, split: bool) -> Iterator[subprocess.Popen[bytes]]:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109
    child = subprocess.Popen(  # noqa: S603 -- our own program
        [sys.executable, "-P", "-c", _PROGRAM, name, str(int(split))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
        # Ctrl-C must reach only the parent, which ends its children; a child could not ignore it while it starts.
        process_group=0 if os.name == "posix" else None,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def _send(child: subprocess.Popen[bytes], task: FileBlock | None) -> FileBlock | None:
    if task is not None:
        _, block = task
        try:
            assert child.stdin is not None  # noqa: S101 -- for the type checker
            child.stdin.write(_REQUEST.pack(len(block.data), block.is_open) + block.data)
            child.stdin.flush()
        except OSError as error:
            raise _child_error(child) from error
    return task


def _receive(child: subprocess.Popen[bytes]) -> bytes:
    assert child.stdout is not None  # noqa: S101
    head = child.stdout.read(_REPLY.size)
    size = _REPLY.unpack(head)[0] if len(head) == _REPLY.size else 0
    words = child.stdout.read(size)
    if len(head) < _REPLY.size or len(words) < size:
        raise _child_error(child)
    return words


def _child_error(child: subprocess.Popen[bytes]) -> DataError:
    code = child.wait()
    return DataError(f"a tokenizer process ended with exit code {code}, perhaps out of memory; use processes=1")


def serve() -> None:
    """Tokenize blocks from stdin to stdout until stdin ends. This is the program of a child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it and ends its children
    tokenize, split = load_tokenizer(sys.argv[1]), sys.argv[2] == "1"
    requests: BinaryIO = sys.stdin.buffer
    while len(head := requests.read(_REQUEST.size)) == _REQUEST.size:
        size, is_open = _REQUEST.unpack(head)
        words = tokenize_block(requests.read(size), is_open=bool(is_open), tokenize=tokenize, split=split)
        sys.stdout.buffer.write(_REPLY.pack(len(words)) + words)
        sys.stdout.buffer.flush()
