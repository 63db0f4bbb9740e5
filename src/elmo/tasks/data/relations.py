"""Texts with two marked entities in, their words and marks out; SemEval-2010 Task 8's lines in, texts out.

The marks ``<e1>``, ``</e1>``, ``<e2>`` and ``</e2>`` become words of their own, wherever they stand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from elmo.errors import DataError
from elmo.tasks.data.examples import LabelledText, Words
from elmo.tasks.data.sources import Tokenize, is_blank, place_of, tokens_of
from elmo.text.lines import Line

MARK = re.compile(r"</?e[12]>")
NUMBERED = re.compile(r"\s*[0-9]+\t\s*\"?(.*?)\"?\s*")  # 8001<tab>"The <e1>audits</e1> were …"


def with_marks(tokenize: Tokenize) -> Callable[[str], Words]:
    """A tokeniser that keeps marks whole, and cuts the rest as if there were none.

    Without its marks a text is cut as it would be in any other place: a full stop before a mark does not
    look like the end of a text.
    """

    def cut(text: str) -> Words:
        if MARK.search(text) is None:
            return tokens_of(text, tokenize).tokens
        marks: list[tuple[int, str]] = []  # where each stands in the text without marks
        pieces: list[str] = []
        at = length = 0
        for match in MARK.finditer(text):
            pieces.append(text[at : match.start()])
            length += len(pieces[-1])
            marks.append((length, match[0]))
            at = match.end()
        plain = "".join([*pieces, text[at:]])
        tokens = tokens_of(plain, tokenize)
        if tokens.offsets is None:  # a tokeniser that changes characters: piece by piece, then
            parts = re.split(f"({MARK.pattern})", text)
            return tuple(
                word
                for part in parts
                for word in ([part] if MARK.fullmatch(part) else tokens_of(part, tokenize).tokens)
            )
        return tuple(_merged(plain, tokens.offsets, marks))

    return cut


def read_semeval(lines: Iterable[Line], tokenize: Tokenize, *, is_labelled: bool) -> Iterator[LabelledText]:
    """The sentences of the task's files: a number and a quoted sentence, its relation, a comment.

    Files without relations are read with ``is_labelled=False``, and those of others are then passed over.
    """
    cut = with_marks(tokenize)
    sentence: Line | None = None  # that awaits its relation
    for line in lines:
        text = line.text.strip()
        if is_blank(text) or text.startswith("Comment:"):
            continue
        if sentence is not None:
            if NUMBERED.fullmatch(line.text):
                break
            yield _labelled(sentence, text, cut)
            sentence = None
        elif NUMBERED.fullmatch(line.text):
            if is_labelled:
                sentence = line
            else:
                yield _labelled(line, None, cut)
        elif is_labelled:
            raise DataError(
                f"{place_of(line)}: expected a number, a tab and a sentence in quotes, found {text[:60]!r}"
            )
    if sentence is not None:
        raise DataError(
            f"{place_of(sentence)}: expected a relation in the next line, such as Other, found none; "
            "read files without relations with is_labelled=False"
        )


def _labelled(line: Line, label: str | None, cut: Callable[[str], Words]) -> LabelledText:
    match = NUMBERED.fullmatch(line.text)
    text = match[1] if match else line.text
    words = cut(text)
    found = [word for word in words if MARK.fullmatch(word)]
    if sorted(found) != ["</e1>", "</e2>", "<e1>", "<e2>"]:
        raise DataError(
            f"{place_of(line)}: expected <e1>, </e1>, <e2> and </e2> once each, found "
            f"{' '.join(found)[:60] or 'none'}"
        )
    return LabelledText(words, label, place_of(line))


def _merged(text: str, offsets: Iterable[tuple[int, int]], marks: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Tokens and marks in their order; a token that a mark stands in is cut there."""
    waiting = list(marks)
    for start, end in offsets:
        at = start
        while waiting and waiting[0][0] < end:
            place, mark = waiting.pop(0)
            if at < place:
                yield text[at:place]
                at = place
            yield mark
        yield text[at:end]
    yield from (mark for _, mark in waiting)
