"""Find the usages of words in text, and compute their vectors.

A usage is a word, or a phrase of several tokens, in one sentence. Usages come from three sources: a corpus
(``find_usages``), sentences in which the word is marked like ``[[this]]`` (``find_marked_usage``), and files
of the Diachronic Word Usage Graphs (``read_uses``). ``embed_usages`` computes their vectors.
"""

from __future__ import annotations

import logging
import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from elmo.embed.find import Span, excerpt, find_word, joined_offsets, parse_mark, parse_marks
from elmo.engine.batches import split_batches
from elmo.errors import ConfigError, DataError, ShapeError
from elmo.storage.files import format_path
from elmo.text.chinese import simplify_word
from elmo.text.lines import Line, read_lines
from elmo.text.reader import Sentence
from elmo.text.tokenizers import Tokenizer, Tokens, WhitespaceTokenizer

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.encoding import LayerChoice
    from elmo.model.mix import LayerMix

logger = logging.getLogger(__name__)

Vectors = NDArray[np.floating[Any]]
EntryKey = Callable[[str], str]  # maps a token to its dictionary entry
T = TypeVar("T")


@dataclass(frozen=True)
class Usage:
    """A word, or a phrase of several tokens, in a sentence.

    Attributes:
        sentence: The tokens of the sentence.
        begin: Number of the first token of the word.
        end: Number of its last token + 1.
        place: Where the sentence comes from, such as file:line.
    """

    sentence: Tokens
    begin: int
    end: int
    place: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.begin < self.end <= len(self.sentence):
            raise DataError(
                f"{self.place or 'usage'}: the span must be within 0..{len(self.sentence)} and not empty; "
                f"found {self.begin}..{self.end}"
            )

    @property
    def word(self) -> str:
        """The word as spelled in this sentence."""
        return " ".join(self.sentence.tokens[self.begin : self.end])

    def parts(self) -> tuple[str, str, str]:
        """Return the text before the word, the word, and the text after it."""
        tokens, text, offsets = self.sentence.tokens, self.sentence.text, self.sentence.offsets
        if text is not None and offsets is not None:
            begin, end = offsets[self.begin][0], offsets[self.end - 1][1]
            return text[:begin], text[begin:end], text[end:]
        before, after = tokens[: self.begin], tokens[self.end :]
        return "".join(f"{t} " for t in before), self.word, "".join(f" {t}" for t in after)


@dataclass(frozen=True, eq=False)
class Usages:
    """Usages with their vectors: row k of ``vectors`` (usage, width) belongs to item k.

    Attributes:
        items: The usages.
        vectors: Their vectors, (usage, width).
    """

    items: tuple[Usage, ...]
    vectors: Vectors

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or len(self.vectors) != len(self.items):
            raise ShapeError(
                f"vectors must have the shape ({len(self.items)}, width), one row per usage; found {self.vectors.shape}"
            )

    def __len__(self) -> int:
        return len(self.items)


# --- Words and dictionary entries -------------------------------------------------------------------


def entry_key(elmo: Elmo, *, keep_case: bool = False) -> EntryKey:
    """Return a function that maps a token to its dictionary entry, under which its usages are counted.

    Bank and bank have the same entry unless ``keep_case`` is set. 蘋果 and 苹果 have the same entry if the model
    reads Chinese in simplified characters.

    Args:
        elmo: The model.
        keep_case: Treat Bank and bank as different words.

    Example:
        >>> key = entry_key(elmo)
        >>> key("Bank") == key("bank")
        True
    """
    return spelling_key(is_simplified=elmo.config.alphabet == "simplified", keep_case=keep_case)


def spelling_key(*, is_simplified: bool, keep_case: bool) -> EntryKey:
    """Return the function of ``entry_key``; ``is_simplified`` is whether the model reads simplified characters."""

    def key(token: str) -> str:
        spelling = simplify_word(token) if is_simplified else token
        return spelling if keep_case else spelling.lower()

    return key


def to_entry(word: str, key: EntryKey) -> str:
    """Return the dictionary entry of a word, or of a phrase whose tokens are separated by spaces."""
    return " ".join(map(key, split_phrase(word)))


def split_phrase(phrase: str) -> tuple[str, ...]:
    """Split a phrase into tokens at white space, but not at no-break spaces, like ``WhitespaceTokenizer``."""
    tokens = WhitespaceTokenizer()(phrase).tokens
    if not tokens:
        raise DataError("expected a word, found only white space")
    return tokens


def hint_about_tokenizer(tokenizer: Tokenizer, word: str) -> str:
    """Return a hint for an error message if the tokenizer splits the word into several tokens; otherwise ''."""
    tokens = tokenizer(word).tokens
    if tokens == split_phrase(word):
        return ""
    name = getattr(tokenizer, "name", "of this model")
    return f"; the tokenizer {name} splits it into {' | '.join(tokens)[:60]}; choose another with --tokenizer"


_INNER_CHARACTERS = frozenset("-'’.·\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}")


def is_word(token: str) -> bool:
    """Return whether a token is a letter followed by letters, vowel signs (हिन्दी), hyphens, apostrophes or dots."""
    if token.isalpha():
        return True
    return token[:1].isalpha() and all(
        c.isalpha() or c in _INNER_CHARACTERS or unicodedata.category(c)[0] == "M" for c in token
    )


# --- Usages in a corpus -----------------------------------------------------------------------------


class WordFilter:
    """Finds words in sentences: the words of a list or, without a list, all words.

    A word of the list may be a phrase, whose tokens must be adjacent in the sentence. Without a list, every
    token with a letter or a digit is a word.
    """

    def __init__(self, words: Iterable[str] | None, *, key: EntryKey) -> None:
        self._key = key
        self._phrases: dict[str, list[tuple[str, ...]]] | None = None  # by first token
        if words is not None:
            self._phrases = {}
            for entry in dict.fromkeys(to_entry(word, key) for word in words):
                phrase = tuple(entry.split(" "))
                self._phrases.setdefault(phrase[0], []).append(phrase)

    def find(self, tokens: Sequence[str]) -> list[tuple[Span, str]]:
        """Return the span and the dictionary entry of each word in a sentence."""
        keys = [self._key(token) for token in tokens]
        if self._phrases is None:
            return [
                ((k, k + 1), entry) for k, entry in enumerate(keys) if entry.isalnum() or any(map(str.isalnum, entry))
            ]
        matches: list[tuple[Span, str]] = []
        for begin, first in enumerate(keys):
            for phrase in self._phrases.get(first, ()):
                end = begin + len(phrase)
                if len(phrase) == 1 or tuple(keys[begin:end]) == phrase:
                    matches.append(((begin, end), " ".join(phrase)))
        return matches


class Reservoir(Generic[T]):
    """A uniform random sample of ``limit`` items from a stream (reservoir sampling, Vitter 1985).

    The random numbers depend only on the seed and the dictionary entry, so the sample of a word does not
    depend on which other words are sampled. Without a limit, the sample contains all items.
    """

    def __init__(self, limit: int | None, *, seed: int, entry: str) -> None:
        if limit is not None and limit < 1:
            raise ConfigError(f"limit must be at least 1; found {limit}")
        self._limit, self._random = limit, None
        self._random_seed = f"{seed} {entry}".encode("utf-8", "surrogatepass")
        self._sample: list[tuple[int, T]] = []
        self.n = 0  # number of items added

    def add(self, item: T) -> None:
        """Add an item, which may replace another one in the sample."""
        self.n += 1
        if self._limit is None or len(self._sample) < self._limit:
            self._sample.append((self.n, item))
            return
        self._random = self._random or random.Random(self._random_seed)
        slot = self._random.randrange(self.n)
        if slot < self._limit:
            self._sample[slot] = (self.n, item)

    def sample(self) -> list[T]:
        """Return the sampled items in the order in which they were added."""
        return [item for _, item in sorted(self._sample, key=lambda pair: pair[0])]


def find_usages(
    sentences: Iterable[Sentence], words: Sequence[str], *, key: EntryKey, limit: int | None = None, seed: int = 0
) -> dict[str, list[Usage]]:
    """Find the usages of words in a corpus.

    Args:
        sentences: The corpus.
        words: Words, or phrases whose tokens are separated by spaces.
        key: A function that maps tokens to dictionary entries; see ``entry_key``.
        limit: Maximum number of usages per word; if there are more, a random sample is used.
        seed: Random seed of the sample.

    Returns:
        The usages of each word, in corpus order.

    Example:
        >>> from elmo.jobs import EmbedJob
        >>> sentences = list(EmbedJob(("corpus.txt",)).sentences(elmo.tokenizer))
        >>> usages = find_usages(sentences, ["bank"], key=entry_key(elmo))
        >>> len(usages["bank"])
        6
    """
    entries = {word: to_entry(word, key) for word in words}
    reservoirs = {entry: Reservoir[Usage](limit, seed=seed, entry=entry) for entry in dict.fromkeys(entries.values())}
    word_filter = WordFilter(words, key=key)
    for sentence in sentences:
        for (begin, end), entry in word_filter.find(sentence.tokens.tokens):
            reservoirs[entry].add(Usage(sentence.tokens, begin, end, sentence.place))
    return {word: reservoirs[entry].sample() for word, entry in entries.items()}


# --- Marked words -----------------------------------------------------------------------------------


def find_marked_usage(
    tokenizer: Tokenizer, sentence: str | Sequence[str], word: str | None = None, *, number: int = 1
) -> Usage:
    """Find the word that is marked like ``[[this]]`` or, without a mark, the first occurrence of ``word``.

    If the word is only part of a token, the usage is the whole token, and a warning is logged.

    Args:
        tokenizer: The tokenizer of the model.
        sentence: A text in which the word may be marked, or a list of tokens.
        word: The word to find in a sentence without a mark.
        number: Number of the sentence, for messages.

    Example:
        >>> usage = find_marked_usage(elmo.tokenizer, "I sat by the [[bank]].")
        >>> usage.word, usage.begin, usage.end
        ('bank', 4, 5)
    """
    if isinstance(sentence, str):
        text, span = parse_mark(sentence, number)
        tokens = tokenizer(text)
    else:
        tokens, span = Tokens.from_words(sentence), None
        text = " ".join(tokens.tokens)
    offsets = tokens.offsets or joined_offsets(tokens.tokens)
    if span is None:
        if not word or not word.strip():
            raise DataError(
                f"sentence {number}: no word is marked; mark one like [[this]], or set --word: {excerpt(text)!r}"
            )
        span = find_word(word, text, offsets)
    if span is None:
        raise DataError(
            f"sentence {number}: {(word or '')[:40]!r} does not occur in {excerpt(text)!r}; mark the word like [[this]]"
        )
    return usage_at(tokens, span, place=f"sentence {number}")


def find_marked_usages(tokenizer: Tokenizer, sentence: str, *, number: int = 1) -> list[Usage]:
    """Find all words of a sentence that are marked like ``[[this]]``; raise ``DataError`` if there are none."""
    text, spans = parse_marks(sentence, number)
    if not spans:
        raise DataError(f"sentence {number}: expected a word marked like [[this]], found none: {excerpt(text)!r}")
    tokens = tokenizer(text)
    return [usage_at(tokens, span, place=f"sentence {number}") for span in spans]


def usage_at(tokens: Tokens, span: Span, *, place: str) -> Usage:
    """Return the usage of the tokens that overlap a span of characters; ``place`` is where the sentence comes from."""
    offsets = tokens.offsets or joined_offsets(tokens.tokens)
    inside = [k for k, (begin, end) in enumerate(offsets) if begin < span[1] and end > span[0]]
    if not inside:  # for example, if only a control character is marked, which the tokenizer drops
        text = (tokens.text or "")[slice(*span)]
        raise DataError(f"{place}: expected a word at the marked characters, found {text!r:.40}")
    begin, end = offsets[inside[0]][0], offsets[inside[-1]][1]
    if begin < span[0] or end > span[1]:
        text = tokens.text or " ".join(tokens.tokens)
        logger.warning(
            "%s: %r is part of a token; using the whole token %r; check that the tokenizer fits the text",
            place,
            text[slice(*span)][:40],
            text[begin:end][:80],
        )
    return Usage(tokens, inside[0], inside[-1] + 1, place)


# --- Vectors ----------------------------------------------------------------------------------------


def embed_usages(
    elmo: Elmo,
    usages: Sequence[Usage],
    *,
    layers: LayerChoice | int | LayerMix = "sense",
    start: Any = "zero",
    on_progress: Callable[[int], None] | None = None,
) -> Usages:
    """Compute the vectors of usages; the vector of a phrase is the mean of its tokens' vectors.

    A sentence with several usages is encoded once.

    Args:
        elmo: The model.
        usages: Words in their sentences.
        layers: Layers of the vectors, as in ``Elmo.encode``, but not ``"all"``.
        start: Start state of the LSTMs, as in ``Elmo.encode``.
        on_progress: Called with the number of usages that are embedded so far.

    Example:
        >>> sentences = ["We sat on the [[bank]].", "The [[bank]] lent her money.", "Her [[bank]] gave her a loan."]
        >>> usages = [find_marked_usage(elmo.tokenizer, sentence) for sentence in sentences]
        >>> embed_usages(elmo, usages, layers="average").vectors.shape == (3, elmo.width)
        True
    """
    check_one_vector(layers)
    rows_of_sentence: dict[int, list[int]] = {}
    for row, usage in enumerate(usages):
        rows_of_sentence.setdefault(id(usage.sentence), []).append(row)
    sentences = [usages[rows[0]].sentence for rows in rows_of_sentence.values()]
    vectors: dict[int, Vectors] = {}
    for batch in split_batches(sentences, batch_size=None):
        for sentence, encoding in zip(batch, elmo.encode(batch, layers=layers, start=start), strict=True):
            for row in rows_of_sentence[id(sentence)]:
                vectors[row] = encoding.span(usages[row].begin, usages[row].end)
        if on_progress is not None:
            on_progress(len(vectors))
    if vectors:
        return Usages(tuple(usages), np.stack([vectors[row] for row in range(len(usages))]))
    width = elmo.encode([[]], layers=layers)[0].vectors.shape[-1]
    return Usages((), np.zeros((0, width), dtype=np.float32))


def check_one_vector(layers: Any) -> None:
    """Raise ``ConfigError`` for ``layers="all"``, which gives one vector per layer."""
    if layers == "all":
        raise ConfigError(
            "layers='all' gives several vectors per usage; use sense, average, top, concat or the number of a layer"
        )


def respell(usage: Usage, word: str) -> Usage:
    """Replace the word of a usage by another spelling, such as its lemma.

    Vectors depend on the spelling of a word (Bank, banks) more than on its sense. If all usages have the same
    spelling, their vectors separate senses better (Laicher et al. 2021).

    Args:
        usage: The usage.
        word: The new spelling.

    Example:
        >>> respell(find_marked_usage(elmo.tokenizer, "Two [[banks]]."), "bank").word
        'bank'
    """
    spelling = split_phrase(word)
    tokens = usage.sentence.tokens
    if tokens[usage.begin : usage.end] == spelling:
        return usage
    changed = (*tokens[: usage.begin], *spelling, *tokens[usage.end :])
    return Usage(Tokens.from_words(changed), usage.begin, usage.begin + len(spelling), usage.place)


def unit_rows(vectors: Vectors, *, norms: Vectors | None = None, dtype: Any = np.float64) -> NDArray[Any]:
    """Scale rows (row, width) to unit length, in a new array of ``dtype``; rows of zeros stay zero.

    ``norms`` (row,) are the lengths of the rows, if they are already known.
    """
    rows = np.array(vectors, dtype=dtype)
    lengths = np.linalg.norm(rows, axis=1) if norms is None else np.asarray(norms)
    rows /= np.where(lengths > 0, lengths, 1.0).astype(rows.dtype)[:, None]
    return rows


# --- Files of the Diachronic Word Usage Graphs (DWUG, Schlechtweg et al. 2021) ----------------------

COLUMNS = ("lemma", "grouping", "context_tokenized", "indexes_target_token_tokenized", "identifier")
_FILE_NAME = re.compile(r"(.+\.)?uses\.(csv|tsv)(\.(gz|xz|bz2|zst))?")
_PART_OF_SPEECH = re.compile(r"(?<=.)_[a-z]{2}$")
_TOKEN_INDEX = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?")

UsesByPeriod = dict[str, dict[str, list[Usage]]]  # lemma -> period -> usages


def read_uses(folder: str | Path) -> UsesByPeriod:
    """Read the usages in all DWUG files below a folder: ``uses.csv`` or ``WORD.uses.csv``, compressed or not.

    The columns of the files are separated by tabs, without quoting. The result has the usages of each lemma
    by period; lemmas and periods are sorted.

    Args:
        folder: The folder.

    Example:
        >>> uses = read_uses("path/to/dwug_en")  # doctest: +SKIP
    """
    root = Path(folder)
    if not root.is_dir():
        raise DataError(
            f"cannot read {format_path(root)}: expected a folder with uses.csv files, but it does not exist"
        )
    files = sorted(path for path in root.rglob("*uses.*") if _FILE_NAME.fullmatch(path.name) and path.is_file())
    if not files:
        raise DataError(f"{format_path(root)}: expected files uses.csv or WORD.uses.csv, found none")
    uses: UsesByPeriod = {}
    for path in files:
        with closing(read_lines(path)) as lines:  # so that an error closes the file at once
            for lemma, period, usage in _parse_uses(path, lines):
                uses.setdefault(lemma, {}).setdefault(period, []).append(usage)
    return {lemma: {period: uses[lemma][period] for period in sort_periods(uses[lemma])} for lemma in sorted(uses)}


def _parse_uses(path: Path, lines: Iterator[Line]) -> Iterator[tuple[str, str, Usage]]:
    """Yield the lemma, the period and the usage of each line after the header."""
    header = next(lines, None)
    names = [] if header is None else header.text.removeprefix("\ufeff").split("\t")
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise DataError(
            f"{format_path(path)}:1: expected the columns {', '.join(COLUMNS)}, found no column {', '.join(missing)}"
        )
    columns = [names.index(name) for name in COLUMNS]
    for line in lines:
        if not line.text:
            continue
        fields = line.text.split("\t")
        if len(fields) != len(names):
            raise DataError(f"{_location(line)}: expected {len(names)} columns, found {len(fields)}")
        lemma, period, text, index, identifier = (fields[column] for column in columns)
        if not lemma or not period:
            raise DataError(f"{_location(line)}: expected a lemma and a grouping, found {lemma!r} and {period!r}")
        yield lemma, period, _parse_use(line, text, index, identifier)


def _parse_use(line: Line, text: str, index: str, identifier: str) -> Usage:
    tokens = text.split(" ")  # DWUG splits tokens at single spaces
    match = _TOKEN_INDEX.fullmatch(index.strip())
    if match is None:
        raise DataError(f"{_location(line)}: expected a token index such as 3 or 3:5, found {index!r:.40}")
    begin = int(match[1])
    end = begin + 1 if match[2] is None else int(match[2])
    if not begin < end <= len(tokens):
        raise DataError(
            f"{_location(line)}: expected a token index below {len(tokens)}, or a range within 0:{len(tokens)}, "
            f"found {index!r:.40}"
        )
    return Usage(Tokens.from_words(tokens), begin, end, identifier or _location(line))


def _location(line: Line) -> str:
    return f"{line.path}:{line.number}"


def strip_part_of_speech(lemma: str) -> str:
    """Remove the part of speech from a DWUG lemma; for example, ``head_nn`` becomes ``head``."""
    return _PART_OF_SPEECH.sub("", lemma)


def sort_periods(periods: Iterable[str]) -> list[str]:
    """Sort periods as numbers if all of them are numbers, otherwise by name."""
    names = list(periods)
    are_numbers = all(name.isascii() and name.isdigit() for name in names)
    return sorted(names, key=(lambda name: (int(name), name)) if are_numbers else str)
