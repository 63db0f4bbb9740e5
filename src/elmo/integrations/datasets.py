"""Hugging Face datasets: ``EmbedColumn``, a function for ``Dataset.map`` whose results are cached correctly.

``datasets`` caches the result of ``map`` under a hash of the pickled function. A loaded model would change this hash
from run to run. An ``EmbedColumn`` is pickled as the name of the model, its fingerprint and the options: the same model
and options always find the cached result, and another model never does, even in the same folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError, DataError, StateError
from elmo.formats.pretrained import fingerprint, load
from elmo.integrations.requirements import require

if TYPE_CHECKING:
    from datasets import Dataset

    from elmo.embed.encoding import LayerChoice, Pooling


class EmbedColumn:
    """Adds a column of sentence vectors to batches of a dataset; pass it to ``Dataset.map(…, batched=True)``.

    >>> from datasets import Dataset
    >>> dataset = Dataset.from_dict({"text": ["The bank of the river.", "Yes."]})
    >>> dataset.map(EmbedColumn("en", column="text"), batched=True).column_names
    ['text', 'vector']
    """

    def __init__(
        self,
        model: str | Path = "en",
        *,
        column: str = "text",
        output: str = "vector",
        layers: LayerChoice | int = "average",
        pooling: Pooling = "mean",
        expected: str | None = None,
    ) -> None:
        """Prepare the function; the model is loaded in the process that uses it.

        Args:
            model: A name as in ``Elmo.from_pretrained``.
            column: Name of the column of texts, or of lists of tokens.
            output: Name of the new column.
            layers: Layers as in ``Elmo.encode``, except "all".
            pooling: How to pool the vectors of the tokens: "mean", "max" or "ends".
            expected: Fingerprint that the model must have. Default: any.
        """
        if isinstance(model, Elmo):
            raise ConfigError("model must be a name or a path, so that other processes can load it; found an Elmo")
        if layers == "all":
            raise ConfigError("layers must give one vector per token; found 'all'; use 'concat'")
        self.model, self.column, self.output = str(model), column, output
        self.layers: LayerChoice | int = layers
        self.pooling: Pooling = pooling
        self.fingerprint = fingerprint(load(self.model), with_softmax=layers == "sense")
        if expected not in (None, self.fingerprint):
            raise StateError(
                f"{self.model:.80}: this model has changed since the function was created; create it again"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"column": self.column, "output": self.output, "layers": self.layers, "pooling": self.pooling}
        return _restore, (self.model, options, self.fingerprint)

    @cached_property
    def elmo(self) -> Elmo:
        """The model."""
        return Elmo.from_pretrained(self.model)

    @cached_property
    def width(self) -> int:
        """Width of the vectors."""
        return len(np.asarray(self.elmo.encode("a", layers=self.layers).sentence(self.pooling)))

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Return the vectors (text, width) of a batch, under the name of the new column."""
        if self.column not in batch:
            raise DataError(f"unknown column {self.column!r:.40}; this dataset has: {', '.join(batch)[:200]}")
        encodings = self.elmo.encode(list(batch[self.column]), layers=self.layers)
        vectors = [np.asarray(encoding.sentence(self.pooling)) for encoding in encodings]
        return {self.output: np.stack(vectors) if vectors else np.zeros((0, self.width), np.float32)}


def embed_dataset(
    dataset: Dataset, function: EmbedColumn, *, batch_size: int = 1000, num_proc: int | None = None
) -> Dataset:
    """Add a column of vectors, stored as fixed-size lists of float32, to a dataset.

    Args:
        dataset: The dataset.
        function: The model, the columns and the layers.
        batch_size: Number of rows per batch.
        num_proc: Number of processes.

    Example:
        >>> from datasets import Dataset
        >>> dataset = Dataset.from_dict({"text": ["The bank of the river.", "Yes."]})
        >>> embed_dataset(dataset, EmbedColumn("en")).column_names
        ['text', 'vector']
    """
    require("datasets", extra="datasets", at_least="4.0")
    from datasets import Features, List, Value

    features = Features(dataset.features | {function.output: List(Value("float32"), length=function.width)})
    return dataset.map(function, batched=True, batch_size=batch_size, num_proc=num_proc, features=features)


def _restore(model: str, options: dict[str, Any], expected: str) -> EmbedColumn:
    return EmbedColumn(model, expected=expected, **options)
