"""``perplexity``: measure how well both language models predict a text, with the full softmax."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError, DataError
from elmo.formats.pretrained import Pretrained
from elmo.predict.score_files import By, check_score_file, write_scores
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
from elmo.predict.texts import AnyTokenizer, Text, known_files, read_text
from elmo.text.lines import ErrorPolicy
from elmo.text.reader import InputFormat

_MAX_COUNTED_WORDS = 1 << 18  # distinct unknown words in memory; above this, the rarer half is dropped


@dataclass(frozen=True)
class StartPerplexity:
    """Perplexity for one start state: with unknown words predicted as ``<UNK>``, and with unknown words left out.

    Attributes:
        with_unknown: Perplexity with unknown words predicted as ``<UNK>``.
        without_unknown: Perplexity with unknown words left out.
    """

    with_unknown: Means
    without_unknown: Means


@dataclass(frozen=True)
class Perplexity:
    """The perplexity of a text for each start state.

    Attributes:
        by_start: The result for each start state.
        n_sentences: Number of sentences.
        n_tokens: Number of words, without boundary tokens.
        n_unknown: Number of words that are not in the vocabulary of the softmax.
        unknown_words: The most frequent unknown words, with their counts. If a text has very many distinct
            unknown words, the counts of rare ones can be too low.
    """

    by_start: dict[Start, StartPerplexity]
    n_sentences: int
    n_tokens: int
    n_unknown: int
    unknown_words: tuple[tuple[str, int], ...]

    def __repr__(self) -> str:
        means = ", ".join(f"{start} {self[start].geometric_mean:,.2f}" for start in self.by_start)
        return f"Perplexity({means}; {self.n_tokens:,} tokens, {self.unknown_rate:.1%} unknown)"

    def __getitem__(self, start: Start) -> Means:
        """Return the result for one start state, with unknown words predicted as ``<UNK>``."""
        return self.by_start[start].with_unknown

    @property
    def unknown_rate(self) -> float:
        """The share of words that are not in the vocabulary, from 0 to 1."""
        return self.n_unknown / self.n_tokens if self.n_tokens else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
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
    start: Start | Literal["all"] | Sequence[Start] = "zero",
    directions: Directions | None = None,
    blank_lines: bool = False,
    batch_size: int | None = None,
    n_unknown_words: int = 20,
    out: str | Path | None = None,
    by: By = "sentence",
    tokenizer: AnyTokenizer | None = None,
    input_format: InputFormat = "text",
    split: bool | None = None,
    errors: ErrorPolicy = "strict",
    on_progress: OnProgress | None = None,
) -> Perplexity:
    """Measure how well a model predicts a text. The text is read once and can be larger than memory.

    Args:
        model: A model, or a name as in ``Elmo.from_pretrained``.
        text: A string, which is one sentence; an iterable of strings and lists of tokens; or a ``Path`` to a
            file, a folder or a glob.
        start: State at the start of a sentence: "zero", "warm" (stored with the model) or "carry" (the state
            after the previous sentence); a list of these; or "all" (those that the model supports).
        directions: Language models to use: both, forward or backward. Default: the directions that were trained.
        blank_lines: Treat blank lines as sentences without words, of which only the boundaries are predicted.
        batch_size: Number of parts of the text that "carry" reads in parallel. Default: up to 32 parts of at
            least a thousand tokens.
        n_unknown_words: Number of the most frequent unknown words to report.
        out: File for the scores of all sentences: .tsv or .jsonl.
        by: Unit of the scores in ``out``: sentence or token.
        tokenizer: Tokenizer to use instead of that of the model.
        input_format: Format of files: raw text ("text") or tokens separated by spaces ("tokens"), with one sentence
            per line, or "conllu".
        split: Split each line of a file, and with True also each string, into sentences. Default: split lines that
            are paragraphs.
        errors: What to do with bytes that are not UTF-8: stop ("strict"), replace them, skip the line, or keep them
            as surrogate escapes.
        on_progress: Function that is called with the number of sentences and of tokens done.

    Example:
        >>> result = perplexity("en", Path("corpus.txt"))
        >>> result["zero"].forward > 1, result["zero"].backward > 1
        (True, True)
    """
    check_score_file(out, by=by, inputs=known_files(text))  # before a large model is loaded
    elmo = load_model(model, tokenizer)
    scorer = Scorer(elmo, starts=_list_starts(elmo, start), batch_size=batch_size, directions=directions)
    sentences = read_text(
        text, tokenizer=tokenizer or elmo.tokenizer, input_format=input_format, split=split, errors=errors
    )
    scores = scorer.score(sentences, blank_lines=blank_lines, on_progress=on_progress)
    return _sum_scores(write_scores(scores, out, by=by), scorer, n_unknown_words)


def _list_starts(elmo: Elmo, start: Start | Literal["all"] | Sequence[Start]) -> Sequence[Start]:
    if start == "all":
        return available_starts(elmo)
    starts: list[Start] = [cast("Start", start)] if isinstance(start, str) else list(start)
    if not starts or len(set(starts)) < len(starts):
        raise ConfigError(f"start must be one or more different start states; found {starts}")
    return starts


def _sum_scores(results: Iterable[tuple[SentenceScores, ...]], scorer: Scorer, n_unknown_words: int) -> Perplexity:
    nats = np.zeros((len(scorer.starts), 2, 2))  # (start, direction, with and without unknown words)
    n_sentences = n_tokens = n_unknown = n_characters = n_unknown_characters = 0
    counts: Counter[str] = Counter()
    for sentence in results:
        tokens, is_unknown = sentence[0].tokens, sentence[0].is_unknown
        n_sentences += 1
        n_tokens += len(tokens)
        n_characters += sum(map(len, tokens)) + max(1, len(tokens))
        unknown_tokens = [tokens[k] for k in np.flatnonzero(is_unknown)]
        n_unknown += len(unknown_tokens)
        counts.update(unknown_tokens)
        if len(counts) > _MAX_COUNTED_WORDS:
            counts = Counter(dict(counts.most_common(_MAX_COUNTED_WORDS // 2)))
        n_unknown_characters += sum(map(len, unknown_tokens)) + len(unknown_tokens)
        is_known = ~is_unknown
        for k, scores in enumerate(sentence):
            for direction, log_p in enumerate((scores.forward, scores.backward)):
                if log_p is None:
                    continue
                exact = log_p.astype(np.float64)
                words, boundary = (exact[:-1], exact[-1]) if direction == 0 else (exact[1:], exact[0])
                nats[k, direction] -= exact.sum(), words[is_known].sum() + boundary
    if not n_sentences:
        raise DataError("cannot compute the perplexity: the text has no sentence with a word")
    n_predictions = n_tokens + n_sentences
    totals = [(n_predictions, n_characters), (n_predictions - n_unknown, n_characters - n_unknown_characters)]

    def means(k: int, way: int) -> Means:
        forward, backward = (float(nats[k, d, way]) if d in scorer.directions else None for d in range(2))
        return Means(forward, backward, *totals[way])

    by_start: dict[Start, StartPerplexity] = {
        start: StartPerplexity(means(k, 0), means(k, 1)) for k, start in enumerate(scorer.starts)
    }
    most_frequent = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:n_unknown_words]
    return Perplexity(by_start, n_sentences, n_tokens, n_unknown, tuple(most_frequent))
