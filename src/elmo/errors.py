"""The errors that elmo raises.

::

    ElmoError
    ├── ConfigError              an option is out of range, or options contradict each other
    ├── FormatError              the files of a model are damaged, incomplete or of an unknown format
    │   └── ChecksumError        a file does not have its recorded SHA-256
    ├── DataError                a text or an embedding file cannot be used
    │   ├── EncodingError        a text file is not UTF-8
    │   └── SentenceTooLongError a sentence is longer than the limit
    ├── ShapeError               tensors do not fit together
    ├── StateError               a start state is missing or belongs to another model
    ├── OutputError              an output cannot be written, or belongs to another job
    ├── TrainingError            a training run cannot continue
    └── MissingExtraError        an optional library is not installed

A message says in one line what is wrong, what was expected, what was found and what to do. The command line
prints it unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "ChecksumError",
    "ConfigError",
    "DataError",
    "ElmoError",
    "EncodingError",
    "FormatError",
    "MissingExtraError",
    "OutputError",
    "SentenceTooLongError",
    "ShapeError",
    "StateError",
    "TrainingError",
]


class ElmoError(Exception):
    """Base class of all errors that elmo raises, with a message of one line."""


class ConfigError(ElmoError):
    """An option is out of range, or options contradict each other."""


class FormatError(ElmoError):
    """The files of a model are damaged, incomplete or of an unknown format."""


class ChecksumError(FormatError):
    """A file does not have its recorded SHA-256."""


class DataError(ElmoError):
    """A text or an embedding file cannot be used."""


class EncodingError(DataError):
    """A text file is not UTF-8; the message states the line and the byte."""


class SentenceTooLongError(DataError):
    """A sentence is longer than the limit; the message states the limit."""


class ShapeError(ElmoError):
    """Tensors do not fit together."""


class StateError(ElmoError):
    """A start state is missing or belongs to another model."""


class OutputError(ElmoError):
    """An output cannot be written, or belongs to another job."""


class TrainingError(ElmoError):
    """A training run cannot continue: its loss is not a finite number, or one of its processes ended."""


class MissingExtraError(ElmoError):
    """An optional library is not installed."""

    def __init__(self, feature: str, *, extra: str) -> None:
        super().__init__(f"{feature} needs an extra: pip install 'pyelmo[{extra}]'")


def raise_all(problems: Sequence[str], *, subject: str, kind: type[ElmoError] = FormatError) -> None:
    """Raise one error that lists all problems of ``subject``; do nothing without problems."""
    if problems:
        listed = "; ".join(problems[:20])
        more = f"; and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise kind(f"{subject}: {listed}{more}")
