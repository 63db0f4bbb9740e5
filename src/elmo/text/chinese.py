"""Chinese text in, words out: jieba cuts what holds Han characters, the English rules all the rest."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from elmo.errors import MissingExtraError
from elmo.text import english
from elmo.text.simplified import check, simplified
from elmo.text.tokens import Tokens

if TYPE_CHECKING:
    from jieba import Tokenizer as Jieba  # pyright: ignore[reportMissingImports] -- an extra

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
