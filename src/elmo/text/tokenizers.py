"""Text in, tokens with their places in it out; the tokenisers are found here by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

from elmo.errors import ConfigError, DataError, MissingExtraError

if TYPE_CHECKING:
    from spacy.language import Language  # pyright: ignore[reportMissingImports] -- an extra

CHOICES = ("en", "whitespace", "zh", "spacy:LANG")


@dataclass(frozen=True)
class Tokens:
    """The tokens of one sentence.

    With a text, token k is exactly ``text[start:end]`` for ``start, end = offsets[k]``; tokens come in
    order, never overlap, and hold every character that is no white space (``str.isspace``). Tokens that
    the caller made have no offsets.
    """

    text: str | None
    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...] | None

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def cut(cls, text: str, offsets: Iterable[tuple[int, int]]) -> Tokens:
        """The tokens that stand at ``offsets`` in ``text``."""
        places = tuple(offsets)
        return cls(text, tuple(text[start:end] for start, end in places), places)

    @classmethod
    def given(cls, tokens: Sequence[str]) -> Tokens:
        """Tokens as a caller made them, each kept as it is."""
        if isinstance(tokens, str):
            raise DataError("tokens: expected a list of strings, found one string; pass it as text instead")
        for k, token in enumerate(tokens):
            if not isinstance(token, str):
                raise DataError(f"tokens: expected strings, found {type(token).__name__} at position {k}")
        return cls(None, tuple(tokens), None)


class Tokenizer(Protocol):
    """Cuts a text into tokens and leaves its characters alone."""

    name: str

    def __call__(self, text: str) -> Tokens:
        """The tokens of ``text``; any string will do."""
        ...


def tokenizer(name_or_language: str = "en") -> Tokenizer:
    """The tokeniser of that name: ``en`` (or ``default``), ``whitespace``, ``zh``, or ``spacy:LANG``."""
    name = name_or_language
    if name in ("en", "default"):
        from elmo.text.english import EnglishTokenizer

        return EnglishTokenizer()
    if name == "whitespace":
        return WhitespaceTokenizer()
    if name == "zh":
        from elmo.text.chinese import ChineseTokenizer

        return ChineseTokenizer()
    if name.startswith("spacy:"):
        return SpacyTokenizer(name.removeprefix("spacy:"))
    raise ConfigError(f"tokenizer: expected one of {', '.join(CHOICES)}, found {name[:40]!r}")


class WhitespaceTokenizer:
    r"""For text that is tokenised already: cuts at space, tab, ``\n`` and ``\r``, and nowhere else.

    ``str.split`` would also cut at U+3000, U+00A0, U+0085, U+2028 and others, which stand *inside* tokens
    of published corpora and vocabularies.
    """

    name = "whitespace"
    _token = re.compile(r"[^ \t\n\r]+")

    def __call__(self, text: str) -> Tokens:
        """The tokens of ``text``."""
        return Tokens.cut(text, (match.span() for match in self._token.finditer(text)))


class SpacyTokenizer:
    """Any language that spaCy has rules for, by its code; only spaCy's tokeniser runs, no model."""

    # spaCy looks at a stretch without white space again for every affix it takes off: time grows with the
    # square of the length. Longer stretches are handed over in pieces.
    _longest_stretch = 500
    _stretch = re.compile(rf"\S{{1,{_longest_stretch}}}")

    def __init__(self, language: str) -> None:
        self.name = f"spacy:{language}"
        self.language = language
        _spacy_blank(language)

    def __call__(self, text: str) -> Tokens:
        """The tokens of ``text``."""
        run = _spacy_blank(self.language).tokenizer
        # spaCy stores UTF-8 and cannot hold a lone surrogate; a stand-in of equal length keeps offsets.
        safe = text.encode("utf-8", "replace").decode("utf-8") if _SURROGATE.search(text) else text
        spans: list[tuple[int, int]] = []
        for start, end in self._pieces(safe):
            for token in run(safe[start:end]):
                first = start + token.idx
                spans += _without_space(safe, first, first + len(token.text))
        return Tokens.cut(text, _gaps_filled(safe, spans))

    def _pieces(self, text: str) -> Iterable[tuple[int, int]]:
        """The text in one piece, unless a stretch is too long."""
        begin = 0
        for match in self._stretch.finditer(text):
            if match.end() - match.start() == self._longest_stretch:
                yield begin, match.end()
                begin = match.end()
        yield begin, len(text)


_SURROGATE = re.compile("[\ud800-\udfff]")
_SOLID = re.compile(r"\S+")


def _without_space(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """The token, less white space at its ends; nothing when it is white space only."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return [(start, end)] if start < end else []


def _gaps_filled(text: str, spans: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """The spans, and what solid text another library left between them: no character may be lost."""
    at = 0
    for start, end in spans:
        yield from (match.span() for match in _SOLID.finditer(text, at, start))
        yield start, end
        at = end
    yield from (match.span() for match in _SOLID.finditer(text, at))


@cache
def _spacy_blank(language: str) -> Language:
    try:
        import spacy  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError("a spaCy tokenizer", extra="spacy") from error
    try:
        return spacy.blank(language)
    except (ImportError, AttributeError) as error:  # unknown codes: spaCy takes any for a module's name
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"tokenizer: spaCy cannot make a tokenizer for {language[:40]!r}: {reason}"
        ) from error
