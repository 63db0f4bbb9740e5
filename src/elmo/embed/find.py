"""Find words and phrases in a sentence, and words that are marked like ``[[this]]``."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from elmo.errors import DataError

Span = tuple[int, int]  # begin and end (exclusive)

_MARK = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)


def find_phrase(
    phrase: str, text: str, offsets: Sequence[Span], *, ignore_case: bool = False
) -> tuple[list[Span], list[Span]]:
    """Find a phrase in ``text``; return the matches of whole tokens, and those that split a token.

    ``offsets`` are the character offsets of the tokens. White space in the phrase matches any white space. Accents
    match whether they are composed with their letters (NFC) or not (NFD).
    """
    pattern = r"\s+".join(_any_form(part) for part in phrase.split())
    begins, ends = {begin for begin, _ in offsets}, {end for _, end in offsets}
    whole: list[Span] = []
    parts: list[Span] = []
    if not pattern:
        return whole, parts
    # a lookahead finds overlapping matches
    for match in re.finditer(f"(?=({pattern}))", text, re.IGNORECASE if ignore_case else re.NOFLAG):
        begin, end = match.span(1)
        if begin in begins and end in ends:
            whole.append((begin, end))
        elif not (_is_inside_word(text, begin) or _is_inside_word(text, end)):
            parts.append((begin, end))
    return whole, parts


def _any_form(word: str) -> str:
    """Return a pattern of a word as it is, with composed accents and with combining accents."""
    forms = dict.fromkeys((word, *(unicodedata.normalize(form, word) for form in ("NFC", "NFD"))))
    return f"(?:{'|'.join(map(re.escape, forms))})"


def _is_inside_word(text: str, position: int) -> bool:
    """Return whether a position is inside a word, so that a match cannot begin or end there.

    For example, "bank" does not match in "banker", but 苹果 matches in 苹果树: scripts without upper and lower
    case either have no spaces between words (Chinese, Thai) or attach particles to words (Korean, Arabic), so
    a word can be a part of a token.
    """
    if not 0 < position < len(text):
        return False
    before, after = text[position - 1], text[position]
    if unicodedata.combining(after):
        return True
    return all(c.isalnum() and unicodedata.category(c) != "Lo" for c in (before, after))


def find_word(word: str, text: str, offsets: Sequence[Span]) -> Span | None:
    """Find the first match of a word; prefer whole tokens to parts of tokens, and the same case to other cases."""
    same_case = find_phrase(word, text, offsets)
    any_case = find_phrase(word, text, offsets, ignore_case=True)
    matches = next((spans for pair in zip(same_case, any_case, strict=True) for spans in pair if spans), [])
    return matches[0] if matches else None


def joined_offsets(tokens: Sequence[str]) -> tuple[Span, ...]:
    """Return the offsets that tokens have when they are joined with spaces."""
    offsets, begin = [], 0
    for token in tokens:
        offsets.append((begin, begin + len(token)))
        begin += len(token) + 1
    return tuple(offsets)


def parse_marks(sentence: str, number: int) -> tuple[str, tuple[Span, ...]]:
    """Remove ``[[ ]]`` marks; return the plain sentence and the span of each marked word.

    ``number`` is the number of the sentence in error messages.
    """
    plain, spans, position = "", [], 0
    for match in _MARK.finditer(sentence):
        if not match[1].strip():
            raise DataError(
                f"sentence {number}: a mark [[ ]] must contain a word; found an empty mark in {excerpt(sentence)!r}"
            )
        plain += sentence[position : match.start()]
        spans.append((len(plain), len(plain) + len(match[1])))
        plain, position = plain + match[1], match.end()
    return plain + sentence[position:], tuple(spans)


def parse_mark(sentence: str, number: int) -> tuple[str, Span | None]:
    """Remove the mark of a sentence that has at most one; return the plain sentence and the marked span."""
    plain, spans = parse_marks(sentence, number)
    if len(spans) > 1:
        raise DataError(
            f"sentence {number}: only one word may be marked by [[ ]]; found {len(spans)} in {excerpt(sentence)!r}"
        )
    return plain, spans[0] if spans else None


def excerpt(text: str) -> str:
    """Shorten a text to at most 60 characters, for error messages."""
    return text if len(text) <= 60 else text[:59] + "…"
