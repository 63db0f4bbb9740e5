"""Measure, shorten and escape text for a terminal or a figure."""

from __future__ import annotations

from collections.abc import Iterable
from unicodedata import east_asian_width

BOX = "\N{WHITE SQUARE}"  # shown in place of a character that is missing from all fonts


def text_width(text: Iterable[str]) -> int:
    """Return the width of a text in columns; a wide (East Asian) character or ``BOX`` takes two columns."""
    return sum(2 if c == BOX or east_asian_width(c) in "WF" else 1 for c in text)


def shorten(text: str, width: int) -> str:
    """Cut a text that is wider than ``width`` columns, and end it with an ellipsis."""
    if text_width(text) <= width:
        return text
    kept, used = [], 1
    for c in text:
        used += text_width(c)
        if used > width:
            break
        kept.append(c)
    return "".join(kept) + "…"


def one_line(text: str) -> str:
    """Escape line breaks, control characters and everything else that a terminal cannot show."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def to_plain_text(text: str) -> str:
    """Return the text on one line: tabs become spaces, other unprintable characters are escaped."""
    return one_line(text.replace("\t", " "))
