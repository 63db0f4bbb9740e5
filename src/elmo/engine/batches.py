"""Split sentences into batches for the network and into groups for the shards of a job.

Memory use depends on the size of a batch or group, not on the size of the text. The end of a group depends
only on the sentences, never on when a job was interrupted, so a resumed job writes the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import TypeVar

from elmo.errors import SentenceTooLongError
from elmo.text.reader import Sentence

BATCH_TOKENS = 1 << 14  # tokens of a batch, boundaries included; a longer sentence is a batch by itself
MAX_TOKENS = 100_000  # tokens of a sentence
MAX_CHARACTERS = 1 << 26  # characters of a group, whose text is held in memory
MAX_SENTENCES = 1 << 18  # sentences of a group: empty lines are sentences too

S = TypeVar("S", bound=Sized)
T = TypeVar("T")


def split_batches(
    sentences: Iterable[S], *, batch_size: int | None, max_tokens: int = BATCH_TOKENS
) -> Iterator[list[S]]:
    """Yield lists of ``batch_size`` sentences or, if it is None, of up to ``max_tokens`` tokens."""
    batch: list[S] = []
    n_tokens = 0
    for sentence in sentences:
        size = len(sentence) + 2  # with its boundaries
        if batch and batch_size is None and n_tokens + size > max_tokens:
            yield batch
            batch, n_tokens = [], 0
        batch.append(sentence)
        n_tokens += size
        if len(batch) == batch_size:  # before the next sentence is read, which a user may still be typing
            yield batch
            batch, n_tokens = [], 0
    if batch:
        yield batch


@dataclass(frozen=True)
class Group:
    """The sentences of one shard."""

    index: int
    first: int  # index of its first sentence
    sentences: tuple[Sentence, ...]
    n_tokens: int
    is_last: bool
    digest: str  # SHA-256 of all sentences up to the end of this group


def split_groups(sentences: Iterable[Sentence], *, max_tokens: int) -> Iterator[Group]:
    """Yield at least one group, each of up to ``max_tokens`` tokens or of one longer sentence."""
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
    """Everything that the output stores about a sentence, as one line."""
    tokens = sentence.tokens
    fields = [tokens.tokens, tokens.offsets, sentence.path, sentence.line, sentence.start]
    return json.dumps(fields).encode() + b"\n"


def check_length(sentence: Sentence) -> None:
    """Raise a ``SentenceTooLongError`` if a sentence has more than ``MAX_TOKENS`` tokens."""
    if len(sentence.tokens) > MAX_TOKENS:
        raise SentenceTooLongError(
            f"{sentence.place}: this sentence has {len(sentence.tokens)} tokens, but the limit is "
            f"{MAX_TOKENS}; split it"
        )


def track_progress(steps: Sequence[T], description: str, *, is_shown: bool) -> Iterable[T]:
    """Iterate over ``steps`` with a progress bar on stderr, if ``is_shown``."""
    if not is_shown:
        return steps
    from rich.console import Console
    from rich.progress import track

    return track(steps, description=description, console=Console(stderr=True))  # stdout is for results
