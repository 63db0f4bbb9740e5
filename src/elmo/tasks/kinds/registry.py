"""The kinds of tasks by name, and the readers of their files."""

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

KINDS: dict[str, tuple[type[Any], type[Any]]] = {  # the class of the task, and that of its options
    Tagging.kind: (Tagging, TaggingOptions),
    Classification.kind: (Classification, ClassificationOptions),
    Entailment.kind: (Entailment, EntailmentOptions),
    Similarity.kind: (Similarity, SimilarityOptions),
    Answers.kind: (Answers, AnswersOptions),
    Roles.kind: (Roles, RolesOptions),
    Coreference.kind: (Coreference, CoreferenceOptions),
}
PRETOKENIZED = ("tagging", "roles", "coreference")  # labeled files have one word per line
_TABLE = frozenset({"file_format", "has_header", "tokenize"})
_READERS: dict[str, tuple[Callable[..., Iterator[Any]], frozenset[str]]] = {  # and the options of the reader
    "tagging": (each_tagged, frozenset({"words", "tags", "separator", "file_format", "tokenize"})),
    "classification": (each_text, _TABLE | {"text", "label"}),
    "entailment": (each_pair, _TABLE | {"first", "second", "label"}),
    "similarity": (each_pair, _TABLE | {"first", "second", "score"}),
    "answers": (each_question, frozenset({"tokenize"})),
    "roles": (each_predicate, frozenset({"file_format", "target"})),
    "coreference": (each_document, frozenset({"tokenize"})),
}
_COUNTED = ("entailment", "similarity", "answers")  # their readers count the examples that they skip


@dataclass(frozen=True)
class ExampleSet:
    """Examples, and the number of skipped examples by reason."""

    examples: list[Any]
    left_out: Mapping[str, int] = field(default_factory=dict)


def check_kind(kind: str) -> None:
    """Raise ``ConfigError`` for an unknown kind."""
    if kind not in KINDS:
        raise ConfigError(f"kind of task: expected one of {', '.join(KINDS)}, found {kind[:40]!r}")


def build_task(kind: str, examples: Sequence[Any], options: Any = None) -> Any:
    """Create the task of a kind that these training examples define."""
    check_kind(kind)
    return KINDS[kind][0].from_examples(examples, options)


def build_options(kind: str, values: Mapping[str, Any]) -> Any:
    """Create the head options of a kind; a value of None means the default."""
    check_kind(kind)
    options = KINDS[kind][1]
    known = {entry.name for entry in fields(options)}
    chosen = {name: value for name, value in values.items() if value is not None}
    if unknown := sorted(set(chosen) - known):
        raise ConfigError(f"{kind} has no option {unknown[0]!r}; it has: {', '.join(sorted(known))}")
    return options(**chosen)


def read_examples(
    kind: str,
    paths: Sequence[str | Path],
    *,
    is_labelled: bool = True,
    tokenize: Tokenize = WHITESPACE,
    options: Mapping[str, Any] | None = None,
) -> ExampleSet:
    """Read the examples of files.

    Args:
        kind: Kind of task, such as "tagging".
        paths: Files, compressed or not.
        is_labelled: Whether the files have gold labels.
        tokenize: Splits raw text into tokens; not used for files with one word per line.
        options: Options of the reader, such as columns and file format.
    """
    left_out: Counter[str] = Counter()
    values = _reader_options(kind, tokenize=tokenize, options=options)
    if kind in _COUNTED:
        values["left_out"] = left_out
    reader, _ = _READERS[kind]
    return ExampleSet(list(reader(list(paths), is_labelled=is_labelled, **values)), left_out)


def iter_examples(
    kind: str,
    paths: Sequence[str | Path],
    *,
    tokenize: Tokenize = WHITESPACE,
    options: Mapping[str, Any] | None = None,
) -> Iterator[Any]:
    """Read examples without labels one at a time; only SQuAD files are read into memory as a whole."""
    values = _reader_options(kind, tokenize=tokenize, options=options)
    reader, _ = _READERS[kind]
    return reader(list(paths), is_labelled=False, **values)


def _reader_options(kind: str, *, tokenize: Tokenize, options: Mapping[str, Any] | None) -> dict[str, Any]:
    check_kind(kind)
    _, known = _READERS[kind]
    values = {name: value for name, value in (options or {}).items() if value is not None}
    if unknown := sorted(set(values) - known):
        raise ConfigError(
            f"the reader of {kind} has no option {unknown[0]!r}; it has: {', '.join(sorted(known - {'tokenize'}))}"
        )
    return values | ({"tokenize": tokenize} if "tokenize" in known else {})
