"""The name of a kind of task in, its class and its options out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from elmo.errors import ConfigError
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
