"""A file or manifest that ``elmo embed`` wrote in, its sentences with their vectors out, one at a time."""

from __future__ import annotations

import json
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo.embed.encoding import Encoding
from elmo.errors import ChecksumError, DataError, ElmoError, MissingExtraError
from elmo.jobs.plan import OutputFiles, read_manifest
from elmo.jobs.shard import Shard
from elmo.jobs.writers import HDF5_SUFFIXES, SENTENCES, SUFFIXES
from elmo.storage.checksums import sha256
from elmo.storage.files import format_path, open_regular
from elmo.storage.tensors import DESCRIPTION, read_arrays

if TYPE_CHECKING:
    import h5py

# What libraries make of damage; pyarrow's errors are ValueErrors, OSErrors or NotImplementedErrors too.
DAMAGED_FILE_ERRORS = (OSError, EOFError, ValueError, KeyError, TypeError, IndexError, RuntimeError, NotImplementedError)
DAMAGED_FILE_ERRORS += (zipfile.BadZipFile, zlib.error, struct.error, MemoryError, OverflowError, RecursionError)


def read_embeddings(path: str | Path, *, verify: bool = True) -> Iterator[Encoding]:
    """The sentences of a job, in the order of its input; tokens, offsets and vectors as they were written.

    ``path`` is the name given to ``--out``, a manifest, or a single file of any format. Through a manifest,
    each file's SHA-256 is checked first, unless ``verify`` is False. JSON lines give float32. Texts are not
    kept: ``Encoding.text`` is None, and offsets count in the sentence as it stood in the input.
    """
    path = Path(path)
    if path.name.endswith(".manifest.json"):
        return _of_job(path, verify=verify)
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{format_path(path)}: expected a name that ends in {', '.join(SUFFIXES)} or .manifest.json"
        )
    manifest = OutputFiles(path).manifest
    if not path.exists() and manifest.exists():
        return _of_job(manifest, verify=verify)
    if not path.is_file():
        raise DataError(f"{format_path(path)}: no such file, and no {format_path(manifest.name)} beside it")
    return _of_file(path)


def read_shard(path: Path) -> Shard:
    """The arrays of one npz, safetensors or Parquet file."""
    readers: dict[str, Callable[[Path], tuple[dict[str, Any], Any]]] = {
        ".npz": _read_npz,
        ".safetensors": read_arrays,
        ".parquet": _read_parquet,
    }
    try:
        arrays, description = readers[path.suffix.lower()](path)
    except DAMAGED_FILE_ERRORS as error:
        raise _damaged(path, error) from error
    return Shard.from_arrays(arrays, description, subject=format_path(path))


def _of_job(path: Path, *, verify: bool) -> Iterator[Encoding]:
    manifest = read_manifest(path)
    if not manifest.is_complete:
        raise DataError(f"{format_path(path)}: this job is not finished; run it again to finish it")
    return _of_files(
        path.parent,
        [(manifest.out, manifest.sha256)]
        if manifest.sha256
        else [(one.file, one.sha256) for one in manifest.shards],
        verify=verify,
    )


def _of_files(folder: Path, files: list[tuple[str, str]], *, verify: bool) -> Iterator[Encoding]:
    for name, expected in files:
        path = folder / name
        if not path.is_file():
            raise DataError(f"{format_path(path)}: the manifest lists this file, but it is not there")
        if verify and (found := sha256(path)) != expected:
            raise ChecksumError(
                f"{format_path(path)}: expected SHA-256 {expected[:12]}…, found {found[:12]}…: it is damaged; "
                "run the job again to mend it"
            )
        yield from _of_file(path)


def _of_file(path: Path) -> Iterator[Encoding]:
    suffix = path.suffix.lower()
    if suffix in HDF5_SUFFIXES:
        return _hdf5_sentences(path)
    if suffix == ".jsonl":
        return _json_sentences(path)
    return _shard_sentences(path)


def _shard_sentences(path: Path) -> Iterator[Encoding]:
    shard = read_shard(path)
    try:
        yield from shard.encodings()
    except UnicodeDecodeError as error:
        raise _damaged(path, error) from error


def _read_npz(path: Path) -> tuple[dict[str, Any], Any]:
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        arrays = {}
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise ValueError(f"{info.filename!r:.40} is compressed, which elmo embed never does")
            with archive.open(info) as member:
                arrays[info.filename.removesuffix(".npy")] = _read_npy(member, info.file_size)
    text = str(arrays.pop(DESCRIPTION)[()])
    return arrays, json.loads(text)


def _read_npy(member: Any, size: int) -> np.ndarray[Any, Any]:
    """An array whose declared shape was held against its real size before memory is taken."""
    if np.lib.format.read_magic(member) != (1, 0):
        raise ValueError("expected npy 1.0")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(member)
    if is_fortran or dtype.hasobject or dtype.kind not in "fiuU":
        raise ValueError(f"expected plain numbers in rows, found {dtype}")
    if math.prod(shape) * dtype.itemsize != size - member.tell():
        raise ValueError(f"expected {size - member.tell()} bytes of data, found shape {shape} of {dtype}")
    return np.frombuffer(member.read(), dtype=dtype).reshape(shape)


def _read_parquet(path: Path) -> tuple[dict[str, Any], Any]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("Parquet", extra="parquet") from error
    with open_regular(path) as file:
        table = parquet.read_table(file)
    description = json.loads((table.schema.metadata or {})[DESCRIPTION.encode()])
    n_layers, width = description["layers"], description["width"]
    tokens = [
        raw if raw is not None else text.encode()
        for text, raw in zip(table["token"].to_pylist(), table["token_bytes"].to_pylist(), strict=True)
    ]
    column = table["vector"].combine_chunks()
    # (time, layer · width) as Parquet has it; our own order puts layers first
    vectors = column.flatten().to_numpy(zero_copy_only=False).reshape(table.num_rows, n_layers or 1, width)
    offsets = [table[name].fill_null(-1).to_numpy() for name in ("begin", "end")]
    sentences = table["sentence"].to_numpy() - description["first"]
    if len(sentences) and (sentences[0] < 0 or (np.diff(sentences) < 0).any()):
        raise ValueError("sentences out of order")
    n_sentences = description["sentences"]
    if not 0 <= n_sentences <= 1 << 32 or (len(sentences) and sentences[-1] >= n_sentences):
        raise ValueError(f"{n_sentences} sentences declared")
    return {
        "vectors": vectors[:, 0] if n_layers is None else np.ascontiguousarray(vectors.transpose(1, 0, 2)),
        "lengths": np.bincount(sentences, minlength=n_sentences).astype(np.int64),
        "token_bytes": np.frombuffer(b"".join(tokens), dtype=np.uint8),
        "token_ends": np.cumsum([len(token) for token in tokens], dtype=np.int64),
        "offsets": np.stack(offsets, axis=1),
        "places": np.zeros((n_sentences, 3), dtype=np.int64),  # sentences without tokens have none here
    }, description


def _hdf5_sentences(path: Path) -> Iterator[Encoding]:
    import h5py

    try:
        with open_regular(path) as raw:
            size = raw.seek(0, 2)
        with h5py.File(path, "r") as file:
            n_sentences = len(file) - (SENTENCES in file)
            for index in range(n_sentences):
                yield _hdf5_sentence(file, str(index), size)
    except DAMAGED_FILE_ERRORS as error:
        raise _damaged(path, error) from error


def _hdf5_sentence(file: h5py.File, key: str, size: int) -> Encoding:
    import h5py

    # links and storage that lead out of the file are nothing that elmo or AllenNLP writes
    link = file.get(key, getlink=True)
    data = file[key] if isinstance(link, h5py.HardLink) else None
    if not isinstance(data, h5py.Dataset) or data.external or data.is_virtual or data.nbytes > size:
        raise ValueError(f"expected a dataset {key!r} that lies in the file, found none")
    if "tokens" not in data.attrs:
        raise ValueError(f"dataset {key!r} has no attribute 'tokens': elmo embed did not write this file")
    offsets = json.loads(str(data.attrs["offsets"])) if "offsets" in data.attrs else None
    return _encoding(json.loads(str(data.attrs["tokens"])), offsets, data[()])


def _json_sentences(path: Path) -> Iterator[Encoding]:
    try:
        with open_regular(path) as file:
            for line in file:
                values = json.loads(line)
                vectors = np.array(values["vectors"], dtype=np.float32)
                if not values["tokens"] and 0 in (shape := values["shape"]):
                    vectors = np.zeros(shape, dtype=np.float32)  # of no number, whatever the other axes are
                yield _encoding(values["tokens"], values["offsets"], vectors)
    except DAMAGED_FILE_ERRORS as error:
        raise _damaged(path, error) from error


def _encoding(tokens: Any, offsets: Any, vectors: np.ndarray[Any, Any]) -> Encoding:
    if vectors.ndim not in (2, 3) or vectors.shape[-2] != len(tokens) or vectors.dtype.kind != "f":
        raise ValueError(f"expected a vector for each of {len(tokens)} tokens, found shape {vectors.shape}")
    if not all(isinstance(token, str) for token in tokens):
        raise ValueError("expected tokens as strings")
    pairs = None if offsets is None else tuple((int(begin), int(end)) for begin, end in offsets)
    if pairs is not None and len(pairs) != len(tokens):
        raise ValueError(f"expected offsets for each of {len(tokens)} tokens, found {len(pairs)}")
    return Encoding(tuple(tokens), vectors, offsets=pairs)


def _damaged(path: Path, error: BaseException) -> ElmoError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return DataError(f"{format_path(path)}: cannot be read as an embedding file: {reason}")
