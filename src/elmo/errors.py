"""Every error that elmo raises on purpose.

::

    ElmoError
    ├── ConfigError         options that contradict each other or lie out of range
    ├── FormatError         a model's files are damaged, incomplete or of no known format
    │   └── ChecksumError   a file does not have the SHA-256 that was recorded for it
    ├── DataError           text or an embedding file that cannot be used as it is
    │   ├── EncodingError   a text file that is not UTF-8
    │   └── SentenceTooLongError
    ├── ShapeError          tensors that do not fit together
    ├── StateError          a start state that the model does not have, or that is not its own
    ├── OutputError         a result that cannot be written, or a begun job that does not match
    ├── TrainingError       a run that cannot go on: its loss is no number, or a process of it ended
    └── MissingExtraError   an optional library is not installed

A message names the thing, what was expected, what was found and, where there is one, the next step,
in one line: the command line prints it as it is.
"""

from __future__ import annotations

from collections.abc import Sequence


class ElmoError(Exception):
    """Anything that elmo refuses, with the reason in one line."""


class ConfigError(ElmoError):
    """Options that contradict each other or lie out of range."""


class FormatError(ElmoError):
    """A model's files are damaged, incomplete or of no known format."""


class ChecksumError(FormatError):
    """A file does not have the SHA-256 that was recorded for it."""


class DataError(ElmoError):
    """Text, or an embedding file, that cannot be used as it is."""


class EncodingError(DataError):
    """A text file that is not UTF-8; the message names line and byte."""


class SentenceTooLongError(DataError):
    """A sentence whose vectors would not fit; the message names the limit."""


class ShapeError(ElmoError):
    """Tensors that do not fit together."""


class StateError(ElmoError):
    """A start state that the model does not have, or that belongs to another model."""


class OutputError(ElmoError):
    """A result that cannot be written, or a begun job that does not match."""


class TrainingError(ElmoError):
    """A run that cannot go on: its loss is no number any more, or a process of it ended."""


class MissingExtraError(ElmoError):
    """An optional library is not installed."""

    def __init__(self, what: str, *, extra: str) -> None:
        super().__init__(f"{what} needs an extra: pip install 'pyelmo[{extra}]'")


def raise_all(problems: Sequence[str], *, subject: str, kind: type[ElmoError] = FormatError) -> None:
    """Raise one ``kind`` that lists every problem found in ``subject``; do nothing when there is none."""
    if problems:
        shown = "; ".join(problems[:20])
        rest = f"; and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise kind(f"{subject}: {shown}{rest}")
