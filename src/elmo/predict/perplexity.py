"""A model and text in, how well both language models predict it out: every token, under the full softmax."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError, DataError
from elmo.formats.pretrained import Pretrained
from elmo.predict.predictor import Text, sentences_of
from elmo.predict.scores import (
    By,
    Directions,
    OnProgress,
    Scorer,
    SentenceScores,
    Start,
    check_output,
    loaded,
    score_writer,
    starts_of,
)
from elmo.text.reader import Source, expand

N_NAMED = 20  # unknown words that a report names
_COUNTED_WORDS = 1 << 18  # different unknown words that are counted at a time


@dataclass(frozen=True)
class Means:
    """Both directions over one set of predictions; None: a direction that was not asked for.

    Of a sentence the forward direction predicts the words and ``</S>``, the backward one the words and
    ``<S>``: as many. Characters are the Unicode characters of the words and one boundary after each word:
    those of the words on a line, parted by spaces, and its end. What is said of both directions together is
    the mean of theirs.
    """

    forward_nats: float | None  # −Σ log p
    backward_nats: float | None
    n_predictions: int  # of each direction
    n_characters: int

    @property
    def forward(self) -> float | None:
        """Perplexity: exp of the mean loss of a prediction."""
        return None if self.forward_nats is None else _exp(self.forward_nats / self.n_predictions)

    @property
    def backward(self) -> float | None:
        """Perplexity of the other direction."""
        return None if self.backward_nats is None else _exp(self.backward_nats / self.n_predictions)

    @property
    def arithmetic_mean(self) -> float:
        """The mean of the perplexities."""
        found = [x for x in (self.forward, self.backward) if x is not None]
        return sum(found) / len(found)

    @property
    def geometric_mean(self) -> float:
        """Exp of the mean loss of the directions: what bilm-tf reports."""
        return _exp(self.nats_per_token)

    @property
    def nats_per_token(self) -> float:
        """The mean loss of a prediction."""
        return self._nats / self.n_predictions

    @property
    def nats_per_character(self) -> float:
        """The loss, shared out among the characters; not a number where all words are left out."""
        return self._nats / self.n_characters if self.n_characters else math.nan

    @property
    def bits_per_character(self) -> float:
        """The same to base 2."""
        return self.nats_per_character / math.log(2)

    @property
    def _nats(self) -> float:
        found = [x for x in (self.forward_nats, self.backward_nats) if x is not None]
        return sum(found) / len(found)

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values; null where there is no number."""
        names = ("forward", "backward", "arithmetic_mean", "geometric_mean")
        per = ("nats_per_token", "nats_per_character", "bits_per_character")
        counts = ("forward_nats", "backward_nats", "n_predictions", "n_characters")
        values = {name: getattr(self, name) for name in names + per + counts}
        return {name: x if x is None or math.isfinite(x) else None for name, x in values.items()}


@dataclass(frozen=True)
class StartPerplexity:
    """Unknown words both ways: each predicted as the one word ``<UNK>``, or left out of all means."""

    with_unknown: Means
    without_unknown: Means


@dataclass(frozen=True)
class Perplexity:
    """How well a text was predicted, from each start that was asked for."""

    by_start: dict[Start, StartPerplexity]
    n_sentences: int
    n_tokens: int  # words; boundaries are not counted
    n_unknown: int  # words that the softmax does not know
    unknown_words: tuple[tuple[str, int], ...]  # the most frequent of them, with their counts

    def __getitem__(self, start: Start) -> Means:
        """The figures from one start, nothing left out."""
        return self.by_start[start].with_unknown

    @property
    def unknown_rate(self) -> float:
        """The share of the words that are unknown."""
        return self.n_unknown / self.n_tokens if self.n_tokens else 0.0

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "sentences": self.n_sentences,
            "tokens": self.n_tokens,
            "unknown": {
                "tokens": self.n_unknown,
                "rate": self.unknown_rate,
                "most_frequent": [list(pair) for pair in self.unknown_words],
            },
            "starts": {
                start: {
                    "with_unknown": found.with_unknown.to_json(),
                    "without_unknown": found.without_unknown.to_json(),
                }
                for start, found in self.by_start.items()
            },
        }


def perplexity(
    model: Elmo | Pretrained | str | Path,
    text: Text,
    *,
    start: Start | Literal["all"] | Sequence[Start] = "all",
    directions: Directions | None = None,
    blank_lines_count: bool = False,
    n_rows: int | None = None,
    n_named: int = N_NAMED,
    out: str | Path | None = None,
    by: By = "sentence",
    on_progress: OnProgress | None = None,
    **reading: Any,
) -> Perplexity:
    """How well ``model`` predicts ``text``, which is read once and may be larger than memory.

    ``text``: a string, an iterable of sentences (strings, or lists of tokens), or a ``Path`` to what
    ``elmo embed`` reads; ``reading`` (``tokenizer``, ``input_format``, ``split``, ``errors``) is for
    ``texts.sentences_of``. ``start`` is what ``predict.scores`` explains; "all" is every one that the model
    has. Sentences without words count only with ``blank_lines_count``; each then has its boundaries to
    predict. ``directions``: by default those that the model was trained in. ``out`` gets the scores of every
    sentence, or by token, as ``predict.score_files`` explains.
    """
    files = _files(text)  # what is missing is told before a large model is loaded
    if out is not None:
        check_output(Path(out), by=by, inputs=files)
    elmo = loaded(model, reading)
    starts = _starts(elmo, start)
    scorer = Scorer(elmo, starts=starts, n_rows=n_rows, directions=directions)
    sentences = sentences_of(text, **reading)
    found = scorer.scored(sentences, blank_lines_count=blank_lines_count, on_progress=on_progress)
    with ExitStack() as stack:
        if out is not None:
            write = stack.enter_context(score_writer(Path(out), by=by))
            found = _written(found, write)
        return _summed(found, scorer, n_named)


def _starts(elmo: Elmo, start: Start | Literal["all"] | Sequence[Start]) -> Sequence[Start]:
    if start == "all":
        return starts_of(elmo)
    found: list[Start] = [cast("Start", start)] if isinstance(start, str) else list(start)
    if not found or len(set(found)) < len(found):
        raise ConfigError(f"start: expected one or several different ones, found {found}")
    return found


def _files(text: Text) -> list[Source]:
    """The files of a text that can be told before it is read."""
    items = text if isinstance(text, list | tuple) else [text]
    return expand([str(item) for item in items if isinstance(item, Path)])


def _written(found: Iterable[tuple[SentenceScores, ...]], write: Any) -> Iterator[tuple[SentenceScores, ...]]:
    for number, scores in enumerate(found, start=1):
        for each in scores:
            write(number, each)
        yield scores


def _summed(found: Iterable[tuple[SentenceScores, ...]], scorer: Scorer, n_named: int) -> Perplexity:
    # (start, direction, with and without unknown words)
    nats = np.zeros((len(scorer.starts), 2, 2))
    n_sentences = n_tokens = n_characters = unknown_characters = 0
    unknown = _UnknownWords()
    for scores in found:
        tokens, is_unknown = scores[0].tokens, scores[0].is_unknown
        n_sentences += 1
        n_tokens += len(tokens)
        n_characters += sum(map(len, tokens)) + max(1, len(tokens))
        left_out = [tokens[k] for k in np.flatnonzero(is_unknown)]
        unknown.add(left_out)
        unknown_characters += sum(map(len, left_out)) + len(left_out)
        is_known = ~is_unknown
        for k, each in enumerate(scores):
            for direction, log_p in enumerate((each.forward, each.backward)):
                if log_p is None:
                    continue
                exact = log_p.astype(np.float64)
                of_words, boundary = (exact[:-1], exact[-1]) if direction == 0 else (exact[1:], exact[0])
                nats[k, direction] -= exact.sum(), of_words[is_known].sum() + boundary
    if not n_sentences:
        raise DataError("perplexity: expected text to predict, found no sentence with a word in it")
    n_all = n_tokens + n_sentences
    by_start = {}
    for k, start in enumerate(scorer.starts):
        pairs = [
            [float(nats[k, d, way]) if d in scorer.directions else None for d in range(2)] for way in range(2)
        ]
        by_start[start] = StartPerplexity(
            Means(*pairs[0], n_predictions=n_all, n_characters=n_characters),
            Means(
                *pairs[1],
                n_predictions=n_all - unknown.total,
                n_characters=n_characters - unknown_characters,
            ),
        )
    return Perplexity(by_start, n_sentences, n_tokens, unknown.total, unknown.most_frequent(n_named))


class _UnknownWords:
    """Counts words in bounded memory.

    Of more different words than are counted at a time, the rarer half is forgotten now and then: counts of
    rare words may then be too low. The total is always right.
    """

    def __init__(self) -> None:
        self.total = 0
        self._counts: Counter[str] = Counter()

    def add(self, words: Sequence[str]) -> None:
        self.total += len(words)
        self._counts.update(words)
        if len(self._counts) > _COUNTED_WORDS:
            self._counts = Counter(dict(self._counts.most_common(_COUNTED_WORDS // 2)))

    def most_frequent(self, n: int) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(self._counts.items(), key=lambda pair: (-pair[1], pair[0]))[:n])


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
