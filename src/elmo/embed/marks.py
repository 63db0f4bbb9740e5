"""A sentence with words marked, ``the bank by the [[bank]]``, in; the sentence and their places out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from elmo.embed.encoding import Span, places_of
from elmo.errors import DataError

MARK = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)


def without_marks(sentence: str, number: int) -> tuple[str, tuple[Span, ...]]:
    """The sentence without its marks, and where each of them stood; ``number`` is the sentence's."""
    plain, spans, at = "", [], 0
    for match in MARK.finditer(sentence):
        if not match[1].strip():
            raise DataError(
                f"sentence {number}: expected one word marked by [[ ]], found a mark without any: "
                f"{start_of(sentence)!r}"
            )
        plain += sentence[at : match.start()]
        spans.append((len(plain), len(plain) + len(match[1])))
        plain, at = plain + match[1], match.end()
    return plain + sentence[at:], tuple(spans)


def unmarked(sentence: str, number: int) -> tuple[str, Span | None]:
    """The same for a sentence that may mark one word; None where it marks none."""
    plain, spans = without_marks(sentence, number)
    if len(spans) > 1:
        raise DataError(
            f"sentence {number}: expected one word marked by [[ ]], found {len(spans)}: "
            f"{start_of(sentence)!r}"
        )
    return plain, spans[0] if spans else None


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
