"""A word in, its lemma in small letters out: banks to bank, by the tables of simplemma.

A model's vocabulary in, its entries out: the forms of each lemma, how like they are, how frequent.

How like two words are is the cosine of their vectors in the softmax. A form's own vector tells which forms
of other words stand where it stands; that of its lemma, the mean of all its forms, tells what it means. Each
word has the mean of both.

How frequent words are no model tells, but vocabularies are sorted by falling count (bilm-tf's sampled softmax
needs that): by Zipf's law a word's share is about 1 / its number. The softmax has a bias for each word, too,
but a trained one leaves frequency to the states, and its bias serves worse.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from elmo.lexicon.search import unit_rows
from elmo.lexicon.usages import entry_key, is_word

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.formats.pretrained import SoftmaxWeights
    from elmo.text.ids import Vocabulary


logger = logging.getLogger(__name__)

UNINFLECTED = frozenset({"zh"})  # their words have one form each
_CACHED_WORDS = 1 << 18


class Lemmas:
    """The lemmas of one language, by its code.

    Where there is no table for it, or simplemma is not installed, a word in small letters is its own lemma;
    ``has_table`` tells, and so does one line of the log.
    """

    def __init__(self, language: str | None) -> None:
        self.language = language.strip().lower().replace("_", "-").split("-")[0] if language else None
        self.has_table = False
        if self.language in UNINFLECTED:
            return
        missing = _why_missing(self.language)
        self.has_table = missing is None
        if missing is not None:
            logger.warning("words are not reduced to lemmas: %s", missing)

    def __call__(self, word: str) -> str:
        """The lemma of a word; capital letters make no difference."""
        small = word.lower()
        if not self.has_table or self.language is None or not small:
            return small
        return _lemma(small, self.language)


def language_of(elmo: Elmo) -> str | None:
    """The code of the language that a model's tokeniser is for; None when it is for any."""
    name = str(getattr(elmo.tokenizer, "name", ""))  # a function of the user's own has none
    if name.startswith("spacy:"):
        return name.removeprefix("spacy:")
    return name if name in ("en", "zh") else None


def _why_missing(language: str | None) -> str | None:
    if language is None:
        return "the tokenizer is of no language"
    lemmatize = _simplemma()
    if lemmatize is None:
        return "that needs an extra: pip install 'pyelmo[lexicon]'"
    try:
        lemmatize("a", lang=language)
    except ValueError:
        return f"there is no table for the language {language[:40]!r}"
    return None


@lru_cache(maxsize=_CACHED_WORDS)
def _lemma(word: str, language: str) -> str:
    lemmatize = _simplemma()
    return word if lemmatize is None else str(lemmatize(word, lang=language)).lower()


def _simplemma() -> Callable[..., Any] | None:
    try:
        from simplemma import lemmatize  # pyright: ignore[reportMissingImports] -- an extra
    except ImportError:
        return None
    return lemmatize


Floats = NDArray[np.floating[Any]]
_WORD, _NUMBER, _MARK, _SPECIAL = range(4)  # kinds of tokens
_ROWS = 1 << 14  # of the softmax whose copies exist at a time


class Entries:
    """Words by lemma; a row is a word of the vocabulary, an entry all rows of one lemma."""

    def __init__(self, elmo: Elmo, lemmas: Lemmas, *, vocab: Vocabulary, softmax: SoftmaxWeights) -> None:
        self.words = vocab.words
        key, alphabet = entry_key(elmo), elmo.indexer.alphabet
        self._lemma: Callable[[str], str] = lambda word: lemmas(key(word))
        self._spelled: Callable[[str], str] = alphabet.read_part if alphabet else str
        names: dict[str, int] = {}
        self.entry_of_row = np.array([names.setdefault(self._lemma(word), len(names)) for word in self.words])
        self.lemmas = tuple(names)
        self._rows = {word: row for row, word in enumerate(self.words)}
        self._order = np.argsort(self.entry_of_row, kind="stable")
        self._begins = np.searchsorted(self.entry_of_row[self._order], np.arange(len(names) + 1))
        special = {vocab.bos, vocab.eos, vocab.unknown}
        self._kinds = np.array([_SPECIAL if word in special else _kind(word) for word in self.words])
        is_real = np.zeros(len(names), dtype=bool)  # a boundary is no entry that anybody may ask for
        is_real[self.entry_of_row[self._kinds != _SPECIAL]] = True
        self._entries = {name: entry for name, entry in names.items() if is_real[entry]}
        self.log_prior = log_shares(len(self.words))  # (row,)
        self._weight = softmax.weight.detach().float().cpu().numpy()  # (row, width)
        self._make_vectors()

    def lemma(self, word: str) -> str:
        """What a word's entry is called."""
        return self._lemma(word)

    def entry(self, word: str) -> int | None:
        """The number of a word's entry; None when the vocabulary has no form of it."""
        return self._entries.get(self._lemma(word))

    def rows_of(self, entry: int) -> NDArray[np.intp]:
        """The forms of an entry."""
        return self._order[self._begins[entry] : self._begins[entry + 1]]

    def may_stand_for(self, tokens: Sequence[str]) -> NDArray[np.bool_]:
        """Rows (row,) that are words, or what the target is, and no form of the target."""
        may = self._kinds == _WORD
        for kind in {_kind(token) for token in tokens}:
            may |= self._kinds == kind
        if len(tokens) == 1 and (own := self.entry(tokens[0])) is not None:
            may[self.rows_of(own)] = False
        return may

    def by_entry(self, scores: Floats) -> Floats:
        """Log of the sum of exp over the forms of each entry: (row,) to (entry,)."""
        highest = np.maximum.reduceat(scores[self._order], self._begins[:-1])
        highest = np.where(np.isfinite(highest), highest, 0.0)
        odds = np.exp(scores - highest[self.entry_of_row])
        with np.errstate(divide="ignore"):
            return np.log(np.bincount(self.entry_of_row, odds, len(self.lemmas))) + highest

    def similarities(self, tokens: Sequence[str]) -> Floats | None:
        """Cosines (row,) of all words with a word or phrase; None when none of its forms is known."""
        found = [vector for token in tokens if (vector := self._vector(token)) is not None]
        if not found:
            return None
        (target,) = unit_rows(np.mean(found, axis=0)[None], dtype=np.float32)
        own = (self._weight @ target) / self._norms
        lemma = (self._lemma_vectors @ target)[self.entry_of_row]
        return (own + lemma) / self._lengths

    def _vector(self, token: str) -> Floats | None:
        """Of the form itself or, where that is unknown, of its lemma."""
        row = self._rows.get(self._spelled(token), self._rows.get(token.lower()))
        if row is not None and self._kinds[row] != _SPECIAL:
            both = self._weight[row] / self._norms[row] + self._lemma_vectors[self.entry_of_row[row]]
            return both / self._lengths[row]
        entry = self.entry(token)
        return None if entry is None else self._lemma_vectors[entry]

    def _make_vectors(self) -> None:
        """A unit vector for each lemma; of the vectors of forms, which may be many, the lengths only."""
        self._norms = np.maximum(np.linalg.norm(self._weight, axis=1), 1e-9)  # (row,)
        entries = torch.from_numpy(self.entry_of_row)
        summed = torch.zeros(len(self.lemmas), self._weight.shape[1])
        for part, units in self._forms():
            summed.index_add_(0, entries[part], torch.from_numpy(units))
        sums = summed.numpy()
        self._lemma_vectors = unit_rows(sums, dtype=np.float32)
        self._lengths = np.empty_like(self._norms)  # of a form's unit vector and its lemma's together
        for part, units in self._forms():
            both = units + self._lemma_vectors[self.entry_of_row[part]]
            self._lengths[part] = np.maximum(np.linalg.norm(both, axis=1), 1e-9)

    def _forms(self) -> Iterator[tuple[slice, Floats]]:
        """The softmax's vectors at length one, some rows at a time."""
        for begin in range(0, len(self._weight), _ROWS):
            part = slice(begin, begin + _ROWS)
            yield part, unit_rows(self._weight[part], lengths=self._norms[part], dtype=np.float32)


def log_shares(n_words: int) -> NDArray[np.float32]:
    """Log of how frequent the words of a vocabulary are, by Zipf's law: (word,)."""
    shares = 1.0 / np.arange(1, n_words + 1)
    return np.log(shares / shares.sum()).astype(np.float32)


def _kind(token: str) -> int:
    """What has a digit is a number, what has other things than letters is no word."""
    if token.isalpha():
        return _WORD
    if any(c.isdigit() for c in token):
        return _NUMBER
    return _WORD if is_word(token) else _MARK
