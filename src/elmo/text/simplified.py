"""Chinese in either script in, the same in simplified characters out, one for one."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

from elmo.errors import MissingExtraError

if TYPE_CHECKING:
    from opencc import OpenCC  # pyright: ignore[reportMissingImports] -- an extra

_CACHED_WORDS, _LONGEST_CACHED = 1 << 16, 64  # words, and characters of one


def simplified(text: str) -> str:
    """As long as ``text``, so that places in one are places in the other."""
    if text.isascii():
        return text
    converter = _converter()
    found = _converted(text, converter)
    if len(found) != len(text):  # no entry of OpenCC's is known to do that, but it makes no promise
        found = "".join(
            one if len(one) == 1 else character
            for character in text
            for one in [_converted(character, converter)]
        )
    return found


def simplified_word(word: str) -> str:
    """The same for words, which come again and again."""
    if word.isascii() or len(word) > _LONGEST_CACHED:
        return simplified(word)
    return _remembered(word)


_remembered = lru_cache(maxsize=_CACHED_WORDS)(simplified)


def check() -> None:
    """What is missing is to be known at once, not at the first Chinese word."""
    _converter()


def _converted(text: str, converter: OpenCC) -> str:
    try:
        return converter.convert(text)
    except UnicodeEncodeError:  # a lone surrogate: OpenCC reads UTF-8
        safe = "".join("\N{REPLACEMENT CHARACTER}" if "\ud800" <= c <= "\udfff" else c for c in text)
        found = converter.convert(safe)
        if len(found) != len(text):
            return text
        return "".join(
            old if "\ud800" <= old <= "\udfff" else new for old, new in zip(text, found, strict=True)
        )


@cache
def _converter() -> OpenCC:
    try:
        from opencc import OpenCC  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError("reading Chinese in simplified characters", extra="zh") from error
    return OpenCC("t2s")
