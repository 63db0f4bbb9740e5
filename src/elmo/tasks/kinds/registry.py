"""The name of a kind of task in, its class and its options out.

A kind of task and files in, the examples that it learns from or is asked about out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from elmo.errors import ConfigError
from elmo.tasks.data.coreference import each_document
from elmo.tasks.data.files import WHITESPACE, Tokenize
from elmo.tasks.data.roles import each_predicate
from elmo.tasks.data.squad import each_question
from elmo.tasks.data.tagging import each_tagged
from elmo.tasks.data.texts import each_pair, each_text
from elmo.tasks.kinds.answers import Answers, AnswersOptions
from elmo.tasks.kinds.classification import Classification, ClassificationOptions
from elmo.tasks.kinds.coreference import Coreference, CoreferenceOptions
from elmo.tasks.kinds.entailment import Entailment, EntailmentOptions
from elmo.tasks.kinds.roles import Roles, RolesOptions
from elmo.tasks.kinds.similarity import Similarity, SimilarityOptions
from elmo.tasks.kinds.tagging import Tagging, TaggingOptions

Kind = (
    type[Tagging] | type[Classification] | type[Entailment] | type[Similarity] | type[Answers] | type[Roles]
    | type[Coreference]
)  # fmt: skip
KINDS: dict[str, tuple[Kind, type[Any]]] = {
    Tagging.kind: (Tagging, TaggingOptions),
    Classification.kind: (Classification, ClassificationOptions),
    Entailment.kind: (Entailment, EntailmentOptions),
    Similarity.kind: (Similarity, SimilarityOptions),
    Answers.kind: (Answers, AnswersOptions),
    Roles.kind: (Roles, RolesOptions),
    Coreference.kind: (Coreference, CoreferenceOptions),
}


def task_class(kind: str) -> Kind:
    """The class of a kind."""
    if kind not in KINDS:
        raise ConfigError(f"the kinds of tasks are {', '.join(KINDS)}; found {kind[:40]!r}")
    return KINDS[kind][0]


def task_options(kind: str, given: Mapping[str, Any]) -> Any:
    """The options of a kind's head, those that were given in place of the usual ones."""
    task_class(kind)
    options = KINDS[kind][1]
    known = {one.name for one in fields(options)}
    chosen = {name: value for name, value in given.items() if value is not None}
    if unknown := sorted(set(chosen) - known):
        raise ConfigError(f"{kind} has no option {unknown[0]}; it has {', '.join(sorted(known))}")
    return options(**chosen)


_READERS: dict[str, tuple[Callable[..., Iterator[Any]], frozenset[str]]] = {
    "tagging": (each_tagged, frozenset({"words", "tags", "separator", "file_format", "tokenize"})),
    "classification": (each_text, frozenset({"text", "label", "file_format", "has_header", "tokenize"})),
    "entailment": (
        each_pair,
        frozenset({"first", "second", "label", "file_format", "has_header", "tokenize"}),
    ),
    "similarity": (
        each_pair,
        frozenset({"first", "second", "score", "file_format", "has_header", "tokenize"}),
    ),
    "answers": (each_question, frozenset({"tokenize"})),
    "roles": (each_predicate, frozenset({"file_format", "target"})),
    "coreference": (each_document, frozenset({"tokenize"})),
}
_COUNTED = ("entailment", "similarity", "answers")  # whose readers leave some examples out, and count them


@dataclass(frozen=True)
class Reading:
    """Examples, and how many were left out for which reason."""

    examples: list[Any]
    left_out: Mapping[str, int] = field(default_factory=dict)


def read_examples(
    kind: str,
    paths: Sequence[str | Path],
    *,
    is_labelled: bool = True,
    tokenize: Tokenize = WHITESPACE,
    options: Mapping[str, Any] | None = None,
) -> Reading:
    """The examples of all ``paths``; ``options`` are those of the kind's reader (columns, formats)."""
    left_out: Counter[str] = Counter()
    given = _reader_options(kind, tokenize=tokenize, options=options)
    if kind in _COUNTED:
        given["left_out"] = left_out
    reader, _ = _READERS[kind]
    return Reading(list(reader(list(paths), is_labelled=is_labelled, **given)), left_out)


def each_example(
    kind: str,
    paths: Sequence[str | Path],
    *,
    tokenize: Tokenize = WHITESPACE,
    options: Mapping[str, Any] | None = None,
) -> Iterator[Any]:
    """Examples without labels, read as they are asked for: no file is held whole, except SQuAD's."""
    given = _reader_options(kind, tokenize=tokenize, options=options)
    reader, _ = _READERS[kind]
    return reader(list(paths), is_labelled=False, **given)


def _reader_options(kind: str, *, tokenize: Tokenize, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a kind's reader is given; ``ConfigError`` for an option that it has not."""
    task_class(kind)
    _, known = _READERS[kind]
    given = {name: value for name, value in (options or {}).items() if value is not None}
    if unknown := sorted(set(given) - known):
        raise ConfigError(
            f"{kind} is read without {unknown[0]}; it has {', '.join(sorted(known - {'tokenize'}))}"
        )
    return given | ({"tokenize": tokenize} if "tokenize" in known else {})
