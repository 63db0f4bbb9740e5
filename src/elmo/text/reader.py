"""Paths in, tokenised sentences with their places out: what the shell and training read.

Lines of a CoNLL-U file in, the words of each sentence out, placed in its ``# text`` where they fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

from elmo.errors import ConfigError, DataError
from elmo.text.lines import ErrorPolicy, Line, Source, Tally, expand, read_lines, shown
from elmo.text.sentences import split_sentences
from elmo.text.tokenizers import Tokenizer, Tokens, WhitespaceTokenizer

__all__ = [
    "ErrorPolicy",
    "InputFormat",
    "Line",
    "Sentence",
    "Source",
    "Tally",
    "expand",
    "read_lines",
    "read_sentences",
    "with_a_word",
]

InputFormat = Literal["text", "tokens", "conllu"]
INPUT_FORMATS = ("text", "tokens", "conllu")


@dataclass(frozen=True)
class Sentence:
    """A sentence and where it came from."""

    tokens: Tokens
    path: str  # as messages show it
    line: int  # from 1; of a CoNLL-U sentence, that of its first word
    start: int = 0  # the character of the line where ``tokens.text`` begins

    @property
    def place(self) -> str:
        """``file:line``, for messages."""
        return f"{self.path}:{self.line}"

    def __len__(self) -> int:
        """How many tokens it has."""
        return len(self.tokens)


def read_sentences(
    paths: Sequence[str | Path],
    *,
    tokenizer: Tokenizer,
    input_format: InputFormat = "text",
    split: bool = False,
    errors: ErrorPolicy = "strict",
    tally: Tally | None = None,
) -> Iterator[Sentence]:
    """The sentences of files, globs, folders and stdin, in order.

    ``text``: each line is a sentence, or with ``split`` as many as it holds; ``tokens``: each line is a
    sentence, parted as ``WhitespaceTokenizer`` parts it; ``conllu``: the words of CoNLL-U files. An
    empty line of text or tokens gives a sentence without tokens: nothing is dropped. Paths are looked up
    at once, so that a typo is known before work begins.
    """
    if input_format not in INPUT_FORMATS:
        raise ConfigError(
            f"input format: expected one of {', '.join(INPUT_FORMATS)}, found {str(input_format)[:40]!r}"
        )
    if split and input_format != "text":
        raise ConfigError(f"splitting into sentences goes with input format text, not with {input_format}")
    files = expand([str(path) for path in paths])
    # Policies are checked here too: the first line may be read much later.
    per_file = [read_lines(file, errors=errors, tally=tally) for file in files]
    return _sentences(per_file, tokenizer=tokenizer, input_format=input_format, split=split)


def with_a_word(sentences: Iterable[Sentence], *, named: Sequence[str | Path]) -> Iterator[Sentence]:
    """The same sentences; ``DataError`` at once when none of them has a word. ``named`` is their text."""
    rest = iter(sentences)
    begin: list[Sentence] = []
    for sentence in rest:
        begin.append(sentence)
        if len(sentence):
            return chain(begin, rest)
    texts = ", ".join(map(shown, named))
    raise DataError(f"{texts[:200]}: expected text, found no word in it")


def _sentences(
    per_file: Iterable[Iterator[Line]], *, tokenizer: Tokenizer, input_format: InputFormat, split: bool
) -> Iterator[Sentence]:
    for lines in per_file:
        if input_format == "conllu":
            for found in read_conllu(lines):
                yield Sentence(found.tokens, found.path, found.line)
        elif input_format == "tokens":
            by_space = WhitespaceTokenizer()
            for line in lines:
                yield Sentence(by_space(line.text), line.path, line.number)
        else:
            for line in lines:
                yield from _of_text(line, tokenizer=tokenizer, split=split)


def _of_text(line: Line, *, tokenizer: Tokenizer, split: bool) -> Iterator[Sentence]:
    spans = split_sentences(line.text, language=tokenizer.name) if split else []
    for start, end in spans or [(0, len(line.text))]:
        yield Sentence(tokenizer(line.text[start:end]), line.path, line.number, start)


_N_COLUMNS = 10
_NO_WORD = re.compile(r"[0-9]+-[0-9]+|[0-9]+\.[0-9]+")  # a range that words spell out, or an empty node
_TEXT = re.compile(r"#\s*text\s*=\s*(.*)", re.DOTALL)
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class ConlluSentence:
    """One sentence and where its words begin."""

    tokens: Tokens
    path: str
    line: int


@dataclass
class _Block:
    """A sentence as its lines come in."""

    text: str | None = None
    words: list[str] = field(default_factory=list)
    first: Line | None = None


def read_conllu(lines: Iterable[Line]) -> Iterator[ConlluSentence]:
    """The sentences of one file; blocks without a word (comments only) are none."""
    block = _Block()
    for line in lines:
        if not line.text.strip(" \t"):
            yield from _sentence(block)
            block = _Block()
        elif line.text.startswith("#"):
            if match := _TEXT.match(line.text):
                block.text = match[1]
        else:
            _add_word(block, line)
    yield from _sentence(block)


def _add_word(block: _Block, line: Line) -> None:
    place = f"{line.path}:{line.number}"
    columns = line.text.split("\t")
    if len(columns) != _N_COLUMNS:
        raise DataError(f"{place}: expected {_N_COLUMNS} columns parted by tabs, found {len(columns)}")
    number, form = columns[:2]
    block.first = block.first or line
    if _NO_WORD.fullmatch(number):
        return
    if number != str(len(block.words) + 1):
        raise DataError(f"{place}: expected word {len(block.words) + 1}, found id {number[:20]!r}")
    if not form:
        raise DataError(f"{place}: expected a form in column 2, found nothing")
    block.words.append(form)


def _sentence(block: _Block) -> Iterator[ConlluSentence]:
    if block.first is None or not block.words:
        return
    places = None if block.text is None else align(block.words, block.text)
    if block.text is None or places is None:
        tokens = Tokens(block.text, tuple(block.words), None)
    else:
        tokens = Tokens(block.text, tuple(block.words), places)
    yield ConlluSentence(tokens, block.first.path, block.first.number)


def align(words: Sequence[str], text: str) -> tuple[tuple[int, int], ...] | None:
    """Where each word stands in ``text``; None when they do not spell it, white space between them aside."""
    places: list[tuple[int, int]] = []
    at = 0
    for word in words:
        if not text.startswith(word, at):
            at = _SPACE.match(text, at).end()  # pyright: ignore[reportOptionalMemberAccess] -- \s* always matches
            if not text.startswith(word, at):
                return None
        places.append((at, at + len(word)))
        at += len(word)
    return tuple(places) if not text[at:].strip() else None
