"""Beam search: find a likely translation, step by step, with the decoder of ``TranslationHead``.

The result for a text does not depend on the other texts of the batch. Therefore, each text is encoded and attended
to separately, and matrix products over all texts have a fixed shape (see ``elmo.engine.matmul``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.engine.matmul import FIXED_ROWS, aligned_linear
from elmo.tasks.data.examples import Words
from elmo.tasks.data.units import BEGIN, COPY, END, PADDING, SPACED_COPY, UNKNOWN, Unit
from elmo.tasks.heads.translation import EncodedSource, TranslationHead

_COPIES = (COPY, SPACED_COPY)
_NEVER = (PADDING, UNKNOWN, BEGIN)  # units that a translation does not contain


@dataclass(frozen=True)
class BeamOptions:
    """Options of beam search.

    Attributes:
        width: Number of partial translations to continue at each step; 1 is greedy search.
        length_power: A translation of n units is ranked by its log-probability divided by n to this power.
    """

    width: int = 5
    length_power: float = 1.0


@dataclass(frozen=True)
class Hypothesis:
    """A complete translation.

    Attributes:
        units: The units, without the end.
        attention: For each unit, the attention to each source word, (step, time).
        log_probability: Log-probability of all units and of the end.
        score: The log-probability divided by a power of the length.
    """

    units: tuple[Unit, ...]
    attention: Tensor
    log_probability: float
    score: float


@torch.no_grad()
def search_beam(
    head: TranslationHead, sources: Sequence[tuple[Words, EncodedSource]], options: BeamOptions
) -> list[Hypothesis]:
    """Return the best translation of each text.

    Args:
        head: The trained head.
        sources: The words of each text, and the text encoded as a batch of one.
        options: Options of the search.
    """
    if not sources:
        return []
    decoder = _StepDecoder(head)
    beams = [_Beam(words, encoded, options) for words, encoded in sources]
    state = decoder.start([beam.encoded for beam in beams], options.width)
    active = beams
    while active:
        previous = torch.tensor([unit.id for beam in active for unit in beam.last])
        log_probs, attention, state = decoder.step(previous, state, active)  # (row, unit), (beam)(width, time)
        parts = zip(active, log_probs.split(options.width), attention, strict=True)
        parents = [beam.advance(scores, weights) for beam, scores, weights in parts]
        is_open = [not beam.is_finished for beam in active]
        rows = [
            k * options.width + parent
            for k, (own, keep) in enumerate(zip(parents, is_open, strict=True))
            if keep
            for parent in own
        ]
        state = [part[rows] for part in state]
        active = [beam for beam, keep in zip(active, is_open, strict=True) if keep]
    return [beam.best() for beam in beams]


@dataclass
class _Beam:
    """The partial translations of one text."""

    words: Words
    encoded: EncodedSource
    options: BeamOptions
    finished: list[Hypothesis] = field(default_factory=list)

    def __post_init__(self) -> None:
        width = self.options.width
        self.last = [Unit(BEGIN)] * width
        self.scores = torch.full((width,), -torch.inf)
        self.scores[0] = 0.0  # all partial translations are equal at first
        self.max_steps = 2 * len(self.words) + 20
        self.is_finished = False
        self._steps: list[tuple[list[int], list[Unit], Tensor]] = []  # parents, units, attention of the parents
        groups: dict[str, list[int]] = {}
        for k, word in enumerate(self.words):
            groups.setdefault(word, []).append(k)
        self._names = list(groups)
        ids = {word: k for k, word in enumerate(groups)}
        self._group = torch.tensor([ids[word] for word in self.words])  # (time,): index of the distinct word

    def advance(self, log_probs: Tensor, attention: Tensor) -> list[int]:
        """Continue the partial translations by one unit; return the row that each of them continues.

        Args:
            log_probs: Log-probability of each unit, (width, unit).
            attention: Attention to the source words, (width, time).
        """
        width = self.options.width
        pointed = torch.zeros(width, len(self._names)).index_add_(1, self._group, attention)
        best_pointed, choice = pointed.max(dim=1)  # (width,): the distinct word with the most attention
        log_probs[:, _COPIES] += best_pointed.log().unsqueeze(1)
        log_probs[:, _NEVER] = -torch.inf
        totals = self.scores.unsqueeze(1) + log_probs  # (width, unit)
        scores, flat = totals.flatten().topk(2 * width)
        parents, ids = (flat // totals.size(1)).tolist(), (flat % totals.size(1)).tolist()
        kept: list[tuple[int, Unit, float]] = []
        for rank, (parent, id_, score) in enumerate(zip(parents, ids, scores.tolist(), strict=True)):
            if id_ != END:
                kept.append((parent, Unit(id_, self._names[choice[parent]] if id_ in _COPIES else ""), score))
            elif rank < width and score > -torch.inf:
                self._finish(parent, score)
        kept = kept[:width]
        rows, self.last = [parent for parent, _, _ in kept], [unit for _, unit, _ in kept]
        self._steps.append((rows, self.last, attention[rows]))
        self.scores = torch.tensor([score for _, _, score in kept])
        if len(self._steps) == self.max_steps and not self.finished:
            self._finish(0, kept[0][2])
        self.is_finished = len(self.finished) >= width or len(self._steps) >= self.max_steps
        return rows

    def best(self) -> Hypothesis:
        """Return the complete translation with the best score; the first one of several."""
        return max(self.finished, key=lambda hypothesis: hypothesis.score)

    def _finish(self, row: int, score: float) -> None:
        """Add the translation that ends in ``row`` of the last step."""
        units: list[Unit] = []
        attention: list[Tensor] = []
        for parents, chosen, weights in reversed(self._steps):
            units.append(chosen[row])
            attention.append(weights[row])
            row = parents[row]
        n = len(units) + 1
        weights = torch.stack(attention[::-1]) if attention else torch.zeros(0, len(self.words))
        self.finished.append(Hypothesis(tuple(units[::-1]), weights, score, score / n**self.options.length_power))


class _StepDecoder:
    """Computes one step of the decoder, in products whose rows do not depend on each other."""

    def __init__(self, head: TranslationHead) -> None:
        self.head = head
        self._first, self._second = _lstm_weights(head.first), _lstm_weights(head.second)

    def start(self, sources: Sequence[EncodedSource], width: int) -> list[Tensor]:
        """Return the first hidden and cell state of both layers, (row, width) each."""
        start = torch.cat([encoded.start for encoded in sources]).repeat_interleave(width, dim=0)
        first, second = start.chunk(2, dim=1)
        return [first, torch.zeros_like(first), second, torch.zeros_like(second)]

    def step(
        self, previous: Tensor, state: Sequence[Tensor], beams: Sequence[_Beam]
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return the log-probabilities of the next unit (row, unit), the attention of each text, and the state."""
        lower, upper = state[:2], state[2:]
        lower = _in_blocks(lambda *rows: _run_cell(*rows, weights=self._first), self.head.units(previous), *lower)
        attention, contexts = [], []
        for beam, query in zip(beams, lower[0].split(len(previous) // len(beams)), strict=True):
            weights = (query.clone() @ beam.encoded.keys[0].t()).softmax(dim=1)  # (width, time)
            attention.append(weights)
            contexts.append(weights @ beam.encoded.states[0])
        context = torch.cat(contexts)
        upper = _in_blocks(
            lambda *rows: _run_cell(*rows, weights=self._second), torch.cat([lower[0], context], dim=1), *upper
        )
        (log_probs,) = _in_blocks(self._predict, torch.cat([upper[0], context], dim=1))
        return log_probs, attention, [*lower, *upper]

    def _predict(self, states: Tensor) -> tuple[Tensor]:
        """Compute the log-probabilities of all units from states and contexts."""
        output = torch.tanh(aligned_linear(states, self.head.readout.weight, self.head.readout.bias))
        return (aligned_linear(output, self.head.units.weight, self.head.bias).log_softmax(dim=1),)


def _lstm_weights(lstm: nn.LSTM) -> tuple[Tensor, Tensor]:
    """Return the weights (4 · width, in + width) and the bias of an LSTM layer."""
    input_weight, state_weight, input_bias, state_bias = lstm.parameters()
    return torch.cat([input_weight, state_weight], dim=1), input_bias + state_bias


def _run_cell(*rows: Tensor, weights: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Compute the next hidden and cell state of an LSTM layer from its input, hidden and cell state."""
    x, hidden, cell = rows
    gates = aligned_linear(torch.cat([x, hidden], dim=1), *weights)
    input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=1)
    cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
    return output_gate.sigmoid() * cell.tanh(), cell


def _in_blocks(compute: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> list[Tensor]:
    """Apply ``compute`` to blocks of a fixed number of rows, so that the bits of a row do not depend on the others."""
    n = len(inputs[0])
    padded = [F.pad(rows, (0, 0, 0, -n % FIXED_ROWS)).split(FIXED_ROWS) for rows in inputs]
    results = [compute(*blocks) for blocks in zip(*padded, strict=True)]
    return [torch.cat(parts)[:n] for parts in zip(*results, strict=True)]
