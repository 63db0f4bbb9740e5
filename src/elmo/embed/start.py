"""What the LSTMs remember when a sentence begins: nothing, a fixed state, or what the last batch left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Literal

from elmo.engine.batches import tracked
from elmo.errors import DataError, ShapeError
from elmo.formats.pretrained import WarmState

if TYPE_CHECKING:
    from elmo.engine.bilm import Engine
    from elmo.model.bilm import BiLmState

STREAMS = 32  # how many stretches of a text are read side by side for a warm state
WARM_SENTENCES = 2048  # the mean of so many no longer moves; more text is not read


class Carry:
    """The state that each batch row left behind, for the next batch to start from.

    This is what bilm-tf and AllenNLP do unasked. A caller who wants their vectors holds one ``Carry`` and
    gives it to every call; row k of a batch starts from where row k of the batch before it ended. A
    smaller batch leaves the other rows as they were, a larger one starts its new rows from zero.
    """

    def __init__(self) -> None:
        self.state: BiLmState | None = None  # one row per batch row seen so far

    def rows(self, n: int, zero: BiLmState) -> BiLmState:
        """The first ``n`` rows; ``zero`` is a state of one row, for rows not seen before."""
        import torch

        from elmo.model.bilm import BiLmState

        if self.state is None:
            self.state = BiLmState(zero.hidden[:, :, :0], zero.cell[:, :, :0])
        own, other = (
            tuple(x.shape[i] for x in (s.hidden, s.cell) for i in (1, 3)) for s in (self.state, zero)
        )
        if own != other:
            raise ShapeError("this carried state belongs to a model of another shape; begin a new Carry()")
        missing = max(0, n - self.state.hidden.size(2))
        kept = self.state.hidden[:, :, :n].to(zero.hidden), self.state.cell[:, :, :n].to(zero.cell)
        return BiLmState(
            torch.cat([kept[0], zero.hidden.expand(-1, -1, missing, -1)], dim=2),
            torch.cat([kept[1], zero.cell.expand(-1, -1, missing, -1)], dim=2),
        )

    def update(self, after: BiLmState) -> None:
        """Keep what a batch left behind."""
        import torch

        from elmo.model.bilm import BiLmState

        if self.state is None:
            self.state = after
            return
        n = after.hidden.size(2)
        self.state = BiLmState(
            torch.cat([after.hidden, self.state.hidden[:, :, n:]], dim=2),
            torch.cat([after.cell, self.state.cell[:, :, n:]], dim=2),
        )


Start = Literal["zero", "warm"] | Carry


def mean_state(
    engine: Engine, sentences: Iterable[Sequence[str]], *, show_progress: bool = False
) -> WarmState:
    """The mean state at the end of a sentence of running text, read with the state carried on.

    Its first ``WARM_SENTENCES`` are read as ``STREAMS`` stretches side by side. The first sentences of each
    stretch, which began from zero, are left out where there are enough others.
    """
    text = list(islice((tuple(sentence) for sentence in sentences if sentence), WARM_SENTENCES))
    if not text:
        raise DataError("a warm state needs text to read, but was given no sentence with a token in it")
    n_streams = min(STREAMS, len(text))
    length = len(text) // n_streams  # what is left over at the end is not read: streams stay in step
    n_left_out = 3 if length > 6 else 0
    carry = Carry()
    zero = engine.bilm.zero_state(1)
    hidden, cell, count = zero.hidden.double(), zero.cell.double(), 0
    for step in tracked(range(length), "Warming up", is_shown=show_progress):
        batch = [text[stream * length + step] for stream in range(n_streams)]
        after = engine.run(batch, start=carry.rows(n_streams, zero)).state
        carry.update(after)
        if step >= n_left_out:
            hidden = hidden + after.hidden.double().sum(dim=2, keepdim=True)
            cell = cell + after.cell.double().sum(dim=2, keepdim=True)
            count += n_streams
    return WarmState((hidden / count)[:, :, 0].float(), (cell / count)[:, :, 0].float())
