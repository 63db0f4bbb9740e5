"""A token in, the ids of its characters out: UTF-8 bytes (bilm-tf, AllenNLP) or Unicode characters (EFML).

Ids start at 1; 0 is the mask, which only padding positions of a batch carry.

Words in, ids out: the order of a model's softmax, or of its table of word vectors.

Tokens in, arrays of ids out: what a biLM's token layer reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from elmo.errors import DataError, FormatError
from elmo.text.chinese import check, simplified_word

# bilm-tf's ids, one higher than in its training code, so that 0 can be the mask.
_BOS, _EOS, _BOW, _EOW, _PAD = 257, 258, 259, 260, 261
N_BYTE_CHARACTERS = 261


class Alphabet(Protocol):
    """Turns tokens into rows of character ids, each ``max_characters`` long."""

    max_characters: int

    def ids(self, token: str) -> list[int]:
        """The row of a word; a word that looks like a boundary is still a word."""
        ...

    def read_part(self, token: str) -> str:
        """The part of a word by which a vocabulary beside the alphabet knows it."""
        ...

    def begin(self) -> list[int]:
        """The row of the token that opens every sentence."""
        ...

    def end(self) -> list[int]:
        """The row of the token that closes every sentence."""
        ...


class ByteAlphabet:
    """UTF-8 bytes, as bilm-tf and AllenNLP read them: ``[bow, bytes…, eow, pad…]``."""

    def __init__(self, max_characters: int = 50) -> None:
        self.max_characters = max_characters

    def ids(self, token: str) -> list[int]:
        """The row of a word, cut to ``max_characters - 2`` bytes."""
        room = self.max_characters - 2
        # No character takes less than a byte: cutting first keeps a token of megabytes cheap. Lone
        # surrogates become nothing, as in bilm-tf, so they must not use up the room.
        encoded = token[: 4 * room].encode("utf-8", "ignore")
        if len(encoded) < room and len(token) > 4 * room:
            encoded = token.encode("utf-8", "ignore")
        return self._row([byte + 1 for byte in encoded[:room]])

    def read_part(self, token: str) -> str:
        """The whole word."""
        return token

    def begin(self) -> list[int]:
        """The row of ``<S>``."""
        return self._row([_BOS])

    def end(self) -> list[int]:
        """The row of ``</S>``."""
        return self._row([_EOS])

    def _row(self, inner: list[int]) -> list[int]:
        row = [_BOW, *inner, _EOW]
        return row + [_PAD] * (self.max_characters - len(row))


class SimplifiedAlphabet(ByteAlphabet):
    """UTF-8 bytes of a word in simplified characters, whichever Chinese script it is written in."""

    def __init__(self, max_characters: int = 50) -> None:
        super().__init__(max_characters)
        check()

    def ids(self, token: str) -> list[int]:
        """The row of a word, as ``ByteAlphabet`` has it."""
        return super().ids(simplified_word(token))

    def read_part(self, token: str) -> str:
        """The whole word, simplified."""
        return simplified_word(token)


class UnicodeAlphabet:
    """Unicode characters by a dictionary, as ELMoForManyLangs reads them.

    Its code names its word-boundary ids the wrong way round, in training and at inference alike: a word
    opens with ``<eow>`` and closes with ``<bow>``. The published weights have learned that, so we do it too.
    """

    SPECIAL = ("<bos>", "<eos>", "<bow>", "<eow>", "<pad>", "<oov>")

    def __init__(self, ids: Mapping[str, int], max_characters: int = 50) -> None:
        missing = [name for name in self.SPECIAL if name not in ids]
        if missing:
            raise FormatError(f"character dictionary: expected {', '.join(missing)}, found none")
        self.characters = dict(ids)
        self.max_characters = max_characters
        self._bos, self._eos, self._bow, self._eow, self._pad, self._oov = (
            ids[name] + 1 for name in self.SPECIAL
        )

    def ids(self, token: str) -> list[int]:
        """The row of a word, cut to ``max_characters - 2`` characters."""
        inner = self.read_part(token)
        return self._row([self.characters.get(character, self._oov - 1) + 1 for character in inner])

    def read_part(self, token: str) -> str:
        """The first ``max_characters - 2`` characters: EFML cuts a word before it looks the word up."""
        return token[: self.max_characters - 2]

    def begin(self) -> list[int]:
        """The row of ``<bos>``."""
        return self._row([self._bos])

    def end(self) -> list[int]:
        """The row of ``<eos>``."""
        return self._row([self._eos])

    def _row(self, inner: list[int]) -> list[int]:
        row = [self._eow, *inner, self._bow]
        return row + [self._pad] * (self.max_characters - len(row))


MAXTERMID = "!!!MAXTERMID"  # a line that bilm-tf's vocabulary files may carry; it is no word


@dataclass(frozen=True)
class Vocabulary:
    """Words in id order; the names of boundary and unknown words are the publisher's."""

    words: tuple[str, ...]
    bos: str = "<S>"
    eos: str = "</S>"
    unknown: str = "<UNK>"
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # of doubled words the last counts, as in bilm-tf
        ids = {word: i for i, word in enumerate(self.words)}
        object.__setattr__(self, "_ids", ids)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._ids

    @classmethod
    def from_lines(cls, lines: Iterable[str]) -> Vocabulary:
        """From a vocabulary file's lines: one word each, in id order."""
        words = [line.rstrip("\r\n") for line in lines]
        return cls(tuple(word for word in words if word != MAXTERMID))

    def id(self, word: str) -> int:
        """The id of a word in running text.

        A word that is spelled like a boundary is no boundary: it is unknown, as any word the model
        never read as a word.
        """
        found = None if word in (self.bos, self.eos) else self._ids.get(word)
        if found is None:
            found = self._ids.get(self.unknown)
        if found is None:
            raise DataError(
                f"word {word[:40]!r} is not in the vocabulary, which has no {self.unknown} either"
            )
        return found

    def ids(self, words: Sequence[str]) -> list[int]:
        """The ids of words in running text."""
        return [self.id(word) for word in words]

    @property
    def bos_id(self) -> int:
        """The id of the token that opens a sentence."""
        return self._special(self.bos)

    @property
    def eos_id(self) -> int:
        """The id of the token that closes a sentence."""
        return self._special(self.eos)

    def _special(self, name: str) -> int:
        found = self._ids.get(name)
        if found is None:
            raise FormatError(
                f"vocabulary: expected the word {name}, found none among {len(self.words)} words"
            )
        return found


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
