"""``Predictor``: run the language models over rows of words and compute the probability of the next word.

As in training, the forward direction reads ``<S> w1 … wn`` and predicts ``w1 … wn </S>``; the backward
direction reads ``</S> wn … w1`` and predicts ``wn … w1 <S>``. The softmax reads the output of the top layer,
including the skip connection. All matrix products have fixed shapes, so that the results of a sentence do not
depend on the other sentences of a batch, to the last bit.

A ``Predictor`` detects changed weights. ``Predictor.freeze`` returns a ``FrozenPredictor``, which computes all steps of
a call with the same weights, while other threads may convert the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.embed.elmo import Elmo
from elmo.embed.finite import check_finite
from elmo.engine.batches import split_lengths
from elmo.engine.bilm import Engine, PreparedWeights
from elmo.engine.lstm import run_lstm_rows
from elmo.engine.matmul import FIXED_ROWS, state_dtype
from elmo.engine.softmax import FIXED_CHUNK_TOKENS, FrozenSoftmax
from elmo.engine.threads import FORK_GATE
from elmo.engine.transformer import CHUNK_TOKENS, FrozenTransformer
from elmo.errors import ConfigError
from elmo.formats.pretrained import SoftmaxWeights
from elmo.model.bilm import BiLmState
from elmo.model.lstm import LstmState, ProjectedLstm
from elmo.model.transformer import TransformerLayer, encode_positions
from elmo.text.ids import Vocabulary

BOS, EOS, FIRST_WORD = 0, 1, 2  # word numbers in a ``WordTable``
WINDOW = 128  # number of words of a row that the LSTMs read at a time; a multiple of ``BLOCK_STEPS`` of the engine
HELD_TOKENS = 8 * FIXED_CHUNK_TOKENS  # number of states that are collected for one call of the softmax

Directions = Literal["both", "forward", "backward"]
Numbers = NDArray[np.int64]
LogProbabilities = NDArray[np.floating]


@dataclass(frozen=True)
class WordTable:
    """The distinct words of a text by number; 0 and 1 are the boundary tokens ``<S>`` and ``</S>``.

    Attributes:
        vectors: Token vectors, (word, width).
        targets: Ids of the words in the softmax, (word,).
        is_unknown: Whether a word is predicted as ``<UNK>``, (word,).
    """

    vectors: Tensor
    targets: Tensor
    is_unknown: NDArray[np.bool_]


@dataclass(frozen=True)
class PredictionRow:
    """The inputs and the targets of one row, (time,) each: numbers of words in a ``WordTable``."""

    inputs: Numbers
    targets: Numbers


@dataclass(frozen=True, eq=False)
class TopWords:
    """The most probable words at each position of a row.

    Attributes:
        ids: Ids of the words in the vocabulary, the most probable first, (time, n).
        log_p: Their log-probabilities, (time, n).
        own_log_p: Log-probability of the word that is in the row, (time,).
    """

    ids: NDArray[np.int64]
    log_p: LogProbabilities
    own_log_p: LogProbabilities


@dataclass(frozen=True, eq=False)
class _RowWindow:
    """The outputs of the top layer for some rows in one window.

    Attributes:
        rows: Indices of the rows, by decreasing length.
        part: The part of each row that is in the window; shorter rows end earlier.
        tops: The outputs, (token, width), one row after the other.
        ends: End of each row in ``tops``, (row,).
    """

    rows: list[int]
    part: slice
    tops: Tensor
    ends: Numbers


class Predictor:
    """The language models of a model that has a softmax and a vocabulary; ``freeze`` returns their current weights."""

    def __init__(self, elmo: Elmo) -> None:
        self.vocab, self.softmax = _require_softmax(elmo)
        self._engine = Engine(elmo.bilm, elmo.indexer)
        self._boundary_ids = self.vocab.bos_id, self.vocab.eos_id  # raises FormatError if the vocabulary has none
        self._output_layer: FrozenSoftmax | None = None

    def freeze(self) -> FrozenPredictor:
        """Return a predictor with the current weights, for one call."""
        # LSTMs read rows without packed weights
        has_stacks = isinstance(self._engine.bilm.forward_stack[0], TransformerLayer)
        prepared = self._engine.prepare(has_stacks=has_stacks)
        weight = prepared.zero.hidden
        dtype = state_dtype(weight)  # not in half precision, in which thousands of probabilities do not sum to 1
        softmax = self._output_layer
        if softmax is None or (softmax.dtype, softmax.device) != (dtype, weight.device):
            softmax = FrozenSoftmax(
                self.softmax.weight.to(weight.device, dtype), self.softmax.bias.to(weight.device, dtype)
            )
            self._output_layer = softmax
        return FrozenPredictor(self._engine, prepared, softmax, self.vocab)


class FrozenPredictor:
    """Predicts words with the weights of one moment."""

    def __init__(
        self, engine: Engine, prepared: PreparedWeights, output_layer: FrozenSoftmax, vocab: Vocabulary
    ) -> None:
        self._engine, self._prepared, self._output_layer, self._vocab = engine, prepared, output_layer, vocab
        self.zero = prepared.zero  # the zero state, with one row

    def words(self, spellings: Sequence[str]) -> WordTable:
        """Build the table of some words, which must be distinct. The first word has the number 2."""
        vocab, alphabet = self._vocab, self._engine.indexer.alphabet
        parts = [alphabet.lookup_form(word) if alphabet else word for word in spellings]
        ids = np.array([vocab.bos_id, vocab.eos_id, *vocab.ids(parts)], dtype=np.int64)
        vectors = torch.cat(
            [
                self._engine.boundary_vectors(prepared=self._prepared),
                self._engine.token_vectors(spellings, prepared=self._prepared),
            ]
        ).to(self.zero.hidden.dtype)
        is_unknown = ids == vocab.id(vocab.unknown) if vocab.unknown in vocab else np.zeros(len(ids), bool)
        is_unknown[:FIRST_WORD] = False
        return WordTable(vectors, torch.from_numpy(ids).to(vectors.device), is_unknown)

    @torch.inference_mode()
    def read(
        self,
        words: WordTable,
        rows: Sequence[PredictionRow],
        start: BiLmState,
        *,
        direction: int,
        on_read: Callable[[int], None] | None = None,
    ) -> tuple[list[LogProbabilities], LstmState]:
        """Compute the log-probabilities (time,) of the targets of each row, and the final state (layer, row, width).

        Args:
            words: The words of all rows.
            rows: The inputs and targets of each row.
            start: The start state of each row, or a state with one row that is used for all of them.
            direction: 0 for forward, 1 for backward.
            on_read: Function that is called with the number of new predictions.
        """
        hidden, cell = _start_rows(start, len(rows), direction)
        parts: list[list[LogProbabilities]] = [[] for _ in rows]
        windows = self._windows(words, [row.inputs for row in rows], hidden, cell, direction)
        for held in _collect(windows, HELD_TOKENS):
            owners = [k for window in held for k in window.rows]
            targets = [rows[k].targets[window.part] for window in held for k in window.rows]
            with FORK_GATE:
                tops = torch.cat([window.tops for window in held])
                ids = words.targets[torch.from_numpy(np.concatenate(targets))]
                log_p = self._output_layer.target_log_probabilities(tops, ids).cpu().numpy()
            self._check(log_p)
            ends = np.cumsum([len(part) for part in targets])
            for k, part in zip(owners, np.split(log_p, ends[:-1]), strict=True):
                parts[k].append(part)
            if on_read is not None:
                on_read(len(log_p))
        return [np.concatenate(row) for row in parts], LstmState(hidden, cell)

    @torch.inference_mode()
    def next_words(
        self,
        words: WordTable,
        inputs: Sequence[Numbers],
        start: BiLmState,
        *,
        direction: int,
        n_unread: Sequence[int] | None = None,
    ) -> Tensor:
        """Compute the log-probability of every word of the vocabulary as the next word of each row, (row, word).

        Args:
            words: The words of all rows.
            inputs: The word numbers of each row, at least one.
            start: As in ``read``.
            direction: 0 for forward, 1 for backward.
            n_unread: Number of words of the sentence after the inputs of each row, in this direction. A transformer
                that reads backward needs it to number positions. By default, 0.
        """
        hidden, cell = _start_rows(start, len(inputs), direction)
        states = words.vectors.new_empty(len(inputs), words.vectors.size(1))
        for window in self._windows(words, inputs, hidden, cell, direction, n_unread=n_unread):
            for k, end in zip(window.rows, window.ends.tolist(), strict=True):
                if len(inputs[k]) <= window.part.stop:
                    states[k] = window.tops[end - 1]
        with FORK_GATE:
            log_p = self._output_layer.log_probabilities(states)
        self._check(log_p)
        return log_p

    def _check(self, log_p: LogProbabilities | Tensor) -> None:
        if not (np.isfinite(log_p) if isinstance(log_p, np.ndarray) else torch.isfinite(log_p)).all():
            check_finite(log_p, "the log-probabilities", precision=self._engine.precision)

    @torch.inference_mode()
    def top_words(
        self, words: WordTable, rows: Sequence[PredictionRow], start: BiLmState, *, direction: int, n: int
    ) -> list[TopWords]:
        """Find the ``n`` most probable words at each position of each row; ``start`` is as in ``read``."""
        hidden, cell = _start_rows(start, len(rows), direction)
        parts: list[list[TopWords]] = [[] for _ in rows]
        for window in self._windows(words, [row.inputs for row in rows], hidden, cell, direction):
            targets = np.concatenate([rows[k].targets[window.part] for k in window.rows])
            top = self._select_top(window.tops, words.targets[torch.from_numpy(targets)], n)
            for k, begin, end in zip(window.rows, [0, *window.ends.tolist()], window.ends.tolist(), strict=False):
                parts[k].append(TopWords(top.ids[begin:end], top.log_p[begin:end], top.own_log_p[begin:end]))
        return [_join_top(row) for row in parts]

    def _select_top(self, states: Tensor, targets: Tensor, n: int) -> TopWords:
        """Select the most probable words for each state (token, width), a chunk at a time."""
        parts: list[TopWords] = []
        for begin in range(0, len(states), FIXED_CHUNK_TOKENS):
            chunk = slice(begin, begin + FIXED_CHUNK_TOKENS)
            with FORK_GATE:
                log_p = self._output_layer.log_probabilities(states[chunk])
                best = log_p.topk(min(n, log_p.size(1)), dim=1)
                own = log_p.gather(1, targets[chunk, None])[:, 0]
            self._check(best.values)
            self._check(own)
            parts.append(TopWords(best.indices.cpu().numpy(), best.values.cpu().numpy(), own.cpu().numpy()))
        return _join_top(parts)

    def _windows(
        self,
        words: WordTable,
        inputs: Sequence[Numbers],
        hidden: Tensor,
        cell: Tensor,
        direction: int,
        *,
        n_unread: Sequence[int] | None = None,
    ) -> Iterator[_RowWindow]:
        """Run the LSTMs, ``WINDOW`` words at a time; update ``hidden`` and ``cell`` (layer, row, width).

        A transformer reads whole rows.
        """
        by_length = sorted(range(len(inputs)), key=lambda k: -len(inputs[k]))
        if isinstance(self._prepared.bilm.forward_stack[0], TransformerLayer):
            for group in split_lengths([len(inputs[k]) for k in by_length], max_tokens=CHUNK_TOKENS):
                rows = by_length[group]
                with FORK_GATE:
                    tops = self._run_transformer(
                        words,
                        [inputs[k] for k in rows],
                        direction,
                        n_unread=[0 if n_unread is None else n_unread[k] for k in rows],
                    )
                yield _RowWindow(rows, slice(0, len(inputs[rows[0]])), tops, np.cumsum([len(inputs[k]) for k in rows]))
            return
        for first in range(0, len(inputs), FIXED_ROWS):
            tile = by_length[first : first + FIXED_ROWS]
            for begin in range(0, len(inputs[tile[0]]), WINDOW):
                alive = [k for k in tile if len(inputs[k]) > begin]  # the longest rows come first
                window = [inputs[k][begin : begin + WINDOW] for k in alive]
                with FORK_GATE:
                    before = LstmState(hidden[:, alive], cell[:, alive])
                    tops, after = self._run_window(words, window, before, direction)
                hidden[:, alive], cell[:, alive] = after.hidden, after.cell
                yield _RowWindow(alive, slice(begin, begin + WINDOW), tops, np.cumsum([len(part) for part in window]))

    def _run_window(
        self, words: WordTable, inputs: list[Numbers], state: LstmState, direction: int
    ) -> tuple[Tensor, LstmState]:
        """Compute the outputs (token, width) of the top layer, and the final state; rows have decreasing length."""
        bilm = self._prepared.bilm
        lengths = [len(part) for part in inputs]
        is_token = np.arange(lengths[0]) < np.array(lengths)[:, None]  # (row, time)
        numbers = np.zeros(is_token.shape, dtype=np.int64)
        numbers[is_token] = np.concatenate(inputs)
        layer_input = words.vectors[torch.from_numpy(numbers.T.copy())]  # (time, row, width)
        stack = (bilm.forward_stack, bilm.backward_stack)[direction]
        final: list[LstmState] = []
        for index, lstm in enumerate(stack):
            before = LstmState(state.hidden[index], state.cell[index])
            output, after = run_lstm_rows(cast("ProjectedLstm", lstm), layer_input, lengths, before)
            layer_input = output + layer_input if bilm.has_skip and index > 0 else output
            final.append(after)
        hidden, cell = (torch.stack([getattr(s, name) for s in final]) for name in ("hidden", "cell"))
        mask = torch.from_numpy(is_token).to(layer_input.device)
        return layer_input.transpose(0, 1)[mask], LstmState(hidden, cell)

    def _run_transformer(
        self, words: WordTable, inputs: list[Numbers], direction: int, *, n_unread: list[int]
    ) -> Tensor:
        """Compute the outputs (token, width) of the top layer for whole rows."""
        lengths = [len(row) for row in inputs]
        if direction == 0:
            positions = [np.arange(length) for length in lengths]
        else:  # the boundary token at the start of the sentence has the position 0
            positions = [n + np.arange(length, 0, -1) for n, length in zip(n_unread, lengths, strict=True)]
        table = encode_positions(max(int(row.max()) for row in positions) + 1, like=words.vectors)
        numbers, order = (torch.from_numpy(np.concatenate(parts)).to(table.device) for parts in (inputs, positions))
        stack = cast("tuple[FrozenTransformer, FrozenTransformer]", self._prepared.stacks)[direction]
        *_, tops = stack.run(words.vectors[numbers] + table[order], lengths)
        return tops


def trained_directions(elmo: Elmo) -> Directions:
    """Return the directions in which a model was trained, according to its metadata; both by default."""
    training = elmo.pretrained.metadata.get("training")
    directions = training.get("directions") if isinstance(training, dict) else None
    return directions if directions in ("forward", "backward") else "both"


def _require_softmax(elmo: Elmo) -> tuple[Vocabulary, SoftmaxWeights]:
    if elmo.softmax is None:
        raise ConfigError(
            f"cannot predict words: this {elmo.pretrained.format} model has no softmax; if its publisher provides the "
            "softmax as a separate file, put that file next to the other files of the model"
        )
    if elmo.vocab is None:
        raise ConfigError(
            f"cannot predict words: this {elmo.pretrained.format} model has no vocabulary for the "
            f"{len(elmo.softmax.bias)} words of its softmax; put the vocabulary file next to its other files"
        )
    return elmo.vocab, elmo.softmax


def _start_rows(start: BiLmState, n_rows: int, direction: int) -> tuple[Tensor, Tensor]:
    """Return copies of the hidden and the cell state (layer, row, width) of one direction, for ``n_rows`` rows."""
    hidden, cell = (part[direction].expand(-1, n_rows, -1).clone() for part in (start.hidden, start.cell))
    return hidden, cell


def _join_top(parts: Sequence[TopWords]) -> TopWords:
    names = ("ids", "log_p", "own_log_p")
    return TopWords(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _collect(windows: Iterable[_RowWindow], n_tokens: int) -> Iterator[list[_RowWindow]]:
    """Group consecutive windows; a group is complete when it has at least ``n_tokens`` tokens."""
    held: list[_RowWindow] = []
    for window in windows:
        held.append(window)
        if sum(len(other.tops) for other in held) >= n_tokens:
            yield held
            held = []
    if held:
        yield held
