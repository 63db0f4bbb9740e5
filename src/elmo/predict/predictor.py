"""Text as a caller has it in (strings, tokens, files), its sentences with their places out.

Words of a text in the order in which a direction reads them in, log p of the next word each time out.

As in training: the forward direction reads ``<S> w1 … wn`` and predicts ``w1 … wn </S>``, the backward one
reads ``</S> wn … w1`` and predicts ``wn … w1 <S>``. What predicts is the top layer's output, skip connection
included. As in ``embed.fixed_rows`` every matrix product has one shape, whatever is read side by side, so
that no sentence's numbers depend on another's, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from elmo.embed.elmo import Elmo
from elmo.engine.bilm import Engine
from elmo.engine.lstm import FIXED_ROWS, run_lstm_rows
from elmo.engine.matmul import aligned_linear
from elmo.errors import ConfigError, DataError
from elmo.formats.pretrained import SoftmaxWeights
from elmo.model.bilm import BiLmState
from elmo.model.lstm import LstmState, ProjectedLstm
from elmo.text.ids import Vocabulary
from elmo.text.reader import INPUT_FORMATS, ErrorPolicy, InputFormat, Sentence, read_sentences
from elmo.text.sentences import split_sentences
from elmo.text.tokenizers import Tokenizer, Tokens
from elmo.text.tokenizers import tokenizer as tokenizer_by_name

Item = str | Sequence[str] | Tokens | Sentence | Path
Text = str | Path | Tokens | Iterable[Item]

_IN_MEMORY = "<text>"  # stands for a path where there is no file


def sentences_of(
    text: Text,
    *,
    tokenizer: str | Tokenizer | Callable[[str], Sequence[str]],
    input_format: InputFormat = "text",
    split: bool = False,
    errors: ErrorPolicy = "strict",
) -> Iterator[Sentence]:
    """The sentences of a text, in order.

    A string is a sentence (with ``split``, one or more), a list of strings inside an iterable the tokens of
    one, and a ``Path`` what ``elmo embed`` reads: a file, a folder, a glob, or ``Path("-")`` for stdin;
    ``input_format`` and ``errors`` are for these. A string that names a file is refused: whoever gives one
    means the file.
    """
    if input_format not in INPUT_FORMATS:
        raise ConfigError(
            f"input format: expected one of {', '.join(INPUT_FORMATS)}, found {str(input_format)[:40]!r}"
        )
    if isinstance(tokenizer, str):
        tokenizer = tokenizer_by_name(tokenizer)
    if isinstance(text, str | Path | Tokens):
        items: Iterable[Any] = [text]
    elif isinstance(text, Iterable) and not isinstance(text, bytes | bytearray):
        items = text
    else:
        raise DataError(
            f"text: expected a string, a Path or an iterable of sentences, found {type(text).__name__}"
        )
    return _sentences(
        items, tokenizer=cast("Tokenizer", tokenizer), input_format=input_format, split=split, errors=errors
    )


def _sentences(
    items: Iterable[Any],
    *,
    tokenizer: Tokenizer,
    input_format: InputFormat,
    split: bool,
    errors: ErrorPolicy,
) -> Iterator[Sentence]:
    for number, item in enumerate(items, start=1):
        if isinstance(item, Sentence):
            yield item
        elif isinstance(item, Path):
            yield from read_sentences(
                [item], tokenizer=tokenizer, input_format=input_format, split=split, errors=errors
            )
        elif isinstance(item, str):
            if number == 1:
                _refuse_file_name(item)
            yield from _of_string(item, number, tokenizer=tokenizer, split=split)
        else:
            yield Sentence(_given(item, number), _IN_MEMORY, number)


def _of_string(text: str, number: int, *, tokenizer: Tokenizer, split: bool) -> Iterator[Sentence]:
    language = getattr(tokenizer, "name", "en")  # a function of the user's own has none
    for start, end in (split_sentences(text, language=language) if split else []) or [(0, len(text))]:
        found: Any = tokenizer(text[start:end])
        yield Sentence(found if isinstance(found, Tokens) else Tokens.given(found), _IN_MEMORY, number, start)


def _given(item: Any, number: int) -> Tokens:
    if isinstance(item, Tokens):
        return item
    if not isinstance(item, Sequence) or isinstance(item, bytes | bytearray):
        raise DataError(
            f"sentence {number}: expected text, a list of tokens or a Path, found {type(item).__name__}"
        )
    try:
        return Tokens.given(cast("Sequence[str]", item))
    except DataError as error:
        raise DataError(f"sentence {number}: {error}") from error


def _refuse_file_name(text: str) -> None:
    try:
        is_file = len(text) < 1024 and "\n" not in text and Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a NUL in it
        return
    if is_file:
        raise DataError(
            f"text {text[:80]!r} is the name of a file; to read that file give Path({text[:80]!r})"
        )


BOS, EOS, FIRST_WORD = 0, 1, 2  # numbers of ``Words``
WINDOW = 128  # words of a row whose states exist at a time; a multiple of the engine's steps
CHUNK_TOKENS = 256  # whose logits exist at a time: each product first arranges the softmax's weights
HELD_TOKENS = 8 * CHUNK_TOKENS  # whose states wait for their logits: few chunks have to be filled up
CHUNK_LOGITS = 1 << 24  # and at most about this many, whatever the vocabulary

Numbers = NDArray[np.int64]
LogProbabilities = NDArray[np.floating]


@dataclass(frozen=True)
class Words:
    """The distinct words of a stretch of text, numbered; 0 and 1 are the boundaries ``<S>`` and ``</S>``."""

    vectors: Tensor  # (word, width): what the LSTMs read
    targets: Tensor  # (word,): rows of the softmax
    is_unknown: NDArray[np.bool_]  # (word,): predicted as <UNK>


@dataclass(frozen=True)
class Row:
    """What one row reads and what it should say, as numbers of ``Words``; (time,) each."""

    inputs: Numbers
    targets: Numbers


@dataclass(frozen=True, eq=False)
class _Window:
    """Some rows' top outputs from one place on."""

    rows: list[int]  # of falling length
    at: int  # words of each that were read before
    tops: Tensor  # (token, width), row after row
    ends: Numbers  # (row,): one after each row's last token here


class Predictor:
    """A model with its softmax and vocabulary."""

    def __init__(self, elmo: Elmo) -> None:
        self.elmo = elmo
        self.bilm = elmo.bilm
        self.vocab, self.softmax = _output_layer(elmo)
        self._engine = Engine(elmo.bilm, elmo.indexer)
        like = next(elmo.bilm.parameters())
        # half precision is for reading; thousands of probabilities do not add up to 1 in it
        dtype = like.dtype if like.dtype == torch.float64 else torch.float32
        self._weight = self.softmax.weight.to(like.device, dtype)  # (words, width)
        self._bias = self.softmax.bias.to(like.device, dtype)  # (words,)
        size = CHUNK_LOGITS // len(self._bias) // FIXED_ROWS * FIXED_ROWS
        self._chunk = max(FIXED_ROWS, min(CHUNK_TOKENS, size))
        self._boundary_ids = self.vocab.bos_id, self.vocab.eos_id  # FormatError when there are none
        unknown = self.vocab.unknown
        self._unknown_id = self.vocab.id(unknown) if unknown in self.vocab else None

    def words(self, spellings: Sequence[str]) -> Words:
        """Distinct words, looked up; the first gets number 2."""
        alphabet = self.elmo.indexer.alphabet
        parts = [alphabet.read_part(word) if alphabet else word for word in spellings]
        ids = np.array([*self._boundary_ids, *self.vocab.ids(parts)], dtype=np.int64)
        vectors = torch.cat([self._engine.boundary_vectors(), self._engine.token_vectors(spellings)])
        vectors = vectors.to(next(self.bilm.parameters()).dtype)
        is_unknown = ids == self._unknown_id if self._unknown_id is not None else np.zeros(len(ids), bool)
        is_unknown[:FIRST_WORD] = False
        return Words(vectors, torch.from_numpy(ids).to(vectors.device), is_unknown)

    @torch.inference_mode()
    def read(
        self,
        words: Words,
        rows: Sequence[Row],
        start: BiLmState,
        *,
        direction: int,
        on_read: Callable[[int], None] | None = None,
    ) -> tuple[list[LogProbabilities], LstmState]:
        """For every row log p of every target (time,), and the state (layer, row, width) after it.

        ``start`` has a row per row, or one for all of them. Direction 0 is forward, 1 backward. ``on_read``
        is told now and then how many more predictions were made.
        """
        hidden, cell = _rows_of(start, len(rows), direction)
        found: list[list[LogProbabilities]] = [[] for _ in rows]
        windows = self._windows(words, [row.inputs for row in rows], hidden, cell, direction)
        for some in _together(windows, HELD_TOKENS):
            targets = [rows[k].targets[one.at : one.at + WINDOW] for one in some for k in one.rows]
            tops = torch.cat([one.tops for one in some])
            scored = self._log_probabilities(words, tops, np.concatenate(targets))
            ends = np.cumsum([len(part) for part in targets])
            owners = [k for one in some for k in one.rows]
            for k, part in zip(owners, np.split(scored, ends[:-1]), strict=True):
                found[k].append(part)
            if on_read is not None:
                on_read(len(scored))
        return [np.concatenate(parts) for parts in found], LstmState(hidden, cell)

    @torch.inference_mode()
    def next_words(
        self, words: Words, inputs: Sequence[Numbers], start: BiLmState, *, direction: int
    ) -> Tensor:
        """Log p of every word of the vocabulary to come after all that each row reads: (row, vocabulary).

        ``inputs`` are numbers of ``Words``, one at least for each row; ``start`` is that of ``read``.
        """
        hidden, cell = _rows_of(start, len(inputs), direction)
        states = torch.empty(len(inputs), self._weight.size(1), dtype=self._weight.dtype)
        states = states.to(self._weight.device)
        for window in self._windows(words, inputs, hidden, cell, direction):
            for k, end in zip(window.rows, window.ends.tolist(), strict=True):
                if len(inputs[k]) <= window.at + WINDOW:
                    states[k] = window.tops[end - 1].to(states)
        found = states.new_empty(len(states), len(self._bias))
        for part in _parts(len(states), self._chunk):
            size = part.stop - part.start
            padded = F.pad(states[part], (0, 0, 0, self._chunk - size))
            found[part] = aligned_linear(padded, self._weight, self._bias)[:size].log_softmax(dim=1)
        return found

    def _windows(
        self, words: Words, inputs: Sequence[Numbers], hidden: Tensor, cell: Tensor, direction: int
    ) -> Iterator[_Window]:
        """Rows read ``WINDOW`` words at a time; ``hidden`` and ``cell`` (layer, row, width) follow them."""
        by_length = sorted(range(len(inputs)), key=lambda k: -len(inputs[k]))
        for begin in range(0, len(inputs), FIXED_ROWS):
            tile = by_length[begin : begin + FIXED_ROWS]
            for at in range(0, len(inputs[tile[0]]), WINDOW):
                alive = [k for k in tile if len(inputs[k]) > at]  # those that end first stand last
                read = [inputs[k][at : at + WINDOW] for k in alive]
                tops, after = self._window(
                    words, read, LstmState(hidden[:, alive], cell[:, alive]), direction
                )
                hidden[:, alive], cell[:, alive] = after.hidden, after.cell
                yield _Window(alive, at, tops, np.cumsum([len(part) for part in read]))

    def _window(
        self, words: Words, inputs: list[Numbers], state: LstmState, direction: int
    ) -> tuple[Tensor, LstmState]:
        """The top outputs (token, width) of rows of falling length, row after row; and their last state."""
        lengths = [len(part) for part in inputs]
        is_true = np.arange(lengths[0]) < np.array(lengths)[:, None]  # (row, time)
        numbers = np.zeros(is_true.shape, dtype=np.int64)
        numbers[is_true] = np.concatenate(inputs)
        read = words.vectors[torch.from_numpy(numbers.T.copy())]  # (time, row, width)
        stack = (self.bilm.forward_stack, self.bilm.backward_stack)[direction]
        last: list[LstmState] = []
        for index, lstm in enumerate(stack):
            before = LstmState(state.hidden[index], state.cell[index])
            output, after = run_lstm_rows(cast("ProjectedLstm", lstm), read, lengths, before)
            read = output + read if self.bilm.has_skip and index > 0 else output
            last.append(after)
        hidden, cell = (torch.stack([getattr(s, name) for s in last]) for name in ("hidden", "cell"))
        true = torch.from_numpy(is_true).to(read.device)
        return read.transpose(0, 1)[true], LstmState(hidden, cell)

    def _log_probabilities(self, words: Words, states: Tensor, targets: Numbers) -> LogProbabilities:
        """For each state (token, width) log p(target) under the full softmax, a chunk of logits at a time."""
        ids = words.targets[torch.from_numpy(targets)]
        parts: list[Tensor] = []
        space = self._weight.new_empty(self._chunk, len(self._bias))  # for all chunks: fresh memory is slow
        for part in _parts(len(states), self._chunk):
            size = part.stop - part.start
            padded = F.pad(states[part].to(self._weight), (0, 0, 0, self._chunk - size))
            logits = aligned_linear(padded, self._weight, self._bias, out=space)[:size]  # (token, words)
            true = logits.gather(1, ids[part, None])
            highest = logits.amax(dim=1, keepdim=True)
            parts.append((true - highest - logits.sub_(highest).exp_().sum(dim=1, keepdim=True).log())[:, 0])
        return torch.cat(parts).cpu().numpy()


def _rows_of(start: BiLmState, n_rows: int, direction: int) -> tuple[Tensor, Tensor]:
    """A direction's own hidden and cell (layer, row, width), a row for each."""
    hidden, cell = (part[direction].expand(-1, n_rows, -1).clone() for part in (start.hidden, start.cell))
    return hidden, cell


def _together(windows: Iterable[_Window], n_tokens: int) -> Iterator[list[_Window]]:
    """Some windows at a time, until they have so many tokens."""
    held: list[_Window] = []
    for window in windows:
        held.append(window)
        if sum(len(one.tops) for one in held) >= n_tokens:
            yield held
            held = []
    if held:
        yield held


def _parts(n: int, size: int) -> Iterator[slice]:
    for begin in range(0, n, size):
        yield slice(begin, min(begin + size, n))


def _output_layer(elmo: Elmo) -> tuple[Vocabulary, SoftmaxWeights]:
    if elmo.softmax is None:
        raise ConfigError(
            f"this {elmo.pretrained.format} model has no softmax, so it predicts no words; some publishers "
            "give the softmax in a file of its own, which has to lie beside the model's others"
        )
    if elmo.vocab is None:
        raise ConfigError(
            f"this {elmo.pretrained.format} model has a softmax, but no vocabulary that names its "
            f"{len(elmo.softmax.bias)} words; put the publisher's vocabulary file beside the model's others"
        )
    return elmo.vocab, elmo.softmax
