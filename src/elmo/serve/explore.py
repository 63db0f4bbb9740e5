"""Routes of the explorer: expectations, the inside of the network, maps of usages, change between periods, and files.

All routes but the files are part of the public API.
"""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo.errors import DataError
from elmo.lexicon.concordance import arrange_usages, assign_senses, sample_usages, similarities_to
from elmo.lexicon.usages import Usages, unit_rows
from elmo.serve.replies import offsets_json, to_json
from elmo.serve.scheduler import cost_of
from elmo.serve.schemas import RequestError
from elmo.serve.service import short_place

if TYPE_CHECKING:
    from elmo.lexicon.change import Changes, WordChange
    from elmo.lexicon.senses import NameOf
    from elmo.serve.app import App, Call, Handler
    from elmo.serve.service import LoadedIndex, LoadedModel

STATIC = Path(__file__).parent / "static"
PREFIX = "/explore/"
CONTENT_SECURITY = (
    b"default-src 'self'; img-src 'self' data: blob:; style-src 'self'; script-src 'self'; object-src 'none'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
N_TYPICAL = 5  # typical sentences per period
_NAMING_USAGES = 8  # typical usages of a sense whose substitutes name it
_MAX_ANSWERS = 100  # answers about words that are kept
_MAP_COST = 1000  # cost of clustering and naming the senses of a word, in tokens to encode
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
}


def build_routes(app: App) -> dict[str, dict[str, Handler]]:
    """Return the routes with their handlers."""
    return {
        "/v1/expectations": {"POST": partial(post_expectations, app)},
        "/v1/inside": {"POST": partial(post_inside, app)},
        "/v1/map": {"POST": partial(post_map, app)},
        "/v1/periods": {"GET": partial(get_periods, app)},
        "/v1/change": {"POST": partial(post_change, app)},
        "/v1/change/word": {"POST": partial(post_change_word, app)},
        "/": {"GET": partial(redirect, app)},
        **{path: {"GET": partial(get_file, app, file)} for path, file in list_files().items()},
    }


# --- Sentences --------------------------------------------------------------------------------------


async def post_expectations(app: App, call: Call) -> None:
    """Answer /v1/expectations."""
    service, request = await app.read_request(call, app.calls)
    model = service.model(request["model"])
    inputs = request["inputs"]
    sentences = [inputs] if isinstance(inputs, str) else inputs
    tokenized = await app.tokenize_inputs(call, model, sentences)
    app.reserve_reply(call, 2 * 4 * call.n_tokens * request["n"])
    results = await app.run(call, 2 * cost_of(tokenized), partial(model.expect, tokenized, request["n"]))
    values = [
        {**result.to_json(), "offsets": offsets_json(tokens.text, tokens.offsets, request["offsets"])}
        for tokens, result in zip(tokenized, results, strict=True)
    ]
    usage = {"inputs": len(sentences), "tokens": call.n_tokens}
    await app.send_json(call, {"object": "expectations", "model": model.name, "results": values, "usage": usage})


async def post_inside(app: App, call: Call) -> None:
    """Answer /v1/inside."""
    from elmo.embed.inside import look_inside

    service, request = await app.read_request(call, app.calls)
    model = service.model(request["model"])
    (tokens,) = await app.tokenize_inputs(call, model, [request["input"]])
    app.reserve_reply(call, model.vector_size("all") * call.n_tokens)
    # A reader who edits a sentence can make it shorter than the token that is shown.
    token = min(request["token"], max(len(tokens) - 1, 0))
    inside = await app.run(call, cost_of([tokens]), partial(look_inside, model.second, request["input"], token=token))
    offsets = offsets_json(tokens.text, tokens.offsets, request["offsets"])
    await app.send_json(call, {"object": "inside", "model": model.name, **inside.to_json(), "offsets": offsets})


# --- Index ------------------------------------------------------------------------------------------


async def post_map(app: App, call: Call) -> None:
    """Answer /v1/map."""
    service, request = await app.read_request(call, app.calls)
    index = service.index(request["index"])
    answer = await app.run(call, 2 * request["limit"], partial(map_usages, index, request))
    await app.send(call, [await asyncio.to_thread(to_json, answer)])


def map_usages(index: LoadedIndex, request: dict[str, Any]) -> dict[str, Any]:
    """Arrange the usages of a word on a map, with a sense for each."""
    word, seed = request["word"], request["seed"]
    numbers, usages = sample_usages(index.index, word, limit=request["limit"], seed=seed)
    senses = assign_senses(
        usages, word=word, n_clusters=request["n_clusters"], name_of=_name_quickly(index.model), seed=seed
    )
    positions = arrange_usages(usages.vectors)
    similarities = (
        None if request["to"] is None else similarities_to(index.index, usages, index.model.second, request["to"])
    )
    lines = [
        {
            **_usage_json(usage), "number": int(numbers[k]), "x": positions[k, 0], "y": positions[k, 1],
            "sense": int(senses.labels[k]), "typical": round(float(senses.similarities[k]), 4),
            "similarity": None if similarities is None else round(float(similarities[k]), 6),
        }
        for k, usage in enumerate(usages.items)
    ]  # fmt: skip
    sizes = np.bincount(senses.labels, minlength=len(senses.names) + 1)
    return {
        "object": "map", "index": index.name, "word": word, "total": len(index.index.numbers(word)), "lines": lines,
        "senses": [
            {"sense": k, "name": name, "share": float(sizes[k]) / len(lines), "usages": int(sizes[k])}
            for k, name in enumerate(senses.names, start=1)
        ],
    }  # fmt: skip


def _name_quickly(model: LoadedModel) -> NameOf | None:
    """Return a function that names a sense from a few typical usages, so that a page does not wait for names."""
    name_of = model.name_of()
    return None if name_of is None else lambda usages: name_of(usages[:_NAMING_USAGES])


def _usage_json(usage: Any) -> dict[str, Any]:
    before, word, after = usage.parts()
    return {"before": before, "word": word, "after": after, "place": short_place(usage.place)}


# --- Periods ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Periods:
    """The change of words between the corpora of several periods, with their usages."""

    changes: Changes
    model: LoadedModel
    _answers: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]], repr=False, compare=False)

    @classmethod
    def measure(cls, corpora: Mapping[str, Path], model: LoadedModel, *, max_words: int = 300) -> Periods:
        """Measure the change of frequent words between corpora; this can take minutes."""
        from elmo.lexicon.change import ChangeOptions, change_in_corpora
        from elmo.text.reader import read_sentences

        elmo = model.second
        readers = {
            name: partial(read_sentences, [str(path)], tokenizer=elmo.tokenizer) for name, path in corpora.items()
        }
        options = ChangeOptions(keep_usages=True, n_examples=N_TYPICAL)
        changes = change_in_corpora(
            elmo, readers, options=options, layers="top", max_words=max_words, limit=200, skip=100
        )
        return cls(changes, model)

    def rank(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer /v1/change: words by their change, the largest first."""
        query = (request["query"] or "").lower()
        words = [word for word in self.changes.words if word.word.lower().startswith(query)]
        rows = [self._row(word) for word in words[request["offset"] : request["offset"] + request["n"]]]
        return {"object": "change", "periods": self.changes.periods, "measure": self.changes.measure, "words": rows,
                "total": len(words), "correlation_with_frequency": self.changes.frequency_correlation}  # fmt: skip

    def _row(self, word: WordChange) -> dict[str, Any]:
        step, names = word.overall, self.changes.periods
        return {
            "word": word.word, "score": step.value, "low": step.low, "high": step.high, "p": step.p, "q": step.q,
            "usages": [word.n_usages[name] for name in names],
            "frequency": None if word.per_million is None else [word.per_million[name] for name in names],
        }  # fmt: skip

    def describe_word(self, word: str) -> dict[str, Any]:
        """Answer /v1/change/word: senses, usages and typical sentences of one word by period."""
        answer = self._answers.get(word)
        if answer is None:
            answer = self._describe_word(word)
            if len(self._answers) >= _MAX_ANSWERS:
                self._answers.clear()
            self._answers[word] = answer
        return answer

    def _describe_word(self, word: str) -> dict[str, Any]:
        names = self.changes.periods
        change = next((item for item in self.changes.words if item.word == word), None)
        if change is None or change.usages is None or change.labels is None:
            raise DataError(f"{word[:40]!r} was not measured; it is too rare, or it does not occur in every period")
        items = [usage for name in names for usage in change.usages[name].items]
        periods = np.concatenate([np.full(len(change.usages[name]), k) for k, name in enumerate(names)])
        vectors = np.concatenate([change.usages[name].vectors for name in names])
        positions, labels = arrange_usages(vectors), change.labels + 1
        lines = [
            {**_usage_json(usage), "period": int(periods[k]), "x": positions[k, 0], "y": positions[k, 1],
             "sense": int(labels[k])}
            for k, usage in enumerate(items)
        ]  # fmt: skip
        usages = Usages(tuple(items), vectors)
        return {
            "object": "change_word", "periods": names, **self._row(change),
            "senses": _describe_senses(usages, labels, periods, len(names), _name_quickly(self.model)),
            "lines": lines, "typical": _typical_lines(vectors, periods, len(names)),
        }  # fmt: skip


def _describe_senses(
    usages: Usages, labels: Any, periods: Any, n_periods: int, name_of: NameOf | None
) -> list[dict[str, Any]]:
    units = unit_rows(usages.vectors)
    senses = []
    for label in range(1, int(labels.max()) + 1):
        rows = np.flatnonzero(labels == label)
        center = units[rows].mean(axis=0)
        typical = rows[np.argsort(-(units[rows] @ center), kind="stable")]
        names = [] if name_of is None else list(name_of([usages.items[int(k)] for k in typical]))
        shares = [float((labels[periods == k] == label).mean()) for k in range(n_periods)]
        senses.append({"sense": label, "name": names, "shares": shares, "usages": len(rows)})
    return senses


def _typical_lines(vectors: Any, periods: Any, n_periods: int) -> list[list[int]]:
    """Return for each period the usages that are nearest to its center compared with the centers of the others."""
    units = unit_rows(vectors)
    centers = np.stack([units[periods == k].mean(axis=0) for k in range(n_periods)])
    typical = []
    for k in range(n_periods):
        others = np.delete(centers, k, axis=0).mean(axis=0)
        rows = np.flatnonzero(periods == k)
        scores = units[rows] @ (centers[k] - others)
        typical.append(rows[np.argsort(-scores, kind="stable")][:N_TYPICAL].tolist())
    return typical


def _require_periods(app: App) -> Periods:
    periods = app.ready().periods
    if periods is None:
        raise RequestError(
            "this server has no periods; start it with: elmo explore --corpus NAME=FILE --corpus NAME=FILE", status=404,
            code="periods_not_found",
        )  # fmt: skip
    return periods


async def get_periods(app: App, call: Call) -> None:
    """Answer /v1/periods."""
    periods = _require_periods(app)
    value = {"object": "periods", "periods": periods.changes.periods, "words": len(periods.changes.words)}
    await app.send_json(call, value)


async def post_change(app: App, call: Call) -> None:
    """Answer /v1/change."""
    _, request = await app.read_request(call, app.calls)
    await app.send_json(call, _require_periods(app).rank(request))


async def post_change_word(app: App, call: Call) -> None:
    """Answer /v1/change/word."""
    _, request = await app.read_request(call, app.calls)
    answer = await app.run(call, 500, partial(_require_periods(app).describe_word, request["word"]))
    await app.send_json(call, answer)


# --- Files ------------------------------------------------------------------------------------------


def list_files() -> dict[str, Path]:
    """Return the files of the page by path. Only these are served: no path of a request is used to open a file."""
    files = {PREFIX + file.relative_to(STATIC).as_posix(): file for file in sorted(STATIC.rglob("*")) if file.is_file()}
    if PREFIX + "index.html" in files:
        files[PREFIX] = files[PREFIX + "index.html"]
    return files


async def redirect(app: App, call: Call) -> None:
    """Redirect / to the page."""
    call.extra_headers.append((b"location", PREFIX.encode()))
    await app.send(call, [], status=307)


async def get_file(app: App, file: Path, call: Call) -> None:
    """Send a file of the page."""
    kind = _TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    call.extra_headers += [(b"content-security-policy", CONTENT_SECURITY), (b"referrer-policy", b"no-referrer")]
    body = await asyncio.to_thread(file.read_bytes)
    await app.send(call, [body], content_type=kind)
