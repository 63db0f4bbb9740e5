"""``Service``: the loaded models and indexes, and the answer to each kind of request.

The methods of ``LoadedModel`` and ``LoadedIndex`` run in a thread of the scheduler. They call the library and return
JSON values. ``Service`` is immutable: reloading builds a new one, and requests in progress keep the old one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from elmo.embed.comparison import compare
from elmo.embed.elmo import Elmo, as_tokens
from elmo.embed.encoding import Encoding
from elmo.embed.find import find_word
from elmo.errors import ConfigError, DataError, ElmoError
from elmo.model.mix import LayerMix
from elmo.serve.options import ServeOptions
from elmo.serve.scheduler import EncodeKey
from elmo.serve.schemas import RequestError
from elmo.text.tokenizers import Tokens

if TYPE_CHECKING:
    from elmo.lexicon.index import Index
    from elmo.lexicon.senses import SubstituteNames
    from elmo.lexicon.substitutes import Substituter
    from elmo.predict.expectations import Expectations
    from elmo.predict.scores import Scorer
    from elmo.serve.explore import PeriodsJob

logger = logging.getLogger(__name__)

Vectors = NDArray[np.floating[Any]]
_MAX_PREPARED = 8  # number of prepared Substituters and Scorers that a model keeps
_WARM_UP = "The quick brown fox jumps over the lazy dog near the bank of the river , and then it rests ."


# --- Models -----------------------------------------------------------------------------------------


class LoadedModel:
    """A model that answers requests."""

    def __init__(self, name: str, elmo: Elmo) -> None:
        self.name = name
        self.elmo = elmo
        self.serial = _serial_copy(elmo)
        self.created = int(time.time())
        self._prepared: dict[Any, Any] = {}
        self._lock = threading.Lock()

    @cached_property
    def second(self) -> Elmo:
        """The same weights with other threads, so that a long call does not stop the batches of the first."""
        return Elmo(self.elmo.pretrained, tokenizer=self.elmo.tokenizer, dtype=self.elmo.precision)

    def describe(self, max_tokens: int) -> dict[str, Any]:
        """Return the entry of this model in the list of models."""
        elmo = self.elmo
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "elmo",
            "format": elmo.pretrained.format,
            "n_layers": elmo.n_layers,
            "width": elmo.width,
            "tokenizer": getattr(elmo.tokenizer, "name", "custom"),
            "vocabulary": None if elmo.softmax is None or elmo.vocab is None else len(elmo.vocab),
            "has_warm_state": elmo.pretrained.warm is not None,
            "precision": elmo.precision,
            "max_tokens": max_tokens,
        }

    def tokenize(self, sentence: str | list[str], number: int = 0) -> Tokens:
        """Return the tokens of a sentence."""
        return as_tokens(sentence, self.elmo.tokenizer, subject=f"input {number}")

    def encode_key(self, layers: Any, start: str, dtype: str, *, is_second: bool = False) -> EncodeKey:
        """Return the key under which sentences with these options form batches; ``is_second`` uses ``second``."""
        choice: Any = layers
        identity: Any = layers
        n_layers = self.elmo.n_layers
        if isinstance(layers, dict):
            weights, gamma = tuple(map(float, layers["weights"])), float(layers.get("gamma", 1.0))
            if len(weights) != n_layers:
                raise RequestError(
                    f"layers.weights must have {n_layers} values, one per layer; found {len(weights)}",
                    param="layers.weights",
                )
            choice, identity = LayerMix(n_layers, weights=weights, gamma=gamma, is_fixed=True), (weights, gamma)
        elif not isinstance(layers, str):
            numbers = (layers,) if isinstance(layers, int) else tuple(layers)
            if max(numbers) >= n_layers:
                raise RequestError(f"layers must be in 0..{n_layers - 1}; found {max(numbers)}", param="layers")
            choice = identity = layers if isinstance(layers, int) else numbers
        if start == "warm" and self.elmo.pretrained.warm is None:
            raise RequestError(f"start must be zero: model {self.name} has no warm state", param="start")
        options = {"start": start, "dtype": dtype}
        encode = partial(_encode, self.second if is_second else self.elmo, choice, options)
        serially = partial(_encode, self.serial, choice, options)
        return EncodeKey((self.name, id(self), identity, start, dtype), encode, serially)

    def vector_size(self, layers: Any) -> int:
        """Return how many numbers a token has in the reply."""
        n_layers, width = self.elmo.n_layers, self.elmo.width
        if isinstance(layers, list):
            return len(layers) * width
        return n_layers * width if layers in ("all", "concat") else width

    def compare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer /v1/similarity."""
        sentences, word = request["sentences"], request["word"]
        word = word or _marked_word(sentences)
        comparison = compare(self.second, word, sentences, layers=request["layers"], start=request["start"])
        return {"object": "similarity", "model": self.name, **comparison.to_json()}

    def substitutes(self, request: dict[str, Any], sentences: Sequence[Any]) -> list[Any]:
        """Answer /v1/substitutes: a result or an error for each sentence."""
        from elmo.lexicon.usages import find_marked_usage

        substituter = self._substituter(request["combine"], request["start"])
        usages = [
            _attempt(find_marked_usage, self.elmo.tokenizer, sentence, request["word"], number=number)
            for number, sentence in enumerate(sentences, start=1)
        ]
        good = [usage for usage in usages if not isinstance(usage, ElmoError)]
        candidates = request["candidates"]
        if candidates is None:
            results = list(substituter.substitutes(good, n=request["n"]))
        else:
            results = substituter.rank(good, [candidates] * len(good))
        answers = iter([result.to_json() for result in results])
        return [usage if isinstance(usage, ElmoError) else next(answers) for usage in usages]

    def score(self, request: dict[str, Any], sentences: Sequence[Tokens]) -> list[dict[str, Any]]:
        """Answer /v1/score: the log-probabilities of each sentence."""
        from elmo.text.reader import Sentence

        scorer = self._scorer(request["start"])
        items = [Sentence(tokens, "", number, 0) for number, tokens in enumerate(sentences, start=1)]
        answers = []
        for (scores,) in scorer.score(items, blank_lines=True):
            forward, backward = (None if x is None else x.astype(np.float64) for x in (scores.forward, scores.backward))
            answers.append(
                {
                    "forward": forward,
                    "backward": backward,
                    "is_unknown": [bool(value) for value in scores.is_unknown],
                    "perplexity": scores.perplexity,
                }
            )
        return answers

    def explain(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer /v1/explain."""
        from elmo.lexicon.explain import explain

        explanation = explain(
            self.second, request["input"], word=request["word"], other=request["other"], method=request["method"],
            layers=request["layers"],
        )  # fmt: skip
        return {"object": "explanation", "model": self.name, **explanation.to_json()}

    def expect(self, sentences: Sequence[Tokens], n: int) -> list[Expectations]:
        """Answer /v1/expectations."""
        from elmo.predict.expectations import ExpectationModel

        return self._prepare("expectations", lambda: ExpectationModel(self.second)).predict(sentences, n=n)

    def name_of(self) -> SubstituteNames | None:
        """Return the function that names senses by substitutes; None if the model has no softmax."""
        from elmo.lexicon.senses import name_by_substitutes

        return self._prepare("names", lambda: name_by_substitutes(self.second))

    def _substituter(self, combine: Any, start: Any) -> Substituter:
        from elmo.lexicon.substitutes import Substituter

        return self._prepare(
            ("substitutes", combine, start), lambda: Substituter(self.second, combine=combine, start=start)
        )

    def _scorer(self, start: Any) -> Scorer:
        from elmo.predict.scores import Scorer

        return self._prepare(("scores", start), lambda: Scorer(self.second, starts=[start]))

    def _prepare(self, key: Any, build: Callable[[], Any]) -> Any:
        """Return a prepared object; build it on first use, and drop the oldest if there are too many."""
        with self._lock:
            if key not in self._prepared:
                if len(self._prepared) >= _MAX_PREPARED:
                    self._prepared.pop(next(iter(self._prepared)))
                self._prepared[key] = build()
            return self._prepared[key]


def _serial_copy(elmo: Elmo) -> Elmo:
    """Return a model with the same weights in memory, which computes in the thread of the caller.

    Must be called in the thread that has computed with ``elmo`` first, which decides about its threads.
    """
    import torch

    n_threads = torch.get_num_threads()
    serial = elmo.snapshot()
    torch.set_num_threads(1)
    try:
        serial.encode(_WARM_UP)
    finally:
        torch.set_num_threads(n_threads)
    return serial


def _encode(elmo: Elmo, layers: Any, options: dict[str, Any], sentences: Sequence[Tokens]) -> list[Encoding]:
    """Encode sentences; ``layers`` may be a tuple of layer numbers."""
    if not isinstance(layers, tuple):
        return elmo.encode(sentences, layers=layers, **options)
    numbers = list(layers)
    return [
        replace(encoding, vectors=np.ascontiguousarray(cast("Vectors", encoding.vectors)[numbers]))
        for encoding in elmo.encode(sentences, layers="all", **options)
    ]


def _marked_word(sentences: Sequence[Any]) -> str:
    from elmo.embed.find import parse_mark

    for number, sentence in enumerate(sentences, start=1):
        if isinstance(sentence, str):
            text, span = parse_mark(sentence, number)
            if span is not None:
                return text[slice(*span)]
    raise RequestError("word is required if no sentence has a mark like [[this]]", param="word")


def _attempt(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return the result of a function, or the ``ElmoError`` that it raised."""
    try:
        return function(*arguments, **options)
    except ElmoError as error:
        return error


def short_place(place: str) -> str:
    """Return the place of a sentence without the folders of its file, which are not for clients."""
    return place.replace("\\", "/").rpartition("/")[2]


def find_targets(encoding: Encoding, targets: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the span of tokens of each target: a word, a phrase or a span of characters (code points)."""
    spans = []
    for target in targets:
        if isinstance(target, str):
            spans.append(_find_word_tokens(encoding, target))
        else:
            begin, end = target
            inside = [k for k, (a, b) in enumerate(encoding.offsets or ()) if a < end and b > begin]
            if not inside:
                raise DataError(f"targets: no token overlaps characters {begin}..{end}")
            spans.append((inside[0], inside[-1] + 1))
    return spans


def _find_word_tokens(encoding: Encoding, word: str) -> tuple[int, int]:
    if encoding.text is not None and encoding.offsets is not None:
        span = find_word(word, encoding.text, encoding.offsets)
        inside = [k for k, (a, b) in enumerate(encoding.offsets) if span and a < span[1] and b > span[0]]
    else:
        parts = tuple(word.split())
        starts = range(len(encoding.tokens) - len(parts) + 1) if parts else ()
        first = next((k for k in starts if encoding.tokens[k : k + len(parts)] == parts), None)
        inside = [] if first is None else list(range(first, first + len(parts)))
    if not inside:
        raise DataError(f"targets: cannot find {word[:40]!r} in the sentence")
    return inside[0], inside[-1] + 1


# --- Indexes ----------------------------------------------------------------------------------------


class LoadedIndex:
    """An index of usages, with the model that built it."""

    def __init__(self, name: str, index: Index, model: LoadedModel) -> None:
        self.name = name
        self.index = index
        self.model = model

    def describe(self) -> dict[str, Any]:
        """Return the entry of this index in the list of models and indexes."""
        index = self.index
        layers = index.layers if isinstance(index.layers, int | str) else str(index.layers)
        return {
            "id": self.name,
            "model": self.model.name,
            "usages": len(index),
            "words": index.n_words,
            "layers": layers,
            "examples": self._examples,
        }

    @cached_property
    def _examples(self) -> list[str]:
        """Words to start with."""
        from elmo.lexicon.concordance import example_words

        return example_words(self.index)

    def neighbors(self, request: dict[str, Any], sentences: Sequence[Any]) -> list[Any]:
        """Answer /v1/neighbors: a result or an error for each sentence."""
        from elmo.lexicon.neighbors import find_neighbors

        def find(sentence: Any) -> dict[str, Any]:
            (result,) = find_neighbors(
                self.model.second, self.index, [sentence], word=request["word"], k=request["k"], among=request["among"]
            )
            value = result.to_json()
            for neighbor, item in zip(value["neighbors"], result.items, strict=True):
                neighbor["number"] = item.number
                neighbor["place"] = short_place(neighbor["place"])
            return value

        return [_attempt(find, sentence) for sentence in sentences]

    def concordance(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer /v1/concordance."""
        from elmo.lexicon.concordance import build_concordance

        concordance = build_concordance(
            self.index, request["word"], elmo=self.model.second, limit=request["limit"], sort=request["sort"],
            to=request["to"], seed=request["seed"],
        )  # fmt: skip
        value = concordance.to_json()
        for line in value["lines"]:
            line["place"] = short_place(line["place"])
        return {"object": "concordance", "index": self.name, **value}

    def senses(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer /v1/senses."""
        from elmo.lexicon.concordance import sample_usages
        from elmo.lexicon.senses import find_senses

        numbers, usages = sample_usages(self.index, request["word"], limit=request["limit"], seed=request["seed"])
        senses = find_senses(
            usages, word=request["word"], method=request["method"], n_clusters=request["n_clusters"],
            n_examples=request["n_examples"], name_of=self.model.name_of(), seed=request["seed"],
        )  # fmt: skip
        return {
            "object": "senses", "index": self.name, **senses.to_json(), "labels": senses.labels.tolist(),
            "numbers": numbers.tolist(),
        }  # fmt: skip


# --- Service ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Service:
    """Everything that is loaded: models and indexes by name; the first of each is the default."""

    models: dict[str, LoadedModel]
    indexes: dict[str, LoadedIndex]
    options: ServeOptions
    periods: PeriodsJob | None = None

    @classmethod
    def load(cls, options: ServeOptions) -> Service:
        """Load the models and indexes, and encode one sentence with each model."""
        models: dict[str, LoadedModel] = {}
        for source in options.models:
            name = _free_name(source, models)
            elmo = Elmo.from_pretrained(source, dtype=options.dtype)
            elmo.encode(_WARM_UP)
            models[name] = LoadedModel(name, elmo)
        periods = None
        if options.corpora:
            from elmo.serve.explore import PeriodsJob

            periods = PeriodsJob(dict(options.corpora), next(iter(models.values())))
        return cls(models, _load_indexes(options, models), options, periods)

    def measure_rate(self) -> float:
        """Return the tokens per second of the slowest model in a batch."""
        sentences = [_WARM_UP] * 32
        rates = []
        for model in self.models.values():
            begin = time.perf_counter()
            encodings = model.elmo.encode(sentences)
            rates.append(sum(map(len, encodings)) / (time.perf_counter() - begin))
        return min(rates)

    def model(self, name: str | None) -> LoadedModel:
        """Return a model by name; raise ``RequestError`` if there is none."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise RequestError(
                f"unknown model {name[:60]!r}; this server has: {', '.join(self.models)}", status=404,
                code="model_not_found", param="model",
            )  # fmt: skip
        return self.models[name]

    def index(self, name: str | None) -> LoadedIndex:
        """Return an index by name; raise ``RequestError`` if there is none."""
        if not self.indexes:
            raise RequestError(
                "this server has no index; start it with: elmo serve --index FOLDER", status=404,
                code="index_not_found", param="index",
            )  # fmt: skip
        if name is None:
            return next(iter(self.indexes.values()))
        if name not in self.indexes:
            raise RequestError(
                f"unknown index {name[:60]!r}; this server has: {', '.join(self.indexes)}", status=404,
                code="index_not_found", param="index",
            )  # fmt: skip
        return self.indexes[name]

    def describe(self) -> dict[str, Any]:
        """Answer /v1/models."""
        return {
            "object": "list",
            "data": [model.describe(self.options.max_tokens) for model in self.models.values()],
            "indexes": [index.describe() for index in self.indexes.values()],
            "periods": None if self.periods is None else list(self.periods.names),
        }


def _free_name(source: str, names: dict[str, Any]) -> str:
    """Return the last part of a path as a name; add a number if the name is used already."""
    name = source.rstrip("/\\").replace("\\", "/").rpartition("/")[2]
    if name in ("", ".", ".."):
        name = Path(source).resolve().name or "model"
    number = 2
    unique = name
    while unique in names:
        unique, number = f"{name}-{number}", number + 1
    return unique


def _load_indexes(options: ServeOptions, models: dict[str, LoadedModel]) -> dict[str, LoadedIndex]:
    from elmo.lexicon.index import Index

    indexes: dict[str, LoadedIndex] = {}
    for folder in options.indexes:
        index = Index(folder)
        errors = []
        for model in models.values():
            try:
                index.check_model(model.elmo)
            except ConfigError as error:
                errors.append(error)
                continue
            name = _free_name(str(folder), indexes)
            indexes[name] = LoadedIndex(name, index, model)
            break
        else:
            raise errors[0]
    return indexes
