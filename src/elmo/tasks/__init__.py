"""The paper's downstream tasks: data, vectors, heads, fitting, scores.

>>> from elmo import Elmo
>>> from elmo.tasks import Tagging, TaskModel, VectorChoice, WordSources, read_examples
>>> train = read_examples("tagging", ["train.conll"]).examples
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elmo.tasks.fit import FitOptions
    from elmo.tasks.kinds.answers import Answers
    from elmo.tasks.kinds.classification import Classification
    from elmo.tasks.kinds.coreference import Coreference
    from elmo.tasks.kinds.entailment import Entailment
    from elmo.tasks.kinds.roles import Roles
    from elmo.tasks.kinds.similarity import Similarity
    from elmo.tasks.kinds.tagging import Tagging
    from elmo.tasks.reading import read_examples
    from elmo.tasks.task_model import TaskModel
    from elmo.tasks.vectors.encoders import TransformerEncoder
    from elmo.tasks.vectors.layer_cache import LayerCache
    from elmo.tasks.vectors.static import read_static
    from elmo.tasks.vectors.word_vectors import VectorChoice
    from elmo.tasks.word_sources import WordSources

__all__ = [
    "Answers",
    "Classification",
    "Coreference",
    "Entailment",
    "FitOptions",
    "LayerCache",
    "Roles",
    "Similarity",
    "Tagging",
    "TaskModel",
    "TransformerEncoder",
    "VectorChoice",
    "WordSources",
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
    "LayerCache": "vectors.layer_cache",
    "Roles": "kinds.roles",
    "Similarity": "kinds.similarity",
    "Tagging": "kinds.tagging",
    "TaskModel": "task_model",
    "TransformerEncoder": "vectors.encoders",
    "VectorChoice": "vectors.word_vectors",
    "WordSources": "word_sources",
    "read_examples": "reading",
    "read_static": "vectors.static",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'elmo.tasks' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"elmo.tasks.{_ROOMS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
