"""Check that a library is installed in a version that works, before it is imported."""

from __future__ import annotations

import re
from importlib import metadata

from elmo.errors import MissingExtraError


def require(library: str, *, extra: str, at_least: str, below: str | None = None) -> None:
    """Raise ``MissingExtraError`` if a library is missing or has an unsupported version.

    Args:
        library: Name of the distribution, such as "scikit-learn".
        extra: The extra of pyelmo that installs it.
        at_least: The first version that works.
        below: The first version that does not work any more.

    Example:
        >>> require("numpy", extra="all", at_least="1.0")
    """
    expected = f"{library} {at_least} or newer" + (f", below {below}" if below else "")
    try:
        version = metadata.version(library)
    except metadata.PackageNotFoundError as error:
        raise MissingExtraError(f"elmo.integrations.{extra}", extra=extra) from error
    if _numbers(version) < _numbers(at_least) or (below is not None and _numbers(version) >= _numbers(below)):
        raise MissingExtraError(f"elmo.integrations.{extra}", extra=extra, expected=expected, found=version)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, such as (1, 9) of "1.9rc1"."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in numbers[0].split(".")) if numbers else ()
