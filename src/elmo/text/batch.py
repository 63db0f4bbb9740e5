"""Tokens in, arrays of ids out: what a biLM's token layer reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmo.errors import DataError
from elmo.text.alphabet import Alphabet
from elmo.text.vocab import Vocabulary

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TokenIds:
    """A row for each of n tokens; the parts that the model does not read are None."""

    char_ids: Ids | None  # (n, char)
    word_ids: Ids | None  # (n,)


@dataclass(frozen=True)
class CharBatch:
    """Padded sentences with their boundary tokens: 0 stands where a sentence has ended."""

    char_ids: Ids | None  # (batch, time, char)
    word_ids: Ids | None  # (batch, time)
    lengths: Ids  # (batch,): tokens, both boundaries counted


class TokenIndexer:
    """Looks tokens up in a model's alphabet, its vocabulary, or both."""

    def __init__(self, alphabet: Alphabet | None, vocab: Vocabulary | None) -> None:
        if alphabet is None and vocab is None:
            raise DataError("an indexer needs an alphabet, a vocabulary or both")
        self.alphabet = alphabet
        self.vocab = vocab

    def words(self, tokens: Sequence[str]) -> TokenIds:
        """A row for each word."""
        parts = tokens if self.alphabet is None else [self.alphabet.read_part(token) for token in tokens]
        return TokenIds(
            None if self.alphabet is None else self._rows([self.alphabet.ids(token) for token in tokens]),
            None if self.vocab is None else np.array([i + 1 for i in self.vocab.ids(parts)], dtype=np.int64),
        )

    def boundaries(self) -> TokenIds:
        """Two rows: the token that opens a sentence, and the one that closes it."""
        return TokenIds(
            None if self.alphabet is None else self._rows([self.alphabet.begin(), self.alphabet.end()]),
            None
            if self.vocab is None
            else np.array([self.vocab.bos_id + 1, self.vocab.eos_id + 1], dtype=np.int64),
        )

    def batch(self, sentences: Sequence[Sequence[str]]) -> CharBatch:
        """Sentences side by side, each between its boundaries, padded to the longest."""
        lengths = np.array([len(sentence) + 2 for sentence in sentences], dtype=np.int64)
        time = int(lengths.max(initial=2))
        edges = self.boundaries()
        rows = [self.words(sentence) for sentence in sentences]
        char_ids = word_ids = None
        if self.alphabet is not None:
            char_ids = np.zeros((len(sentences), time, self.alphabet.max_characters), dtype=np.int64)
        if self.vocab is not None:
            word_ids = np.zeros((len(sentences), time), dtype=np.int64)
        for k, row in enumerate(rows):
            end = int(lengths[k]) - 1
            for target, words, edge in (
                (char_ids, row.char_ids, edges.char_ids),
                (word_ids, row.word_ids, edges.word_ids),
            ):
                if target is not None and words is not None and edge is not None:
                    target[k, 0], target[k, 1:end], target[k, end] = edge[0], words, edge[1]
        return CharBatch(char_ids, word_ids, lengths)

    def _rows(self, rows: list[list[int]]) -> Ids:
        if self.alphabet is None:
            raise DataError("this model reads no characters")
        return np.array(rows, dtype=np.int64).reshape(len(rows), self.alphabet.max_characters)
