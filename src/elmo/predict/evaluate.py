"""``perplexity``: how well both language models predict a text, over every token and the full softmax."""

from __future__ import annotations

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
from elmo.predict.score_files import By, Write, check_score_file, score_writer
from elmo.predict.scores import (
    Directions,
    Means,
    OnProgress,
    Scorer,
    SentenceScores,
    Start,
    available_starts,
    load_model,
)
from elmo.predict.texts import AnyTokenizer, Text, read_text
from elmo.text.lines import ErrorPolicy, Source, expand_paths
from elmo.text.reader import InputFormat

_MAX_COUNTED_WORDS = 1 << 18  # distinct unknown words in memory


@dataclass(frozen=True)
class StartPerplexity:
    """Perplexity with unknown words predicted as ``<UNK>``, and with unknown words left out."""

    with_unknown: Means
    without_unknown: Means


@dataclass(frozen=True)
class Perplexity:
    """How well a text was predicted, from each start state.

    Attributes:
        by_start: The results of each start state.
        n_sentences: Number of sentences.
        n_tokens: Number of words, without boundaries.
        n_unknown: Number of words that are not in the vocabulary of the softmax.
        unknown_words: The most frequent unknown words, with their counts.
    """

    by_start: dict[Start, StartPerplexity]
    n_sentences: int
    n_tokens: int
    n_unknown: int
    unknown_words: tuple[tuple[str, int], ...]

    def __getitem__(self, start: Start) -> Means:
        """Return the result of one start state, with unknown words as ``<UNK>``."""
        return self.by_start[start].with_unknown

    @property
    def unknown_rate(self) -> float:
        """The fraction of words that are unknown."""
        return self.n_unknown / self.n_tokens if self.n_tokens else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
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
                    "with_unknown": result.with_unknown.to_json(),
                    "without_unknown": result.without_unknown.to_json(),
                }
                for start, result in self.by_start.items()
            },
        }


def perplexity(
    model: Elmo | Pretrained | str | Path,
    text: Text,
    *,
    start: Start | Literal["all"] | Sequence[Start] = "all",
    directions: Directions | None = None,
    blank_lines: bool = False,
    batch_size: int | None = None,
    n_unknown_words: int = 20,
    out: str | Path | None = None,
    by: By = "sentence",
    tokenizer: AnyTokenizer | None = None,
    input_format: InputFormat = "text",
    split: bool = False,
    errors: ErrorPolicy = "strict",
    on_progress: OnProgress | None = None,
) -> Perplexity:
    """Compute how well a model predicts a text; the text is read once and may be larger than memory.

    Args:
        model: A model, or a name as in ``Elmo.from_pretrained``.
        text: A string, which is one sentence; an iterable of strings and lists of tokens; or a ``Path`` to a
            file, a folder or a glob.
        start: State at the start of a sentence: "zero", "warm" (of the model), "carry" (the previous
            sentence), several of them, or "all" that the model has.
        directions: Language models to use: both, forward or backward. Default: those that were trained.
        blank_lines: Treat blank lines as sentences without words, whose boundaries are predicted.
        batch_size: Parts of the text that "carry" reads in parallel. Default: up to 32, of a thousand tokens
            or more.
        n_unknown_words: Number of unknown words to report.
        out: File for the scores: .tsv or .jsonl.
        by: Write one score per sentence or per token.
        tokenizer: Replaces the tokenizer of the model.
        input_format: Format of files: one sentence per line ("text"), tokens separated by spaces ("tokens"),
            or "conllu".
        split: Split strings, and lines of files, into sentences.
        errors: What to do with bytes that are not UTF-8: "strict" (stop), "replace", "skip" (the line) or
            "surrogateescape".
        on_progress: Receives the number of sentences and tokens done.
    """
    files = _known_files(text)  # report a missing file before a large model is loaded
    if out is not None:
        check_score_file(Path(out), by=by, inputs=files)
    elmo = load_model(model, tokenizer)
    scorer = Scorer(elmo, starts=_list_starts(elmo, start), batch_size=batch_size, directions=directions)
    sentences = read_text(
        text, tokenizer=tokenizer or elmo.tokenizer, input_format=input_format, split=split, errors=errors
    )
    scores = scorer.score(sentences, blank_lines=blank_lines, on_progress=on_progress)
    with ExitStack() as stack:
        if out is not None:
            scores = _write_scores(scores, stack.enter_context(score_writer(Path(out), by=by)))
        return _sum_scores(scores, scorer, n_unknown_words)


def _known_files(text: Text) -> list[Source]:
    """Return the files of a text that are known before it is read."""
    items = text if isinstance(text, list | tuple) else [text]
    return expand_paths([str(item) for item in items if isinstance(item, Path)])


def _list_starts(elmo: Elmo, start: Start | Literal["all"] | Sequence[Start]) -> Sequence[Start]:
    if start == "all":
        return available_starts(elmo)
    starts: list[Start] = [cast("Start", start)] if isinstance(start, str) else list(start)
    if not starts or len(set(starts)) < len(starts):
        raise ConfigError(f"start: expected one or more different start states, found {starts}")
    return starts


def _write_scores(results: Iterable[tuple[SentenceScores, ...]], write: Write) -> Iterator[tuple[SentenceScores, ...]]:
    for number, by_start in enumerate(results, start=1):
        for scores in by_start:
            write(number, scores)
        yield by_start


def _sum_scores(results: Iterable[tuple[SentenceScores, ...]], scorer: Scorer, n_unknown_words: int) -> Perplexity:
    nats = np.zeros((len(scorer.starts), 2, 2))  # (start, direction, with and without unknown words)
    n_sentences = n_tokens = n_characters = n_unknown_characters = 0
    unknown = _UnknownWords()
    for by_start in results:
        tokens, is_unknown = by_start[0].tokens, by_start[0].is_unknown
        n_sentences += 1
        n_tokens += len(tokens)
        n_characters += sum(map(len, tokens)) + max(1, len(tokens))
        unknown_tokens = [tokens[k] for k in np.flatnonzero(is_unknown)]
        unknown.add(unknown_tokens)
        n_unknown_characters += sum(map(len, unknown_tokens)) + len(unknown_tokens)
        is_known = ~is_unknown
        for k, scores in enumerate(by_start):
            for direction, log_p in enumerate((scores.forward, scores.backward)):
                if log_p is None:
                    continue
                exact = log_p.astype(np.float64)
                words, boundary = (exact[:-1], exact[-1]) if direction == 0 else (exact[1:], exact[0])
                nats[k, direction] -= exact.sum(), words[is_known].sum() + boundary
    if not n_sentences:
        raise DataError("perplexity: expected text, found no sentence with a word")
    n_predictions = n_tokens + n_sentences
    totals = [(n_predictions, n_characters), (n_predictions - unknown.total, n_characters - n_unknown_characters)]
    results_by_start: dict[Start, StartPerplexity] = {
        start: StartPerplexity(
            *(
                Means(
                    *(float(nats[k, d, way]) if d in scorer.directions else None for d in range(2)),
                    n_predictions=totals[way][0],
                    n_characters=totals[way][1],
                )
                for way in range(2)
            )
        )
        for k, start in enumerate(scorer.starts)
    }
    most_frequent = unknown.most_frequent(n_unknown_words)
    return Perplexity(results_by_start, n_sentences, n_tokens, unknown.total, most_frequent)


class _UnknownWords:
    """Counts words in bounded memory.

    If there are too many distinct words, the rarer half is dropped from time to time, so counts of rare words
    may be too low. The total is exact.
    """

    def __init__(self) -> None:
        self.total = 0
        self._counts: Counter[str] = Counter()

    def add(self, words: Sequence[str]) -> None:
        self.total += len(words)
        self._counts.update(words)
        if len(self._counts) > _MAX_COUNTED_WORDS:
            self._counts = Counter(dict(self._counts.most_common(_MAX_COUNTED_WORDS // 2)))

    def most_frequent(self, n: int) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(self._counts.items(), key=lambda pair: (-pair[1], pair[0]))[:n])
