"""What the clients send to the service, and how they read its replies.

Each method of ``Client`` and ``AsyncClient`` is written once, in ``ServiceCalls``, as a *plan*: a generator that yields
groups of requests, receives their checked replies and returns the result. The clients run the plans.

Replies are not trusted: sizes, shapes and types are checked before anything is built from them.
"""

from __future__ import annotations

import binascii
import json
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar, Unpack, cast, overload

import numpy as np

from elmo import errors
from elmo.embed.comparison import Comparison, Use
from elmo.embed.elmo import as_tokens
from elmo.embed.encoding import DTYPES, Encoding, LayerChoice, layer_selector, vector_converter
from elmo.engine.batches import MAX_TOKENS
from elmo.errors import ConfigError, DataError, ElmoError, SentenceTooLongError, ServiceError, ShapeError, StateError
from elmo.formats.similarity import SimilarityRank
from elmo.text.tokenizers import Tokens

if TYPE_CHECKING:
    from elmo.embed.elmo import Sentence
    from elmo.lexicon.substitutes import Combine
    from elmo.model.mix import LayerMix
    from elmo.predict.scores import SentenceScores

Json = dict[str, Any]
T = TypeVar("T")

# Limits of one request. A larger input is sent as several requests.
MAX_INPUTS = 2048
MAX_BODY_BYTES = 4_000_000
MAX_REQUEST_TOKENS = 8192
MAX_VECTOR_BYTES = 1 << 25
MAX_SLOW_INPUTS = 64  # inputs of a request that computes a softmax or searches an index

# Errors that the service passes on by name, so that bad input raises the same error as in this process.
_INPUT_ERRORS = ("ConfigError", "DataError", "EncodingError", "SentenceTooLongError", "ShapeError", "StateError")
_LAYERS = ("average", "top", "all", "concat", "sense")
_NUMBERED_SENTENCE = re.compile(r"(?:sentence|input) \d+")
_FIELD_OF_INPUT = re.compile(r"\.?inputs\[(\d{1,9})\]")
# Errors for the fields of a request; fields that are not listed are options.
_FIELD_ERRORS: dict[str, type[ElmoError]] = {
    **dict.fromkeys(("input", "inputs", "sentences", "word", "candidates", "other", "to"), DataError),
    "start": StateError,  # it was checked before, so the model has no warm state
}


class RemoteEncodeOptions(TypedDict, total=False):
    """The options of ``Client.encode``, for type checkers."""

    layers: LayerChoice | int | LayerMix
    start: Literal["zero", "warm"]
    dtype: str | None
    as_tensor: bool
    show_progress: bool


@dataclass(frozen=True)
class RemoteModel:
    """A model that a service offers.

    Attributes:
        id: The name of the model in requests.
        format: The format of its files.
        n_layers: Number of layers, including the token layer.
        width: Number of values per token in one layer.
        tokenizer: The name of its tokenizer.
        language: The language of its tokenizer; None if it is not known.
        vocabulary: Number of words in the vocabulary of the softmax; None if the model has none.
        precision: The precision of the network, as in ``Elmo.precision``.
        max_tokens: Maximum number of tokens in a request; None if the service does not state it.
    """

    id: str
    n_layers: int
    width: int
    precision: str = "float32"
    format: str | None = None
    tokenizer: str | None = None
    language: str | None = None
    vocabulary: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True)
class Request:
    """A request to the service.

    Attributes:
        path: The route.
        parse: Checks the JSON of the reply and returns the result.
        payload: The JSON of the request; None for a GET request.
        numbers: Numbers of the sentences in the request, for error messages. A request with several sentences can be
            split if it is too large for the service.
    """

    path: str
    parse: Callable[[Any], Any]
    payload: Mapping[str, Any] | None = None
    numbers: range = range(0)

    def encode(self) -> bytes | None:
        """Return the body of the request."""
        if self.payload is None:
            return None
        try:
            return json.dumps(self.payload, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except UnicodeEncodeError as error:
            character = ord(error.object[error.start])
            raise DataError(f"text must be valid Unicode; found a lone surrogate, U+{character:04X}") from error
        except (TypeError, ValueError) as error:
            raise ConfigError(f"options of {self.path} must be JSON values: {error}") from error


@dataclass(frozen=True)
class RequestGroup:
    """Requests that can be sent at the same time."""

    requests: Sequence[Request]
    is_shown: bool = False  # with a progress bar


Plan = Generator[RequestGroup, list[Any], T]


# --- What is sent ----------------------------------------------------------------


class ServiceCalls:
    """The methods of both clients, as plans."""

    def __init__(self, model: str | None) -> None:
        self.model = model
        self.description: RemoteModel | None = None  # of the model; read once

    def models(self) -> Plan[list[RemoteModel]]:
        """List the models of the service."""
        (models,) = yield RequestGroup([Request("/v1/models", _parse_models)])
        return models

    def describe(self) -> Plan[RemoteModel]:
        """Describe the model that this client uses. The description is read once."""
        if self.description is None:
            models = yield from self.models()
            names = [model.id for model in models]
            if self.model is not None and self.model not in names:
                raise ConfigError(
                    f"model must be one of {', '.join(names)[:200]}; found {self.model!r:.40}; "
                    "start the service with this model"
                )
            self.description = models[0 if self.model is None else names.index(self.model)]
        return self.description

    @overload
    def encode(self, sentences: str | Tokens, **options: Unpack[RemoteEncodeOptions]) -> Plan[Encoding]: ...
    @overload
    def encode(self, sentences: Iterable[Sentence], **options: Unpack[RemoteEncodeOptions]) -> Plan[list[Encoding]]: ...

    def encode(
        self,
        sentences: str | Tokens | Iterable[Sentence],
        *,
        layers: LayerChoice | int | LayerMix = "average",
        start: Literal["zero", "warm"] = "zero",
        dtype: str | None = None,
        as_tensor: bool = False,
        show_progress: bool = False,
    ) -> Plan[Encoding | list[Encoding]]:
        """Compute a vector for every token, like ``Elmo.encode``; the vectors have the same bits.

        For a single string, the result is one ``Encoding``; for an iterable, it is a list in the same order.

        Args:
            sentences: A string, or an iterable of strings and lists of tokens. Strings are tokenized by the service.
            layers: "average", "top", "concat", "all" (layer, time, width), "sense", a layer number or a ``LayerMix``.
            start: State at the start of a sentence: "zero" or "warm" (stored with the model).
            dtype: Data type of the returned vectors; "float16" halves the size of the replies. Default: the
                precision of the network. Replies have at most the precision of float32.
            as_tensor: Return tensors instead of NumPy arrays.
            show_progress: Show a progress bar on stderr.
        """
        is_single = isinstance(sentences, str | Tokens)
        items = [_as_sentence(item, index) for index, item in enumerate(_as_list(sentences))]
        model = yield from self.describe()
        wire_layers = _encode_layers(layers, model.n_layers)
        if dtype is not None and (dtype not in DTYPES or (dtype == "bfloat16" and not as_tensor)):
            vector_converter(as_tensor=as_tensor, dtype=dtype)  # raises the same error as Elmo.encode
        _check_start(start)
        vectors = _VectorFormat.choose(wire_layers, model, dtype=dtype, as_tensor=as_tensor)
        payload = {"layers": wire_layers, "start": start, "dtype": vectors.wire_dtype, "encoding": "base64"}
        encodings = yield from self._map(
            "/v1/words", items, payload, partial(_parse_encoding, vectors=vectors),
            n_tokens=min(MAX_REQUEST_TOKENS, MAX_VECTOR_BYTES // vectors.bytes_per_token), is_shown=show_progress,
        )  # fmt: skip
        return encodings[0] if is_single else encodings

    def compare(
        self,
        word: str,
        sentences: Sequence[str | Sequence[str]],
        *,
        layers: LayerChoice | int = "sense",
        start: Literal["zero", "warm"] = "zero",
    ) -> Plan[Comparison]:
        """Compute the cosine similarity of a word in each pair of sentences, like ``elmo.embed.compare``.

        Args:
            word: A word or a phrase.
            sentences: Two or more sentences, each a string, in which the word can be marked like ``[[this]]``, or a
                list of tokens.
            layers: As in ``encode``; "all" compares each layer and the average of all layers.
            start: As in ``encode``.
        """
        if not word.strip():
            raise DataError("the word to compare must not be empty")
        n = 1 if isinstance(sentences, str) else len(sentences)
        if n < 2:
            raise DataError(f"cannot compare {word[:40]!r}: there must be two or more sentences; found {n}")
        items = [_to_json(_as_sentence(sentence, index)) for index, sentence in enumerate(sentences)]
        model = yield from self.describe()
        payload = {"sentences": items, "word": word, "layers": _encode_layers(layers, model.n_layers), "start": start}
        request = Request("/v1/similarity", partial(_parse_comparison, word=word, n=n), self._with_model(payload))
        (comparison,) = yield RequestGroup([request])
        return comparison

    def substitutes(
        self,
        sentences: Sequence[str | Sequence[str]],
        *,
        word: str | None = None,
        n: int = 10,
        candidates: Sequence[str] | None = None,
        combine: Combine = "inject",
        start: Literal["zero", "warm"] = "zero",
    ) -> Plan[list[Json]]:
        """Predict substitutes for the marked word of each sentence, like ``elmo.lexicon.find_substitutes``.

        The result has one dictionary per sentence, like ``Substitutes.to_json``.

        Args:
            sentences: Sentences in which the word is marked like ``[[this]]``.
            word: The word to replace in sentences without a mark.
            n: Number of substitutes.
            candidates: Rank these words or phrases instead of the whole vocabulary.
            combine: How to combine the language models, as in ``find_substitutes``.
            start: As in ``encode``.
        """
        options = {"word": word, "n": n, "combine": combine, "start": start}
        options["candidates"] = None if candidates is None else list(candidates)
        return self._map_json("/v1/substitutes", sentences, options, lists=("substitutes",))

    def score(self, sentences: Iterable[Sentence], *, start: Literal["zero", "warm"] = "zero") -> Plan[
        list[SentenceScores]
    ]:  # fmt: skip
        """Compute the log-probability of every token, like ``elmo.predict.score_sentences``.

        Args:
            sentences: Strings and lists of tokens.
            start: As in ``encode``.
        """
        items = [_as_sentence(item, index) for index, item in enumerate(_as_list(sentences))]
        _check_start(start)
        parse = partial(_parse_scores, start=start)
        return (
            yield from self._map("/v1/score", items, {"start": start}, parse, n_inputs=MAX_SLOW_INPUTS, n_tokens=2048)
        )

    def neighbors(
        self,
        sentences: Sequence[str | Sequence[str]],
        *,
        word: str | None = None,
        k: int = 10,
        among: Literal["all", "same", "others"] = "all",
        index: str | None = None,
    ) -> Plan[list[Json]]:
        """Find the usages nearest to the marked word of each sentence, like ``elmo.lexicon.find_neighbors``.

        The result has one dictionary per sentence, like ``Neighbors.to_json``.

        Args:
            sentences: Sentences in which the word is marked like ``[[this]]``.
            word: The word to search for in sentences without a mark.
            k: Number of neighbors.
            among: Search the usages of all words, of the same word, or of other words.
            index: Id of the index. Default: the first index of the service.
        """
        options = {"word": word, "k": k, "among": among, "index": index}
        return self._map_json("/v1/neighbors", sentences, options, lists=("neighbors",), has_model=False)

    def senses(
        self,
        word: str,
        *,
        method: Literal["agglomerative", "affinity", "kmeans"] = "agglomerative",
        n_clusters: int | None = None,
        limit: int = 500,
        n_examples: int = 3,
        seed: int = 0,
        index: str | None = None,
    ) -> Plan[Json]:
        """Find the senses of a word in an index of the service, like ``elmo.lexicon.senses_in_corpus``.

        The result is a dictionary like ``Senses.to_json``, with the sense (``labels``) and the number in the index
        (``numbers``) of each usage.

        Args:
            word: A word or a phrase.
            method: Clustering method.
            n_clusters: Number of senses. Default: chosen from the data.
            limit: Maximum number of usages; if there are more, a random sample is used.
            n_examples: Number of typical sentences for each sense.
            seed: Random seed for sampling and clustering.
            index: Id of the index. Default: the first index of the service.
        """
        options = {"method": method, "n_clusters": n_clusters, "limit": limit, "n_examples": n_examples}
        payload = {"word": word, "seed": seed, "index": index, **options}
        (result,) = yield RequestGroup([Request("/v1/senses", partial(_parse_object, lists=("senses",)), payload)])
        return result

    def concordance(
        self,
        word: str,
        *,
        limit: int = 1000,
        sort: Literal["corpus", "left", "right", "similarity", "meaning"] = "corpus",
        to: int | str | None = None,
        seed: int = 0,
        index: str | None = None,
    ) -> Plan[Json]:
        """List the usages of a word in an index of the service, with the text around them.

        The result is a dictionary with ``lines`` and ``total``, the number of usages in the index.

        Args:
            word: A word or a phrase.
            limit: Maximum number of lines; if there are more usages, a random sample is used.
            sort: Order of the lines; "similarity" requires ``to``.
            to: The number of a usage, or a marked sentence, with which the lines are compared.
            seed: Random seed of the sample.
            index: Id of the index. Default: the first index of the service.
        """
        payload = {"word": word, "limit": limit, "sort": sort, "to": to, "seed": seed, "index": index}
        (result,) = yield RequestGroup([Request("/v1/concordance", partial(_parse_object, lists=("lines",)), payload)])
        return result

    def explain(
        self,
        sentence: str | Sequence[str],
        *,
        word: str | None = None,
        other: str | Sequence[str] | None = None,
        method: Literal["leave-out", "replace", "gradient"] = "leave-out",
        layers: Literal["average", "top", "concat"] | int = "average",
    ) -> Plan[Json]:
        """Compute how much each token of a sentence contributes to the vector of the marked word.

        The result is a dictionary with ``tokens`` and one value per token, ``scores``.

        Args:
            sentence: A sentence in which the word is marked like ``[[this]]``.
            word: The word to explain in a sentence without a mark.
            other: A second marked sentence: explain the similarity of both words.
            method: How scores are computed.
            layers: As in ``encode``, but not "all".
        """
        model = yield from self.describe()
        payload = {"word": word, "method": method, "layers": _encode_layers(layers, model.n_layers)}
        payload["input"] = _to_json(_as_sentence(sentence, 0))
        payload["other"] = None if other is None else _to_json(_as_sentence(other, 1))
        parse = partial(_parse_object, lists=("tokens", "scores"))
        (result,) = yield RequestGroup([Request("/v1/explain", parse, self._with_model(payload))])
        return result

    def _with_model(self, payload: Mapping[str, Any]) -> Json:
        return {**payload, "model": self.model}

    def _map_json(
        self,
        path: str,
        sentences: Sequence[str | Sequence[str]],
        options: Mapping[str, Any],
        *,
        lists: Sequence[str],
        has_model: bool = True,
    ) -> Plan[list[Json]]:
        """Send sentences and return the JSON object of each."""
        items = [_as_sentence(item, index) for index, item in enumerate(_as_list(sentences))]
        parse = lambda _, result: _parse_object(result, lists=lists)  # noqa: E731
        return (
            yield from self._map(
                path, items, options, parse, n_inputs=MAX_SLOW_INPUTS, has_model=has_model, first_number=1
            )
        )

    def _map(
        self,
        path: str,
        items: Sequence[str | Tokens],
        options: Mapping[str, Any],
        parse: Callable[[str | Tokens, Json], T],
        *,
        n_inputs: int = MAX_INPUTS,
        n_tokens: int = MAX_REQUEST_TOKENS,
        has_model: bool = True,
        first_number: int = 0,
        is_shown: bool = False,
    ) -> Plan[list[T]]:
        """Send sentences in requests of limited size; return the parsed result of each sentence, in order.

        ``first_number`` is the number of the first sentence in error messages.
        """
        options = self._with_model(options) if has_model else options
        results: list[Any] = [None] * len(items)
        pending = list(_split(items, n_inputs=n_inputs, n_tokens=n_tokens))
        while pending:
            requests = [
                self._list_request(
                    path, items[begin:end], options, parse, range(first_number + begin, first_number + end)
                )
                for begin, end in pending
            ]
            replies = yield RequestGroup(requests, is_shown)
            too_large: list[tuple[int, int]] = []
            for (begin, end), reply in zip(pending, replies, strict=True):
                if reply is None:  # the service has lower limits
                    middle = (begin + end) // 2
                    too_large += [(begin, middle), (middle, end)]
                else:
                    results[begin:end] = reply
            pending = too_large
        return results

    @staticmethod
    def _list_request(
        path: str,
        items: Sequence[str | Tokens],
        options: Mapping[str, Any],
        parse: Callable[[str | Tokens, Json], Any],
        numbers: range,
    ) -> Request:
        payload = {**options, "inputs": [_to_json(item) for item in items]}
        return Request(path, partial(_parse_results, items=items, numbers=numbers, parse=parse), payload, numbers)


def _as_list(sentences: Any) -> list[Any]:
    if isinstance(sentences, str | bytes | bytearray | Tokens):
        return [sentences]
    if isinstance(sentences, Iterable):
        return list(cast("Iterable[Any]", sentences))
    raise DataError(f"sentences must be a string or an iterable of sentences; found {type(sentences).__name__}")


def _as_sentence(sentence: Any, index: int) -> str | Tokens:
    """Return a text or checked tokens."""
    if isinstance(sentence, str):
        return sentence
    tokens = as_tokens(sentence, cast("Any", None), subject=f"sentence {index}")  # text is tokenized by the service
    if len(tokens) > MAX_TOKENS:
        raise SentenceTooLongError(
            f"sentence {index} must have at most {MAX_TOKENS} tokens; found {len(tokens)}; split it"
        )
    return tokens


def _to_json(sentence: str | Tokens) -> str | list[str]:
    return sentence if isinstance(sentence, str) else list(sentence.tokens)


def _check_start(start: Any) -> None:
    if start in ("zero", "warm"):
        return
    if start == "carry":
        raise StateError("start must be 'zero' or 'warm'; found 'carry'; a service keeps no state between requests")
    value = repr(start) if isinstance(start, str) else type(start).__name__
    raise ConfigError(f"start must be 'zero' or 'warm'; found {value[:40]}; a service keeps no state between requests")


def _encode_layers(layers: Any, n_layers: int) -> str | int | Json:
    """Return a choice of layers as JSON."""
    if isinstance(layers, int) and not isinstance(layers, bool) and -n_layers <= layers < n_layers:
        return layers % n_layers
    mix = sys.modules.get("elmo.model.mix")  # if it was never imported, the caller has no LayerMix
    if mix is not None and isinstance(layers, mix.LayerMix):
        return _encode_mix(cast("LayerMix", layers), n_layers)
    if isinstance(layers, str) and layers in _LAYERS:
        return layers
    layer_selector(cast("Any", layers), n_layers)  # raises the same error as Elmo.encode
    return int(layers) % n_layers


def _encode_mix(mix: LayerMix, n_layers: int) -> Json:
    if mix.n_layers != n_layers:
        raise ShapeError(f"the input of this mix must have {mix.n_layers} layers; found {n_layers}")
    for option in ("layer_norm", "top_only"):
        if getattr(mix, option):
            raise ConfigError(f"layers must be a LayerMix without {option}; use layers='all' and mix the result here")
    weights, gamma = mix.w.detach().float().cpu(), float(mix.gamma.detach())
    if not (weights.isfinite().all() and np.isfinite(gamma)):
        raise ConfigError("layers must be a LayerMix with finite weights; found NaN or infinity")
    return {"weights": weights.tolist(), "gamma": gamma}


def _split(items: Sequence[str | Tokens], *, n_inputs: int, n_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last item + 1 of each request; the sizes are estimates."""
    begin = tokens = size = 0
    for k, item in enumerate(items):
        if isinstance(item, str):
            # English has about 5 characters per token, Chinese 1.6
            n, length = len(item) // (4 if item.isascii() else 2) + 1, len(item) * (1 if item.isascii() else 3)
        else:
            n, length = len(item), sum(map(len, item.tokens)) * 3 + 3 * len(item)
        is_full = tokens + n > n_tokens or size + length > MAX_BODY_BYTES or k - begin == n_inputs
        if k > begin and is_full:
            yield begin, k
            begin, tokens, size = k, 0, 0
        tokens, size = tokens + n, size + length
    if items:
        yield begin, len(items)


# --- Replies ---------------------------------------------------------------------------------------------


def require(condition: bool, problem: str) -> None:
    """Raise ``ServiceError`` with a problem of a reply, unless the condition holds."""
    if not condition:
        raise ServiceError(
            f"the reply of the service is malformed: {problem}; check its address and version",
            status=200, code="malformed_reply",
        )  # fmt: skip


def _parse_object(reply: Any, *, lists: Sequence[str] = ()) -> Json:
    """Return a JSON object in which the named fields are lists."""
    require(isinstance(reply, dict), "expected a JSON object")
    for name in lists:
        require(isinstance(reply.get(name), list), f"expected a list {name!r}")
    return reply


def _parse_models(reply: Any) -> list[RemoteModel]:
    data = _parse_object(reply, lists=("data",))["data"]
    require(bool(data), "no model")
    names = {field.name for field in fields(RemoteModel)}
    models: list[RemoteModel] = []
    for item in data:
        values = {name: value for name, value in _parse_object(item).items() if name in names and value is not None}
        for name, value in values.items():
            is_count = name in ("n_layers", "width", "vocabulary", "max_tokens")
            is_valid = type(value) is int and 0 <= value < 1 << 40 if is_count else isinstance(value, str)
            require(is_valid, f"{name} of a model is {value!r:.40}")
        is_complete = {"id", "n_layers", "width"} <= values.keys() and min(values["n_layers"], values["width"]) > 0
        require(is_complete, "a model without id, n_layers or width")
        models.append(RemoteModel(**values))
    return models


def _parse_results(
    reply: Any, *, items: Sequence[str | Tokens], numbers: range, parse: Callable[[str | Tokens, Json], T]
) -> list[T]:
    """Parse the results of a list of sentences; raise the error of the first sentence that failed."""
    results = _parse_object(reply, lists=("results",))["results"]
    require(len(results) == len(items), f"expected {len(items)} results, found {len(results)}")
    parsed: list[T] = []
    for k, (item, result) in enumerate(zip(items, results, strict=True)):
        if "error" in _parse_object(result):
            raise read_error(result["error"], status=200, numbers=numbers[k : k + 1])
        parsed.append(parse(item, result))
        results[k] = None  # frees the text of the vectors
    return parsed


def _parse_tokens(sentence: str | Tokens, result: Json) -> Tokens:
    """Return the tokens of a sentence; their offsets must match its text."""
    words, offsets = _parse_object(result, lists=("tokens",))["tokens"], result.get("offsets")
    require(all(isinstance(word, str) for word in words), "tokens that are not strings")
    if isinstance(sentence, Tokens):
        require(tuple(words) == sentence.tokens, "tokens that differ from those of the request")
        return sentence
    if offsets is None:
        return Tokens.from_words(words)
    require(isinstance(offsets, list) and len(offsets) == len(words), "expected offsets for each token")
    is_valid = all(isinstance(pair, list) and len(pair) == 2 and all(type(x) is int for x in pair) for pair in offsets)
    require(is_valid, "offsets that are not pairs of integers")
    spans = [(begin, end) for begin, end in offsets]
    ends = [0, *(end for _, end in spans)]
    in_order = all(last <= begin <= end <= len(sentence) for last, (begin, end) in zip(ends, spans, strict=False))
    tokens = Tokens.from_offsets(sentence, spans if in_order else [])
    require(in_order and tokens.tokens == tuple(words), "offsets that do not match the text")
    return tokens


@dataclass(frozen=True)
class _VectorFormat:
    """The vectors that a reply must contain, and what they are converted to.

    Attributes:
        n_layers: Size of the layer axis; None if there is no such axis.
        width: Values per token and layer.
        wire_dtype: Data type in the reply, "float32" or "float16".
        dtype: Data type of the result.
        as_tensor: Whether the result is a tensor.
    """

    n_layers: int | None
    width: int
    wire_dtype: str
    dtype: str
    as_tensor: bool

    @classmethod
    def choose(cls, layers: str | int | Json, model: RemoteModel, *, dtype: str | None, as_tensor: bool) -> Self:
        """Choose the format for a choice of layers."""
        target = dtype or (model.precision if model.precision in DTYPES else "float32")
        if target == "bfloat16" and not as_tensor:
            target = "float32"
        return cls(
            n_layers=model.n_layers if layers == "all" else None,
            width=model.width * (model.n_layers if layers == "concat" else 1),
            wire_dtype="float16" if target == "float16" else "float32",
            dtype=target,
            as_tensor=as_tensor,
        )

    @property
    def bytes_per_token(self) -> int:
        """Size of a token in the reply, before base64."""
        return (self.n_layers or 1) * self.width * np.dtype(self.wire_dtype).itemsize

    def read(self, n_tokens: int, shape: Any, encoded: Any) -> Any:
        """Return the vectors of a sentence from base64."""
        expected = [n_tokens, self.width] if self.n_layers is None else [self.n_layers, n_tokens, self.width]
        require(shape == expected, f"expected vectors of the shape {expected}, found {shape!r:.40}")
        n_bytes = n_tokens * self.bytes_per_token
        is_valid = isinstance(encoded, str) and len(encoded) == (n_bytes + 2) // 3 * 4
        require(is_valid, f"expected {n_bytes} bytes of vectors in base64")
        try:
            data = binascii.a2b_base64(encoded, strict_mode=True)
        except ValueError:
            data = b""
        require(len(data) == n_bytes, "vectors that are not valid base64")
        little_endian = np.frombuffer(data, dtype=np.dtype(self.wire_dtype).newbyteorder("<"))
        # a new array, because the bytes cannot be written to
        dtype = self.wire_dtype if self.dtype == "bfloat16" else self.dtype
        array = little_endian.reshape(expected).astype(dtype, copy=True)
        if not self.as_tensor:
            return array
        import torch

        return torch.from_numpy(array).to(getattr(torch, self.dtype))


def _parse_encoding(sentence: str | Tokens, result: Json, *, vectors: _VectorFormat) -> Encoding:
    tokens = _parse_tokens(sentence, result)
    array = vectors.read(len(tokens), result.get("shape"), result.get("vectors"))
    return Encoding(tokens.tokens, array, tokens.text, tokens.offsets)


def _parse_numbers(value: Any, n: int) -> Any:
    """Return ``n`` numbers as an array."""
    is_valid = isinstance(value, list) and len(value) == n and all(type(x) in (int, float) for x in value)
    require(is_valid, f"expected {n} numbers")
    try:
        return np.array(value, dtype=np.float64)
    except OverflowError:
        require(False, "a number that is too large")


def _parse_scores(sentence: str | Tokens, result: Json, *, start: Literal["zero", "warm"]) -> SentenceScores:
    from elmo.predict.scores import SentenceScores
    from elmo.text.reader import Sentence as PlacedSentence

    tokens = _parse_tokens(sentence, result)
    n, is_unknown = len(tokens), result.get("is_unknown")
    forward, backward = (
        None if result.get(name) is None else _parse_numbers(result[name], n + 1).astype(np.float32)
        for name in ("forward", "backward")
    )
    require(forward is not None or backward is not None, "no log-probabilities")
    is_valid = isinstance(is_unknown, list) and len(is_unknown) == n and all(type(x) is bool for x in is_unknown)
    require(is_valid, "expected 'is_unknown' for each token")
    placed = PlacedSentence(tokens, path="", line=0)
    return SentenceScores(placed, start, forward, backward, np.array(is_unknown, dtype=bool))


def _parse_comparison(reply: Any, *, word: str, n: int) -> Comparison:
    reply = _parse_object(reply, lists=("uses",))
    uses: list[Use] = []
    for item in reply["uses"]:
        use = _parse_object(item, lists=("tokens", "span"))
        text, span, tokens = use.get("text"), use["span"], use["tokens"]
        require(isinstance(text, str) and all(isinstance(token, str) for token in tokens), "a usage without text")
        is_valid = (
            len(span) == 2 and all(type(x) is int for x in span) and 0 <= span[0] < span[1] <= len(cast("str", text))
        )
        require(is_valid, f"a usage with the span {span!r:.40}")
        uses.append(Use(cast("str", text), (span[0], span[1]), tuple(tokens)))
    matrices = _parse_object(reply.get("similarities"))
    require(len(uses) == n and bool(matrices), f"expected {n} usages and their similarities")
    parsed: dict[str, Any] = {}
    for layer, rows in matrices.items():
        require(isinstance(rows, list) and len(rows) == n, f"expected {n} rows of similarities")
        parsed[layer] = np.stack([_parse_numbers(row, n) for row in rows])
    ranks = reply.get("ranks", [])
    require(isinstance(ranks, list), "expected a list 'ranks'")
    return Comparison(word, tuple(uses), parsed, dict(_parse_rank(item, n) for item in ranks))


def _parse_rank(item: Any, n: int) -> tuple[tuple[int, int], SimilarityRank]:
    rank = _parse_object(item, lists=("uses",))
    pair, share, word = rank["uses"], rank.get("share"), rank.get("word")
    is_pair = len(pair) == 2 and all(type(x) is int for x in pair) and 0 <= pair[0] < pair[1] < n
    is_rank = isinstance(share, int | float) and 0 <= share <= 1 and isinstance(word, str | None)
    require(is_pair and is_rank, f"a rank of the form {item!r:.80}")
    return (pair[0], pair[1]), SimilarityRank(float(cast("float", share)), cast("str | None", word))


def read_error(error: Any, *, status: int, numbers: range = range(0)) -> ElmoError:
    """Return the error that a reply describes: the error of the library for bad input, or a ``ServiceError``.

    ``numbers`` are the numbers of the sentences in the request. The service counts from the start of the request.
    """
    error = error if isinstance(error, dict) else {}
    values = [error.get(name) for name in ("message", "type", "code", "param")]
    message, kind, code, param = (" ".join(value.split())[:500] if isinstance(value, str) else "" for value in values)
    message = message or "no reason stated"
    place = _FIELD_OF_INPUT.match(message)
    if place and int(place[1]) < len(numbers):
        message = f"sentence {numbers[int(place[1])]}{message[place.end() :]}"
    elif len(numbers) == 1:
        rest = _NUMBERED_SENTENCE.match(message)
        message = f"sentence {numbers[0]}{message[rest.end() :] if rest else f': {message}'}"
    if kind in _INPUT_ERRORS:
        return getattr(errors, kind)(message)
    if status == 413 and len(numbers) == 1:
        return SentenceTooLongError(message)
    if code == "invalid_input":
        return DataError(message)
    if code == "invalid_request":
        return _FIELD_ERRORS.get(param.partition("[")[0], DataError if param == "" else ConfigError)(message)
    return ServiceError(message, status=status, code=code or None)
