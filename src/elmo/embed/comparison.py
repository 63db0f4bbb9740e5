"""Compare the vectors of a word in different sentences."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmo.embed.encoding import LayerChoice, Vectors, similarities
from elmo.embed.find import Span, excerpt, find_word, joined_offsets, parse_mark
from elmo.errors import ConfigError, DataError
from elmo.formats.similarity import SimilarityRank
from elmo.text.chinese import simplify_word
from elmo.text.tokenizers import Tokens

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.start import Start

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Use:
    """A usage of a word: the word in one sentence.

    Attributes:
        text: The sentence.
        span: Begin and end of the word in the text, end exclusive.
        tokens: The tokens of the word.
    """

    text: str
    span: Span
    tokens: tuple[str, ...]

    @property
    def word(self) -> str:
        """The word as it is spelled in this sentence."""
        return self.text[slice(*self.span)]

    def marked(self, escape: Callable[[str], str]) -> str:
        """Return the sentence with the word in brackets; ``escape`` is applied to the word and the text around it."""
        begin, end = self.span
        return f"{escape(self.text[:begin])}[{escape(self.word)}]{escape(self.text[end:])}"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Cosine similarities between the usages of a word.

    Attributes:
        word: The word.
        uses: The usage in each sentence.
        matrices: For each kind of vectors ("sense", "0", "1", …, "average"), a matrix of cosines (usage, usage).
        ranks: Rank of each cosine of ``matrices["sense"]`` among random pairs of usages of the word, for each pair of
            usages, numbered from 0; if two different words are marked, among the usages of all words. Empty without
            "sense", and if the model has no similarity statistics.
    """

    word: str
    uses: tuple[Use, ...]
    matrices: Mapping[str, NDArray[np.float64]]
    ranks: Mapping[tuple[int, int], SimilarityRank] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Comparison({self.word!r} in {len(self.uses)} sentences, layers: {', '.join(self.matrices)})"

    def rows(self) -> Iterator[tuple[str, int, int, float]]:
        """Yield (layer, first usage, second usage, similarity) for each layer and pair of usages, numbered from 0."""
        for layer, matrix in self.matrices.items():
            for a in range(len(self.uses)):
                for b in range(a + 1, len(self.uses)):
                    yield layer, a, b, float(matrix[a, b])

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON object."""
        uses = [
            {"text": use.text, "word": use.word, "span": list(use.span), "tokens": list(use.tokens)}
            for use in self.uses
        ]
        similarities = {layer: matrix.tolist() for layer, matrix in self.matrices.items()}
        ranks = [
            {"uses": list(pair), "share": rank.share, "word": rank.word} for pair, rank in sorted(self.ranks.items())
        ]
        return {"word": self.word, "uses": uses, "similarities": similarities, "ranks": ranks}


def compare(
    elmo: Elmo,
    word: str,
    sentences: Sequence[str | Sequence[str]],
    *,
    layers: LayerChoice | int = "sense",
    start: Start = "zero",
    other: Elmo | None = None,
    other_sentences: Sequence[str | Sequence[str]] = (),
) -> Comparison:
    """Compute the cosine similarity of a word, or of a phrase such as "New York", in each pair of sentences.

    The first match in each sentence is used. Matches with the same case are preferred: bank matches bank before Bank.
    To select another match, or another word, mark it in the text: ``"the bank by the [[bank]]"``.

    Args:
        elmo: The model.
        word: A word or a phrase.
        sentences: Two or more sentences, each a string or a list of tokens.
        layers: As in ``Elmo.encode``; "all" compares each layer and the average of all layers.
            With "sense", the similarities are also ranked, if the model has similarity statistics.
        start: As in ``Elmo.encode``.
        other: A model of another language that is aligned to this model, or the reverse; see ``elmo align``.
        other_sentences: Sentences of the other language, with a word that is marked like ``[[this]]``. Pairs of
            sentences of both languages are not ranked.

    Example:
        >>> comparison = compare(elmo, "bank", ["The bank of the river.", "The bank gave a loan.", "A bank lent it."])
        >>> cosines = comparison.matrices["sense"]
        >>> cosines.shape
        (3, 3)
        >>> bool(cosines[1, 2] > cosines[0, 1])
        True
    """
    if not word.strip():
        raise DataError("the word to compare must not be empty")
    n_own = 1 if isinstance(sentences, str) else len(sentences)
    n = n_own + len(other_sentences)
    if n < 2 or isinstance(sentences, str):
        raise DataError(f"cannot compare {word[:40]!r}: there must be two or more sentences; found {n}")
    if isinstance(other_sentences, str):
        raise DataError("other_sentences must be a list of sentences; found a string")
    if (other is None) != (not other_sentences):
        raise ConfigError("other and other_sentences must be passed together: a second model and sentences for it")
    if other is not None and elmo.coordinates().isdisjoint(other.coordinates()):
        raise ConfigError(
            "cannot compare the vectors of these models: neither is aligned to the other; align one with: elmo align"
        )
    models = [elmo] * n_own + [other or elmo] * len(other_sentences)
    uses, inputs, spans = [], [], []
    for number, (model, sentence) in enumerate(zip(models, (*sentences, *other_sentences), strict=True), start=1):
        tokens, text, offsets, mark = _read_sentence(model, sentence, number)
        span = mark or find_word(word, text, offsets) or _find_spelling(model, word, tokens, offsets)
        inside = [i for i, (begin, end) in enumerate(offsets) if span and begin < span[1] and end > span[0]]
        if span is None or not inside:
            raise DataError(
                f"cannot find {word[:40]!r} in sentence {number}: {excerpt(text)!r}; mark the word to compare, "
                "like [[this]]"
            )
        use = Use(text, span, tokens.tokens[inside[0] : inside[-1] + 1])
        if offsets[inside[0]][0] < span[0] or offsets[inside[-1]][1] > span[1]:
            logger.warning(
                "sentence %d: %r is only part of the token %r; using the vector of the token; check the tokenizer",
                number,
                use.word,
                " ".join(use.tokens)[:80],
            )
        uses.append(use)
        inputs.append(tokens)
        spans.append((inside[0], inside[-1] + 1))
    is_sense = isinstance(layers, str) and layers == "sense"
    encodings = elmo.encode(inputs[:n_own], layers="sense" if is_sense else "all", start=start)
    if other is not None:
        encodings += other.encode(inputs[n_own:], layers="sense" if is_sense else "all", start=start)
    vectors = np.stack(
        [encoding.span(*span) for encoding, span in zip(encodings, spans, strict=True)]
    )  # (usage, layer, width), or (usage, width) for sense
    if not is_sense:
        return Comparison(word, tuple(uses), _compute_matrices(vectors, layers))
    cosines = similarities(vectors, vectors)
    ranks: dict[tuple[int, int], SimilarityRank] = {}
    for a, b in chain(combinations(range(n_own), 2), combinations(range(n_own, n), 2)):
        elmo = models[a]
        own = uses[a].word if spell_entry(elmo, uses[a].word) == spell_entry(elmo, uses[b].word) else None
        if (rank := rank_similarity(elmo, own, float(cosines[a, b]))) is not None:
            ranks[a, b] = rank
    return Comparison(word, tuple(uses), {"sense": cosines}, ranks)


def rank_similarity(elmo: Elmo, word: str | None, cosine: float) -> SimilarityRank | None:
    """Rank the cosine of two usages of a word among random pairs of usages of this word.

    The cosine must be that of vectors with ``layers="sense"``. Words that are rare in the text of ``elmo calibrate``
    are ranked among the usages of all words, and so are two different words (None). The result is None if the model has
    no similarity statistics.

    Args:
        elmo: The model.
        word: The word; None for two different words.
        cosine: The cosine of the vectors of both usages.

    Example:
        >>> low, high = (rank_similarity(elmo, "bank", cosine) for cosine in (0.1, 0.9))
        >>> low.share < high.share
        True
    """
    statistics = elmo.pretrained.similarity
    if statistics is None:
        return None
    return statistics.rank(None if word is None else spell_entry(elmo, word), cosine)


def spell_entry(elmo: Elmo, word: str) -> str:
    """Return a word as it is spelled in the similarity statistics of a model."""
    return (simplify_word(word) if elmo.config.alphabet == "simplified" else word).lower()


def _read_sentence(
    elmo: Elmo, sentence: str | Sequence[str], number: int
) -> tuple[Tokens, str, tuple[Span, ...], Span | None]:
    """Return the tokens of a sentence, its text, the offsets of the tokens in it, and the marked span."""
    if isinstance(sentence, str):
        text, mark = parse_mark(sentence, number)
        tokens = elmo.tokenizer(text)
        return tokens, text, tokens.offsets or (), mark
    tokens = Tokens.from_words(sentence)
    return tokens, " ".join(tokens.tokens), joined_offsets(tokens.tokens), None


def _find_spelling(elmo: Elmo, word: str, tokens: Tokens, offsets: Sequence[Span]) -> Span | None:
    """Find the first token that a model of simplified Chinese reads as the word: 蘋果 for 苹果."""
    if elmo.config.alphabet != "simplified":
        return None
    entry = spell_entry(elmo, word.strip())
    return next((o for t, o in zip(tokens.tokens, offsets, strict=True) if spell_entry(elmo, t) == entry), None)


def _compute_matrices(vectors: Vectors, layers: str | int) -> dict[str, NDArray[np.float64]]:
    """Compute the cosines (usage, usage) in each layer from ``vectors`` (usage, layer, width)."""
    n_layers = vectors.shape[1]
    selected = {str(i): vectors[:, i] for i in range(n_layers) if layers in ("all", i)}
    if layers == "top":
        selected = {str(n_layers - 1): vectors[:, -1]}
    if layers in ("all", "average"):
        selected["average"] = vectors.mean(axis=1)
    if layers == "concat":
        selected = {"concat": vectors.reshape(len(vectors), -1)}
    if not selected:
        raise ConfigError(f"layers must be sense, average, top, all, concat or 0..{n_layers - 1}; found {layers!r:.40}")
    return {name: similarities(rows, rows) for name, rows in selected.items()}
