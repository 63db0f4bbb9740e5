"""Read a file with a single matrix, written by ``torch.save``, without unpickling it.

The matrix is a tensor or a NumPy array. Published alignments are arrays, whose numbers are a string inside the pickle.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo.errors import FormatError
from elmo.formats.containers.state_dict import (
    ALLOWED,
    CallRecord,
    GlobalName,
    PickleLimits,
    StateDict,
    StateRecord,
    find_tensor,
    read_saved,
)
from elmo.storage.files import format_path

if TYPE_CHECKING:
    from torch import Tensor

_NAME = "matrix"
_ARRAY_FUNCTIONS = frozenset({"numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"})
_DTYPE = re.compile("f[248]")
_LIMITS = PickleLimits(
    max_bytes=1 << 26,  # a matrix of width 1024 in float64 has 8 MB, whose bytes become up to two bytes each
    allowed=ALLOWED | _ARRAY_FUNCTIONS | {"numpy.ndarray", "numpy.dtype", "_codecs.encode"},
)


def read_matrix(path: Path) -> Tensor:
    """Read the matrix of a file as float32; the file was written by ``torch.save(matrix, path)``."""
    import torch

    subject = format_path(path)
    value, storages = read_saved(path, _LIMITS)
    if isinstance(value, StateRecord):
        try:
            return torch.from_numpy(_build_array(value).astype(np.float32))
        except ValueError as error:
            raise FormatError(f"{subject}: cannot read the array: {error}") from error
    tensor = StateDict(path, {_NAME: find_tensor(value, storages, name=_NAME, subject=subject)}).read(_NAME)
    if tensor.ndim != 2:
        raise FormatError(f"{subject}: expected a matrix, found a tensor of shape {tuple(tensor.shape)}")
    return tensor


def _build_array(record: StateRecord) -> np.ndarray[Any, Any]:
    """Return the array of a pickle; raise ``ValueError`` if it is not a matrix of floats."""
    match record.call.arguments:
        case (GlobalName(name="numpy.ndarray"), (0,), CallRecord()) if record.call.function in _ARRAY_FUNCTIONS:
            pass
        case _:
            raise ValueError("unexpected arguments of the call that creates it")
    match record.state:
        # the version of the format, the shape, the type, whether columns are contiguous, and the numbers
        case (1, (int(rows), int(columns)), StateRecord() as dtype, bool(is_fortran), CallRecord() as encoded):
            pass
        case _:
            raise ValueError("expected a matrix")
    match (dtype.call.function, dtype.call.arguments, dtype.state):
        case ("numpy.dtype", (str(code), *_), (3, "<", *_)) if _DTYPE.fullmatch(code):
            pass
        case _:
            raise ValueError("expected little-endian floats")
    match (encoded.function, encoded.arguments):
        case ("_codecs.encode", (str(text), "latin1")):
            data = text.encode("latin1")  # raises UnicodeEncodeError, a ValueError, for other characters
        case _:
            raise ValueError("expected numbers as a string of bytes")
    expected = math.prod((rows, columns, int(code[1])))
    if min(rows, columns) < 0 or len(data) != expected:
        raise ValueError(f"expected {expected} bytes for shape {(rows, columns)}, found {len(data)}")
    return np.frombuffer(data, f"<{code}").reshape((rows, columns), order="F" if is_fortran else "C")
