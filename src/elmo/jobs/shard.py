"""Sentences with their vectors in, a few flat arrays out; and back: what every file of a job holds.

A token may be ten megabytes long or no Unicode at all, and numpy's own strings would give every token the
room of the longest. So tokens stand as UTF-8 bytes one after another (lone surrogates kept,
``surrogatepass``), with the place where each ends.
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

VERSION = 1  # of the arrays and their description
DTYPES = ("float32", "float16")

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """The form of a job's vectors."""

    n_layers: int | None  # None: one vector per token
    width: int
    dtype: str

    @classmethod
    def of(cls, config: BiLmConfig, *, layers: str | int, dtype: str) -> Layout:
        """What ``Elmo.encode(layers=…)`` gives with a model of this config."""
        if dtype not in DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r:.40}")
        if isinstance(layers, int) and not isinstance(layers, bool):
            if not -config.n_layers <= layers < config.n_layers:
                raise ConfigError(f"layer must lie in 0..{config.n_layers - 1}, found {layers}")
            return cls(None, config.width, dtype)
        forms = {
            "average": cls(None, config.width, dtype),
            "top": cls(None, config.width, dtype),
            "all": cls(config.n_layers, config.width, dtype),
            "concat": cls(None, config.n_layers * config.width, dtype),
        }
        if layers not in forms:
            raise ConfigError(
                f"layers must be {', '.join(forms)} or 0..{config.n_layers - 1}, not {layers!r:.40}"
            )
        return forms[layers]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's numbers."""
        return (self.n_layers or 1) * self.width * np.dtype(self.dtype).itemsize

    def empty(self, n_tokens: int) -> NDArray[np.floating]:
        """Room for the vectors of so many tokens: (time, width) or (layer, time, width)."""
        shape = (n_tokens, self.width) if self.n_layers is None else (self.n_layers, n_tokens, self.width)
        return np.empty(shape, dtype=self.dtype)


@dataclass(frozen=True, eq=False)
class Shard:
    """A run of sentences; the time axis runs through all their tokens."""

    first: int  # index of its first sentence in the job
    vectors: NDArray[np.floating]  # (time, width) or (layer, time, width)
    lengths: Ints  # (sentence,): tokens of each
    token_bytes: NDArray[np.uint8]  # all tokens in UTF-8
    token_ends: Ints  # (time,): where each token ends in token_bytes
    offsets: Ints  # (time, 2): begin and end in the sentence's text; -1 where tokens were given
    places: Ints  # (sentence, 3): file (an index into files), line from 1, character where the text begins
    files: tuple[str, ...] = ()
    has_offsets: bool = True  # for sentences without tokens, whose offsets tell nothing

    ARRAYS = ("lengths", "token_ends", "offsets", "places", "vectors", "token_bytes")  # widest items first

    @classmethod
    def of(cls, sentences: Sequence[Sentence], vectors: NDArray[np.floating], *, first: int) -> Shard:
        """Sentences and the vectors of all their tokens, put together."""
        tokens = [
            token.encode("utf-8", "surrogatepass") for given in sentences for token in given.tokens.tokens
        ]
        files = tuple(dict.fromkeys(given.path for given in sentences))
        index = {name: i for i, name in enumerate(files)}
        offsets = [
            pair
            for given in sentences
            for pair in (
                given.tokens.offsets if given.tokens.offsets is not None else [(-1, -1)] * len(given.tokens)
            )
        ]
        places = [(index[given.path], given.line, given.start) for given in sentences]
        return cls(
            first=first,
            vectors=vectors,
            lengths=np.array([len(given.tokens) for given in sentences], dtype=np.int64),
            token_bytes=np.frombuffer(b"".join(tokens), dtype=np.uint8),
            token_ends=np.cumsum([len(token) for token in tokens], dtype=np.int64),
            offsets=np.array(offsets, dtype=np.int64).reshape(-1, 2),
            places=np.array(places, dtype=np.int64).reshape(-1, 3),
            files=files,
            has_offsets=all(given.tokens.offsets is not None for given in sentences),
        )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], description: Any, *, subject: str) -> Shard:
        """From what a file holds; ``DataError`` when arrays and description do not fit together."""
        missing = [f"missing {name}" for name in cls.ARRAYS if name not in arrays]
        raise_all(missing, subject=subject, kind=DataError)
        if not isinstance(description, dict) or description.get("version") != VERSION:
            raise DataError(
                f"{subject}: expected an embedding file of version {VERSION}, found another or none"
            )
        first, files = description.get("first"), description.get("files")
        if type(first) is not int or not isinstance(files, list):
            raise DataError(
                f"{subject}: expected a description with first and files, found {description!s:.80}"
            )
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
        """The form of its vectors."""
        n_layers = self.vectors.shape[0] if self.vectors.ndim == 3 else None
        return Layout(n_layers, self.vectors.shape[-1], str(self.vectors.dtype))

    @property
    def n_tokens(self) -> int:
        """Tokens of all sentences."""
        return len(self.token_ends)

    def description(self) -> dict[str, Any]:
        """What the arrays do not say, as JSON values."""
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
        """All tokens, in order."""
        raw, begin, found = self.token_bytes.tobytes(), 0, []
        for end in self.token_ends.tolist():
            found.append(raw[begin:end].decode("utf-8", "surrogatepass"))
            begin = end
        return found

    def encodings(self) -> Iterator[Encoding]:
        """The sentences one by one, each with memory of its own."""
        tokens, offsets, begin = self.tokens(), self.offsets.tolist(), 0
        for length in self.lengths.tolist():
            end = begin + length
            pairs = tuple((first, last) for first, last in offsets[begin:end])
            is_known = all(first >= 0 for first, _ in pairs) if length else self.has_offsets
            yield Encoding(
                tokens=tuple(tokens[begin:end]),
                vectors=self.vectors[..., begin:end, :].copy(),
                offsets=pairs if is_known else None,
            )
            begin = end

    def _mismatches(self) -> list[str]:
        """Everything that does not fit together, each in a few words."""
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
                problems.append(
                    f"{name}: expected {ndim} axes of integers, found {array.shape} of {array.dtype}"
                )
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
            problems.append(f"lengths: expected {n} tokens in all, found other lengths")
        ends = self.token_ends
        if n and (ends[0] < 0 or (ends[1:] < ends[:-1]).any()):
            problems.append("token_ends: expected rising places, found others")
        if (int(ends[-1]) if n else 0) != len(self.token_bytes):
            problems.append(
                f"token_bytes: expected them to end with the last token, found {len(self.token_bytes)}"
            )
        return problems
