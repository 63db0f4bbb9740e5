"""Lines of a CoNLL-U file in, the words of each sentence out, placed in its ``# text`` where they fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from elmo.errors import DataError
from elmo.text.lines import Line
from elmo.text.tokens import Tokens

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
