"""Predict substitutes for a word in context, using both language models (lexical substitution).

The forward language model reads the text before the word, the backward one the text after it; neither reads
the word itself. P_f and P_b are their probabilities of a word w in this position, P_0 is the prior probability
of w, and v_w is its vector (see ``LemmaTable``). The score of w is computed in one of these ways:

``forward``   P_f
``backward``  P_b
``mean``      (P_f + P_b) / 2
``product``   P_f · P_b
``bcomb``     P_f · P_b / P_0^β: common words count less (Arefyev et al. 2019)
``inject``    √(P_f · P_b) / P_0^β · exp(cos(v_w, v_target) / temperature): adds the similarity to the
              target word, which the language models have not read (+embs, Arefyev et al. 2020)

The scores are normalized to probabilities and summed over the forms of each lemma. ``ContextPredictor``
computes P_f and P_b, ``LemmaTable`` groups the vocabulary by lemma and holds P_0 and v_w, and ``Lemmatizer`` maps
words to lemmas. ``embed_substitutes`` computes vectors of usages from their substitutes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from elmo.embed.finite import check_finite
from elmo.embed.sense import compute_log_priors
from elmo.embed.start import warm_start
from elmo.errors import ConfigError, DataError, MissingExtraError
from elmo.lexicon.usages import Usage, Usages, Vectors, entry_key, find_marked_usage, is_word, unit_rows
from elmo.predict.predictor import BOS, EOS, FIRST_WORD, Predictor, trained_directions
from elmo.text.languages import LANGUAGES

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

logger = logging.getLogger(__name__)

Combine = Literal["inject", "bcomb", "product", "mean", "forward", "backward"]
Start = Literal["zero", "warm"]
Floats = NDArray[np.floating[Any]]
BETA, TEMPERATURE = 1.0, 0.05  # chosen by grid search on half of the SWORDS dev set; see docs/substitutes.md
_WORD_SEPARATOR = re.compile(r"[\s\-_]+")  # between the words of a phrase


@dataclass(frozen=True)
class Substitute:
    """A substitute for a word in context.

    Attributes:
        word: The form of the lemma that fits best.
        lemma: The lemma.
        probability: Probability of the lemma, summed over its forms.
        forward: Probability of ``word`` in the forward language model; None if the model has no forward direction or
            the vocabulary does not have the word.
        backward: The same for the backward language model.
        similarity: Cosine of the vectors of ``word`` and the target word; None if the vocabulary lacks one of them.
        candidate: The candidate as spelled by the caller; None if no candidates were passed.
        is_known: Whether the vocabulary has the candidate, or at least one of its words.
    """

    word: str
    lemma: str
    probability: float
    forward: float | None
    backward: float | None
    similarity: float | None
    candidate: str | None = None
    is_known: bool = True


@dataclass(frozen=True)
class Substitutes:
    """A usage and its substitutes, most probable first.

    Attributes:
        usage: The usage.
        items: Its substitutes, the most probable first.
    """

    usage: Usage
    items: tuple[Substitute, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the result as a dictionary of JSON values."""
        before, word, after = self.usage.parts()
        substitutes = [asdict(item) for item in self.items]
        return {"before": before, "word": word, "after": after, "substitutes": substitutes}


def find_substitutes(
    elmo: Elmo,
    sentences: Sequence[str | Sequence[str]],
    *,
    word: str | None = None,
    n: int = 10,
    candidates: Sequence[str] | None = None,
    combine: Combine = "inject",
    beta: float = BETA,
    temperature: float = TEMPERATURE,
    language: str | None = None,
    start: Start = "zero",
) -> list[Substitutes]:
    """Predict substitutes for the marked word of each sentence, or rank candidates.

    Args:
        elmo: A model with a softmax and a vocabulary.
        sentences: Sentences in which the word is marked like ``[[this]]``.
        word: The word to replace in sentences without a mark.
        n: Number of substitutes.
        candidates: Rank these words or phrases instead of the whole vocabulary.
        combine: How to combine the language models: product or mean of both, or one only; bcomb divides the product by
            the frequency of the word; inject also uses its similarity to the target word.
        beta: Exponent of the prior in bcomb and inject.
        temperature: Temperature of the similarity in inject.
        language: Language code for lemmatization, such as en or de. Default: the language of the tokenizer.
        start: LSTM state at the start of a sentence; warm requires a model prepared with 'elmo warm'.

    Example:
        >>> (result,) = find_substitutes(elmo, ["The [[bank]] lent her money."], n=5)
        >>> len(result.items)
        5
        >>> (ranked,) = find_substitutes(elmo, ["We had a [[party]]."], candidates=["celebration", "committee"])
        >>> sorted(item.word for item in ranked.items)
        ['celebration', 'committee']
    """
    usages = [
        find_marked_usage(elmo.tokenizer, sentence, word, number=number)
        for number, sentence in enumerate(sentences, start=1)
    ]
    substituter = Substituter(elmo, combine=combine, beta=beta, temperature=temperature, language=language, start=start)
    if candidates is None:
        return list(substituter.substitutes(usages, n=n))
    return substituter.rank(usages, [candidates] * len(usages))


class Substituter:
    """A model prepared to predict substitutes for many usages.

    Args:
        elmo: A model with a softmax and a vocabulary.
        combine: How to combine the two language models.
        beta: Exponent of the prior in bcomb and inject.
        temperature: Temperature of the similarity in inject.
        language: Language code for lemmatization, such as en; by default that of the tokenizer.
        start: LSTM state at the start of a sentence; warm requires a model prepared with 'elmo warm'.

    Example:
        >>> substituter = Substituter(elmo, combine="product")
        >>> usage = find_marked_usage(elmo.tokenizer, "The [[bank]] lent her money.")
        >>> (result,) = substituter.substitutes([usage], n=3)
        >>> len(result.items)
        3
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
            raise ConfigError(f"combine must be one of {', '.join(get_args(Combine))}; found {combine!r:.40}")
        if not (np.isfinite(beta) and beta >= 0 and np.isfinite(temperature) and temperature > 0):
            raise ConfigError(f"beta must be at least 0 and temperature above 0; found {beta} and {temperature}")
        self._predictor = ContextPredictor(elmo, start=start)
        if combine in ("forward", "backward") and self._predictor.directions not in (combine, "both"):
            raise ConfigError(
                f"cannot use combine={combine!r}: this model only has the {self._predictor.directions} direction"
            )
        self.combine, self.beta, self.temperature = combine, beta, temperature
        self._warned_words: set[str] = set()  # words that are not in the vocabulary
        self._warned_candidates: set[str] = set()
        self.table = LemmaTable(elmo, Lemmatizer(language or tokenizer_language(elmo)), self._predictor)

    def substitutes(self, usages: Iterable[Usage], *, n: int = 10) -> Iterator[Substitutes]:
        """Yield the ``n`` best lemmas for each usage.

        Forms of the target word are left out, and so are punctuation and numbers unless the target is of that kind.
        """
        if n < 1:
            raise ConfigError(f"n must be at least 1; found {n}")
        for prediction in self._predictor.predict(usages):
            context = self._score(prediction)
            scores = np.where(context.is_allowed, context.scores, -np.inf)
            by_lemma = self.table.sum_forms(scores)
            total = np.logaddexp.reduce(by_lemma)
            items = [
                self._substitute(context, int(k), scores, float(np.exp(by_lemma[k] - total)))
                for k in np.argsort(-by_lemma, kind="stable")[:n]
                if np.isfinite(by_lemma[k])
            ]
            yield Substitutes(prediction.usage, tuple(items))

    def rank(self, usages: Sequence[Usage], candidates: Sequence[Sequence[str]]) -> list[Substitutes]:
        """Rank the candidates of each usage; their probabilities sum to 1.

        A candidate can be any form of a lemma; the probabilities of all forms are summed. A phrase that is not
        in the vocabulary has the mean score of its words. Candidates without any known word come last.
        """
        if len(usages) != len(candidates):
            raise DataError(
                f"the number of candidate lists must be {len(usages)}, one per usage; found {len(candidates)}"
            )
        for words in candidates:
            _check_candidates(words)
        return [
            self._rank(self._score(prediction), words)
            for prediction, words in zip(self._predictor.predict(usages), candidates, strict=True)
        ]

    def _score(self, prediction: ContextPrediction) -> _ScoredContext:
        usage = prediction.usage
        tokens = usage.sentence.tokens[usage.begin : usage.end]
        similarity = self.table.similarities(tokens)
        if similarity is None and self.combine == "inject" and usage.word not in self._warned_words:
            self._warned_words.add(usage.word)
            logger.warning("%s: %r is not in the vocabulary; ranking by context only",
                           usage.place or "usage", usage.word[:40])  # fmt: skip
        scores = self._combine(prediction, similarity)
        return _ScoredContext(prediction, similarity, scores, self.table.is_allowed(tokens))

    def _combine(self, prediction: ContextPrediction, similarity: Floats | None) -> Floats:
        """Combine the predictions into the log-probability of each word (row,), up to a constant."""
        forward, backward = prediction.forward, prediction.backward
        both = [x.astype(np.float64) for x in (forward, backward) if x is not None]
        if self.combine == "forward" and forward is not None:
            return forward.astype(np.float64)
        if self.combine == "backward" and backward is not None:
            return backward.astype(np.float64)
        if self.combine == "mean":
            return np.logaddexp.reduce(both, axis=0)
        if self.combine == "product":
            return np.sum(both, axis=0)
        if self.combine == "bcomb":
            return np.sum(both, axis=0) - self.beta * self.table.log_prior
        injected = 0.0 if similarity is None else similarity / self.temperature
        return np.mean(both, axis=0) - self.beta * self.table.log_prior + injected

    def _substitute(self, context: _ScoredContext, lemma: int, scores: Floats, probability: float) -> Substitute:
        rows = self.table.forms(lemma)
        row = int(rows[np.argmax(scores[rows])])
        forward, backward = (
            None if x is None else float(np.exp(x[row]))
            for x in (context.prediction.forward, context.prediction.backward)
        )
        similarity = None if context.similarity is None else float(context.similarity[row])
        return Substitute(self.table.words[row], self.table.lemmas[lemma], probability, forward, backward, similarity)

    def _rank(self, context: _ScoredContext, candidates: Sequence[str]) -> Substitutes:
        by_lemma = self.table.sum_forms(context.scores)
        scores = np.full(len(candidates), -np.inf)
        lemmas = [self.table.find(candidate.strip()) for candidate in candidates]
        for k, (lemma, candidate) in enumerate(zip(lemmas, candidates, strict=True)):
            parts = [lemma] if lemma is not None else self._find_parts(candidate)
            if parts:
                scores[k] = by_lemma[parts].mean()
        is_known = np.isfinite(scores)
        unknown = [candidate for candidate, known in zip(candidates, is_known, strict=True) if not known]
        if not self._warned_candidates.issuperset(unknown):
            self._warned_candidates.update(unknown)
            logger.warning("%s: ranking these candidates last, because they are not in the vocabulary: %s",
                           context.prediction.usage.place or "usage", _list_words(unknown))  # fmt: skip
        total = np.logaddexp.reduce(scores) if is_known.any() else 0.0
        items: list[Substitute] = []
        for k in map(int, np.argsort(-scores, kind="stable")):
            lemma, candidate, share = lemmas[k], candidates[k], float(np.exp(scores[k] - total))
            if lemma is not None:
                item = self._substitute(context, lemma, context.scores, share)
                items.append(replace(item, candidate=candidate))
            else:
                name = " ".join(map(self.table.lemmatize, candidate.split()))
                items.append(Substitute(candidate, name, share, None, None, None, candidate, bool(is_known[k])))
        return Substitutes(context.prediction.usage, tuple(items))

    def _find_parts(self, phrase: str) -> list[int]:
        """Return the lemma numbers of those words of a phrase that are in the vocabulary."""
        lemmas = [self.table.find(part) for part in _WORD_SEPARATOR.split(phrase) if part]
        return [lemma for lemma in lemmas if lemma is not None]


@dataclass(frozen=True, eq=False)
class _ScoredContext:
    """Scores of all words of the vocabulary (row,) in the position of a usage."""

    prediction: ContextPrediction
    similarity: Floats | None  # cosine with the target word
    scores: Floats  # log-probability, up to a constant
    is_allowed: NDArray[np.bool_]  # whether the word can be a substitute


def _check_candidates(candidates: Any) -> None:
    if isinstance(candidates, str):
        raise DataError(f"candidates must be a list of words; found the string {candidates[:40]!r}")
    for k, candidate in enumerate(candidates, start=1):
        if not isinstance(candidate, str) or not candidate.strip():
            raise DataError(f"candidate {k}: expected a word, found {candidate!r:.40}")


def _list_words(words: Sequence[str]) -> str:
    rest = f" and {len(words) - 5} more" if len(words) > 5 else ""
    return ", ".join(repr(word[:40]) for word in words[:5]) + rest


# --- Predictions of the language models ----------------------------------------------------------------

_MAX_USAGES = 128  # maximum number of usages to read in parallel
_MAX_LOGITS = 1 << 24  # maximum number of logits in memory at once


@dataclass(frozen=True, eq=False)
class ContextPrediction:
    """Log-probabilities of all words of the vocabulary in the position of a usage, given its context.

    Attributes:
        usage: The usage.
        forward: Log-probabilities given the text before the usage (word,); None if the model has only the
            backward direction.
        backward: Log-probabilities given the text after the usage (word,); None if the model has only the
            forward direction.
    """

    usage: Usage
    forward: Floats | None
    backward: Floats | None


class ContextPredictor:
    """Predicts the word in the position of a usage from the text before it and the text after it."""

    def __init__(self, elmo: Elmo, *, start: Start = "zero") -> None:
        if start not in ("zero", "warm"):
            raise ConfigError(f"start must be zero or warm; found {start!r:.40}")
        self._predictor = Predictor(elmo)
        self.vocab, self.softmax = self._predictor.vocab, self._predictor.softmax
        self.directions = trained_directions(elmo)
        if self.directions != "both":
            logger.warning("this model has only the %s direction; using one side of the context", self.directions)
        self._is_warm, self._warm = start == "warm", elmo.pretrained.warm
        if self._is_warm:
            warm_start(self._warm, elmo.bilm.zero_state(1))  # raises StateError if the model has none
        self._n_usages = max(1, min(_MAX_USAGES, _MAX_LOGITS // len(self.vocab)))

    def predict(self, usages: Iterable[Usage]) -> Iterator[ContextPrediction]:
        """Yield the prediction for each usage; many usages are read in parallel."""
        usages = iter(usages)
        predictor = self._predictor.freeze()  # for all batches
        start = warm_start(self._warm, predictor.zero) if self._is_warm else predictor.zero
        while batch := list(islice(usages, self._n_usages)):
            numbers: dict[str, int] = {}  # number of each distinct token

            def encode(tokens: Sequence[str], numbers: dict[str, int] = numbers) -> list[int]:
                return [numbers.setdefault(token, len(numbers)) + FIRST_WORD for token in tokens]

            before = [[BOS, *encode(usage.sentence.tokens[: usage.begin])] for usage in batch]
            after = [[EOS, *encode(usage.sentence.tokens[usage.end :][::-1])] for usage in batch]
            words = predictor.words(list(numbers))
            predictions: list[Any] = []
            for direction, (name, rows) in enumerate((("forward", before), ("backward", after))):
                if self.directions not in ("both", name):
                    predictions.append([None] * len(batch))
                    continue
                ids = [np.array(row, dtype=np.int64) for row in rows]
                n_unread = [usage.end for usage in batch] if direction else None
                logs = predictor.next_words(words, ids, start, direction=direction, n_unread=n_unread)
                predictions.append(logs.cpu().numpy())
            yield from map(ContextPrediction, batch, *predictions)


# --- The vocabulary by lemma ------------------------------------------------------------------------

_WORD, _NUMBER, _PUNCTUATION, _SPECIAL = range(4)  # kinds of tokens
_BATCH_ROWS = 1 << 14  # number of softmax rows to copy at once
_RARE_LOWER_CASE = 10  # a word is a name if its rank in lower case is at least this many times larger


class LemmaTable:
    """The vocabulary of a model, grouped by lemma; each word is a row, and a lemma has one or more rows.

    The similarity of two words is the cosine of their vectors. The vector of a word is the mean of two unit
    vectors: its row in the softmax, which reflects the grammatical form, and the mean of the rows of its lemma,
    which reflects the meaning.

    ``log_prior`` (row,) is the log-probability of each word by Zipf's law; see ``compute_log_priors``.
    """

    def __init__(self, elmo: Elmo, lemmatizer: Lemmatizer, predictor: ContextPredictor) -> None:
        vocab = predictor.vocab
        self.words = vocab.words
        key, alphabet = entry_key(elmo), elmo.indexer.alphabet
        self.lemmatize: Callable[[str], str] = lambda word: lemmatizer(key(word))
        self._normalize: Callable[[str], str] = alphabet.lookup_form if alphabet else str
        names: dict[str, int] = {}
        self._lemma_of_row = np.array([names.setdefault(self.lemmatize(word), len(names)) for word in self.words])
        self.lemmas = tuple(names)
        self._row_of_word = {word: row for row, word in enumerate(self.words)}
        self._order = np.argsort(self._lemma_of_row, kind="stable")
        self._begins = np.searchsorted(self._lemma_of_row[self._order], np.arange(len(names) + 1))
        special = {vocab.bos, vocab.eos, vocab.unknown}
        self._kinds = np.array([_SPECIAL if word in special else _token_kind(word) for word in self.words])
        is_word_lemma = np.zeros(len(names), dtype=bool)  # False for sentence boundaries
        is_word_lemma[self._lemma_of_row[self._kinds != _SPECIAL]] = True
        self._lemma_numbers = {name: k for name, k in names.items() if is_word_lemma[k]}
        self.log_prior = compute_log_priors(len(self.words))
        self._weight = predictor.softmax.weight.detach().float().cpu().numpy()  # (row, width)
        with np.errstate(over="ignore"):
            self._norms = np.maximum(np.linalg.norm(self._weight, axis=1), 1e-9)  # (row,)
        if not np.isfinite(self._norms).all():
            check_finite(self._norms, "the lengths of the softmax vectors")
        self._lemma_vectors = self._compute_lemma_vectors()  # (lemma, width)
        self._sum_norms = np.empty_like(self._norms)  # length of (unit row + lemma vector)
        for part, rows in self._unit_forms():
            sums = rows + self._lemma_vectors[self._lemma_of_row[part]]
            self._sum_norms[part] = np.maximum(np.linalg.norm(sums, axis=1), 1e-9)

    def _compute_lemma_vectors(self) -> Vectors:
        sums = torch.zeros(len(self.lemmas), self._weight.shape[1])
        for part, rows in self._unit_forms():
            sums.index_add_(0, torch.from_numpy(self._lemma_of_row[part]), torch.from_numpy(rows))
        return unit_rows(sums.numpy(), dtype=np.float32)

    def _unit_forms(self) -> Iterator[tuple[slice, Vectors]]:
        """Yield the rows of the softmax, scaled to unit length, some at a time to save memory."""
        for begin in range(0, len(self._weight), _BATCH_ROWS):
            part = slice(begin, begin + _BATCH_ROWS)
            yield part, unit_rows(self._weight[part], norms=self._norms[part], dtype=np.float32)

    def find(self, word: str) -> int | None:
        """Return the number of a word's lemma; None if no form of the lemma is in the vocabulary."""
        return self._lemma_numbers.get(self.lemmatize(word))

    def forms(self, lemma: int) -> NDArray[np.intp]:
        """Return the rows of a lemma."""
        return self._order[self._begins[lemma] : self._begins[lemma + 1]]

    def display_name(self, lemma: str) -> str:
        """Spell a lemma as a name or a German noun if its forms are hardly ever written in lower case."""
        number = self._lemma_numbers.get(lemma)
        if number is None:
            return lemma
        forms = self.forms(number)  # by frequency
        upper, lower = (
            next((int(row) for row in forms if self.words[row][:1].islower() == is_lower), None)
            for is_lower in (False, True)
        )
        if upper is None or not self.words[upper][:1].isupper():
            return lemma
        if lower is not None and lower < _RARE_LOWER_CASE * (upper + 1):
            return lemma
        form = self.words[upper]
        return form if form.lower() == lemma else lemma[:1].upper() + lemma[1:]

    def is_allowed(self, tokens: Sequence[str]) -> NDArray[np.bool_]:
        """Return whether each row (row,) can replace a target: words and tokens of its kind, but not forms of it."""
        is_allowed = self._kinds == _WORD
        for kind in {_token_kind(token) for token in tokens}:
            is_allowed |= self._kinds == kind
        if len(tokens) == 1 and (lemma := self.find(tokens[0])) is not None:
            is_allowed[self.forms(lemma)] = False
        return is_allowed

    def sum_forms(self, scores: Floats) -> Floats:
        """Sum the exponentials of log scores (row,) over the forms of each lemma; return their logs (lemma,)."""
        highest = np.maximum.reduceat(scores[self._order], self._begins[:-1])
        highest = np.where(np.isfinite(highest), highest, 0.0)
        odds = np.exp(scores - highest[self._lemma_of_row])
        with np.errstate(divide="ignore"):
            return np.log(np.bincount(self._lemma_of_row, odds, len(self.lemmas))) + highest

    def similarities(self, tokens: Sequence[str]) -> Floats | None:
        """Return the cosine of each word with a target (row,); None if no token of the target is known."""
        vectors = [vector for token in tokens if (vector := self._vector(token)) is not None]
        if not vectors:
            return None
        (target,) = unit_rows(np.mean(vectors, axis=0)[None], dtype=np.float32)
        form = (self._weight @ target) / self._norms
        lemma = (self._lemma_vectors @ target)[self._lemma_of_row]
        return (form + lemma) / self._sum_norms

    def _vector(self, token: str) -> Vectors | None:
        """Return the vector of a form or, if the form is unknown, of its lemma."""
        row = self._row_of_word.get(self._normalize(token), self._row_of_word.get(token.lower()))
        if row is not None and self._kinds[row] != _SPECIAL:
            vector = self._weight[row] / self._norms[row] + self._lemma_vectors[self._lemma_of_row[row]]
            return vector / self._sum_norms[row]
        lemma = self.find(token)
        return None if lemma is None else self._lemma_vectors[lemma]


def _token_kind(token: str) -> int:
    """Classify a token as a number if it has a digit, as a word if it is spelled with letters, else as punctuation."""
    if token.isalpha():
        return _WORD
    if any(c.isdigit() for c in token):
        return _NUMBER
    return _WORD if is_word(token) else _PUNCTUATION


# --- Lemmas -----------------------------------------------------------------------------------------

UNINFLECTED = frozenset({"zh"})  # languages in which each word has one form
_MAX_CACHED_WORDS = 1 << 18


_LEMMA_CODES = dict.fromkeys(("hr", "sr", "bs"), "hbs") | {"no": "nb"}  # codes of simplemma that differ


class Lemmatizer:
    """Maps the words of a language to their lemmas in lower case, using simplemma; banks becomes bank.

    If simplemma is not installed or does not support the language, the lemma is the word in lower case, and a
    warning is logged. ``has_table`` is whether simplemma is used.
    """

    def __init__(self, language: str | None) -> None:
        code = language.strip().lower().replace("_", "-").split("-")[0] if language else None
        self.language = None if code is None else _LEMMA_CODES.get(code, code)
        is_inflected = self.language not in UNINFLECTED
        problem = _find_problem(self.language) if is_inflected else None
        self.has_table = is_inflected and problem is None
        if problem is not None:
            logger.warning("words are not lemmatized: %s", problem)

    def __call__(self, word: str) -> str:
        """Return the lemma of a word, in lower case."""
        word = word.lower()
        return _lemmatize(word, self.language) if word and self.language and self.has_table else word


def tokenizer_language(elmo: Elmo) -> str | None:
    """Return the language code of a model's tokenizer, or else the language that is stored with the model."""
    name = str(getattr(elmo.tokenizer, "name", ""))  # a function as tokenizer has no name
    if name.startswith("spacy:"):
        return name.removeprefix("spacy:")
    language = name if name == "zh" or name in LANGUAGES else elmo.pretrained.metadata.get("language")
    return None if language is None else str(language)


def _find_problem(language: str | None) -> str | None:
    if language is None:
        return "the language of the tokenizer is unknown; set it with --language"
    try:
        lemmatize = _import_lemmatize()
    except ModuleNotFoundError:
        return "install simplemma with: pip install 'pyelmo[lexicon]'"
    except Exception as error:  # a broken library may raise anything
        return str(MissingExtraError("simplemma", extra="lexicon", problem=f"{type(error).__name__}: {error}"))
    try:
        lemmatize("a", lang=language)
    except ValueError:
        return f"simplemma does not support the language {language[:40]!r}"
    return None


@lru_cache(maxsize=_MAX_CACHED_WORDS)
def _lemmatize(word: str, language: str) -> str:
    return str(_import_lemmatize()(word, lang=language)).lower()


@cache  # an import statement per word takes longer than looking up its lemma
def _import_lemmatize() -> Callable[..., Any]:
    from simplemma import lemmatize  # pyright: ignore[reportMissingImports] -- an extra

    return lemmatize


# --- Substitute vectors -----------------------------------------------------------------------------

_BATCH_USAGES = 64


def embed_substitutes(
    elmo: Elmo, usages: Sequence[Usage], *, start: Start = "zero", on_progress: Callable[[int], None] | None = None
) -> Usages:
    """Represent each usage by the weighted mean vector of the words that fit in its position.

    The vector is Σ_w p_w · v_w with p_w ∝ √(P_f(w) · P_b(w)) / P_0(w), where v_w are unit vectors of the
    softmax. Dividing by the prior P_0 prevents words that fit everywhere from dominating. The layers of the model
    mostly reflect the word itself; these vectors reflect only its context, so that their clusters correspond to
    senses (Amrami and Goldberg 2018, who sample substitutes instead of computing the mean).

    Args:
        elmo: A model with a softmax and a vocabulary.
        usages: Words in their sentences.
        start: LSTM state at the start of a sentence; warm requires a model prepared with 'elmo warm'.
        on_progress: Called with the number of usages that are embedded so far.

    Example:
        >>> sentences = ["We sat on the [[bank]].", "The [[bank]] lent her money.", "Her [[bank]] gave her a loan."]
        >>> usages = [find_marked_usage(elmo.tokenizer, sentence) for sentence in sentences]
        >>> embed_substitutes(elmo, usages).vectors.shape[0]
        3
    """
    predictor = ContextPredictor(elmo, start=start)
    weight = predictor.softmax.weight.detach().float().cpu().numpy()
    word_vectors = unit_rows(weight, dtype=np.float32)  # (word, width)
    log_priors = compute_log_priors(len(weight))
    vocab = predictor.vocab
    special = [vocab.bos_id, vocab.eos_id, *([vocab.id(vocab.unknown)] if vocab.unknown in vocab else [])]
    rows: list[Vectors] = []
    predictions = predictor.predict(usages)
    while batch := list(islice(predictions, _BATCH_USAGES)):
        log_p = [
            np.mean([x for x in (prediction.forward, prediction.backward) if x is not None], axis=0)
            for prediction in batch
        ]
        scores = np.stack(log_p) - log_priors  # (usage, word)
        scores[:, special] = -np.inf
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        rows.append(odds @ word_vectors / odds.sum(axis=1, keepdims=True))
        if on_progress is not None:
            on_progress(sum(map(len, rows)))
    vectors = np.concatenate([np.zeros((0, weight.shape[1]), np.float32), *rows]).astype(np.float32)
    return Usages(tuple(usages), vectors)
