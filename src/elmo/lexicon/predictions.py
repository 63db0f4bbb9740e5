"""Usages in, what each language model expects in their places out: log p of every word it knows."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, StateError
from elmo.model.bilm import BiLmState
from elmo.predict.predictor import BOS, EOS, FIRST_WORD, Predictor
from elmo.predict.scores import directions_of

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.lexicon.usages import Usage

logger = logging.getLogger(__name__)

Start = Literal["zero", "warm"]
LogProbabilities = NDArray[np.floating[Any]]
_PLACES = 128  # read at a time
_LOGITS = 1 << 24  # and no more than this many are held, whatever the vocabulary


@dataclass(frozen=True, eq=False)
class Prediction:
    """Log p (vocabulary,) of the words that could stand in a place; None: a direction the model has not.

    The forward language model has read what stands before the usage, the backward one what stands after it;
    neither has read the usage itself.
    """

    usage: Usage
    forward: LogProbabilities | None
    backward: LogProbabilities | None


class Expectations:
    """A model's two language models, asked about places in sentences."""

    def __init__(self, elmo: Elmo, *, start: Start = "zero") -> None:
        if start not in ("zero", "warm"):
            raise ConfigError(f"start must be zero or warm, not {start!r:.40}")
        self._predictor = Predictor(elmo)
        self.vocab, self.softmax = self._predictor.vocab, self._predictor.softmax
        directions = directions_of(elmo)
        self.has_forward, self.has_backward = directions != "backward", directions != "forward"
        if directions != "both":
            logger.warning("this model was trained %s only: the words on that side alone count", directions)
        self._start = elmo.bilm.zero_state(1)
        if start == "warm":
            self._start = _warm_state(elmo, self._start)
        self._n_places = max(1, min(_PLACES, _LOGITS // len(self._predictor.vocab)))

    def __call__(self, usages: Iterable[Usage]) -> Iterator[Prediction]:
        """The prediction for each usage, in order; many are read side by side."""
        rest = iter(usages)
        while piece := list(islice(rest, self._n_places)):
            forward, backward = self._piece(piece)
            for k, usage in enumerate(piece):
                yield Prediction(
                    usage,
                    None if forward is None else forward[k],
                    None if backward is None else backward[k],
                )

    def _piece(self, usages: Sequence[Usage]) -> list[LogProbabilities | None]:
        index: dict[str, int] = {}

        def numbers(tokens: Sequence[str]) -> list[int]:
            return [index.setdefault(token, len(index)) + FIRST_WORD for token in tokens]

        before = [[BOS, *numbers(usage.sentence.tokens[: usage.begin])] for usage in usages]
        after = [[EOS, *numbers(usage.sentence.tokens[usage.end :][::-1])] for usage in usages]
        words = self._predictor.words(list(index))
        found: list[LogProbabilities | None] = []
        for direction, (rows, is_there) in enumerate(
            ((before, self.has_forward), (after, self.has_backward))
        ):
            inputs = [np.array(row, dtype=np.int64) for row in rows]
            found.append(
                self._predictor.next_words(words, inputs, self._start, direction=direction).cpu().numpy()
                if is_there
                else None
            )
        return found


def _warm_state(elmo: Elmo, zero: BiLmState) -> BiLmState:
    warm = elmo.pretrained.warm
    if warm is None:
        raise StateError("this model has no warm state; make one with: elmo warm MODEL TEXT")
    return BiLmState(warm.hidden[:, :, None].to(zero.hidden), warm.cell[:, :, None].to(zero.cell))
