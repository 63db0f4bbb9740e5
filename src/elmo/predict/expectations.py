"""Predict the words that both language models expect at every position of a sentence.

The forward language model reads the words before a position, the backward one the words after it; neither reads the
word itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmo.embed.elmo import Elmo, as_tokens
from elmo.errors import ConfigError
from elmo.predict.predictor import BOS, EOS, FIRST_WORD, PredictionRow, Predictor, TopWords, trained_directions
from elmo.text.tokenizers import Tokens


@dataclass(frozen=True)
class ExpectedWord:
    """A word that a language model expects, and its probability.

    Attributes:
        word: The word.
        probability: Its probability.
    """

    word: str
    probability: float


@dataclass(frozen=True, eq=False)
class Expectations:
    """What both language models expect at each position of a sentence.

    Attributes:
        sentence: The tokens of the sentence.
        is_unknown: Whether a token is not in the vocabulary, (time,).
        forward: For each token, the words that the forward language model expects, the most probable first; None if
            the model has only the backward direction.
        backward: The same for the backward language model.
        forward_log_probability: Log-probability of each token in the forward language model, (time,).
        backward_log_probability: The same for the backward language model.
    """

    sentence: Tokens
    is_unknown: NDArray[np.bool_]
    forward: tuple[tuple[ExpectedWord, ...], ...] | None
    backward: tuple[tuple[ExpectedWord, ...], ...] | None
    forward_log_probability: NDArray[np.floating] | None
    backward_log_probability: NDArray[np.floating] | None

    def to_json(self) -> dict[str, Any]:
        """Return the expectations as a dictionary of JSON values."""
        words = {
            name: None if rows is None else [[vars(item) for item in row] for row in rows]
            for name, rows in (("forward", self.forward), ("backward", self.backward))
        }
        log_p = {
            f"{name}_log_probability": None if values is None else values.tolist()
            for name, values in (("forward", self.forward_log_probability), ("backward", self.backward_log_probability))
        }
        return {"tokens": self.sentence.tokens, "is_unknown": self.is_unknown.tolist(), **words, **log_p}


class ExpectationModel:
    """A model that is prepared to predict the expected words of many sentences."""

    def __init__(self, elmo: Elmo) -> None:
        self._elmo = elmo
        self._predictor = Predictor(elmo)
        self._directions = {"both": (0, 1), "forward": (0,), "backward": (1,)}[trained_directions(elmo)]

    def predict(self, sentences: Sequence[str | Sequence[str] | Tokens], *, n: int = 10) -> list[Expectations]:
        """Predict the ``n`` most probable words at every position of each sentence."""
        if n < 1:
            raise ConfigError(f"n must be at least 1; found {n}")
        tokenizer = self._elmo.tokenizer
        items = [as_tokens(item, tokenizer, subject=f"sentence {k}") for k, item in enumerate(sentences, start=1)]
        spellings = list(dict.fromkeys(token for tokens in items for token in tokens.tokens))
        numbers = {word: number for number, word in enumerate(spellings, start=FIRST_WORD)}
        predictor = self._predictor.freeze()
        words = predictor.words(spellings)
        rows = [np.array([numbers[token] for token in tokens.tokens], dtype=np.int64) for tokens in items]
        by_direction: list[list[TopWords] | None] = [None, None]
        for direction in self._directions:
            ends = (BOS, EOS) if direction == 0 else (EOS, BOS)
            read = [row if direction == 0 else row[::-1] for row in rows]
            predictions = [
                PredictionRow(np.concatenate([[ends[0]], row]), np.concatenate([row, [ends[1]]])) for row in read
            ]
            by_direction[direction] = predictor.top_words(words, predictions, predictor.zero, direction=direction, n=n)
        results = []
        for k, (tokens, row) in enumerate(zip(items, rows, strict=True)):
            forward, backward = (
                None if tops is None else self._expected(tops[k], len(row), is_reversed=direction == 1)
                for direction, tops in enumerate(by_direction)
            )
            results.append(
                Expectations(
                    tokens, words.is_unknown[row], forward and forward[0], backward and backward[0],
                    forward and forward[1], backward and backward[1],
                )
            )  # fmt: skip
        return results

    def _expected(
        self, tops: TopWords, n_tokens: int, *, is_reversed: bool
    ) -> tuple[tuple[tuple[ExpectedWord, ...], ...], NDArray[np.floating]]:
        """Return the expected words and the log-probabilities in the order of the text, without the boundary."""
        vocabulary = self._predictor.vocab.words
        order = range(n_tokens - 1, -1, -1) if is_reversed else range(n_tokens)
        rows = tuple(
            tuple(
                ExpectedWord(vocabulary[int(word)], float(np.exp(log_p)))
                for word, log_p in zip(tops.ids[k], tops.log_p[k], strict=True)
            )
            for k in order
        )
        return rows, tops.own_log_p[list(order)]


def predict_expectations(
    elmo: Elmo, sentences: Sequence[str | Sequence[str] | Tokens], *, n: int = 10
) -> list[Expectations]:
    """Predict the words that both language models expect at every position of each sentence.

    Args:
        elmo: A model with a softmax and a vocabulary.
        sentences: Sentences, as text or as lists of tokens.
        n: Number of words per position and direction.

    Example:
        >>> (result,) = predict_expectations(elmo, ["The bank gave her a loan."], n=3)
        >>> len(result.forward[1]), len(result.backward[1])  # words in the place of "bank"
        (3, 3)
    """
    return ExpectationModel(elmo).predict(sentences, n=n)
