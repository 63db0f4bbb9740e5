"""The requests of the service as JSON Schemas, and the function that checks requests against them.

The same schemas appear in ``/openapi.json``, where the limits of the options and of the loaded models are added. Only
the keywords that are used here are implemented.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

Schema = dict[str, Any]

MAX_TEXT = 1_000_000  # characters of one text
MAX_WORD = 200
MAX_CANDIDATES = 10_000


class RequestError(Exception):
    """A request cannot be accepted; becomes an error reply."""

    def __init__(
        self, message: str, *, status: int = 400, code: str = "invalid_request", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param


def _text(description: str, **keywords: Any) -> Schema:
    return {"type": "string", "description": description, "maxLength": MAX_TEXT, **keywords}


def _choice(*values: str, default: str | None = None, description: str) -> Schema:
    schema: Schema = {"type": "string", "enum": list(values), "description": description}
    return schema if default is None else {**schema, "default": default}


def _integer(description: str, minimum: int, maximum: int, default: int | None = None) -> Schema:
    return {"type": "integer", "minimum": minimum, "maximum": maximum, "default": default, "description": description}


def _nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}], "default": None, "description": schema.get("description", "")}


def _object(required: tuple[str, ...], **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _list(items: Schema, minimum: int, maximum: int, description: str = "") -> Schema:
    return {"type": "array", "items": items, "minItems": minimum, "maxItems": maximum, "description": description}


_TOKEN = {"type": "string", "maxLength": 100_000}
TOKEN_LIST = _list(_TOKEN, 0, 1_000_000, "The tokens of a sentence.")
SENTENCE: Schema = {
    "anyOf": [_text("A sentence."), TOKEN_LIST],
    "description": "A sentence: a text, which is tokenized, or a list of tokens.",
}
MARKED: Schema = {
    "anyOf": [_text("A sentence.", minLength=1), {**TOKEN_LIST, "minItems": 1}],
    "description": "A sentence in which one word is marked like [[this]], or plain with `word`.",
}
INPUT_LIST = _list(SENTENCE, 1, 1_000_000, "Several sentences.")
_INPUTS: Schema = {
    "anyOf": [_text("One text."), INPUT_LIST],
    "description": "A text, or a list of texts and lists of tokens.",
}
_MARKED_INPUTS: Schema = {**_INPUTS, "description": "A marked text, or a list of marked texts."}
_MODEL = _nullable({"type": "string", "maxLength": 200, "description": "Id of a model; default: the first."})
_INDEX = _nullable({"type": "string", "maxLength": 200, "description": "Id of an index; default: the first."})
_OFFSETS = _choice(
    "codepoints", "utf16", default="codepoints", description="Unit of all offsets; utf16 is the unit of JavaScript."
)
_START = _choice("zero", "warm", default="zero", description="State of the LSTMs at the start of a sentence.")
_WORD = _nullable(
    {"type": "string", "minLength": 1, "maxLength": MAX_WORD, "description": "The word in unmarked texts."}
)
_REQUIRED_WORD = {"type": "string", "minLength": 1, "maxLength": MAX_WORD, "description": "A word or a phrase."}
_SEED = _integer("Seed of random samples.", 0, 2**32 - 1, 0)
LAYER = {"type": "integer", "minimum": 0, "maximum": 1000, "description": "A layer number."}
_NAMED_LAYERS = ("average", "top", "all", "concat", "sense")
_NUMBER = {"type": "number", "minimum": -1e6, "maximum": 1e6}
WEIGHTS = _list(_NUMBER, 1, 64, "One weight per layer.")
LAYERS: Schema = {
    "anyOf": [
        {"type": "string", "enum": list(_NAMED_LAYERS)},
        LAYER,
        _list(LAYER, 1, 64, "Several layers."),
        _object(("weights",), weights=WEIGHTS, gamma={**_NUMBER, "default": 1.0}),
    ],
    "default": "average",
    "description": "The layers: their average, the top layer, all, all concatenated, one or several layer numbers, or "
    "the weights (normalized by softmax) and gamma of a mix; or sense, for comparing usages of words.",
}
_ONE_VECTOR: Schema = {
    "anyOf": [{"type": "string", "enum": ["average", "top", "concat", "sense"]}, LAYER],
    "default": "average",
    "description": "The layers: their average, the top layer, all concatenated, or one layer number; or sense.",
}
_SPAN = _list({"type": "integer", "minimum": 0, "maximum": MAX_TEXT}, 2, 2, "Begin and end of a span of characters.")
TARGET_LIST = _list(
    _nullable(_list({"anyOf": [_REQUIRED_WORD, _SPAN]}, 0, 10_000)), 0, 1_000_000,
    "For each input, null or the words and spans of characters whose vectors are returned.",
)  # fmt: skip
_TARGETS = _nullable(TARGET_LIST)
_METHOD = _choice(
    "agglomerative", "affinity", "kmeans", default="agglomerative", description="How usages are clustered."
)
_CLUSTERS = _nullable(_integer("Number of senses; default: chosen from the data.", 1, 50))

REQUESTS: Mapping[str, Schema] = {
    "/v1/words": _object(
        ("inputs",), inputs=_INPUTS, model=_MODEL, layers=LAYERS, targets=_TARGETS,
        dtype=_choice("float32", "float16", default="float32", description="Type of the returned numbers."),
        encoding=_choice(
            "float", "base64", "npy", default="float",
            description="Numbers as JSON, as base64 of little-endian bytes, or as a zip archive for numpy.load.",
        ),
        offsets=_OFFSETS, start=_START,
    ),
    "/v1/similarity": _object(
        ("sentences",), sentences=_list(MARKED, 2, 64, "Sentences with the word."), word=_WORD,
        layers={"anyOf": [{"type": "string", "enum": list(_NAMED_LAYERS)}, LAYER], "default": "sense",
                "description": "The vectors to compare; all compares each layer and their average."},
        start=_START, model=_MODEL, offsets=_OFFSETS,
    ),
    "/v1/substitutes": _object(
        ("inputs",), inputs=_MARKED_INPUTS, word=_WORD, n=_integer("Number of substitutes.", 1, 1000, 10),
        candidates=_nullable(_list(_REQUIRED_WORD, 1, MAX_CANDIDATES, "Rank only these words.")),
        combine=_choice("inject", "bcomb", "product", "mean", "forward", "backward", default="inject",
                        description="How the language models are combined."),
        start=_START, model=_MODEL,
    ),
    "/v1/score": _object(("inputs",), inputs=_INPUTS, start=_START, model=_MODEL, offsets=_OFFSETS),
    "/v1/expectations": _object(
        ("inputs",), inputs=_INPUTS, n=_integer("Number of words per place and direction.", 1, 50, 10),
        model=_MODEL, offsets=_OFFSETS,
    ),
    "/v1/explain": _object(
        ("input",), input=MARKED, word=_WORD, other=_nullable(MARKED),
        method=_choice("leave-out", "replace", "gradient", default="leave-out", description="How scores are computed."),
        layers=_ONE_VECTOR, model=_MODEL, offsets=_OFFSETS,
    ),
    "/v1/neighbors": _object(
        ("inputs",), inputs=_MARKED_INPUTS, word=_WORD, index=_INDEX, k=_integer("Number of neighbors.", 1, 1000, 10),
        among=_choice("all", "same", "others", default="all",
                      description="Search the usages of all words, of the same word, or of other words."),
    ),
    "/v1/concordance": _object(
        ("word",), word=_REQUIRED_WORD, index=_INDEX, limit=_integer("Maximum number of lines.", 1, 10_000, 1000),
        sort=_choice("corpus", "left", "right", "similarity", "meaning", default="corpus",
                     description="Order of the lines; similarity requires `to`."),
        to=_nullable({"anyOf": [{"type": "integer", "minimum": 0, "maximum": 2**53}, MARKED],
                      "description": "The usage, or the marked sentence, that lines are compared with."}),
        seed=_SEED,
    ),
    "/v1/senses": _object(
        ("word",), word=_REQUIRED_WORD, index=_INDEX, limit=_integer("Maximum number of usages.", 2, 2000, 500),
        method=_METHOD, n_clusters=_CLUSTERS, seed=_SEED,
        n_examples=_integer("Number of examples per sense.", 0, 50, 3),
    ),
    "/v1/map": _object(
        ("word",), word=_REQUIRED_WORD, index=_INDEX, limit=_integer("Maximum number of usages.", 2, 10_000, 1000),
        n_clusters=_CLUSTERS, to=_nullable(MARKED), seed=_SEED,
    ),
    "/v1/inside": _object(
        ("input",), input={**MARKED, "description": SENTENCE["description"]}, model=_MODEL, offsets=_OFFSETS,
        token=_integer("Number of the token to show in steps; the last one if there are fewer.", 0, 1_000_000, 0),
    ),
    "/v1/change": _object(
        (), n=_integer("Number of words.", 1, 1000, 50), offset=_integer("Number of words to skip.", 0, 1_000_000, 0),
        query=_nullable({"type": "string", "maxLength": MAX_WORD, "description": "Only words that start like this."}),
    ),
    "/v1/change/word": _object(("word",), word=_REQUIRED_WORD),
}  # fmt: skip


def check(value: Any, schema: Schema, where: str = "") -> Any:
    """Return a value with the defaults of missing fields; raise ``RequestError`` if it does not match the schema."""
    problem = _find_problem(value, schema)
    if problem is not None:
        path, message = problem
        place = (where + path).lstrip(".")
        raise RequestError(f"{place or 'the request'} {message}", param=place or None)
    return _with_defaults(value, schema)


def _with_defaults(value: Any, schema: Schema) -> Any:
    if schema.get("type") != "object":
        return value
    properties = schema["properties"]
    filled = {name: part["default"] for name, part in properties.items() if name not in value and "default" in part}
    numbers = {
        name: _as_integers(item, properties[name])
        for name, item in value.items()
        if isinstance(item, float | list) and name in properties and _may_have_integers(properties[name])
    }
    return {**value, **numbers, **filled}


def _as_integers(value: Any, schema: Schema) -> Any:
    """Return a valid value with numbers such as 3.0 as integers, where integers are expected."""
    if isinstance(value, str) or value is None:
        return value
    if "anyOf" in schema:
        schema = next(part for part in schema["anyOf"] if _find_problem(value, part) is None)
        return _as_integers(value, schema)
    if isinstance(value, float):
        return int(value) if schema["type"] == "integer" else value
    if isinstance(value, list):
        return [_as_integers(item, schema["items"]) for item in value]
    return value


def _may_have_integers(schema: Schema) -> bool:
    if "anyOf" in schema:
        return any(map(_may_have_integers, schema["anyOf"]))
    return schema["type"] == "integer" or (schema["type"] == "array" and _may_have_integers(schema["items"]))


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "array": (list,), "object": (dict,),
    "null": (type(None),), "boolean": (bool,),
}  # fmt: skip
_NAMES = {"string": "a string", "integer": "an integer", "number": "a number", "array": "a list",
          "object": "an object", "null": "null", "boolean": "true or false"}  # fmt: skip


def _find_problem(value: Any, schema: Schema) -> tuple[str, str] | None:
    """Return where a value differs from the schema, and how; None if it matches."""
    if "anyOf" in schema:
        problems = []
        for part in schema["anyOf"]:
            if not _has_type(value, part):
                continue
            problem = _find_problem(value, part)
            if problem is None:
                return None
            problems.append(problem)
        return problems[0] if problems else ("", f"must be {_describe(schema)}; found {_describe_value(value)}")
    kind = schema["type"]
    if not _has_type(value, schema):
        return "", f"must be {_describe(schema)}; found {_describe_value(value)}"
    if kind == "string":
        return _string_problem(value, schema)
    if kind in ("integer", "number"):
        low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        return None if low <= value <= high else ("", f"must be in {low}..{high}; found {value!r:.40}")
    if kind == "array":
        return _array_problem(value, schema)
    return _object_problem(value, schema) if kind == "object" else None


def _has_type(value: Any, schema: Schema) -> bool:
    if "anyOf" in schema:
        return any(_has_type(value, part) for part in schema["anyOf"])
    kind = schema["type"]
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()  # as in JSON Schema
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _string_problem(value: str, schema: Schema) -> tuple[str, str] | None:
    if "enum" in schema and value not in schema["enum"]:
        return "", f"must be one of {', '.join(schema['enum'])}; found {_describe_value(value)}"
    low, high = schema.get("minLength", 0), schema.get("maxLength", MAX_TEXT)
    if not low <= len(value) <= high:
        return "", f"must have {low}..{high} characters; found {len(value)}"
    return None


def _array_problem(value: list[Any], schema: Schema) -> tuple[str, str] | None:
    low, high = schema["minItems"], schema["maxItems"]
    if not low <= len(value) <= high:
        return "", f"must have {low}..{high} items; found {len(value)}"
    for k, item in enumerate(value):
        problem = _find_problem(item, schema["items"])
        if problem is not None:
            return f"[{k}]{problem[0]}", problem[1]
    return None


def _object_problem(value: dict[str, Any], schema: Schema) -> tuple[str, str] | None:
    properties = cast("dict[str, Schema]", schema["properties"])
    for name in schema["required"]:
        if name not in value:
            return f".{name}", "is required"
    for name, item in value.items():
        if name not in properties:
            if schema.get("additionalProperties", True):
                continue
            return "", f"has an unknown field {name[:40]!r}; known fields: {', '.join(properties)}"
        problem = _find_problem(item, properties[name])
        if problem is not None:
            return f".{name}{problem[0]}", problem[1]
    return None


def _describe(schema: Schema) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_describe(part) for part in schema["anyOf"]))
    if "enum" in schema:
        return "one of " + ", ".join(schema["enum"])
    return _NAMES[schema["type"]]


def _describe_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:39] + "…")
    if isinstance(value, int | float):
        return f"{value!r:.40}"
    return "a list" if isinstance(value, list) else "an object"
