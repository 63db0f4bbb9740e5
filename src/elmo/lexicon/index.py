"""Sentences, places of words in them and their vectors in, a few flat arrays out; and back.

Each shard has the entries of its words in order, with the usages of each, so that a word is found without
reading the rest, and no table of all words has to be held.

The folder of an index in, the usages of a word and the nearest usages of a vector out.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError, ElmoError
from elmo.formats.load import bundled_name
from elmo.jobs.plan import OutputFiles, read_manifest
from elmo.jobs.reader import DAMAGE
from elmo.jobs.run import fingerprint_now
from elmo.jobs.shard import Shard
from elmo.lexicon.search import unit_rows
from elmo.lexicon.usages import Key, Usage, Usages, UsedSentence, Vectors, entry_key_of, entry_of
from elmo.storage.files import read_json, shown
from elmo.storage.tensors import read_arrays, write_arrays
from elmo.text.lines import unescaped
from elmo.text.reader import read_lines
from elmo.text.tokenizers import Tokens

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo


SHARD_VERSION = 1
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
            {"version": SHARD_VERSION, "files": list(self.files)},
            file,
        )

    @classmethod
    def read(cls, path: Path) -> UsageShard:
        """Map a file; vectors and text come from the disk as they are used."""
        try:
            arrays, description = read_arrays(path, is_mapped=True)
            if description["version"] != SHARD_VERSION or set(arrays) != set(ARRAYS):
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


VERSION = 1
MANIFEST, SHARDS, WORDS = "index.json", "usages.safetensors", "words.tsv"
_LIMIT = 1 << 24  # bytes of index.json
_OPEN = 128  # shards at a time
_KINDS: dict[str, Any] = {
    "model": str, "tokenizer": str, "layers": (str, int), "start": str, "keep_case": bool,
    "is_simplified": bool, "width": int, "dtype": str, "sentences": int, "tokens": int, "words": int,
    "usages": int, "shards": list,
}  # fmt: skip


@dataclass(frozen=True)
class Neighbour:
    """A usage near another, and how near: their cosine."""

    usage: Usage
    similarity: float
    number: int  # in the index


class Index:
    """Usages of words with their vectors, on disk; only what is looked at is read."""

    def __init__(self, folder: str | Path) -> None:
        """Open what ``elmo index`` wrote."""
        self.folder = Path(folder)
        values = _description(self.folder)
        self.model: str = values["model"]  # its fingerprint
        self.tokenizer: str = values["tokenizer"]
        self.layers: Any = values["layers"]
        self.start: Any = values["start"]
        self.width: int = values["width"]
        self.n_sentences: int = values["sentences"]  # of the text
        self.n_tokens: int = values["tokens"]  # of the text
        self.n_words: int = values["words"]
        self.key: Key = entry_key_of(is_simplified=values["is_simplified"], keep_case=values["keep_case"])
        records = read_manifest(OutputFiles(self.folder / SHARDS).manifest).shards
        self._sizes: list[int] = values["shards"]
        self._files = [self.folder / record.file for record in records]
        self._ends = np.cumsum(self._sizes)
        self.digest = hashlib.sha256("".join(record.sha256 for record in records).encode()).hexdigest()
        missing = [path for path in self._files if not path.is_file()]
        if missing or len(self._files) != len(self._sizes) or len(self) != values["usages"]:
            raise DataError(
                f"{shown(self.folder)}: expected {len(self._sizes)} shards of {values['usages']:,} usages, "
                "found others: a part of it is missing; give the same elmo index command again"
            )
        # mapped as they are used, and not too many: each is an open file
        self._shard = lru_cache(maxsize=_OPEN)(self._read_shard)

    def _read_shard(self, number: int) -> UsageShard:
        shard = UsageShard.read(self._files[number])
        if shard.vectors.shape != (self._sizes[number], self.width):
            raise DataError(
                f"{shown(self._files[number])}: expected {self._sizes[number]:,} vectors of width "
                f"{self.width}, found {shard.vectors.shape}; give the same elmo index command again"
            )
        return shard

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __repr__(self) -> str:
        return f"Index({len(self):,} usages of {self.n_words:,} words, {self.width} wide)"

    @cached_property
    def words(self) -> dict[str, tuple[int, int]]:
        """Every word with its usages in the index and its occurrences in the text."""
        found: dict[str, tuple[int, int]] = {}
        for line in read_lines(self.folder / WORDS):
            if line.number == 1:
                continue
            try:
                word, usages, occurrences = line.text.split("\t")
                found[unescaped(word)] = int(usages), int(occurrences)
            except ValueError as error:
                raise DataError(
                    f"{line.path}:{line.number}: expected a word and two numbers, found {line.text[:80]!r}"
                ) from error
        return found

    def check(self, elmo: Elmo) -> None:
        """Refuse a model whose vectors are not those of this index."""
        if fingerprint_now(elmo, start=self.start) == self.model:
            return
        name = bundled_name(self.model, with_warm=self.start == "warm")
        other = "give that one" if name is None else f"the bundled {name}: give --model {name}"
        raise ConfigError(
            f"{shown(self.folder)}: this index was made with another model{';' if name is None else ','} "
            f"{other}, or make an index with yours"
        )

    def usage(self, number: int) -> Usage:
        """The usage of a number in 0..len(index) - 1."""
        shard, place = self._place(number)
        try:
            return shard.usage(place)
        except UnicodeDecodeError as error:
            raise DataError(f"{shown(self.folder)}: its text is damaged; make the index again") from error

    def vectors(self, numbers: Sequence[int] | NDArray[np.int64]) -> Vectors:
        """Their vectors (usage, width), in float32."""
        rows = np.empty((len(numbers), self.width), dtype=np.float32)
        for k, number in enumerate(numbers):
            shard, place = self._place(int(number))
            rows[k] = shard.vectors[place]
        return rows

    def numbers(self, word: str) -> NDArray[np.int64]:
        """The numbers of a word's usages, in the order of the text; none for a word that is not there."""
        entry = entry_of(word, self.key)
        found = [shard.usages_of(entry) + first for shard, first in self._shards()]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def usages(self, word: str, *, limit: int | None = None, seed: int = 0) -> Usages:
        """A word's usages with their vectors, in the order of the text; of more than ``limit``, a sample."""
        numbers = self.numbers(word)
        if limit is not None and len(numbers) > limit:
            numbers = np.sort(np.random.default_rng(seed).choice(numbers, limit, replace=False))
        return Usages(tuple(self.usage(int(number)) for number in numbers), self.vectors(numbers))

    def nearest(
        self,
        queries: Vectors,
        k: int = 10,
        *,
        among: NDArray[np.int64] | None = None,
        left_out: NDArray[np.int64] | None = None,
    ) -> list[list[Neighbour]]:
        """The ``k`` usages nearest to each query (query, width), best first: every usage is looked at.

        Only those whose numbers are ``among``, if given; those that are ``left_out`` do not count.
        """
        if k < 1:
            raise ConfigError(f"k must be at least 1, found {k}")
        if queries.ndim != 2 or queries.shape[1] != self.width:
            raise DataError(f"expected queries (query, {self.width}), found shape {queries.shape}")
        from elmo.lexicon.search import nearest

        blocks = self._blocks(left_out) if among is None else self._some(among)
        rows = nearest(queries, blocks, min(k, max(len(self), 1))).numbers
        if among is not None and len(among):
            rows = np.where(rows < 0, -1, among[rows])
        return [self.measured(query, row) for query, row in zip(queries, rows, strict=True)]

    def measured(self, query: Vectors, numbers: NDArray[np.int64]) -> list[Neighbour]:
        """Usages with their cosine to one query, best first; numbers below 0 stand for nothing."""
        there = numbers[numbers >= 0]
        # Once more, each row by itself: a product's last bits would depend on what else was looked for.
        cosines = (unit_rows(self.vectors(there)) * unit_rows(query[None])).sum(axis=1).clip(-1, 1)
        pairs = sorted(zip(cosines.tolist(), there.tolist(), strict=True), key=lambda one: (-one[0], one[1]))
        return [Neighbour(self.usage(number), cosine, number) for cosine, number in pairs]

    def _blocks(self, left_out: NDArray[np.int64] | None) -> Iterator[Any]:
        from elmo.lexicon.search import Block

        for shard, first in self._shards():
            mask = None
            if left_out is not None:
                mask = np.zeros(len(shard), dtype=bool)
                mask[left_out[(left_out >= first) & (left_out < first + len(shard))] - first] = True
            yield Block(first, shard.vectors, shard.norms, mask)

    def _some(self, numbers: NDArray[np.int64]) -> Iterator[Any]:
        """These usages only, some at a time; a block's first is a place in ``numbers``."""
        from elmo.lexicon.search import BLOCK_ROWS, Block

        for begin in range(0, len(numbers), BLOCK_ROWS):
            rows = self.vectors(numbers[begin : begin + BLOCK_ROWS])
            yield Block(begin, rows, np.linalg.norm(rows, axis=1))

    def _shards(self) -> Iterator[tuple[UsageShard, int]]:
        """Each with the number of its first usage."""
        for number, end in enumerate(self._ends.tolist()):
            yield self._shard(number), end - self._sizes[number]

    def _place(self, number: int) -> tuple[UsageShard, int]:
        if not 0 <= number < len(self):
            raise DataError(f"expected the number of a usage in 0..{len(self) - 1}, found {number}")
        k = int(np.searchsorted(self._ends, number, side="right"))
        return self._shard(k), number - int(self._ends[k]) + self._sizes[k]


def _description(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not folder.is_dir():
        raise DataError(f"{shown(folder)}: no such folder; make an index with elmo index")
    if not path.exists():
        is_begun = OutputFiles(folder / SHARDS).manifest.exists()
        raise DataError(
            f"{shown(folder)}: this index is not finished; give the same elmo index command again"
            if is_begun
            else f"{shown(folder)}: expected an index, which has a file {MANIFEST}; make one with elmo index"
        )
    try:
        values = read_json(path, _LIMIT)
    except ElmoError as error:
        raise DataError(str(error)) from error
    if not isinstance(values, dict) or values.pop("version", None) != VERSION:
        raise DataError(f"{shown(path)}: expected an index of version {VERSION}, found another")
    if values.keys() != _KINDS.keys() or not all(isinstance(values[name], _KINDS[name]) for name in _KINDS):
        raise DataError(
            f"{shown(path)}: expected the keys {', '.join(_KINDS)}, found others or of other types"
        )
    if not all(type(size) is int and size >= 0 for size in values["shards"]):
        raise DataError(f"{shown(path)}: expected the sizes of its shards, found others")
    return values
