"""Detect Chinese text, convert it to simplified characters, and split it into words.

jieba splits text with Han characters; the English rules split the rest. OpenCC converts the characters.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from elmo.errors import importing_extra
from elmo.text.english import HAN, KANA, build_extenders, build_pattern
from elmo.text.tokenizers import Tokens

if TYPE_CHECKING:
    from jieba import Tokenizer as Jieba  # pyright: ignore[reportMissingImports] -- an extra
    from opencc import OpenCC  # pyright: ignore[reportMissingImports] -- an extra

_MAX_CHARACTERS = 20_000  # number of characters examined to guess a tokenizer
_MIN_KANA = 0.1  # text is Japanese if kana are at least this fraction of its kana and Han characters
_SCRIPTS = re.compile(
    rf"(?P<han>[{HAN}])|(?P<kana>[{KANA}])"
    r"|(?P<unspaced>[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])"  # Thai, Lao, Burmese, Khmer
    rf"|(?P<words>[^\W\d_{HAN}{KANA}]+)"
)


@dataclass(frozen=True)
class TokenizerGuess:
    """The name of a tokenizer for a text, and the reason.

    Attributes:
        tokenizer: Name of the tokenizer.
        reason: Description of the text, such as “the text is mostly Chinese”.
        is_fallback: Whether the tokenizer is only a fallback, because elmo has none for such text.
    """

    tokenizer: str
    reason: str
    is_fallback: bool = False


def guess_tokenizer(text: str) -> TokenizerGuess | None:
    """Guess ``zh`` for mostly Chinese text and ``en`` for other text; return None for text without letters.

    One Han character counts as much as one word in letters. Chinese has no spaces and needs a dictionary; the
    English rules are enough for scripts with spaces. The English rules are also used for Japanese, because the
    dictionary of ``zh`` is Chinese; each Han character and each run of kana then becomes a token.
    """
    counts = dict.fromkeys(_SCRIPTS.groupindex, 0)
    for match in _SCRIPTS.finditer(text, 0, _MAX_CHARACTERS):
        counts[str(match.lastgroup)] += 1
    han, kana, unspaced, words = (counts[name] for name in ("han", "kana", "unspaced", "words"))
    if not sum(counts.values()):
        return None
    if han + kana > words + unspaced:
        if kana < _MIN_KANA * (han + kana):
            return TokenizerGuess("zh", "the text is mostly Chinese")
        return TokenizerGuess("en", "the text is Japanese; each Han character becomes a token", is_fallback=True)
    if unspaced / 4 > words:  # a word has about four characters
        return TokenizerGuess("en", "the text has no spaces; clauses become tokens", is_fallback=True)
    return TokenizerGuess("en", "the text has words separated by spaces")


_N_CACHED_WORDS, _MAX_CACHED_LENGTH = 1 << 16, 64


def simplify(text: str) -> str:
    """Convert Chinese text to simplified characters without changing its length, so that offsets stay valid."""
    if text.isascii():
        return text
    converted = _convert(text)
    if len(converted) != len(text):  # no known entry of OpenCC causes this
        by_character = ((character, _convert(character)) for character in text)
        converted = "".join(new if len(new) == 1 else old for old, new in by_character)
    return converted


def simplify_word(word: str) -> str:
    """Convert a word to simplified characters; frequent words are cached."""
    if word.isascii() or len(word) > _MAX_CACHED_LENGTH:
        return simplify(word)
    return _simplify_cached(word)


_simplify_cached = lru_cache(maxsize=_N_CACHED_WORDS)(simplify)


def check_opencc() -> None:
    """Raise ``MissingExtraError`` if OpenCC is not installed; call this before reading Chinese text."""
    _load_opencc()


def _convert(text: str) -> str:
    convert = _load_opencc().convert
    try:
        return convert(text)
    except UnicodeEncodeError:  # OpenCC reads UTF-8, which has no lone surrogates
        safe = "".join("\N{REPLACEMENT CHARACTER}" if "\ud800" <= c <= "\udfff" else c for c in text)
        converted = convert(safe)
        if len(converted) != len(text):
            return text
        pairs = zip(text, converted, strict=True)
        return "".join(old if "\ud800" <= old <= "\udfff" else new for old, new in pairs)


@cache
def _load_opencc() -> OpenCC:
    with importing_extra("converting Chinese to simplified characters", extra="zh"):
        from opencc import OpenCC  # pyright: ignore[reportMissingImports]
    return OpenCC("t2s")


# jieba takes quadratic time, so the length of a run is limited; punctuation almost always ends it earlier. Short Latin
# words are included, because the dictionary has words such as 卡拉OK and T恤; but not if they continue with a
# dot or similar (google.com), which the English rules handle better.
_LATIN = "[A-Za-z0-9]{1,20}+"
_RUN = rf"(?:{_LATIN})?+[{HAN}]{{1,400}}+(?:{_LATIN}(?![A-Za-z0-9]|[-.@'’_/:&]\w)[{HAN}]{{0,50}}+){{0,4}}+"


class ChineseTokenizer:
    """Tokenizer for simplified and traditional Chinese; needs the extra ``zh``."""

    name = "zh"

    def __init__(self) -> None:
        _import_jieba()  # the dictionary is loaded for the first text, which takes about a second
        check_opencc()

    def __call__(self, text: str) -> Tokens:
        """Tokenize a text."""
        return Tokens.from_offsets(text, self._find_spans(text))

    def _find_spans(self, text: str) -> Iterator[tuple[int, int]]:
        jieba = _load_jieba()
        for match in _build_pattern().finditer(text):
            run = match["run"]
            if run is None:
                yield match.span()
                continue
            # the dictionary of jieba has simplified words
            ends = [match.start() + end for _, _, end in jieba.tokenize(simplify(run))]
            ends[-1] = match.end()  # marks stay with the character before them
            yield from zip([match.start(), *ends], ends, strict=False)


@cache
def _build_pattern() -> re.Pattern[str]:
    return re.compile(rf"(?P<run>{_RUN})[{build_extenders()}]*+|{build_pattern().pattern}")


@cache
def _import_jieba() -> Any:
    """Import jieba, without its log lines and warnings."""
    logger = logging.getLogger("jieba")
    handlers, level = list(logger.handlers), logger.level
    try:
        with importing_extra("the Chinese tokenizer", extra="zh"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jieba 0.42 uses features that Python deprecates
            import jieba  # pyright: ignore[reportMissingImports]
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(max(level, logging.WARNING))
    return jieba


@cache
def _load_jieba() -> Jieba:
    """Return a jieba tokenizer with its dictionary loaded.

    By default, jieba would unmarshal ``jieba.cache`` from the temporary folder, where any user could have put
    it. This function loads the dictionary of the package instead.
    """
    jieba = _import_jieba().Tokenizer()
    jieba.FREQ, jieba.total = jieba.gen_pfdict(jieba.get_dict_file())
    jieba.initialized = True
    return jieba
