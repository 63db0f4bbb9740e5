"""Statistics of the similarity between usages of a word, which show what a cosine means.

``similarity.json`` in the folder of a model has quantiles of the cosine of two random usages of the same word, with
the vectors of ``layers="sense"``: over all words, and for each of the most frequent words.
``elmo calibrate`` computes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elmo.errors import FormatError

# Shares of the pairs of usages that are less similar than each quantile.
LEVELS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
MAX_WORDS = 6000  # keeps the file below the limit of the reader
_UNIT = 1000  # quantiles are stored as integers: thousandths
_VERSION = 1

Quantiles = tuple[float, ...]


@dataclass(frozen=True)
class SimilarityRank:
    """The rank of a cosine among random pairs of usages of the same word.

    Attributes:
        share: Share of these pairs that are less similar, from 0 to 1.
        word: The word whose usages were compared; None if the model has no statistics for this word, so that the share
            is that among the usages of all words.
    """

    share: float
    word: str | None

    def __str__(self) -> str:
        subject = "the same word" if self.word is None else repr(self.word)
        return f"more alike than {self.share:.0%} of pairs of uses of {subject}"


@dataclass(frozen=True)
class SimilarityStatistics:
    """Quantiles of the cosine of two random usages of the same word, at the shares ``LEVELS``.

    Attributes:
        all_words: Quantiles over the pairs of all words.
        words: Quantiles of each of the most frequent words, in lower case.
    """

    all_words: Quantiles
    words: Mapping[str, Quantiles]

    def rank(self, word: str | None, cosine: float) -> SimilarityRank:
        """Return the rank of a cosine; ``word`` is spelled as in the statistics, and None for two different words."""
        own = None if word is None else self.words.get(word)
        share = _interpolate(self.all_words if own is None else own, cosine)
        return SimilarityRank(share, None if own is None else word)


def _interpolate(quantiles: Quantiles, cosine: float) -> float:
    """Return the share of pairs below a cosine, between the quantiles by linear interpolation."""
    if cosine <= quantiles[0]:
        return 0.0
    for k in range(1, len(quantiles)):
        low, high = quantiles[k - 1], quantiles[k]
        if cosine <= high:
            return LEVELS[k - 1] + (LEVELS[k] - LEVELS[k - 1]) * (cosine - low) / (high - low)
    return 1.0


def format_statistics(statistics: SimilarityStatistics) -> str:
    """Return the text of ``similarity.json``."""

    def to_integers(quantiles: Quantiles) -> str:
        return json.dumps([round(_UNIT * value) for value in quantiles], separators=(",", ":"))

    words = ",\n".join(f"{json.dumps(word)}: {to_integers(v)}" for word, v in sorted(statistics.words.items()))
    head = f'"version": {_VERSION},\n"levels": {json.dumps(LEVELS)},\n"all": {to_integers(statistics.all_words)}'
    return f'{{{head},\n"words": {{\n{words}\n}}}}\n'


def parse_statistics(values: Any, subject: str) -> SimilarityStatistics:
    """Check the content of ``similarity.json``; ``subject`` is for error messages."""
    if not isinstance(values, dict) or values.get("version") != _VERSION or values.get("levels") != list(LEVELS):
        raise FormatError(f"{subject} must be a JSON object with version {_VERSION} and {len(LEVELS)} levels")
    words = values.get("words")
    if not isinstance(words, dict) or len(words) > MAX_WORDS:
        raise FormatError(f"{subject}: words must be a JSON object with at most {MAX_WORDS} words")
    return SimilarityStatistics(
        _parse_quantiles(values.get("all"), f"{subject}: all"),
        {word: _parse_quantiles(quantiles, f"{subject}: {word[:40]!r}") for word, quantiles in words.items()},
    )


def _parse_quantiles(values: Any, subject: str) -> Quantiles:
    is_valid = (
        isinstance(values, list)
        and len(values) == len(LEVELS)
        and all(type(value) is int and -_UNIT <= value <= _UNIT for value in values)
        and values == sorted(values)
    )
    if not is_valid:
        raise FormatError(f"{subject} must be {len(LEVELS)} rising integers in -{_UNIT}..{_UNIT}; found {values!r:.80}")
    return tuple(value / _UNIT for value in values)
