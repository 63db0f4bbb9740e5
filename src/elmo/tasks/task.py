"""What a task is to the rest of the room: labels and options in; a head, its loss and its scores out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self, TypeVar

from torch import Tensor, nn

from elmo.tasks.data.examples import Example, Words
from elmo.tasks.heads.sentence_vectors import SentenceVectors, Widths

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
