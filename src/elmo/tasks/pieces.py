"""Examples in, runs of them out that can be held at a time, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from elmo.tasks.data.examples import Document, Example
from elmo.tasks.task import size

E = TypeVar("E", bound=Example)
EXAMPLES = 512  # enough to find some of like size, which are padded little
TOKENS = 50_000


def pieces(examples: Iterable[E]) -> Iterator[list[E]]:
    """Some hundred examples, fewer where they are long; a document is a piece of its own."""
    piece: list[E] = []
    n_tokens = 0
    for example in examples:
        piece.append(example)
        n_tokens += size(example)
        if len(piece) >= EXAMPLES or n_tokens >= TOKENS or isinstance(example, Document):
            yield piece
            piece, n_tokens = [], 0
    if piece:
        yield piece
