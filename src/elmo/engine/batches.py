"""Split sentences into batches for the network, with an optional progress bar.

Memory use depends on the size of a batch, not on the size of the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import TypeVar

BATCH_TOKENS = 1 << 14  # tokens of a batch, boundaries included; a longer sentence is a batch by itself
MAX_TOKENS = 100_000  # tokens of a sentence

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


def split_lengths(lengths: Sequence[int], *, max_tokens: int) -> Iterator[slice]:
    """Split sentences with these lengths into slices of up to ``max_tokens`` tokens, or of one longer sentence."""
    begin, n_tokens = 0, 0
    for k, length in enumerate(lengths):
        if k > begin and n_tokens + length > max_tokens:
            yield slice(begin, k)
            begin, n_tokens = k, 0
        n_tokens += length
    if begin < len(lengths):
        yield slice(begin, len(lengths))


def track_progress(steps: Sequence[T], description: str, *, is_shown: bool) -> Iterable[T]:
    """Iterate over ``steps`` with a progress bar on stderr, if ``is_shown``."""
    if not is_shown:
        return steps
    from rich.console import Console
    from rich.progress import track

    return track(steps, description=description, console=Console(stderr=True))  # stdout is for results
