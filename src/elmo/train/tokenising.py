"""Blocks of raw text in, their words out, in the same order: in this process, or in several beside it.

A block's words are written one after another, each followed by a tab, with ``END`` after each sentence: no
tokeniser leaves a tab or a line break inside a token.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO

from elmo.errors import DataError
from elmo.text.blocks import Block
from elmo.text.sentences import split_sentences
from elmo.text.tokens import Tokenizer, tokenizer

FileBlock = tuple[int, Block]  # which of the files, and a block of it
END = "\n"
_CLOSE = f"{END}\t"
_PROGRAM = "from elmo.train.tokenising import serve; serve()"
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
