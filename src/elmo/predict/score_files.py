r"""Write scores to a TSV or JSON-lines file, atomically.

Scores are log p in nats, with nine digits, enough for a float32. By sentence: one line per sentence and start
state, with the sums over its words and the boundary. By token: in TSV one line per token, including ``<S>``
and ``</S>``, with an empty field if a direction does not predict it; in JSON lines one line per sentence,
with lists: ``forward`` for the tokens and ``</S>``, ``backward`` for ``<S>`` and the tokens. In TSV ``\``,
tabs, line ends and characters outside UTF-8 are escaped as in Python.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from elmo.errors import ConfigError
from elmo.predict.predictor import LogProbabilities
from elmo.predict.scores import SentenceScores
from elmo.storage.atomic import atomic_file, check_output_file, hold_lock, make_parents
from elmo.text.lines import escape_field

By = Literal["sentence", "token"]
Write = Callable[[int, SentenceScores], None]
SUFFIXES = (".tsv", ".jsonl")

_PLACE = ("sentence", "path", "line", "start")
_SENTENCE_COLUMNS = (*_PLACE, "tokens", "unknown", "forward", "backward", "text")
_TOKEN_COLUMNS = (*_PLACE, "position", "token", "unknown", "forward", "backward")


def check_score_file(path: Path, *, by: str = "sentence", inputs: Iterable[str | Path] = ()) -> None:
    """Check that scores can be written to ``path``; call this before the work starts."""
    if by not in get_args(By):
        raise ConfigError(f"by must be sentence or token, found {by!r:.40}")
    check_output_file(path, suffixes=SUFFIXES, inputs=inputs)


@contextmanager
def score_writer(path: Path, *, by: By = "sentence") -> Iterator[Write]:
    """Open a file of scores; call the result with the number of each sentence, from 1, and its scores."""
    check_score_file(path, by=by)
    make_parents(path)
    with (
        hold_lock(path.with_name(f".{path.name}.lock"), subject=path),
        atomic_file(path) as temporary,
        temporary.open("x", encoding="utf-8", errors="backslashreplace", newline="\n") as file,
    ):
        if path.suffix.lower() == ".jsonl":
            yield lambda number, scores: file.writelines([format_json(number, scores, by=by) + "\n"])
            return
        file.write("\t".join(_SENTENCE_COLUMNS if by == "sentence" else _TOKEN_COLUMNS) + "\n")
        rows = _sentence_rows if by == "sentence" else _token_rows
        yield lambda number, scores: file.writelines("\t".join(row) + "\n" for row in rows(number, scores))


def format_json(number: int, scores: SentenceScores, *, by: By = "sentence", **extra: float | None) -> str:
    """Format the line of a sentence in JSON, with ``extra`` values at the end."""
    values = _place(number, scores)
    if by == "sentence":
        values |= {"tokens": len(scores.tokens), "unknown": int(scores.is_unknown.sum())}
        forward, backward = (None if x is None else float(_digits(x)) for x in scores.sums)
        values |= {"forward": forward, "backward": backward, "text": " ".join(scores.tokens)}
    else:
        values |= {"tokens": list(scores.tokens), "unknown": [bool(x) for x in scores.is_unknown]}
        values |= {"forward": _floats(scores.forward), "backward": _floats(scores.backward)}
    return json.dumps(values | extra)


def _sentence_rows(number: int, scores: SentenceScores) -> Iterator[list[str]]:
    counts = [str(len(scores.tokens)), str(int(scores.is_unknown.sum()))]
    sums = ["" if x is None else _digits(x) for x in scores.sums]
    yield [*_place_fields(number, scores), *counts, *sums, escape_field(" ".join(scores.tokens))]


def _token_rows(number: int, scores: SentenceScores) -> Iterator[list[str]]:
    place = _place_fields(number, scores)
    for position, (token, is_unknown, *log_ps) in enumerate(scores.by_token()):
        fields = ["" if x is None else _digits(x) for x in log_ps]
        yield [*place, str(position), escape_field(token), str(int(is_unknown)), *fields]


def _place(number: int, scores: SentenceScores) -> dict[str, Any]:
    sentence = scores.sentence
    return dict(zip(_PLACE, (number, sentence.path, sentence.line, scores.start), strict=True))


def _place_fields(number: int, scores: SentenceScores) -> list[str]:
    return [escape_field(str(value)) for value in _place(number, scores).values()]


def _floats(log_p: LogProbabilities | None) -> list[float] | None:
    return None if log_p is None else [float(_digits(x)) for x in log_p]


def _digits(x: float) -> str:
    return f"{x:.9g}"
