"""One sentence's vectors, and what is made of them: words, spans, phrases, the sentence."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError, ShapeError

if TYPE_CHECKING:
    from torch import Tensor

Pooling = Literal["mean", "max", "ends"]
Vectors = NDArray[np.floating]
Span = tuple[int, int]  # begin and end, end exclusive


@dataclass(frozen=True, eq=False, repr=False)
class Encoding:
    """Tokens and their vectors: (time, width), or (layer, time, width) when all layers were asked for."""

    tokens: tuple[str, ...]
    vectors: Vectors | Tensor
    text: str | None = None  # None when tokens were given
    offsets: tuple[tuple[int, int], ...] | None = None  # of each token in the text, end exclusive

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        words = " ".join(self.tokens[:8])[:60] + (" …" if len(self.tokens) > 8 else "")
        return f"Encoding({words!r}, {len(self.tokens)} tokens, vectors {tuple(self.vectors.shape)})"

    def word(self, token: str, *, occurrence: int = 0) -> Vectors | Tensor:
        """The vector of one token, by its spelling."""
        places = [(i, i + 1) for i, found in enumerate(self.tokens) if found == token]
        return self.span(*_one(places, token, occurrence, self.tokens))

    def phrase(self, phrase: str, *, occurrence: int = 0, pooling: Pooling = "mean") -> Vectors | Tensor:
        """The vector of a phrase, such as "New York": sought in the text, or in tokens without offsets."""
        if self.text is not None and self.offsets is not None:
            whole, parts = places_of(phrase, self.text, self.offsets)
            begin, end = _one(whole or parts, phrase, occurrence, self.tokens)
            return self.characters(begin, end, pooling=pooling)
        wanted = tuple(part for part in phrase.split(" ") if part)
        size = len(wanted)
        places = [
            (i, i + size)
            for i in range(len(self.tokens) - size + 1)
            if size and self.tokens[i : i + size] == wanted
        ]
        return self.span(*_one(places, phrase, occurrence, self.tokens), pooling=pooling)

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
        shape = (*self.vectors.shape[:-2], 1, self.vectors.shape[-1])  # as if of one token that is zero
        if isinstance(self.vectors, np.ndarray):
            return pool(np.zeros(shape, dtype=self.vectors.dtype), pooling)
        return pool(self.vectors.new_zeros(shape), pooling)


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
    raise ConfigError(f"pooling must be 'mean', 'max' or 'ends', not {pooling!r:.40}")


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


def places_of(
    phrase: str, text: str, offsets: Sequence[Span], *, ignore_case: bool = False
) -> tuple[list[Span], list[Span]]:
    """Where a phrase stands in ``text``: as whole tokens, and as a part of them that may be a word.

    White space in the phrase stands for any white space in the text.
    """
    spelled = r"\s+".join(re.escape(part) for part in phrase.split())
    begins, ends = {begin for begin, _ in offsets}, {end for _, end in offsets}
    whole: list[Span] = []
    parts: list[Span] = []
    if not spelled:
        return whole, parts
    # looking ahead: places may overlap
    for match in re.finditer(f"(?=({spelled}))", text, re.IGNORECASE if ignore_case else re.NOFLAG):
        begin, end = match.span(1)
        if begin in begins and end in ends:
            whole.append((begin, end))
        elif not (_is_inside_word(text, begin) or _is_inside_word(text, end)):
            parts.append((begin, end))
    return whole, parts


def _is_inside_word(text: str, at: int) -> bool:
    """Whether a word goes on across this place: "bank" is not in "banker", but 苹果 may be in 苹果树.

    Scripts without capitals either put no spaces between words (Chinese, Thai) or join particles to them
    (Korean, Arabic), so there a part of a token may well be the word.
    """
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    if unicodedata.combining(after):
        return True
    return all(c.isalnum() and unicodedata.category(c) != "Lo" for c in (before, after))


def _one(places: Sequence[Span], what: str, occurrence: int, tokens: tuple[str, ...]) -> Span:
    if not 0 <= occurrence < len(places):
        shown = " ".join(tokens[:12])[:200] + (" …" if len(tokens) > 12 else "")
        if not places:
            raise DataError(f"{what[:40]!r} is not in the sentence: {shown!r}")
        raise DataError(
            f"occurrence must lie in 0..{len(places) - 1} for {what[:40]!r}, found {occurrence}; "
            f"the sentence: {shown!r}"
        )
    return places[occurrence]
