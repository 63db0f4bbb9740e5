"""A sentence with one word marked, ``the bank by the [[bank]]``, in; the sentence and the place out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from elmo.embed.encoding import Span, places_of
from elmo.errors import DataError

MARK = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)


def unmarked(sentence: str, number: int) -> tuple[str, Span | None]:
    """The sentence without its mark, and where that stood."""
    marks = list(MARK.finditer(sentence))
    if not marks:
        return sentence, None
    if len(marks) > 1 or not marks[0][1].strip():
        raise DataError(
            f"sentence {number}: expected one word marked by [[ ]], found {len(marks)}: "
            f"{start_of(sentence)!r}"
        )
    begin, end = marks[0].span(1)
    return sentence[: begin - 2] + marks[0][1] + sentence[end + 2 :], (begin - 2, end - 2)


def find_word(word: str, text: str, offsets: Sequence[Span]) -> Span | None:
    """The first place of the word: whole tokens before parts of them, its spelling before other case."""
    spelled = places_of(word, text, offsets)
    in_any_case = places_of(word, text, offsets, ignore_case=True)
    found = next((places for pair in zip(spelled, in_any_case, strict=True) for places in pair if places), [])
    return found[0] if found else None


def joined_places(tokens: Sequence[str]) -> tuple[Span, ...]:
    """Where tokens stand in the text that spaces between them make."""
    found, at = [], 0
    for token in tokens:
        found.append((at, at + len(token)))
        at += len(token) + 1
    return tuple(found)


def start_of(text: str) -> str:
    """As much of a sentence as a message has room for."""
    return text if len(text) <= 60 else text[:59] + "…"
