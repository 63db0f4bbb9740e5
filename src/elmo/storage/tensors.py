"""Read and write safetensors files.

The functions in the first part are for the weights of a model: torch tensors whose names and shapes are known
beforehand. Those in the second part (``write_arrays``, ``read_arrays``) are for results: NumPy arrays of any shape,
with a description. Both check the header and the size of a file before they read its data.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, get_args

import numpy as np

from elmo.errors import FormatError, OutputError, raise_all
from elmo.storage.atomic import cannot_write
from elmo.storage.files import compare_checksums, format_error, format_path, open_regular

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Dtype = Literal["float32", "float16", "bfloat16"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
_MAX_WEIGHTS_HEADER = 1 << 20  # bytes; a model of 64 layers needs a twentieth of this
_MAX_ARRAYS_HEADER = 1 << 24
_MAX_AXES = 32
_WEIGHT_TYPES = ("F64", "F32", "F16", "BF16")
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U8": 1}


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype with this name."""
    import torch

    if name not in DTYPES:
        raise OutputError(f"dtype must be one of {', '.join(DTYPES)}; found {name!r:.40}")
    return getattr(torch, name)


def to_bytes(tensors: Mapping[str, Tensor], *, dtype: Dtype = "float32") -> bytes:
    """Return the content of a safetensors file; equal tensors give equal bytes."""
    import safetensors.torch

    return safetensors.torch.save(_convert(tensors, dtype), metadata={"format": "pt"})


def write(tensors: Mapping[str, Tensor], path: Path, *, dtype: Dtype = "float32") -> None:
    """Write a safetensors file; raise ``OutputError`` if a value does not fit ``dtype``."""
    import safetensors.torch
    from safetensors import SafetensorError

    converted = _convert(tensors, dtype)
    path.touch()
    mode = path.stat().st_mode
    try:
        safetensors.torch.save_file(converted, path, metadata={"format": "pt"})
        path.chmod(mode)  # safetensors removes the permissions of other users, but models are shared
    except SafetensorError as error:
        raise cannot_write(path, error) from error


def _convert(tensors: Mapping[str, Tensor], dtype: Dtype) -> dict[str, Tensor]:
    kind = torch_dtype(dtype)
    converted: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        copy = tensor.detach().to("cpu", kind).contiguous()
        if copy.untyped_storage().data_ptr() in storages:  # safetensors rejects tensors that share memory
            copy = copy.clone()
        storages.add(copy.untyped_storage().data_ptr())
        converted[name] = copy
    problems = [
        f"{name} has values that are out of range or not finite"
        for name, copy in converted.items()
        if not copy.isfinite().all()
    ]
    raise_all(problems, subject=f"cannot store the weights as {dtype}", kind=OutputError)
    return converted


def check(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that a safetensors file contains exactly the tensors in ``shapes``; read only its header and size."""
    with open_regular(path) as file:
        _read_checked_header(file, path, shapes)


def _read_checked_header(
    file: BinaryIO, path: Path, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Any], int]:
    """Return the entries of the tensors and the position of the first data byte."""
    try:
        header, start, size = _read_header(file, _MAX_WEIGHTS_HEADER)
    except (ValueError, RecursionError, struct.error) as error:
        raise FormatError(f"{format_path(path)}: not a valid safetensors file: {format_error(error)}") from error
    if problems := _find_problems(header, shapes, n_bytes=size - start):
        raise_all(problems, subject=format_path(path))
    return header, start


def _read_header(file: BinaryIO, max_bytes: int) -> tuple[dict[str, Any], int, int]:
    """Return the header of a safetensors file, the position of the first data byte, and the size of the file."""
    size = file.seek(0, 2)
    file.seek(0)
    (length,) = struct.unpack("<Q", file.read(8))
    if not 2 <= length <= min(max_bytes, size - 8):
        raise ValueError(f"invalid header size: {length} bytes in a file of {size} bytes")
    header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_reject_duplicate_keys)
    if not isinstance(header, dict):
        raise ValueError(f"the header must be a JSON object; found {type(header).__name__}")
    return header, 8 + length, size


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("the header has a duplicate key")
    return values


def _find_problems(header: dict[str, Any], shapes: Mapping[str, tuple[int, ...]], *, n_bytes: int) -> list[str]:
    metadata = header.pop("__metadata__", {})
    problems = []
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        problems.append("__metadata__ must map strings to strings")
    problems += [f"missing {name} {shape}" for name, shape in shapes.items() if name not in header]
    problems += [f"unexpected {name!r:.80}" for name in header if name not in shapes]
    spans: list[tuple[int, int, str]] = []
    for name in [name for name in shapes if name in header]:
        try:
            code, shape, begin, end = _parse_entry(header[name], n_bytes=n_bytes)
        except (ValueError, EOFError) as error:
            problems.append(f"{name}: {error}")
            continue
        if code not in _WEIGHT_TYPES:
            problems.append(f"{name}: dtype must be one of {', '.join(_WEIGHT_TYPES)}; found {code}")
        if shape != shapes[name]:
            problems.append(f"{name}: expected {shapes[name]}, found {shape}")
        spans.append((begin, end, name))
    return problems or _find_gaps(sorted(spans), n_bytes)


def _parse_entry(entry: Any, *, n_bytes: int) -> tuple[str, tuple[int, ...], int, int]:
    """Return dtype, shape, begin and end of an array, checked against the number of bytes in the file."""
    match entry:
        case {"dtype": str(code), "shape": [*shape], "data_offsets": [begin, end]} if len(shape) <= _MAX_AXES:
            pass
        case _:
            raise ValueError("the header must contain a dtype, a shape and two data_offsets")
    if not all(type(n) is int and 0 <= n < 1 << 63 for n in (begin, end, *shape)):
        raise ValueError(
            f"shape and data_offsets must be non-negative integers; found {shape} and {[begin, end]}"[:200]
        )
    if code not in _ITEM_BYTES:
        raise ValueError(f"dtype must be one of {', '.join(_ITEM_BYTES)}; found {code!r:.40}")
    if math.prod(shape) * _ITEM_BYTES[code] != end - begin:
        raise ValueError(f"shape {shape} of {code} does not match its {end - begin} bytes")
    if end > n_bytes:
        raise EOFError(f"the file is truncated: expected {end} bytes of data, found {n_bytes}")
    return code, tuple(shape), begin, end


def _find_gaps(spans: list[tuple[int, int, str]], n_bytes: int) -> list[str]:
    """Check that the tensors fill the file without gaps or overlaps; return the first problem as a list."""
    end = 0
    for first, last, name in spans:
        if first != end:
            return [f"{name}: data must start at byte {end}; found {first}"]
        end = last
    return [] if end == n_bytes else [f"expected {end} bytes of data, found {n_bytes}"]


def read(path: Path, shapes: Mapping[str, tuple[int, ...]], *, is_mapped: bool = True) -> dict[str, Tensor]:
    """Read the tensors of a file that ``check`` has accepted, as float32.

    With ``is_mapped``, float32 tensors are mapped into memory and read from the file only when they are used, so the
    file must not change or be removed while they exist.
    """
    import torch

    tensors = {name: tensor.to(torch.float32, copy=not is_mapped) for name, tensor in _map(path, shapes).items()}
    return FiniteTensors(tensors) if _has_finite_values(path, shapes) else tensors


class FiniteTensors(dict[str, "Tensor"]):
    """Tensors whose values are all finite; ``read`` has checked them without loading mapped tensors into memory."""


class StoredTensors:
    """The tensors of a file that are not read before ``read`` is called.

    Creating the object checks the header and the size of the file and maps the file into memory, so ``read`` also works
    after the file was removed.
    """

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._path = path
        with open_regular(path) as file:
            header, start = _read_checked_header(file, path, shapes)
            file.seek(0)
            self._head = file.read(start)
        names = sorted(shapes, key=lambda name: header[name]["data_offsets"])
        tensors = _map(path, shapes)
        self._tensors = {name: tensors[name] for name in names}  # in the order of the file

    def read(self, sha256: str | None) -> dict[str, Tensor]:
        """Return the tensors as float32, after comparing the bytes of the file with their SHA-256, if there is one."""
        import torch

        if sha256 is not None:
            digest = hashlib.sha256(self._head)
            for tensor in self._tensors.values():
                digest.update(tensor.flatten().view(torch.uint8).numpy().data)
            compare_checksums(self._path, actual=digest.hexdigest(), expected=sha256)
        return {name: tensor.to(torch.float32) for name, tensor in self._tensors.items()}


def _map(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Map the tensors into memory, in the precision of the file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in shapes}
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise FormatError(f"{format_path(path)}: not a valid safetensors file: {format_error(error)}") from error


# the bits of the exponent: all are set in infinities and NaN
_EXPONENTS = {"F32": ("<u4", 0x7F800000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}
_CHUNK_BYTES = 1 << 18  # stays in the cache of the processor


def _has_finite_values(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether all values are finite, also as float32; reads the file in chunks and keeps nothing in memory."""
    with open_regular(path) as file:
        header, start = _read_checked_header(file, path, shapes)
        for entry in header.values():
            if entry["dtype"] not in _EXPONENTS:  # float64 values may be too large for float32
                return False
            dtype, mask = _EXPONENTS[entry["dtype"]]
            begin, end = entry["data_offsets"]
            file.seek(start + begin)
            for position in range(begin, end, _CHUNK_BYTES):
                bits = np.frombuffer(file.read(min(_CHUNK_BYTES, end - position)), dtype)
                if (bits & mask).max(initial=0) == mask:
                    return False
    return True


DESCRIPTION = "elmo"  # metadata key of the description, which is stored as JSON
_CODES = {"float32": "F32", "float16": "F16", "int64": "I64", "uint8": "U8"}
_ARRAY_DTYPES = {code: np.dtype(name).newbyteorder("<") for name, code in _CODES.items()}

Array = np.ndarray[Any, Any]


def write_arrays(arrays: Sequence[tuple[str, Array]], description: Any, file: BinaryIO) -> None:
    """Write named arrays and a description; pass the arrays with the largest item size first, so that all are aligned.

    This does not use the safetensors library, which would copy every array and restrict the file permissions.
    """
    header: dict[str, Any] = {"__metadata__": {DESCRIPTION: json.dumps(description)}}
    end = 0
    for name, array in arrays:
        begin, end = end, end + array.nbytes
        kind = _CODES[str(array.dtype)]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)  # aligns the data
    file.write(struct.pack("<Q", len(text)) + text)
    for _, array in arrays:
        file.write(np.ascontiguousarray(array).data)


def read_arrays(path: Path, *, is_mapped: bool = False) -> tuple[dict[str, Array], Any]:
    """Read the named arrays and the description; mapped arrays are read from the disk only when they are used.

    A damaged file raises ``ValueError``, ``KeyError`` or a similar error; the caller converts it to an ``ElmoError``.
    """
    with open_regular(path) as file:
        header, start, size = _read_header(file, _MAX_ARRAYS_HEADER)
        description = json.loads(header.pop("__metadata__")[DESCRIPTION])
        # as a plain array: access to an np.memmap is ten times slower
        mapped = np.asarray(np.memmap(file, dtype=np.uint8, mode="r")) if is_mapped else None
        arrays: dict[str, Array] = {}
        for name, entry in header.items():
            code, shape, begin, end = _parse_entry(entry, n_bytes=size - start)
            dtype = _ARRAY_DTYPES[code]
            if mapped is not None:
                raw: Array = mapped[start + begin : start + end]
                arrays[name] = raw.view(dtype).reshape(shape)
            else:
                file.seek(start + begin)
                arrays[name] = np.frombuffer(file.read(end - begin), dtype=dtype).reshape(shape)
        return arrays, description
