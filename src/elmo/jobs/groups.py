"""Split the sentences of a job into groups, one per shard.

The end of a group depends only on the sentences, never on when a job was interrupted, so a resumed job writes
the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from elmo.engine.batches import MAX_TOKENS
from elmo.errors import SentenceTooLongError
from elmo.text.reader import Sentence

MAX_CHARACTERS = 1 << 26  # per group, because the text of a group is in memory
MAX_SENTENCES = 1 << 18  # per group, because empty lines are sentences without tokens


@dataclass(frozen=True)
class Group:
    """The sentences of one shard.

    Attributes:
        index: Index of the shard.
        first: Index of the first sentence.
        sentences: The sentences.
        n_tokens: Number of tokens.
        is_last: Whether this is the last group of the job.
        digest: SHA-256 of all sentences of the job up to the end of this group.
    """

    index: int
    first: int
    sentences: tuple[Sentence, ...]
    n_tokens: int
    is_last: bool
    digest: str


def split_groups(sentences: Iterable[Sentence], *, max_tokens: int) -> Iterator[Group]:
    """Yield groups of up to ``max_tokens`` tokens; a longer sentence is a group by itself.

    There is always at least one group, even without sentences.
    """
    digest = hashlib.sha256()
    index, first, n_tokens, n_characters = 0, 0, 0, 0
    group: list[Sentence] = []
    for sentence in sentences:
        check_length(sentence)
        length = len(sentence.tokens)
        characters = sum(map(len, sentence.tokens.tokens))
        is_full = n_tokens + length > max_tokens or n_characters + characters > MAX_CHARACTERS
        if group and (is_full or len(group) == MAX_SENTENCES):
            yield Group(index, first, tuple(group), n_tokens, is_last=False, digest=digest.hexdigest())
            index, first, n_tokens, n_characters, group = index + 1, first + len(group), 0, 0, []
        group.append(sentence)
        n_tokens += length
        n_characters += characters
        digest.update(_serialize(sentence))
    yield Group(index, first, tuple(group), n_tokens, is_last=True, digest=digest.hexdigest())


def _serialize(sentence: Sentence) -> bytes:
    """Return everything that the output stores about a sentence, as a line of JSON."""
    tokens = sentence.tokens
    fields = [tokens.tokens, tokens.offsets, sentence.path, sentence.line, sentence.start]
    return json.dumps(fields).encode() + b"\n"


def check_length(sentence: Sentence) -> None:
    """Raise a ``SentenceTooLongError`` if a sentence has more than ``MAX_TOKENS`` tokens."""
    if len(sentence.tokens) > MAX_TOKENS:
        raise SentenceTooLongError(
            f"{sentence.place}: a sentence must have at most {MAX_TOKENS} tokens; found {len(sentence.tokens)}"
        )
