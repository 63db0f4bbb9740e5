"""Convert tokens to the ids that a biLM reads: character ids, word ids, and padded batches of them.

Characters are UTF-8 bytes (bilm-tf, AllenNLP) or Unicode characters (ELMoForManyLangs). A vocabulary gives
the ids of words, for the softmax or for a table of word vectors. In a batch, ids start at 1; 0 is padding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from elmo.errors import DataError, FormatError
from elmo.text.chinese import check_opencc, simplify_word

N_BYTE_CHARACTERS = 261  # 256 bytes and 5 special characters


class Alphabet(ABC):
    """Converts tokens to rows of ``max_characters`` character ids: ``[bow, characters…, eow, pad…]``."""

    bos: int  # ids of the special characters: sentence boundaries, word boundaries, padding
    eos: int
    bow: int
    eow: int
    pad: int

    def __init__(self, max_characters: int = 50) -> None:
        self.max_characters = max_characters

    @abstractmethod
    def ids(self, token: str) -> list[int]:
        """Return the row of a word, cut to ``max_characters``; a word such as ``<S>`` is never a boundary token."""

    def lookup_form(self, token: str) -> str:
        """Return the form of a word to look up in the vocabulary, for a model that reads both characters and words."""
        return token

    def begin(self) -> list[int]:
        """Return the character ids of the boundary token that starts a sentence."""
        return self._row([self.bos])

    def end(self) -> list[int]:
        """Return the character ids of the boundary token that ends a sentence."""
        return self._row([self.eos])

    def _row(self, inner: list[int]) -> list[int]:
        row = [self.bow, *inner, self.eow]
        return row + [self.pad] * (self.max_characters - len(row))


class ByteAlphabet(Alphabet):
    """UTF-8 bytes as characters, with the ids of bilm-tf and AllenNLP."""

    # one higher than in the training code of bilm-tf, because id 0 is the padding of a batch
    bos, eos, bow, eow, pad = 257, 258, 259, 260, 261

    def ids(self, token: str) -> list[int]:
        """Return the row of a word, cut to ``max_characters - 2`` bytes."""
        n_bytes = self.max_characters - 2
        # Encode only the start of a very long token. Lone surrogates are dropped, as in bilm-tf; if that leaves
        # too few bytes, encode the whole token.
        encoded = token[: 4 * n_bytes].encode("utf-8", "ignore")
        if len(encoded) < n_bytes and len(token) > 4 * n_bytes:
            encoded = token.encode("utf-8", "ignore")
        return self._row([byte + 1 for byte in encoded[:n_bytes]])


class SimplifiedAlphabet(ByteAlphabet):
    """UTF-8 bytes of words as characters, after conversion from traditional to simplified Chinese."""

    def __init__(self, max_characters: int = 50) -> None:
        super().__init__(max_characters)
        check_opencc()

    def ids(self, token: str) -> list[int]:
        """Return the row of the simplified word."""
        return super().ids(simplify_word(token))

    def lookup_form(self, token: str) -> str:
        """Return the simplified word."""
        return simplify_word(token)


class UnicodeAlphabet(Alphabet):
    """Unicode characters with the ids of a dictionary, as in ELMoForManyLangs.

    The code of ELMoForManyLangs swaps the ids of the word boundaries, in training and in inference: a word
    starts with ``<eow>`` and ends with ``<bow>``. The published weights were trained that way, so this
    class swaps them too.
    """

    SPECIAL = ("<bos>", "<eos>", "<bow>", "<eow>", "<pad>", "<oov>")

    def __init__(self, ids: Mapping[str, int], max_characters: int = 50) -> None:
        super().__init__(max_characters)
        missing = [name for name in self.SPECIAL if name not in ids]
        if missing:
            raise FormatError(f"character dictionary has no entry for {', '.join(missing)}")
        self.characters = dict(ids)
        self.bos, self.eos, self.eow, self.bow, self.pad, self._oov = (ids[name] + 1 for name in self.SPECIAL)

    def ids(self, token: str) -> list[int]:
        """Return the row of a word, cut to ``max_characters - 2`` characters."""
        inner = self.lookup_form(token)
        return self._row([self.characters.get(character, self._oov - 1) + 1 for character in inner])

    def lookup_form(self, token: str) -> str:
        """Return the first ``max_characters - 2`` characters: ELMoForManyLangs cuts a word before the lookup."""
        return token[: self.max_characters - 2]


MAXTERMID = "!!!MAXTERMID"  # a line of some bilm-tf vocabulary files; not a word


@dataclass(frozen=True)
class Vocabulary:
    """The words of a model in the order of their ids, and the names of its boundary tokens and its unknown word."""

    words: tuple[str, ...]
    bos: str = "<S>"
    eos: str = "</S>"
    unknown: str = "<UNK>"
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # a repeated word gets the id of its last occurrence, as in bilm-tf
        ids = {word: i for i, word in enumerate(self.words)}
        object.__setattr__(self, "_ids", ids)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._ids

    @classmethod
    def from_lines(cls, lines: Iterable[str]) -> Vocabulary:
        """Build a vocabulary from the lines of a file: one word per line, in the order of the ids."""
        words = [line.rstrip("\r\n") for line in lines]
        return cls(tuple(word for word in words if word != MAXTERMID))

    def id(self, word: str) -> int:
        """Return the id of a word of a text.

        A word that is spelled like a boundary token is treated as unknown: the model was never trained on it as a
        word.
        """
        word_id = None if word in (self.bos, self.eos) else self._ids.get(word)
        if word_id is None:
            word_id = self._ids.get(self.unknown)
        if word_id is None:
            raise DataError(f"word {word[:40]!r} is not in the vocabulary, and the vocabulary has no {self.unknown}")
        return word_id

    def ids(self, words: Sequence[str]) -> list[int]:
        """Return the ids of the words of a text."""
        return [self.id(word) for word in words]

    @property
    def bos_id(self) -> int:
        """Id of the token that starts a sentence."""
        return self._special(self.bos)

    @property
    def eos_id(self) -> int:
        """Id of the token that ends a sentence."""
        return self._special(self.eos)

    def _special(self, name: str) -> int:
        if name not in self._ids:
            raise FormatError(f"vocabulary of {len(self.words)} words must contain the boundary token {name}")
        return self._ids[name]


Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TokenIds:
    """The ids of n tokens; None for the kind of ids that the model does not read."""

    char_ids: Ids | None  # (n, char)
    word_ids: Ids | None  # (n,)


@dataclass(frozen=True)
class IdBatch:
    """The ids of sentences with their boundary tokens, padded with 0."""

    char_ids: Ids | None  # (batch, time, char)
    word_ids: Ids | None  # (batch, time)
    lengths: Ids  # (batch,): number of tokens, including both boundary tokens


class TokenIndexer:
    """Converts tokens to ids with the alphabet of a model, its vocabulary, or both."""

    def __init__(self, alphabet: Alphabet | None, vocab: Vocabulary | None) -> None:
        if alphabet is None and vocab is None:
            raise DataError("token indexer needs an alphabet, a vocabulary or both; found neither")
        self.alphabet = alphabet
        self.vocab = vocab

    def words(self, tokens: Sequence[str]) -> TokenIds:
        """Return the ids of words."""
        forms = tokens if self.alphabet is None else [self.alphabet.lookup_form(token) for token in tokens]
        return self._build(
            [] if self.alphabet is None else [self.alphabet.ids(token) for token in tokens],
            [] if self.vocab is None else self.vocab.ids(forms),
        )

    def boundaries(self) -> TokenIds:
        """Return the ids of both boundary tokens: the start and the end of a sentence."""
        return self._build(
            [] if self.alphabet is None else [self.alphabet.begin(), self.alphabet.end()],
            [] if self.vocab is None else [self.vocab.bos_id, self.vocab.eos_id],
        )

    def batch(self, sentences: Sequence[Sequence[str]]) -> IdBatch:
        """Return the ids of sentences between their boundary tokens, padded to the longest sentence."""
        lengths = np.array([len(sentence) + 2 for sentence in sentences], dtype=np.int64)
        edges, rows = self.boundaries(), [self.words(sentence) for sentence in sentences]

        def pad(kind: str) -> Ids | None:
            edge = getattr(edges, kind)
            if edge is None:
                return None
            padded = np.zeros((len(sentences), int(lengths.max(initial=2)), *edge.shape[1:]), dtype=np.int64)
            for target, row, length in zip(padded, rows, lengths, strict=True):
                target[:length] = np.concatenate([edge[:1], getattr(row, kind), edge[1:]])
            return padded

        return IdBatch(pad("char_ids"), pad("word_ids"), lengths)

    def _build(self, char_ids: list[list[int]], word_ids: list[int]) -> TokenIds:
        """Return the ids as arrays; the vocabulary's word ids are increased by 1, because 0 is padding."""
        return TokenIds(
            np.array(char_ids, dtype=np.int64).reshape(-1, self.alphabet.max_characters) if self.alphabet else None,
            np.array(word_ids, dtype=np.int64) + 1 if self.vocab is not None else None,
        )
