"""What a task is to the rest of the room: labels and options in; a head, its loss and its scores out.

The labels of training examples in, numbers for them out; labels that were not seen are told.

The options of a kind of task in, nothing out: what lies out of range is refused.

Every kind names its options alike, so the name tells the range: dropout is a share, widths, lengths and
counts are whole numbers from 1. An option that came ``LATER`` is kept with a model only where it was chosen:
models and runs from before it stay what they are.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from torch import Tensor, nn

from elmo.config import MAX_LAYERS
from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import Example, Place, Words, at
from elmo.tasks.heads.layers import SentenceVectors, Widths

Vectors = Callable[[Sequence[Words]], SentenceVectors]
E_contra = TypeVar("E_contra", bound=Example, contravariant=True)
P = TypeVar("P")


class Task(Protocol[E_contra, P]):
    """One kind of task with the labels it has learned of; it holds no weights."""

    kind: ClassVar[str]

    @property
    def main_score(self) -> str:
        """The score that training watches; more is better."""
        ...

    def head(self, widths: Widths) -> nn.Module:
        """A new head for vectors this wide."""
        ...

    def loss(self, head: nn.Module, vectors: Vectors, examples: Sequence[E_contra]) -> Tensor:
        """What training makes small; a scalar."""
        ...

    def predict(self, head: nn.Module, vectors: Vectors, examples: Sequence[E_contra]) -> list[P]:
        """What the head says of each example, with how sure it is."""
        ...

    def check(self, examples: Sequence[E_contra]) -> None:
        """Refuse examples that cannot be scored, and tell of labels that were not learned."""
        ...

    def scores(self, examples: Sequence[E_contra], predictions: Sequence[P]) -> dict[str, float]:
        """The field's figures, shares between 0 and 1."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Labels and options, for a saved model."""
        ...

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What ``to_json`` gave."""
        ...


def size(example: Example) -> int:
    """Tokens of an example, by which batches are made."""
    return sum(map(len, example.sentences))


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


LATER = {"is_later": True}  # the metadata of an option that models saved before it do not have


def kept_options(options: Any) -> dict[str, Any]:
    """All that a saved model has to know."""
    usual = {one.name: one.default for one in fields(options) if one.metadata == LATER}
    return {
        name: value for name, value in asdict(options).items() if name not in usual or value != usual[name]
    }


def check_options(options: Any) -> None:
    """Refuse an option that no network can be built or trained with."""
    types = get_type_hints(type(options))
    for one in fields(options):
        value = getattr(options, one.name)
        expected = None if value is None and one.default is None else _broken(one.name, value)
        if get_origin(types[one.name]) is Literal and value not in get_args(types[one.name]):
            expected = f"one of {', '.join(get_args(types[one.name]))}"
        if expected is not None:
            raise ConfigError(f"option {one.name}: expected {expected}, found {value!r:.40}")


def _broken(name: str, value: Any) -> str | None:
    """What was expected; None where the value is that."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name.endswith("dropout"):
        return None if is_number and 0 <= value < 1 else "a share from 0 to below 1"
    if name == "kept_share":
        return None if is_number and value > 0 and math.isfinite(value) else "a number above 0"
    if name.startswith(("has_", "is_", "by_", "use_")):
        return None if isinstance(value, bool) else "true or false"
    if name == "n_layers":  # a bound, for a stranger's file may say anything
        is_right = is_number and isinstance(value, int) and 1 <= value <= MAX_LAYERS
        return None if is_right else f"a whole number from 1 to {MAX_LAYERS}"
    if name.endswith("_width") or name.startswith(("n_", "max_")):
        return None if is_number and isinstance(value, int) and value >= 1 else "a whole number from 1"
    return None
