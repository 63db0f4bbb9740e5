"""The errors that elmo raises.

::

    ElmoError
    ├── ConfigError              an option is out of range, or options contradict each other
    ├── FormatError              the files of a model are damaged, incomplete or of an unknown format
    │   ├── ChecksumError        the SHA-256 of a file differs from the recorded one
    │   └── DownloadError        the files of a published model cannot be downloaded
    ├── DataError                an input, such as text, tokens or stored vectors, cannot be used
    │   ├── EncodingError        a text file is not UTF-8
    │   └── SentenceTooLongError a sentence is longer than the limit
    ├── ShapeError               tensors have incompatible shapes
    ├── StateError               a start state is missing or belongs to another model
    ├── NotFiniteError           a result would contain nan or inf; the message states the cause
    ├── OutputError              an output cannot be written, or it belongs to another job
    ├── TrainingError            a training run cannot continue
    ├── ServiceError             a service cannot be reached, is busy, or replied with an error
    └── MissingExtraError        an optional library is not installed, or has an unsupported version

A message says in one line what is wrong, what was expected, what was found and what to do. The command line
prints it unchanged.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = [
    "ChecksumError",
    "ConfigError",
    "DataError",
    "DownloadError",
    "ElmoError",
    "EncodingError",
    "FormatError",
    "MissingExtraError",
    "NotFiniteError",
    "OutputError",
    "SentenceTooLongError",
    "ServiceError",
    "ShapeError",
    "StateError",
    "TrainingError",
]


class ElmoError(Exception):
    """Base class of all errors that elmo raises; every message is one line.

    Example:
        >>> try:
        ...     Elmo.from_pretrained("no/such/model")
        ... except ElmoError as error:
        ...     print(type(error).__name__)
        FormatError
    """


class ConfigError(ElmoError):
    """An option is out of range, or options contradict each other.

    Example:
        >>> Elmo.from_pretrained("en", dtype="float8")
        Traceback (most recent call last):
            ...
        elmo.errors.ConfigError: ...
    """


class FormatError(ElmoError):
    """The files of a model are damaged, incomplete or of an unknown format.

    Example:
        >>> Elmo.from_pretrained("no/such/model")
        Traceback (most recent call last):
            ...
        elmo.errors.FormatError: ...
    """


class ChecksumError(FormatError):
    """The SHA-256 of a file differs from the recorded one.

    Example:
        >>> convert("en", "damaged")
        >>> _ = Path("damaged/vocab.txt").write_text("bank")
        >>> Elmo.from_pretrained("damaged")
        Traceback (most recent call last):
            ...
        elmo.errors.ChecksumError: ...
    """


class DownloadError(FormatError):
    """The files of a published model cannot be downloaded; the message states what to fetch by hand, if possible.

    Example:
        >>> Elmo.from_pretrained("allenai/small")  # doctest: +SKIP
        Traceback (most recent call last):
            ...
        elmo.errors.DownloadError: ...
    """


class DataError(ElmoError):
    """An input, such as text, tokens or stored vectors, cannot be used.

    Example:
        >>> elmo.encode("The bank.").word("river")
        Traceback (most recent call last):
            ...
        elmo.errors.DataError: ...
    """


class EncodingError(DataError):
    """A text file is not UTF-8; the message states the first invalid byte or the detected encoding.

    Example:
        >>> _ = Path("latin-1.txt").write_text("The café was full.", encoding="latin-1")
        >>> perplexity("en", Path("latin-1.txt"))
        Traceback (most recent call last):
            ...
        elmo.errors.EncodingError: ...
    """


class SentenceTooLongError(DataError):
    """A sentence is longer than the limit; the message states the limit.

    Example:
        >>> elmo.encode([["word"] * 1_000_000])
        Traceback (most recent call last):
            ...
        elmo.errors.SentenceTooLongError: ...
    """


class ShapeError(ElmoError):
    """Tensors have incompatible shapes.

    Example:
        >>> similarity(np.ones(2), np.ones(3))
        Traceback (most recent call last):
            ...
        elmo.errors.ShapeError: ...
    """


class StateError(ElmoError):
    """A start state is missing or belongs to another model.

    Example:
        >>> from dataclasses import replace
        >>> from elmo.formats import load
        >>> Elmo(replace(load("en"), warm=None)).encode("Yes.", start="warm")
        Traceback (most recent call last):
            ...
        elmo.errors.StateError: ...
    """


class NotFiniteError(ElmoError):
    """A result would contain nan or inf, for example because weights are too large; the message states the cause.

    Example:
        >>> similarity(np.array([np.nan]), np.array([1.0]))
        Traceback (most recent call last):
            ...
        elmo.errors.NotFiniteError: ...
    """


class OutputError(ElmoError):
    """An output cannot be written, or it belongs to another job.

    Example:
        >>> convert("en", "run")  # this folder exists
        Traceback (most recent call last):
            ...
        elmo.errors.OutputError: ...
    """


class TrainingError(ElmoError):
    """A training run cannot continue: its loss is not a finite number, or one of its processes ended.

    Example:
        >>> train_bilm("corpus.txt", "diverged", learning_rate=1e30)  # doctest: +SKIP
        Traceback (most recent call last):
            ...
        elmo.errors.TrainingError: ...
    """


class ServiceError(ElmoError):
    """A service cannot be reached, is busy, or replied with an error.

    Attributes:
        message: What is wrong.
        status: HTTP status of the reply; None if there was no reply.
        code: Short name of the problem: a code of the service such as "overloaded", or "connection", "timeout" or
            "malformed_reply"; None if the service stated none.
        retry_after: Seconds after which the service asks to try again; None if it did not.

    Example:
        >>> try:
        ...     Client("http://127.0.0.1:9", max_retries=0).models()
        ... except ServiceError as error:
        ...     print(error.code, error.status)
        connection None
    """

    def __init__(
        self, message: str, *, status: int | None = None, code: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after = retry_after


class MissingExtraError(ElmoError):
    """An optional library is not installed, cannot be imported, or has an unsupported version.

    Args:
        feature: What needs the library.
        extra: The extra of pyelmo that installs it.
        expected: The supported versions, if another version was found.
        found: The installed version.
        problem: Why the installed library cannot be imported.

    Example:
        >>> print(MissingExtraError("this function", extra="spacy"))
        this function requires an optional dependency: pip install 'pyelmo[spacy]'
    """

    def __init__(
        self,
        feature: str,
        *,
        extra: str,
        expected: str | None = None,
        found: str | None = None,
        problem: str | None = None,
    ) -> None:
        if problem is not None:
            super().__init__(
                f"{feature} requires an optional dependency that is broken ({problem}): "
                f"pip install --force-reinstall 'pyelmo[{extra}]'"
            )
        elif found is None:
            super().__init__(f"{feature} requires an optional dependency: pip install 'pyelmo[{extra}]'")
        else:
            super().__init__(f"{feature} requires {expected}; found {found}: pip install -U 'pyelmo[{extra}]'")


@contextmanager
def importing_extra(feature: str, *, extra: str) -> Iterator[None]:
    """Raise ``MissingExtraError`` if the imports in the ``with`` block fail, for whatever reason.

    A library that is installed may raise anything: ``OSError`` if one of its own libraries is missing, ``ValueError``
    if it was built for another version of numpy.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(feature, extra=extra) from error
    except Exception as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise MissingExtraError(feature, extra=extra, problem=problem) from error


MAX_PROBLEM = 800  # characters of one problem in a message, which may quote names from a file
MAX_PROBLEMS = 4000  # characters of all of them


def raise_all(problems: Sequence[str], *, subject: str, kind: type[ElmoError] = FormatError) -> None:
    """Raise one error that lists the problems of ``subject``, up to a length; do nothing if there are none."""
    if problems:
        texts = [text if len(text) <= MAX_PROBLEM else f"{text[:MAX_PROBLEM]}…" for text in problems]
        ends = itertools.accumulate(len(text) + 2 for text in texts)
        n_listed = max(1, min(20, sum(end <= MAX_PROBLEMS for end in ends)))
        listed = "; ".join(texts[:n_listed])
        more = f"; and {len(problems) - n_listed} more" if len(problems) > n_listed else ""
        raise kind(f"{subject}: {listed}{more}")
