"""The labels of training examples in, numbers for them out; labels that were not seen are told."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from elmo.errors import DataError
from elmo.tasks.data.examples import Place, at

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Labels:
    """Names, sorted, and the number of each."""

    names: tuple[str, ...]
    _numbers: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_numbers", {name: number for number, name in enumerate(self.names)})

    @classmethod
    def of(cls, found: Iterable[str], *, what: str, at_least: int = 2) -> Labels:
        """All that occur."""
        names = tuple(sorted(set(found)))
        if len(names) < at_least:
            shown = ", ".join(names) or "none"
            raise DataError(f"expected at least {at_least} different {what} to learn, found {shown}")
        return cls(names)

    def __len__(self) -> int:
        return len(self.names)

    def number(self, name: str | None) -> int:
        """-1 for a label that was not seen, or is not known."""
        return -1 if name is None else self._numbers.get(name, -1)

    def check(self, found: Sequence[tuple[str, Place | None]], *, what: str) -> None:
        """Say which labels of other data were not seen; refuse data with no label that was."""
        if not found:
            return
        unseen = Counter(name for name, _ in found if name not in self._numbers)
        if not unseen:
            return
        name, place = next(pair for pair in found if pair[0] in unseen)
        if sum(unseen.values()) == len(found):
            seen = ", ".join(self.names[:10]) + (", …" if len(self) > 10 else "")
            one = what.removesuffix("s")
            raise DataError(f"{at(place)}the {one} {name[:40]!r} is none that was learned: {seen}")
        _log.warning("%s%s", at(place), _told(unseen, what, first=name))


def _told(unseen: Counter[str], what: str, *, first: str) -> str:
    """How many labels of how many kinds can only be missed."""
    n, shown = sum(unseen.values()), repr(first[:40])
    if n == 1:
        return f"1 {what.removesuffix('s')} was not seen in training, {shown}: it can only be missed"
    kinds = f"of 1 kind were not seen in training, {shown}"
    if len(unseen) > 1:
        kinds = f"of {len(unseen)} kinds were not seen in training, {shown} for one"
    return f"{n:,} {what} {kinds}: they can only be missed"


def padded_numbers(rows: Sequence[Sequence[int]], longest: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """(batch, time), -1 where there is no word."""
    found = np.full((len(rows), longest), -1, np.int64)
    for k, row in enumerate(rows):
        found[k, : len(row)] = row
    return found
