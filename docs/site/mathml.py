"""Formulas of Markdown pages as MathML, which browsers show without scripts: ``$…$`` in a line, and math fences."""

from __future__ import annotations

from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

# As on GitHub: no space inside the dollar signs, and no digit after them, so that prices stay prices.
_INLINE = r"(?<![\\$\w])\$(?![\s$])([^$\n]+?)(?<!\s)\$(?![\d$])"


class _InlineFormula(InlineProcessor):
    def handleMatch(self, m: Any, data: str) -> tuple[Any, int, int]:  # noqa: N802 - names of the base class
        html = convert(m[1].replace("\\_", "_"))
        return self.md.htmlStash.store(html), m.start(0), m.end(0)


class MathMl(Extension):
    """The extension of Python-Markdown for formulas in a line."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - name of the base class
        """Register the pattern before backslash escapes and emphasis, but after code."""
        md.inlinePatterns.register(_InlineFormula(_INLINE, md), "mathml", 185)


def makeExtension(**options: Any) -> MathMl:  # noqa: N802 - name that Python-Markdown expects
    """Return the extension."""
    return MathMl(**options)


def format_block(source: str, *_: Any, **__: Any) -> str:
    """Return the MathML of a math fence."""
    return convert(source.strip(), display="block")
