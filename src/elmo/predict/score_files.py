r"""Scores of sentences in, a TSV or JSON-lines file out, which is there whole or not at all.

log p is in nats; numbers have the digits that name a float32. By sentence: one line for each sentence and
start, with the sums over its words and the boundary. By token: in TSV one line for each token, ``<S>`` and
``</S>`` among them, with an empty field where a direction does not predict it; in JSON lines one line for
each sentence, with lists: ``forward`` of the tokens and then ``</S>``, ``backward`` of ``<S>`` and then the
tokens. In TSV ``\``, tab, line ends and what UTF-8 cannot hold are escaped as Python does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TextIO, get_args

from elmo.embed.atomic import locked, replacing
from elmo.errors import ConfigError, OutputError
from elmo.formats.files import check_parents, make_parents, shown
from elmo.predict.scores import SentenceScores
from elmo.text.fields import escaped

By = Literal["sentence", "token"]
SUFFIXES = (".tsv", ".jsonl")

_PLACE = ("sentence", "path", "line", "start")
_SENTENCE = (*_PLACE, "tokens", "unknown", "forward", "backward", "text")
_TOKEN = (*_PLACE, "position", "token", "unknown", "forward", "backward")

Write = Callable[[int, SentenceScores], None]


def check_output(path: Path, *, by: str = "sentence", inputs: Iterable[str | Path] = ()) -> None:
    """Refuse what cannot be written, or lies among the input, before work begins."""
    if by not in get_args(By):
        raise ConfigError(f"by must be sentence or token, not {by!r:.40}")
    if path.suffix.lower() not in SUFFIXES:
        raise OutputError(
            f"{shown(path)}: expected a name that ends in {' or '.join(SUFFIXES)}, found {path.suffix!r}"
        )
    if path.is_dir():
        raise OutputError(f"{shown(path)}: expected the name of a file, found a folder")
    if path.resolve() in (Path(one).resolve() for one in inputs if one != "-"):
        raise OutputError(f"{shown(path)}: lies among the input; put it elsewhere")
    check_parents(path)


@contextmanager
def score_writer(path: Path, *, by: By = "sentence") -> Iterator[Write]:
    """What to give each sentence's number, from 1, and scores to; on leaving the file takes its place."""
    check_output(path, by=by)
    make_parents(path)
    with (
        locked(path.with_name(f".{path.name}.lock"), subject=path),
        replacing(path) as temporary,
        temporary.open("x", encoding="utf-8", errors="backslashreplace", newline="\n") as file,
    ):
        yield _writer(file, by=by, is_tsv=path.suffix.lower() == ".tsv")


def _writer(file: TextIO, *, by: By, is_tsv: bool) -> Write:
    if not is_tsv:
        lines = json_of_sentence if by == "sentence" else json_of_tokens
        return lambda number, scores: _write(file, [lines(number, scores)])
    file.write("\t".join(_SENTENCE if by == "sentence" else _TOKEN) + "\n")
    rows = _rows_of_sentence if by == "sentence" else _rows_of_tokens
    return lambda number, scores: _write(file, ("\t".join(row) for row in rows(number, scores)))


def _write(file: TextIO, lines: Any) -> None:
    file.writelines(line + "\n" for line in lines)


def _place(number: int, scores: SentenceScores) -> dict[str, Any]:
    sentence = scores.sentence
    return dict(zip(_PLACE, (number, sentence.path, sentence.line, scores.start), strict=True))


def _sums(scores: SentenceScores) -> dict[str, float | None]:
    both = {"forward": scores.forward, "backward": scores.backward}
    return {name: None if x is None else float(x.sum(dtype="float64")) for name, x in both.items()}


def json_of_sentence(number: int, scores: SentenceScores) -> str:
    """A sentence's line of JSON."""
    sums = {name: None if x is None else float(_digits(x)) for name, x in _sums(scores).items()}
    return json.dumps(
        _place(number, scores)
        | {"tokens": len(scores.tokens), "unknown": int(scores.is_unknown.sum())}
        | sums
        | {"text": " ".join(scores.tokens)}
    )


def json_of_tokens(number: int, scores: SentenceScores) -> str:
    """The same with a number for each token."""
    both = {"forward": scores.forward, "backward": scores.backward}
    lists = {name: None if x is None else [float(_digits(v)) for v in x] for name, x in both.items()}
    return json.dumps(
        _place(number, scores)
        | {"tokens": list(scores.tokens), "unknown": [bool(x) for x in scores.is_unknown]}
        | lists
    )


def _rows_of_sentence(number: int, scores: SentenceScores) -> Iterator[list[str]]:
    sums = ["" if x is None else _digits(x) for x in _sums(scores).values()]
    counts = [str(len(scores.tokens)), str(int(scores.is_unknown.sum()))]
    yield [*_place_fields(number, scores), *counts, *sums, escaped(" ".join(scores.tokens))]


def _rows_of_tokens(number: int, scores: SentenceScores) -> Iterator[list[str]]:
    place = _place_fields(number, scores)
    n = len(scores.tokens)
    forward = [""] * (n + 2) if scores.forward is None else ["", *map(_digits, scores.forward)]
    backward = [""] * (n + 2) if scores.backward is None else [*map(_digits, scores.backward), ""]
    unknown = ["0", *(str(int(x)) for x in scores.is_unknown), "0"]
    tokens = ["<S>", *map(escaped, scores.tokens), "</S>"]
    for position, fields in enumerate(zip(tokens, unknown, forward, backward, strict=True)):
        yield [*place, str(position), *fields]


def _place_fields(number: int, scores: SentenceScores) -> list[str]:
    return [escaped(str(value)) for value in _place(number, scores).values()]


def _digits(x: float) -> str:
    return f"{x:.9g}"
