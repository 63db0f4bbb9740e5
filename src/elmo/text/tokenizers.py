"""Tokens with their offsets in the text, and loading of tokenizers by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeGuard

from elmo.errors import ConfigError, DataError, SentenceTooLongError, importing_extra

if TYPE_CHECKING:
    from spacy.language import Language  # pyright: ignore[reportMissingImports] -- an extra

MAX_TOKENS_OF_TEXT = 1 << 20  # Python needs about 200 bytes for each token and its offsets
TOKENIZERS = ("en", "whitespace", "zh", "characters", "spacy:LANG", "the code of another language, such as de")
_SPACE = re.compile(r"\s*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_SPACE = re.compile(r"\S+")
_NOT_SPACE_CHARACTER = re.compile(r"\S")


@dataclass(frozen=True)
class Tokens:
    """The tokens of one sentence.

    If there is a text, token k is exactly ``text[start:end]`` for ``start, end = offsets[k]``. Tokens are in order,
    do not overlap, and contain every character that is not white space (``str.isspace``). Tokens that the
    caller passes as a list have neither text nor offsets.
    """

    text: str | None
    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...] | None

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def from_offsets(cls, text: str, offsets: Iterable[tuple[int, int]]) -> Tokens:
        """Build the tokens of a text from their offsets."""
        spans = tuple(islice(offsets, MAX_TOKENS_OF_TEXT + 1))
        if len(spans) > MAX_TOKENS_OF_TEXT:
            raise SentenceTooLongError(
                f"a text must have at most {MAX_TOKENS_OF_TEXT:,} tokens; found more in one that starts with "
                f"{text[:40]!r}; split it into sentences"
            )
        return cls(text, tuple(text[start:end] for start, end in spans), spans)

    @classmethod
    def from_words(cls, words: Sequence[str]) -> Tokens:
        """Build tokens from a list of words, without text and offsets."""
        if isinstance(words, str):
            raise DataError("tokens: expected a list of strings, found one string; pass it as text instead")
        for k, word in enumerate(words if set(map(type, words)) != {str} else ()):
            if not isinstance(word, str):
                raise DataError(f"tokens: expected strings, found {type(word).__name__} at position {k}")
        return cls(None, tuple(words), None)


class Tokenizer(Protocol):
    """Splits a text into tokens without changing its characters."""

    name: str

    def __call__(self, text: str) -> Tokens:
        """Tokenize any string."""
        ...


def load_tokenizer(name: str = "en") -> Tokenizer:
    """Load a tokenizer by name.

    Names are ``en`` (or ``default``), another language code, ``whitespace``, ``characters``, or ``spacy:LANG``.
    """
    if name in ("en", "default"):
        from elmo.text.english import EnglishTokenizer

        return EnglishTokenizer()
    if name == "whitespace":
        return WhitespaceTokenizer()
    if name == "zh":
        from elmo.text.chinese import ChineseTokenizer

        return ChineseTokenizer()
    if name == "characters":
        return CharacterTokenizer()
    if name.startswith("spacy:"):
        return SpacyTokenizer(name.removeprefix("spacy:"))
    from elmo.text.languages import LANGUAGES, LanguageTokenizer

    if name in LANGUAGES:
        return LanguageTokenizer(name)
    raise ConfigError(f"tokenizer must be one of {', '.join(TOKENIZERS)}; found {name[:40]!r}")


def is_tokenizer_name(name: object) -> TypeGuard[str]:
    """Return whether ``load_tokenizer`` knows the name; a name of spaCy is not checked further."""
    from elmo.text.languages import LANGUAGES

    names = ("default", "whitespace", "zh", "characters", *LANGUAGES)
    return isinstance(name, str) and (name in names or name.startswith("spacy:"))


class WhitespaceTokenizer:
    r"""Tokenizer for text that is already tokenized; it splits only at space, tab, ``\n`` and ``\r``.

    ``str.split`` would also split at U+3000, U+00A0, U+0085, U+2028 and others, which occur *inside* tokens
    of published corpora and vocabularies.
    """

    name = "whitespace"
    _token = re.compile(r"[^ \t\n\r]+")

    def __call__(self, text: str) -> Tokens:
        """Tokenize a text."""
        return Tokens.from_offsets(text, (match.span() for match in self._token.finditer(text)))


class CharacterTokenizer:
    """Tokenizer that makes each character a token, except white space; for protein sequences, among others."""

    name = "characters"

    def __call__(self, text: str) -> Tokens:
        """Tokenize a text."""
        return Tokens.from_offsets(text, (match.span() for match in _NOT_SPACE_CHARACTER.finditer(text)))


class SpacyTokenizer:
    """Tokenizer with the rules of spaCy for a language code; no spaCy model is needed."""

    # spaCy scans text without white space again for each affix that it removes, so its time is quadratic.
    # Long runs of characters without white space are therefore passed in pieces.
    _max_run = 500
    _run = re.compile(rf"\S{{1,{_max_run}}}")

    def __init__(self, language: str) -> None:
        self.name = f"spacy:{language}"
        self.language = language
        _load_spacy(language)

    def __call__(self, text: str) -> Tokens:
        """Tokenize a text."""
        tokenize = _load_spacy(self.language).tokenizer
        # spaCy stores UTF-8, which has no lone surrogates; a replacement of equal length keeps the offsets
        safe = text.encode("utf-8", "replace").decode("utf-8") if _SURROGATE.search(text) else text
        spans: list[tuple[int, int]] = []
        for start, end in self._split(safe):
            for token in tokenize(safe[start:end]):
                first = start + token.idx
                if span := strip_span(safe, first, first + len(token.text)):
                    spans.append(span)
        return Tokens.from_offsets(text, _fill_gaps(safe, spans))

    def _split(self, text: str) -> Iterable[tuple[int, int]]:
        """Split runs without white space after every ``_max_run`` characters; most texts stay in one piece."""
        begin = 0
        for match in self._run.finditer(text):
            if match.end() - match.start() == self._max_run:
                yield begin, match.end()
                begin = match.end()
        yield begin, len(text)


@cache
def _load_spacy(language: str) -> Language:
    with importing_extra("a spaCy tokenizer", extra="spacy"):
        import spacy  # pyright: ignore[reportMissingImports]
    try:
        return spacy.blank(language)
    except (ImportError, AttributeError) as error:  # spaCy treats an unknown language code as the name of a module
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"tokenizer: spaCy has no tokenizer for {language[:40]!r}: {reason}") from error


def _fill_gaps(text: str, spans: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """Add spans for all text that spaCy left out between its tokens, so that no character is lost."""
    position = 0
    for start, end in spans:
        yield from (match.span() for match in _NOT_SPACE.finditer(text, position, start))
        yield start, end
        position = end
    yield from (match.span() for match in _NOT_SPACE.finditer(text, position))


def strip_span(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Remove white space from both ends of a span; return None if nothing is left."""
    piece = text[start:end]
    start += len(piece) - len(piece.lstrip())
    end = start + len(piece.strip())
    return (start, end) if start < end else None


def skip_space(text: str, position: int) -> int:
    """Return the position of the next character that is not white space."""
    return _SPACE.match(text, position).end()  # pyright: ignore[reportOptionalMemberAccess] -- always matches
