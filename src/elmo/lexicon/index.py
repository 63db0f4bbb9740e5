"""Read an index: a folder with the usages of a corpus and their vectors.

``index.json`` describes the index, ``words.tsv`` lists its words, and shards in safetensors format contain
the sentences, the usages and their vectors. Each shard has a sorted list of its words, so that the usages of a word
are found without reading the rest. ``build_index`` writes these files; ``Index`` reads them.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from elmo.embed.encoding import Span
from elmo.errors import ConfigError, DataError, ElmoError, FormatError
from elmo.formats.pretrained import bundled_models, bundled_name
from elmo.jobs.manifest import OutputFiles, read_manifest
from elmo.jobs.reader import DAMAGED_FILE_ERRORS
from elmo.jobs.shard import Shard
from elmo.jobs.sharded import compute_fingerprint
from elmo.lexicon.search import BLOCK_ROWS, VectorBlock, find_nearest
from elmo.lexicon.usages import EntryKey, Usage, Usages, Vectors, spelling_key, to_entry, unit_rows
from elmo.storage.files import format_path, read_json
from elmo.storage.tensors import read_arrays, write_arrays
from elmo.text.lines import read_lines, unescape_field
from elmo.text.reader import Sentence
from elmo.text.tokenizers import Tokens

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

Ints = NDArray[np.int64]

VERSION = 2
MANIFEST, SHARDS, WORDS = "index.json", "usages.safetensors", "words.tsv"
_MAX_MANIFEST_BYTES = 1 << 24
_MAX_OPEN_SHARDS = 128
_MANIFEST_TYPES: dict[str, Any] = {
    "model": str, "tokenizer": str, "layers": (str, int), "start": str, "keep_case": bool,
    "is_simplified": bool, "width": int, "dtype": str, "sentences": int, "tokens": int, "words": int,
    "usages": int, "shards": list, "source": (str, type(None)),
}  # fmt: skip


@dataclass(frozen=True)
class Neighbor:
    """A usage near a query.

    Attributes:
        usage: The usage.
        similarity: Cosine with the query.
        number: Number of the usage in the index.
    """

    usage: Usage
    similarity: float
    number: int


class Index:
    """The usages of a corpus with their vectors, which are read from disk when they are needed.

    Attributes:
        folder: The folder of the index.
        model: Fingerprint of the model that computed the vectors.
        source: Name or absolute path of this model when the index was built; None if it is unknown.
        targets: Fingerprints of the model to which that model is aligned; empty if it is not aligned.
        tokenizer: Name of the tokenizer that split the corpus into tokens.
        layers: Layers of the vectors, as in ``Elmo.encode``.
        start: Start state of the LSTMs, as in ``Elmo.encode``.
        width: Width of the vectors.
        n_sentences: Number of sentences of the corpus.
        n_tokens: Number of tokens of the corpus.
        n_words: Number of distinct words in the index.
        key: Function that maps a token to its dictionary entry.
        digest: Checksum of all shards.

    Example:
        >>> _ = build_index(IndexJob(("corpus.txt",), Path("index")), elmo)
        >>> index = Index("index")
        >>> [index.usage(number).word for number in index.numbers("bank")[:2]]
        ['bank', 'bank']
    """

    def __init__(self, folder: str | Path) -> None:
        """Open an index that ``build_index`` wrote."""
        self.folder = Path(folder)
        values = _read_description(self.folder)
        self.model: str = values["model"]
        self.source: str | None = values["source"]
        self.targets: frozenset[str] = frozenset(values["targets"])
        self.tokenizer: str = values["tokenizer"]
        self.layers: Any = values["layers"]
        self.start: Any = values["start"]
        self.width: int = values["width"]
        self.n_sentences: int = values["sentences"]
        self.n_tokens: int = values["tokens"]
        self.n_words: int = values["words"]
        self.key: EntryKey = spelling_key(is_simplified=values["is_simplified"], keep_case=values["keep_case"])
        records = read_manifest(OutputFiles(self.folder / SHARDS).manifest).shards
        self._sizes: list[int] = values["shards"]
        self._files = [self.folder / record.file for record in records]
        self._ends = np.cumsum(self._sizes)
        self.digest = hashlib.sha256("".join(record.sha256 for record in records).encode()).hexdigest()
        missing = [path for path in self._files if not path.is_file()]
        if missing or len(self._files) != len(self._sizes) or len(self) != values["usages"]:
            raise DataError(
                f"{format_path(self.folder)}: expected {len(self._sizes)} shards with {values['usages']:,} "
                "usages, but some are missing; run the same elmo index command again"
            )
        # Each shard in use is an open file, so the number of shards in the cache is limited.
        self._shard = lru_cache(maxsize=_MAX_OPEN_SHARDS)(self._read_shard)

    def _read_shard(self, number: int) -> UsageShard:
        try:
            shard = UsageShard.read(self._files[number])
        except FormatError as error:
            if not self._files[number].exists():  # the index was moved or removed after it was opened
                raise DataError(
                    f"the index {self.folder.name!r} was moved or removed; start again with its new folder"
                ) from error
            raise
        if shard.vectors.shape != (self._sizes[number], self.width):
            raise DataError(
                f"{format_path(self._files[number])}: expected {self._sizes[number]:,} vectors of width "
                f"{self.width}, found shape {shard.vectors.shape}; run the same elmo index command again"
            )
        return shard

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __repr__(self) -> str:
        return f"Index({len(self):,} usages of {self.n_words:,} words, width {self.width})"

    @cached_property
    def words(self) -> dict[str, tuple[int, int]]:
        """For each word, the number of usages in the index and the number of occurrences in the corpus."""
        words: dict[str, tuple[int, int]] = {}
        with closing(read_lines(self.folder / WORDS)) as lines:  # so that an error closes the file at once
            for line in lines:
                if line.number == 1:
                    continue
                try:
                    word, n_usages, n_occurrences = line.text.split("\t")
                    words[unescape_field(word)] = int(n_usages), int(n_occurrences)
                except ValueError as error:
                    raise DataError(
                        f"{line.path}:{line.number}: expected a word and two numbers, found {line.text[:80]!r}"
                    ) from error
        return words

    def find_model(self) -> str:
        """Return the model that computed the vectors, for ``Elmo.from_pretrained``.

        Only bundled models and paths that exist are returned: opening an index from elsewhere downloads nothing.
        """
        source = self.source
        if source is None:  # an index of version 1
            source = bundled_name(self.model, with_warm=self.start == "warm", with_softmax=self.layers == "sense")
        if source is None:
            problem = "it does not say which model it was built with"
        elif source in bundled_models() or (Path(source).is_absolute() and Path(source).exists()):
            return source
        elif Path(source).is_absolute():
            problem = f"its model {format_path(source)} no longer exists"
        else:
            problem = f"it was built with the model {format_path(source)}, which must be named"
        raise ConfigError(f"{format_path(self.folder)}: {problem}; set the model, for example with --model")

    def check_model(self, elmo: Elmo) -> None:
        """Raise ``ConfigError`` if a model with other coordinates computed the vectors of this index."""
        own, alignment = compute_fingerprint(elmo, start=self.start, layers=self.layers), elmo.pretrained.alignment
        if self.has_coordinates({own, *(alignment.targets if alignment else ())}):
            return
        name = bundled_name(self.model, with_warm=self.start == "warm", with_softmax=self.layers == "sense")
        model = "; use that model" if name is None else f", the bundled {name}: use --model {name}"
        if name is None and self.source is not None:
            model = f", {format_path(self.source)}: use --model {format_path(self.source)}"
        raise ConfigError(
            f"{format_path(self.folder)}: this index was built with another model{model}, or build an index "
            "with your model"
        )

    def is_from(self, elmo: Elmo) -> bool:
        """Return whether this model computed the vectors."""
        return compute_fingerprint(elmo, start=self.start, layers=self.layers) == self.model

    def has_coordinates(self, models: Collection[str]) -> bool:
        """Return whether the vectors have the coordinates of one of these models, which are fingerprints."""
        return not {self.model, *self.targets}.isdisjoint(models)

    def usage(self, number: int) -> Usage:
        """Return a usage by its number in 0..len(index) - 1."""
        shard, row = self._locate(number)
        try:
            return shard.usage(row)
        except UnicodeDecodeError as error:
            raise DataError(f"{format_path(self.folder)}: the text is damaged; build the index again") from error

    def vectors(self, numbers: Sequence[int] | Ints) -> Vectors:
        """Return the vectors (usage, width) of usages, in float32."""
        rows = np.empty((len(numbers), self.width), dtype=np.float32)
        for k, number in enumerate(numbers):
            shard, row = self._locate(int(number))
            rows[k] = shard.vectors[row]
        return rows

    def numbers(self, word: str) -> Ints:
        """Return the numbers of a word's usages, in corpus order; empty if the word is not in the index."""
        entry = to_entry(word, self.key)
        numbers = [shard.usages_of(entry) + first for shard, first in self._shards()]
        return np.concatenate([np.zeros(0, np.int64), *numbers])

    def usages(self, word: str, *, limit: int | None = None, seed: int = 0) -> Usages:
        """Return the usages of a word with their vectors, in corpus order.

        If there are more than ``limit`` usages, a random sample is returned.
        """
        numbers = self.numbers(word)
        if limit is not None and len(numbers) > limit:
            numbers = np.sort(np.random.default_rng(seed).choice(numbers, limit, replace=False))
        return Usages(tuple(self.usage(int(number)) for number in numbers), self.vectors(numbers))

    def nearest(
        self, queries: Vectors, k: int = 10, *, among: Ints | None = None, exclude: Ints | None = None
    ) -> list[list[Neighbor]]:
        """Find the ``k`` usages nearest to each query, best first, by exact search.

        Args:
            queries: Vectors to compare with (query, width).
            k: Number of usages per query.
            among: Numbers of the usages to search; all usages by default.
            exclude: Numbers of usages to leave out.
        """
        if k < 1:
            raise ConfigError(f"k must be at least 1; found {k}")
        if queries.ndim != 2 or queries.shape[1] != self.width:
            raise DataError(f"queries must have the shape (query, {self.width}); found {queries.shape}")
        blocks = self._all_blocks(exclude) if among is None else self._blocks_of(among)
        rows = find_nearest(queries, blocks, min(k, max(len(self), 1))).numbers
        if among is not None and len(among):
            rows = np.where(rows < 0, -1, among[rows])
        return [self.rank(query, row) for query, row in zip(queries, rows, strict=True)]

    def rank(self, query: Vectors, numbers: Ints) -> list[Neighbor]:
        """Sort usages by their cosine to a query (width,), best first; negative numbers are ignored."""
        numbers = numbers[numbers >= 0]
        # Not computed as a matrix product, in which the last bits of a row may depend on the other rows.
        cosines = (unit_rows(self.vectors(numbers)) * unit_rows(query[None])).sum(axis=1).clip(-1, 1)
        pairs = zip(cosines.tolist(), numbers.tolist(), strict=True)
        ranking = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
        return [Neighbor(self.usage(number), cosine, number) for cosine, number in ranking]

    def _all_blocks(self, exclude: Ints | None) -> Iterator[VectorBlock]:
        for shard, first in self._shards():
            mask = None
            if exclude is not None:
                mask = np.zeros(len(shard), dtype=bool)
                mask[exclude[(exclude >= first) & (exclude < first + len(shard))] - first] = True
            yield VectorBlock(first, shard.vectors, shard.norms, mask)

    def _blocks_of(self, numbers: Ints) -> Iterator[VectorBlock]:
        """Yield the vectors of the given usages in blocks; row 0 of a block is position ``first`` in ``numbers``."""
        for begin in range(0, len(numbers), BLOCK_ROWS):
            rows = self.vectors(numbers[begin : begin + BLOCK_ROWS])
            yield VectorBlock(begin, rows, np.linalg.norm(rows, axis=1))

    def _shards(self) -> Iterator[tuple[UsageShard, int]]:
        """Yield each shard with the number of its first usage."""
        for number, end in enumerate(self._ends.tolist()):
            yield self._shard(number), end - self._sizes[number]

    def _locate(self, number: int) -> tuple[UsageShard, int]:
        """Return the shard that contains a usage, and the row of the usage in it."""
        if not 0 <= number < len(self):
            raise DataError(f"the number of a usage must be between 0 and {len(self) - 1}; found {number}")
        k = int(np.searchsorted(self._ends, number, side="right"))
        return self._shard(k), number - int(self._ends[k]) + self._sizes[k]


def find_models(folders: Sequence[str | Path]) -> tuple[str, ...]:
    """Return the models that several indexes were built with, without repetitions."""
    return tuple(dict.fromkeys(Index(folder).find_model() for folder in folders))


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not folder.is_dir():
        raise DataError(f"{format_path(folder)}: no such folder; build an index with elmo index")
    if not path.exists():
        if OutputFiles(folder / SHARDS).manifest.exists():
            raise DataError(f"{format_path(folder)}: this index is not complete; run the same elmo index command again")
        raise DataError(
            f"{format_path(folder)}: expected an index, found no file {MANIFEST}; build one with elmo index"
        )
    try:
        values = read_json(path, _MAX_MANIFEST_BYTES)
    except ElmoError as error:
        raise DataError(str(error)) from error
    if isinstance(values, dict) and values.get("version") == 1:  # did not store the source of the model
        values |= {"version": VERSION, "source": None}
    targets = values.pop("targets", []) if isinstance(values, dict) else None  # only of aligned models
    is_valid = (
        isinstance(values, dict)
        and isinstance(targets, list)
        and all(isinstance(target, str) for target in targets)
        and values.pop("version", None) == VERSION
        and values.keys() == _MANIFEST_TYPES.keys()
        and all(isinstance(values[name], types) for name, types in _MANIFEST_TYPES.items())
        and all(type(size) is int and size >= 0 for size in values["shards"])
    )
    if not is_valid:
        raise DataError(
            f"{format_path(path)}: expected an index of version {VERSION}, found another version or damaged values; "
            "build the index again"
        )
    return {**values, "targets": targets}


# --- Shards -----------------------------------------------------------------------------------------

SHARD_VERSION = 1
_NORM_ROWS = 1 << 12  # number of vectors to convert to float64 at once
_MAX_GAP = 100  # maximum number of spaces between two tokens of a restored text


@dataclass(frozen=True)
class UsedSentence(Sentence):
    """A sentence with words to index."""

    spans: tuple[Span, ...] = ()  # tokens of each word
    entries: tuple[str, ...] = ()  # dictionary entry of each word


@dataclass(frozen=True, eq=False)
class UsageShard:
    """The arrays of one shard of an index; tokens are numbered from the start of the shard.

    Attributes:
        lengths: Number of tokens of each sentence (sentence,).
        token_ends: End of each token in ``token_bytes`` (time,).
        offsets: Begin and end of each token in the text (time, 2); -1 if the input was tokens.
        places: File (an index into ``files``), line from 1, and first character in the line (sentence, 3).
        spans: First token of each usage, and last token + 1 (usage, 2).
        order: Numbers of the usages, sorted by dictionary entry (usage,).
        entry_ends: End of each entry in ``entry_bytes`` (entry,).
        usage_ends: End of the usages of each entry in ``order`` (entry,).
        norms: Lengths of the vectors (usage,).
        vectors: Vectors of the usages (usage, width).
        token_bytes: All tokens in UTF-8, without separators.
        entry_bytes: All entries in UTF-8, sorted as bytes, without separators.
        files: Names of the input files.
    """

    lengths: Ints
    token_ends: Ints
    offsets: Ints
    places: Ints
    spans: Ints
    order: Ints
    entry_ends: Ints
    usage_ends: Ints
    norms: NDArray[np.float32]
    vectors: Vectors
    token_bytes: NDArray[np.uint8]
    entry_bytes: NDArray[np.uint8]
    files: tuple[str, ...] = ()

    @classmethod
    def build(cls, sentences: Sequence[UsedSentence], vectors: Vectors) -> UsageShard:
        """Build a shard from sentences and the vectors of their usages (usage, width)."""
        text = Shard.of(sentences, np.zeros((0, 0), np.float32), first=0)  # text is stored as in elmo embed
        begins = np.cumsum(text.lengths) - text.lengths
        spans = [
            (int(first) + begin, int(first) + end)
            for sentence, first in zip(sentences, begins, strict=True)
            for begin, end in sentence.spans
        ]
        entries = [_encode(entry) for sentence in sentences for entry in sentence.entries]
        order = sorted(range(len(entries)), key=lambda k: (entries[k], k))
        names, counts = np.unique(np.array(entries, dtype=object), return_counts=True)
        return cls(
            lengths=text.lengths, token_ends=text.token_ends, offsets=text.offsets, places=text.places,
            spans=np.array(spans, dtype=np.int64).reshape(-1, 2),
            order=np.array(order, dtype=np.int64),
            entry_ends=np.cumsum([len(name) for name in names], dtype=np.int64),
            usage_ends=np.cumsum(counts, dtype=np.int64),
            norms=_compute_norms(vectors),
            vectors=vectors,
            token_bytes=text.token_bytes,
            entry_bytes=np.frombuffer(b"".join(names), dtype=np.uint8),
            files=text.files,
        )  # fmt: skip

    def write(self, file: BinaryIO) -> None:
        """Write the shard in safetensors format."""
        write_arrays(
            [(name, np.ascontiguousarray(getattr(self, name))) for name in ARRAYS],
            {"version": SHARD_VERSION, "files": list(self.files)},
            file,
        )

    @classmethod
    def read(cls, path: Path) -> UsageShard:
        """Map a shard into memory; vectors and text are read from disk when they are needed."""
        try:
            arrays, description = read_arrays(path, is_mapped=True)
            if description["version"] != SHARD_VERSION or set(arrays) != set(ARRAYS):
                raise ValueError("it was written by another version of elmo")
            shard = cls(**arrays, files=tuple(str(name) for name in description["files"]))
            shard._check()
        except DAMAGED_FILE_ERRORS as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise DataError(f"cannot read {format_path(path)} as part of an index: {reason}") from error
        return shard

    def __len__(self) -> int:
        return len(self.vectors)

    def entries(self) -> Iterator[tuple[str, int]]:
        """Yield each dictionary entry and the number of its usages; entries are sorted as bytes."""
        raw, begin, n_before = self.entry_bytes.tobytes(), 0, 0
        for end, n in zip(self.entry_ends.tolist(), self.usage_ends.tolist(), strict=True):
            yield raw[begin:end].decode("utf-8", "surrogatepass"), n - n_before
            begin, n_before = end, n

    def usages_of(self, entry: str) -> Ints:
        """Return the numbers of the usages of a dictionary entry, in corpus order."""
        name = _encode(entry)
        k = bisect_left(range(len(self.entry_ends)), name, key=self._entry)
        if k == len(self.entry_ends) or self._entry(k) != name:
            return np.zeros(0, dtype=np.int64)
        begin = int(self.usage_ends[k - 1]) if k else 0
        return np.sort(self.order[begin : int(self.usage_ends[k])])

    def _entry(self, k: int) -> bytes:
        begin = int(self.entry_ends[k - 1]) if k else 0
        return self.entry_bytes[begin : int(self.entry_ends[k])].tobytes()

    def usage(self, number: int) -> Usage:
        """Return a usage with its sentence."""
        begin, end = (int(token) for token in self.spans[number])
        sentence = int(np.searchsorted(self._sentence_ends, begin, side="right"))
        last = int(self._sentence_ends[sentence])
        first = last - int(self.lengths[sentence])
        file, line, _ = (int(value) for value in self.places[sentence])
        return Usage(self._tokens(first, last), begin - first, end - first, f"{self.files[file]}:{line}")

    @cached_property
    def _sentence_ends(self) -> Ints:
        return np.cumsum(self.lengths)

    def _tokens(self, first: int, last: int) -> Tokens:
        """Restore a sentence and its text, in which all white space becomes spaces."""
        ends = self.token_ends[first:last].tolist()
        begin = int(self.token_ends[first - 1]) if first else 0
        raw = self.token_bytes[begin : ends[-1] if ends else begin].tobytes()
        cuts = [0, *(end - begin for end in ends)]
        tokens = [raw[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(cuts)]
        begins, stops = (self.offsets[first:last, side].tolist() for side in (0, 1))
        if not begins or begins[0] < 0:
            return Tokens.from_words(tokens)
        between = zip(begins[1:], stops, strict=False)
        gaps = [0, *(min(max(begin - stop, 0), _MAX_GAP) for begin, stop in between)]
        text = "".join([" " * gap + token for gap, token in zip(gaps, tokens, strict=True)])
        text_stops = accumulate(map(add, gaps, map(len, tokens)))
        offsets = tuple((stop - len(token), stop) for token, stop in zip(tokens, text_stops, strict=True))
        return Tokens(text, tuple(tokens), offsets)

    def _check(self) -> None:
        """Raise ``ValueError`` if the arrays are inconsistent, so that lookups stay within their bounds."""
        n, n_tokens, n_sentences = len(self.vectors), len(self.token_ends), len(self.lengths)
        shapes = {
            "offsets": (n_tokens, 2), "places": (n_sentences, 3), "spans": (n, 2), "order": (n,),
            "norms": (n,), "usage_ends": self.entry_ends.shape, "vectors": (n, *self.vectors.shape[1:2]),
        }  # fmt: skip
        wrong = [name for name, shape in shapes.items() if getattr(self, name).shape != shape]
        totals = {"token_ends": len(self.token_bytes), "entry_ends": len(self.entry_bytes), "usage_ends": n}
        for name, total in totals.items():
            ends = getattr(self, name)
            is_rising = ends.ndim == 1 and not (np.diff(ends, prepend=0) < 0).any()
            if not is_rising or (ends[-1] if len(ends) else 0) != total:
                wrong.append(name)
        kinds = {"norms": "f", "vectors": "f", "token_bytes": "u", "entry_bytes": "u"}
        wrong += [name for name in ARRAYS if getattr(self, name).dtype.kind != kinds.get(name, "i")]
        if not wrong:  # values can be checked only if shapes and types are correct
            for name, limit in {"spans": n_tokens + 1, "order": n}.items():
                values = getattr(self, name)
                if n and not (values.min() >= 0 and values.max() < limit):
                    wrong.append(name)
            if (self.spans[:, 0] >= self.spans[:, 1]).any():
                wrong.append("spans")
            if (self.lengths < 0).any() or int(self.lengths.sum()) != n_tokens:
                wrong.append("lengths")
            if n_sentences and not 0 <= self.places[:, 0].min() <= self.places[:, 0].max() < len(self.files):
                wrong.append("places")
        if wrong:
            raise ValueError(f"inconsistent arrays: {', '.join(dict.fromkeys(wrong))}")


ARRAYS = tuple(
    field.name for field in fields(UsageShard) if field.name != "files"
)  # sorted by item size, largest first


def _compute_norms(vectors: Vectors) -> NDArray[np.float32]:
    """Compute the lengths of vectors (usage,) in float64, some rows at a time to save memory."""
    norms = np.empty(len(vectors), dtype=np.float32)
    for begin in range(0, len(vectors), _NORM_ROWS):
        wide = vectors[begin : begin + _NORM_ROWS].astype(np.float64)
        norms[begin : begin + _NORM_ROWS] = np.sqrt(np.einsum("uw,uw->u", wide, wide))
    return norms


def _encode(entry: str) -> bytes:
    return entry.encode("utf-8", "surrogatepass")
