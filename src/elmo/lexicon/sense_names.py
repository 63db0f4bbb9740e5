"""A model in, a function that names a sense by what else could stand in its usages' places out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from elmo.lexicon.substitutes import Substituter
from elmo.lexicon.usages import Usage

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.lexicon.senses import NameOf

_USAGES = 20  # the most typical ones, whose substitutes are counted
_EACH = 10  # substitutes of each of them


def by_substitutes(elmo: Elmo, *, n_words: int = 3) -> NameOf | None:
    """None for a model that predicts no words."""
    if elmo.softmax is None or elmo.vocab is None:
        return None
    substituter = Substituter(elmo)

    def name_of(usages: Sequence[Usage]) -> Sequence[str]:
        shares: dict[str, float] = defaultdict(float)
        for found in substituter.substitutes(usages[:_USAGES], n=_EACH):
            for one in found.found:
                shares[one.lemma] += one.probability
        return sorted(shares, key=lambda word: -shares[word])[:n_words]

    return name_of
