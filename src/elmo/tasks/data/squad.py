"""Read questions, passages and answers from SQuAD files (JSON, versions 1.1 and 2.0).

Questions of version 2.0 without an answer (``is_impossible``) are skipped and counted, because the model of the paper
always gives an answer. An answer that is not found at its offset is searched for nearby. If it is not found there
either, it is not used for training, but its text is still used for evaluation.
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
from elmo.tasks.data.files import WHITESPACE, Paths, Tokenize, find_files, split_tokens, split_words
from elmo.text.lines import Source, format_source, open_text

MAX_BYTES = 2 << 30  # JSON is parsed in memory, where it needs several times its size
SEARCH_DISTANCE = 20  # number of characters to search before and after an offset; some published offsets are wrong
IMPOSSIBLE = "questions without an answer"
NOT_LOCATED = "answers that do not occur near their offset (in training only)"
UNANSWERED = "questions without a located answer (in training only)"


def read_squad(
    paths: Paths,
    *,
    tokenize: Tokenize = WHITESPACE,
    is_labeled: bool = True,
    left_out: Counter[str] | None = None,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Question]:
    """Yield the questions of SQuAD files; their IDs must be unique.

    The span of an answer is the shortest sequence of tokens that covers the answer.

    Args:
        paths: Files, folders or globs; "-" is stdin.
        tokenize: Function that splits passages and questions into words.
        is_labeled: Whether to read answers.
        left_out: Counter to which the numbers of skipped examples are added, by reason.
        max_bytes: Maximum size of a file in bytes.
    """
    counts = Counter() if left_out is None else left_out
    ids: set[str] = set()
    for file in find_files(paths):
        n_read = 0
        for passage in _read_passages(_read_json(file, max_bytes), format_source(file), tokenize):
            for item, position in passage.questions:
                n_read += 1
                question = _read_question(item, position, passage, tokenize, counts=counts if is_labeled else None)
                if question is None:
                    continue
                if question.id in ids:
                    raise DataError(f"{position}: expected unique ids; found {question.id[:60]!r} twice")
                ids.add(question.id)
                yield question
        if not n_read:
            raise DataError(f"{format_source(file)}:1: expected questions; found none")


@dataclass(frozen=True)
class _JsonPosition:
    """The location of a JSON value: file, line, and the path of the value."""

    location: Location
    path: str

    def __str__(self) -> str:
        return f"{self.location} ({self.path})"


@dataclass(frozen=True)
class _Passage:
    text: str
    words: Words
    offsets: tuple[tuple[int, int], ...]
    questions: list[tuple[Mapping[str, Any], _JsonPosition]]


class _JsonLines:
    """A parsed JSON file that finds line numbers by searching for IDs, because the JSON parser reports none."""

    def __init__(self, value: Any, text: str) -> None:
        self.value = value
        self._text, self._offset, self._line = text, 0, 1
        self._can_search = True  # false after an ID that was not found: searching for the others would take too long

    def find_line(self, id_: Any = None) -> int:
        """Return the line of the next occurrence of an ID; without an ID, return the line of the last one."""
        if isinstance(id_, str) and self._can_search:
            offset = self._text.find(json.dumps(id_), self._offset)
            self._can_search = offset >= 0
            if offset >= 0:
                self._line += self._text.count("\n", self._offset, offset)
                self._offset = offset
        return self._line


def _read_json(file: Source, max_bytes: int) -> _JsonLines:
    name = format_source(file)
    with open_text(file) as (_, stream):
        data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise DataError(f"{name}: expected at most {max_bytes:,} bytes of JSON; found more; split the file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; convert the file") from error
    try:
        return _JsonLines(json.loads(text), text)
    except json.JSONDecodeError as error:
        problem = f"{error.msg} at column {error.colno}" if text.strip() else "the file is empty"
        raise DataError(f"{name}:{error.lineno}: cannot parse JSON: {problem}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}:1: cannot parse JSON: {str(error)[:120]}") from error


def _read_passages(file: _JsonLines, name: str, tokenize: Tokenize) -> Iterator[_Passage]:
    def position(path: str, id_: Any = None) -> _JsonPosition:
        return _JsonPosition(Location(name, file.find_line(id_)), path)

    for a, article in enumerate(_get(file.value, "data", list, position("the file"))):
        for p, paragraph in enumerate(_get(article, "paragraphs", list, position(f"data[{a}]"))):
            here = position(f"data[{a}].paragraphs[{p}]")
            questions = [
                (item, position(f"{here.path}.qas[{q}]", _check_object(item, here).get("id")))
                for q, item in enumerate(_get(paragraph, "qas", list, here))
            ]
            text = _get(paragraph, "context", str, here)
            tokens = split_tokens(text, tokenize)
            if not tokens.tokens:
                raise DataError(f"{here}: expected words in the context; found none")
            if tokens.offsets is None:
                raise DataError(
                    f"{here}: expected tokens that occur in the context; found {' '.join(tokens.tokens)[:60]!r}; "
                    "use a tokenizer that does not change characters"
                )
            yield _Passage(text, tokens.tokens, tokens.offsets, questions)


def _read_question(
    item: Mapping[str, Any],
    position: _JsonPosition,
    passage: _Passage,
    tokenize: Tokenize,
    *,
    counts: Counter[str] | None,
) -> Question | None:
    """Return a question, or None if it is skipped; if ``counts`` is None, answers are not read."""
    id_ = _get(item, "id", str, position)
    answers: list[str] = []
    spans: list[Span] = []
    if counts is not None:
        if item.get("is_impossible") is True:
            counts[IMPOSSIBLE] += 1
            return None
        gold = _get(item, "answers", list, position)
        if not gold:
            raise DataError(f"{position}: expected an answer to question {id_[:60]!r}; found none")
        for answer in gold:
            text = _get(answer, "text", str, position)
            span = _locate_answer(text, _get(answer, "answer_start", int, position), passage)
            if text.strip():
                answers.append(text)
            if span is None:
                counts[NOT_LOCATED] += 1
            else:
                spans.append(span)
        if not answers:  # only white space
            counts[IMPOSSIBLE] += 1
            return None
        if not spans:
            counts[UNANSWERED] += 1
    question = _get(item, "question", str, position)
    return Question(
        id_,
        split_words(question, tokenize, what="question", location=position.location),
        passage.words,
        passage.text,
        passage.offsets,
        tuple(answers),
        tuple(spans),
        position.location,
    )


def _locate_answer(answer: str, start: int, passage: _Passage) -> Span | None:
    """Return the shortest span of tokens that covers an answer; None if the answer is not near its offset."""
    text, offsets = passage.text, passage.offsets
    stripped = answer.strip()
    if not stripped:
        return None
    start += len(answer) - len(answer.lstrip())
    if start < 0 or not text.startswith(stripped, start):
        before = text.rfind(stripped, max(0, start - SEARCH_DISTANCE), max(0, start + len(stripped)))
        after = text.find(stripped, max(0, start), max(0, start + SEARCH_DISTANCE + len(stripped)))
        nearby = [offset for offset in (before, after) if offset >= 0]
        if not nearby:
            return None
        start = min(nearby, key=lambda offset: abs(offset - start))
    first = bisect_right(offsets, start, key=lambda offset: offset[1])  # first token that ends after the start
    end = bisect_left(offsets, start + len(stripped), key=lambda offset: offset[0])
    return Span(first, end) if first < end else None


def _check_object(value: Any, position: _JsonPosition) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{position}: expected a JSON object; found {type(value).__name__}")
    return value


def _get(value: Any, key: str, kind: type, position: _JsonPosition) -> Any:
    """Return ``value[key]``, which must have the type ``kind``: ``str``, ``list`` or ``int``."""
    item = _check_object(value, position).get(key)
    if type(item) is kind:  # True is not a number
        return item
    expected = {str: "a string", list: "a list", int: "a number"}[kind]
    problem = "nothing" if item is None else type(item).__name__
    raise DataError(f"{position}: expected {expected} {key!r}; found {problem}; is this a SQuAD file?")
