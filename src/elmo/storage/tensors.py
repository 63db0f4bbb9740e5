"""Read and write safetensors files.

The functions in the first part are for the weights of a model: torch tensors whose names and shapes are known
beforehand. Matrices can be stored as int8, with the scale of each row in a second tensor. The functions in the last
part (``write_arrays``, ``read_arrays``) are for results: NumPy arrays of any shape, with a description. All check the
header and the size of a file before they read its data.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, get_args

import numpy as np

from elmo.errors import FormatError, OutputError, raise_all
from elmo.storage.atomic import cannot_write
from elmo.storage.files import compare_checksums, format_error, format_path, open_regular

if TYPE_CHECKING:
    from torch import Tensor

Dtype = Literal["float32", "float16", "bfloat16", "int8"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
_MAX_WEIGHTS_HEADER = 1 << 20  # bytes; a model of 64 layers needs a twentieth of this
_MAX_ARRAYS_HEADER = 1 << 24
_MAX_AXES = 32
_WEIGHT_TYPES = ("F64", "F32", "F16", "BF16")
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "I8": 1}
SCALE = ".scale"  # suffix of the name of the scales of an int8 matrix


def check_dtype(name: str) -> None:
    """Raise ``OutputError`` if weights cannot be stored in the type with this name."""
    if name not in DTYPES:
        raise OutputError(f"dtype must be one of {', '.join(DTYPES)}; found {name!r:.40}")


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the content of a safetensors file in float32; equal tensors give equal bytes."""
    import safetensors.torch

    return safetensors.torch.save(_convert(tensors, "float32", int8=()), metadata={"format": "pt"})


def write(tensors: Mapping[str, Tensor], path: Path, *, dtype: Dtype = "float32", int8: Collection[str] = ()) -> None:
    """Write a safetensors file; raise ``OutputError`` if a value does not fit ``dtype``.

    Args:
        tensors: The tensors.
        path: The file.
        dtype: Type of the stored values; with ``"int8"``, tensors that are not in ``int8`` are stored as float32.
        int8: Names of the matrices to store as int8 if ``dtype`` is ``"int8"``.
    """
    import safetensors.torch
    from safetensors import SafetensorError

    converted = _convert(tensors, dtype, int8=int8 if dtype == "int8" else ())
    try:
        safetensors.torch.save_file(converted, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise cannot_write(path, error) from error


def _convert(tensors: Mapping[str, Tensor], dtype: Dtype, *, int8: Collection[str]) -> dict[str, Tensor]:
    import torch

    check_dtype(dtype)
    kind = torch.float32 if dtype == "int8" else getattr(torch, dtype)
    converted: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        if name in int8:
            converted[name], converted[name + SCALE] = quantize(tensor)
            continue
        copy = tensor.detach().to("cpu", kind).contiguous()
        if copy.untyped_storage().data_ptr() in storages:  # safetensors rejects tensors that share memory
            copy = copy.clone()
        storages.add(copy.untyped_storage().data_ptr())
        converted[name] = copy
    problems = [
        f"{name} has values that are out of range or not finite"
        for name, copy in converted.items()
        if name.removesuffix(SCALE) not in int8 and not copy.isfinite().all()
    ]
    problems += [
        f"{name} has values that are out of range or not finite"
        for name in int8
        if _has_bad_scales(converted[name + SCALE])
    ]
    raise_all(problems, subject=f"cannot store the weights as {dtype}", kind=OutputError)
    return converted


# --- int8 ----------------------------------------------------------------------------------------

_INT8_MAX = 127
# Shares of the largest value of a row that can become 127; larger values are clipped. The one with the smallest squared
# error is used.
_CLIPS = tuple(1 - k / 100 for k in range(31))
_MAX_SCALE = float(np.finfo(np.float32).max) / 128  # so that every int8 number times a scale is finite
_CHUNK_VALUES = 1 << 20


def quantize(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Round a matrix to int8 numbers times a scale for each row; return the numbers and the scales (row,).

    Numbers are in -127..127. A scale has at most 16 significant bits, so that its product with a number of 7 bits is
    exact in float32. The largest number of a row is always 127: a matrix that is already such a product has the same
    numbers and scales again. A row of zeros has the scale 0, and so has a row of numbers that are too small for a
    scale in float32. A row that is not finite or too large has a scale that ``read`` would reject.
    """
    import torch

    matrix = matrix.detach().to("cpu", torch.float32).contiguous()
    numbers = torch.empty(matrix.shape, dtype=torch.int8)
    scales = torch.empty(len(matrix))
    n_rows = max(1, _CHUNK_VALUES // max(1, matrix.size(1)))
    for begin in range(0, len(matrix), n_rows):
        part = slice(begin, begin + n_rows)
        numbers[part], scales[part] = _quantize_rows(matrix[part])
    return numbers, scales


def _quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    import torch

    highest = rows.abs().amax(dim=1) if rows.size(1) else rows.new_zeros(len(rows))  # (row,)
    unit = torch.where(highest > 0, highest, 1)[:, None]  # the squares of large weights would overflow
    best, lowest_error = torch.zeros_like(highest), torch.full_like(highest, torch.inf)
    for clip in _CLIPS:
        scale = _round_scale(highest * clip / _INT8_MAX)
        error = _divide(rows, scale).mul_(scale[:, None]).sub_(rows).div_(unit).square_().sum(dim=1)  # (row,)
        best = torch.where(error < lowest_error, scale, best)
        lowest_error = torch.minimum(error, lowest_error)
        if not lowest_error.any():  # the rows were int8 before
            break
    numbers = _divide(rows, best).to(torch.int8)
    return numbers, torch.where(lowest_error.isfinite(), best, torch.nan)  # NaN: the row is not finite


def _divide(rows: Tensor, scale: Tensor) -> Tensor:
    """Divide each row by its scale and round to whole numbers."""
    divisor = scale.where(scale > 0, 1)[:, None]
    return (rows / divisor).round_().clamp_(-_INT8_MAX, _INT8_MAX)


def _round_scale(scale: Tensor) -> Tensor:
    """Round to 16 significant bits; numbers that are not normal in float32 become zero."""
    import torch

    bits = scale.contiguous().view(torch.int32)  # the sign is never set
    rounded = ((bits + 0x80) & ~0xFF).view(torch.float32)
    return torch.where(scale < torch.finfo(torch.float32).tiny, 0, rounded)


def _dequantize(numbers: Tensor, scales: Tensor) -> Tensor:
    return numbers.float().mul_(scales[:, None])


def _has_bad_scales(scales: Tensor) -> bool:
    return not bool(((scales >= 0) & (scales <= _MAX_SCALE)).all())  # also True for NaN


def _check_scales(tensors: Mapping[str, Tensor], path: Path, int8: Collection[str]) -> None:
    """Raise ``FormatError`` if a scale is not a finite number from zero on; the products are then finite, too."""
    problems = []
    for name in int8:
        scales = tensors[name + SCALE]
        if _has_bad_scales(scales):
            row = int((~((scales >= 0) & (scales <= _MAX_SCALE))).nonzero()[0])
            problems.append(
                f"{name}{SCALE}: scales must be in 0..{_MAX_SCALE:.3g}; found {scales[row]:.3g} in row {row}"
            )
    if problems:
        raise_all(problems, subject=format_path(path))


# --- reading -------------------------------------------------------------------------------------


def check(path: Path, shapes: Mapping[str, tuple[int, ...]], *, int8: Collection[str] = ()) -> None:
    """Check that a safetensors file contains exactly the tensors in ``shapes``; read only its header and size.

    Args:
        path: The file.
        shapes: Shape of each tensor.
        int8: Names of the matrices that must be int8 with scales; all other tensors must have a floating-point type.
    """
    with open_regular(path) as file:
        _read_checked_header(file, path, shapes, int8)


def _read_checked_header(
    file: BinaryIO, path: Path, shapes: Mapping[str, tuple[int, ...]], int8: Collection[str]
) -> tuple[dict[str, Any], int]:
    """Return the entries of the tensors and the position of the first data byte."""
    try:
        header, start, size = _read_header(file, _MAX_WEIGHTS_HEADER)
    except (ValueError, RecursionError, struct.error) as error:
        raise FormatError(f"{format_path(path)}: not a valid safetensors file: {format_error(error)}") from error
    if problems := _find_problems(header, shapes, int8, n_bytes=size - start):
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


def _add_scales(shapes: Mapping[str, tuple[int, ...]], int8: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors of a file, including the scales of int8 matrices."""
    return {**shapes, **{name + SCALE: shapes[name][:1] for name in int8}}


def _find_problems(
    header: dict[str, Any], shapes: Mapping[str, tuple[int, ...]], int8: Collection[str], *, n_bytes: int
) -> list[str]:
    metadata = header.pop("__metadata__", {})
    codes = dict.fromkeys(int8, ("I8",)) | {name + SCALE: ("F32",) for name in int8}
    shapes = _add_scales(shapes, int8)
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
        if code not in (allowed := codes.get(name, _WEIGHT_TYPES)):
            expected = allowed[0] if len(allowed) == 1 else f"one of {', '.join(allowed)}"
            problems.append(f"{name}: dtype must be {expected}; found {code}")
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


def read(
    path: Path, shapes: Mapping[str, tuple[int, ...]], *, is_mapped: bool = True, int8: Collection[str] = ()
) -> dict[str, Tensor]:
    """Read the tensors of a file that ``check`` has accepted, as float32.

    With ``is_mapped``, float32 tensors are mapped into memory and read from the file only when they are used, so the
    file must not change or be removed while they exist.
    """
    tensors = _to_float32(_map(path, _add_scales(shapes, int8)), path, int8, copy=not is_mapped)
    return FiniteTensors(tensors) if _has_finite_values(path, shapes, int8) else tensors


def _to_float32(
    stored: Mapping[str, Tensor], path: Path, int8: Collection[str], *, copy: bool = False
) -> dict[str, Tensor]:
    import torch

    _check_scales(stored, path, int8)
    scales = {name + SCALE for name in int8}
    return {
        name: _dequantize(tensor, stored[name + SCALE]) if name in int8 else tensor.to(torch.float32, copy=copy)
        for name, tensor in stored.items()
        if name not in scales
    }


class FiniteTensors(dict[str, "Tensor"]):
    """Tensors whose values are all finite; ``read`` has checked them without loading mapped tensors into memory."""


class StoredTensors:
    """The tensors of a file that are not read before ``read`` is called.

    Creating the object checks the header and the size of the file and maps the file into memory, so ``read`` also works
    after the file was removed.
    """

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]], *, int8: Collection[str] = ()) -> None:
        self._path, self._int8 = path, int8
        with open_regular(path) as file:
            header, start = _read_checked_header(file, path, shapes, int8)
            file.seek(0)
            self._head = file.read(start)
        tensors = _map(path, _add_scales(shapes, int8))
        names = sorted(tensors, key=lambda name: header[name]["data_offsets"])
        self._tensors = {name: tensors[name] for name in names}  # in the order of the file

    def read(self, sha256: str | None) -> dict[str, Tensor]:
        """Return the tensors as float32, after comparing the bytes of the file with their SHA-256, if there is one."""
        import torch

        if sha256 is not None:
            digest = hashlib.sha256(self._head)
            for tensor in self._tensors.values():
                digest.update(tensor.flatten().view(torch.uint8).numpy().data)
            compare_checksums(self._path, actual=digest.hexdigest(), expected=sha256)
        return _to_float32(self._tensors, self._path, self._int8)


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


def _has_finite_values(path: Path, shapes: Mapping[str, tuple[int, ...]], int8: Collection[str]) -> bool:
    """Return whether all values are finite, also as float32; reads the file in chunks and keeps nothing in memory."""
    with open_regular(path) as file:
        header, start = _read_checked_header(file, path, shapes, int8)
        for name, entry in header.items():
            if name in int8:  # finite with any scale that _check_scales accepts
                continue
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


# --- results -------------------------------------------------------------------------------------

DESCRIPTION = "elmo"  # metadata key of the description, which is stored as JSON
_CODES = {"float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "uint8": "U8"}
_ARRAY_DTYPES = {code: np.dtype(name).newbyteorder("<") for name, code in _CODES.items()}

Array = np.ndarray[Any, Any]


def write_arrays(arrays: Sequence[tuple[str, Array]], description: Any, file: BinaryIO) -> None:
    """Write named arrays and a description; the arrays with the largest item size come first, to align all of them."""
    write_safetensors(arrays, {DESCRIPTION: json.dumps(description)}, file)


def write_safetensors(arrays: Sequence[tuple[str, Array]], metadata: Mapping[str, str], file: BinaryIO) -> None:
    """Write named arrays and metadata to a safetensors file; the arrays with the largest item size come first.

    This does not use the safetensors library, which would copy every array, restrict the file permissions, write the
    metadata in random order, and leave a temporary file behind if it is killed.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
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
