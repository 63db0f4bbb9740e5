"""The paper's downstream tasks: data, vectors, heads, fitting, scores.

>>> from elmo import Elmo
>>> from elmo.tasks import Tagging, TaskModel, Features, FeatureStore, read_examples
>>> train = read_examples("tagging", ["train.conll"]).examples
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elmo.tasks.features.encoders import TransformerEncoder
    from elmo.tasks.features.layer import Features
    from elmo.tasks.features.static import read_static
    from elmo.tasks.features.store import FeatureCache, FeatureStore
    from elmo.tasks.fit import FitOptions
    from elmo.tasks.kinds.answers import Answers
    from elmo.tasks.kinds.classification import Classification
    from elmo.tasks.kinds.coreference import Coreference
    from elmo.tasks.kinds.entailment import Entailment
    from elmo.tasks.kinds.registry import read_examples
    from elmo.tasks.kinds.roles import Roles
    from elmo.tasks.kinds.similarity import Similarity
    from elmo.tasks.kinds.tagging import Tagging
    from elmo.tasks.model import TaskModel

__all__ = [
    "Answers",
    "Classification",
    "Coreference",
    "Entailment",
    "FitOptions",
    "FeatureCache",
    "Roles",
    "Similarity",
    "Tagging",
    "TaskModel",
    "TransformerEncoder",
    "Features",
    "FeatureStore",
    "read_examples",
    "read_static",
]

# Imported when first asked for, as at the front door: a shell command that reads no task needs none of it.
_ROOMS = {
    "Answers": "kinds.answers",
    "Classification": "kinds.classification",
    "Coreference": "kinds.coreference",
    "Entailment": "kinds.entailment",
    "FitOptions": "fit",
    "FeatureCache": "features.store",
    "Roles": "kinds.roles",
    "Similarity": "kinds.similarity",
    "Tagging": "kinds.tagging",
    "TaskModel": "model",
    "TransformerEncoder": "features.encoders",
    "Features": "features.layer",
    "FeatureStore": "features.store",
    "read_examples": "kinds.registry",
    "read_static": "features.static",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'elmo.tasks' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"elmo.tasks.{_ROOMS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
