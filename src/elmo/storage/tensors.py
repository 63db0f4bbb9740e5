"""Named tensors in, a safetensors file out; and back, the header checked before a byte of data is read.

Named arrays and a description in, a safetensors file out; and back, read or mapped into memory.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np

from elmo.errors import FormatError, OutputError, raise_all
from elmo.storage.files import cannot_write, open_regular, reason, shown

if TYPE_CHECKING:
    import torch
    from torch import Tensor


Dtype = Literal["float32", "float16", "bfloat16"]
DTYPES: tuple[Dtype, ...] = ("float32", "float16", "bfloat16")
HEADER_LIMIT = 1 << 20  # bytes; 64 layers take a twentieth
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


def torch_dtype(name: str) -> torch.dtype:
    """The type of numbers that ``name`` stands for."""
    import torch

    if name not in DTYPES:
        raise OutputError(f"dtype: expected one of {', '.join(DTYPES)}, found {name!r:.40}")
    return {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}[name]


def to_bytes(tensors: Mapping[str, Tensor], *, dtype: Dtype = "float32") -> bytes:
    """A safetensors file's content; the same tensors give the same bytes."""
    import safetensors.torch

    return safetensors.torch.save(_ready(tensors, dtype), metadata={"format": "pt"})


def write(tensors: Mapping[str, Tensor], path: Path, *, dtype: Dtype = "float32") -> None:
    """Write a safetensors file; ``OutputError`` when a number does not fit ``dtype``."""
    import safetensors.torch
    from safetensors import SafetensorError

    ready = _ready(tensors, dtype)
    path.touch()
    mode = path.stat().st_mode
    try:
        safetensors.torch.save_file(ready, path, metadata={"format": "pt"})
        path.chmod(mode)  # safetensors hides its files from everybody else, but models are shared
    except SafetensorError as error:
        raise cannot_write(path, error) from error


def _ready(tensors: Mapping[str, Tensor], dtype: Dtype) -> dict[str, Tensor]:
    kind = torch_dtype(dtype)
    ready: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        cast = tensor.detach().to("cpu", kind).contiguous()
        if cast.untyped_storage().data_ptr() in seen:  # safetensors refuses tensors that share memory
            cast = cast.clone()
        seen.add(cast.untyped_storage().data_ptr())
        ready[name] = cast
    lost = [
        f"{name} holds values beyond its range" for name, cast in ready.items() if not cast.isfinite().all()
    ]
    raise_all(lost, subject=f"weights as {dtype}", kind=OutputError)
    return ready


def check(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a safetensors file that does not hold exactly ``shapes``, from its header and size alone."""
    with open_regular(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(HEADER_LIMIT, size - 8):
            raise FormatError(
                f"{shown(path)}: expected a safetensors header of at most {HEADER_LIMIT} bytes that fits the "
                f"file of {size}, found {length} declared"
            )
        raw = file.read(length)
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{shown(path)}: expected a safetensors header in JSON, found {reason(error)}"
        ) from error
    if not isinstance(header, dict):
        raise FormatError(f"{shown(path)}: expected a safetensors header, found {type(header).__name__}")
    raise_all(_problems(header, shapes, n_bytes=size - 8 - length), subject=shown(path))


def _problems(header: dict[str, Any], shapes: Mapping[str, tuple[int, ...]], *, n_bytes: int) -> list[str]:
    metadata = header.pop("__metadata__", {})
    problems = []
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        problems.append("__metadata__ must map strings to strings")
    problems += [f"missing {name} {shape}" for name, shape in shapes.items() if name not in header]
    problems += [f"unexpected {name!r:.80}" for name in header if name not in shapes]
    spans = []
    for name, shape in shapes.items():
        if name not in header:
            continue
        entry = header[name] if isinstance(header[name], dict) else {}
        kind = entry.get("dtype")
        found, span = _naturals(entry.get("shape")), _naturals(entry.get("data_offsets"))
        if not isinstance(kind, str) or kind not in _ITEM_BYTES:
            problems.append(f"{name}: expected dtype {', '.join(_ITEM_BYTES)}, found {kind!r:.40}")
        elif found != shape:
            problems.append(f"{name}: expected {shape}, found {str(entry.get('shape'))[:80]}")
        elif span is None or len(span) != 2:
            problems.append(f"{name}: expected two data_offsets, found {str(entry.get('data_offsets'))[:80]}")
        elif span[1] - span[0] != (expected := math.prod(shape) * _ITEM_BYTES[kind]):
            problems.append(f"{name}: expected {expected} bytes, found data_offsets {str(span)[:80]}")
        else:
            spans.append((span[0], span[1], name))
    return problems or _span_problems(sorted(spans), n_bytes)


def _span_problems(spans: list[tuple[int, int, str]], n_bytes: int) -> list[str]:
    """Data must fill the file without gap or overlap."""
    end = 0
    for first, last, name in spans:
        if first != end:
            return [f"{name}: expected its data to begin at byte {end}, found {first}"]
        end = last
    return [] if end == n_bytes else [f"expected {end} bytes of data, found {n_bytes}"]


def read(path: Path, shapes: Mapping[str, tuple[int, ...]], *, is_mapped: bool = True) -> dict[str, Tensor]:
    """The tensors of a file that ``check`` has passed, as float32.

    Mapped tensors stay in the file until they are used; it must then outlive them (on Windows, in place).
    """
    import torch
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in shapes}
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise FormatError(
            f"{shown(path)}: expected a safetensors file, found an error: {reason(error)}"
        ) from error
    return {name: _as_float32(tensor, torch.float32, is_mapped) for name, tensor in tensors.items()}


def _as_float32(tensor: Tensor, kind: torch.dtype, is_mapped: bool) -> Tensor:
    return tensor.to(kind) if is_mapped or tensor.dtype != kind else tensor.clone()


def _naturals(values: Any) -> tuple[int, ...] | None:
    is_list = isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
    return tuple(values) if is_list else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key that stands twice")
    return values


DESCRIPTION = "elmo"  # under this name a file carries its description as JSON
_CODES = {"float32": "F32", "float16": "F16", "int64": "I64", "uint8": "U8"}
_DTYPES = {code: np.dtype(name).newbyteorder("<") for name, code in _CODES.items()}
_HEADER_LIMIT = 1 << 24  # bytes

Array = np.ndarray[Any, Any]


def write_arrays(arrays: Sequence[tuple[str, Array]], description: Any, file: BinaryIO) -> None:
    """The arrays one after another (those with the widest items first, so that all are aligned).

    Written here, since the library copies every array and hides the file from other users.
    """
    header: dict[str, Any] = {"__metadata__": {DESCRIPTION: json.dumps(description)}}
    end = 0
    for name, array in arrays:
        begin, end = end, end + array.nbytes
        kind = _CODES[str(array.dtype)]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)  # data begins aligned
    file.write(struct.pack("<Q", len(text)) + text)
    for _, array in arrays:
        file.write(np.ascontiguousarray(array).data)


def read_arrays(path: Path, *, is_mapped: bool = False) -> tuple[dict[str, Array], Any]:
    """The arrays by name, and the description; mapped ones are read from the disk as they are used.

    ``ValueError`` and its like for a file that does not hold what its header says: callers know how to name
    the file. No size is believed before the file was seen to have it.
    """
    with open_regular(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        (length,) = struct.unpack("<Q", file.read(8))
        if not 2 <= length <= min(_HEADER_LIMIT, size - 8):
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        header = json.loads(file.read(length))
        if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in header.values()):
            raise ValueError("a header that describes no arrays")
        description = json.loads(header.pop("__metadata__")[DESCRIPTION])
        # as a plain array: every look at one of np.memmap costs ten times as much
        mapped = np.asarray(np.memmap(file, dtype=np.uint8, mode="r")) if is_mapped else None
        arrays: dict[str, Array] = {}
        for name, entry in header.items():
            begin, end, shape, dtype = _checked(entry, room=size - 8 - length)
            if mapped is not None:
                raw: Array = mapped[8 + length + begin : 8 + length + end]
                arrays[name] = raw.view(dtype).reshape(shape)
            else:
                file.seek(8 + length + begin)
                arrays[name] = np.frombuffer(file.read(end - begin), dtype=dtype).reshape(shape)
        return arrays, description


def _checked(entry: dict[str, Any], *, room: int) -> tuple[int, int, tuple[int, ...], np.dtype[Any]]:
    """Where an array lies, and its form, held against the bytes that there are."""
    dtype = _DTYPES[entry["dtype"]]
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if not all(type(n) is int and n >= 0 for n in (begin, *shape)):
        raise ValueError(f"shape {str(shape)[:80]} at {begin}")
    if math.prod(shape) * dtype.itemsize != end - begin:
        raise ValueError(f"shape {shape} of {dtype} does not take {end - begin} bytes")
    if end > room:
        raise EOFError("the data ends in the middle")
    return begin, end, shape, dtype
