"""Arrow: encodings and the output of jobs as Arrow tables, for pyarrow, pandas, polars and DuckDB.

A table has one row per sentence: ``tokens`` (list of strings) and ``vectors`` (list of fixed-size lists), or ``vector``
(a fixed-size list) with pooling. Other libraries take over the memory of a table without copying it:
``polars.from_arrow(table)``, ``duckdb.sql("from table")``, ``table.to_pandas(types_mapper=pandas.ArrowDtype)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from elmo.embed.elmo import Elmo
from elmo.embed.encoding import Encoding, Pooling
from elmo.errors import ChecksumError, ConfigError, DataError, ShapeError, StateError, importing_extra
from elmo.formats.pretrained import Pretrained, fingerprint
from elmo.jobs.manifest import OutputFiles, read_manifest
from elmo.jobs.reader import read_embeddings, read_shard
from elmo.jobs.shard import Shard
from elmo.storage.files import compute_sha256, format_error, format_path

if TYPE_CHECKING:
    import pyarrow

    from elmo.embed.encoding import LayerChoice

with importing_extra("Arrow", extra="parquet"):
    import pyarrow as pa
    import pyarrow.compute as pc

_LAYERS = b"elmo.layers"  # metadata of the field "vectors": number of layers
_BATCH = 1024  # sentences that are copied or encoded at once


def to_arrow(encodings: Encoding | Iterable[Encoding], *, pooling: Pooling | None = None) -> pyarrow.Table:
    """Convert encodings to a table with the columns ``tokens`` and ``vectors``, or ``vector`` with pooling.

    The table of a single encoding shares its memory; the vectors of several encodings are copied once.

    Args:
        encodings: One encoding, or several with vectors of the same width.
        pooling: Store one vector per sentence: "mean", "max" or "ends".

    Example:
        >>> to_arrow(elmo.encode(["The bank.", "Yes."])).num_rows
        2
    """
    rows = [encodings] if isinstance(encodings, Encoding) else list(encodings)
    tokens = pa.array([[_clean(token) for token in row.tokens] for row in rows], pa.list_(pa.string()))
    n_layers = {row.vectors.shape[0] if row.vectors.ndim == 3 else 0 for row in rows}
    if len(n_layers) > 1 or len({row.vectors.shape[-1] for row in rows}) > 1:
        raise ShapeError("the encodings of a table must have vectors of the same shape; found several")
    if pooling is not None:
        if max(n_layers, default=0):
            raise ShapeError("pooling needs one vector per token; found all layers; use layers='concat'")
        pooled = [_to_numpy(row.sentence(pooling)) for row in rows]
        return pa.table(
            {"tokens": tokens, "vector": _fixed_lists(np.stack(pooled) if rows else np.zeros((0, 0), np.float32))}
        )
    arrays = [_to_numpy(row.vectors) for row in rows]
    flat = [_token_rows(array) for array in arrays]
    whole = flat[0] if len(flat) == 1 else np.concatenate(flat) if flat else np.zeros((0, 0), np.float32)
    return _sentence_table(tokens, whole, [len(row) for row in rows], n_layers=n_layers.pop() if n_layers else 0)


def from_arrow(table: Any) -> list[Encoding]:
    """Convert a table with the columns ``tokens`` and ``vectors`` to encodings.

    The vectors are views of the memory of the table.

    Args:
        table: A table of pyarrow, polars, pandas (with Arrow types) or DuckDB, or anything else with the Arrow
            interface (``__arrow_c_stream__``).

    Example:
        >>> (encoding,) = from_arrow(to_arrow(elmo.encode("The bank.")))
        >>> encoding.tokens
        ('The', 'bank', '.')
    """
    try:
        table = table if isinstance(table, pa.Table) else pa.table(table)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise DataError(f"cannot read {type(table).__name__} as an Arrow table: {format_error(error)}") from error
    if not {"tokens", "vectors"} <= set(table.column_names):
        raise DataError(
            f"the table must have the columns tokens and vectors; found {', '.join(table.column_names)[:200]}"
        )
    _check_types(table.schema)
    metadata = table.schema.field("vectors").metadata or {}
    n_layers = int(metadata.get(_LAYERS, 0))
    encodings: list[Encoding] = []
    for batch in table.select(["tokens", "vectors"]).to_batches():
        words, column = batch.column(0).to_pylist(), batch.column(1)
        lengths = [len(item or ()) for item in words]
        if lengths != pc.call_function("list_value_length", [column]).fill_null(0).to_pylist():
            raise DataError("the tokens and vectors of a row must be lists of the same length; found other lengths")
        values = column.flatten()
        if values.null_count or values.flatten().null_count:
            raise DataError("each token must have a vector of numbers; found null")
        rows = values.flatten().to_numpy(zero_copy_only=False).reshape(len(values), values.type.list_size)
        begin = 0
        for item, length in zip(words, lengths, strict=True):
            part = rows[begin : begin + length]
            begin += length
            if n_layers:
                part = part.reshape(length, n_layers, rows.shape[1] // n_layers).transpose(1, 0, 2)
            encodings.append(Encoding(tuple(item or ()), part))
    return encodings


def _check_types(schema: pyarrow.Schema) -> None:
    """Raise ``DataError`` if the columns are not lists of strings and of fixed-size lists of numbers."""
    tokens, vectors = schema.field("tokens").type, schema.field("vectors").type
    is_list = pa.types.is_list, pa.types.is_large_list
    is_string = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
    if not (any(check(tokens) for check in is_list) and any(check(tokens.value_type) for check in is_string)):
        raise DataError(f"the column tokens must be lists of strings; found {tokens!s:.80}")
    is_nested = any(check(vectors) for check in is_list) and pa.types.is_fixed_size_list(vectors.value_type)
    if not (is_nested and pa.types.is_floating(vectors.value_type.value_type)):
        raise DataError(f"the column vectors must be lists of fixed-size lists of numbers; found {vectors!s:.80}")
    n_layers = (schema.field("vectors").metadata or {}).get(_LAYERS, b"1")
    if not n_layers.isdigit() or not int(n_layers) or vectors.value_type.list_size % int(n_layers):
        raise DataError(f"the column vectors must have a number of layers that fits its width; found {n_layers!r:.40}")


@dataclass(frozen=True)
class ColumnEncoder:
    """Adds vectors to batches of a table; the encoders for Ray Data and Spark are built on this class.

    It is pickled without the model, which every process loads once, on first use. The vectors are those of
    ``Elmo.encode``, in float32.

    Args:
        model: A name or path as in ``Elmo.from_pretrained``, which all machines can read.
        column: Name of the column of texts, or of lists of tokens.
        pooling: How to pool the vectors of the tokens into the new column COLUMN_vector: "mean", "max" or "ends"; None
            adds the tokens and their vectors, COLUMN_tokens and COLUMN_vectors.
        layers: Layers as in ``Elmo.encode``, except "all".
        start: State at the start of a text: "zero", or "warm" (stored with the model).
        tokenizer: Name of a tokenizer for texts. Default: the tokenizer of the model.
        dtype: Precision of the network, as in ``Elmo.from_pretrained``.
        device: Device of the network.
        n_threads: Number of threads of each process; one, because an engine runs one process per core.
        expected: Fingerprint that the model must have. Default: any.
    """

    model: str | Path = "en"
    column: str = "text"
    _: KW_ONLY
    pooling: Pooling | None = "mean"
    layers: LayerChoice | int = "average"
    start: Literal["zero", "warm"] = "zero"
    tokenizer: str | None = None
    dtype: str = "float32"
    device: str = "cpu"
    n_threads: int = 1
    expected: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, str | Path):
            raise ConfigError(
                "model must be a name or a path, so that other processes can load it; found "
                f"{type(self.model).__name__}"
            )
        if self.layers == "all":
            raise ConfigError("layers must give one vector per token; found 'all'; use 'concat'")
        if self.pooling is not None and self.pooling not in get_args(Pooling):
            raise ConfigError(f"pooling must be {', '.join(get_args(Pooling))} or None; found {self.pooling!r:.40}")
        if self.n_threads < 1:
            raise ConfigError(f"n_threads must be at least 1; found {self.n_threads}")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "elmo"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    @cached_property
    def elmo(self) -> Elmo:
        """The model. Loading it sets the number of threads of this process."""
        torch.set_num_threads(self.n_threads)
        elmo = Elmo.from_pretrained(self.model, device=self.device, dtype=self.dtype, tokenizer=self.tokenizer)
        if self.expected is not None and self.expected != (found := self.compute_fingerprint(elmo.pretrained)):
            raise StateError(
                f"{self.model!s:.80}: the model must have the fingerprint {str(self.expected)[:12]}…, as in the "
                f"driver; found {found[:12]}…; use the same model on all machines"
            )
        return elmo

    def compute_fingerprint(self, model: Pretrained) -> str:
        """Compute the fingerprint of what determines the vectors of a model with these options."""
        return fingerprint(model, with_warm=self.start == "warm", with_softmax=self.layers == "sense")

    @property
    def new_columns(self) -> tuple[str, ...]:
        """Names of the new columns."""
        if self.pooling is None:
            return f"{self.column}_tokens", f"{self.column}_vectors"
        return (f"{self.column}_vector",)

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise ``DataError`` if the column is missing, or if a new column exists already."""
        if self.column not in names:
            raise DataError(f"unknown column {self.column!r:.40}; the batch has: {', '.join(map(str, names))[:200]}")
        if len(set(names)) < len(names):
            raise DataError("the batch has two columns with the same name; rename one")
        if taken := [name for name in self.new_columns if name in names]:
            raise DataError(f"the batch already has a column {taken[0]!r:.40}; rename it")

    def encode(self, texts: Sequence[Any]) -> pyarrow.Table:
        """Return a table with the new columns; a text that is None has no vector (null)."""
        tables = [self._encode_some(texts[begin : begin + _BATCH]) for begin in range(0, max(len(texts), 1), _BATCH)]
        return pa.concat_tables(tables)

    def _encode_some(self, texts: Sequence[Any]) -> pyarrow.Table:
        present = [text for text in texts if text is not None]
        # an empty text, if there is no other, gives the columns their types
        encodings = self.elmo.encode(present or [""], layers=self.layers, start=self.start, dtype="float32")
        table = to_arrow(encodings, pooling=self.pooling)
        if len(present) < len(texts) or not present:
            numbers = iter(range(len(present)))
            table = table.take(pa.array([None if text is None else next(numbers) for text in texts], pa.int64()))
        columns = table.columns if self.pooling is None else table.columns[1:]
        return pa.table(dict(zip(self.new_columns, columns, strict=True)))


def read_job(path: str | Path, *, verify: bool = True) -> pyarrow.RecordBatchReader:
    """Read the output of ``elmo embed`` as a stream of Arrow batches, in the order of the input.

    A batch is a shard and shares its memory; only one shard is in memory. HDF5 and JSON lines are copied, in batches of
    1,024 sentences.

    Args:
        path: The output of a job, its manifest, or a single shard.
        verify: Check the SHA-256 of each file that the manifest lists.

    Example:
        >>> from elmo.jobs import EmbedJob, embed_corpus
        >>> summary = embed_corpus(EmbedJob(("corpus.txt",), Path("arrow.parquet")), elmo)
        >>> read_job("arrow.parquet").read_all().num_rows
        10
    """
    batches = _read_batches(Path(path), verify=verify)
    first = next(batches, None)
    if first is None:
        raise DataError(f"{Path(path).name[:80]!r}: expected an embedding file, found no sentences")

    def chain() -> Iterator[pyarrow.RecordBatch]:
        yield first
        yield from batches

    return pa.RecordBatchReader.from_batches(first.schema, chain())


def _read_batches(path: Path, *, verify: bool) -> Iterator[pyarrow.RecordBatch]:
    if path.suffix.lower() not in (".npz", ".safetensors", ".parquet") and not path.name.endswith(".manifest.json"):
        yield from _copy_batches(read_embeddings(path, verify=verify))
        return
    files: list[tuple[Path, str | None]] = [(path, None)]
    if not path.is_file() or path.name.endswith(".manifest.json"):
        read_embeddings(path, verify=False)  # reports a missing or unfinished job
        manifest = path if path.name.endswith(".manifest.json") else OutputFiles(path).manifest
        records = read_manifest(manifest)
        if records.sha256:  # an assembled HDF5 file
            yield from _copy_batches(read_embeddings(path, verify=verify))
            return
        files = [(path.parent / record.file, record.sha256 if verify else None) for record in records.shards]
    for file, sha256 in files:
        if sha256 is not None and compute_sha256(file) != sha256:
            raise ChecksumError(f"{format_path(file)}: the file is damaged; run the job again to repair it")
        yield from shard_table(read_shard(file)).to_batches()


def _copy_batches(encodings: Iterator[Encoding]) -> Iterator[pyarrow.RecordBatch]:
    while some := list(islice(encodings, _BATCH)):
        yield from to_arrow(some).to_batches()


def shard_table(shard: Shard) -> pyarrow.Table:
    """Convert a shard to a table without copying its vectors (with several layers, they are copied)."""
    layers = shard.vectors.shape[0] if shard.vectors.ndim == 3 else 0
    words = pa.array([_clean(token) for token in shard.tokens()], pa.string())
    tokens = pa.ListArray.from_arrays(_offsets(shard.lengths), words)
    return _sentence_table(tokens, _token_rows(shard.vectors), shard.lengths, n_layers=layers)


def _sentence_table(
    tokens: pyarrow.Array, flat: NDArray[Any], lengths: Sequence[int] | NDArray[Any], *, n_layers: int
) -> pyarrow.Table:
    vectors = pa.ListArray.from_arrays(_offsets(lengths), _fixed_lists(flat))
    field = pa.field("vectors", vectors.type, metadata={_LAYERS: str(n_layers).encode()} if n_layers else None)
    return pa.table([tokens, vectors], schema=pa.schema([pa.field("tokens", tokens.type), field]))


def _token_rows(vectors: NDArray[Any]) -> NDArray[Any]:
    """Return vectors (time, width) as they are, and (layer, time, width) as (time, layer · width)."""
    if vectors.ndim == 2:
        return vectors
    n_layers, time, width = vectors.shape
    return vectors.transpose(1, 0, 2).reshape(time, n_layers * width)


def _fixed_lists(rows: NDArray[Any]) -> pyarrow.FixedSizeListArray:
    """Wrap rows (row, width) without copying them."""
    flat = np.ascontiguousarray(rows).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), rows.shape[1] or 1)


def _offsets(lengths: Sequence[int] | NDArray[Any]) -> pyarrow.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def _to_numpy(vectors: Any) -> NDArray[Any]:
    if isinstance(vectors, np.ndarray):
        return vectors
    tensor = cast("Any", vectors).detach().cpu()
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()  # NumPy has no bfloat16


def _clean(text: str) -> str:
    """Replace lone surrogates, which Arrow cannot store."""
    return text.encode("utf-8", "replace").decode()
