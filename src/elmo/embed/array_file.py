"""Named arrays and a description in, a safetensors file out; and back, read or mapped into memory."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from elmo.formats.files import open_regular

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
