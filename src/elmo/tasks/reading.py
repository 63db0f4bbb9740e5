"""A kind of task and files in, the examples that it learns from or is asked about out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elmo.errors import ConfigError
from elmo.tasks.data.columns import read_tagged
from elmo.tasks.data.coreference_files import read_coreference
from elmo.tasks.data.pairs import read_pairs
from elmo.tasks.data.roles import read_roles
from elmo.tasks.data.sources import WHITESPACE, Tokenize
from elmo.tasks.data.squad import read_squad
from elmo.tasks.data.texts import read_texts
from elmo.tasks.kinds.by_name import task_class

_READERS: dict[str, tuple[Callable[..., list[Any]], frozenset[str]]] = {
    "tagging": (read_tagged, frozenset({"words", "tags", "separator", "file_format", "tokenize"})),
    "classification": (read_texts, frozenset({"text", "label", "file_format", "has_header", "tokenize"})),
    "entailment": (
        read_pairs,
        frozenset({"first", "second", "label", "file_format", "has_header", "tokenize"}),
    ),
    "similarity": (
        read_pairs,
        frozenset({"first", "second", "score", "file_format", "has_header", "tokenize"}),
    ),
    "answers": (read_squad, frozenset({"tokenize"})),
    "roles": (read_roles, frozenset({"file_format", "target"})),
    "coreference": (read_coreference, frozenset({"tokenize"})),
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
    task_class(kind)
    reader, known = _READERS[kind]
    given = {name: value for name, value in (options or {}).items() if value is not None}
    if unknown := sorted(set(given) - known):
        raise ConfigError(
            f"{kind} is read without {unknown[0]}; it has {', '.join(sorted(known - {'tokenize'}))}"
        )
    if "tokenize" in known:
        given["tokenize"] = tokenize
    left_out: Counter[str] = Counter()
    if kind in _COUNTED:
        given["left_out"] = left_out
    return Reading(reader(list(paths), is_labelled=is_labelled, **given), left_out)
