"""Tokenised sentences in, all layers of each out: a biLM run so that no sentence depends on another.

Floating-point sums depend on the order in which a library adds them up, and libraries choose that order
by the shape of the matrices. So every matrix product here has one shape, whatever the batch: a fixed
number of words through the character CNN, a fixed number of rows through an LSTM step. A row's result
then does not depend on its place among the rows, nor on what the other rows hold, and a sentence gets
the same bits alone as among thousands. ``BiLm.forward`` is the readable reference for what is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.model.bilm import BiLm, BiLmState
from elmo.model.lstm import LstmState, ProjectedLstm
from elmo.text.batch import TokenIds, TokenIndexer

# Rows of a product come in multiples of 32, the floats that torch's vector loops take at a time. Fewer
# could leave a remainder to its scalar code, whose sigmoid differs from the vector code's in the last bit.
ROWS = 32  # sentences in one LSTM step
STEPS = 8  # time steps whose input products are taken at once
WORDS = 32  # words in one pass of the token layer
TILE_TOKENS = 1 << 15  # a tile of sentences holds at most about this many tokens


@dataclass(frozen=True)
class Contextualised:
    """Each sentence's layers (layer, time, width) without boundaries, and the state each left behind."""

    layers: list[Tensor]
    state: BiLmState  # one row per sentence


class Engine:
    """A frozen biLM, ready to read sentences."""

    def __init__(self, bilm: BiLm, indexer: TokenIndexer) -> None:
        self.bilm = bilm
        self.indexer = indexer

    @torch.inference_mode()
    def run(
        self,
        sentences: Sequence[Sequence[str]],
        *,
        start: BiLmState | None = None,
    ) -> Contextualised:
        """All layers of every sentence, in order.

        ``start`` has a row per sentence, or one row that every sentence starts from; None is all zero.
        """
        if start is None:
            start = self.bilm.zero_state(1)
        n = len(sentences)
        start = BiLmState(start.hidden.expand(-1, -1, n, -1), start.cell.expand(-1, -1, n, -1))
        last = BiLmState(start.hidden.clone(), start.cell.clone())
        vectors, places = self._token_vectors(sentences)
        layers: list[Tensor | None] = [None] * n
        for tile in _tiles([len(sentence) for sentence in sentences]):
            self._run_tile(tile, [places[k] for k in tile], vectors, start=start, last=last, layers=layers)
        return Contextualised(cast("list[Tensor]", layers), last)

    def token_vectors(self, tokens: Sequence[str]) -> Tensor:
        """The context-free vector of each token, (token, width)."""
        with torch.inference_mode():
            vectors, places = self._token_vectors([tokens])
            return vectors[places[0][1:-1]]

    def boundary_vectors(self) -> Tensor:
        """The vectors of the tokens that open and close a sentence, (2, width)."""
        with torch.inference_mode():
            return self._token_layer(self.indexer.boundaries())

    def _token_vectors(self, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, list[Tensor]]:
        """A table with each distinct token's vector, and each sentence's rows in it, boundaries included."""
        index: dict[str, int] = {}
        rows = [[index.setdefault(token, len(index)) + 2 for token in sentence] for sentence in sentences]
        edges, words = self.indexer.boundaries(), self.indexer.words(list(index))
        # Boundaries are rows of their own: a word spelled "<S>" is looked up as a word.
        pieces = [self._token_layer(edges), self._token_layer(words)]
        return torch.cat(pieces), [torch.tensor([0, *row, 1]) for row in rows]

    def _token_layer(self, ids: TokenIds) -> Tensor:
        device = next(self.bilm.parameters()).device
        pieces: list[Tensor] = []
        parts = [None if part is None else torch.from_numpy(part) for part in (ids.char_ids, ids.word_ids)]
        n = len(next(part for part in parts if part is not None))
        for begin in range(0, n, WORDS):
            chunk = [None if part is None else part[begin : begin + WORDS] for part in parts]
            size = min(WORDS, n - begin)
            padded = [
                None
                if part is None
                else F.pad(part, [0, 0] * (part.dim() - 1) + [0, WORDS - size]).to(device)
                for part in chunk
            ]
            pieces.append(self.bilm.token_layer(*padded)[:size])
        if not pieces:
            return next(self.bilm.parameters()).new_zeros(0, self.bilm.zero_state(1).hidden.size(-1))
        return torch.cat(pieces)

    def _run_tile(
        self,
        tile: list[int],
        places: list[Tensor],
        vectors: Tensor,
        *,
        start: BiLmState,
        last: BiLmState,
        layers: list[Tensor | None],
    ) -> None:
        """Both directions of at most ROWS sentences; results go to ``layers`` and ``last`` at ``tile``."""
        lengths = [len(place) for place in places]  # falling
        tokens = torch.nn.utils.rnn.pad_sequence([vectors[place] for place in places])  # (time, row, width)
        outputs: list[list[Tensor]] = []
        for direction, stack in enumerate((self.bilm.forward_stack, self.bilm.backward_stack)):
            inputs = tokens if direction == 0 else _mirrored(tokens, lengths)
            read: list[Tensor] = []
            for layer, state, output in self._read(
                stack, inputs, lengths, start=start, tile=tile, direction=direction
            ):
                last.hidden[direction, layer, tile] = state.hidden
                last.cell[direction, layer, tile] = state.cell
                read.append(output if direction == 0 else _mirrored(output, lengths))
            outputs.append(read)
        for k, (row, length) in enumerate(zip(tile, lengths, strict=True)):
            inner = slice(1, length - 1)
            token = tokens[inner, k]
            found = [torch.cat([token, token], dim=1)]
            for ahead, behind in zip(*outputs, strict=True):
                found.append(torch.cat([ahead[inner, k], behind[inner, k]], dim=1))
            layers[row] = torch.stack(found)

    def _read(
        self,
        stack: nn.ModuleList,
        inputs: Tensor,
        lengths: list[int],
        *,
        start: BiLmState,
        tile: list[int],
        direction: int,
    ) -> Iterator[tuple[int, LstmState, Tensor]]:
        """One direction of a tile: each layer's number, last state and output (time, row, width)."""
        for index, lstm in enumerate(stack):
            state = LstmState(start.hidden[direction, index, tile], start.cell[direction, index, tile])
            output, state = read_layer(cast("ProjectedLstm", lstm), inputs, lengths, state)
            if self.bilm.has_skip and index > 0:
                output += inputs
            yield index, state, output
            inputs = output


def read_layer(
    lstm: ProjectedLstm, inputs: Tensor, lengths: list[int], start: LstmState
) -> tuple[Tensor, LstmState]:
    """What ``ProjectedLstm.forward`` computes, for rows of falling length, in products of fixed shape."""
    time, n_rows, width = inputs.shape
    outputs = inputs.new_zeros(time, n_rows, start.hidden.size(1))
    last = LstmState(start.hidden.clone(), start.cell.clone())
    state = LstmState(_padded(start.hidden, ROWS), _padded(start.cell, ROWS))
    block = inputs.new_zeros(STEPS, ROWS, width)
    for begin in range(0, time, STEPS):
        size = min(STEPS, time - begin)
        block[:size, :n_rows] = inputs[begin : begin + size]
        gates = F.linear(block.view(STEPS * ROWS, width), lstm.input_weight, lstm.bias).view(STEPS, ROWS, -1)
        for t in range(begin, begin + size):
            state = lstm.step(gates[t - begin], state)
            n_true = _count_longer(lengths, t)
            outputs[t, :n_true] = state.hidden[:n_true]
            ending = slice(_count_longer(lengths, t + 1), n_true)  # at the tail of the true ones
            last.hidden[ending], last.cell[ending] = state.hidden[ending], state.cell[ending]
    return outputs, last


def _tiles(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of sentences, longest first, in groups that waste little on padding."""
    tile: list[int] = []
    for k in sorted(range(len(lengths)), key=lambda k: -lengths[k]):
        longest = lengths[tile[0]] if tile else 0
        if tile and (len(tile) == ROWS or (len(tile) + 1) * longest > TILE_TOKENS):
            yield tile
            tile = []
        tile.append(k)
    if tile:
        yield tile


def _padded(rows: Tensor, n: int) -> Tensor:
    return F.pad(rows, (0, 0, 0, n - len(rows)))


def _count_longer(lengths: list[int], t: int) -> int:
    """How many rows of falling length still have a token at step ``t``."""
    n = len(lengths)
    while n and lengths[n - 1] <= t:
        n -= 1
    return n


def _mirrored(x: Tensor, lengths: list[int]) -> Tensor:
    """Each row of x (time, row, width) read from its last true token to its first."""
    y = torch.zeros_like(x)
    for k, length in enumerate(lengths):
        y[:length, k] = x[:length, k].flip(0)
    return y
