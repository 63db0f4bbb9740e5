"""One sentence's vectors, and what is made of them: words, spans, phrases, the sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError, ShapeError

if TYPE_CHECKING:
    from torch import Tensor

Pooling = Literal["mean", "max", "ends"]
Vectors = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Encoding:
    """Tokens and their vectors: (time, width), or (layer, time, width) when all layers were asked for."""

    tokens: tuple[str, ...]
    vectors: Vectors | Tensor
    text: str | None = None  # None when tokens were given
    offsets: tuple[tuple[int, int], ...] | None = None  # of each token in the text, end exclusive

    def __len__(self) -> int:
        return len(self.tokens)

    def word(self, token: str, *, occurrence: int = 0) -> Vectors | Tensor:
        """The vector of one token, by its spelling."""
        places = [i for i, found in enumerate(self.tokens) if found == token]
        return self.span(*_one(places, token, occurrence, self.tokens))

    def phrase(self, phrase: str, *, occurrence: int = 0, pooling: Pooling = "mean") -> Vectors | Tensor:
        """The vector of a phrase, such as "New York": in the text where there is one, else in the tokens."""
        if self.text is not None:
            begins = _occurrences(self.text, phrase)
            begin, _ = _one(begins, phrase, occurrence, self.tokens)
            return self.characters(begin, begin + len(phrase), pooling=pooling)
        wanted = tuple(part for part in phrase.split(" ") if part)
        size = len(wanted)
        places = [
            i for i in range(len(self.tokens) - size + 1) if size and self.tokens[i : i + size] == wanted
        ]
        begin, _ = _one(places, phrase, occurrence, self.tokens)
        return self.span(begin, begin + size, pooling=pooling)

    def characters(self, begin: int, end: int, *, pooling: Pooling = "mean") -> Vectors | Tensor:
        """The vector of the tokens that overlap text[begin:end]."""
        if self.offsets is None:
            raise DataError("this sentence was given as tokens and has no character offsets; use span()")
        inside = [i for i, (first, last) in enumerate(self.offsets) if first < end and last > begin]
        if not inside:
            raise DataError(
                f"no token overlaps characters {begin}..{end} of a text of {len(self.text or '')}"
            )
        return self.span(inside[0], inside[-1] + 1, pooling=pooling)

    def span(self, begin: int, end: int, *, pooling: Pooling = "mean") -> Vectors | Tensor:
        """The vector of tokens begin..end (end exclusive), pooled: mean, max, or [first; last]."""
        if not 0 <= begin < end <= len(self.tokens):
            raise DataError(f"expected a span within 0..{len(self.tokens)} tokens, found {begin}..{end}")
        return pool(self.vectors[..., begin:end, :], pooling)

    def sentence(self, pooling: Pooling = "mean") -> Vectors | Tensor:
        """The vector of the whole sentence; zero for a sentence without tokens."""
        if self.tokens:
            return self.span(0, len(self.tokens), pooling=pooling)
        shape = (*self.vectors.shape[:-2], self.vectors.shape[-1] * (2 if pooling == "ends" else 1))
        if isinstance(self.vectors, np.ndarray):
            return np.zeros(shape, dtype=self.vectors.dtype)
        return self.vectors.new_zeros(shape)


def pool(vectors: Vectors | Tensor, pooling: Pooling) -> Vectors | Tensor:
    """(…, time, width) to (…, width), or (…, 2 · width) for the two ends side by side."""
    if pooling == "mean":
        return vectors.mean(-2)
    if pooling == "max":
        return vectors.max(-2) if isinstance(vectors, np.ndarray) else vectors.amax(-2)
    if pooling == "ends":
        first, last = vectors[..., 0, :], vectors[..., -1, :]
        if isinstance(vectors, np.ndarray):
            return np.concatenate([first, last], axis=-1)
        import torch

        return torch.cat([cast("Tensor", first), cast("Tensor", last)], dim=-1)
    raise ConfigError(f"pooling must be 'mean', 'max' or 'ends', not {pooling!r}")


def similarity(a: Vectors | Tensor, b: Vectors | Tensor) -> float | Vectors:
    """Cosine of two vectors, or the matrix of cosines of the rows of ``a`` with the rows of ``b``.

    Sums are taken in float64, so that half-precision vectors lose nothing more here. A zero vector is
    like nothing: its cosine is 0.
    """
    x, y = (np.asarray(_to_numpy(v), dtype=np.float64) for v in (a, b))
    if x.ndim not in (1, 2) or y.ndim not in (1, 2) or x.shape[-1] != y.shape[-1]:
        raise ShapeError(f"expected vectors or rows of one width, found shapes {x.shape} and {y.shape}")
    unit_x, unit_y = _units(np.atleast_2d(x)), _units(np.atleast_2d(y))
    cosines = np.clip(unit_x @ unit_y.T, -1.0, 1.0)
    if x.ndim == 1 and y.ndim == 1:
        return float(cosines[0, 0])
    return cosines.reshape(x.shape[:-1] + y.shape[:-1])


def _units(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)


def _to_numpy(vectors: Vectors | Tensor) -> Vectors:
    if isinstance(vectors, np.ndarray):
        return vectors
    if hasattr(vectors, "detach"):
        return cast("Tensor", vectors).detach().cpu().double().numpy()
    return np.asarray(vectors)


def _occurrences(text: str, phrase: str) -> list[int]:
    """Where ``phrase`` begins in ``text``: whole words first, since "in" is not the "in" of "king"."""
    places, whole, at = [], [], text.find(phrase) if phrase else -1
    while at >= 0:
        end = at + len(phrase)
        before, after = text[at - 1 : at], text[end : end + 1]
        is_whole = not (before.isalnum() and phrase[0].isalnum()) and not (
            after.isalnum() and phrase[-1].isalnum()
        )
        places.append(at)
        whole += [at] if is_whole else []
        at = text.find(phrase, at + 1)
    return whole or places


def _one(places: list[int], what: str, occurrence: int, tokens: tuple[str, ...]) -> tuple[int, int]:
    if not 0 <= occurrence < len(places):
        shown = " ".join(tokens[:12]) + (" …" if len(tokens) > 12 else "")
        raise DataError(
            f"expected occurrence {occurrence} of {what[:40]!r}, found {len(places)} "
            f"in the sentence: {shown[:200]}"
        )
    return places[occurrence], places[occurrence] + 1
