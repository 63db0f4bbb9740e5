"""A word in, its lemma in small letters out: banks to bank, by the tables of simplemma."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

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
