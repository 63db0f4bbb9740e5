"""Chinese text in, words out: jieba cuts what holds Han characters, the English rules all the rest.

Chinese in either script in, the same in simplified characters out, one for one.

The beginning of a text in, the name of the tokeniser that suits it out.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from elmo.errors import MissingExtraError
from elmo.text import english
from elmo.text.english import HAN, KANA
from elmo.text.tokenizers import Tokens

if TYPE_CHECKING:
    from jieba import Tokenizer as Jieba  # pyright: ignore[reportMissingImports] -- an extra
    from opencc import OpenCC  # pyright: ignore[reportMissingImports] -- an extra


# jieba's time grows with the square of a stretch, so stretches are bounded; punctuation comes long before.
# Short Latin words go along, for its dictionary has words such as 卡拉OK and T恤; not those that go on with
# a dot or the like (google.com), which the English rules know better.
_LATIN = "[A-Za-z0-9]{1,20}+"
_STRETCH = (
    rf"(?:{_LATIN})?+[{english.HAN}]{{1,400}}+"
    rf"(?:{_LATIN}(?![A-Za-z0-9]|[-.@'’_/:&]\w)[{english.HAN}]{{0,50}}+){{0,4}}+"
)


class ChineseTokenizer:
    """Simplified and traditional Chinese; needs the extra ``zh``."""

    name = "zh"

    def __init__(self) -> None:
        _jieba()  # what is missing is known at once; its dictionary is read with the first text, for a second
        check()

    def __call__(self, text: str) -> Tokens:
        """The tokens of ``text``."""
        return Tokens.cut(text, self._spans(text))

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        jieba = _cutter()
        for match in _pattern().finditer(text):
            stretch = match["stretch"]
            if stretch is None:
                yield match.span()
                continue
            # whose dictionary is of simplified words
            ends = [match.start() + end for _, _, end in jieba.tokenize(simplified(stretch))]
            ends[-1] = match.end()  # marks stay with the character before them
            yield from zip([match.start(), *ends], ends, strict=False)


@cache
def _pattern() -> re.Pattern[str]:
    marks = english.extenders()
    return re.compile(rf"(?P<stretch>{_STRETCH})[{marks}]*+|{english.pattern().pattern}")


@cache
def _jieba() -> Any:
    """The library, which logs and warns as it is imported."""
    logger = logging.getLogger("jieba")
    handlers, level = list(logger.handlers), logger.level
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jieba 0.42 is older than what Python now warns of
            import jieba  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError("the Chinese tokenizer", extra="zh") from error
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(max(level, logging.WARNING))
    return jieba


@cache
def _cutter() -> Jieba:
    """A tokeniser of jieba's with its dictionary read.

    Left to itself jieba would look in the machine's temporary folder for ``jieba.cache``, where any user
    may have put one, and unmarshal it. So we read its dictionary for it.
    """
    found = _jieba().Tokenizer()
    found.FREQ, found.total = found.gen_pfdict(found.get_dict_file())
    found.initialized = True
    return found


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


_MAX_CHARACTERS = 20_000
_MANY_KANA = 0.1  # of kana and Han together: even dense Japanese has more, Chinese that quotes it has less
_SCRIPTS = re.compile(
    rf"(?P<han>[{HAN}])|(?P<kana>[{KANA}])"
    r"|(?P<unspaced>[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])"  # Thai, Lao, Burmese, Khmer
    rf"|(?P<words>[^\W\d_{HAN}{KANA}]+)"
)


@dataclass(frozen=True)
class Choice:
    """A tokeniser's name, and what in the text speaks for it."""

    tokenizer: str
    reason: str
    is_makeshift: bool = False  # the text is written in a way for which no tokeniser here is made


def choose_tokenizer(text: str) -> Choice | None:
    """``zh`` for a text that is mostly Chinese, ``en`` for others; None for one without any letter.

    A Han character weighs as much as a word of letters. Chinese without spaces needs a dictionary; the
    English rules do for all that is written with spaces. They also cut Japanese, each Han character and each
    run of kana by itself, which ``zh`` would cut by a Chinese dictionary.
    """
    counts = dict.fromkeys(_SCRIPTS.groupindex, 0)
    for match in _SCRIPTS.finditer(text, 0, _MAX_CHARACTERS):
        counts[str(match.lastgroup)] += 1
    han, kana, unspaced, words = (counts[name] for name in ("han", "kana", "unspaced", "words"))
    if not sum(counts.values()):
        return None
    if han + kana > words + unspaced:
        if kana < _MANY_KANA * (han + kana):
            return Choice("zh", "the text is mostly Chinese")
        return Choice(
            "en", "the text is Japanese: Han characters become words of their own", is_makeshift=True
        )
    if unspaced / 4 > words:  # a word has some four characters
        return Choice("en", "the text is written without spaces: clauses become words", is_makeshift=True)
    return Choice("en", "the text is written in words with spaces")
