"""Usages in, what each language model expects in their places out: log p of every word it knows.

Usages in, for each the mean vector of the words that could stand in its place out.

The layers' vectors of a word tell which word it is, first of all; these tell only what its place is like:
neither language model has read the word itself. Usages of one sense expect the same words, whatever their
spelling, so clusters of such vectors are senses by their substitutes (Amrami and Goldberg 2018, who drew
substitutes where we take the mean of all).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, StateError
from elmo.lexicon.lemmas import log_shares
from elmo.lexicon.search import unit_rows
from elmo.lexicon.usages import Usage, Usages, Vectors
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


_AT_ONCE = 64


def expected_words(
    elmo: Elmo,
    usages: Sequence[Usage],
    *,
    start: Start = "zero",
    on_progress: Callable[[int], None] | None = None,
) -> Usages:
    """Each with Σ_w P(w) · v_w, P(w) ∝ √(P_f(w) · P_b(w)) / P_0(w): ``width`` is that of the softmax.

    v are the softmax's vectors at length one; P_0 is how frequent a word is, so that words which may stand
    anywhere do not drown the rest. ``on_progress`` hears how many usages are done.
    """
    expected = Expectations(elmo, start=start)
    weight = expected.softmax.weight.detach().float().cpu().numpy()
    units = unit_rows(weight, dtype=np.float32)  # (word, width)
    shares = log_shares(len(weight))
    vocab = expected.vocab
    special = [vocab.bos_id, vocab.eos_id, *([vocab.id(vocab.unknown)] if vocab.unknown in vocab else [])]
    rows: list[Vectors] = []
    predictions = expected(usages)
    while some := list(islice(predictions, _AT_ONCE)):
        both = [[x for x in (one.forward, one.backward) if x is not None] for one in some]
        scores = np.stack([np.mean(each, axis=0) for each in both]) - shares  # (usage, word)
        scores[:, special] = -np.inf
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        rows.append(odds @ units / odds.sum(axis=1, keepdims=True))
        if on_progress is not None:
            on_progress(sum(map(len, rows)))
    found = np.concatenate([np.zeros((0, weight.shape[1]), np.float32), *rows]).astype(np.float32)
    return Usages(tuple(usages), found)
