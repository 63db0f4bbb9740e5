"""The OpenAPI document of the service, and a page that shows it without any resource of another host."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

from elmo import __version__
from elmo.serve import compatible
from elmo.serve.options import ServeOptions
from elmo.serve.schemas import INPUT_LIST, LAYER, REQUESTS, TARGET_LIST, TOKEN_LIST, WEIGHTS, Schema

if TYPE_CHECKING:
    from elmo.serve.service import Service

_SUMMARIES = {
    "/v1/words": "Compute a contextual vector for every word.",
    "/v1/similarity": "Compare a word in two or more sentences.",
    "/v1/substitutes": "Predict other words that fit in the place of a word.",
    "/v1/score": "Compute the log-probability of every word in both directions.",
    "/v1/expectations": "Predict the words that both language models expect at every place.",
    "/v1/explain": "Find the words of a sentence that made a vector or a similarity what it is.",
    "/v1/inside": "Return the numbers inside the network for one sentence.",
    "/v1/neighbors": "Find the usages of an index that are nearest to a word in context.",
    "/v1/concordance": "List the usages of a word in an index.",
    "/v1/senses": "Cluster the usages of a word in an index into senses.",
    "/v1/map": "Arrange the usages of a word in an index on a map.",
    "/v1/periods": "List the periods of the corpora.",
    "/v1/change": "Rank words by how much their usage changed between periods.",
    "/v1/change/word": "Show the senses, usages and typical sentences of one word by period.",
    "/v1/embeddings": "Sentence vectors, compatible with OpenAI.",
    "/embed": "Sentence vectors, compatible with text-embeddings-inference.",
    "/embed_all": "Vectors of all tokens, compatible with text-embeddings-inference.",
    "/tokenize": "Tokens, compatible with text-embeddings-inference.",
    "/info": "The default model and the limits, compatible with text-embeddings-inference.",
    "/v1/models": "List the models and indexes.",
    "/livez": "Whether the process works.",
    "/readyz": "Whether requests are accepted.",
    "/health": "The same as /readyz.",
    "/metrics": "Metrics in the format of Prometheus.",
    "/openapi.json": "This document.",
    "/docs": "A page that lists the routes.",
}
_EXAMPLES: dict[str, Any] = {
    "/v1/words": {"inputs": ["I sat by the bank of the river."], "targets": [["bank"]], "encoding": "base64"},
    "/v1/similarity": {"word": "bank", "sentences": ["I sat by the bank of the river.", "The bank lent her money."]},
    "/v1/substitutes": {"inputs": ["I sat by the [[bank]] of the river."], "n": 5},
    "/v1/score": {"inputs": ["I sat by the bank of the river."]},
    "/v1/expectations": {"inputs": ["I sat by the bank of the river."], "n": 5},
    "/v1/explain": {"input": "I sat by the [[bank]] of the river."},
    "/v1/neighbors": {"inputs": ["I sat by the [[bank]] of the river."], "k": 5},
    "/v1/concordance": {"word": "bank", "sort": "left"},
    "/v1/senses": {"word": "bank"},
    "/v1/embeddings": {"input": ["I sat by the river.", "The bank lent her money."]},
    "/embed": {"inputs": "What is Deep Learning?"},
    "/embed_all": {"inputs": "What is Deep Learning?"},
    "/tokenize": {"inputs": "What is Deep Learning?"},
}
_ERRORS = {
    "400": "The request is not valid: it does not match the schema, or its parts do not match each other, such as a "
    "word that does not occur in its sentence.", "401": "A valid API key is required.",
    "403": "The host or origin is not allowed.",
    "404": "There is no such model, index or corpus.", "408": "The body was not sent in time.",
    "413": "The request or its reply is too large.",
    "415": "The body is not JSON.", "429": "The server is overloaded; see Retry-After.",
    "503": "The server is loading or shutting down.", "504": "The deadline has passed.",
}  # fmt: skip


def request_schemas() -> dict[str, Schema]:
    """Return the schema of the body of each route with a body."""
    return {**REQUESTS, "/v1/embeddings": compatible.OPENAI_EMBEDDINGS, **compatible.TEI_REQUESTS}


def build_document(options: ServeOptions, service: Service | None = None, *, has_keys: bool = False) -> dict[str, Any]:
    """Build the OpenAPI document; ``has_keys`` if requests need an API key.

    With a service, it states the limits of the loaded models: those of the largest, if they differ.
    """
    limits = _find_limits(options, service)
    schemas = {path: _limit(schema, limits) for path, schema in request_schemas().items()}
    paths: dict[str, Any] = {}
    for path, summary in _SUMMARIES.items():
        if path in schemas:
            paths[path] = {"post": _operation(path, summary, schemas[path])}
        else:
            paths[path] = {"get": _operation(path, summary, None)}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "elmo",
            "version": __version__,
            "description": "Word vectors in context. Offsets count code points, or UTF-16 units on request. In "
            "lists of results, an input that fails has an error in place of its result.",
        },
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR_SCHEMA, "TeiError": _TEI_ERROR_SCHEMA}},
    }
    if has_keys or options.api_key_file is not None or not options.is_loopback:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}, {}]
    return document


def _find_limits(options: ServeOptions, service: Service | None) -> list[tuple[Schema, Schema]]:
    """Return parts of schemas, and the keywords that state the limits of this service."""
    limits = [(part, {"maxItems": options.max_inputs}) for part in (INPUT_LIST, TARGET_LIST, compatible.TEXT_LIST)]
    limits.append((compatible.OPENAI_LIST, {"maxItems": min(options.max_inputs, compatible.MAX_OPENAI_INPUTS)}))
    limits.append((TOKEN_LIST, {"maxItems": options.max_tokens}))
    if service is not None:
        models = [model.elmo for model in service.models.values()]
        layers, widths = [model.n_layers for model in models], [model.width for model in models]
        limits += [
            (LAYER, {"maximum": max(layers) - 1}),
            (WEIGHTS, {"minItems": min(layers), "maxItems": max(layers)}),
            (compatible.DIMENSIONS, {"minimum": min(widths), "maximum": max(widths)}),
        ]
    return limits


def _limit(schema: Any, limits: list[tuple[Schema, Schema]]) -> Any:
    """Return a schema with the keywords of ``limits`` in the parts that they are about."""
    if isinstance(schema, list):
        return [_limit(part, limits) for part in schema]
    if not isinstance(schema, dict):
        return schema
    keywords = next((keywords for part, keywords in limits if part is schema), {})
    return {**{name: _limit(part, limits) for name, part in schema.items()}, **keywords}


_ERROR_SCHEMA = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("message", "type", "code")},
            "required": ["message", "type", "code"],
        }
    },
    "required": ["error"],
}

_TEI_ERROR_SCHEMA = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}},
    "required": ["error", "error_type"],
}


def _operation(path: str, summary: str, schema: Schema | None) -> dict[str, Any]:
    kinds = {"/metrics": "text/plain", "/docs": "text/html"}
    content: dict[str, Any] = {kinds.get(path, "application/json"): {}}
    if path == "/v1/words":
        content["application/zip"] = {}
    operation: dict[str, Any] = {
        "operationId": path.strip("/").replace("/", "_").replace(".", "_"),
        "summary": summary,
        "responses": {"200": {"description": "The result.", "content": content}},
    }
    is_tei = path in compatible.TEI_PATHS
    kind = "TeiError" if is_tei else "Error"
    error = {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind}"}}}}
    if schema is None:
        if path in ("/livez", "/readyz", "/health"):
            error = {"content": {"application/json": {}}}  # the status
        codes = ("401", "403", "404", "503") if path.startswith("/v1/") else ("403", "503")
        operation["responses"] |= {code: {"description": _ERRORS[code], **error} for code in codes}
        return operation
    media: dict[str, Any] = {"schema": schema}
    if path in _EXAMPLES:
        media["example"] = _EXAMPLES[path]
    operation["requestBody"] = {"required": True, "content": {"application/json": media}}
    operation["responses"] |= {code: {"description": text, **error} for code, text in _ERRORS.items()}
    return operation


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
body { color: #1b1b1b; background: #fff }
h2 { margin-top: 2.5rem }
code, pre { font: 14px ui-monospace, monospace }
pre { background: #f2f2f2; padding: .75rem; overflow-x: auto }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #ccc }
@media (prefers-color-scheme: dark) {
  body { color: #eee; background: #181818 }
  a { color: #9cf }
  pre { background: #262626 }
  td, th { border-color: #444 }
}
"""


def build_page(options: ServeOptions, service: Service | None = None) -> str:
    """Build the page of /docs from the OpenAPI document."""
    document = build_document(options, service)
    sections = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            sections.append(_section(path, method, operation))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>elmo: HTTP API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><main><h1>elmo {__version__}</h1>"
        f"<p>{html.escape(document['info']['description'])} The machine-readable version is "
        f'<a href="/openapi.json">/openapi.json</a>.</p>{"".join(sections)}</main></body></html>'
    )


def _section(path: str, method: str, operation: dict[str, Any]) -> str:
    title = f"<h2><code>{method.upper()} {html.escape(path)}</code></h2><p>{html.escape(operation['summary'])}</p>"
    if "requestBody" not in operation:
        return title
    media = operation["requestBody"]["content"]["application/json"]
    schema = media["schema"]
    rows = "".join(
        f"<tr><td><code>{html.escape(name)}</code></td><td>{_default(name, part, schema)}</td>"
        f"<td>{html.escape(_describe_field(part))}</td></tr>"
        for name, part in schema["properties"].items()
    )
    names = "<th>Field</th><th>Default</th><th>Description</th>"
    table = f"<table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table>"
    if "example" not in media:
        return title + table
    example = json.dumps(media["example"], ensure_ascii=False)
    command = f"curl http://127.0.0.1:8000{path} -H 'Content-Type: application/json' -d '{example}'"
    return f"{title}{table}<pre>{html.escape(command)}</pre>"


def _default(name: str, part: Schema, schema: Schema) -> str:
    if name in schema["required"]:
        return "required"
    return f"<code>{html.escape(json.dumps(part.get('default')))}</code>"


def _describe_field(part: Schema) -> str:
    text = part.get("description", "")
    values = part.get("enum")
    return f"{text} One of: {', '.join(values)}." if values else text
