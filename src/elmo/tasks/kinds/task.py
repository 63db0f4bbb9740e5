"""Definitions that all kinds of tasks share: the protocol ``Task``, labels, and options with range checks."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from elmo.config import MAX_LAYERS
from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import Example, Location, Words, format_location
from elmo.tasks.heads.layers import FeatureVectors, FeatureWidths

Embed = Callable[[Sequence[Words]], FeatureVectors]  # computes the features of a padded batch of sentences
E_contra = TypeVar("E_contra", bound=Example, contravariant=True)
P = TypeVar("P")
OPTIONAL = {"is_optional": True}  # field metadata: saved with a model only if the value is not the default
_log = logging.getLogger(__name__)


class Task(Protocol[E_contra, P]):
    """A kind of task together with the labels of its training data; the weights are in its head."""

    kind: ClassVar[str]

    @property
    def main_score(self) -> str:
        """Name of the score that selects the best epoch; higher is better."""
        ...

    def build_head(self, widths: FeatureWidths) -> nn.Module:
        """Build a new head for features of the given widths."""
        ...

    def loss(self, head: nn.Module, embed: Embed, examples: Sequence[E_contra]) -> Tensor:
        """Compute the training loss of a batch of examples, a scalar."""
        ...

    def predict(self, head: nn.Module, embed: Embed, examples: Sequence[E_contra]) -> list[P]:
        """Return a prediction with probabilities for each example."""
        ...

    def check(self, examples: Sequence[E_contra]) -> None:
        """Raise ``DataError`` for examples that cannot be scored; warn about labels not seen in training."""
        ...

    def score(self, examples: Sequence[E_contra], predictions: Sequence[P]) -> dict[str, float]:
        """Compute the usual metrics of the task; most are between 0 and 1."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return the labels and options of the task as JSON values."""
        ...

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create a task from the values that ``to_json`` returned."""
        ...


def count_tokens(example: Example) -> int:
    """Count the tokens of an example; batches group examples of similar size."""
    return sum(map(len, example.sentences))


def embed_columns(embed: Embed, examples: Sequence[Example]) -> list[FeatureVectors]:
    """Compute the features of the first sentences of all examples, then of all second sentences, and so on."""
    return [embed(sentences) for sentences in zip(*(example.sentences for example in examples), strict=True)]


def unique_rows(sentences: Iterable[Words]) -> tuple[list[Words], Tensor]:
    """Return the unique sentences, and the index of each of ``sentences`` in this list."""
    rows: dict[Words, int] = {}
    indices = [rows.setdefault(words, len(rows)) for words in sentences]
    return list(rows), torch.tensor(indices)


def pad_label_ids(rows: Iterable[Sequence[int]]) -> Tensor:
    """Return label ids as a tensor (batch, time) with -1 at padding."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=-1)


@dataclass(frozen=True)
class Labels:
    """Sorted label names; the id of a label is its index."""

    names: tuple[str, ...]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    @classmethod
    def collect(cls, names: Iterable[str], *, what: str) -> Labels:
        """Collect the labels of training data.

        Args:
            names: The label of each training example or word.
            what: Plural noun for the labels in error messages, such as "tags".
        """
        unique = tuple(sorted(set(names)))
        if len(unique) < 2:
            shown = ", ".join(unique) or "none"
            raise DataError(f"the training data must have at least 2 different {what}; found {shown}")
        return cls(unique)

    def __len__(self) -> int:
        return len(self.names)

    def id_of(self, name: str) -> int:
        """Return the id of a label, or -1 for a label that was not seen in training."""
        return self._ids.get(name, -1)

    def check(self, labels: Sequence[tuple[str, Location | None]], *, what: str) -> None:
        """Warn about labels that were not seen in training; raise ``DataError`` if none of the labels was seen.

        Args:
            labels: Labels and their locations in files.
            what: Plural noun for the labels in messages, such as "tags".
        """
        unseen = [(name, location) for name, location in labels if name not in self._ids]
        if not unseen:
            return
        name, location = unseen[0]
        if len(unseen) == len(labels):
            known = ", ".join(self.names[:10]) + (", …" if len(self) > 10 else "")
            raise DataError(
                f"{format_location(location)}unknown {what.removesuffix('s')} {name[:40]!r}; this model knows: {known}"
            )
        _log.warning(
            "%s%s of %s %s were not seen in training and are never predicted; the first is %r",
            format_location(location), f"{len(unseen):,}", f"{len(labels):,}", what, name[:40],
        )  # fmt: skip


@dataclass(frozen=True)
class HeadOptions:
    """Base class for the options of a head; a value out of range raises ``ConfigError``.

    All kinds use the same option names for the same things, so the name determines the range: dropout is a
    fraction; widths, lengths and counts are integers of at least 1.
    """

    def __post_init__(self) -> None:
        types = get_type_hints(type(self))
        for entry in fields(self):
            value = getattr(self, entry.name)
            expected = None if value is None and entry.default is None else _expected_range(entry.name, value)
            if get_origin(types[entry.name]) is Literal and value not in get_args(types[entry.name]):
                expected = f"one of {', '.join(get_args(types[entry.name]))}"
            if expected is not None:
                raise ConfigError(f"option {entry.name} must be {expected}; found {value!r:.40}")

    def to_json(self) -> dict[str, Any]:
        """Return the options to save with a model, without ``OPTIONAL`` options that have their default.

        Adding such an option therefore does not change the description of older models and runs.
        """
        defaults = {entry.name: entry.default for entry in fields(self) if entry.metadata == OPTIONAL}
        values = asdict(self)
        return {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}


def _expected_range(name: str, value: Any) -> str | None:
    """Describe the range of the option ``name``; None if ``value`` is in the range."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_integer = is_number and isinstance(value, int)
    if name.endswith(("dropout", "_smoothing")):
        return None if is_number and 0 <= value < 1 else "a number of at least 0 and below 1"
    if name == "length_power":
        return None if is_number and 0 <= value < math.inf else "a number of at least 0"
    if name == "kept_share":
        return None if is_number and value > 0 and math.isfinite(value) else "a number above 0"
    if name.startswith(("has_", "is_", "by_", "use_")):
        return None if isinstance(value, bool) else "true or false"
    if name == "n_layers":  # has a maximum because it may come from an untrusted model file
        return None if is_integer and 1 <= value <= MAX_LAYERS else f"an integer from 1 to {MAX_LAYERS}"
    if name.endswith("_width") or name.startswith(("n_", "max_")):
        return None if is_integer and value >= 1 else "an integer of at least 1"
    return None


def example_key(example: Any) -> bytes:
    """Return the content of an example without its location, to identify the data of a run."""
    *content, _ = fields(example)  # the location is the last field
    values = ", ".join(f"{entry.name}={getattr(example, entry.name)!r}" for entry in content)
    return f"{type(example).__name__}({values})".encode("utf-8", "surrogatepass")
