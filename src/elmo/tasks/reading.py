"""A kind of task and files in, the examples that it learns from or is asked about out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elmo.errors import ConfigError
from elmo.tasks.data.columns import each_tagged
from elmo.tasks.data.coreference_files import each_document
from elmo.tasks.data.pairs import each_pair
from elmo.tasks.data.roles import each_predicate
from elmo.tasks.data.sources import WHITESPACE, Tokenize
from elmo.tasks.data.squad import each_question
from elmo.tasks.data.texts import each_text
from elmo.tasks.kinds.by_name import task_class

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
