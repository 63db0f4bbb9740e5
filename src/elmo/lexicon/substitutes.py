"""A word in its sentence in, what else could stand there out, by both language models' softmax.

With P_f what the forward language model expects in the place, P_b what the backward one does, P(w) how
frequent a word is and v its vector (``lexicon.entries`` tells about both), the ways to combine are

``forward``   P_f
``backward``  P_b
``mean``      (P_f + P_b) / 2
``product``   P_f · P_b
``bcomb``     P_f · P_b / P(w)^β (Arefyev et al. 2019): words that are likely anywhere count for less
``inject``    √(P_f · P_b) / P(w)^β · exp(cos(v_w, v_target) / temperature): the language models have not
              read the target, so its likeness is brought in (+embs, Arefyev et al. 2020)

each made to add up to 1 over the words that may stand there.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError
from elmo.lexicon.lemmas import Entries, Floats, Lemmas, language_of
from elmo.lexicon.predictions import Expectations, Prediction, Start
from elmo.lexicon.usages import Usage, marked_usage

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

logger = logging.getLogger(__name__)

Combine = Literal["inject", "bcomb", "product", "mean", "forward", "backward"]
BETA, TEMPERATURE = 1.0, 0.05  # the best of a grid on half of SWORDS' dev part; docs/substitutes.md
_PARTS = re.compile(r"[\s\-_]+")  # between the words of a phrase


@dataclass(frozen=True)
class Substitute:
    """A lemma, by the form of it that fits the place best."""

    word: str
    lemma: str
    probability: float  # of all forms together
    forward: (
        float | None
    )  # p of ``word`` by the forward language model; None: not asked, or not in vocabulary
    backward: float | None
    similarity: float | None  # of ``word`` and the target, by their softmax vectors
    candidate: str | None = None  # as it was given, if it was
    is_known: bool = True  # False: a candidate of which the vocabulary has no part


@dataclass(frozen=True)
class Substitutes:
    """What could stand in the place of a usage, the most probable first."""

    usage: Usage
    found: tuple[Substitute, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        before, word, after = self.usage.parts()
        found = [asdict(one) for one in self.found]
        return {"before": before, "word": word, "after": after, "substitutes": found}


def substitutes(
    elmo: Elmo,
    sentence: str | Sequence[str] | Usage,
    *,
    word: str | None = None,
    combine: Combine = "inject",
    n: int = 10,
    **options: Any,
) -> Substitutes:
    """What else could stand in the place of a word, marked like ``[[this]]`` or named by ``word``.

    ``options`` are those of ``Substituter``, which is there for those who ask about many places.
    """
    usage = _usage(elmo, sentence, word)
    (found,) = Substituter(elmo, combine=combine, **options).substitutes([usage], n=n)
    return found


def rank(
    elmo: Elmo,
    sentence: str | Sequence[str] | Usage,
    candidates: Sequence[str],
    *,
    word: str | None = None,
    combine: Combine = "inject",
    **options: Any,
) -> Substitutes:
    """The candidates, those first that fit the place best; see ``Substituter.rank``."""
    usage = _usage(elmo, sentence, word)
    return Substituter(elmo, combine=combine, **options).rank([usage], [candidates])[0]


class Substituter:
    """A model with its vocabulary by lemma, made once for many places.

    ``language`` is the code whose lemmas are meant, by default that of the model's tokeniser. ``beta`` and
    ``temperature`` are those of the formulas above.
    """

    def __init__(
        self,
        elmo: Elmo,
        *,
        combine: Combine = "inject",
        beta: float = BETA,
        temperature: float = TEMPERATURE,
        language: str | None = None,
        start: Start = "zero",
    ) -> None:
        if combine not in get_args(Combine):
            raise ConfigError(f"combine must be one of {', '.join(get_args(Combine))}, not {combine!r:.40}")
        if not (np.isfinite(beta) and beta >= 0 and np.isfinite(temperature) and temperature > 0):
            raise ConfigError(
                f"expected beta of 0 or more and a temperature above 0, found {beta} and {temperature}"
            )
        self._expected = Expectations(elmo, start=start)
        for name, is_there in (
            ("forward", self._expected.has_forward),
            ("backward", self._expected.has_backward),
        ):
            if combine == name and not is_there:
                raise ConfigError(f"combine {name}: this model was trained in the other direction only")
        self.combine, self.beta, self.temperature = combine, beta, temperature
        self._told: set[str] = set()  # targets that the vocabulary has not
        self._told_candidates: set[str] = set()
        self.lemmas = Lemmas(language or language_of(elmo))
        expected = self._expected
        self.entries = Entries(elmo, self.lemmas, vocab=expected.vocab, softmax=expected.softmax)

    def substitutes(self, usages: Iterable[Usage], *, n: int = 10) -> Iterator[Substitutes]:
        """For each usage the ``n`` best lemmas, in order; the target's own forms are left out.

        So is what is no word: punctuation and numbers, unless the target is of that kind.
        """
        if n < 1:
            raise ConfigError(f"n must be at least 1, found {n}")
        for prediction in self._expected(usages):
            place = self._place(prediction)
            scores = np.where(place.may, place.scores, -np.inf)
            by_entry = self.entries.by_entry(scores)
            total = np.logaddexp.reduce(by_entry)
            if not np.isfinite(total):
                yield Substitutes(prediction.usage, ())
                continue
            best = np.argsort(-by_entry, kind="stable")[:n]
            found = [
                self._substitute(place, int(entry), scores, float(np.exp(by_entry[entry] - total)))
                for entry in best
                if np.isfinite(by_entry[entry])
            ]
            yield Substitutes(prediction.usage, tuple(found))

    def rank(self, usages: Sequence[Usage], candidates: Sequence[Sequence[str]]) -> list[Substitutes]:
        """For each usage its candidates in order, their probabilities as shares among them.

        A candidate is a lemma or a form; all forms of its lemma count. One of several words, or joined by
        hyphens, that the vocabulary has not as a whole has the mean score of its words. Of what the
        vocabulary has no part stands last, in the order given.
        """
        if len(usages) != len(candidates):
            raise DataError(f"expected candidates for {len(usages)} usages, found {len(candidates)}")
        for given in candidates:
            _check(given)
        return [
            self._ranked(self._place(prediction), given)
            for prediction, given in zip(self._expected(usages), candidates, strict=True)
        ]

    # --- inside -------------------------------------------------------------------------------------

    def _place(self, prediction: Prediction) -> _Place:
        usage = prediction.usage
        tokens = usage.sentence.tokens[usage.begin : usage.end]
        similarity = self.entries.similarities(tokens)
        if similarity is None and self.combine == "inject" and usage.word not in self._told:
            self._told.add(usage.word)  # once, however many places of it there are
            logger.warning("%s: the vocabulary has no form of %r, so the context alone counts",
                           usage.place or "a usage", usage.word[:40])  # fmt: skip
        scores = self._combined(prediction, similarity)
        return _Place(prediction, similarity, scores, self.entries.may_stand_for(tokens))

    def _combined(self, prediction: Prediction, similarity: Floats | None) -> Floats:
        """Log P (row,), up to a constant."""
        forward, backward = prediction.forward, prediction.backward
        there = [x.astype(np.float64) for x in (forward, backward) if x is not None]
        if self.combine == "forward" and forward is not None:
            return forward.astype(np.float64)
        if self.combine == "backward" and backward is not None:
            return backward.astype(np.float64)
        if self.combine == "mean":
            return np.logaddexp.reduce(there, axis=0)
        if self.combine == "product":
            return np.sum(there, axis=0)
        if self.combine == "bcomb":
            return np.sum(there, axis=0) - self.beta * self.entries.log_prior
        likeness = 0.0 if similarity is None else similarity / self.temperature
        return np.mean(there, axis=0) - self.beta * self.entries.log_prior + likeness

    def _substitute(self, place: _Place, entry: int, scores: Floats, probability: float) -> Substitute:
        rows = self.entries.rows_of(entry)
        row = int(rows[np.argmax(scores[rows])])
        forward, backward = (
            None if x is None else float(np.exp(x[row]))
            for x in (place.prediction.forward, place.prediction.backward)
        )
        similarity = None if place.similarity is None else float(place.similarity[row])
        return Substitute(
            self.entries.words[row], self.entries.lemmas[entry], probability, forward, backward, similarity
        )

    def _ranked(self, place: _Place, candidates: Sequence[str]) -> Substitutes:
        by_entry = self.entries.by_entry(place.scores)
        scores = np.full(len(candidates), -np.inf)
        entries = [self.entries.entry(candidate.strip()) for candidate in candidates]
        for k, (entry, candidate) in enumerate(zip(entries, candidates, strict=True)):
            parts = self._parts(candidate) if entry is None else [entry]
            if parts:
                scores[k] = by_entry[parts].mean()
        is_known = np.isfinite(scores)
        unknown = [candidate for candidate, known in zip(candidates, is_known, strict=True) if not known]
        if not self._told_candidates.issuperset(unknown):
            self._told_candidates.update(unknown)
            logger.warning("%s: the vocabulary has no part of %s: last in the ranking",
                           place.prediction.usage.place or "a usage", _named(unknown))  # fmt: skip
        total = np.logaddexp.reduce(scores) if is_known.any() else 0.0
        found: list[Substitute] = []
        for k in map(int, np.argsort(-scores, kind="stable")):
            entry, candidate, share = entries[k], candidates[k], float(np.exp(scores[k] - total))
            if entry is not None:
                one = self._substitute(place, entry, place.scores, share)
                found.append(replace(one, candidate=candidate))
            else:
                lemma = " ".join(map(self.entries.lemma, candidate.split()))
                known = bool(is_known[k])
                found.append(Substitute(candidate, lemma, share, None, None, None, candidate, known))
        return Substitutes(place.prediction.usage, tuple(found))

    def _parts(self, phrase: str) -> list[int]:
        """The entries of a phrase's words, as far as there are any."""
        found = [self.entries.entry(part) for part in _PARTS.split(phrase) if part]
        return [entry for entry in found if entry is not None]


@dataclass(frozen=True, eq=False)
class _Place:
    """All that is known of the words (row,) that could stand in one place."""

    prediction: Prediction
    similarity: Floats | None
    scores: Floats  # log P, up to a constant
    may: NDArray[np.bool_]


def _usage(elmo: Elmo, sentence: str | Sequence[str] | Usage, word: str | None) -> Usage:
    return sentence if isinstance(sentence, Usage) else marked_usage(elmo.tokenizer, sentence, word)


def _check(candidates: Any) -> None:
    if isinstance(candidates, str):
        raise DataError(f"candidates: expected a list of words, found the string {candidates[:40]!r}")
    for k, candidate in enumerate(candidates, start=1):
        if not isinstance(candidate, str) or not candidate.strip():
            raise DataError(f"candidate {k}: expected a word, found {candidate!r:.40}")


def _named(words: Sequence[str]) -> str:
    rest = f" and {len(words) - 5} more" if len(words) > 5 else ""
    return ", ".join(repr(word[:40]) for word in words[:5]) + rest
