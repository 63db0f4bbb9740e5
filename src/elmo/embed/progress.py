"""Steps in, the same steps out, with a bar on stderr that shows how many are done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def tracked(steps: Sequence[T], description: str, *, is_shown: bool) -> Iterable[T]:
    """The steps, with a bar while they are taken if ``is_shown``."""
    if not is_shown:
        return steps
    from rich.console import Console
    from rich.progress import track

    return track(steps, description=description, console=Console(stderr=True))  # stdout is for results
