"""Score text: the log-probability of every word, in both directions, sentence by sentence.

Text is read in blocks, so it may be larger than memory. A sentence starts from one of three states:

``zero``   the zero state: each sentence alone
``warm``   the warm state of the model: each sentence alone
``carry``  the state at the end of the previous sentence, as in training

With ``carry``, a block is cut into contiguous rows of about equal length, which are read in parallel. The
first sentence of a row starts from the end of the same row of the previous block (in the first block, from
zero). There are ``batch_size`` rows: by default up to 32, each of about a thousand tokens or more. With
``batch_size=1``, every sentence starts from the one before it. The closing boundary is predicted, not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from elmo.embed.elmo import Elmo
from elmo.embed.start import Carry, warm_start
from elmo.errors import ConfigError
from elmo.formats.pretrained import Pretrained
from elmo.model.bilm import BiLmState
from elmo.predict.predictor import (
    BOS,
    EOS,
    FIRST_WORD,
    Directions,
    LogProbabilities,
    Numbers,
    PredictionRow,
    Predictor,
    WordTable,
    trained_directions,
)
from elmo.predict.texts import AnyTokenizer, Text, read_text
from elmo.text.lines import ErrorPolicy
from elmo.text.reader import InputFormat, Sentence

Start = Literal["zero", "warm", "carry"]
OnProgress = Callable[[int, int], None]  # sentences and tokens done

CARRY_ROWS = 32  # default number of rows for "carry": as many as the LSTMs run at once
ROW_TOKENS = 1024  # minimum of a row, so that few sentences start from zero
BLOCK_TOKENS = 1 << 18  # including sentence ends; most held-out texts are one block
BLOCK_CHARACTERS = 1 << 26
BLOCK_WORDS = 1 << 16  # distinct words, whose vectors are in memory


@dataclass(frozen=True)
class Means:
    """Perplexity and mean losses of both directions over one set of predictions.

    The forward direction predicts the words of a sentence and ``</S>``, the backward direction the words and
    ``<S>``: the same number. Characters are the Unicode characters of the words and one boundary after each
    word. Means over both directions are the means of the two directions.

    Attributes:
        forward_nats: −Σ log p of the forward direction; None if it was not computed.
        backward_nats: −Σ log p of the backward direction; None if it was not computed.
        n_predictions: Number of predictions of each direction.
        n_characters: Number of characters.
    """

    forward_nats: float | None
    backward_nats: float | None
    n_predictions: int
    n_characters: int

    @property
    def forward(self) -> float | None:
        """Perplexity of the forward direction: exp of its mean loss."""
        return None if self.forward_nats is None else _exp(self.forward_nats / self.n_predictions)

    @property
    def backward(self) -> float | None:
        """Perplexity of the backward direction: exp of its mean loss."""
        return None if self.backward_nats is None else _exp(self.backward_nats / self.n_predictions)

    @property
    def arithmetic_mean(self) -> float:
        """Arithmetic mean of the perplexities."""
        return _mean(self.forward, self.backward)

    @property
    def geometric_mean(self) -> float:
        """Exp of the mean loss of both directions, which bilm-tf reports."""
        return _exp(self.nats_per_token)

    @property
    def nats_per_token(self) -> float:
        """Mean loss of a prediction."""
        return self._nats / self.n_predictions

    @property
    def nats_per_character(self) -> float:
        """Loss per character; NaN if all words are left out."""
        return self._nats / self.n_characters if self.n_characters else math.nan

    @property
    def bits_per_character(self) -> float:
        """Loss per character to base 2."""
        return self.nats_per_character / math.log(2)

    @property
    def _nats(self) -> float:
        return _mean(self.forward_nats, self.backward_nats)

    def to_json(self) -> dict[str, Any]:
        """Return all values as JSON values; null if a value is missing or not finite."""
        names = ("forward", "backward", "arithmetic_mean", "geometric_mean")
        per = ("nats_per_token", "nats_per_character", "bits_per_character")
        counts = ("forward_nats", "backward_nats", "n_predictions", "n_characters")
        values = {name: getattr(self, name) for name in names + per + counts}
        return {name: x if x is None or math.isfinite(x) else None for name, x in values.items()}


def _mean(forward: float | None, backward: float | None) -> float:
    values = [x for x in (forward, backward) if x is not None]
    return sum(values) / len(values)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


@dataclass(frozen=True)
class SentenceScores:
    """The log-probabilities of one sentence in nats, in the order of the text.

    Attributes:
        sentence: The sentence, with its place in the input.
        start: The start state.
        forward: (token + 1,): of each token and, last, of ``</S>``; None if it was not computed.
        backward: (token + 1,): of ``<S>``, first, and of each token; None if it was not computed.
        is_unknown: (token,): predicted as ``<UNK>``.
    """

    sentence: Sentence
    start: Start
    forward: LogProbabilities | None
    backward: LogProbabilities | None
    is_unknown: NDArray[np.bool_]

    @property
    def tokens(self) -> tuple[str, ...]:
        """The words, without boundaries."""
        return self.sentence.tokens.tokens

    @property
    def sums(self) -> tuple[float | None, float | None]:
        """The log-probability of the sentence in each direction, including the boundary."""
        forward, backward = (
            None if log_p is None else float(log_p.sum(dtype="float64")) for log_p in (self.forward, self.backward)
        )
        return forward, backward

    @property
    def perplexity(self) -> float:
        """Exp of the mean loss of all predictions of both directions, including the boundaries."""
        nats = [None if log_p is None else -log_p for log_p in self.sums]
        return Means(*nats, n_predictions=len(self.tokens) + 1, n_characters=0).geometric_mean

    def by_token(self) -> Iterator[tuple[str, bool, float | None, float | None]]:
        """Yield (token, is unknown, forward, backward) from ``<S>`` to ``</S>``.

        A score is None if the direction does not predict the token or was not computed.
        """
        missing = [None] * (len(self.tokens) + 2)
        forward = missing if self.forward is None else [None, *self.forward]
        backward = missing if self.backward is None else [*self.backward, None]
        tokens, is_unknown = ["<S>", *self.tokens, "</S>"], [False, *map(bool, self.is_unknown), False]
        yield from zip(tokens, is_unknown, forward, backward, strict=True)


def score_sentences(
    model: Elmo | Pretrained | str | Path,
    text: Text,
    *,
    start: Start = "zero",
    directions: Directions | None = None,
    blank_lines: bool = False,
    batch_size: int | None = None,
    tokenizer: AnyTokenizer | None = None,
    input_format: InputFormat = "text",
    split: bool = False,
    errors: ErrorPolicy = "strict",
) -> Iterator[SentenceScores]:
    """Score each sentence of a text, in order.

    With ``start`` "zero" or "warm", the scores of a sentence depend on that sentence only.

    Args:
        model: A model, or a name as in ``Elmo.from_pretrained``.
        text: A string, sentences, or a ``Path``; see ``perplexity``.
        start: State at the start of a sentence: "zero", "warm" or "carry" (from the previous sentence).
        directions: Language models to use. Default: those that were trained.
        blank_lines: Score blank lines as sentences without words.
        batch_size: Parts of the text that "carry" reads in parallel. Default: up to 32.
        tokenizer: Replaces the tokenizer of the model.
        input_format: Format of files: "text", "tokens" or "conllu".
        split: Split strings, and lines of files, into sentences.
        errors: What to do with bytes of files that are not UTF-8, as in ``EmbedJob``.
    """
    elmo = load_model(model, tokenizer)
    sentences = read_text(
        text, tokenizer=tokenizer or elmo.tokenizer, input_format=input_format, split=split, errors=errors
    )
    scorer = Scorer(elmo, starts=[start], batch_size=batch_size, directions=directions)
    return (scores for (scores,) in scorer.score(sentences, blank_lines=blank_lines))


def load_model(model: Elmo | Pretrained | str | Path, tokenizer: AnyTokenizer | None) -> Elmo:
    """Return a model that is ready to use."""
    if isinstance(model, Elmo):
        return model
    if isinstance(model, Pretrained):
        return Elmo(model, tokenizer=tokenizer)
    return Elmo.from_pretrained(model, tokenizer=tokenizer)


def available_starts(elmo: Elmo) -> list[Start]:
    """Return the start states of a model; not every model has a warm state."""
    return ["zero", "warm", "carry"] if elmo.pretrained.warm is not None else ["zero", "carry"]


class Scorer:
    """Scores sentences from one or several start states, in one pass over the text."""

    def __init__(
        self,
        elmo: Elmo,
        *,
        starts: Sequence[Start],
        batch_size: int | None = None,
        directions: Directions | None = None,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, found {batch_size}")
        directions = directions or trained_directions(elmo)
        if directions not in get_args(Directions):
            raise ConfigError(f"directions must be both, forward or backward, found {directions!r:.40}")
        for start in starts:
            if start not in get_args(Start):
                raise ConfigError(f"start must be zero, warm or carry, found {start!r:.40}")
        self.starts = tuple(starts)
        self.batch_size = batch_size
        self.directions = {"both": (0, 1), "forward": (0,), "backward": (1,)}[directions]
        self._predictor = Predictor(elmo)
        self._zero = elmo.bilm.zero_state(1)
        self._warm = warm_start(elmo.pretrained.warm, self._zero) if "warm" in starts else None

    def score(
        self, sentences: Iterable[Sentence], *, blank_lines: bool = False, on_progress: OnProgress | None = None
    ) -> Iterator[tuple[SentenceScores, ...]]:
        """Yield the scores of each sentence, one per start state."""
        carry = Carry()
        n_sentences = n_tokens = 0
        for block in _read_blocks(sentences, blank_lines=blank_lines):
            words = self._predictor.words(block.spellings)
            reporter = None
            if on_progress is not None:
                n_passes = len(self.starts) * len(self.directions)
                reporter = _BlockProgress(on_progress, block, n_passes, n_sentences, n_tokens)
            by_start = [self._score_block(block, words, start, carry, reporter) for start in self.starts]
            n_sentences, n_tokens = n_sentences + block.n_lines, n_tokens + block.n_tokens
            for index, (sentence, numbers) in enumerate(zip(block.sentences, block.numbers, strict=True)):
                is_unknown = words.is_unknown[numbers]
                yield tuple(
                    SentenceScores(sentence, start, forward[index], backward[index], is_unknown)
                    for start, (forward, backward) in zip(self.starts, by_start, strict=True)
                )
            del block, words, reporter, by_start  # free the memory before the next block is read

    def _score_block(
        self, block: _TextBlock, words: WordTable, start: Start, carry: Carry, on_read: Callable[[int], None] | None
    ) -> list[list[LogProbabilities] | list[None]]:
        """Compute log p of each sentence, forward and backward, in the order of the text."""
        if start == "carry":
            parts = _cut_rows(block.numbers, self.batch_size)
            state = carry.rows(len(parts), self._zero)
        else:
            parts = [[numbers] for numbers in block.numbers]
            state = self._zero if self._warm is None or start == "zero" else self._warm
        scores: list[list[LogProbabilities] | list[None]] = [[None] * len(block.numbers) for _ in range(2)]
        hidden, cell = state.hidden.clone(), state.cell.clone()
        for direction in self.directions:
            rows = [_build_row(part, direction) for part in parts]
            log_ps, after = self._predictor.read(words, rows, state, direction=direction, on_read=on_read)
            scores[direction] = [
                sentence if direction == 0 else sentence[::-1]
                for part, log_p in zip(parts, log_ps, strict=True)
                for sentence in np.split(log_p, np.cumsum([len(numbers) + 1 for numbers in part])[:-1])
            ]
            if start == "carry":
                hidden[direction], cell[direction] = after.hidden, after.cell
        if start == "carry":
            carry.update(BiLmState(hidden, cell))
        return scores


@dataclass(frozen=True)
class _TextBlock:
    """A part of the text with its words numbered from 2.

    Attributes:
        sentences: The sentences.
        numbers: The words of each sentence.
        spellings: The distinct words, by number.
        n_tokens: Number of tokens.
        n_lines: Number of lines, including blank lines that are not sentences.
    """

    sentences: list[Sentence]
    numbers: list[Numbers]
    spellings: list[str]
    n_tokens: int
    n_lines: int


def _read_blocks(sentences: Iterable[Sentence], *, blank_lines: bool) -> Iterator[_TextBlock]:
    """Split the text into blocks; the boundaries depend on the text only."""
    index: dict[str, int] = {}
    held: list[Sentence] = []
    numbers: list[Numbers] = []
    n_tokens = n_characters = n_lines = 0
    for sentence in sentences:
        n_lines += 1
        tokens = sentence.tokens.tokens
        if not tokens and not blank_lines:
            continue
        held.append(sentence)
        numbers.append(np.array([index.setdefault(token, len(index)) for token in tokens], dtype=np.int64) + FIRST_WORD)
        n_tokens += len(tokens)
        n_characters += sum(map(len, tokens))
        is_long = n_tokens + len(held) >= BLOCK_TOKENS or n_characters >= BLOCK_CHARACTERS
        if is_long or len(index) >= BLOCK_WORDS:
            yield _TextBlock(held, numbers, list(index), n_tokens, n_lines)
            index, held, numbers = {}, [], []
            n_tokens = n_characters = n_lines = 0
    if held:
        yield _TextBlock(held, numbers, list(index), n_tokens, n_lines)


def _cut_rows(sentences: list[Numbers], n_rows: int | None) -> list[list[Numbers]]:
    """Cut the sentences into contiguous rows; each ends with the first sentence that reaches its share.

    Every row has at least one sentence. Training cuts its held-out text in the same way.
    """
    ends = np.cumsum([len(sentence) + 1 for sentence in sentences])
    if n_rows is None:
        n_rows = max(1, min(CARRY_ROWS, int(ends[-1]) // ROW_TOKENS))
    n_rows = min(n_rows, len(sentences))
    cuts = [0]
    for row in range(1, n_rows):
        cut = int(np.searchsorted(ends, int(ends[-1]) * row // n_rows)) + 1
        cuts.append(min(max(cut, cuts[-1] + 1), len(sentences) - n_rows + row))
    cuts.append(len(sentences))
    return [sentences[cuts[row] : cuts[row + 1]] for row in range(n_rows)]


def _build_row(sentences: list[Numbers], direction: int) -> PredictionRow:
    """Concatenate the inputs and the targets of consecutive sentences for one direction."""
    first, last = (BOS, EOS) if direction == 0 else (EOS, BOS)
    inputs: list[Any] = []
    targets: list[Any] = []
    for sentence in sentences:
        ordered = sentence if direction == 0 else sentence[::-1]
        inputs += [[first], ordered]
        targets += [ordered, [last]]
    return PredictionRow(*(np.concatenate(parts, dtype=np.int64) for parts in (inputs, targets)))


class _BlockProgress:
    """Converts predictions of a block into sentences and tokens of the text."""

    def __init__(
        self, on_progress: OnProgress, block: _TextBlock, n_passes: int, n_sentences: int, n_tokens: int
    ) -> None:
        self._on_progress = on_progress
        self._block = block
        self._before = n_sentences, n_tokens  # of earlier blocks
        self._total = n_passes * (block.n_tokens + len(block.sentences))
        self._done = 0

    def __call__(self, n_predictions: int) -> None:
        self._done += n_predictions
        here = self._block.n_lines, self._block.n_tokens
        sentences, tokens = (
            before + n * self._done // self._total for before, n in zip(self._before, here, strict=True)
        )
        self._on_progress(sentences, tokens)
