"""The folder of an index in, the usages of a word and the nearest usages of a vector out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmo.embed.manifest import read_manifest
from elmo.embed.output_files import OutputFiles
from elmo.embed.to_files import fingerprint_now
from elmo.errors import ConfigError, DataError, ElmoError
from elmo.formats.detect import bundled_name
from elmo.formats.files import read_json, shown
from elmo.lexicon.choice import Key, entry_key_of, entry_of
from elmo.lexicon.unit_rows import unit_rows
from elmo.lexicon.usage_shard import UsageShard
from elmo.lexicon.usages import Usage, Usages, Vectors
from elmo.text.fields import unescaped
from elmo.text.source import read_lines

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

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
