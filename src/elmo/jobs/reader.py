"""``read_embeddings``: read the output of a job, one sentence at a time."""

from __future__ import annotations

import json
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo.embed.encoding import Encoding
from elmo.errors import ChecksumError, DataError, importing_extra
from elmo.formats.containers.hdf5 import Hdf5File
from elmo.jobs.manifest import OutputFiles, read_manifest
from elmo.jobs.shard import Shard
from elmo.jobs.writers import HDF5_SUFFIXES, SENTENCES, SUFFIXES
from elmo.storage.files import compute_sha256, format_path, open_regular
from elmo.storage.tensors import DESCRIPTION, read_arrays

if TYPE_CHECKING:
    import h5py

# Exceptions that libraries raise for damaged files; those of pyarrow are subclasses.
DAMAGED_FILE_ERRORS = (
    OSError, EOFError, ValueError, KeyError, TypeError, IndexError, RuntimeError, NotImplementedError,
    zipfile.BadZipFile, zlib.error, struct.error, MemoryError, OverflowError, RecursionError,
)  # fmt: skip


def read_embeddings(path: str | Path, *, verify: bool = True) -> Iterator[Encoding]:
    """Read the sentences that a job has written, in the order of its input.

    Each sentence is an ``Encoding`` with tokens, offsets and vectors. The text is not stored, so
    ``Encoding.text`` is None; offsets refer to the sentence in the input. The vectors in JSON lines are read
    as float32.

    Args:
        path: The output of a job, its manifest, or a single shard.
        verify: Check the SHA-256 of each file that the manifest lists.

    Example:
        >>> from elmo.jobs import EmbedJob, embed_corpus
        >>> summary = embed_corpus(EmbedJob(("corpus.txt",), Path("vectors.npz")), elmo)
        >>> sum(len(encoding.tokens) for encoding in read_embeddings("vectors.npz")) == summary.tokens
        True
    """
    path = Path(path)
    if path.name.endswith(".manifest.json"):
        return _read_job(path, verify=verify)
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{format_path(path)}: the file name must end in {', '.join(SUFFIXES)} or .manifest.json; "
            f"found {path.suffix!r}"
        )
    manifest = OutputFiles(path).manifest
    if not path.exists() and manifest.exists():
        return _read_job(manifest, verify=verify)
    if not path.is_file():
        raise DataError(f"cannot read {format_path(path)}: neither this file nor {format_path(manifest.name)} exists")
    return _read_file(path)


def _read_job(path: Path, *, verify: bool) -> Iterator[Encoding]:
    manifest = read_manifest(path)
    if not manifest.is_complete:
        raise DataError(f"cannot read {format_path(path)}: the job is not finished; run it again to finish it")
    files = [(shard.file, shard.sha256) for shard in manifest.shards]
    if manifest.sha256:
        files = [(manifest.out, manifest.sha256)]
    return _read_files(path.parent, files, verify=verify)


def _read_files(folder: Path, files: list[tuple[str, str]], *, verify: bool) -> Iterator[Encoding]:
    for name, expected in files:
        path = folder / name
        if not path.is_file():
            raise DataError(f"cannot read {format_path(path)}: the manifest lists this file, but it does not exist")
        if verify and (actual := compute_sha256(path)) != expected:
            raise ChecksumError(
                f"{format_path(path)}: SHA-256 must be {expected[:12]}…; found {actual[:12]}…; the file is damaged: "
                "run the job again to repair it"
            )
        yield from _read_file(path)


def _read_file(path: Path) -> Iterator[Encoding]:
    suffix = path.suffix.lower()
    if suffix in HDF5_SUFFIXES:
        return _read_hdf5(path)
    if suffix == ".jsonl":
        return _read_json_lines(path)
    return _read_shard_sentences(path)


@contextmanager
def _report_damage(path: Path) -> Iterator[None]:
    """Raise ``DataError`` instead of the exceptions that libraries raise for damaged files."""
    try:
        yield
    except DAMAGED_FILE_ERRORS as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"cannot read {format_path(path)} as an embedding file: {reason}") from error


def read_shard(path: Path) -> Shard:
    """Read a shard from an npz, safetensors or Parquet file."""
    readers: dict[str, Callable[[Path], tuple[dict[str, Any], Any]]] = {
        ".npz": _read_npz,
        ".safetensors": read_arrays,
        ".parquet": _read_parquet,
    }
    with _report_damage(path):
        arrays, description = readers[path.suffix.lower()](path)
    return Shard.from_arrays(arrays, description, subject=format_path(path))


def _read_shard_sentences(path: Path) -> Iterator[Encoding]:
    shard = read_shard(path)
    with _report_damage(path):  # tokens in a damaged file may be invalid UTF-8
        yield from shard.encodings()


def _read_npz(path: Path) -> tuple[dict[str, Any], Any]:
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        arrays = {}
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise ValueError(f"{info.filename!r:.40} is compressed; elmo embed writes uncompressed files")
            with archive.open(info) as member:
                arrays[info.filename.removesuffix(".npy")] = _read_npy(member, info.file_size)
    text = str(arrays.pop(DESCRIPTION)[()])
    return arrays, json.loads(text)


def _read_npy(member: Any, size: int) -> np.ndarray[Any, Any]:
    """Read an array; check its shape against the file size before memory is allocated."""
    if np.lib.format.read_magic(member) != (1, 0):
        raise ValueError("the npy version must be 1.0")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(member)
    if is_fortran or dtype.hasobject or dtype.kind not in "fiuU":
        raise ValueError(f"an array must contain plain numbers in C order; found {dtype}")
    if math.prod(shape) * dtype.itemsize != size - member.tell():
        raise ValueError(f"an array must have {size - member.tell()} bytes of data; found shape {shape} of {dtype}")
    return np.frombuffer(member.read(), dtype=dtype).reshape(shape)


def _read_parquet(path: Path) -> tuple[dict[str, Any], Any]:
    with importing_extra("Parquet", extra="parquet"):
        from pyarrow import parquet
    with open_regular(path) as file:
        table = parquet.read_table(file)
    description = json.loads((table.schema.metadata or {})[DESCRIPTION.encode()])
    n_layers, width = description["layers"], description["width"]
    tokens = [
        raw if raw is not None else text.encode()
        for text, raw in zip(table["token"].to_pylist(), table["token_bytes"].to_pylist(), strict=True)
    ]
    column = table["vector"].combine_chunks()
    if not hasattr(column, "values"):  # a list has values; another type was written by another program, or is damaged
        raise ValueError(f"the column vector must have lists of numbers; found {column.type}")
    # from (time, layer · width) in Parquet; a shard is (layer, time, width)
    vectors = column.flatten().to_numpy(zero_copy_only=False).reshape(table.num_rows, n_layers or 1, width)
    offsets = [table[name].fill_null(-1).to_numpy() for name in ("begin", "end")]
    sentences = table["sentence"].to_numpy() - description["first"]
    if len(sentences) and (sentences[0] < 0 or (np.diff(sentences) < 0).any()):
        raise ValueError("the rows must be sorted by sentence")
    n_sentences = description["sentences"]
    if not 0 <= n_sentences <= 1 << 32 or (len(sentences) and sentences[-1] >= n_sentences):
        raise ValueError(
            f"the sentence numbers must be below {n_sentences}, the number of sentences in the description"
        )
    return {
        "vectors": vectors[:, 0] if n_layers is None else np.ascontiguousarray(vectors.transpose(1, 0, 2)),
        "lengths": np.bincount(sentences, minlength=n_sentences).astype(np.int64),
        "token_bytes": np.frombuffer(b"".join(tokens), dtype=np.uint8),
        "token_ends": np.cumsum([len(token) for token in tokens], dtype=np.int64),
        "offsets": np.stack(offsets, axis=1),
        "places": np.zeros((n_sentences, 3), dtype=np.int64),  # not stored in Parquet files
    }, description


def _read_hdf5(path: Path) -> Iterator[Encoding]:
    import h5py

    with _report_damage(path):
        with open_regular(path) as raw:
            size = raw.seek(0, 2)
        with h5py.File(path, "r") as file, Hdf5File(path) as checked:
            n_sentences = len(file) - (SENTENCES in file)
            for index in range(n_sentences):
                yield _read_hdf5_sentence(file, checked, str(index), size)


def _read_hdf5_sentence(file: h5py.File, checked: Hdf5File, key: str, size: int) -> Encoding:
    import h5py

    # neither elmo nor AllenNLP writes soft links or data outside the file
    link = file.get(key, getlink=True)
    data = file[key] if isinstance(link, h5py.HardLink) else None
    if not isinstance(data, h5py.Dataset) or data.external or data.is_virtual or data.chunks or data.nbytes > size:
        raise ValueError(f"{key!r} must be a dataset that is stored in this file, in one piece")
    if "tokens" not in data.attrs:
        raise ValueError(f"dataset {key!r} must have an attribute 'tokens'; only files of elmo embed have it")
    checked.check_texts(h5py.h5o.get_info(data.id).addr)  # pyright: ignore[reportAttributeAccessIssue]
    tokens, offsets = (_read_hdf5_text(data, name) if name in data.attrs else None for name in ("tokens", "offsets"))
    return _build_encoding(tokens, offsets, data[()])


def _read_hdf5_text(data: h5py.Dataset, name: str) -> Any:
    """Read an attribute with JSON."""
    import h5py

    attribute = data.attrs.get_id(name)
    kind = h5py.check_string_dtype(attribute.dtype)
    if attribute.shape != () or kind is None or kind.length is not None:
        raise ValueError(f"the attribute {name!r} must be one string; found shape {attribute.shape}")
    return json.loads(str(data.attrs[name]))


def _read_json_lines(path: Path) -> Iterator[Encoding]:
    with _report_damage(path), open_regular(path) as file:
        for line in file:
            values = json.loads(line)
            vectors = np.array(values["vectors"], dtype=np.float32)
            if not values["tokens"] and 0 in (shape := values["shape"]):
                vectors = np.zeros(shape, dtype=np.float32)  # one axis is 0, so this takes no memory
            yield _build_encoding(values["tokens"], values["offsets"], vectors)


def _build_encoding(tokens: Any, offsets: Any, vectors: np.ndarray[Any, Any]) -> Encoding:
    if vectors.ndim not in (2, 3) or vectors.shape[-2] != len(tokens) or vectors.dtype.kind != "f":
        raise ValueError(f"there must be {len(tokens)} vectors, one per token; found shape {vectors.shape}")
    if not all(isinstance(token, str) for token in tokens):
        raise ValueError("tokens must be strings")
    pairs = None if offsets is None else tuple((int(begin), int(end)) for begin, end in offsets)
    if pairs is not None and len(pairs) != len(tokens):
        raise ValueError(f"there must be {len(tokens)} offsets, one per token; found {len(pairs)}")
    return Encoding(tuple(tokens), vectors, offsets=pairs)
