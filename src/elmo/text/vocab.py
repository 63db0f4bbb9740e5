"""Words in, ids out: the order of a model's softmax, or of its table of word vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from elmo.errors import DataError, FormatError

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
