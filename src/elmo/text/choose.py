"""The beginning of a text in, the name of the tokeniser that suits it out."""

from __future__ import annotations

import re
from dataclasses import dataclass

from elmo.text.english import HAN, KANA

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
