r"""Write scores to a TSV or JSON-lines file, atomically.

Scores are log-probabilities in nats, with nine digits, which is exact for float32. With ``by="sentence"``, a file
has one line per sentence and start state, with the sums over its words and the boundary. With ``by="token"``, a
TSV file has one line per token, including ``<S>`` and ``</S>``; a field is empty if the direction does not predict
the token. A JSON-lines file then has one line per sentence, with lists: ``forward`` for the tokens and ``</S>``,
``backward`` for ``<S>`` and the tokens. In TSV files, ``\``, tabs, line ends and characters that are not valid in
UTF-8 are escaped as in Python.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from elmo.errors import ConfigError, DataError
from elmo.storage.atomic import atomic_file, check_output_file, hold_lock, make_parents
from elmo.storage.files import format_path
from elmo.text.lines import escape_field

if TYPE_CHECKING:
    from elmo.predict.predictor import LogProbabilities
    from elmo.predict.scores import SentenceScores

    Results = tuple[SentenceScores, ...]  # the scores of a sentence, one per start state

By = Literal["sentence", "token"]
SUFFIXES = (".tsv", ".jsonl")

_PLACE = ("sentence", "path", "line", "start")
_SENTENCE_COLUMNS = (*_PLACE, "tokens", "unknown", "forward", "backward", "text")
_TOKEN_COLUMNS = (*_PLACE, "position", "token", "unknown", "forward", "backward")


def check_score_file(path: str | Path | None, *, by: str = "sentence", inputs: Iterable[str | Path] = ()) -> None:
    """Check that scores can be written to ``path``, if it is not None. Call this before the work starts."""
    if by not in get_args(By):
        raise ConfigError(f"by must be sentence or token; found {by!r:.40}")
    if path is not None:
        check_output_file(Path(path), suffixes=SUFFIXES, inputs=inputs)


def write_scores(results: Iterable[Results], path: str | Path | None, *, by: By) -> Iterator[Results]:
    """Yield the scores of each sentence, and write them to ``path`` if it is not None.

    The file is written atomically: it appears after the last sentence has been yielded.
    """
    if path is None:
        yield from results
        return
    number = 0
    with _open_writer(Path(path), by) as write:
        for number, by_start in enumerate(results, start=1):
            for scores in by_start:
                write(number, scores)
            yield by_start
        if not number:
            raise DataError(f"cannot write {format_path(path)}: the text has no sentence with a word")


@contextmanager
def _open_writer(path: Path, by: By) -> Iterator[Callable[[int, SentenceScores], None]]:
    """Open a file, and yield a function that writes a sentence: its number, counted from 1, and its scores."""
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
    """Format the scores of a sentence as a JSON object, with the values of ``extra`` at the end."""
    if by == "sentence":
        values = _sentence_values(number, scores)
    else:
        values = _place(number, scores)
        values |= {"tokens": list(scores.tokens), "unknown": [bool(x) for x in scores.is_unknown]}
        values |= {"forward": _floats(scores.forward), "backward": _floats(scores.backward)}
    return json.dumps(values | extra, ensure_ascii=False)


def _sentence_values(number: int, scores: SentenceScores) -> dict[str, Any]:
    counts = len(scores.tokens), int(scores.is_unknown.sum())
    sums = (None if x is None else float(_digits(x)) for x in scores.sums)
    values = (*_place(number, scores).values(), *counts, *sums, " ".join(scores.tokens))
    return dict(zip(_SENTENCE_COLUMNS, values, strict=True))


def _sentence_rows(number: int, scores: SentenceScores) -> Iterator[list[str]]:
    values = _sentence_values(number, scores).values()
    yield [_digits(x) if isinstance(x, float) else escape_field("" if x is None else str(x)) for x in values]


def _token_rows(number: int, scores: SentenceScores) -> Iterator[list[str]]:
    place = [escape_field(str(value)) for value in _place(number, scores).values()]
    for position, (token, is_unknown, *log_ps) in enumerate(scores.by_token()):
        fields = ["" if x is None else _digits(x) for x in log_ps]
        yield [*place, str(position), escape_field(token), str(int(is_unknown)), *fields]


def _place(number: int, scores: SentenceScores) -> dict[str, Any]:
    sentence = scores.sentence
    return dict(zip(_PLACE, (number, sentence.path, sentence.line, scores.start), strict=True))


def _floats(log_p: LogProbabilities | None) -> list[float] | None:
    return None if log_p is None else [float(_digits(x)) for x in log_p]


def _digits(x: float) -> str:
    return f"{x:.9g}"
