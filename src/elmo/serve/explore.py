"""Routes of the explorer: expectations, the inside of the network, maps of usages, change between periods, and files.

All routes but the files are part of the public API.
"""

from __future__ import annotations

import asyncio
import logging
import mimetypes
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo.errors import DataError, ElmoError
from elmo.lexicon.concordance import arrange_usages, assign_senses, sample_usages, similarities_to
from elmo.lexicon.usages import Usage, Usages, unit_rows
from elmo.serve.native import BYTES_PER_USAGE
from elmo.serve.replies import offsets_json
from elmo.serve.scheduler import cost_of
from elmo.serve.schemas import RequestError
from elmo.serve.service import short_place
from elmo.text.tokenizers import Tokens

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.lexicon.change import Changes, WordChange
    from elmo.lexicon.senses import SubstituteNames
    from elmo.serve.app import App, Call, Handler
    from elmo.serve.service import LoadedIndex, LoadedModel
    from elmo.text.reader import Sentence

logger = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
PREFIX = "/explore/"
CONTENT_SECURITY = (
    b"default-src 'self'; img-src 'self' data: blob:; style-src 'self'; script-src 'self'; object-src 'none'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
N_TYPICAL = 5  # typical sentences per period
_MIN_COUNT = 10  # usages in each period of a word whose change is measured
_CAPITALIZED_NOUNS = ("de", "lb")  # languages that write all nouns with a capital letter, not only names
_EMBEDDING_SHARE = 0.5  # of the time to measure change
_MAX_USAGES = 200  # per word and period; a random sample if there are more
_NAMING_USAGES = 6  # typical usages of a sense whose substitutes name it
_NAMING_CONTEXT = 15  # tokens before and after such a usage that the model reads
_FORM_SHARE = 0.75  # of the usages of a sense that have the same spelling, and of the others that do not
_MAX_ANSWERS = 100  # answers about words that are kept
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
    unit = request["offsets"]
    values = await app.build(call, lambda: [
        {**result.to_json(), "offsets": offsets_json(tokens.text, tokens.offsets, unit)}
        for tokens, result in zip(tokenized, results, strict=True)
    ])  # fmt: skip
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
    call.reply_size = BYTES_PER_USAGE * request["limit"]
    await app.send_json(call, answer)


def map_usages(index: LoadedIndex, request: dict[str, Any]) -> dict[str, Any]:
    """Arrange the usages of a word on a map, with a sense for each."""
    word, seed = request["word"], request["seed"]
    numbers, usages = sample_usages(index.index, word, limit=request["limit"], seed=seed)
    name_of = index.model.name_of()
    senses = assign_senses(
        usages,
        word=word,
        n_clusters=request["n_clusters"],
        name_of=None if name_of is None else lambda _: (),
        seed=seed,
    )
    names = senses.names
    if name_of is not None:
        names = _name_senses(name_of, usages.items, senses.labels, senses.similarities)
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
    sizes = np.bincount(senses.labels, minlength=len(names) + 1)
    return {
        "object": "map", "index": index.name, "word": word, "total": len(index.index.numbers(word)), "lines": lines,
        "senses": [
            {"sense": k, "name": name, "form": _find_form([line["word"] for line in lines], senses.labels == k),
             "share": float(sizes[k]) / len(lines), "usages": int(sizes[k])}
            for k, name in enumerate(names, start=1)
        ],
    }  # fmt: skip


def _find_form(forms: Sequence[str], is_sense: Any) -> str | None:
    """Return the spelling that sets a sense apart, such as State for state; None if there is none.

    Words of an index are encoded as they are written, so that a group may be a spelling as well as a sense.
    """
    inside, outside = (Counter(form for form, is_own in zip(forms, mask, strict=True) if is_own)
                       for mask in (is_sense, ~is_sense))  # fmt: skip
    if not inside or not outside:
        return None
    form, n = inside.most_common(1)[0]
    is_typical = n >= _FORM_SHARE * inside.total() and outside[form] <= (1 - _FORM_SHARE) * outside.total()
    return form if is_typical else None


def _name_senses(
    name_of: SubstituteNames, usages: Sequence[Usage], labels: Any, similarities: Any
) -> Sequence[Sequence[str]]:
    """Name the senses 1, 2, … from a few short contexts of each, all together, so that a page does not wait for names.

    Args:
        name_of: Names senses.
        usages: The usages of a word.
        labels: The sense of each usage (usage,).
        similarities: How typical each usage is for its sense (usage,).
    """
    order = np.argsort(-similarities, kind="stable")
    typical = [order[labels[order] == sense][:_NAMING_USAGES].tolist() for sense in range(1, int(labels.max()) + 1)]
    return name_of.name_groups([[_crop(usages[k]) for k in rows] for rows in typical])


def _crop(usage: Usage) -> Usage:
    """Return a usage with the nearest tokens of its sentence."""
    first = max(0, usage.begin - _NAMING_CONTEXT)
    tokens = Tokens.from_words(usage.sentence.tokens[first : usage.end + _NAMING_CONTEXT])
    return Usage(tokens, usage.begin - first, usage.end - first, usage.place)


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
    def measure(
        cls,
        corpora: Mapping[str, Path],
        model: LoadedModel,
        *,
        max_words: int = 200,
        on_progress: Callable[[float], None] | None = None,
    ) -> Periods:
        """Measure the change of frequent content words between corpora; this can take minutes.

        Args:
            corpora: The text file of each period, in order of time.
            model: The model.
            max_words: Number of words to measure, the most frequent first.
            on_progress: Called with the share of the work that is done, when the texts have been read.
        """
        from elmo.lexicon.change import ChangeOptions, change_in_corpora
        from elmo.text.reader import read_sentences

        elmo = model.second
        readers = {
            name: partial(read_sentences, [str(path)], tokenizer=elmo.tokenizer) for name, path in corpora.items()
        }
        # The average distance, apd, is largest for words with many senses in any period; mmd is not.
        options = ChangeOptions(measure="mmd", keep_usages=True, n_examples=N_TYPICAL, min_count=_MIN_COUNT)
        words = find_content_words(elmo, readers, max_words=max_words)

        def report(share: float) -> None:
            if on_progress is not None:
                on_progress(share)

        changes = change_in_corpora(
            elmo, readers, words=words, options=options, layers="top", limit=_MAX_USAGES,
            on_progress=lambda n, total: report(_EMBEDDING_SHARE * n / max(total, 1)),
            on_measured=lambda n, total: report(_EMBEDDING_SHARE + (1 - _EMBEDDING_SHARE) * n / max(total, 1)),
        )  # fmt: skip
        # The lower end of the interval ranks a word high only if it is sure to have changed.
        ranked = sorted(changes.words, key=lambda word: -word.overall.low)
        return cls(replace(changes, words=tuple(ranked)), model)

    def rank(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer /v1/change: words by the lower end of the interval of their change, the largest first."""
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
            "senses": _describe_senses(usages, labels, periods, len(names), self.model.name_of()),
            "lines": lines, "typical": _typical_lines(usages, periods, len(names)),
        }  # fmt: skip


def find_content_words(
    elmo: Elmo, readers: Mapping[str, Callable[[], Iterable[Sentence]]], *, max_words: int
) -> list[str]:
    """Return the most frequent words of all periods that are neither function words nor names.

    A word is taken for a name if it is mostly written with a capital letter, except in languages in which all nouns
    are; see ``is_function_word``.
    """
    from elmo.lexicon.change import WordCounter, frequent_words
    from elmo.lexicon.function_words import is_function_word
    from elmo.lexicon.substitutes import tokenizer_language
    from elmo.lexicon.usages import WordFilter, entry_key

    key = entry_key(elmo)
    counts: list[Counter[str]] = []
    capitalized: Counter[str] = Counter()
    for period, read in readers.items():
        text = WordCounter(read(), WordFilter(None, key=key))
        for sentence in text:  # the first word of a sentence has a capital letter in any case
            capitalized.update(key(token) for token in sentence.tokens.tokens[1:] if token[:1].isupper())
        if not text.n_tokens:
            raise DataError(f"{period[:80]}: expected text for this period, found no words")
        counts.append(text.counts)
    total = sum(counts, Counter[str]())
    frequent = frequent_words(counts, min_count=_MIN_COUNT, max_words=len(total), skip=0)
    if tokenizer_language(elmo) in _CAPITALIZED_NOUNS:
        capitalized.clear()
    words = [
        word for word in frequent if not is_function_word(word, total) and capitalized[word] <= total[word] / 2
    ][:max_words]  # fmt: skip
    if not words:
        raise DataError(
            f"expected words, except function words, that occur {_MIN_COUNT} times in each period; found none"
        )
    return words


class PeriodsJob:
    """Measures the change of words when it is asked for, in a thread, so that other views can be used meanwhile.

    Attributes:
        names: The names of the periods.
    """

    def __init__(self, corpora: Mapping[str, Path], model: LoadedModel) -> None:
        """Keep what to measure; ``describe`` starts the thread."""
        self.names = tuple(corpora)
        self._measure = partial(Periods.measure, corpora, model, on_progress=self._on_progress)
        self._progress: float | None = None  # None while the texts are read
        self._result: Periods | None = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def _run(self) -> None:
        try:
            self._result = self._measure()
        except Exception as error:  # shown by the page
            self._error = error
            logger.error("cannot compare the periods: %s", error)

    def _on_progress(self, share: float) -> None:
        self._progress = share

    def wait(self) -> Periods:
        """Measure the change in this thread, and return the result."""
        if self._result is None:
            self._result = self._measure()
        return self._result

    def get(self) -> Periods:
        """Return the result; raise ``RequestError`` if it is not there."""
        if self._error is not None:
            known = isinstance(self._error, ElmoError)  # others may name files of the server
            reason = str(self._error) if known else type(self._error).__name__
            raise RequestError(f"the periods cannot be compared: {reason}", status=422, code="periods_failed")
        if self._result is None:
            self.describe()
            raise RequestError("the periods are being compared", status=503, code="periods_loading")
        return self._result

    def describe(self) -> dict[str, Any]:
        """Answer /v1/periods: whether the result is there, or how far the work is; the first request starts it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="elmo-periods", daemon=True)
            self._thread.start()
        if self._result is None and self._error is None:
            stage = "read" if self._progress is None else "measure"
            status: dict[str, Any] = {"status": "measuring", "stage": stage, "progress": self._progress, "words": None}
        else:
            status = {"status": "ready", "stage": None, "progress": 1.0, "words": len(self.get().changes.words)}
        return {"object": "periods", "periods": list(self.names), **status}


def _describe_senses(
    usages: Usages, labels: Any, periods: Any, n_periods: int, name_of: SubstituteNames | None
) -> list[dict[str, Any]]:
    units, numbers = unit_rows(usages.vectors), range(1, int(labels.max()) + 1)
    centers = np.stack([units[labels == label].mean(axis=0) for label in numbers])
    names: Sequence[Sequence[str]] = [()] * len(numbers)
    if name_of is not None:
        names = _name_senses(name_of, usages.items, labels, (units * centers[labels - 1]).sum(axis=1))
    return [
        {
            "sense": label, "name": list(name), "usages": int((labels == label).sum()),
            "shares": [float((labels[periods == k] == label).mean()) for k in range(n_periods)],
        }
        for label, name in zip(numbers, names, strict=True)
    ]  # fmt: skip


def _typical_lines(usages: Usages, periods: Any, n_periods: int) -> list[list[int]]:
    """Return for each period the usages that are nearest to its center compared with the centers of the others.

    A sentence is listed once, even if it occurs several times or has the word more than once.
    """
    units = unit_rows(usages.vectors)
    centers = np.stack([units[periods == k].mean(axis=0) for k in range(n_periods)])
    typical = []
    for k in range(n_periods):
        others = np.delete(centers, k, axis=0).mean(axis=0)
        rows = np.flatnonzero(periods == k)
        scores = units[rows] @ (centers[k] - others)
        first: dict[tuple[str, ...], int] = {}
        for row in rows[np.argsort(-scores, kind="stable")].tolist():
            first.setdefault(usages.items[row].sentence.tokens, row)
        typical.append(list(first.values())[:N_TYPICAL])
    return typical


def _require_periods(app: App) -> PeriodsJob:
    periods = app.ready().periods
    if periods is None:
        raise RequestError(
            "this server has no periods; start it with: elmo explore --corpus NAME=FILE --corpus NAME=FILE", status=404,
            code="periods_not_found",
        )  # fmt: skip
    return periods


async def get_periods(app: App, call: Call) -> None:
    """Answer /v1/periods."""
    await app.send_json(call, _require_periods(app).describe())


async def post_change(app: App, call: Call) -> None:
    """Answer /v1/change."""
    _, request = await app.read_request(call, app.calls)
    await app.send_json(call, _require_periods(app).get().rank(request))


async def post_change_word(app: App, call: Call) -> None:
    """Answer /v1/change/word."""
    _, request = await app.read_request(call, app.calls)
    answer = await app.run(call, 500, partial(_require_periods(app).get().describe_word, request["word"]))
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
