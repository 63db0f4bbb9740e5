"""One word in two or more sentences in, how alike its vectors are in each layer out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from elmo.embed.encoding import Span, Vectors, find_word, joined_places, similarity, start_of, unmarked
from elmo.errors import ConfigError, DataError
from elmo.text.tokenizers import Tokens

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.start import Start

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Use:
    """The word as one sentence uses it."""

    text: str  # the sentence
    span: Span  # of the word in the text, end exclusive
    tokens: tuple[str, ...]  # whose vectors stand for the word

    @property
    def word(self) -> str:
        """The word as this sentence spells it."""
        return self.text[slice(*self.span)]

    def marked(self, shown: Callable[[str], str]) -> str:
        """The sentence with its word in brackets, each part as ``shown`` gives it."""
        begin, end = self.span
        return f"{shown(self.text[:begin])}[{shown(self.word)}]{shown(self.text[end:])}"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Cosines between the uses of a word: ``matrices`` (use, use) by layer, "0", "1", …, "average"."""

    word: str
    uses: tuple[Use, ...]
    matrices: Mapping[str, NDArray[np.float64]]

    def rows(self) -> Iterator[tuple[str, int, int, float]]:
        """Layer, first use, second use and their similarity, for each layer and pair; uses count from 0."""
        for layer, matrix in self.matrices.items():
            for a in range(len(self.uses)):
                for b in range(a + 1, len(self.uses)):
                    yield layer, a, b, float(matrix[a, b])

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        uses = [
            {"text": use.text, "word": use.word, "span": list(use.span), "tokens": list(use.tokens)}
            for use in self.uses
        ]
        similarities = {layer: matrix.tolist() for layer, matrix in self.matrices.items()}
        return {"word": self.word, "uses": uses, "similarities": similarities}


def compare(
    elmo: Elmo,
    word: str,
    sentences: Sequence[str | Sequence[str]],
    *,
    layers: Literal["average", "top", "all", "concat"] | int = "all",
    start: Start = "zero",
) -> Comparison:
    """How alike a word, or a phrase such as "New York", is in each pair of sentences.

    A sentence is text or a list of tokens. The word's first occurrence counts; if the word is not there as it
    is spelled, one in other letters' case does (Bank, bank). A text may mark another place, or another word,
    by double brackets: ``"the bank by the [[bank]]"``. ``layers="all"`` gives each layer and their average.
    """
    if not word.strip():
        raise DataError("expected a word to compare, found none")
    if isinstance(sentences, str) or len(sentences) < 2:
        n = 1 if isinstance(sentences, str) else len(sentences)
        raise DataError(f"expected two or more sentences to compare {word[:40]!r} in, found {n}")
    uses, inputs, places = [], [], []
    for number, sentence in enumerate(sentences, start=1):
        tokens, text, offsets, mark = _read(elmo, sentence, number)
        span = mark or find_word(word, text, offsets)
        inside = [i for i, (begin, end) in enumerate(offsets) if span and begin < span[1] and end > span[0]]
        if span is None or not inside:
            raise DataError(
                f"sentence {number} does not have the word {word[:40]!r}: {start_of(text)!r}; "
                "mark the word that you mean, like [[this]]"
            )
        use = Use(text, span, tokens.tokens[inside[0] : inside[-1] + 1])
        if offsets[inside[0]][0] < span[0] or offsets[inside[-1]][1] > span[1]:
            logger.warning(
                "sentence %d: %r is part of a token, whose vector is taken: %r; is the tokenizer right?",
                number,
                use.word,
                " ".join(use.tokens)[:80],
            )
        uses.append(use)
        inputs.append(tokens)
        places.append((inside[0], inside[-1] + 1))
    encodings = elmo.encode(inputs, layers="all", start=start)
    vectors = np.stack(
        [cast("Vectors", encoding.span(*place)) for encoding, place in zip(encodings, places, strict=True)]
    )  # (use, layer, width)
    return Comparison(word, tuple(uses), _matrices(vectors, layers))


def _matrices(vectors: Vectors, layers: str | int) -> dict[str, NDArray[np.float64]]:
    """Cosines (use, use) per layer of ``vectors`` (use, layer, width)."""
    n_layers = vectors.shape[1]
    chosen: dict[str, Vectors] = {}
    if layers == "all" or isinstance(layers, int):
        numbers = range(n_layers) if isinstance(layers, str) else [layers]
        if not all(0 <= i < n_layers for i in numbers):
            raise ConfigError(f"layer must lie in 0..{n_layers - 1}, found {layers}")
        chosen = {str(i): vectors[:, i] for i in numbers}
    if layers == "top":
        chosen = {str(n_layers - 1): vectors[:, -1]}
    if layers in ("all", "average"):
        chosen["average"] = vectors.mean(axis=1)
    if layers == "concat":
        chosen = {"concat": vectors.reshape(len(vectors), -1)}
    if not chosen:
        raise ConfigError(f"layers must be average, top, all, concat or 0..{n_layers - 1}, not {layers!r}")
    return {name: cast("NDArray[np.float64]", similarity(rows, rows)) for name, rows in chosen.items()}


def _read(
    elmo: Elmo, sentence: str | Sequence[str], number: int
) -> tuple[Tokens, str, tuple[Span, ...], Span | None]:
    """A sentence's tokens, its text, the tokens' places in it, and the place that it marks."""
    if isinstance(sentence, str):
        text, mark = unmarked(sentence, number)
        tokens = elmo.tokenizer(text)
        return tokens, text, tokens.offsets or (), mark
    tokens = Tokens.given(sentence)
    return tokens, " ".join(tokens.tokens), joined_places(tokens.tokens), None
