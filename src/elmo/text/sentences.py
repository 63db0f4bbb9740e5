"""Split text into sentences, with rules for full stops, abbreviations, quotes and blank lines.

In doubtful cases, the sentence continues, because joining two sentences harms a biLM less than cutting one in two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from elmo.text.english import ABBREVIATIONS, BEFORE_NUMBERS, HAN, TITLES
from elmo.text.tokenizers import skip_space, strip_span

# These characters end a sentence in any language.
_STRONG = frozenset("。！？｡؟۔।॥։።။។")
_CHINESE_ONLY = "；"  # in Chinese, separates clauses that are often as long as sentences
_PATTERN = re.compile(
    r"(?P<blank>\n[^\S\n]*+\n|\u2029)"
    r"|(?P<marks>[.!?…。！？｡؟۔।॥։።။។；]++)(?P<closers>[\"'”’»)\]}）】」』》〉］｝〗〕]*+)"
)
_HAN_BEFORE = re.compile(f"[{HAN}][\"'”’)）」』]?\\Z")
_HAN_AFTER = re.compile(f"[\"'“‘(（「『《]?[{HAN}]")
_CONTINUES = frozenset(",，、;；:：)）].!?…")
_LAST_WORD = re.compile(r"[^\s\"'“‘(\[]+\Z")
_NEXT_WORD = re.compile(r"[\"'“‘(\[«]{0,3}([^\W_]{0,20})")
_DOTTED = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")
_ELLIPSIS = re.compile(r"\.{2,}|…+\.?")

_STARTERS = frozenset(
    """The A An He She It We They I You This That These Those There Here In On At But And Or So If When While
    As For After Before However His Her Their Its Our My Your What Who Why How Where Then Now Not Yes Also
    Although Another By Despite During Each Every From Many Most One Other Since Some Such To Under Until
    With""".split()  # noqa: SIM905 -- easier to read than quotes
)
_NEVER_LAST = frozenset(("e.g", "i.e", "eg", "ie", "cf", "viz", "approx", "ca", *TITLES))
_LAST_BEFORE_A_CAPITAL = frozenset(("etc", "Etc", "al", "a.m", "p.m", "A.M", "P.M", "Jr", "Sr"))


def split_sentences(text: str, language: str = "en") -> list[tuple[int, int]]:
    """Return the start and end of each sentence, as ``iter_sentences`` finds them."""
    return list(iter_sentences(text, language))


def iter_sentences(text: str, language: str = "en") -> Iterator[tuple[int, int]]:
    """Find the start and end of each sentence, without the white space around it.

    A blank line always ends a sentence; a single line break never does. ``language`` is a language code or
    the name of a tokenizer; in Chinese (``zh``), sentences also end at ``；``.
    """
    is_chinese = language.removeprefix("spacy:").split("-")[0] == "zh"
    begin = 0
    for match in _PATTERN.finditer(text):
        if match["blank"] is not None or _is_end(text, match, begin=begin, is_chinese=is_chinese):
            if span := strip_span(text, begin, match.end()):
                yield span
            begin = match.end()
    if span := strip_span(text, begin, len(text)):
        yield span


def _is_end(text: str, match: re.Match[str], *, begin: int, is_chinese: bool) -> bool:
    """Return whether the sentence that starts at ``begin`` ends with the matched punctuation marks."""
    marks, has_closers = match["marks"], bool(match["closers"])
    end = match.end()
    after = skip_space(text, end)
    following = text[after : after + 24]
    if not following:
        return True
    if any(mark in _STRONG for mark in marks) or (is_chinese and _CHINESE_ONLY in marks):
        return following[0] not in _CONTINUES
    if _CHINESE_ONLY in marks:
        return False
    is_ellipsis = _ELLIPSIS.fullmatch(marks) is not None
    if after == end:
        # No white space: Chinese with ASCII punctuation, or not an end at all (3.14, a.b, 好吧……算了).
        if is_ellipsis:
            return False
        before = text[max(0, match.start() - 2) : match.start()]
        return bool(_HAN_BEFORE.search(before) and _HAN_AFTER.match(following))
    next_word = _NEXT_WORD.match(following)
    next_word = next_word[1] if next_word else ""
    if following[0] in _CONTINUES:
        return False
    if is_ellipsis:
        return not next_word[:1].islower()
    if "!" in marks or "?" in marks:
        # no end in: "Stop!" he said. The company Yahoo! grew.
        is_name = text.endswith("Yahoo", 0, match.start()) and marks == "!"
        return not (next_word[:1].islower() and (has_closers or is_name))
    return _is_full_stop_end(text, match, begin=begin, next_word=next_word)


def _is_full_stop_end(text: str, match: re.Match[str], *, begin: int, next_word: str) -> bool:
    """Return whether an ASCII full stop, followed by white space, ends a sentence."""
    last_word = _LAST_WORD.search(text[max(begin, match.start() - 24) : match.start()])
    if last_word is None:
        return True
    word = last_word[0]
    if word in _NEVER_LAST:
        return False
    if word in BEFORE_NUMBERS and next_word[:1].isdigit():
        return False
    if word in _LAST_BEFORE_A_CAPITAL:
        return next_word[:1].isupper()
    is_initial = len(word) == 1 and word.isupper() and word != "I"
    if is_initial or word in ABBREVIATIONS or _DOTTED.fullmatch(word):
        return next_word in _STARTERS
    is_list_number = word.isdigit() and text[begin : match.start()].strip() == word  # "1. First"
    return not is_list_number
