"""Sentences, places of words in them and their vectors in, a few flat arrays out; and back.

Each shard has the entries of its words in order, with the usages of each, so that a word is found without
reading the rest, and no table of all words has to be held.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import accumulate, pairwise
from operator import add
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from elmo.embed.array_file import read_arrays, write_arrays
from elmo.embed.reading import DAMAGE
from elmo.embed.shard import Shard
from elmo.errors import DataError
from elmo.formats.files import shown
from elmo.lexicon.choice import UsedSentence
from elmo.lexicon.usages import Usage, Vectors
from elmo.text.tokens import Tokens

VERSION = 1
_AT_ONCE = 1 << 12  # vectors whose lengths are computed
_WIDEST_GAP = 100  # between two words of a sentence that is shown
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class UsageShard:
    """A run of sentences; spans and ends count through all their tokens."""

    lengths: Ints  # (sentence,): tokens of each
    token_ends: Ints  # (time,): where each token ends in token_bytes
    offsets: Ints  # (time, 2): begin and end in the sentence's text; -1 where tokens were given
    places: Ints  # (sentence, 3): file (an index into files), line from 1, character where the text begins
    spans: Ints  # (usage, 2): first token, and one after the last
    order: Ints  # (usage,): numbers of usages, those of the first entry first
    entry_ends: Ints  # (entry,): where each entry ends in entry_bytes
    usage_ends: Ints  # (entry,): where its usages end in order
    norms: NDArray[np.float32]  # (usage,): lengths of the vectors
    vectors: Vectors  # (usage, width)
    token_bytes: NDArray[np.uint8]
    entry_bytes: NDArray[np.uint8]  # entries in UTF-8, sorted as bytes
    files: tuple[str, ...] = ()

    @classmethod
    def of(cls, sentences: Sequence[UsedSentence], vectors: Vectors) -> UsageShard:
        """Sentences and the vectors of their usages, put together."""
        text = Shard.of(sentences, np.zeros((0, 0), np.float32), first=0)  # its arrays of text are ours, too
        begins = np.cumsum(text.lengths) - text.lengths
        spans = [
            (int(first) + begin, int(first) + end)
            for sentence, first in zip(sentences, begins, strict=True)
            for begin, end in sentence.spans
        ]
        entries = [_raw(entry) for sentence in sentences for entry in sentence.entries]
        order = sorted(range(len(entries)), key=lambda k: (entries[k], k))
        names = sorted(set(entries))
        numbers = {name: number for number, name in enumerate(names)}
        counts = np.bincount([numbers[name] for name in entries], minlength=len(names)).astype(np.int64)
        return cls(
            lengths=text.lengths, token_ends=text.token_ends, offsets=text.offsets, places=text.places,
            spans=np.array(spans, dtype=np.int64).reshape(-1, 2),
            order=np.array(order, dtype=np.int64),
            entry_ends=np.cumsum([len(name) for name in names], dtype=np.int64),
            usage_ends=np.cumsum(counts, dtype=np.int64),
            norms=_lengths(vectors),
            vectors=vectors,
            token_bytes=text.token_bytes,
            entry_bytes=np.frombuffer(b"".join(names), dtype=np.uint8),
            files=text.files,
        )  # fmt: skip

    def write(self, file: BinaryIO) -> None:
        """As a safetensors file."""
        write_arrays(
            [(name, np.ascontiguousarray(getattr(self, name))) for name in ARRAYS],
            {"version": VERSION, "files": list(self.files)},
            file,
        )

    @classmethod
    def read(cls, path: Path) -> UsageShard:
        """Map a file; vectors and text come from the disk as they are used."""
        try:
            arrays, description = read_arrays(path, is_mapped=True)
            if description["version"] != VERSION or set(arrays) != set(ARRAYS):
                raise ValueError("not an index of this version")
            shard = cls(**arrays, files=tuple(str(name) for name in description["files"]))
            shard._check()
        except DAMAGE as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise DataError(f"{shown(path)}: cannot be read as part of an index: {reason}") from error
        return shard

    def __len__(self) -> int:
        return len(self.vectors)

    def entries(self) -> Iterator[tuple[str, int]]:
        """Every entry, sorted by its bytes, with the number of its usages."""
        raw, begin, before = self.entry_bytes.tobytes(), 0, 0
        for end, last in zip(self.entry_ends.tolist(), self.usage_ends.tolist(), strict=True):
            yield raw[begin:end].decode("utf-8", "surrogatepass"), last - before
            begin, before = end, last

    def usages_of(self, entry: str) -> Ints:
        """The numbers of an entry's usages, in the order of the text."""
        wanted = _raw(entry)
        place = bisect_left(range(len(self.entry_ends)), wanted, key=self._entry)
        if place == len(self.entry_ends) or self._entry(place) != wanted:
            return np.zeros(0, dtype=np.int64)
        begin = int(self.usage_ends[place - 1]) if place else 0
        return np.sort(self.order[begin : int(self.usage_ends[place])])

    def usage(self, number: int) -> Usage:
        """Where a usage stands, with its sentence."""
        begin, end = (int(at) for at in self.spans[number])
        sentence = int(np.searchsorted(self._sentence_ends, begin, side="right"))
        last = int(self._sentence_ends[sentence])
        first = last - int(self.lengths[sentence])
        tokens = self._tokens(first, last)
        file, line, _ = (int(value) for value in self.places[sentence])
        return Usage(tokens, begin - first, end - first, f"{self.files[file]}:{line}")

    @cached_property
    def _sentence_ends(self) -> Ints:
        return np.cumsum(self.lengths)

    def _tokens(self, first: int, last: int) -> Tokens:
        """A sentence; its text is as it was, but for the kind of its white space."""
        ends = self.token_ends[first:last].tolist()
        begin = int(self.token_ends[first - 1]) if first else 0
        raw = self.token_bytes[begin : ends[-1] if ends else begin].tobytes()
        cuts = [0, *(end - begin for end in ends)]
        tokens = [raw[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(cuts)]
        begins, stops = (self.offsets[first:last, side].tolist() for side in (0, 1))
        if not begins or begins[0] < 0:
            return Tokens.given(tokens)
        between = zip(begins[1:], stops, strict=False)
        gaps = [0, *(min(max(begin - stop, 0), _WIDEST_GAP) for begin, stop in between)]
        text = "".join([" " * gap + token for gap, token in zip(gaps, tokens, strict=True)])
        last_stops = accumulate(map(add, gaps, map(len, tokens)))
        places = tuple((stop - len(token), stop) for token, stop in zip(tokens, last_stops, strict=True))
        return Tokens(text, tuple(tokens), places)

    def _entry(self, place: int) -> bytes:
        begin = int(self.entry_ends[place - 1]) if place else 0
        return self.entry_bytes[begin : int(self.entry_ends[place])].tobytes()

    def _check(self) -> None:
        """``ValueError`` where the arrays do not fit together, so that nothing is looked up outside them."""
        n, n_tokens, n_sentences = len(self.vectors), len(self.token_ends), len(self.lengths)
        shapes = {
            "offsets": (n_tokens, 2), "places": (n_sentences, 3), "spans": (n, 2), "order": (n,),
            "norms": (n,), "usage_ends": self.entry_ends.shape, "vectors": (n, *self.vectors.shape[1:2]),
        }  # fmt: skip
        wrong = [name for name, shape in shapes.items() if getattr(self, name).shape != shape]
        rising = {
            "token_ends": len(self.token_bytes), "entry_ends": len(self.entry_bytes), "usage_ends": n,
        }  # fmt: skip
        for name, last in rising.items():
            ends = getattr(self, name)
            if (
                ends.ndim != 1
                or (np.diff(ends, prepend=0) < 0).any()
                or (ends[-1] if len(ends) else 0) != last
            ):
                wrong.append(name)
        kinds = {"norms": "f", "vectors": "f", "token_bytes": "u", "entry_bytes": "u"}
        wrong += [name for name in ARRAYS if getattr(self, name).dtype.kind != kinds.get(name, "i")]
        if wrong:
            raise ValueError(f"its {', '.join(wrong)} do not fit the rest")
        inside = {"spans": n_tokens + 1, "order": n}
        wrong += [
            name
            for name, limit in inside.items()
            if n and not (getattr(self, name).min() >= 0 and getattr(self, name).max() < limit)
        ]
        if (self.spans[:, 0] >= self.spans[:, 1]).any():
            wrong.append("spans")
        if (self.lengths < 0).any() or int(self.lengths.sum()) != n_tokens:
            wrong.append("lengths")
        if n_sentences and not 0 <= self.places[:, 0].min() <= self.places[:, 0].max() < len(self.files):
            wrong.append("places")
        if wrong:
            raise ValueError(f"its {', '.join(dict.fromkeys(wrong))} do not fit the rest")


ARRAYS = tuple(field.name for field in fields(UsageShard) if field.name != "files")  # widest items first


def _lengths(vectors: Vectors) -> NDArray[np.float32]:
    """Of the vectors (usage,), summed in float64, some at a time: a wide copy of all would be a shard's size
    many times over.
    """
    found = np.empty(len(vectors), dtype=np.float32)
    for begin in range(0, len(vectors), _AT_ONCE):
        wide = vectors[begin : begin + _AT_ONCE].astype(np.float64)
        found[begin : begin + _AT_ONCE] = np.sqrt(np.einsum("uw,uw->u", wide, wide))
    return found


def _raw(entry: str) -> bytes:
    return entry.encode("utf-8", "surrogatepass")
