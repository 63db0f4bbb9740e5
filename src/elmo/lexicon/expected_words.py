"""Usages in, for each the mean vector of the words that could stand in its place out.

The layers' vectors of a word tell which word it is, first of all; these tell only what its place is like:
neither language model has read the word itself. Usages of one sense expect the same words, whatever their
spelling, so clusters of such vectors are senses by their substitutes (Amrami and Goldberg 2018, who drew
substitutes where we take the mean of all).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from elmo.lexicon.entries import log_shares
from elmo.lexicon.predictions import Expectations, Start
from elmo.lexicon.unit_rows import unit_rows
from elmo.lexicon.usages import Usage, Usages, Vectors

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

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
