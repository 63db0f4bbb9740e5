"""What all kinds of tasks share: the protocol that they implement, labels, and checks of their options."""

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
from elmo.tasks.data.examples import Example, Location, Words, format_location
from elmo.tasks.heads.layers import FeatureVectors, FeatureWidths

Embed = Callable[[Sequence[Words]], FeatureVectors]  # computes the features of a padded batch of sentences
E_contra = TypeVar("E_contra", bound=Example, contravariant=True)
P = TypeVar("P")
OPTIONAL = {"is_optional": True}  # metadata: saved with a model only if it differs from the default
_log = logging.getLogger(__name__)


class Task(Protocol[E_contra, P]):
    """A kind of task with the labels of its training data; it has no weights."""

    kind: ClassVar[str]

    @property
    def main_score(self) -> str:
        """Name of the score that selects the best epoch; higher is better."""
        ...

    def build_head(self, widths: FeatureWidths) -> nn.Module:
        """Build a new head for features of these widths."""
        ...

    def loss(self, head: nn.Module, embed: Embed, examples: Sequence[E_contra]) -> Tensor:
        """Compute the training loss, a scalar."""
        ...

    def predict(self, head: nn.Module, embed: Embed, examples: Sequence[E_contra]) -> list[P]:
        """Predict each example, with probabilities."""
        ...

    def check(self, examples: Sequence[E_contra]) -> None:
        """Raise ``DataError`` for examples that cannot be scored; warn about labels unseen in training."""
        ...

    def score(self, examples: Sequence[E_contra], predictions: Sequence[P]) -> dict[str, float]:
        """Compute the usual metrics of the task, as fractions of 1."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return labels and options, for a saved model."""
        ...

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Restore a task from the result of ``to_json``."""
        ...


def count_tokens(example: Example) -> int:
    """Count the tokens of an example; batches are built by this size."""
    return sum(map(len, example.sentences))


def unique_rows(sentences: Iterable[Words]) -> tuple[list[Words], list[int]]:
    """Return each sentence once, and for each of ``sentences`` its row among these."""
    rows: dict[Words, int] = {}
    indices = [rows.setdefault(words, len(rows)) for words in sentences]
    return list(rows), indices


def pad_label_ids(rows: Sequence[Sequence[int]], longest: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return label ids (batch, time), -1 at padding."""
    padded = np.full((len(rows), longest), -1, np.int64)
    for k, row in enumerate(rows):
        padded[k, : len(row)] = row
    return padded


@dataclass(frozen=True)
class Labels:
    """Sorted label names and their ids."""

    names: tuple[str, ...]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ids", {name: index for index, name in enumerate(self.names)})

    @classmethod
    def collect(cls, names: Iterable[str], *, what: str, at_least: int = 2) -> Labels:
        """Collect the labels of training data; ``what`` names them in messages, in the plural."""
        unique = tuple(sorted(set(names)))
        if len(unique) < at_least:
            shown = ", ".join(unique) or "none"
            raise DataError(f"expected at least {at_least} different {what} in the training data, found {shown}")
        return cls(unique)

    def __len__(self) -> int:
        return len(self.names)

    def id_of(self, name: str | None) -> int:
        """Return the id of a label; -1 for None and for a label unseen in training."""
        return -1 if name is None else self._ids.get(name, -1)

    def check(self, labels: Sequence[tuple[str, Location | None]], *, what: str) -> None:
        """Warn about labels unseen in training; raise ``DataError`` if all are unseen."""
        unseen = Counter(name for name, _ in labels if name not in self._ids)
        if not unseen:
            return
        name, location = next(pair for pair in labels if pair[0] in unseen)
        n_unseen, shown = sum(unseen.values()), repr(name[:40])
        if n_unseen == len(labels):
            known = ", ".join(self.names[:10]) + (", …" if len(self) > 10 else "")
            raise DataError(
                f"{format_location(location)}unknown {what.removesuffix('s')} {shown}; this model knows: {known}"
            )
        if n_unseen == 1:
            text = f"1 {what.removesuffix('s')} was not seen in training: {shown}; it is never predicted"
        else:
            which = f"all {shown}" if len(unseen) == 1 else f"{len(unseen)} different ones, for example {shown}"
            text = f"{n_unseen:,} {what} were not seen in training ({which}); they are never predicted"
        _log.warning("%s%s", format_location(location), text)


def saved_options(options: Any) -> dict[str, Any]:
    """Return the options that a saved model keeps; ``OPTIONAL`` ones are left out at their default.

    In this way, models and runs from before an option was added keep their description.
    """
    defaults = {entry.name: entry.default for entry in fields(options) if entry.metadata == OPTIONAL}
    values = asdict(options)
    return {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}


def check_options(options: Any) -> None:
    """Raise ``ConfigError`` for a value that no network can be built or trained with.

    Every kind uses the same option names for the same things, so the name determines the range: dropout is a
    fraction; widths, lengths and counts are integers of at least 1.
    """
    types = get_type_hints(type(options))
    for entry in fields(options):
        value = getattr(options, entry.name)
        expected = None if value is None and entry.default is None else _expected_range(entry.name, value)
        if get_origin(types[entry.name]) is Literal and value not in get_args(types[entry.name]):
            expected = f"one of {', '.join(get_args(types[entry.name]))}"
        if expected is not None:
            raise ConfigError(f"option {entry.name} must be {expected}, found {value!r:.40}")


def _expected_range(name: str, value: Any) -> str | None:
    """Return the range that an option's name requires; None if the value is in it."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_integer = is_number and isinstance(value, int)
    if name.endswith("dropout"):
        return None if is_number and 0 <= value < 1 else "a number of at least 0 and below 1"
    if name == "kept_share":
        return None if is_number and value > 0 and math.isfinite(value) else "a number above 0"
    if name.startswith(("has_", "is_", "by_", "use_")):
        return None if isinstance(value, bool) else "true or false"
    if name == "n_layers":  # limited, because it may come from an untrusted model file
        return None if is_integer and 1 <= value <= MAX_LAYERS else f"an integer from 1 to {MAX_LAYERS}"
    if name.endswith("_width") or name.startswith(("n_", "max_")):
        return None if is_integer and value >= 1 else "an integer of at least 1"
    return None


def example_key(example: Any) -> bytes:
    """Return the content of an example, without its file position, to identify the data of a run."""
    *content, _ = fields(example)  # the position is the last field
    values = ", ".join(f"{entry.name}={getattr(example, entry.name)!r}" for entry in content)
    return f"{type(example).__name__}({values})".encode("utf-8", "surrogatepass")
