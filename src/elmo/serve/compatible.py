"""Routes that are compatible with other services: OpenAI's embeddings and Hugging Face's text-embeddings-inference.

Their vectors are sentence vectors, the mean over the tokens of the average layer: ``Encoding.sentence()``.
"""

from __future__ import annotations

import base64
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmo import __version__
from elmo.embed.encoding import Encoding
from elmo.errors import ElmoError
from elmo.serve.scheduler import MAX_BATCH_TOKENS
from elmo.serve.schemas import MAX_TEXT, RequestError, Schema

if TYPE_CHECKING:
    from elmo.serve.app import App, Call, Handler
    from elmo.serve.service import LoadedModel
    from elmo.text.tokenizers import Tokens

TEI_PATHS = frozenset(("/embed", "/embed_all", "/tokenize", "/info"))
MAX_OPENAI_INPUTS = 2048
_TEI_TYPES = {429: "Overloaded", 500: "Backend", 503: "Unhealthy", 504: "Backend"}

_STRING = {"type": "string", "maxLength": MAX_TEXT}
TEXT_LIST = {"type": "array", "items": _STRING, "minItems": 1, "maxItems": 1_000_000}
OPENAI_LIST = {**TEXT_LIST, "maxItems": MAX_OPENAI_INPUTS}
_TEXTS: Schema = {"anyOf": [_STRING, TEXT_LIST], "description": "A text or a list of texts."}
_BOOLEAN = {"type": "boolean"}
_NULL = {"type": "null"}
DIMENSIONS: Schema = {"type": "integer", "minimum": 1, "maximum": 100_000}
_TRUNCATE: Schema = {
    "anyOf": [_BOOLEAN, _NULL],
    "default": None,
    "description": "Must not be true: texts are kept whole.",
}


def _tei(**properties: Schema) -> Schema:
    return {"type": "object", "properties": {"inputs": _TEXTS, **properties}, "required": ["inputs"]}


OPENAI_EMBEDDINGS: Schema = {
    "type": "object",
    "properties": {
        "input": {"anyOf": [{**_STRING, "minLength": 1}, OPENAI_LIST], "description": "A text or a list of texts."},
        "model": {"anyOf": [_STRING, _NULL], "default": None, "description": "Id of a model."},
        "encoding_format": {"type": "string", "enum": ["float", "base64"], "default": "float",
                            "description": "Numbers as JSON, or base64 of little-endian float32."},
        "dimensions": {"anyOf": [DIMENSIONS, _NULL], "default": None,
                       "description": "If set, must be the width of the model."},
        "user": {"anyOf": [_STRING, _NULL], "default": None, "description": "Ignored."},
    },
    "required": ["input"],
}  # fmt: skip
TEI_REQUESTS: dict[str, Schema] = {
    "/embed": _tei(
        normalize={**_BOOLEAN, "default": True, "description": "Scale each vector to length 1."},
        truncate=_TRUNCATE,
        truncation_direction={**_STRING, "description": "Ignored."},
        prompt_name={"anyOf": [_STRING, _NULL], "description": "Ignored."},
        dimensions={"anyOf": [DIMENSIONS, _NULL], "default": None,
                    "description": "If set, must be the width of the model."},
    ),
    "/embed_all": _tei(truncate=_TRUNCATE),
    "/tokenize": _tei(add_special_tokens={**_BOOLEAN, "default": True, "description": "Ignored: there are none."}),
}  # fmt: skip


def tei_error(status: int, message: str) -> dict[str, Any]:
    """Return an error reply in the format of text-embeddings-inference."""
    return {"error": message, "error_type": _TEI_TYPES.get(status, "Validation")}


def build_routes(app: App) -> dict[str, dict[str, Handler]]:
    """Return the routes with their handlers."""
    return {
        "/v1/embeddings": {"POST": partial(post_embeddings, app)},
        "/embed": {"POST": partial(post_embed, app)},
        "/embed_all": {"POST": partial(post_embed_all, app)},
        "/tokenize": {"POST": partial(post_tokenize, app)},
        "/info": {"GET": partial(get_info, app)},
    }


async def post_embeddings(app: App, call: Call) -> None:
    """Answer OpenAI's /v1/embeddings."""
    service, value = await app.read_json(call, app.words)
    if isinstance(value.get("input"), list) and any(not isinstance(text, str) for text in value["input"]):
        raise RequestError("input must be texts; token ids are not supported", param="input")
    request = await app.check(call, value, OPENAI_EMBEDDINGS)
    model = service.model(request["model"])
    _check_dimensions(model, request["dimensions"])
    texts = [request["input"]] if isinstance(request["input"], str) else request["input"]
    encodings = await _encode_texts(app, call, model, texts, param="input")
    is_base64 = request["encoding_format"] == "base64"
    values = await app.build(call, lambda: [_sentence_value(encoding, is_base64=is_base64) for encoding in encodings])
    data = [{"object": "embedding", "index": k, "embedding": value} for k, value in enumerate(values)]
    usage = {"prompt_tokens": call.n_tokens, "total_tokens": call.n_tokens}
    await app.send_json(call, {"object": "list", "data": data, "model": model.name, "usage": usage})


async def post_embed(app: App, call: Call) -> None:
    """Answer TEI's /embed."""
    model, request, texts = await _read_tei(app, call)
    _check_dimensions(model, request["dimensions"])
    encodings = await _encode_texts(app, call, model, texts, param="inputs")
    is_normalized = request["normalize"]
    vectors = await app.build(call, lambda: [_sentence_vector(item, is_normalized=is_normalized) for item in encodings])
    await app.send_json(call, vectors)


async def post_embed_all(app: App, call: Call) -> None:
    """Answer TEI's /embed_all: the vectors of all tokens, in the average layer."""
    model, _, texts = await _read_tei(app, call)
    encodings = await _encode_texts(app, call, model, texts, param="inputs", numbers_per_token=model.elmo.width)
    await app.send_json(call, [encoding.vectors for encoding in encodings])


async def post_tokenize(app: App, call: Call) -> None:
    """Answer TEI's /tokenize; the id of a token is its number in the vocabulary, or that of unknown words."""
    model, _, texts = await _read_tei(app, call)
    tokenized = await app.tokenize_inputs(call, model, texts)
    answer = await app.build(call, lambda: [_tokens_json(model, tokens) for tokens in tokenized])
    await app.send_json(call, answer)


def _tokens_json(model: LoadedModel, tokens: Tokens) -> list[dict[str, Any]]:
    vocab, spans = model.elmo.vocab, tokens.offsets or ()
    ids = [0] * len(tokens) if vocab is None else [int(number) for number in vocab.ids(tokens.tokens)]
    return [
        {"id": number, "text": token, "special": False, "start": begin, "stop": end}
        for number, token, (begin, end) in zip(ids, tokens.tokens, spans, strict=True)
    ]


async def get_info(app: App, call: Call) -> None:
    """Answer TEI's /info."""
    model, options = app.ready().model(None), app.options
    info = {
        "model_id": model.name, "model_sha": None, "model_dtype": model.elmo.precision,
        "model_type": {"embedding": {"pooling": "mean"}}, "max_concurrent_requests": 4096,
        "max_input_length": options.max_tokens, "max_batch_tokens": MAX_BATCH_TOKENS, "max_batch_requests": None,
        "max_client_batch_size": options.max_inputs, "auto_truncate": False, "tokenization_workers": 1,
        "version": __version__, "sha": None, "docker_label": None,
    }  # fmt: skip
    await app.send_json(call, info)


async def _read_tei(app: App, call: Call) -> tuple[LoadedModel, dict[str, Any], list[str]]:
    service, value = await app.read_json(call, app.words)
    request = await app.check(call, value, TEI_REQUESTS[call.path])
    inputs = request["inputs"]
    return service.model(None), request, [inputs] if isinstance(inputs, str) else inputs


def _sentence_value(encoding: Encoding, *, is_base64: bool) -> Any:
    """Return a sentence vector as OpenAI's API does."""
    vector = encoding.sentence()
    return base64.b64encode(vector.astype("<f4").tobytes()).decode() if is_base64 else vector


def _sentence_vector(encoding: Encoding, *, is_normalized: bool) -> NDArray[Any]:
    vector = encoding.sentence()
    norm = np.linalg.norm(vector) if is_normalized else 0.0
    return vector / norm if norm > 0 else vector


async def _encode_texts(
    app: App, call: Call, model: LoadedModel, texts: list[str], *, param: str, numbers_per_token: int = 0
) -> list[Encoding]:
    """Encode texts; unlike in the native routes, a text that fails makes the request fail."""
    tokenized = await app.tokenize_inputs(call, model, texts)
    app.reserve_reply(call, numbers_per_token * call.n_tokens + model.elmo.width * len(texts))
    results = await app.encode(call, model, tokenized, layers="average", start="zero", dtype="float32")
    for k, result in enumerate(results):
        if isinstance(result, ElmoError):
            raise RequestError(f"{param}[{k}]: {result}", param=param)
        if isinstance(result, Exception):
            raise result  # an internal error, which was logged
    return results


def _check_dimensions(model: LoadedModel, dimensions: int | None) -> None:
    if dimensions not in (None, model.elmo.width):
        raise RequestError(
            f"dimensions must be {model.elmo.width}, the width of model {model.name}; found {dimensions}",
            param="dimensions",
        )
