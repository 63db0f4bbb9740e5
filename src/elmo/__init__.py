"""ELMo: a vector for every word that depends on its whole sentence.

>>> from elmo import Elmo
>>> elmo = Elmo.from_pretrained("path/or/hub-id")
>>> elmo.encode("I sat by the bank of the river .").vectors.shape
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from elmo.errors import (
    ChecksumError,
    ConfigError,
    DataError,
    ElmoError,
    EncodingError,
    FormatError,
    MissingExtraError,
    OutputError,
    SentenceTooLongError,
    ShapeError,
    StateError,
    TrainingError,
)

if TYPE_CHECKING:
    from elmo.config import BiLmConfig
    from elmo.embed.elmo import Elmo
    from elmo.embed.encoding import Encoding, similarity
    from elmo.embed.start import Carry
    from elmo.formats.loading import convert
    from elmo.jobs.reader import read_embeddings
    from elmo.model.bilm import BiLm, Layers
    from elmo.model.mix import LayerMix, LayerMixes
    from elmo.plots.training import draw_curves
    from elmo.predict.perplexity import perplexity
    from elmo.train.run import resume_bilm, train_bilm

__version__ = "0.1.0"

__all__ = [
    "BiLm",
    "BiLmConfig",
    "Carry",
    "ChecksumError",
    "ConfigError",
    "DataError",
    "Elmo",
    "ElmoError",
    "Encoding",
    "EncodingError",
    "FormatError",
    "LayerMix",
    "LayerMixes",
    "Layers",
    "MissingExtraError",
    "OutputError",
    "SentenceTooLongError",
    "ShapeError",
    "StateError",
    "TrainingError",
    "convert",
    "draw_curves",
    "perplexity",
    "read_embeddings",
    "resume_bilm",
    "similarity",
    "train_bilm",
]

# Imported when first asked for: torch alone takes over a second, and `import elmo` must not.
_ROOMS = {
    "BiLm": "elmo.model.bilm",
    "BiLmConfig": "elmo.config",
    "Carry": "elmo.embed.start",
    "Elmo": "elmo.embed.elmo",
    "Encoding": "elmo.embed.encoding",
    "LayerMix": "elmo.model.mix",
    "LayerMixes": "elmo.model.mix",
    "Layers": "elmo.model.bilm",
    "convert": "elmo.formats.loading",
    "draw_curves": "elmo.plots.training",
    "perplexity": "elmo.predict.perplexity",
    "read_embeddings": "elmo.jobs.reader",
    "resume_bilm": "elmo.train.run",
    "similarity": "elmo.embed.encoding",
    "train_bilm": "elmo.train.run",
}


def __getattr__(name: str) -> Any:
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module 'elmo' has no attribute {name!r}")
    value = getattr(importlib.import_module(room), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
