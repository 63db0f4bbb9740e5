"""A stream of sentences in, groups of a shard's size out.

Where a group ends depends on the sentences alone, never on when a job was stopped: that is what lets a job
go on to the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from elmo.errors import SentenceTooLongError
from elmo.text.source import Sentence

MAX_TOKENS = 100_000  # of one sentence
MAX_CHARACTERS = 1 << 26  # of one group's tokens: they are held in memory, however few they are
MAX_SENTENCES = 1 << 18  # of one group: empty lines are sentences too


@dataclass(frozen=True)
class Group:
    """The sentences of one shard."""

    index: int
    first: int  # index of its first sentence
    sentences: tuple[Sentence, ...]
    n_tokens: int
    is_last: bool
    digest: str  # SHA-256 of all sentences up to the last of this group


def groups(sentences: Iterable[Sentence], *, max_tokens: int) -> Iterator[Group]:
    """At least one group, each of at most ``max_tokens`` tokens or of one longer sentence."""
    digest = hashlib.sha256()
    index, first, n_tokens, n_characters = 0, 0, 0, 0
    held: list[Sentence] = []
    for sentence in sentences:
        check_length(sentence)
        length = len(sentence.tokens)
        characters = sum(map(len, sentence.tokens.tokens))
        is_full = n_tokens + length > max_tokens or n_characters + characters > MAX_CHARACTERS
        if held and (is_full or len(held) == MAX_SENTENCES):
            yield Group(index, first, tuple(held), n_tokens, is_last=False, digest=digest.hexdigest())
            index, first, n_tokens, n_characters, held = index + 1, first + len(held), 0, 0, []
        held.append(sentence)
        n_tokens += length
        n_characters += characters
        digest.update(_line(sentence))
    yield Group(index, first, tuple(held), n_tokens, is_last=True, digest=digest.hexdigest())


def check_length(sentence: Sentence) -> None:
    """Refuse a sentence whose vectors would not fit."""
    if len(sentence.tokens) > MAX_TOKENS:
        raise SentenceTooLongError(
            f"{sentence.place}: this sentence has {len(sentence.tokens)} tokens, but the limit is "
            f"{MAX_TOKENS}; split it"
        )


def _line(sentence: Sentence) -> bytes:
    """All that the output keeps of a sentence, as one line."""
    tokens = sentence.tokens
    return (
        json.dumps([tokens.tokens, tokens.offsets, sentence.path, sentence.line, sentence.start]).encode()
        + b"\n"
    )
