"""SQuAD files (JSON, versions 1.1 and 2.0) in, questions with the passage's tokens that answer them out.

Version 2.0's questions without an answer (``is_impossible``) are left out and counted: the paper's model
always answers. An answer that does not stand at its offset is looked for nearby, and else not
learned from: its text still counts when answers are scored.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from elmo.errors import DataError
from elmo.tasks.data.examples import Location, Question, Span, Words
from elmo.tasks.data.files import WHITESPACE, Paths, Tokenize, find_files, listed, split_tokens, split_words
from elmo.text.lines import Source, format_source, open_text

MAX_BYTES = 2 << 30  # JSON is held in memory whole, several times over
NEARBY = 20  # characters that an offset may be wrong by: published ones are off by one or two
IMPOSSIBLE = "questions that have no answer"
MISPLACED = "answers, in training only, that stand elsewhere in their passage or nowhere"
UNANSWERED = "questions, in training only, none of whose answers could be placed"


def read_squad(
    paths: Paths,
    *,
    tokenize: Tokenize = WHITESPACE,
    is_labeled: bool = True,
    left_out: Counter[str] | None = None,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Question]:
    """The questions of SQuAD files, each id once; what is left out is counted in ``left_out``.

    An answer's span is the smallest one of whole tokens that covers it. ``is_labeled=False`` reads
    questions without answers, and passes over answers that there are.
    """
    counts = Counter() if left_out is None else left_out
    ids: set[str] = set()
    for file in find_files(paths):
        n_read = 0
        for passage in _passages(_json(_text(file, max_bytes), format_source(file)), format_source(file), tokenize):
            for item, where in passage.questions:
                n_read += 1
                question = _question(item, where, passage, tokenize, counts=counts if is_labeled else None)
                if question is None:
                    continue
                if question.id in ids:
                    raise DataError(f"{where}: expected an id of its own, found {question.id[:60]!r} again")
                ids.add(question.id)
                yield question
        if not n_read:
            raise DataError(f"{format_source(file)}:1: expected questions, found none")


read_squad = listed(read_squad)


@dataclass(frozen=True)
class _Where:
    """A place in a file and in its JSON."""

    place: Location
    path: str

    def __str__(self) -> str:
        return f"{self.place} ({self.path})"


@dataclass(frozen=True)
class _Passage:
    text: str
    words: Words
    offsets: tuple[tuple[int, int], ...]
    questions: list[tuple[Mapping[str, Any], _Where]]


def _text(file: Source, max_bytes: int) -> str:
    with open_text(file) as (_, stream):
        data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise DataError(
            f"{format_source(file)}: expected at most {max_bytes:,} bytes of JSON, found more; split the file"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{format_source(file)}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; convert the file"
        ) from error


def _json(text: str, name: str) -> _Numbered:
    try:
        return _Numbered(json.loads(text), text)
    except json.JSONDecodeError as error:
        found = "an empty file" if not text.strip() else f"{error.msg} at column {error.colno}"
        raise DataError(f"{name}:{error.lineno}: expected JSON, found {found}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}:1: expected SQuAD's JSON, found {str(error)[:120]}") from error


class _Numbered:
    """A file's JSON value, and the lines where ids stand in its text: JSON has no places of its own."""

    def __init__(self, value: Any, text: str) -> None:
        self.value = value
        self._text, self._at, self._line = text, 0, 1
        self._is_lost = False  # an id was not written plainly: looking for every one would take too long

    def line(self, id_: Any = None) -> int:
        """The line where the next such id stands; without one, that of the last."""
        if isinstance(id_, str) and not self._is_lost:
            at = self._text.find(json.dumps(id_), self._at)
            self._is_lost = at < 0
            if at >= 0:
                self._line += self._text.count("\n", self._at, at)
                self._at = at
        return self._line


def _passages(file: _Numbered, name: str, tokenize: Tokenize) -> Iterator[_Passage]:
    for a, article in enumerate(_items(file.value, "data", _Where(Location(name, 1), "the file"))):
        where = _Where(Location(name, file.line()), f"data[{a}]")
        for p, paragraph in enumerate(_items(article, "paragraphs", where)):
            here = _Where(Location(name, file.line()), f"data[{a}].paragraphs[{p}]")
            questions = [
                (item, _Where(Location(name, file.line(_dict(item, here).get("id"))), f"{here.path}.qas[{q}]"))
                for q, item in enumerate(_items(paragraph, "qas", here))
            ]
            tokens = split_tokens(text := _string(paragraph, "context", here), tokenize)
            if not tokens.tokens:
                raise DataError(f"{here}: expected words in the context, found none")
            if tokens.offsets is None:
                raise DataError(
                    f"{here}: expected tokens that spell the context, found "
                    f"{' '.join(tokens.tokens)[:60]!r}; use a tokeniser that leaves characters as they are"
                )
            yield _Passage(text, tokens.tokens, tokens.offsets, questions)


def _question(
    item: Mapping[str, Any],
    where: _Where,
    passage: _Passage,
    tokenize: Tokenize,
    *,
    counts: Counter[str] | None,
) -> Question | None:
    """The question; None where it is left out. Without ``counts`` answers are passed over."""
    id_ = _string(item, "id", where)
    answers: list[str] = []
    spans: list[Span] = []
    if counts is not None:
        if item.get("is_impossible") is True:
            counts[IMPOSSIBLE] += 1
            return None
        given = _items(item, "answers", where)
        if not given:
            raise DataError(f"{where}: expected an answer to question {id_[:60]!r}, found none")
        for answer in given:
            span = _span(text := _string(answer, "text", where), _start(answer, where), passage)
            if text.strip():
                answers.append(text)
            if span is None:
                counts[MISPLACED] += 1
            else:
                spans.append(span)
        if not answers:  # white space alone
            counts[IMPOSSIBLE] += 1
            return None
        if not spans:
            counts[UNANSWERED] += 1
    return Question(
        id_,
        split_words(_string(item, "question", where), tokenize, what="question", place=where.place),
        passage.words,
        passage.text,
        passage.offsets,
        tuple(answers),
        tuple(spans),
        where.place,
    )


def _span(answer: str, start: int, passage: _Passage) -> Span | None:
    """The smallest span of tokens that covers the answer; None where it stands nowhere near."""
    text, offsets = passage.text, passage.offsets
    solid = answer.strip()
    if not solid:
        return None
    start += len(answer) - len(answer.lstrip())
    if start < 0 or not text.startswith(solid, start):
        before = text.rfind(solid, max(0, start - NEARBY), max(0, start + len(solid)))
        after = text.find(solid, max(0, start), max(0, start + NEARBY + len(solid)))
        near = [place for place in (before, after) if place >= 0]
        if not near:
            return None
        start = min(near, key=lambda place: abs(place - start))
    first = bisect_right(offsets, start, key=lambda offset: offset[1])  # that ends after the answer begins
    end = bisect_left(offsets, start + len(solid), key=lambda offset: offset[0])  # that begins after it
    return Span(first, end) if first < end else None


def _start(answer: Any, where: _Where) -> int:
    start = answer.get("answer_start")
    if not isinstance(start, int) or isinstance(start, bool):
        raise DataError(f"{where}: expected a number as answer_start, found {str(start)[:40]!r}")
    return start


def _dict(value: Any, where: _Where) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value


def _items(value: Any, key: str, where: _Where) -> list[Any]:
    found = _dict(value, where).get(key)
    if not isinstance(found, list):
        what = "nothing" if found is None else type(found).__name__
        raise DataError(f"{where}: expected a list {key!r}, found {what}; is it a SQuAD file?")
    return found


def _string(value: Any, key: str, where: _Where) -> str:
    found = _dict(value, where).get(key)
    if not isinstance(found, str):
        what = "nothing" if found is None else type(found).__name__
        raise DataError(f"{where}: expected a string {key!r}, found {what}")
    return found
