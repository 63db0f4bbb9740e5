"""Sentences in, the same with the places of those words that are wanted, out.

Sentences and words in, the uses of these words out: where each stands, and its vector there.

A sentence and words in it, marked like ``[[this]]`` or named, in; their usages out.

A folder of TSV files of uses in, usages by word and period out.

The files are those of the Diachronic Word Usage Graphs (DWUG, Schlechtweg et al. 2021): ``uses.csv`` or
``WORD.uses.csv``, anywhere below the folder, compressed or not; parted by tabs, without quoting. A use has a
lemma, a period (``grouping``), a tokenised sentence and the place of the word in it.
"""

from __future__ import annotations

import logging
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from elmo.embed.encoding import Span, find_word, joined_places, start_of, unmarked, without_marks
from elmo.engine.batches import pieces
from elmo.errors import ConfigError, DataError, ShapeError
from elmo.storage.files import shown
from elmo.text.chinese import simplified_word
from elmo.text.lines import Line, read_lines
from elmo.text.reader import Sentence
from elmo.text.tokenizers import Tokenizer, Tokens, WhitespaceTokenizer

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.encoding import LayerChoice
    from elmo.model.mix import LayerMix


Key = Callable[[str], str]  # a token to the entry that it is a use of
T = TypeVar("T")
_INSIDE = frozenset("-'’.·\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}")  # a word, beside its letters


def entry_key(elmo: Elmo, *, keep_case: bool = False) -> Key:
    """Which tokens are one word to this model's reader: Bank and bank, and 蘋果 and 苹果 if it reads both."""
    return entry_key_of(is_simplified=elmo.config.alphabet == "simplified", keep_case=keep_case)


def entry_key_of(*, is_simplified: bool, keep_case: bool) -> Key:
    """The same without a model."""

    def key(token: str) -> str:
        spelled = simplified_word(token) if is_simplified else token
        return spelled if keep_case else spelled.lower()

    return key


def entry_of(word: str, key: Key) -> str:
    """The entry of a word, or of a phrase, whose parts stand between spaces."""
    return " ".join(map(key, parts_of(word)))


def parts_of(word: str) -> tuple[str, ...]:
    """The tokens of a phrase, cut as ``WhitespaceTokenizer`` cuts: other spaces stand inside tokens."""
    parts = WhitespaceTokenizer()(word).tokens
    if not parts:
        raise DataError("expected a word, found white space only")
    return parts


def is_word(token: str) -> bool:
    """Whether a token is spelled with letters: vowel signs (हिन्दी) belong to them, as do hyphens inside."""
    if token.isalpha():
        return True
    return token[:1].isalpha() and all(
        c.isalpha() or c in _INSIDE or unicodedata.category(c)[0] == "M" for c in token
    )


class Choice:
    """All words, or those of a list; a word may be a phrase, whose tokens follow each other.

    What is no word (without a letter or digit) is taken only if the list has it.
    """

    def __init__(self, words: Iterable[str] | None, *, key: Key) -> None:
        self._key = key
        self._phrases: dict[str, list[tuple[str, ...]]] | None = None
        if words is not None:
            self._phrases = {}
            for entry in dict.fromkeys(entry_of(word, key) for word in words):
                parts = tuple(entry.split(" "))
                self._phrases.setdefault(parts[0], []).append(parts)

    def found(self, tokens: Sequence[str]) -> list[tuple[Span, str]]:
        """The places of the words in a sentence, each with its entry."""
        keys = [self._key(token) for token in tokens]
        if self._phrases is None:
            return [
                ((k, k + 1), entry)
                for k, entry in enumerate(keys)
                if entry.isalnum() or any(map(str.isalnum, entry))
            ]
        places: list[tuple[Span, str]] = []
        for begin, first in enumerate(keys):
            for parts in self._phrases.get(first, ()):
                end = begin + len(parts)
                if len(parts) == 1 or tuple(keys[begin:end]) == parts:
                    places.append(((begin, end), " ".join(parts)))
        return places


class Reservoir(Generic[T]):
    """Of all that is added, ``limit`` are kept, each with the same chance (Vitter 1985).

    The chance is the entry's own: what is kept of a word does not depend on other words.
    """

    def __init__(self, limit: int | None, *, seed: int, entry: str) -> None:
        if limit is not None and limit < 1:
            raise ConfigError(f"limit must be at least 1, found {limit}")
        self._limit, self._chance = limit, None
        self._name = f"{seed} {entry}".encode("utf-8", "surrogatepass")
        self._kept: list[tuple[int, T]] = []
        self.n = 0  # added so far

    def add(self, item: T) -> None:
        """Keep it, perhaps in the place of another."""
        self.n += 1
        if self._limit is None or len(self._kept) < self._limit:
            self._kept.append((self.n, item))
            return
        self._chance = self._chance or random.Random(self._name)
        place = self._chance.randrange(self.n)
        if place < self._limit:
            self._kept[place] = (self.n, item)

    def kept(self) -> list[T]:
        """In the order in which they were added."""
        return [item for _, item in sorted(self._kept, key=lambda pair: pair[0])]


class Sample:
    """Of each entry at most ``limit`` places of a text, known by a running number."""

    def __init__(self, sentences: Iterable[Sentence], choice: Choice, *, limit: int, seed: int) -> None:
        """Read the text once."""
        reservoirs: dict[str, Reservoir[int]] = {}
        number = 0
        for sentence in sentences:
            for _, entry in choice.found(sentence.tokens.tokens):
                if entry not in reservoirs:
                    reservoirs[entry] = Reservoir(limit, seed=seed, entry=entry)
                reservoirs[entry].add(number)
                number += 1
        self.counts = Counter({entry: found.n for entry, found in reservoirs.items()})
        self.places = frozenset(number for found in reservoirs.values() for number in found.kept())


@dataclass(frozen=True)
class UsedSentence(Sentence):
    """A sentence and the places of those of its words whose vectors are wanted."""

    spans: tuple[Span, ...] = ()
    entries: tuple[str, ...] = ()  # what each is a use of


class Reader:
    """Gives the sentences that have something to index, and counts what it read."""

    def __init__(self, choice: Choice, sample: Sample | None = None) -> None:
        self.choice, self.sample = choice, sample
        self.n_sentences = self.n_tokens = 0

    def used(self, sentences: Iterable[Sentence]) -> Iterator[UsedSentence]:
        """Those with a word that is wanted, in their order."""
        number = 0
        for sentence in sentences:
            self.n_sentences += 1
            self.n_tokens += len(sentence)
            found = self.choice.found(sentence.tokens.tokens)
            if self.sample is not None:
                first, number = number, number + len(found)
                found = [one for k, one in enumerate(found, start=first) if k in self.sample.places]
            if found:
                yield UsedSentence(
                    sentence.tokens, sentence.path, sentence.line, sentence.start,
                    spans=tuple(span for span, _ in found), entries=tuple(entry for _, entry in found),
                )  # fmt: skip

    @property
    def counts(self) -> Mapping[str, int] | None:
        """How often each entry stands in the text, where the index has fewer usages of it."""
        return None if self.sample is None else self.sample.counts


Vectors = NDArray[np.floating[Any]]

__all__ = ["Usage", "Usages", "embed_usages", "entry_key", "find_usages", "respelled"]


@dataclass(frozen=True)
class Usage:
    """A word, or a phrase of several tokens, in a sentence."""

    sentence: Tokens
    begin: int  # the word's first token
    end: int  # one after its last
    place: str = ""  # file:line, or what else the sentence is known by

    def __post_init__(self) -> None:
        if not 0 <= self.begin < self.end <= len(self.sentence):
            raise DataError(
                f"{self.place or 'a usage'}: expected a place within {len(self.sentence)} tokens, "
                f"found {self.begin}..{self.end}"
            )

    @property
    def word(self) -> str:
        """The word as it is spelled here."""
        return " ".join(self.sentence.tokens[self.begin : self.end])

    def parts(self) -> tuple[str, str, str]:
        """The sentence as text: what stands before the word, the word, and what stands after it."""
        tokens, text, offsets = self.sentence.tokens, self.sentence.text, self.sentence.offsets
        if text is not None and offsets is not None:
            begin, end = offsets[self.begin][0], offsets[self.end - 1][1]
            return text[:begin], text[begin:end], text[end:]
        before, after = tokens[: self.begin], tokens[self.end :]
        return "".join(f"{t} " for t in before), self.word, "".join(f" {t}" for t in after)


@dataclass(frozen=True, eq=False)
class Usages:
    """Uses of words with their vectors: row k of ``vectors`` (usage, width) belongs to item k."""

    items: tuple[Usage, ...]
    vectors: Vectors

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or len(self.vectors) != len(self.items):
            raise ShapeError(
                f"expected vectors (usage, width) of {len(self.items)} usages, found {self.vectors.shape}"
            )

    def __len__(self) -> int:
        return len(self.items)


def find_usages(
    sentences: Iterable[Sentence], words: Sequence[str], *, key: Key, limit: int | None = None, seed: int = 0
) -> dict[str, list[Usage]]:
    """The uses of each word, in the order of the text; of more than ``limit``, a fair sample.

    A word may be a phrase: its parts, cut at spaces, are tokens that follow each other.
    """
    entries = {word: entry_of(word, key) for word in words}
    samples = {
        entry: Reservoir[Usage](limit, seed=seed, entry=entry) for entry in dict.fromkeys(entries.values())
    }
    choice = Choice(words, key=key)
    for sentence in sentences:
        for (begin, end), entry in choice.found(sentence.tokens.tokens):
            samples[entry].add(Usage(sentence.tokens, begin, end, sentence.place))
    return {word: samples[entry].kept() for word, entry in entries.items()}


def respelled(usage: Usage, word: str) -> Usage:
    """The usage as if its word were spelled like this.

    Of usages that differ in spelling (Bank, banks), the spelling is what their vectors tell first; Laicher et
    al. (2021) let a model read every usage with the word's lemma in its place, and senses show better.
    """
    parts = parts_of(word)
    tokens = usage.sentence.tokens
    if tokens[usage.begin : usage.end] == parts:
        return usage
    changed = (*tokens[: usage.begin], *parts, *tokens[usage.end :])
    return Usage(Tokens.given(changed), usage.begin, usage.begin + len(parts), usage.place)


def embed_usages(
    elmo: Elmo,
    usages: Sequence[Usage],
    *,
    layers: LayerChoice | int | LayerMix = "average",
    start: Any = "zero",
    on_progress: Callable[[int], None] | None = None,
) -> Usages:
    """The usages with their vectors; a phrase has the mean of its tokens', a sentence is read once.

    ``on_progress`` hears how many usages are done.
    """
    if layers == "all":
        raise ConfigError("a usage has one vector: layers must be average, top, concat or a number, not all")
    rows: list[Vectors] = []
    for chunk in _by_sentence(usages):
        encoded = elmo.encode([same[0].sentence for same in chunk], layers=layers, start=start)
        for encoding, same in zip(encoded, chunk, strict=True):
            rows += [cast("Vectors", encoding.span(usage.begin, usage.end)) for usage in same]
        if on_progress is not None:
            on_progress(len(rows))
    if rows:
        return Usages(tuple(usages), np.stack(rows))
    width = elmo.encode([[]], layers=layers)[0].vectors.shape[-1]
    return Usages((), np.zeros((0, width), dtype=np.float32))


def _by_sentence(usages: Sequence[Usage]) -> Iterator[list[list[Usage]]]:
    """Lists of usages of one and the same sentence, gathered into pieces that are read at once."""
    same = [list(group) for _, group in groupby(usages, key=lambda usage: id(usage.sentence))]
    at = 0
    for piece in pieces([group[0].sentence for group in same], batch_size=None):
        yield same[at : at + len(piece)]
        at += len(piece)


_log = logging.getLogger(__name__)


def marked_usage(
    tokenizer: Tokenizer, sentence: str | Sequence[str], word: str | None = None, *, number: int = 1
) -> Usage:
    """Where the one word stands: the marked place, else the first place of ``word``.

    ``number`` is the sentence's, for messages. Of a word that is part of a token, the token is taken.
    """
    if isinstance(sentence, str):
        text, span = unmarked(sentence, number)
        tokens = tokenizer(text)
    else:
        tokens, span = Tokens.given(sentence), None
        text = " ".join(tokens.tokens)
    offsets = tokens.offsets or joined_places(tokens.tokens)
    if span is None:
        if not word or not word.strip():
            raise DataError(
                f"sentence {number}: which word is meant? Mark it like [[this]], or name it (--word): "
                f"{start_of(text)!r}"
            )
        span = find_word(word, text, offsets)
    if span is None:
        raise DataError(
            f"sentence {number} does not have the word {(word or '')[:40]!r}: {start_of(text)!r}; "
            "mark the word that you mean, like [[this]]"
        )
    return _marked_usage(tokens, offsets, span, number)


def marked_usages(tokenizer: Tokenizer, sentence: str, *, number: int = 1) -> list[Usage]:
    """Where all the marked words stand, one or more, in one sentence."""
    text, spans = without_marks(sentence, number)
    if not spans:
        raise DataError(
            f"sentence {number}: expected a word that is marked like [[this]], found none: {start_of(text)!r}"
        )
    tokens = tokenizer(text)
    offsets = tokens.offsets or joined_places(tokens.tokens)
    return [_marked_usage(tokens, offsets, span, number) for span in spans]


def _marked_usage(tokens: Tokens, offsets: Sequence[Span], span: Span, number: int) -> Usage:
    inside = [k for k, (begin, end) in enumerate(offsets) if begin < span[1] and end > span[0]]
    if not inside:  # such as a character that the tokeniser leaves out
        found = (tokens.text or "")[slice(*span)]
        raise DataError(f"sentence {number}: expected a word between [[ and ]], found {found!r:.40}")
    begin, end = offsets[inside[0]][0], offsets[inside[-1]][1]
    if begin < span[0] or end > span[1]:
        text = tokens.text or " ".join(tokens.tokens)
        _log.warning(
            "sentence %d: %r is part of a token, which is taken: %r; is the tokenizer right?",
            number,
            text[slice(*span)][:40],
            text[begin:end][:80],
        )
    return Usage(tokens, inside[0], inside[-1] + 1, f"sentence {number}")


COLUMNS = ("lemma", "grouping", "context_tokenized", "indexes_target_token_tokenized", "identifier")

_NAME = re.compile(r"(.+\.)?uses\.(csv|tsv)(\.(gz|xz|bz2|zst))?")
_PART_OF_SPEECH = re.compile(r"(?<=.)_[a-z]{2}$")
_PLACE = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?")

Uses = dict[str, dict[str, list[Usage]]]  # by word, then by period


def read_uses(folder: str | Path) -> Uses:
    """The usages in all files below ``folder``; words in order, the periods of each in order."""
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"{shown(root)}: expected a folder with files of uses, found none")
    files = sorted(path for path in root.rglob("*uses.*") if _NAME.fullmatch(path.name) and path.is_file())
    if not files:
        raise DataError(f"{shown(root)}: expected files uses.csv or WORD.uses.csv, found none")
    found: Uses = {}
    for path in files:
        for word, periods in read_uses_file(path).items():
            for period, usages in periods.items():
                found.setdefault(word, {}).setdefault(period, []).extend(usages)
    return {word: {period: found[word][period] for period in in_order(found[word])} for word in sorted(found)}


def read_uses_file(path: Path) -> Uses:
    """The usages of one file; an error names its line."""
    lines = read_lines(path)
    first = next(lines, None)
    names = [] if first is None else first.text.removeprefix("\ufeff").split("\t")
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise DataError(
            f"{shown(path)}:1: expected columns {', '.join(COLUMNS)}; missing {', '.join(missing)}"
        )
    places = [names.index(name) for name in COLUMNS]
    found: Uses = {}
    for line in lines:
        if not line.text:
            continue
        fields = line.text.split("\t")
        if len(fields) != len(names):
            raise DataError(f"{_place(line)}: expected {len(names)} columns, found {len(fields)}")
        word, period, text, index, identifier = (fields[place] for place in places)
        if not word or not period:
            raise DataError(f"{_place(line)}: expected a lemma and a grouping, found {word!r} and {period!r}")
        usage = _usage_of_row(line, text, index, identifier)
        found.setdefault(word, {}).setdefault(period, []).append(usage)
    return found


def spelling_of(lemma: str) -> str:
    """The word that a lemma stands for: DWUG's English ones name the part of speech, too (``head_nn``)."""
    return _PART_OF_SPEECH.sub("", lemma)


def in_order(periods: Iterable[str]) -> list[str]:
    """Periods by their numbers where all are numbers, else by their names."""
    given = list(periods)
    are_numbers = all(period.isascii() and period.isdigit() for period in given)
    return sorted(given, key=(lambda period: (int(period), period)) if are_numbers else str)


def _usage_of_row(line: Line, text: str, index: str, identifier: str) -> Usage:
    tokens = text.split(" ")  # the index counts what single spaces part
    match = _PLACE.fullmatch(index.strip())
    if match is None:
        raise DataError(
            f"{_place(line)}: expected the number of a token, or two like 3:5, found {index!r:.40}"
        )
    begin = int(match[1])
    end = begin + 1 if match[2] is None else int(match[2])
    if not begin < end <= len(tokens):
        raise DataError(f"{_place(line)}: expected a place within {len(tokens)} tokens, found {index!r:.40}")
    return Usage(Tokens.given(tokens), begin, end, identifier or _place(line))


def _place(line: Line) -> str:
    return f"{line.path}:{line.number}"
