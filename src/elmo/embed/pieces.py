"""Sentences in, as many of them at a time as the network takes, out: memory is theirs, not the text's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

PIECE_TOKENS = 1 << 14  # read at once, boundaries included, but for one longer sentence

T = TypeVar("T", bound=Sized)


def pieces(
    sentences: Iterable[T], *, batch_size: int | None, max_tokens: int = PIECE_TOKENS
) -> Iterator[list[T]]:
    """In their order: ``batch_size`` sentences at a time or, by default, as many as ``max_tokens`` hold."""
    held: list[T] = []
    n_tokens = 0
    for sentence in sentences:
        size = len(sentence) + 2  # its boundaries are read as well
        if held and batch_size is None and n_tokens + size > max_tokens:
            yield held
            held, n_tokens = [], 0
        held.append(sentence)
        n_tokens += size
        if len(held) == batch_size:  # at once: the next sentence may still have to be typed
            yield held
            held, n_tokens = [], 0
    if held:
        yield held
