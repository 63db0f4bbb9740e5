"""A draft in, the files of a corpus out: duplicates gone, a part set aside, types in order of frequency.

All of it goes over the draft in pieces of whole sentences. Memory: one byte for each sentence (nine
when duplicates are looked for) and some forty for each type, whatever the number of tokens.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from elmo.errors import DataError
from elmo.train.corpus_folder import COUNTS, FILES, HELDOUT, TRAIN, TYPE_ENDS, TYPES, CorpusSizes, gathered
from elmo.train.draft import BuildProgress, Draft, OnProgress
from elmo.train.scatter import scattered
from elmo.train.word_types import EOS, FIRST_WORD, UNKNOWN

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
