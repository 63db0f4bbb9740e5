"""Routes of the native API for sentences and for the usages of an index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from elmo.serve.replies import error_json, offsets_json, words_reply
from elmo.serve.scheduler import cost_of
from elmo.serve.schemas import RequestError

if TYPE_CHECKING:
    from elmo.serve.app import App, Call, Handler
    from elmo.serve.service import LoadedModel

CALL_COST = 50  # tokens that the fixed part of a call is worth
BYTES_PER_USAGE = 600  # of a concordance, roughly
NUMBERS_PER_ITEM = 80  # numbers that a substitute or a neighbor is worth in memory


def build_routes(app: App) -> dict[str, dict[str, Handler]]:
    """Return the routes with their handlers."""
    handlers: dict[str, Handler] = {
        "/v1/words": partial(post_words, app),
        "/v1/similarity": partial(post_similarity, app),
        "/v1/substitutes": partial(post_substitutes, app),
        "/v1/score": partial(post_score, app),
        "/v1/explain": partial(post_explain, app),
        "/v1/neighbors": partial(post_neighbors, app),
        "/v1/concordance": partial(post_index_call, app, "concordance"),
        "/v1/senses": partial(post_index_call, app, "senses"),
    }
    return {path: {"POST": handler} for path, handler in handlers.items()}


async def post_words(app: App, call: Call) -> None:
    """Answer /v1/words."""
    service, request = await app.read_request(call, app.words)
    model = service.model(request["model"])
    sentences = _as_list(request["inputs"])
    layers, targets = request["layers"], request["targets"]
    if targets is not None and len(targets) != len(sentences):
        raise RequestError(
            f"targets must have one item per input, {len(sentences)}; found {len(targets)}", param="targets"
        )
    tokenized = await app.tokenize_inputs(call, model, sentences)
    n_vectors = call.n_tokens
    if targets is not None:
        n_vectors = sum(
            len(tokens) if wanted is None else len(wanted) for tokens, wanted in zip(tokenized, targets, strict=True)
        )
    width = model.vector_size(layers)
    app.reserve_reply(call, n_vectors * width, encoding=request["encoding"], dtype=request["dtype"])
    encodings = await app.encode(call, model, tokenized, layers=layers, start=request["start"], dtype=request["dtype"])
    head = {
        "object": "words",
        "model": model.name,
        "layers": layers,
        "dtype": request["dtype"],
        "encoding": request["encoding"],
    }
    parts, kind = await app.build(call, partial(words_reply, head, encodings, request))
    await app.send(call, parts, content_type=kind)


async def post_similarity(app: App, call: Call) -> None:
    """Answer /v1/similarity."""
    service, request = await app.read_request(call, app.calls)
    model = service.model(request["model"])
    tokenized = await app.tokenize_inputs(call, model, request["sentences"])
    answer = await app.run(call, cost_of(tokenized), partial(model.compare, request))
    for use in answer["uses"]:
        use["span"] = offsets_json(use["text"], [use["span"]], request["offsets"])[0]  # type: ignore[index]
    await app.send_json(call, answer)


async def post_substitutes(app: App, call: Call) -> None:
    """Answer /v1/substitutes."""
    service, request = await app.read_request(call, app.calls)
    model = service.model(request["model"])
    head = {"object": "substitutes", "model": model.name}
    sentences = _as_list(request["inputs"])
    n_items = len(sentences) * (request["n"] if request["candidates"] is None else len(request["candidates"]))
    app.reserve_reply(call, NUMBERS_PER_ITEM * n_items)
    await _answer_list(app, call, model, partial(model.substitutes, request), sentences=sentences, head=head)


async def post_neighbors(app: App, call: Call) -> None:
    """Answer /v1/neighbors."""
    service, request = await app.read_request(call, app.calls)
    index = service.index(request["index"])
    head = {"object": "neighbors", "index": index.name}
    sentences = _as_list(request["inputs"])
    app.reserve_reply(call, NUMBERS_PER_ITEM * len(sentences) * request["k"])
    await _answer_list(app, call, index.model, partial(index.neighbors, request), sentences=sentences, head=head)


async def _answer_list(
    app: App, call: Call, model: LoadedModel, function: Callable[[Sequence[Any]], Any], *, sentences: list[Any],
    head: dict[str, Any],
) -> None:  # fmt: skip
    tokenized = await app.tokenize_inputs(call, model, sentences)
    results = await app.run(call, cost_of(tokenized) + CALL_COST * len(sentences), partial(function, sentences))
    values = [error_json(item) if isinstance(item, Exception) else item for item in app.hide_private(results)]
    usage = {"inputs": len(sentences), "tokens": call.n_tokens}
    await app.send_json(call, {**head, "results": values, "usage": usage})


async def post_score(app: App, call: Call) -> None:
    """Answer /v1/score."""
    service, request = await app.read_request(call, app.calls)
    model = service.model(request["model"])
    sentences = _as_list(request["inputs"])
    tokenized = await app.tokenize_inputs(call, model, sentences)
    results = await app.run(call, 2 * cost_of(tokenized), partial(model.score, request, tokenized))
    values = [
        {"tokens": tokens.tokens, "offsets": offsets_json(tokens.text, tokens.offsets, request["offsets"]), **result}
        for tokens, result in zip(tokenized, results, strict=True)
    ]
    usage = {"inputs": len(sentences), "tokens": call.n_tokens}
    await app.send_json(call, {"object": "score", "model": model.name, "results": values, "usage": usage})


async def post_explain(app: App, call: Call) -> None:
    """Answer /v1/explain."""
    service, request = await app.read_request(call, app.calls)
    model = service.model(request["model"])
    given = [sentence for sentence in (request["input"], request["other"]) if sentence is not None]
    tokenized = await app.tokenize_inputs(call, model, given)
    cost = sum(len(tokens) ** 2 for tokens in tokenized)  # one sentence per word that is left out
    answer = await app.run(call, cost, partial(model.explain, request))
    await app.send_json(call, answer)


async def post_index_call(app: App, name: str, call: Call) -> None:
    """Answer a request about one word of an index."""
    service, request = await app.read_request(call, app.calls)
    index = service.index(request["index"])
    answer = await app.run(call, 2 * request["limit"], partial(getattr(index, name), request))
    call.reply_size = BYTES_PER_USAGE * request["limit"]
    await app.send_json(call, answer)


def _as_list(inputs: Any) -> list[Any]:
    return [inputs] if isinstance(inputs, str) else inputs
