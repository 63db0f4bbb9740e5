r"""A model and text in, the log-probability of every word of it out, sentence by sentence, both directions.

Text is read a block at a time, so it may be larger than memory. What a sentence starts from is chosen:

``zero``   nothing: every sentence by itself
``warm``   the state that is stored with the model: every sentence by itself
``carry``  what the sentence before it left behind, as in training

For ``carry`` a block is cut into contiguous rows of about equal length, read side by side; a row's first
sentence starts from what the same row of the block before it left (in the first block, from nothing). There
are ``n_rows``, by default up to 32, as long as each has about a thousand tokens; with ``n_rows=1`` every
sentence starts from the one before it. The closing boundary is predicted, never read.

Scores of sentences in, a TSV or JSON-lines file out, which is there whole or not at all.

log p is in nats; numbers have the digits that name a float32. By sentence: one line for each sentence and
start, with the sums over its words and the boundary. By token: in TSV one line for each token, ``<S>`` and
``</S>`` among them, with an empty field where a direction does not predict it; in JSON lines one line for
each sentence, with lists: ``forward`` of the tokens and then ``</S>``, ``backward`` of ``<S>`` and then the
tokens. In TSV ``\``, tab, line ends and what UTF-8 cannot hold are escaped as Python does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO, get_args

import numpy as np
from numpy.typing import NDArray

from elmo.embed.elmo import Elmo
from elmo.embed.start import Carry
from elmo.errors import ConfigError, OutputError, StateError
from elmo.formats.pretrained import Pretrained
from elmo.model.bilm import BiLmState
from elmo.predict.predictor import (
    BOS,
    EOS,
    FIRST_WORD,
    LogProbabilities,
    Numbers,
    Predictor,
    Row,
    Text,
    Words,
    sentences_of,
)
from elmo.storage.atomic import atomic_file, check_output_file, hold_lock, make_parents
from elmo.storage.files import format_path
from elmo.text.lines import escaped
from elmo.text.reader import Sentence

Start = Literal["zero", "warm", "carry"]
Directions = Literal["both", "forward", "backward"]
N_ROWS = 32  # as many as the LSTMs read at once, unless asked otherwise
ROW_TOKENS = 1024  # of a row at least, that little is lost where it begins

BLOCK_TOKENS = 1 << 18  # with their sentence ends; held-out texts are smaller, and then one block
BLOCK_CHARACTERS = 1 << 26
BLOCK_WORDS = 1 << 16  # distinct ones, whose vectors are held

OnProgress = Callable[[int, int], None]  # sentences and tokens done


@dataclass(frozen=True)
class SentenceScores:
    """log p in nats of all that each direction had to say, in the order of the text.

    None: a direction that was not asked for.
    """

    sentence: Sentence
    start: Start
    forward: LogProbabilities | None  # (token + 1,): of each token and, last, of </S>
    backward: LogProbabilities | None  # (token + 1,): of <S>, first, and of each token
    is_unknown: NDArray[np.bool_]  # (token,): predicted as <UNK>

    @property
    def tokens(self) -> tuple[str, ...]:
        """The words, boundaries left out."""
        return self.sentence.tokens.tokens


def scores(
    model: Elmo | Pretrained | str | Path,
    text: Text,
    *,
    start: Start = "zero",
    directions: Directions | None = None,
    blank_lines_count: bool = False,
    n_rows: int | None = None,
    **reading: Any,
) -> Iterator[SentenceScores]:
    """Each sentence of ``text`` with its scores, in order; ``reading`` is for ``texts.sentences_of``.

    With ``start`` zero or warm, the scores of a sentence depend on that sentence alone. ``directions``: by
    default those that the model was trained in.
    """
    elmo = loaded(model, reading)
    sentences = sentences_of(text, **reading)
    scorer = Scorer(elmo, starts=[start], n_rows=n_rows, directions=directions)
    found = scorer.scored(sentences, blank_lines_count=blank_lines_count)
    return (each for (each,) in found)


def loaded(model: Elmo | Pretrained | str | Path, reading: dict[str, Any]) -> Elmo:
    """The model, ready to read; its tokeniser goes into ``reading``, unless there is one already."""
    chosen = reading.get("tokenizer")
    if isinstance(model, Pretrained):
        model = Elmo(model, tokenizer=chosen)
    elif not isinstance(model, Elmo):
        model = Elmo.from_pretrained(model, tokenizer=chosen)
    if chosen is None:
        reading["tokenizer"] = model.tokenizer
    return model


def starts_of(elmo: Elmo) -> list[Start]:
    """What sentences can start from: a warm state not every model has."""
    return ["zero", "warm", "carry"] if elmo.pretrained.warm is not None else ["zero", "carry"]


def directions_of(elmo: Elmo) -> Directions:
    """The directions that a model was trained in: both, unless it says otherwise."""
    training = elmo.pretrained.metadata.get("training")
    told = training.get("directions") if isinstance(training, dict) else None
    return told if told in ("forward", "backward") else "both"


class Scorer:
    """Scores sentences from one or several starts, all in one reading of the text."""

    def __init__(
        self,
        elmo: Elmo,
        *,
        starts: Sequence[Start],
        n_rows: int | None = None,
        directions: Directions | None = None,
    ) -> None:
        if n_rows is not None and n_rows < 1:
            raise ConfigError(f"n_rows must be at least 1, found {n_rows}")
        directions = directions or directions_of(elmo)
        if directions not in get_args(Directions):
            raise ConfigError(f"directions must be both, forward or backward, not {directions!r:.40}")
        for start in starts:
            if start not in get_args(Start):
                raise ConfigError(f"start must be zero, warm or carry, not {start!r:.40}")
        self.starts = tuple(starts)
        self.n_rows = n_rows
        self.directions = {"both": (0, 1), "forward": (0,), "backward": (1,)}[directions]
        self._predictor = Predictor(elmo)
        self._zero = elmo.bilm.zero_state(1)
        self._warm = _warm_state(elmo, self._zero) if "warm" in starts else None

    def scored(
        self,
        sentences: Iterable[Sentence],
        *,
        blank_lines_count: bool = False,
        on_progress: OnProgress | None = None,
    ) -> Iterator[tuple[SentenceScores, ...]]:
        """Each sentence with its scores from every start; sentences without words only where they count."""
        carry = Carry()
        n_sentences = n_tokens = 0
        for block in _blocks(sentences, blank_lines_count=blank_lines_count):
            words = self._predictor.words(block.spellings)
            told = None
            if on_progress is not None:
                n_readings = len(self.starts) * len(self.directions)
                told = _Told(on_progress, block, n_readings, n_sentences, n_tokens)
            by_start = [self._block(block, words, start, carry, told) for start in self.starts]
            n_sentences, n_tokens = n_sentences + block.n_lines, n_tokens + block.n_tokens
            for place, (sentence, numbers) in enumerate(zip(block.sentences, block.numbers, strict=True)):
                is_unknown = words.is_unknown[numbers]
                yield tuple(
                    SentenceScores(sentence, start, forward[place], backward[place], is_unknown)
                    for start, (forward, backward) in zip(self.starts, by_start, strict=True)
                )
            del block, words, told, by_start  # before the next is read: one at a time is in memory

    def _block(
        self, block: _Block, words: Words, start: Start, carry: Carry, told: _Told | None
    ) -> list[list[LogProbabilities] | list[None]]:
        """For each sentence log p, forward and backward, in the order of the text."""
        if start == "carry":
            parts = _rows(block.numbers, self.n_rows)
            state = carry.rows(len(parts), self._zero)
        else:
            parts = [[numbers] for numbers in block.numbers]
            state = self._zero if self._warm is None or start == "zero" else self._warm
        found: list[list[LogProbabilities] | list[None]] = [[None] * len(block.numbers) for _ in range(2)]
        hidden, cell = state.hidden.clone(), state.cell.clone()
        for direction in self.directions:
            rows = [_row(part, direction) for part in parts]
            scored, after = self._predictor.read(words, rows, state, direction=direction, on_read=told)
            found[direction] = [
                piece if direction == 0 else piece[::-1]
                for part, log_p in zip(parts, scored, strict=True)
                for piece in np.split(log_p, np.cumsum([len(numbers) + 1 for numbers in part])[:-1])
            ]
            if start == "carry":
                hidden[direction], cell[direction] = after.hidden, after.cell
        if start == "carry":
            carry.update(BiLmState(hidden, cell))
        return found


@dataclass(frozen=True)
class _Block:
    """A stretch of text with its words numbered, from 2 on."""

    sentences: list[Sentence]
    numbers: list[Numbers]  # of each sentence's words
    spellings: list[str]  # of the distinct words, in the order of their numbers
    n_tokens: int
    n_lines: int  # blank ones counted, whether they are sentences or not


class _Told:
    """Predictions of a block in, sentences and tokens of the text out: a share of the block's."""

    def __init__(
        self, on_progress: OnProgress, block: _Block, n_readings: int, n_sentences: int, n_tokens: int
    ) -> None:
        self._on_progress = on_progress
        self._block = block
        self._before = n_sentences, n_tokens  # those of earlier blocks
        self._all = n_readings * (block.n_tokens + len(block.sentences))
        self._done = 0

    def __call__(self, n_predictions: int) -> None:
        self._done += n_predictions
        here = self._block.n_lines, self._block.n_tokens
        sentences, tokens = (
            before + n * self._done // self._all for before, n in zip(self._before, here, strict=True)
        )
        self._on_progress(sentences, tokens)


def _blocks(sentences: Iterable[Sentence], *, blank_lines_count: bool) -> Iterator[_Block]:
    """The text in blocks; where one ends depends on the text alone."""
    index: dict[str, int] = {}
    held: list[Sentence] = []
    numbers: list[Numbers] = []
    n_tokens = n_characters = n_lines = 0
    for sentence in sentences:
        n_lines += 1
        tokens = sentence.tokens.tokens
        if not tokens and not blank_lines_count:
            continue
        held.append(sentence)
        numbers.append(
            np.array([index.setdefault(token, len(index)) for token in tokens], dtype=np.int64) + FIRST_WORD
        )
        n_tokens += len(tokens)
        n_characters += sum(map(len, tokens))
        is_long = n_tokens + len(held) >= BLOCK_TOKENS or n_characters >= BLOCK_CHARACTERS
        if is_long or len(index) >= BLOCK_WORDS:
            yield _Block(held, numbers, list(index), n_tokens, n_lines)
            index, held, numbers = {}, [], []
            n_tokens = n_characters = n_lines = 0
    if held:
        yield _Block(held, numbers, list(index), n_tokens, n_lines)


def _rows(sentences: list[Numbers], n_rows: int | None) -> list[list[Numbers]]:
    """The sentences in contiguous rows: each ends with the first sentence that reaches its share.

    Every row has a sentence at least. Training cuts its held-out text in the same way.
    """
    ends = np.cumsum([len(sentence) + 1 for sentence in sentences])
    if n_rows is None:
        n_rows = max(1, min(N_ROWS, int(ends[-1]) // ROW_TOKENS))
    n_rows = min(n_rows, len(sentences))
    cuts = [0]
    for row in range(1, n_rows):
        reached = int(np.searchsorted(ends, int(ends[-1]) * row // n_rows)) + 1
        cuts.append(min(max(reached, cuts[-1] + 1), len(sentences) - n_rows + row))
    cuts.append(len(sentences))
    return [sentences[cuts[row] : cuts[row + 1]] for row in range(n_rows)]


def _row(sentences: list[Numbers], direction: int) -> Row:
    """What a direction reads, one sentence after the other, and what it should say."""
    first, last = (BOS, EOS) if direction == 0 else (EOS, BOS)
    inputs: list[Any] = []
    targets: list[Any] = []
    for sentence in sentences:
        ordered = sentence if direction == 0 else sentence[::-1]
        inputs += [[first], ordered]
        targets += [ordered, [last]]
    return Row(*(np.concatenate(parts, dtype=np.int64) for parts in (inputs, targets)))


def _warm_state(elmo: Elmo, zero: BiLmState) -> BiLmState:
    warm = elmo.pretrained.warm
    if warm is None:
        raise StateError("this model has no warm state; make one with: elmo warm MODEL TEXT")
    return BiLmState(warm.hidden[:, :, None].to(zero.hidden), warm.cell[:, :, None].to(zero.cell))


By = Literal["sentence", "token"]
SUFFIXES = (".tsv", ".jsonl")

_PLACE = ("sentence", "path", "line", "start")
_SENTENCE = (*_PLACE, "tokens", "unknown", "forward", "backward", "text")
_TOKEN = (*_PLACE, "position", "token", "unknown", "forward", "backward")

Write = Callable[[int, SentenceScores], None]


def check_output(path: Path, *, by: str = "sentence", inputs: Iterable[str | Path] = ()) -> None:
    """Refuse what cannot be written, or is one of the inputs, before work begins."""
    if by not in get_args(By):
        raise ConfigError(f"by must be sentence or token, not {by!r:.40}")
    if path.suffix.lower() not in SUFFIXES:
        raise OutputError(
            f"{format_path(path)}: expected a name that ends in {' or '.join(SUFFIXES)}, found {path.suffix!r}"
        )
    if path.is_dir():
        raise OutputError(f"{format_path(path)}: expected a file name, found a folder")
    if path.resolve() in (Path(one).resolve() for one in inputs if one != "-"):
        raise OutputError(f"{format_path(path)}: is one of the inputs; put it elsewhere")
    check_output_file(path)


@contextmanager
def score_writer(path: Path, *, by: By = "sentence") -> Iterator[Write]:
    """What to give each sentence's number, from 1, and scores to; on leaving the file takes its place."""
    check_output(path, by=by)
    make_parents(path)
    with (
        hold_lock(path.with_name(f".{path.name}.lock"), subject=path),
        atomic_file(path) as temporary,
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
