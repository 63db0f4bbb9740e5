"""Write shards as npz, safetensors, Parquet or JSON lines, and assemble HDF5 files in AllenNLP's layout.

All writers are deterministic: they write the same bytes for the same shard.
"""

from __future__ import annotations

import json
import logging
import re
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from elmo.embed.encoding import Encoding
from elmo.errors import importing_extra
from elmo.formats.containers.hdf5 import FailSafeFile, create_hdf5
from elmo.jobs.shard import Shard
from elmo.storage.tensors import DESCRIPTION, write_arrays

if TYPE_CHECKING:
    import h5py
    import pyarrow

logger = logging.getLogger(__name__)

SENTENCES = "sentence_to_index"  # AllenNLP's name
_MAP_LIMIT = 1 << 30  # maximum number of characters of SENTENCES, a single string that readers load into memory
_ROW_GROUP = 1 << 13  # tokens per Parquet row group
_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_BYTES = re.compile(rb"\xed[\xa0-\xbf]")  # in UTF-8

Writer = Callable[[Shard, BinaryIO], None]


def write_npz(shard: Shard, file: BinaryIO) -> None:
    """Write the arrays of a shard by name, uncompressed, and its description as the array ``elmo``."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        description = np.array(json.dumps(shard.description()))
        for name, array in ((DESCRIPTION, description), *_arrays(shard)):
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system = 3  # a fixed value instead of the current system
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def write_safetensors(shard: Shard, file: BinaryIO) -> None:
    """Write the arrays of a shard by name, and its description as the metadata entry ``elmo``."""
    write_arrays(_arrays(shard), shard.description(), file)


def write_parquet(shard: Shard, file: BinaryIO) -> None:
    """Write one row per token: sentence, index, token, begin, end, vector, file, line, token_bytes.

    ``vector`` contains all layers, one after the other. ``begin`` and ``end`` are null if the input was tokens.
    Parquet strings cannot contain lone surrogates, so ``token`` has U+FFFD in their place; ``token_bytes`` then
    has the original token in UTF-8 with surrogates, and is null otherwise. A sentence without tokens has no
    row, but is counted in the description, which is in the metadata of the schema.
    """
    pyarrow, parquet = _import_pyarrow()
    table = _build_table(shard, pyarrow)
    with parquet.ParquetWriter(
        file,
        table.schema,
        compression="none",
        use_dictionary=["token", "file"],
        write_statistics=["sentence"],
        store_schema=True,
    ) as writer:
        writer.write_table(table, row_group_size=_ROW_GROUP)


def write_json_lines(shard: Shard, file: BinaryIO) -> None:
    """Write one line of JSON per sentence, in the format of ``json_line``."""
    for index, encoding in enumerate(shard.encodings(), start=shard.first):
        file.write(json_line(index, encoding).encode("ascii") + b"\n")


def json_line(index: int, encoding: Encoding, *, is_ascii: bool = True) -> str:
    """Format a sentence as a JSON object with index, tokens, offsets and vectors, in ASCII or in Unicode.

    Numbers have nine significant digits, which is exact for float32. The object of a sentence without tokens also has
    the ``shape`` of its vectors, because an empty list does not show it.
    """
    head = {"index": index, "tokens": encoding.tokens, "offsets": encoding.offsets}
    vectors = np.asarray(encoding.vectors)
    tail = f', "shape": {list(vectors.shape)}' if not encoding.tokens else ""
    text = json.dumps(head, ensure_ascii=is_ascii).encode("utf-8", "backslashreplace").decode()  # lone surrogates
    return f'{text[:-1]}, "vectors": {_json_numbers(vectors)}{tail}}}'


def write_hdf5(shards: Iterable[Shard], path: Path) -> None:
    """Write all shards of a job to one file in AllenNLP's layout.

    The datasets "0", "1", … contain the vectors of one sentence each, in the order of the input. The dataset
    ``sentence_to_index`` has one string, a JSON object that maps a sentence (its tokens joined by spaces) to
    the name of its dataset; equal sentences map to the first one. Code that reads AllenNLP's files expects
    that all other datasets are vectors, so everything else is in attributes of the datasets: ``tokens``,
    ``offsets`` (absent if the input was tokens) and ``place`` (file, line, character), each as a JSON string.
    These strings have variable length, because other attributes are limited to 64 KB.
    """
    # v108, because the oldest file version is slow with thousands of datasets
    with create_hdf5(path, libver=("earliest", "v108")) as (file, errors):
        _write_datasets(file, shards, errors)


WRITERS: dict[str, Writer] = {
    ".jsonl": write_json_lines,
    ".npz": write_npz,
    ".parquet": write_parquet,
    ".safetensors": write_safetensors,
}
HDF5_SUFFIXES = (".hdf5", ".h5")
SUFFIXES = (*HDF5_SUFFIXES, *WRITERS)


def check_libraries(suffix: str) -> None:
    """Raise ``MissingExtraError`` if a library that the format needs is not installed."""
    if suffix == ".parquet":
        _import_pyarrow()


def _arrays(shard: Shard) -> list[tuple[str, np.ndarray[Any, Any]]]:
    return [(name, np.ascontiguousarray(getattr(shard, name))) for name in Shard.ARRAYS]


def _json_numbers(values: np.ndarray[Any, Any]) -> str:
    if values.ndim > 1:
        return f"[{', '.join(map(_json_numbers, values))}]"
    # faster than the json library, which also writes seventeen digits instead of nine
    return f"[{', '.join(['%.9g'] * len(values)) % tuple(values.tolist())}]"


def _write_datasets(file: h5py.File, shards: Iterable[Shard], errors: FailSafeFile) -> None:
    import h5py

    text = h5py.string_dtype("ascii")
    indices: dict[str, str] = {}
    index, n_characters, description = 0, 0, None
    for shard in shards:
        description = description or shard.description()
        places = zip(shard.encodings(), shard.places.tolist(), strict=True)
        for index, (encoding, (source, line, start)) in enumerate(places, start=shard.first):
            data = file.create_dataset(str(index), data=encoding.vectors, track_times=False)
            data.attrs.create("tokens", json.dumps(encoding.tokens), dtype=text)
            if encoding.offsets is not None:
                data.attrs.create("offsets", json.dumps(encoding.offsets), dtype=text)
            data.attrs.create("place", json.dumps([shard.files[source], line, start]), dtype=text)
            errors.raise_error()
            sentence = " ".join(encoding.tokens)
            if n_characters <= _MAP_LIMIT and sentence not in indices:
                indices[sentence] = str(index)
                n_characters += len(sentence)
    if n_characters <= _MAP_LIMIT:
        dataset = file.create_dataset(SENTENCES, (1,), dtype=h5py.string_dtype("utf-8"), track_times=False)
        dataset[0] = json.dumps(indices)
    else:
        logger.warning("not writing %s: the sentences have more than %d characters", SENTENCES, _MAP_LIMIT)
    summary = {key: (description or {}).get(key) for key in ("version", "layers", "width", "dtype")}
    file.attrs.create(DESCRIPTION, json.dumps(summary), dtype=text)


def _import_pyarrow() -> tuple[Any, Any]:
    with importing_extra("Parquet", extra="parquet"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow, pyarrow.parquet


def _build_table(shard: Shard, arrow: Any) -> pyarrow.Table:
    n, lengths = shard.n_tokens, shard.lengths
    sentence = np.repeat(np.arange(shard.first, shard.first + len(lengths)), lengths)
    index = np.arange(n) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    texts, raw = _build_tokens(shard, arrow)
    layout = shard.layout
    width = (layout.n_layers or 1) * layout.width
    # from (layer, time, width) to (time, layer · width)
    vectors = shard.vectors if layout.n_layers is None else shard.vectors.transpose(1, 0, 2)
    flat = arrow.array(np.ascontiguousarray(vectors).reshape(-1))
    has_no_offsets = shard.offsets[:, 0] < 0
    source, line = (np.repeat(shard.places[:, axis], lengths) for axis in (0, 1))
    columns = {
        "sentence": arrow.array(sentence, arrow.int64()),
        "index": arrow.array(index, arrow.int32()),
        "token": texts,
        "begin": arrow.array(shard.offsets[:, 0], arrow.int64(), mask=has_no_offsets),
        "end": arrow.array(shard.offsets[:, 1], arrow.int64(), mask=has_no_offsets),
        "vector": arrow.FixedSizeListArray.from_arrays(flat, width),
        "file": arrow.array(map(_replace_surrogates, shard.files), arrow.string()).take(arrow.array(source)),
        "line": arrow.array(line, arrow.int64()),
        "token_bytes": raw,
    }
    metadata = {DESCRIPTION: json.dumps(shard.description())}
    return arrow.table(columns).replace_schema_metadata(metadata)


def _build_tokens(shard: Shard, arrow: Any) -> tuple[pyarrow.Array, pyarrow.Array]:
    """Build the columns ``token`` and ``token_bytes``."""
    token_bytes = np.ascontiguousarray(shard.token_bytes)
    if _SURROGATE_BYTES.search(token_bytes.data) is None:  # Arrow uses the memory of the shard
        ends = np.concatenate([np.zeros(1, np.int64), shard.token_ends])
        buffers = [None, arrow.py_buffer(ends), arrow.py_buffer(token_bytes)]
        texts = arrow.Array.from_buffers(arrow.large_string(), shard.n_tokens, buffers)
        return texts, arrow.nulls(shard.n_tokens, arrow.large_binary())
    tokens = shard.tokens()
    replaced = [_replace_surrogates(token) for token in tokens]
    raw = [
        None if token == text else token.encode("utf-8", "surrogatepass")
        for token, text in zip(tokens, replaced, strict=True)
    ]
    return arrow.array(replaced, arrow.large_string()), arrow.array(raw, arrow.large_binary())


def _replace_surrogates(text: str) -> str:
    """Replace each lone surrogate with U+FFFD."""
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)
