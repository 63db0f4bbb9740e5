"""The LSTM state at the start of a sentence: zero, the warm state, or carried from the previous batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Literal

from elmo.embed.finite import check_finite
from elmo.engine.batches import track_progress
from elmo.errors import DataError, ShapeError, StateError
from elmo.formats.pretrained import WarmState

if TYPE_CHECKING:
    from elmo.engine.bilm import Engine
    from elmo.model.bilm import BiLmState

STREAMS = 32  # number of parts of a text that are read in parallel
WARM_SENTENCES = 2048  # the mean hardly changes after this many sentences


class Carry:
    """The state at the end of each row of a batch, from which the next batch starts.

    bilm-tf and AllenNLP carry the state by default. To reproduce their vectors, create one ``Carry`` and
    pass it to each call of ``encode``: row k of a batch starts from the state at the end of row k of the
    previous batch. If a batch is smaller, the states of the other rows are kept; if it is larger, its new
    rows start from zero.

    Example:
        >>> carry = Carry()
        >>> first, second = (elmo.encode("Yes.", start=carry).vectors for _ in range(2))
        >>> np.array_equal(first, second)  # the second call starts from the state after the first one
        False
    """

    def __init__(self) -> None:
        self.state: BiLmState | None = None  # as many rows as the largest batch so far

    def rows(self, n: int, zero: BiLmState) -> BiLmState:
        """Return the states of the first ``n`` rows; new rows are copies of ``zero``, a state with one row."""
        import torch

        from elmo.model.bilm import BiLmState

        _require_state(zero, "a carried state")
        if self.state is None:
            self.state = BiLmState(zero.hidden[:, :, :0], zero.cell[:, :, :0])
        own, other = (tuple(x.shape[i] for x in (s.hidden, s.cell) for i in (1, 3)) for s in (self.state, zero))
        if own != other:
            raise ShapeError(
                "cannot use this Carry: it holds states of another shape, from another model; create a new Carry()"
            )
        missing = max(0, n - self.state.hidden.size(2))
        kept = self.state.hidden[:, :, :n].to(zero.hidden), self.state.cell[:, :, :n].to(zero.cell)
        return BiLmState(
            torch.cat([kept[0], zero.hidden.expand(-1, -1, missing, -1)], dim=2),
            torch.cat([kept[1], zero.cell.expand(-1, -1, missing, -1)], dim=2),
        )

    def update(self, state: BiLmState) -> None:
        """Store the states at the end of a batch."""
        import torch

        from elmo.model.bilm import BiLmState

        if self.state is None:
            self.state = state
            return
        n = state.hidden.size(2)
        self.state = BiLmState(
            torch.cat([state.hidden, self.state.hidden[:, :, n:]], dim=2),
            torch.cat([state.cell, self.state.cell[:, :, n:]], dim=2),
        )


Start = Literal["zero", "warm"] | Carry


def warm_start(warm: WarmState | None, zero: BiLmState) -> BiLmState:
    """Return a warm state as a state with one row, with the dtype and device of ``zero``.

    Raises ``StateError`` if the model has no warm state, or if it is a transformer.
    """
    from elmo.model.bilm import BiLmState

    _require_state(zero, "start='warm'")
    if warm is None:
        raise StateError("cannot use start='warm': this model has no warm state; add one with: elmo warm MODEL TEXT")
    return BiLmState(warm.hidden[:, :, None].to(zero.hidden), warm.cell[:, :, None].to(zero.cell))


def _require_state(zero: BiLmState, option: str) -> None:
    """Raise ``StateError`` for a transformer, which reads each sentence by itself."""
    if zero.hidden.size(3) == 0:
        raise StateError(f"cannot use {option}: a transformer keeps no state between sentences; use start='zero'")


def compute_warm_state(engine: Engine, sentences: Iterable[Sequence[str]], *, show_progress: bool = False) -> WarmState:
    """Compute the mean of the states at the end of each sentence, where the state is carried between sentences.

    Only the first ``WARM_SENTENCES`` sentences are read, as ``STREAMS`` parallel streams. The first sentences
    of each stream are still close to the zero state and are skipped if there are enough others.
    """
    text = list(islice((tuple(sentence) for sentence in sentences if sentence), WARM_SENTENCES))
    if not text:
        raise DataError("cannot compute the warm state: the text has no tokens")
    n_streams = min(STREAMS, len(text))
    n_steps = len(text) // n_streams  # the remainder is not used, so that all streams have equal length
    n_skipped = 3 if n_steps > 6 else 0
    carry = Carry()
    prepared = engine.prepare()  # for all steps
    zero = prepared.zero
    _require_state(zero, "a warm state")
    hidden, cell, n_states = zero.hidden.double(), zero.cell.double(), 0
    for step in track_progress(range(n_steps), "Warming up", is_shown=show_progress):
        batch = [text[stream * n_steps + step] for stream in range(n_streams)]
        state = engine.run(batch, start=carry.rows(n_streams, zero), prepared=prepared).state
        carry.update(state)
        if step >= n_skipped:
            hidden = hidden + state.hidden.double().sum(dim=2, keepdim=True)
            cell = cell + state.cell.double().sum(dim=2, keepdim=True)
            n_states += n_streams
    warm = WarmState((hidden / n_states)[:, :, 0].float(), (cell / n_states)[:, :, 0].float())
    for values in (warm.hidden, warm.cell):
        check_finite(values.cpu(), "the states of the warm state", precision=engine.precision)
    return warm
