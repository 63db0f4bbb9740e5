"""Score text: the log-probability of every word, in both directions, sentence by sentence.

Text is read in blocks, so it can be larger than memory. A sentence starts from one of three states:

``zero``   the zero state; sentences are independent
``warm``   the warm state of the model; sentences are independent
``carry``  the state after the previous sentence, as in training

With ``carry``, a block is cut into contiguous rows of about equal length, which are read in parallel. The
first sentence of a row starts from the state at the end of the same row in the previous block, or from zero in
the first block. There are ``batch_size`` rows; by default, up to 32 rows of at least about a thousand tokens.
With ``batch_size=1``, every sentence starts from the state after the previous one. The closing boundary of a
sentence is predicted, but not read.
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
    FrozenPredictor,
    LogProbabilities,
    Numbers,
    PredictionRow,
    Predictor,
    WordTable,
    trained_directions,
)
from elmo.predict.score_files import By, check_score_file, write_scores
from elmo.predict.texts import AnyTokenizer, Text, known_files, read_text
from elmo.text.lines import ErrorPolicy, Tally
from elmo.text.reader import InputFormat, Sentence

Start = Literal["zero", "warm", "carry"]
OnProgress = Callable[[int, int], None]  # receives the number of sentences and tokens done

CARRY_ROWS = 32  # default maximum number of rows for "carry"; the LSTMs run this many at once
ROW_TOKENS = 1024  # minimum length of a row, so that few sentences start from zero
BLOCK_TOKENS = 1 << 18  # including sentence ends; most held-out texts fit into one block
BLOCK_CHARACTERS = 1 << 26
BLOCK_WORDS = 1 << 16  # distinct words; their vectors are in memory


@dataclass(frozen=True)
class Means:
    """Perplexities and mean losses of a set of predictions, for each direction and for both together.

    The forward direction predicts the words of a sentence and ``</S>``; the backward direction predicts the
    words and ``<S>``. Both therefore have the same number of predictions. The number of characters
    counts the Unicode characters of the words, and one boundary after each word.

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

    def __repr__(self) -> str:
        directions = ((name, getattr(self, name)) for name in ("forward", "backward", "geometric_mean"))
        values = ", ".join(f"{name}={x if x is None else round(x, 2)}" for name, x in directions)
        return f"Means({values}, n_predictions={self.n_predictions})"

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
        """Arithmetic mean of the perplexities of both directions."""
        return _mean(self.forward, self.backward)

    @property
    def geometric_mean(self) -> float:
        """Geometric mean of the perplexities of both directions, which bilm-tf reports: exp of the mean loss."""
        return _exp(self.nats_per_token)

    @property
    def nats_per_token(self) -> float:
        """Mean loss per prediction, in nats."""
        return self._nats / self.n_predictions

    @property
    def nats_per_character(self) -> float:
        """Mean loss per character, in nats; NaN if there are no characters."""
        return self._nats / self.n_characters if self.n_characters else math.nan

    @property
    def bits_per_character(self) -> float:
        """Mean loss per character, in bits."""
        return self.nats_per_character / math.log(2)

    @property
    def _nats(self) -> float:
        return _mean(self.forward_nats, self.backward_nats)

    def to_json(self) -> dict[str, Any]:
        """Return all values as a JSON object; a value is None if it is missing or not finite."""
        names = (
            "forward", "backward", "arithmetic_mean", "geometric_mean",
            "nats_per_token", "nats_per_character", "bits_per_character",
            "forward_nats", "backward_nats", "n_predictions", "n_characters",
        )  # fmt: skip
        values = {name: getattr(self, name) for name in names}
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
        sentence: The sentence, with its position in the input.
        start: The start state.
        forward: Log-probabilities of the tokens and then of ``</S>``, (token + 1,); None if not computed.
        backward: Log-probabilities of ``<S>`` and then of the tokens, (token + 1,); None if not computed.
        is_unknown: Whether a token is not in the vocabulary and is predicted as ``<UNK>``, (token,).
    """

    sentence: Sentence
    start: Start
    forward: LogProbabilities | None
    backward: LogProbabilities | None
    is_unknown: NDArray[np.bool_]

    def __repr__(self) -> str:
        text = " ".join(self.tokens)
        shown = text if len(text) <= 60 else text[:59] + "…"
        return f"SentenceScores({shown!r}, start={self.start!r}, perplexity={self.perplexity:,.2f})"

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens of the sentence, without boundary tokens."""
        return self.sentence.tokens.tokens

    @property
    def sums(self) -> tuple[float | None, float | None]:
        """The log-probability of the whole sentence, forward and backward, including the boundary."""
        forward, backward = (
            None if log_p is None else float(log_p.sum(dtype="float64")) for log_p in (self.forward, self.backward)
        )
        return forward, backward

    @property
    def perplexity(self) -> float:
        """The perplexity of the sentence: exp of the mean loss of both directions, including the boundaries."""
        nats = [None if log_p is None else -log_p for log_p in self.sums]
        return Means(*nats, n_predictions=len(self.tokens) + 1, n_characters=0).geometric_mean

    def by_token(self) -> Iterator[tuple[str, bool, float | None, float | None]]:
        """Yield (token, is_unknown, forward, backward) for each token, from ``<S>`` to ``</S>``.

        A log-probability is None if the direction does not predict the token or was not computed.
        """
        missing = [None] * (len(self.tokens) + 2)
        forward = missing if self.forward is None else [None, *self.forward]
        backward = missing if self.backward is None else [*self.backward, None]
        tokens, is_unknown = ["<S>", *self.tokens, "</S>"], [False, *map(bool, self.is_unknown), False]
        yield from zip(tokens, is_unknown, forward, backward, strict=True)


def score_sentences(
    model: Elmo | Pretrained | str | Path | None,
    text: Text,
    *,
    start: Start = "zero",
    directions: Directions | None = None,
    blank_lines: bool = False,
    batch_size: int | None = None,
    tokenizer: AnyTokenizer | None = None,
    input_format: InputFormat = "text",
    split: bool | None = None,
    errors: ErrorPolicy = "strict",
    out: str | Path | None = None,
    by: By = "sentence",
    tally: Tally | None = None,
    device: str = "cpu",
) -> Iterator[SentenceScores]:
    """Yield the log-probabilities of each sentence of a text, in order, and optionally write them to a file.

    With ``start`` "zero" or "warm", the scores of a sentence depend on that sentence only. ``elmo score``
    calls this function:

        for scores in score_sentences("en", [Path("corpus.txt"), "One more sentence."], out="scores.tsv"):
            print(scores.tokens, scores.perplexity)

    Args:
        model: A model, or a name as in ``Elmo.from_pretrained``; None is the default model.
        text: A string, which is one sentence; an iterable of strings and lists of tokens; or a ``Path`` to a
            file, a folder or a glob.
        start: State at the start of a sentence: "zero", "warm" (stored with the model) or "carry" (the state
            after the previous sentence).
        directions: Language models to use: both, forward or backward. Default: the directions that were trained.
        blank_lines: Score blank lines as sentences without words, of which only the boundaries are predicted.
        batch_size: Number of parts of the text that "carry" reads in parallel. Default: up to 32.
        tokenizer: Tokenizer to use instead of that of the model.
        input_format: Format of files: "text", "tokens" or "conllu".
        split: Split each line of a file, and with True also each string, into sentences. Default: split lines that
            are paragraphs.
        errors: What to do with bytes of files that are not UTF-8, as in ``EmbedJob``.
        out: File for the scores: .tsv or .jsonl. It is complete after the last sentence has been yielded.
        by: Unit of the scores in ``out``: sentence or token.
        tally: Object that counts the lines of files that are not valid UTF-8.
        device: Device on which the model is loaded; not used if ``model`` is an ``Elmo``.

    Example:
        >>> (scores,) = score_sentences("en", ["The bank gave her a loan."])
        >>> scores.forward.shape, scores.backward.shape  # 7 tokens and a boundary
        ((8,), (8,))
    """
    check_score_file(out, by=by, inputs=known_files(text))  # before a large model is loaded
    elmo = load_model(model, tokenizer, device)
    sentences = read_text(
        text, tokenizer=tokenizer or elmo.tokenizer, input_format=input_format, split=split, errors=errors, tally=tally
    )
    scorer = Scorer(elmo, starts=[start], batch_size=batch_size, directions=directions)
    results = scorer.score(sentences, blank_lines=blank_lines)
    return (scores for (scores,) in write_scores(results, out, by=by))


def load_model(
    model: Elmo | Pretrained | str | Path | None, tokenizer: AnyTokenizer | None, device: str = "cpu"
) -> Elmo:
    """Return a model as an ``Elmo``. A name or path is loaded; an ``Elmo`` is returned as it is."""
    if isinstance(model, Elmo):
        return model
    if isinstance(model, Pretrained):
        return Elmo(model, tokenizer=tokenizer, device=device)
    return Elmo.from_pretrained(model, tokenizer=tokenizer, device=device)


def available_starts(elmo: Elmo) -> list[Start]:
    """Return the start states that a model supports; "warm" only if it has a warm state."""
    if elmo.config.encoder_name == "transformer":  # it has no state
        return ["zero"]
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
            raise ConfigError(f"batch_size must be at least 1; found {batch_size}")
        directions = directions or trained_directions(elmo)
        if directions not in get_args(Directions):
            raise ConfigError(f"directions must be both, forward or backward; found {directions!r:.40}")
        for start in starts:
            if start not in get_args(Start):
                raise ConfigError(f"start must be zero, warm or carry; found {start!r:.40}")
        self.starts = tuple(starts)
        self.batch_size = batch_size
        self.directions = {"both": (0, 1), "forward": (0,), "backward": (1,)}[directions]
        self._predictor = Predictor(elmo)
        self._warm = elmo.pretrained.warm
        if "warm" in starts:
            warm_start(self._warm, elmo.bilm.zero_state(1))  # raises StateError if the model has none
        if "carry" in starts:
            Carry().rows(1, elmo.bilm.zero_state(1))  # raises StateError for a transformer

    def score(
        self, sentences: Iterable[Sentence], *, blank_lines: bool = False, on_progress: OnProgress | None = None
    ) -> Iterator[tuple[SentenceScores, ...]]:
        """Yield a tuple for each sentence, with its scores from each start state."""
        carry = Carry()
        predictor = self._predictor.freeze()  # for all blocks
        n_sentences = n_tokens = 0
        for block in _read_blocks(sentences, blank_lines=blank_lines):
            words = predictor.words(block.spellings)
            n_predictions = len(self.starts) * len(self.directions) * (block.n_tokens + len(block.sentences))
            on_read = _block_progress(on_progress, block, n_predictions, (n_sentences, n_tokens))
            by_start = [
                self._score_block(predictor, block, words, start=start, carry=carry, on_read=on_read)
                for start in self.starts
            ]
            n_sentences, n_tokens = n_sentences + block.n_lines, n_tokens + block.n_tokens
            for index, (sentence, numbers) in enumerate(zip(block.sentences, block.numbers, strict=True)):
                is_unknown = words.is_unknown[numbers]
                yield tuple(
                    SentenceScores(sentence, start, forward[index], backward[index], is_unknown)
                    for start, (forward, backward) in zip(self.starts, by_start, strict=True)
                )
            del block, words, on_read, by_start  # free the memory before the next block is read

    def _score_block(
        self,
        predictor: FrozenPredictor,
        block: _TextBlock,
        words: WordTable,
        *,
        start: Start,
        carry: Carry,
        on_read: Callable[[int], None],
    ) -> list[list[LogProbabilities] | list[None]]:
        """Compute the forward and the backward log-probabilities of each sentence, in the order of the text."""
        if start == "carry":
            parts = _cut_rows(block.numbers, self.batch_size)
            state = carry.rows(len(parts), predictor.zero)
        else:
            parts = [[numbers] for numbers in block.numbers]
            state = predictor.zero if start == "zero" else warm_start(self._warm, predictor.zero)
        scores: list[list[LogProbabilities] | list[None]] = [[None] * len(block.numbers) for _ in range(2)]
        hidden, cell = state.hidden.clone(), state.cell.clone()
        for direction in self.directions:
            rows = [_build_row(part, direction) for part in parts]
            log_ps, after = predictor.read(words, rows, state, direction=direction, on_read=on_read)
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
    """A part of the text whose distinct words are numbered from 2.

    Attributes:
        sentences: The sentences.
        numbers: The numbers of the words of each sentence.
        spellings: The distinct words, in the order of their numbers.
        n_tokens: Number of tokens.
        n_lines: Number of lines, including blank lines that are not scored.
    """

    sentences: list[Sentence]
    numbers: list[Numbers]
    spellings: list[str]
    n_tokens: int
    n_lines: int


def _read_blocks(sentences: Iterable[Sentence], *, blank_lines: bool) -> Iterator[_TextBlock]:
    """Split the text into blocks of bounded size."""
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
    """Cut the sentences into contiguous rows; a row ends with the sentence that reaches its share of the text.

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


def _block_progress(
    on_progress: OnProgress | None, block: _TextBlock, n_predictions: int, before: tuple[int, int]
) -> Callable[[int], None]:
    """Return a callback that receives the number of new predictions and reports sentences and tokens done.

    Both are estimated from the share of the block that is done.

    ``before`` is the number of sentences and tokens in the earlier blocks.
    """
    n_done = 0

    def on_read(n: int) -> None:
        nonlocal n_done
        n_done += n
        if on_progress is not None:
            n_lines, n_tokens = (size * n_done // n_predictions for size in (block.n_lines, block.n_tokens))
            on_progress(before[0] + n_lines, before[1] + n_tokens)

    return on_read
