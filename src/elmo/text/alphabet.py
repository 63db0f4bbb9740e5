"""A token in, the ids of its characters out: UTF-8 bytes (bilm-tf, AllenNLP) or Unicode characters (EFML).

Ids start at 1; 0 is the mask, which only padding positions of a batch carry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from elmo.errors import FormatError
from elmo.text.simplified import check, simplified_word

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
