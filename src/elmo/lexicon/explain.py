"""Explain which words of a sentence determine the vector of a word, or its similarity to another use.

The score of a context word says how much the vector v of the target depends on it. Let r be the reference: the
vector of the other use or, if there is none, v itself. Each method compares cos(v, r) with its value after a
change of one context word:

``leave-out``  cos(v, r) − cos(v′, r), where v′ is computed from the sentence without the word
``replace``    cos(v, r) − Σ_w p_w · cos(v_w, r), where v_w is computed with w in place of the word; w are the words
               that both language models expect in this position, and p_w are their probabilities
``gradient``   the derivative of cos(v, r) with respect to the vector of the word in the token layer, times this
               vector (gradient × input, Shrikumar et al. 2017). Without another use, the derivative is zero, because
               cos(v, v) is the maximum; the score is then the second-order term: ½ |δ|² / |v|², where δ is the
               change of v, perpendicular to v, that the derivative predicts if the word is removed

A positive score means: without another use, that the word determines the vector; with another use, that the word
raises the similarity. ``docs/explain.md`` measures how faithful the methods are.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.embed.encoding import layer_selector, similarity
from elmo.embed.find import Span
from elmo.embed.start import warm_start
from elmo.engine.bilm import Engine
from elmo.errors import ConfigError
from elmo.lexicon.substitutes import ContextPrediction, ContextPredictor, compute_log_priors
from elmo.lexicon.usages import Usage, Vectors, check_one_vector, embed_usages, find_marked_usage
from elmo.model.bilm import BiLmState, Layers
from elmo.model.mix import LayerMix
from elmo.text.tokenizers import Tokens

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.encoding import LayerChoice

Method = Literal["leave-out", "replace", "gradient"]
Start = Literal["zero", "warm"]
MAX_WORDS = 100  # context words that are explained
MAX_REACH = 150  # tokens on each side of the target that are read; others hardly change its vector
N_EXPECTED = 5  # words that replace a context word
_CHUNK_TOKENS = 4096  # tokens for which derivatives are computed at once


@dataclass(frozen=True)
class ContextWord:
    """A context word of an explanation and its score; ``position`` is the number of the token.

    Attributes:
        position: Number of the token in the sentence.
        token: The token.
        score: Its score.
    """

    position: int
    token: str
    score: float


@dataclass(frozen=True)
class Explanation:
    """The scores of the words of a sentence.

    Attributes:
        tokens: The tokens of the sentence.
        offsets: Begin and end (exclusive) of each token in the text; None if the sentence was passed as tokens.
        target: The first token of the target word, and the last one + 1.
        method: The method that computed the scores.
        scores: The score of each token; 0 for the target, and for tokens outside of ``scope``.
        scope: The first token that was examined, and the last one + 1.
        similarity: Cosine of the target's vectors in both sentences; None without another use.
        other: The explanation of the other sentence; None without another use.
    """

    tokens: tuple[str, ...]
    offsets: tuple[Span, ...] | None
    target: Span
    method: Method
    scores: tuple[float, ...]
    scope: Span
    similarity: float | None = None
    other: Explanation | None = None

    @property
    def word(self) -> str:
        """The target word."""
        return " ".join(self.tokens[slice(*self.target)])

    @property
    def context(self) -> tuple[ContextWord, ...]:
        """The context words that were examined, in the order of the sentence."""
        return tuple(
            ContextWord(k, self.tokens[k], self.scores[k])
            for k in range(*self.scope)
            if not self.target[0] <= k < self.target[1]
        )

    def top(self, n: int = 5) -> tuple[ContextWord, ...]:
        """Return the ``n`` context words with the largest scores, positive or negative."""
        if n < 0:
            raise ConfigError(f"n must be at least 0; found {n}")
        return tuple(sorted(self.context, key=lambda word: -abs(word.score))[:n])

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as a dictionary of JSON values."""
        return {
            "tokens": list(self.tokens),
            "offsets": None if self.offsets is None else [list(span) for span in self.offsets],
            "target": list(self.target),
            "scope": list(self.scope),
            "method": self.method,
            "scores": list(self.scores),
            "similarity": self.similarity,
            "other": None if self.other is None else self.other.to_json(),
        }


def explain(
    elmo: Elmo,
    sentence: str | Sequence[str],
    *,
    other: str | Sequence[str] | None = None,
    word: str | None = None,
    method: Method = "leave-out",
    layers: LayerChoice | int | LayerMix = "average",
    max_words: int = MAX_WORDS,
    start: Start = "zero",
) -> Explanation:
    """Explain which words determine the vector of a word, or its similarity to another use.

    Args:
        elmo: The model.
        sentence: A sentence in which the word is marked like ``[[this]]``.
        other: Another sentence with a marked word. The scores then explain the similarity of the two words.
        word: The word to explain in sentences without a mark.
        method: How to compute the scores: encode the sentence without each word, replace each word by the words that
            the language models expect in its place, or use derivatives.
        layers: Layers of the vectors, as in ``Elmo.encode``, but not ``"all"``.
        max_words: Maximum number of context words to explain; the words nearest to the target are used.
        start: LSTM state at the start of a sentence; warm requires a model prepared with 'elmo warm'.

    Example:
        >>> explanation = explain(elmo, "I sat by the [[bank]] of the river.", layers="sense")
        >>> len(explanation.scores) == len(explanation.tokens)
        True
    """
    explainer = Explainer(elmo, method=method, layers=layers, max_words=max_words, start=start)
    usage = find_marked_usage(elmo.tokenizer, sentence, word)
    return explainer.explain(usage, None if other is None else find_marked_usage(elmo.tokenizer, other, word, number=2))


@dataclass(frozen=True)
class _Variant:
    """A usage in which one context word is changed; ``weight`` is its probability."""

    position: int
    usage: Usage
    weight: float


class Explainer:
    """A model prepared to explain many usages.

    Args:
        elmo: The model; it needs a softmax and a vocabulary for the method replace.
        method: How to compute the scores; see the description of this module.
        layers: Layers of the vectors, as in ``Elmo.encode``, but not ``"all"``.
        max_words: Maximum number of context words to explain; the words nearest to the target are used.
        start: LSTM state at the start of a sentence; warm requires a model prepared with 'elmo warm'.

    Example:
        >>> explainer = Explainer(elmo, layers="sense")
        >>> usage = find_marked_usage(elmo.tokenizer, "I sat by the [[bank]].")
        >>> explainer.explain(usage).word
        'bank'
    """

    def __init__(
        self,
        elmo: Elmo,
        *,
        method: Method = "leave-out",
        layers: LayerChoice | int | LayerMix = "average",
        max_words: int = MAX_WORDS,
        start: Start = "zero",
    ) -> None:
        if method not in get_args(Method):
            raise ConfigError(f"method must be one of {', '.join(get_args(Method))}; found {method!r:.40}")
        if max_words < 1:
            raise ConfigError(f"max_words must be at least 1; found {max_words}")
        if start not in get_args(Start):
            raise ConfigError(f"start must be zero or warm; found {start!r:.40}")
        check_one_vector(layers)
        if layers != "sense":
            layer_selector(layers, elmo.n_layers)  # raises ConfigError if there is no such layer
        elif method == "gradient":
            raise ConfigError("method 'gradient' needs the layers of the word; use another method with layers='sense'")
        self.method: Method = method
        self._layers: LayerChoice | int | LayerMix = layers
        self._elmo, self._start, self._max_words = elmo, start, max_words
        self._expected = _ExpectedWords(elmo, start=start) if method == "replace" else None
        self._derivatives = _Derivatives(elmo, layers=layers, start=start) if method == "gradient" else None

    def explain(self, usage: Usage, other: Usage | None = None) -> Explanation:
        """Explain the vector of a usage or, with ``other``, the similarity of two usages."""
        usages = [usage] if other is None else [usage, other]
        reach = max(MAX_REACH, self._max_words)
        firsts = [max(0, one.begin - reach) for one in usages]
        clipped = [_clip(one, first, one.end + reach) for one, first in zip(usages, firsts, strict=True)]
        scopes = [find_scope(one, self._max_words) for one in clipped]
        if self._derivatives is not None:
            cosine, scores = self._score_by_gradient(self._derivatives, clipped, scopes)
        else:
            cosine, scores = self._score_by_variants(clipped, scopes)
        parts = [
            Explanation(
                tokens=one.sentence.tokens,
                offsets=one.sentence.offsets,
                target=(one.begin, one.end),
                method=self.method,
                scores=tuple(np.pad(row, (first, len(one.sentence) - first - len(row))).tolist()),
                scope=(scope[0] + first, scope[1] + first),
                similarity=cosine,
            )
            for one, row, scope, first in zip(usages, scores, scopes, firsts, strict=True)
        ]
        if other is None:
            return parts[0]
        return Explanation(**{**vars(parts[0]), "other": parts[1]})

    def _score_by_variants(
        self, usages: Sequence[Usage], scopes: Sequence[Span]
    ) -> tuple[float | None, list[NDArray[np.float64]]]:
        """Encode all changed sentences at once; return the cosine and the scores (time,) of each usage."""
        build: Callable[[Usage, Span], list[_Variant]]
        build = leave_out_each if self._expected is None else self._expected.replace_each
        variants = [build(usage, scope) for usage, scope in zip(usages, scopes, strict=True)]
        changed = [variant.usage for row in variants for variant in row]
        vectors = embed_usages(self._elmo, [*usages, *changed], layers=self._layers, start=self._start).vectors
        own, rest = vectors[: len(usages)], iter(vectors[len(usages) :])
        cosine = None if len(usages) == 1 else similarity(own[0], own[1])
        before = 1.0 if cosine is None else cosine
        scores: list[NDArray[np.float64]] = []
        for usage, row, reference in zip(usages, variants, own[::-1], strict=True):
            score = np.zeros(len(usage.sentence))
            for variant in row:
                score[variant.position] += variant.weight * (before - similarity(next(rest), reference))
            scores.append(score if cosine is not None else score.clip(min=0.0))  # without rounding errors below 0
        return cosine, scores

    def _score_by_gradient(
        self, derivatives: _Derivatives, usages: Sequence[Usage], scopes: Sequence[Span]
    ) -> tuple[float | None, list[NDArray[np.float64]]]:
        """Return the cosine and the scores (time,) of each usage."""
        parts = [derivatives.compute(usage, scope) for usage, scope in zip(usages, scopes, strict=True)]
        cosine = None if len(usages) == 1 else similarity(parts[0].vector, parts[1].vector)
        scores: list[NDArray[np.float64]] = []
        for usage, part, reference in zip(usages, parts, parts[::-1], strict=True):
            score = np.zeros(len(usage.sentence))
            length, reference_length = np.linalg.norm(part.vector), np.linalg.norm(reference.vector)
            if len(part.positions) and length > 0 and reference_length > 0:
                unit = part.vector / length
                changes = part.changes / length  # (position, width)
                if cosine is None:
                    perpendicular = changes - np.outer(changes @ unit, unit)
                    score[part.positions] = (perpendicular**2).sum(axis=1) / 2
                else:
                    score[part.positions] = changes @ (reference.vector / reference_length - cosine * unit)
            scores.append(score)
        return cosine, scores


def _clip(usage: Usage, first: int, end: int) -> Usage:
    """Return a usage in the part of its sentence from token ``first`` to ``end``."""
    if first == 0 and end >= len(usage.sentence):
        return usage
    words = Tokens.from_words(usage.sentence.tokens[first:end])
    return Usage(words, usage.begin - first, usage.end - first, usage.place)


def find_scope(usage: Usage, max_words: int) -> Span:
    """Return the first and the last token + 1 of the target and the ``max_words`` context words nearest to it."""
    n_before, n_after = usage.begin, len(usage.sentence) - usage.end
    before = min(n_before, max(max_words - max_words // 2, max_words - n_after))
    after = min(n_after, max_words - before)
    return usage.begin - before, usage.end + after


def _context_positions(usage: Usage, scope: Span) -> list[int]:
    return [*range(scope[0], usage.begin), *range(usage.end, scope[1])]


def change_words(usage: Usage, changes: dict[int, str | None]) -> Usage:
    """Replace context words by others; None removes a word. The keys are the positions of the tokens."""
    tokens = usage.sentence.tokens
    kept = [changes.get(k, token) for k, token in enumerate(tokens)]
    begin = usage.begin - sum(k < usage.begin and token is None for k, token in changes.items())
    words = Tokens.from_words([token for token in kept if token is not None])
    return Usage(words, begin, begin + usage.end - usage.begin, usage.place)


# --- Leave out --------------------------------------------------------------------------------------


def leave_out_each(usage: Usage, scope: Span) -> list[_Variant]:
    """Return the usage without each of its context words."""
    return [_Variant(k, change_words(usage, {k: None}), 1.0) for k in _context_positions(usage, scope)]


# --- Replace ----------------------------------------------------------------------------------------


class _ExpectedWords:
    """Predicts the words that fit in the place of a context word, from the words before and after it."""

    def __init__(self, elmo: Elmo, *, start: Start) -> None:
        self._predictor = ContextPredictor(elmo, start=start)
        vocab = self._predictor.vocab
        self._log_priors = compute_log_priors(len(vocab))
        self._special = [vocab.bos_id, vocab.eos_id, *([vocab.id(vocab.unknown)] if vocab.unknown in vocab else [])]
        alphabet = elmo.indexer.alphabet
        self._entry: Callable[[str], str] = alphabet.lookup_form if alphabet else str

    def replace_each(self, usage: Usage, scope: Span) -> list[_Variant]:
        """Return the usage with each of its context words replaced by the words that are expected there."""
        places = [Usage(usage.sentence, k, k + 1, usage.place) for k in _context_positions(usage, scope)]
        return [
            _Variant(prediction.usage.begin, change_words(usage, {prediction.usage.begin: word}), weight)
            for prediction in self._predictor.predict(places)
            for word, weight in self._best(prediction)
        ]

    def _best(self, prediction: ContextPrediction) -> Iterator[tuple[str, float]]:
        """Yield the most probable words other than the word itself, and their probabilities, which sum to 1.

        P(w | before, after) ∝ P(w | before) · P(w | after) / P(w), if both sides are independent given w.
        """
        logs = [x for x in (prediction.forward, prediction.backward) if x is not None]
        scores = np.sum(logs, axis=0, dtype=np.float64) - (len(logs) - 1) * self._log_priors
        scores[self._special] = -np.inf
        vocab, own = self._predictor.vocab, self._entry(prediction.usage.word)
        if own in vocab:
            scores[vocab.id(own)] = -np.inf
        n = min(N_EXPECTED, len(scores))
        best = np.argpartition(-scores, n - 1)[:n]
        best = best[np.isfinite(scores[best])]
        if len(best):
            odds = np.exp(scores[best] - scores[best].max())
            yield from zip((vocab.words[k] for k in best), (odds / odds.sum()).tolist(), strict=True)


# --- Gradient ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _TargetChanges:
    """The vector of a target (width,), and how it changes with each context word (position, width)."""

    vector: Vectors
    positions: list[int]
    changes: Vectors


class _Derivatives:
    """Computes the derivative of a target's vector along the token vector of each context word, in float32."""

    def __init__(self, elmo: Elmo, *, layers: LayerChoice | int | LayerMix, start: Start) -> None:
        is_exact = next(elmo.bilm.parameters()).dtype in (torch.float32, torch.float64)
        self._bilm = elmo.bilm if is_exact else copy.deepcopy(elmo.bilm).float()
        self._engine = Engine(self._bilm, elmo.indexer)
        self._start = self._bilm.zero_state(1)
        if start == "warm":
            self._start = warm_start(elmo.pretrained.warm, self._start)
        self._layers, self._alignment = layers, elmo.pretrained.alignment
        with warnings.catch_warnings():  # the first call imports parts of torch that are deprecated
            warnings.simplefilter("ignore", DeprecationWarning)
            torch.func.jvp(torch.neg, (self._start.hidden,), (self._start.hidden,))

    @torch.no_grad()
    def compute(self, usage: Usage, scope: Span) -> _TargetChanges:
        """Compute the vector of a usage and its derivatives along the words of the scope."""
        inputs = self._look_up(usage.sentence.tokens)  # (time, width), with boundary tokens
        positions = _context_positions(usage, scope)

        def encode(rows: Tensor) -> Tensor:
            """Compute the vectors of the target (row, width) from token vectors (row, time, width)."""
            n_rows = len(rows)
            lengths = torch.full((n_rows,), rows.size(1), device=rows.device)
            state = BiLmState(*(x.expand(-1, -1, n_rows, -1) for x in (self._start.hidden, self._start.cell)))
            states = self._bilm.contextualize(rows, lengths, state=state).layers.states
            if self._alignment is not None:
                states = self._alignment.map_layers(states)
            return self._select(states[:, :, usage.begin + 1 : usage.end + 1]).mean(dim=1)

        vector = encode(inputs[None])[0]
        changes = [vector.new_zeros(0, len(vector))]
        n_rows = max(1, _CHUNK_TOKENS // len(inputs))
        for begin in range(0, len(positions), n_rows):
            chunk = positions[begin : begin + n_rows]
            at = torch.tensor(chunk, device=inputs.device) + 1
            rows = inputs.repeat(len(chunk), 1, 1)
            tangents = torch.zeros_like(rows)  # row k: the vector of word k only
            tangents[torch.arange(len(chunk), device=at.device), at] = inputs[at]
            changes.append(torch.func.jvp(encode, (rows,), (tangents,))[1])
        return _TargetChanges(vector.double().cpu().numpy(), positions, torch.cat(changes).double().cpu().numpy())

    def _look_up(self, tokens: Sequence[str]) -> Tensor:
        """Return the token vectors of a sentence and its boundaries, (time, width)."""
        numbers = {token: row for row, token in enumerate(dict.fromkeys(tokens), start=2)}
        table = torch.cat([self._engine.boundary_vectors(), self._engine.token_vectors(list(numbers))])
        rows = torch.tensor([0, *(numbers[token] for token in tokens), 1], device=table.device)
        return table.to(self._start.hidden.dtype)[rows].clone()

    def _select(self, states: Tensor) -> Tensor:
        """Compute vectors (row, time, width) from all layers (row, layer, time, width)."""
        layers = self._layers
        if isinstance(layers, LayerMix):
            mask = torch.ones(states.size(0), states.size(2), dtype=torch.bool, device=states.device)
            was_training = layers.training
            layers.eval()  # without dropout
            try:
                return layers(Layers(states, mask, has_boundaries=False))
            finally:
                layers.train(was_training)
        if layers == "average":
            return states.mean(dim=1)
        if layers == "concat":
            return states.transpose(1, 2).flatten(start_dim=2)
        return states[:, -1 if layers == "top" else int(layers)]
