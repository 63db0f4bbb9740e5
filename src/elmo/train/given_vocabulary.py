"""A vocabulary that the user gives in, the words that a corpus numbers first out, checked.

bilm-tf's files hold one word a line in id order, ``<S>``, ``</S>`` and ``<UNK>`` among them. A corpus has its
own places for these three, so only their presence counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from elmo.errors import DataError, raise_all
from elmo.formats.files import MAX_LINES, shown
from elmo.text.lines import read_lines
from elmo.text.vocab import Vocabulary
from elmo.train.word_types import FIRST_WORD, SPECIAL

GivenVocabulary = str | Path | Vocabulary | Sequence[str]
_MAX_WORDS = MAX_LINES - FIRST_WORD  # a model's vocab.txt holds no more


def given_words(vocabulary: GivenVocabulary) -> list[bytes]:
    """The words of a file, a ``Vocabulary`` or a list, special ones aside, in their order.

    ``DataError`` for special words that are missing, words that stand twice, empty ones, and what is no list
    of words at all.
    """
    if isinstance(vocabulary, str | Path):
        return _checked(_from_file(Path(vocabulary)), subject=shown(vocabulary), unit="line")
    if not isinstance(vocabulary, Vocabulary):
        if not all(isinstance(word, str) for word in vocabulary):
            raise DataError("vocabulary: expected a file or words, found a list that holds something else")
        vocabulary = Vocabulary(tuple(vocabulary))
    return _checked(vocabulary, subject="vocabulary", unit="word")


def digest(words: Sequence[bytes]) -> str:
    """A SHA-256 that tells two vocabularies apart."""
    return hashlib.sha256(b"\n".join(words)).hexdigest()


def _from_file(path: Path) -> Vocabulary:
    if path.is_dir():
        raise DataError(f"{shown(path)}: expected a vocabulary file, one word a line, found a folder")
    lines: list[str] = []
    for line in read_lines(path):
        if "\0" in line.text or "\t" in line.text:
            found = "a NUL: it is a binary file" if "\0" in line.text else "a tab: is it a table with counts?"
            raise DataError(f"{shown(path)}:{line.number}: expected one word a line, found {found}")
        lines.append(line.text)
        if len(lines) > MAX_LINES:
            raise DataError(f"{shown(path)}: expected at most {MAX_LINES:,} words, found more")
    return Vocabulary.from_lines(lines)


def _checked(vocabulary: Vocabulary, *, subject: str, unit: str) -> list[bytes]:
    """The ordinary words in UTF-8; every problem is told at once."""
    specials = (vocabulary.bos, vocabulary.eos, vocabulary.unknown)
    missing = [name for name in specials if name not in vocabulary]
    problems = [f"expected the special words {', '.join(specials)}, found no {', '.join(missing)}"] * bool(
        missing
    )
    first: dict[str, int] = {}
    for number, word in enumerate(vocabulary.words, start=1):
        if not word or "\n" in word:
            problems.append(
                f"expected a word, found {'a line break in' if word else 'an empty'} {unit} {number}"
            )
        elif word in first:
            problems.append(f"the word {word[:40]!r} stands twice, as {unit} {first[word]} and {number}")
        elif word in SPECIAL and word not in specials:  # a corpus would take it for one
            problems.append(f"expected words, found the special {word} as {unit} {number}")
        first.setdefault(word, number)
    if not problems and len(first) <= len(specials):
        problems.append("expected words beside the special ones, found none")
    if len(first) > _MAX_WORDS + len(specials):
        problems.append(f"expected at most {MAX_LINES:,} words, found {len(first):,}")
    raise_all(problems[:3], subject=subject, kind=DataError)
    try:
        return [word.encode("utf-8") for word in first if word not in specials]
    except UnicodeEncodeError as error:
        raise DataError(
            f"{subject}: expected Unicode text, found the lone surrogate {error.object[error.start]!a}"
        ) from error
