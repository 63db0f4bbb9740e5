"""How wide text is on a screen or in a picture, and how to shorten it."""

from __future__ import annotations

from collections.abc import Iterable
from unicodedata import east_asian_width

BOX = "\N{WHITE SQUARE}"  # stands in for a character that no font has


def shortened(text: str, width: int) -> str:
    """The text, cut with an ellipsis where it is wider than this many Latin letters."""
    if text_width(text) <= width:
        return text
    kept, used = [], 1
    for c in text:
        used += text_width(c)
        if used > width:
            break
        kept.append(c)
    return "".join(kept) + "…"


def text_width(text: Iterable[str]) -> int:
    """How wide a text is in Latin letters: Chinese characters, and boxes in their place, count twice."""
    return sum(2 if c == BOX or east_asian_width(c) in "WF" else 1 for c in text)


def plain(text: str) -> str:
    """The text in one line, what cannot be printed escaped."""
    text = " ".join(text.split(" ")).replace("\t", " ")
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )
