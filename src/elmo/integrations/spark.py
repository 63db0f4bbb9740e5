"""Spark: ``encode_batches``, a function for ``DataFrame.mapInArrow`` that adds vectors to a data frame.

A Python worker of Spark loads the model once and keeps it for its next tasks. To embed a text with resumable shards
instead, use ``elmo embed --runner spark``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from elmo.errors import importing_extra
from elmo.formats.pretrained import load
from elmo.integrations.arrow import ColumnEncoder

if TYPE_CHECKING:
    import pyarrow

    from elmo.embed.encoding import LayerChoice, Pooling

_BATCH = 1024  # rows that are encoded at once; the batches of Spark have 10,000 rows


def encode_batches(
    model: str | Path = "en",
    column: str = "text",
    *,
    pooling: Pooling | None = "mean",
    layers: LayerChoice | int = "average",
    start: Literal["zero", "warm"] = "zero",
    tokenizer: str | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    n_threads: int = 1,
) -> SparkEncoder:
    """Return a function for ``DataFrame.mapInArrow``; its method ``schema`` returns the schema of the result.

    >>> function = encode_batches("en", "text")
    >>> frame.mapInArrow(function, function.schema(frame.schema))  # doctest: +SKIP

    The model is read here, too: the workers check that they load the same one.

    Args:
        model: A name or path as in ``Elmo.from_pretrained``, which all machines can read.
        column: Name of the column of texts, or of lists of tokens. A row without text (null) has no vector.
        pooling: How to pool the vectors of the tokens into the new column COLUMN_vector: "mean", "max" or "ends"; None
            adds the tokens and their vectors, COLUMN_tokens and COLUMN_vectors.
        layers: Layers as in ``Elmo.encode``, except "all".
        start: State at the start of a text: "zero", or "warm" (stored with the model).
        tokenizer: Name of a tokenizer for texts. Default: the tokenizer of the model.
        dtype: Precision of the network, as in ``Elmo.from_pretrained``.
        device: Device of the network.
        n_threads: Number of threads of each worker.
    """
    encoder = SparkEncoder(
        model, column, pooling=pooling, layers=layers, start=start, tokenizer=tokenizer, dtype=dtype, device=device,
        n_threads=n_threads,
    )  # fmt: skip
    return replace(encoder, expected=encoder.compute_fingerprint(load(encoder.model)))


class SparkEncoder(ColumnEncoder):
    """Adds vectors to batches of Spark; ``encode_batches`` creates it."""

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Yield the batches, in parts, with all their columns and the new ones."""
        encoder = _keep(self)
        for whole in batches:
            self.check_columns(whole.schema.names)
            for begin in range(0, whole.num_rows, _BATCH):
                yield encoder._append(whole.slice(begin, _BATCH))

    def _append(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        import pyarrow as pa

        # Spark has no lists of fixed size
        kinds = {"string": pa.string(), "float": pa.float32()}
        columns = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
        new = self.encode(batch.column(batch.schema.get_field_index(self.column)).to_pylist())
        for name, (kind, depth) in self._types().items():
            target = kinds[kind]
            for _ in range(depth):
                target = pa.list_(target)
            columns[name] = new.column(name).cast(target).combine_chunks()
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def schema(self, schema: Any) -> Any:
        """Return the schema of the result as a ``StructType``.

        Args:
            schema: The schema of the data frame, ``frame.schema``.
        """
        with importing_extra("the schema of Spark", extra="spark"):
            from pyspark.sql import types  # pyright: ignore[reportMissingImports]
        self.check_columns(schema.names)
        fields = []
        for name, (kind, depth) in self._types().items():
            target = types.StringType() if kind == "string" else types.FloatType()
            for _ in range(depth):
                target = types.ArrayType(target)
            fields.append(types.StructField(name, target))
        return types.StructType([*schema.fields, *fields])

    def _types(self) -> dict[str, tuple[str, int]]:
        """Return the type of each new column: that of its values, and how deep the lists are nested."""
        types = [("string", 1), ("float", 2)] if self.pooling is None else [("float", 1)]
        return dict(zip(self.new_columns, types, strict=True))


@lru_cache(maxsize=1)
def _keep(encoder: SparkEncoder) -> SparkEncoder:
    """Return the equal encoder of an earlier task of this process, with its model."""
    return encoder
