"""``Shard``: sentences and their vectors as flat arrays, which every output format stores.

Tokens are stored as concatenated UTF-8 bytes, together with the end of each token. In a NumPy array of strings,
every token would take as much memory as the longest one. Lone surrogates are kept (``surrogatepass``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from elmo.config import BiLmConfig
from elmo.embed.encoding import Encoding, LayerChoice
from elmo.errors import ConfigError, DataError, raise_all
from elmo.text.reader import Sentence

VERSION = 1  # of the file format
DTYPES = ("float32", "float16")

Ints = NDArray[np.int64]
Vectors = NDArray[np.floating]


@dataclass(frozen=True)
class Layout:
    """The shape and dtype of the vectors of a job; ``n_layers`` is None if vectors have no layer axis."""

    n_layers: int | None
    width: int
    dtype: str

    @classmethod
    def of(cls, config: BiLmConfig, *, layers: str | int, dtype: str) -> Layout:
        """Return the layout of the vectors that ``Elmo.encode(layers=…)`` computes with this config."""
        n, names = config.n_layers, get_args(LayerChoice)
        if dtype not in DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}; found {dtype!r:.40}")
        is_number = isinstance(layers, int) and not isinstance(layers, bool) and -n <= layers < n
        if not is_number and layers not in names:
            raise ConfigError(f"layers must be {', '.join(names)} or 0..{n - 1}; found {layers!r:.40}")
        return cls(n if layers == "all" else None, config.width * (n if layers == "concat" else 1), dtype)

    @property
    def token_bytes(self) -> int:
        """Number of bytes that the vectors of one token take."""
        return (self.n_layers or 1) * self.width * np.dtype(self.dtype).itemsize

    def empty(self, n_tokens: int) -> Vectors:
        """Allocate an array for the vectors of ``n_tokens`` tokens: (time, width) or (layer, time, width)."""
        return self.view(np.empty(n_tokens * self.token_bytes, dtype=np.uint8), n_tokens)

    def view(self, memory: NDArray[np.uint8], n_tokens: int) -> Vectors:
        """Use the start of ``memory`` for the vectors of ``n_tokens`` tokens, with the same shape as ``empty``."""
        shape = (n_tokens, self.width) if self.n_layers is None else (self.n_layers, n_tokens, self.width)
        return memory[: n_tokens * self.token_bytes].view(self.dtype).reshape(shape)


@dataclass(frozen=True, eq=False)
class Shard:
    """Consecutive sentences of a job; the time axis runs over all their tokens.

    Attributes:
        first: Index of the first sentence in the job.
        vectors: The vectors of all tokens, (time, width) or (layer, time, width).
        lengths: Number of tokens of each sentence, (sentence,).
        token_bytes: All tokens in UTF-8, concatenated.
        token_ends: End of each token in ``token_bytes``, (time,).
        offsets: Begin and end of each token in the text of its sentence, (time, 2); -1 if the input was tokens.
        places: Position of each sentence in the input, (sentence, 3): index into ``files``, line number from 1,
            and the character where the sentence begins.
        files: Names of the input files.
        has_offsets: Whether a sentence without tokens has an empty tuple of offsets instead of None.
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

    ARRAYS = (
        "lengths",
        "token_ends",
        "offsets",
        "places",
        "vectors",
        "token_bytes",
    )  # sorted by item size, largest first

    @classmethod
    def of(cls, sentences: Sequence[Sentence], vectors: Vectors, *, first: int) -> Shard:
        """Build a shard from sentences and the vectors of their tokens."""
        tokens = [token for sentence in sentences for token in sentence.tokens.tokens]
        text = "".join(tokens)
        raw = text.encode("utf-8", "surrogatepass")
        is_ascii = len(raw) == len(text)  # the usual case, in which tokens need not be encoded one by one
        sizes = map(len, tokens) if is_ascii else (len(token.encode("utf-8", "surrogatepass")) for token in tokens)
        files = tuple(dict.fromkeys(sentence.path for sentence in sentences))
        index = {name: i for i, name in enumerate(files)}
        offsets = chain.from_iterable(
            pair
            for sentence in sentences
            for pair in sentence.tokens.offsets or [(-1, -1)] * len(sentence.tokens)  # empty without tokens
        )
        places = [(index[sentence.path], sentence.line, sentence.start) for sentence in sentences]
        return cls(
            first=first,
            vectors=vectors,
            lengths=np.array([len(sentence.tokens) for sentence in sentences], dtype=np.int64),
            token_bytes=np.frombuffer(raw, dtype=np.uint8),
            token_ends=np.cumsum(np.fromiter(sizes, dtype=np.int64, count=len(tokens))),
            offsets=np.fromiter(offsets, dtype=np.int64, count=2 * len(tokens)).reshape(-1, 2),
            places=np.array(places, dtype=np.int64).reshape(-1, 3),
            files=files,
            has_offsets=all(sentence.tokens.offsets is not None for sentence in sentences),
        )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], description: Any, *, subject: str) -> Shard:
        """Build a shard from the arrays and the description of a file; raise ``DataError`` if they are invalid."""
        missing = [f"missing {name}" for name in cls.ARRAYS if name not in arrays]
        raise_all(missing, subject=subject, kind=DataError)
        if not isinstance(description, dict) or description.get("version") != VERSION:
            raise DataError(f"cannot read {subject}: it is not an embedding file of version {VERSION}")
        first, files = description.get("first"), description.get("files")
        if type(first) is not int or not isinstance(files, list):
            raise DataError(
                f"{subject}: the description must have an integer 'first' and a list 'files'; found {description!s:.80}"
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
        """The shape and dtype of the vectors of this shard."""
        n_layers = self.vectors.shape[0] if self.vectors.ndim == 3 else None
        return Layout(n_layers, self.vectors.shape[-1], str(self.vectors.dtype))

    @property
    def n_tokens(self) -> int:
        """Number of tokens in all sentences."""
        return len(self.token_ends)

    def description(self) -> dict[str, Any]:
        """Return a JSON object with the counts, the layout and the input files of the shard."""
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
        """Decode and return all tokens, in order."""
        raw, begin, tokens = self.token_bytes.tobytes(), 0, []
        for end in self.token_ends.tolist():
            tokens.append(raw[begin:end].decode("utf-8", "surrogatepass"))
            begin = end
        return tokens

    def encodings(self) -> Iterator[Encoding]:
        """Yield the sentences one by one, with copies of their vectors."""
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
        """Describe each array whose shape, dtype or values do not match the other arrays."""
        n, n_sentences, n_bytes = self.token_ends.size, self.lengths.size, self.token_bytes.size
        layers, width = self.vectors.shape[:-2], self.vectors.shape[-1:]
        shapes = {
            "lengths": (("int64",), (n_sentences,)),
            "token_ends": (("int64",), (n,)),
            "offsets": (("int64",), (n, 2)),
            "places": (("int64",), (n_sentences, 3)),
            "token_bytes": (("uint8",), (n_bytes,)),
            "vectors": (DTYPES, (*layers[:1], n, *width)),
        }
        problems = []
        for name, (dtypes, shape) in shapes.items():
            array: NDArray[Any] = getattr(self, name)
            if str(array.dtype) not in dtypes or array.shape != shape:
                expected = f"{' or '.join(dtypes)} of shape {shape}"
                problems.append(f"{name} must be {expected}; found {array.dtype} of shape {array.shape}")
        if problems:
            return problems
        if (self.lengths < 0).any() or (self.lengths > n).any() or int(self.lengths.sum()) != n:
            problems.append(f"lengths must not be negative and must add up to {n}, the number of tokens")
        ends = self.token_ends
        if (n and ends[0] < 0) or (ends[1:] < ends[:-1]).any() or (int(ends[-1]) if n else 0) != n_bytes:
            problems.append(f"token_ends must be in ascending order and end at {n_bytes}, the size of token_bytes")
        return problems
