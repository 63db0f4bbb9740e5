r"""A string in, a field of a line parted by tabs out, and back: ``\``, tab and line ends are escaped."""

from __future__ import annotations

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def escaped(text: str) -> str:
    r"""As Python does; a lone surrogate, which no UTF-8 has, becomes ``\ud800``."""
    return text.translate(_ESCAPES).encode("utf-8", "backslashreplace").decode()


def unescaped(field: str) -> str:
    """What ``escaped`` was given; ``ValueError`` for a field that it does not give."""
    if "\\" not in field:
        return field
    return field.encode("latin-1", "backslashreplace").decode("unicode_escape")
