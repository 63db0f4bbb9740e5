"""Ray Data: ``ElmoBatchEncoder``, a class for ``Dataset.map_batches`` that adds vectors to a dataset.

Ray creates one instance per actor, which loads the model once. To embed a text with resumable shards instead, use
``elmo embed --runner ray``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from elmo.errors import DataError
from elmo.integrations.arrow import ColumnEncoder

if TYPE_CHECKING:
    import pyarrow

Batch = TypeVar("Batch", dict[str, NDArray[Any]], "pyarrow.Table")


class ElmoBatchEncoder(ColumnEncoder):
    """Adds vectors to batches; pass it to ``Dataset.map_batches``. The parameters are those of ``ColumnEncoder``.

    >>> dataset.map_batches(
    ...     ElmoBatchEncoder, fn_constructor_args=("en",), fn_constructor_kwargs={"column": "text"}, concurrency=2
    ... )  # doctest: +SKIP

    A row without text (null) has no vector. NumPy arrays have no null, so it has the vector of an empty text there; use
    ``batch_format="pyarrow"`` to distinguish both.
    """

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch, NumPy arrays or a pyarrow table, with all its columns and the new ones."""
        import pyarrow as pa

        if isinstance(batch, pa.Table):
            return cast("Batch", self._append(batch))
        if not isinstance(batch, Mapping):
            raise DataError(
                f"a batch must be a dict of NumPy arrays or a pyarrow table; found {type(batch).__name__}; use "
                "batch_format='numpy' or 'pyarrow'"
            )
        self.check_columns(list(batch))
        texts = [text.tolist() if isinstance(text, np.ndarray) else text for text in batch[self.column].tolist()]
        new = self.encode(["" if text is None else text for text in texts])
        arrays = {name: _to_numpy(new.column(name)) for name in new.column_names}
        return cast("Batch", {**batch, **arrays})

    def _append(self, table: pyarrow.Table) -> pyarrow.Table:
        self.check_columns(table.column_names)
        new = self.encode(table.column(self.column).to_pylist())
        for name, column in zip(new.column_names, new.columns, strict=True):
            table = table.append_column(name, column)
        return table


def _to_numpy(column: pyarrow.ChunkedArray) -> NDArray[Any]:
    """Convert pooled vectors to an array (row, width), and lists to an array of lists or of arrays (time, width)."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(column.type):
        return np.concatenate([_to_rows(chunk) for chunk in column.chunks])
    rows = np.empty(len(column), dtype=object)
    for index, row in enumerate(column):
        rows[index] = _to_rows(row.values) if pa.types.is_fixed_size_list(column.type.value_type) else row.as_py()
    return rows


def _to_rows(array: pyarrow.FixedSizeListArray) -> NDArray[Any]:
    return array.flatten().to_numpy().reshape(len(array), array.type.list_size)
