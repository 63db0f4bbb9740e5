"""Blocks of raw text in, their words out, in the same order: in this process, or in several beside it.

A block's words are written one after another, each followed by a tab, with ``END`` after each sentence: no
tokeniser leaves a tab or a line break inside a token.

Files of text in, a draft of a corpus out: numbers of words in files, sentence after sentence.

The text is read once. What follows (which sentences to keep, which to hold out, how the types are ordered)
is arithmetic on the draft.

A draft in, the files of a corpus out: duplicates gone, a part set aside, types in order of frequency.

All of it goes over the draft in pieces of whole sentences. Memory: one byte for each sentence (nine
when duplicates are looked for) and some forty for each type, whatever the number of tokens.

The place of a corpus in, a folder to fill out, which stands there once it is whole; leftovers are removed.

::

    .corpus.lock    held by the one process that builds
    .corpus.part    the new corpus, while it is filled
    .corpus.old     the one it takes the place of, until that is done

A kill can come between any two steps. What it leaves beside the place is cleared away by whoever opens the
corpus or builds it next, so nothing of it stays even when the corpus itself turns out to be finished.

Text in, a corpus out: a folder of type ids, built once and read from disk ever after.

What the text says is kept: a word is any token, lower-case ``<unk>`` like all others. A literal ``<UNK>`` is
the unknown word. A literal ``<S>`` or ``</S>`` is no boundary but a word, read by its characters and
predicted as the unknown word, as ``Vocabulary.id`` has it.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError, EncodingError, MissingExtraError, OutputError
from elmo.storage.atomic import cannot_write, hold_lock, sync
from elmo.storage.files import format_path
from elmo.text.chinese import Choice, check, choose_tokenizer, simplified
from elmo.text.lines import (
    BLOCK_BYTES,
    ERROR_POLICIES,
    Block,
    ErrorPolicy,
    Source,
    Tally,
    expand,
    open_text,
    read_blocks,
    read_lines,
)
from elmo.text.lines import shown as shown_source
from elmo.text.reader import INPUT_FORMATS, InputFormat, read_conllu
from elmo.text.sentences import split_sentences
from elmo.text.tokenizers import Tokenizer, tokenizer
from elmo.text.tokenizers import tokenizer as tokenizer_by_name
from elmo.train.corpus import (
    COUNTS,
    FILES,
    HELDOUT,
    MANIFEST,
    TRAIN,
    TYPE_ENDS,
    TYPES,
    Corpus,
    CorpusManifest,
    CorpusSizes,
    gathered,
    read_manifest,
)
from elmo.train.randomness import scattered
from elmo.train.vocabulary import (
    EOS,
    FIRST_WORD,
    NOTHING,
    UNKNOWN,
    GivenVocabulary,
    MergedTypes,
    TypeNumbering,
    digest,
    given_words,
)

FileBlock = tuple[int, Block]  # which of the files, and a block of it
END = "\n"
_CLOSE = f"{END}\t"
_PROGRAM = "from elmo.train.build_corpus import serve; serve()"
_REQUEST = struct.Struct("<QB")  # bytes of text that follow; whether the block is open
_REPLY = struct.Struct("<Q")


def words_of(data: bytes, *, is_open: bool, tokenize: Tokenizer, split: bool) -> bytes:
    """The words of a block's text; an open block's last sentence has no ``END``."""
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
    if joined.count("\t") != n_words + n_ends or joined.count(END) != n_ends:
        raise DataError(f"tokenizer {tokenize.name}: expected tokens without tab and line break, found one")
    return joined.encode("utf-8", "surrogatepass")


def tokenised(
    blocks: Iterator[FileBlock], *, tokenize: Tokenizer, split: bool, processes: int
) -> Iterator[tuple[FileBlock, bytes]]:
    """Each block with its words; more than one process only for a tokeniser that its name tells."""
    if processes > 1:
        yield from _in_children(blocks, tokenize=tokenize, split=split, processes=processes)
        return
    for of_file, block in blocks:
        words = words_of(block.data, is_open=block.is_open, tokenize=tokenize, split=split)
        yield (of_file, block), words


def _in_children(
    blocks: Iterator[FileBlock], *, tokenize: Tokenizer, split: bool, processes: int
) -> Iterator[tuple[FileBlock, bytes]]:
    """Blocks are dealt in turn and fetched in turn; each child has one, so memory stays bounded.

    Children are plain programs, not ``multiprocessing``: that would run a caller's script once more in each
    of them, or fork a process that has threads.
    """
    with ExitStack() as stack:
        children = [stack.enter_context(_child(tokenize.name, split)) for _ in range(processes)]
        at_work: list[FileBlock | None] = [_send(child, next(blocks, None)) for child in children]
        turn = 0
        while (task := at_work[turn]) is not None:
            words = _receive(children[turn])
            at_work[turn] = _send(children[turn], next(blocks, None))
            yield task, words
            turn = (turn + 1) % processes


@contextmanager
def _child(name: str, split: bool) -> Iterator[subprocess.Popen[bytes]]:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109
    child = subprocess.Popen(  # noqa: S603 -- our own program
        [sys.executable, "-P", "-c", _PROGRAM, name, str(int(split))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
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
            raise _died(child) from error
    return task


def _receive(child: subprocess.Popen[bytes]) -> bytes:
    assert child.stdout is not None  # noqa: S101
    head = child.stdout.read(_REPLY.size)
    size = _REPLY.unpack(head)[0] if len(head) == _REPLY.size else 0
    words = child.stdout.read(size)
    if len(head) < _REPLY.size or len(words) < size:
        raise _died(child)
    return words


def _died(child: subprocess.Popen[bytes]) -> DataError:
    return DataError(
        f"a tokenising process ended early with code {child.wait()}; is memory short? Try one process"
    )


def serve() -> None:
    """What a child does until its input ends: blocks of text on stdin, their words on stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears of it, and ends us
    tokenize, split = tokenizer(sys.argv[1]), sys.argv[2] == "1"
    requests: BinaryIO = sys.stdin.buffer
    while len(head := requests.read(_REQUEST.size)) == _REQUEST.size:
        size, is_open = _REQUEST.unpack(head)
        words = words_of(requests.read(size), is_open=bool(is_open), tokenize=tokenize, split=split)
        sys.stdout.buffer.write(_REPLY.pack(len(words)) + words)
        sys.stdout.buffer.flush()


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
            f"{shown_source(file)}: expected text, found a NUL at byte {n_before + at + 1}: it is binary, "
            "or in another encoding than UTF-8"
        )


def _split_at_space(data: bytes) -> list[bytes]:
    r"""As ``WhitespaceTokenizer`` cuts: at space, tab, ``\r`` and ``\n`` only; empty words mean nothing."""
    if b"\t" in data or b"\r" in data:
        data = data.translate(_AS_SPACE)
    return data.replace(b"\n", b" \n ").split(b" ")


_DROPPED, _TRAIN, _HELDOUT = 0, 1, 2
_CHUNK = 1 << 21  # tokens, types or sentences that are looked at together
_RUN = 64  # sentences that stay together in the held-out part when order matters
_FEW = 5  # sentences held out of a small text
_DEFAULT_SHARE = 0.01
_DEFAULT_TOKENS = 200_000  # more make no better estimate of a loss


@dataclass(frozen=True)
class Selecting:
    """Which sentences to leave out, and which to hold out."""

    heldout: float | int | None  # a share, a number of sentences, or as many as are useful
    deduplicate: bool
    keep_order: bool
    seed: int


def write_files(
    draft: Draft, *, selecting: Selecting, folder: Path, on_progress: OnProgress | None = None
) -> tuple[CorpusSizes, dict[str, str]]:
    """Write the files of the corpus; their sizes and SHA-256 come back."""
    parts = _parts(draft, selecting)
    counts = np.zeros(draft.types.n_types, dtype=np.int64)
    for tokens, part in _chunks(draft, parts):
        np.add.at(counts, tokens[part == _TRAIN], 1)  # bincount would go over all types each time
    counts[0] = counts[EOS]  # each sentence is read from both of its ends
    look_alikes = list(draft.types.look_alikes)
    counts[UNKNOWN] += counts[look_alikes].sum()  # as which they are predicted
    order = _order(draft, counts)
    n_types = len(order) - len(look_alikes)
    ids = np.empty(len(order), dtype="<u4")  # by type number of the draft
    ids[order] = np.arange(len(order), dtype=np.uint32)
    with ExitStack() as stack:
        files = {name: stack.enter_context(_hashed(folder / name)) for name in FILES}
        _write_types(draft, order, files[TYPES], files[TYPE_ENDS])
        files[COUNTS].write(counts[order[:n_types]].astype("<i8"))
        n_done = 0
        for tokens, part in _chunks(draft, parts):
            for name, label in ((TRAIN, _TRAIN), (HELDOUT, _HELDOUT)):
                files[name].write(ids[tokens[part == label]])
            n_done += len(tokens)
            if on_progress is not None:
                size = len(draft.tokens)
                on_progress(BuildProgress("write", n_done, size, size, len(draft.ends)))
    n_sentences = np.bincount(parts, minlength=3)
    sizes = CorpusSizes(
        types=n_types,
        train_words=files[TRAIN].n_bytes // 4 - int(n_sentences[_TRAIN]),
        train_sentences=int(n_sentences[_TRAIN]),
        heldout_words=files[HELDOUT].n_bytes // 4 - int(n_sentences[_HELDOUT]),
        heldout_sentences=int(n_sentences[_HELDOUT]),
        duplicates=int(n_sentences[_DROPPED]),
        repaired_lines=draft.tally.repaired,
        skipped_lines=draft.tally.skipped,
        given_types=draft.n_given,
        look_alikes=len(look_alikes),
    )
    return sizes, {name: file.digest.hexdigest() for name, file in files.items()}


def _order(draft: Draft, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Types of the draft by falling count, of equal ones the oldest first; those given before all others.

    Words that are spelled like a boundary come last, whatever their count: no vocabulary may hold them.
    """
    ages, ranks = draft.types.ages[FIRST_WORD:], -counts[FIRST_WORD:]
    if draft.n_given is not None:
        ranks[ages < draft.n_given] = np.iinfo(np.int64).min  # they are the oldest, in their order
    ranks[[number - FIRST_WORD for number in draft.types.look_alikes]] = 1
    return np.concatenate([np.arange(FIRST_WORD), FIRST_WORD + np.lexsort((ages, ranks))])


class _HashedFile:
    """A file that knows the SHA-256 of what was written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.n_bytes = 0

    def write(self, values: NDArray) -> None:
        data = np.ascontiguousarray(values).view(np.uint8).data
        self.digest.update(data)
        self._file.write(data)
        self.n_bytes += len(data)


@contextmanager
def _hashed(path: Path) -> Iterator[_HashedFile]:
    with path.open("wb") as file:
        yield _HashedFile(file)
        file.flush()
        os.fsync(file.fileno())


def _write_types(draft: Draft, order: NDArray[np.int64], text: _HashedFile, text_ends: _HashedFile) -> None:
    spellings = np.memmap(draft.types.spellings, dtype=np.uint8, mode="r").view(np.ndarray)
    ends = draft.types.ends
    written = 0
    for first in range(0, len(order), _CHUNK // 8):
        chosen = order[first : first + _CHUNK // 8]
        starts = np.where(chosen > 0, ends[chosen - 1], 0)
        lengths = ends[chosen] - starts
        text.write(gathered(spellings, starts, lengths))
        text_ends.write((written + np.cumsum(lengths)).astype("<i8"))
        written += int(lengths.sum())


def _sentence_ranges(draft: Draft, n_sentences: int | None = None) -> Iterator[tuple[int, int]]:
    """First and last sentence of pieces of about a chunk of tokens."""
    n = len(draft.ends) if n_sentences is None else n_sentences
    first = 0
    while first < n:
        start = int(draft.ends[first - 1]) if first else 0
        last = int(np.searchsorted(draft.ends[:n], start + _CHUNK, side="right"))
        last = max(last, first + 1)
        yield first, last
        first = last


def _chunks(draft: Draft, parts: NDArray[np.uint8]) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.uint8]]]:
    """Types of a piece of the draft, and the part to which each token belongs."""
    for first, last in _sentence_ranges(draft):
        start, lengths = _lengths(draft, first, last)
        tokens = draft.types.of_tokens(draft.tokens, start, start + int(lengths.sum()))
        yield tokens, np.repeat(parts[first:last], lengths)


def _lengths(draft: Draft, first: int, last: int) -> tuple[int, NDArray[np.int64]]:
    """The first token of a range of sentences, and their lengths."""
    start = int(draft.ends[first - 1]) if first else 0
    return start, np.diff(draft.ends[first:last], prepend=start)


def _parts(draft: Draft, selecting: Selecting) -> NDArray[np.uint8]:
    """The part of each sentence: dropped, for training, or held out."""
    parts = np.full(len(draft.ends), _TRAIN, dtype=np.uint8)
    parts[draft.n_train :] = _HELDOUT
    if selecting.deduplicate:
        _drop_duplicates(draft, parts)
    if draft.n_train == len(draft.ends):
        _hold_out(draft, parts, selecting)
    if not (parts == _TRAIN).any():
        raise DataError(f"the text holds {draft.n_train} sentences, and none is left to train on")
    return parts


def _drop_duplicates(draft: Draft, parts: NDArray[np.uint8]) -> None:
    """Drop sentences that came before, told by a 64-bit hash of their words and length."""
    hashes = np.empty(draft.n_train, dtype=np.uint64)
    for first, last in _sentence_ranges(draft, draft.n_train):
        start, lengths = _lengths(draft, first, last)
        tokens = draft.types.of_tokens(draft.tokens, start, start + int(lengths.sum()))
        begins = np.cumsum(lengths) - lengths
        places = np.arange(len(tokens)) - np.repeat(begins, lengths)
        # a word's value depends on its place, so that their sum depends on the order
        values = scattered(0, tokens.astype(np.uint64) << np.uint64(32) | places.astype(np.uint64))
        hashes[first:last] = np.add.reduceat(values, begins)
    n_shares = -(-draft.n_train // _CHUNK)  # sorted share by share
    for share in range(n_shares):
        numbers = np.concatenate(
            [
                np.flatnonzero(hashes[first : first + _CHUNK] % np.uint64(n_shares) == share) + first
                for first in range(0, draft.n_train, _CHUNK)
            ]
        )
        found = hashes[numbers]
        order = np.argsort(found, kind="stable")  # equal ones by their place in the text
        is_again = np.zeros(len(order), dtype=bool)
        is_again[1:] = found[order][1:] == found[order][:-1]
        parts[numbers[order[is_again]]] = _DROPPED


def _hold_out(draft: Draft, parts: NDArray[np.uint8], selecting: Selecting) -> None:
    """Mark the sentences whose numbers have the lowest hashes."""
    n = int((parts == _TRAIN).sum())
    wanted = selecting.heldout
    if wanted is None:
        n_heldout = min(max(_FEW, round(_DEFAULT_SHARE * n)), max(1, n // 5))
    else:
        n_heldout = wanted if isinstance(wanted, int) else max(1, round(wanted * n))
    if n_heldout >= n:
        raise DataError(
            f"the text holds {n} sentence{'s' * (n != 1)}, too few to train on and to hold out {n_heldout}; "
            "give more text, or hold out fewer"
        )
    numbers = _lowest(parts, n_heldout, selecting)
    if wanted is None:
        starts = np.where(numbers > 0, draft.ends[numbers - 1], 0)
        n_fit = int(np.searchsorted(np.cumsum(draft.ends[numbers] - starts), _DEFAULT_TOKENS, side="right"))
        numbers = numbers[: max(1, n_fit)]
    parts[numbers] = _HELDOUT


def _lowest(parts: NDArray[np.uint8], n_wanted: int, selecting: Selecting) -> NDArray[np.int64]:
    """The numbers of the ``n_wanted`` sentences with the lowest hashes, lowest first."""
    run = _RUN if selecting.keep_order else 1
    limit = 4.0 * n_wanted + 16 * run  # hashes below it are looked at; most texts need one turn
    while True:
        share = min(1.0, limit / len(parts))
        below = np.uint64(min(int(share * 2**64), 2**64 - 1))
        numbers, hashes = [], []
        for first in range(0, len(parts), _CHUNK):
            found = np.flatnonzero(parts[first : first + _CHUNK] == _TRAIN) + first
            values = scattered(selecting.seed, found // run)
            numbers.append(found[values <= below])
            hashes.append(values[values <= below])
        every = np.concatenate(numbers)
        if len(every) >= n_wanted or share == 1.0:
            return every[np.argsort(np.concatenate(hashes), kind="stable")[:n_wanted]]
        limit *= 4


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``folder`` on leaving, if it has a manifest; else it is gone.

    Only one process fills it at a time, so its name is always the same and a killed run leaves one at most.
    """
    temporary, old, lock = _beside(folder)
    made = [parent for parent in folder.parents if not parent.exists()]  # innermost first
    is_done = False
    try:
        _refuse_other_files(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with hold_lock(lock, subject=folder):
            try:
                _settle(folder)
                temporary.mkdir()
                yield temporary
                if (temporary / MANIFEST).is_file():
                    _move(temporary, folder, old)
                is_done = True
            finally:
                _remove(temporary, old)
    except OSError as error:
        raise cannot_write(folder, error) from error
    finally:
        if not is_done:
            for parent in made:
                with suppress(OSError):
                    parent.rmdir()


def tidy(folder: Path) -> None:
    """Clear away what a killed build left beside ``folder``; what a living one has there is not touched."""
    *_, lock = beside = _beside(folder)
    if any(path.exists() for path in beside):
        # a build is at work, or nobody may write here: a corpus can be read all the same
        with suppress(OutputError, OSError):
            _refuse_other_files(folder)
            with hold_lock(lock, subject=folder):
                _settle(folder)


def _beside(folder: Path) -> tuple[Path, Path, Path]:
    temporary, old, lock = (folder.with_name(f".{folder.name}.{kind}") for kind in ("part", "old", "lock"))
    return temporary, old, lock


def _settle(folder: Path) -> None:
    """Finish a move that was cut short, and remove what else is left; for the holder of the lock only."""
    temporary, old, _ = _beside(folder)
    if old.exists() and not folder.exists() and (temporary / MANIFEST).is_file():
        temporary.rename(folder)  # it was whole before the old one made way for it
        sync(folder.parent)
    _remove(temporary, old)


def _remove(*folders: Path) -> None:
    for left in folders:
        shutil.rmtree(left, ignore_errors=True)


def _refuse_other_files(folder: Path) -> None:
    """Nothing may be lost in the place of a corpus but an older corpus."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise OutputError(f"{format_path(folder)}: expected a folder for the corpus, found something else")
    strange = sorted({path.name for path in folder.iterdir()} - {*FILES, MANIFEST}) if folder.exists() else []
    if strange:
        raise OutputError(
            f"{format_path(folder)}: expected a corpus or a new folder, found {format_path(strange[0])}; name another"
        )


def _move(temporary: Path, folder: Path, old: Path) -> None:
    with (temporary / MANIFEST).open("rb") as file:
        os.fsync(file.fileno())
    sync(temporary)
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    sync(folder.parent)


__all__ = ["BuildProgress", "Corpus", "build", "reopen"]

MAX_SENTENCE = 1000  # words
_FEWEST = 2  # sentences
_MANY_BYTES = 1 << 22  # text for which it pays to start processes
_SCRATCH = ".draft"  # ends the names of files that are gone when the corpus is done


def build(
    inputs: str | Path | Sequence[str | Path],
    folder: str | Path,
    *,
    input_format: InputFormat = "text",
    tokenizer: str | Tokenizer = "auto",
    split: bool | None = None,
    heldout: float | int | None = None,
    heldout_inputs: str | Path | Sequence[str | Path] = (),
    deduplicate: bool = False,
    keep_order: bool = False,
    blank_lines_count: bool = False,
    is_simplified: bool = False,
    max_sentence: int = MAX_SENTENCE,
    errors: ErrorPolicy = "strict",
    vocabulary: GivenVocabulary | None = None,
    seed: int = 0,
    processes: int | None = None,
    on_progress: OnProgress | None = None,
) -> Corpus:
    """Turn files, globs, folders and stdin (``-``) into a corpus at ``folder``; reuse one that fits.

    ``input_format``: raw ``text`` (``split`` cuts its lines into sentences, unless it is False), ``tokens``
    parted by spaces with a sentence on each line, or ``conllu``. A sentence of more than ``max_sentence``
    words, such as a whole text on one line, is cut. The tokeniser for raw text is chosen by its beginning
    (``auto``: ``zh`` for Chinese, ``en`` for all others), or by name.

    Held out is a share of the sentences (``heldout=0.05``), a number of them (``heldout=500``), what other
    files hold (``heldout_inputs``), or by default 1%: at least 5 sentences, if that leaves enough, and about
    200,000 tokens at most. Which ones depends on the ``seed`` and the sentence's number alone. With
    ``keep_order`` they are taken in runs, so that documents stay whole; the order of the text is kept on disk
    in any case. ``deduplicate`` leaves out sentences that came before.

    Blank lines are nothing, or with ``blank_lines_count`` sentences without words (as for WikiText).
    A ``vocabulary`` (a file with one word a line, a ``Vocabulary`` or a list; ``<S>``, ``</S>`` and ``<UNK>``
    must be in it) has its words come first, in its order. ``is_simplified`` keeps Chinese words in simplified
    characters, whichever script they are written in. ``processes`` tokenise raw text; their number
    changes the speed only.

    A folder that was built from the same files (by path, size and time of change) with the same options is
    opened as it is; another corpus there is replaced when the new one is whole.
    """
    folder = Path(folder)
    if isinstance(heldout, float) and heldout.is_integer() and heldout >= 1:
        heldout = int(heldout)  # a command line knows no integers
    files, heldout_files = _expanded(inputs, folder), _expanded(heldout_inputs, folder)
    _check(
        input_format=input_format,
        split=split,
        heldout=heldout,
        has_heldout_files=bool(heldout_files),
        deduplicate=deduplicate,
        blank_lines_count=blank_lines_count,
        max_sentence=max_sentence,
        errors=errors,
    )
    is_text = input_format == "text"
    reading = Reading(
        input_format,
        _tokenizer(tokenizer),
        split=is_text and split is not False,
        errors=errors,
        blank_lines_count=blank_lines_count,
        max_sentence=max_sentence,
        processes=_processes(processes, [*files, *heldout_files]) if isinstance(tokenizer, str) else 1,
        is_simplified=is_simplified,
    )
    given = None if vocabulary is None else given_words(vocabulary)
    if is_simplified:
        check()
        if given is not None and isinstance(vocabulary, str | Path):
            _refuse_unsimplified(given, vocabulary)
    selecting = Selecting(heldout, deduplicate=deduplicate, keep_order=keep_order, seed=seed)
    wanted = _Wanted(
        _options(reading, selecting, given),
        [_fingerprint(file, "train") for file in files]
        + [_fingerprint(file, "heldout") for file in heldout_files],
    )
    tidy(folder)
    if (found := wanted.at(folder)) is not None:
        return found
    with replacing(folder) as temporary:
        if (found := wanted.at(folder, is_told=True)) is not None:  # another process was faster
            return found
        draft = read_draft(
            files, heldout_files, reading=reading, folder=temporary, given=given, on_progress=on_progress
        )
        _refuse_too_little(draft, files, bool(heldout_files))
        sizes, sums = write_files(draft, selecting=selecting, folder=temporary, on_progress=on_progress)
        chosen = draft.tokenizer
        del draft  # its files are mapped
        for path in temporary.glob("*" + _SCRATCH):
            path.unlink()
        manifest = CorpusManifest(wanted.options, wanted.inputs, sizes, sums, chosen)
        (temporary / MANIFEST).write_text(manifest.to_json(), encoding="ascii")
    _log.info("built a corpus of %d words at %s", sizes.train_words, format_path(folder))
    return Corpus.open(folder, verify=False)


def reopen(folder: str | Path) -> Corpus:
    """The corpus at ``folder``, of whatever text it was built; what a killed build left beside it goes."""
    tidy(Path(folder))
    return Corpus.open(folder)


@dataclass(frozen=True)
class _Wanted:
    """What a corpus must have been made of, and how."""

    options: dict[str, Any]
    inputs: list[dict[str, Any]]

    def at(self, folder: Path, *, is_told: bool = False) -> Corpus | None:
        """The corpus at ``folder``, if it is such a one, and sound; why not is told once."""
        if not (folder / MANIFEST).is_file():
            return None
        try:
            found = read_manifest(folder)
            if (found.options, found.inputs) != (self.options, self.inputs):
                if not is_told:
                    what = "the text" if found.options == self.options else "an option"
                    _log.info("%s: %s has changed since it was built; building it again", format_path(folder), what)
                return None
            if any(one["path"] == "-" for one in self.inputs):
                return None  # nobody knows whether stdin holds the same
            corpus = Corpus.open(folder)
        except DataError as error:
            if not is_told:
                _log.warning("%s; building it again", error)
            return None
        _log.info("%s: built before from the same text, used as it is", format_path(folder))
        return corpus


def _expanded(inputs: str | Path | Sequence[str | Path], folder: Path) -> list[Source]:
    """All files of the input; the corpus must not lie among them, or it would be read the next time."""
    paths = [inputs] if isinstance(inputs, str | Path) else inputs
    files = expand([str(path) for path in paths])
    place = folder.resolve()
    for path in map(Path, paths):
        if path.resolve() in (place, *place.parents) and path.is_dir():
            raise OutputError(
                f"{format_path(folder)}: expected a place outside of the input, found it within {format_path(path)}; "
                "name another place, or name the files of the text"
            )
    for file in files:
        if file != "-" and place in file.resolve().parents:
            raise OutputError(
                f"{format_path(folder)}: expected a corpus or a new folder, found {format_path(file.name)} of the input; "
                "name another"
            )
    return files


def _check(
    *,
    input_format: str,
    split: bool | None,
    heldout: float | int | None,
    has_heldout_files: bool,
    deduplicate: bool,
    blank_lines_count: bool,
    max_sentence: int,
    errors: str,
) -> None:
    """Refuse options that are out of range, or contradict each other."""
    if input_format not in INPUT_FORMATS:
        raise ConfigError(
            f"input format: expected one of {', '.join(INPUT_FORMATS)}, found {str(input_format)[:40]!r}"
        )
    if errors not in ERROR_POLICIES:
        raise ConfigError(f"errors: expected one of {', '.join(ERROR_POLICIES)}, found {str(errors)[:40]!r}")
    if split and input_format != "text":
        raise ConfigError(f"splitting into sentences goes with input format text, not with {input_format}")
    is_share = isinstance(heldout, float) and 0 < heldout < 1
    if heldout is not None and not is_share and (not isinstance(heldout, int) or heldout < 0):
        raise ConfigError(
            f"heldout: expected a share between 0 and 1, or a number of sentences, found {heldout}"
        )
    if max_sentence < 1:
        raise ConfigError(f"max_sentence: expected at least 1 word, found {max_sentence}")
    contradictions = {
        "a held-out share and held-out files": heldout is not None and has_heldout_files,
        "counting blank lines and leaving out duplicates": blank_lines_count and deduplicate,
        "counting blank lines and CoNLL-U": blank_lines_count and input_format == "conllu",
    }
    for names, is_so in contradictions.items():
        if is_so:
            raise ConfigError(f"corpus: {names} do not go together; choose one")


def _tokenizer(wanted: str | Tokenizer) -> Tokenizer | None:
    if isinstance(wanted, str):
        return None if wanted == "auto" else tokenizer_by_name(wanted)
    return wanted


def _refuse_unsimplified(given: list[bytes], file: str | Path) -> None:
    for number, word in enumerate(given, start=1):
        text = word.decode("utf-8", "surrogatepass")
        if (found := simplified(text)) != text:
            raise DataError(
                f"{format_path(file)}: expected simplified words, found {text[:40]!r} (word {number}); write "
                f"{found[:40]!r}"
            )


def _processes(wanted: int | None, files: list[Source]) -> int:
    """As many as there are processors, unless there is little to do."""
    if wanted is not None:
        if wanted < 1:
            raise ConfigError(f"processes: expected at least 1, found {wanted}")
        return wanted
    if "-" not in files and sum(file.stat().st_size for file in files if file != "-") < _MANY_BYTES:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _options(reading: Reading, selecting: Selecting, given: list[bytes] | None) -> dict[str, Any]:
    """All that changes the bytes of a corpus, but for its text."""
    options = {**asdict(selecting), **{field.name: getattr(reading, field.name) for field in fields(reading)}}
    tokenize = options.pop("tokenize")
    del options["processes"]
    if not reading.is_simplified:
        del options["is_simplified"]  # as in corpora that were built before there was a choice
    is_cut = reading.input_format == "text"
    name = "auto" if tokenize is None else getattr(tokenize, "name", type(tokenize).__name__)
    options["tokenizer"] = name if is_cut else None
    if given is not None:
        options["vocabulary"] = digest(given)
    return options


def _fingerprint(file: Source, part: str) -> dict[str, Any]:
    if file == "-":
        return {"part": part, "path": "-"}
    try:
        found = file.stat()
    except OSError as error:
        raise DataError(f"{format_path(file)}: cannot be read: {error.strerror}") from error
    path = str(file.absolute()).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return {"part": part, "path": path, "size": found.st_size, "mtime_ns": found.st_mtime_ns}


def _refuse_too_little(draft: Draft, files: list[Source], has_heldout_files: bool) -> None:
    subject = shown_source(files[0]) if len(files) == 1 else f"{len(files)} files"
    n_heldout = len(draft.ends) - draft.n_train
    if draft.n_train == 0:
        raise DataError(f"{subject}: expected text to train on, found no word in it")
    if draft.n_train < _FEWEST:
        raise DataError(
            f"{subject}: expected at least {_FEWEST} sentences to train on, found {draft.n_train}; give more "
            "text, or part it into lines"
        )
    if has_heldout_files and n_heldout == 0:
        raise DataError("the held-out files: expected text, found no word in them")
