"""Embed a column of a Parquet or CSV file (``elmo embed --column``).

The output, in Parquet, has the rows and columns of the input, and new columns with the vectors. It is written in shards
like the output of every job: an interrupted job resumes after its last complete shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

import numpy as np

from elmo.embed.elmo import Elmo, as_tokens
from elmo.embed.encoding import pool
from elmo.engine.batches import split_batches
from elmo.errors import ConfigError, DataError, importing_extra
from elmo.jobs.groups import Group
from elmo.jobs.manifest import OutputFiles
from elmo.jobs.plan import EmbedJob, JobSummary, Progress, encode_sentences
from elmo.jobs.shard import Layout, Vectors
from elmo.jobs.sharded import ShardedRun
from elmo.jobs.workers import ShardMaker
from elmo.storage.atomic import hold_lock
from elmo.storage.files import compute_sha256, format_error, format_path
from elmo.text.lines import Tally
from elmo.text.reader import Sentence
from elmo.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    import pyarrow

TablePooling = Literal["mean", "max", "ends", "none"]
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (".parquet", *_DELIMITERS)
_BATCH_ROWS = 1 << 12
_CSV_BLOCK = 1 << 24  # bytes from which the types of CSV columns are inferred


@dataclass(frozen=True)
class TableJob:
    """Options of ``embed_table``.

    Args:
        input: A Parquet, CSV or TSV file; CSV may be compressed (.csv.gz).
        column: Name of the column with the text. A row without text (null) gets no vector.
        out: Output file, which must end in .parquet.
        pooling: How to pool the vectors of the tokens into the column COLUMN_vector: "mean", "max" or "ends"; "none"
            stores the tokens and their vectors as lists, COLUMN_tokens and COLUMN_vectors.
        layers: Layers of the vectors: "average", "top", "concat" or a layer number.
        dtype: Data type of the vectors.
        start: State at the start of a text: "zero", or "warm" (stored with the model).
        batch_size: Number of texts per batch; affects the speed, not the vectors.
        shard_tokens: Maximum number of tokens per output file. Default: about 64 MB of token vectors.
        restart: Replace the output of an earlier run instead of resuming it.

    Example:
        >>> job = TableJob(Path("reviews.csv"), "text", Path("reviews.parquet"))
    """

    input: Path
    column: str
    out: Path
    pooling: TablePooling = "mean"
    layers: str | int = "average"
    dtype: Literal["float32", "float16"] = "float32"
    start: Literal["zero", "warm"] = "zero"
    batch_size: int | None = None
    shard_tokens: int | None = None
    restart: bool = False

    def __post_init__(self) -> None:
        if self.pooling not in ("mean", "max", "ends", "none"):
            raise ConfigError(f"pooling must be mean, max, ends or none; found {self.pooling!r:.40}")
        if self.layers == "all":
            raise ConfigError("layers must give one vector per token for a table; found 'all'; use 'concat'")
        if self.out.suffix.lower() != ".parquet":
            raise ConfigError(f"the output of a table must end in .parquet; found {format_path(self.out)}")
        if not self.input.is_file():
            raise DataError(f"cannot read {format_path(self.input)}: no such file")
        if _table_suffix(self.input) not in SUFFIXES:
            raise ConfigError(f"{format_path(self.input)}: a table must end in {', '.join(SUFFIXES)}")

    @property
    def new_columns(self) -> tuple[str, ...]:
        """Names of the columns that the job adds."""
        if self.pooling == "none":
            return f"{self.column}_tokens", f"{self.column}_vectors"
        return (f"{self.column}_vector",)

    def embed_job(self) -> EmbedJob:
        """Return the embedding job that computes the vectors."""
        return EmbedJob(
            inputs=(str(self.input),), out=self.out, layers=self.layers, dtype=self.dtype, start=self.start,
            batch_size=self.batch_size, shard_tokens=self.shard_tokens, restart=self.restart,
        )  # fmt: skip


def embed_table(job: TableJob, elmo: Elmo, *, on_progress: Callable[[Progress], None] | None = None) -> JobSummary:
    """Embed a column of a table, or resume a job that was stopped; the summary counts a row as a sentence.

    Args:
        job: The table, the output and the options.
        elmo: The model.
        on_progress: Called with the progress after each batch and each shard.

    Example:
        >>> embed_table(TableJob(Path("reviews.csv"), "text", Path("reviews.parquet")), elmo).sentences
        2
    """
    embed_job = job.embed_job()
    layout = Layout.of(elmo.config, layers=job.layers, dtype=job.dtype)
    encode_sentences([], embed_job, elmo)  # report invalid options before anything is written
    rows = _read_rows(job, elmo.tokenizer)
    first = next(rows, None)  # reports an unknown column
    files = OutputFiles(job.out)
    files.make_folders()

    def read() -> Iterator[Sentence]:
        if first is not None:
            yield first
        yield from rows

    with hold_lock(files.lock, subject=job.out) as lock:
        work = ShardedRun(
            embed_job, elmo, files=files, lock=lock, limit=embed_job.tokens_per_shard(layout),
            report=on_progress or (lambda _: None),
            maker=_TableShardMaker(job, elmo, schema=_read_schema(job)),
            options={"column": job.column, "pooling": job.pooling, "sha256": compute_sha256(job.input)},
        )  # fmt: skip
        return work.run(read(), Tally())


@dataclass(frozen=True)
class _RowSentence(Sentence):
    """The text of one row, with its place in a batch of the table."""

    batch: Any = None  # pyarrow.RecordBatch
    row: int = 0
    is_null: bool = False


class _TableShardMaker(ShardMaker):
    """Makes shards with the columns of the table and the vectors of its texts."""

    def __init__(self, job: TableJob, elmo: Elmo, *, schema: pyarrow.Schema) -> None:
        super().__init__(job.embed_job(), elmo)
        self.table_job, self.schema = job, schema

    def vectors(self, group: Group, on_batch: Callable[[int, int], None] | None = None) -> Vectors:
        """Compute the vectors of the tokens, or of the texts (text, width) with pooling."""
        pooling = self.table_job.pooling
        if pooling == "none":
            return super().vectors(group, on_batch)
        width = self.layout.width
        rows = np.zeros((len(group.sentences), self._pooled_width), self.layout.dtype)
        n_rows = n_tokens = 0
        for batch in split_batches(group.sentences, batch_size=self.job.batch_size):
            for encoding in encode_sentences(batch, self.job, self.elmo):
                if len(encoding):
                    wide = np.asarray(encoding.vectors, dtype=np.float32)
                    rows[n_rows] = pool(wide, pooling)
                n_rows, n_tokens = n_rows + 1, n_tokens + len(encoding)
            if on_batch is not None:
                on_batch(n_rows, n_tokens)
        vectors = self.empty(-(-rows.size // width))  # in reusable memory, which ShardMaker.write takes back
        vectors[:] = rows.reshape(-1, width)
        return vectors

    @property
    def _pooled_width(self) -> int:
        return self.layout.width * (2 if self.table_job.pooling == "ends" else 1)

    def _write_shard(self, group: Group, vectors: Vectors, file: BinaryIO) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        sentences = cast("tuple[_RowSentence, ...]", group.sentences)
        parts = [
            batch.slice(rows[0].row, len(rows))  # the rows of a group are consecutive
            for batch, rows in ((part[0].batch, part) for part in _split_by_batch(sentences))
        ]
        table = pa.Table.from_batches(parts, self.schema)
        is_null = np.array([sentence.is_null for sentence in sentences], dtype=bool)
        for name, column in zip(self.table_job.new_columns, self._columns(sentences, vectors, is_null), strict=True):
            table = table.append_column(name, column)
        parquet.write_table(table, file, compression="zstd", store_schema=True)

    def _columns(self, sentences: tuple[_RowSentence, ...], vectors: Vectors, is_null: Any) -> list[Any]:
        import pyarrow as pa

        mask = pa.array(is_null)
        if self.table_job.pooling != "none":
            return [pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self._pooled_width, mask=mask)]
        lengths = [len(sentence) for sentence in sentences]
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        words = [token for sentence in sentences for token in sentence.tokens.tokens]
        texts = pa.array([word.encode("utf-8", "replace").decode() for word in words], pa.string())
        lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self.layout.width)
        return [pa.ListArray.from_arrays(offsets, values, mask=mask) for values in (texts, lists)]


def _split_by_batch(sentences: tuple[_RowSentence, ...]) -> Iterator[list[_RowSentence]]:
    for _, rows in groupby(sentences, key=lambda sentence: id(sentence.batch)):
        yield list(rows)


def _read_rows(job: TableJob, tokenizer: Tokenizer) -> Iterator[_RowSentence]:
    name, line = format_path(job.input), 0
    for batch in _read_batches(job):
        for row, text in enumerate(batch.column(job.column).to_pylist()):
            line += 1
            tokens = as_tokens(text or "", tokenizer, subject=f"{name}: row {line}")
            yield _RowSentence(tokens, name, line, batch=batch, row=row, is_null=text is None)


def _read_batches(job: TableJob) -> Iterator[pyarrow.RecordBatch]:
    with importing_extra("a table", extra="parquet"):
        import pyarrow as pa
    try:
        with _open(job) as reader:
            is_parquet = _table_suffix(job.input) == ".parquet"
            for batch in reader.iter_batches(batch_size=_BATCH_ROWS) if is_parquet else reader:
                _check_columns(job, batch.schema)
                batch.column(job.column).validate(full=True)  # the text of a Parquet file may not be UTF-8
                for begin in range(0, len(batch), _BATCH_ROWS):
                    yield batch.slice(begin, _BATCH_ROWS)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"cannot read {format_path(job.input)} as a table: {format_error(error)}") from error


def _read_schema(job: TableJob) -> pyarrow.Schema:
    with _open(job) as reader:
        schema = reader.schema_arrow if _table_suffix(job.input) == ".parquet" else reader.schema
    _check_columns(job, schema)
    return schema


def _open(job: TableJob) -> Any:
    """Open the table: a ``ParquetFile``, or a streaming CSV reader."""
    from pyarrow import csv, parquet, string

    suffix = _table_suffix(job.input)
    if suffix == ".parquet":
        return parquet.ParquetFile(job.input)
    return csv.open_csv(
        job.input,
        read_options=csv.ReadOptions(block_size=_CSV_BLOCK),
        parse_options=csv.ParseOptions(delimiter=_DELIMITERS[suffix], newlines_in_values=True),
        convert_options=csv.ConvertOptions(column_types={job.column: string()}, strings_can_be_null=False),
    )


def _check_columns(job: TableJob, schema: pyarrow.Schema) -> None:
    import pyarrow as pa

    if job.column not in schema.names:
        raise DataError(
            f"{format_path(job.input)}: unknown column {job.column!r:.40}; it has: {', '.join(schema.names)[:200]}"
        )
    if schema.names.count(job.column) > 1:
        raise DataError(f"{format_path(job.input)}: two columns have the name {job.column!r:.40}; rename one of them")
    kind = schema.field(job.column).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise DataError(f"{format_path(job.input)}: column {job.column!r:.40} must contain text; found {kind}")
    if taken := [name for name in job.new_columns if name in schema.names]:
        raise ConfigError(f"{format_path(job.input)}: it already has a column {taken[0]!r:.40}; rename it")


def _table_suffix(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()
