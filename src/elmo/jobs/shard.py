"""``Shard``: sentences and their vectors as a few flat arrays, the content of every output file.

Tokens are stored as concatenated UTF-8 bytes with the end of each, because NumPy strings would give every
token the size of the longest, and a token may have ten megabytes. Lone surrogates are kept
(``surrogatepass``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmo.config import BiLmConfig
from elmo.embed.encoding import Encoding
from elmo.errors import ConfigError, DataError, raise_all
from elmo.text.reader import Sentence

VERSION = 1  # of the file format
DTYPES = ("float32", "float16")

Ints = NDArray[np.int64]
Vectors = NDArray[np.floating]


@dataclass(frozen=True)
class Layout:
    """The shape and dtype of the vectors of a job; ``n_layers`` is None for one vector per token."""

    n_layers: int | None
    width: int
    dtype: str

    @classmethod
    def of(cls, config: BiLmConfig, *, layers: str | int, dtype: str) -> Layout:
        """Return the layout of ``Elmo.encode(layers=…)`` for a model of this config."""
        if dtype not in DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, found {dtype!r:.40}")
        if isinstance(layers, int) and not isinstance(layers, bool):
            if not -config.n_layers <= layers < config.n_layers:
                raise ConfigError(f"layer must be in 0..{config.n_layers - 1}, found {layers}")
            return cls(None, config.width, dtype)
        layouts = {
            "average": cls(None, config.width, dtype),
            "top": cls(None, config.width, dtype),
            "all": cls(config.n_layers, config.width, dtype),
            "concat": cls(None, config.n_layers * config.width, dtype),
        }
        if layers not in layouts:
            raise ConfigError(f"layers must be {', '.join(layouts)} or 0..{config.n_layers - 1}, found {layers!r:.40}")
        return layouts[layers]

    @property
    def token_bytes(self) -> int:
        """Bytes of the vectors of one token."""
        return (self.n_layers or 1) * self.width * np.dtype(self.dtype).itemsize

    def empty(self, n_tokens: int) -> Vectors:
        """Allocate the vectors of ``n_tokens`` tokens: (time, width) or (layer, time, width)."""
        shape = (n_tokens, self.width) if self.n_layers is None else (self.n_layers, n_tokens, self.width)
        return np.empty(shape, dtype=self.dtype)


@dataclass(frozen=True, eq=False)
class Shard:
    """Consecutive sentences of a job; the time axis runs over all their tokens.

    Attributes:
        first: Index of the first sentence in the job.
        vectors: (time, width) or (layer, time, width).
        lengths: (sentence,): number of tokens.
        token_bytes: All tokens in UTF-8.
        token_ends: (time,): end of each token in ``token_bytes``.
        offsets: (time, 2): begin and end in the text of the sentence; -1 if the input was tokens.
        places: (sentence, 3): index into ``files``, line from 1, character where the text begins.
        files: The input files.
        has_offsets: Whether sentences without tokens have (empty) offsets.
    """

    first: int
    vectors: Vectors
    lengths: Ints
    token_bytes: NDArray[np.uint8]
    token_ends: Ints
    offsets: Ints
    places: Ints
    files: tuple[str, ...] = ()
    has_offsets: bool = True

    ARRAYS = ("lengths", "token_ends", "offsets", "places", "vectors", "token_bytes")  # widest items first

    @classmethod
    def of(cls, sentences: Sequence[Sentence], vectors: Vectors, *, first: int) -> Shard:
        """Build a shard from sentences and the vectors of all their tokens."""
        tokens = [token.encode("utf-8", "surrogatepass") for sentence in sentences for token in sentence.tokens.tokens]
        files = tuple(dict.fromkeys(sentence.path for sentence in sentences))
        index = {name: i for i, name in enumerate(files)}
        offsets = [
            pair
            for sentence in sentences
            for pair in (
                [(-1, -1)] * len(sentence.tokens) if sentence.tokens.offsets is None else sentence.tokens.offsets
            )
        ]
        places = [(index[sentence.path], sentence.line, sentence.start) for sentence in sentences]
        return cls(
            first=first,
            vectors=vectors,
            lengths=np.array([len(sentence.tokens) for sentence in sentences], dtype=np.int64),
            token_bytes=np.frombuffer(b"".join(tokens), dtype=np.uint8),
            token_ends=np.cumsum([len(token) for token in tokens], dtype=np.int64),
            offsets=np.array(offsets, dtype=np.int64).reshape(-1, 2),
            places=np.array(places, dtype=np.int64).reshape(-1, 3),
            files=files,
            has_offsets=all(sentence.tokens.offsets is not None for sentence in sentences),
        )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], description: Any, *, subject: str) -> Shard:
        """Build a shard from the arrays of a file; ``DataError`` if they do not match their description."""
        missing = [f"missing {name}" for name in cls.ARRAYS if name not in arrays]
        raise_all(missing, subject=subject, kind=DataError)
        if not isinstance(description, dict) or description.get("version") != VERSION:
            raise DataError(f"{subject}: expected an embedding file of version {VERSION}, found another file")
        first, files = description.get("first"), description.get("files")
        if type(first) is not int or not isinstance(files, list):
            raise DataError(f"{subject}: expected a description with first and files, found {description!s:.80}")
        shard = cls(
            first=first,
            files=tuple(str(name) for name in files),
            has_offsets=bool(description.get("has_offsets")),
            **{name: arrays[name] for name in cls.ARRAYS},
        )
        raise_all(shard._mismatches(), subject=subject, kind=DataError)
        return shard

    @property
    def layout(self) -> Layout:
        """The shape and dtype of the vectors."""
        n_layers = self.vectors.shape[0] if self.vectors.ndim == 3 else None
        return Layout(n_layers, self.vectors.shape[-1], str(self.vectors.dtype))

    @property
    def n_tokens(self) -> int:
        """Number of tokens of all sentences."""
        return len(self.token_ends)

    def description(self) -> dict[str, Any]:
        """Return the values that are not in the arrays, as JSON values."""
        layout = self.layout
        return {
            "version": VERSION,
            "first": self.first,
            "sentences": len(self.lengths),
            "tokens": self.n_tokens,
            "layers": layout.n_layers,
            "width": layout.width,
            "dtype": layout.dtype,
            "has_offsets": self.has_offsets,
            "files": list(self.files),
        }

    def tokens(self) -> list[str]:
        """Return all tokens, in order."""
        raw, begin, tokens = self.token_bytes.tobytes(), 0, []
        for end in self.token_ends.tolist():
            tokens.append(raw[begin:end].decode("utf-8", "surrogatepass"))
            begin = end
        return tokens

    def encodings(self) -> Iterator[Encoding]:
        """Yield the sentences one by one; vectors are copies."""
        tokens, offsets, begin = self.tokens(), self.offsets.tolist(), 0
        for length in self.lengths.tolist():
            end = begin + length
            pairs = tuple((first, last) for first, last in offsets[begin:end])
            has_offsets = all(first >= 0 for first, _ in pairs) if length else self.has_offsets
            yield Encoding(
                tokens=tuple(tokens[begin:end]),
                vectors=self.vectors[..., begin:end, :].copy(),
                offsets=pairs if has_offsets else None,
            )
            begin = end

    def _mismatches(self) -> list[str]:
        """Describe every array that does not match the others."""
        n, sentences = len(self.token_ends), len(self.lengths)
        problems = []
        for name, ndim, kinds in (
            ("lengths", 1, "i"),
            ("token_ends", 1, "i"),
            ("offsets", 2, "i"),
            ("places", 2, "i"),
            ("token_bytes", 1, "u"),
        ):
            array: NDArray[Any] = getattr(self, name)
            if array.ndim != ndim or array.dtype.kind not in kinds:
                problems.append(f"{name}: expected {ndim} axes of integers, found {array.shape} of {array.dtype}")
        if self.vectors.ndim not in (2, 3) or str(self.vectors.dtype) not in DTYPES:
            problems.append(
                f"vectors: expected 2 or 3 axes of floats, found {self.vectors.shape} of {self.vectors.dtype}"
            )
        elif self.vectors.shape[-2] != n:
            problems.append(f"vectors: expected {n} tokens, found {self.vectors.shape[-2]}")
        if problems:
            return problems
        if self.offsets.shape != (n, 2):
            problems.append(f"offsets: expected {(n, 2)}, found {self.offsets.shape}")
        if self.places.shape != (sentences, 3):
            problems.append(f"places: expected {(sentences, 3)}, found {self.places.shape}")
        if (self.lengths < 0).any() or (self.lengths > n).any() or int(self.lengths.sum()) != n:
            problems.append(f"lengths: expected {n} tokens in total, found other lengths")
        ends = self.token_ends
        if n and (ends[0] < 0 or (ends[1:] < ends[:-1]).any()):
            problems.append("token_ends: expected increasing positions, found others")
        if (int(ends[-1]) if n else 0) != len(self.token_bytes):
            problems.append(f"token_bytes: expected the end of the last token, found {len(self.token_bytes)} bytes")
        return problems
